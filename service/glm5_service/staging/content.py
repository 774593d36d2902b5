"""The content of one file as its bytes pass in order: digests, and a look at the first of them."""

from __future__ import annotations

from glm5_service.staging.digests import Hasher
from glm5_service.staging.peek import PEEK_BYTES, peek
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import RemoteFile


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
