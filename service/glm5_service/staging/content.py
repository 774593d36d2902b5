"""What the bytes of one file must be: its digests, and a look at the first bytes of a GGUF while it is fetched.

A file is hashed in one pass: always SHA-256, for the manifest, and the digest that its source states. The look
finds a wrong file hours before the plugin's header reader can run. That reader decides when the file is whole.
"""

from __future__ import annotations

import hashlib
import re
from typing import Protocol

from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import Digest, RemoteFile

PEEK_BYTES = 65536
_STRING_TYPE = (8).to_bytes(4, "little")
_ARCHITECTURE = b"general.architecture" + _STRING_TYPE
_VALUE = re.compile(rb"[\w.-]{1,64}")


class Content:
    """Takes every byte of `file` once, in order; raises StagingError as soon as it cannot be what it should be."""

    def __init__(self, file: RemoteFile, architecture: str) -> None:
        self._file, self._architecture = file, architecture
        self._hasher = Hasher(file)
        self._head: bytes | None = b"" if file.is_gguf else None
        self.position = 0

    def take(self, data: bytes | memoryview) -> None:
        self._hasher.update(memoryview(data))
        self.position += len(data)
        if self._head is not None:
            self._head += bytes(data[:PEEK_BYTES])
            if len(self._head) >= min(PEEK_BYTES, self._file.size):
                head, self._head = self._head, None
                peek(self._file.name, head, self._architecture)

    def finish(self) -> str:
        """SHA-256 of the whole; raises StagingError(CORRUPT) if the source stated another digest."""
        if fault := self._hasher.fault():
            raise StagingError(Reason.CORRUPT, f"digest of {self._file.name}", fault)
        return self._hasher.sha256


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class _PartsHash:
    """The ETag of an S3 upload in parts: MD5 of the parts' MD5s, and their number."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes, self._room = part_bytes, part_bytes
        self._part = hashlib.md5(usedforsecurity=False)
        self._digests: list[bytes] = []

    def update(self, data: memoryview, /) -> None:
        while data:
            head, data = data[: self._room], data[self._room :]
            self._part.update(head)
            self._room -= len(head)
            if self._room == 0:
                self._end_part()

    def hexdigest(self) -> str:
        if self._room < self._part_bytes:
            self._end_part()
        whole = hashlib.md5(b"".join(self._digests), usedforsecurity=False)
        return f"{whole.hexdigest()}-{len(self._digests)}"

    def _end_part(self) -> None:
        self._digests.append(self._part.digest())
        self._part, self._room = hashlib.md5(usedforsecurity=False), self._part_bytes


class Hasher:
    """Takes the bytes of `file` in order."""

    def __init__(self, file: RemoteFile) -> None:
        self._sha256 = hashlib.sha256()
        self._digest = file.digest
        self._other = _other_hash(file.digest, file.size)

    def update(self, data: memoryview) -> None:
        self._sha256.update(data)
        if self._other is not None:
            self._other.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def fault(self) -> str | None:
        """How the bytes differ from what the source stated; None if they do not, or nothing was stated."""
        if self._digest is None:
            return None
        found = self._other.hexdigest() if self._other is not None else self.sha256
        return (
            None
            if found == self._digest.hex
            else f"{self._digest.kind} is {found}, expected {self._digest.hex}"
        )


def _other_hash(digest: Digest | None, size: int) -> _Hash | None:
    if digest is None or digest.kind == "sha256":
        return None
    if digest.kind == "s3-parts":
        return _PartsHash(digest.part_bytes)
    if digest.kind == "md5":
        return hashlib.md5(usedforsecurity=False)
    # git hashes a header with the size before the content
    return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


def peek(name: str, head: bytes, expected_architecture: str) -> None:
    """Raise StagingError if `head`, the first bytes of `name`, cannot be a GGUF of that architecture."""
    if head[:4] != b"GGUF":
        kind = "a Git LFS pointer" if head.startswith(b"version https://git-lfs") else f"{head[:16]!r}"
        raise StagingError(Reason.NOT_A_MODEL, f"first bytes of {name}", kind, expected="GGUF")
    found = architecture_in(head)
    if expected_architecture and found and found != expected_architecture:
        raise StagingError(
            Reason.WRONG_ARCHITECTURE, f"architecture of {name}", found, expected=expected_architecture
        )


def architecture_in(head: bytes) -> str | None:
    """The value of general.architecture if it is in `head`; writers put it first."""
    at = head.find(_ARCHITECTURE)
    if at < 0:
        return None
    value_at = at + len(_ARCHITECTURE)
    length = int.from_bytes(head[value_at : value_at + 8], "little")
    value = head[value_at + 8 : value_at + 8 + length]
    return value.decode() if length and _VALUE.fullmatch(value) and len(value) == length else None
