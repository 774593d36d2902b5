"""Hashes a file in one pass: always SHA-256, for the manifest, and whatever else its source states a digest in."""

from __future__ import annotations

import hashlib
from typing import Protocol

from glm5_service.staging.records import Digest, RemoteFile


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
