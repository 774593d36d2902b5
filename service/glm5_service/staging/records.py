"""The records that pass between listing, planning and fetching. They are frozen and only derive values."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Literal

from glm5_service.foreign import clean

DigestKind = Literal["sha256", "git-sha1", "md5", "s3-parts"]

SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True)
class Digest:
    """What a source says about the bytes of a file. `s3-parts` is the ETag of an upload in parts of `part_bytes`."""

    kind: DigestKind
    hex: str
    part_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.hex}"


HEX_DIGITS: dict[DigestKind, int] = {"sha256": 64, "git-sha1": 40, "md5": 32}


def stated(kind: DigestKind, value: object) -> Digest:
    """The digest that a source states. Raises ValueError if it is none of this kind."""
    text = value.lower() if isinstance(value, str) else ""
    if not re.fullmatch(rf"[0-9a-f]{{{HEX_DIGITS[kind]}}}", text):
        raise ValueError(f"no {kind} digest: {clean(value)}")
    return Digest(kind, text)


def opaque(etag: str | None) -> str | None:
    """An ETag without its mark of weakness, which proxies put on any that passes; digests tell if bytes are equal."""
    return etag.removeprefix("W/") if etag is not None else None


@dataclass(frozen=True)
class RemoteFile:
    """A file as the source lists it. `name` is its name on the volume, `key` how the source finds it again."""

    name: str
    size: int
    key: str
    digest: Digest | None = None
    etag: str | None = None

    @property
    def is_gguf(self) -> bool:
        return self.name.endswith(".gguf")

    def identity(self) -> dict[str, object]:
        """What must be equal for two transfers to be of the same bytes; digests outrank ETags."""
        version = str(self.digest) if self.digest else opaque(self.etag)
        return {"name": self.name, "size": self.size, "version": version}


def belongs(name: str, chosen: str) -> bool:
    """True for the chosen GGUF, the other splits of its set, and everything that is no GGUF."""
    if not name.endswith(".gguf") or name == chosen:
        return True
    mine, its = SPLIT_NAME.match(chosen), SPLIT_NAME.match(name)
    return bool(mine and its and (mine["stem"], mine["count"]) == (its["stem"], its["count"]))


@dataclass(frozen=True)
class Listing:
    """Everything the source offers for one model. `source` is safe to log and to store."""

    source: str
    files: tuple[RemoteFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def revision(self) -> str:
        """Name of the revision: equal content from any source has the same one."""
        identities = sorted((file.identity() for file in self.files), key=lambda item: str(item["name"]))
        return hashlib.sha256(json.dumps(identities, sort_keys=True).encode()).hexdigest()[:16]
