"""The interface of a source. A source knows one place. `listing` chooses among its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Protocol

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import Reason, StagingError, Transient
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources.http.answers import CREDENTIALS_REFUSED
from glm5_service.staging.sources.http.client import Http, Target

SMALL_FILE_BYTES, SMALL_FILE_WAIT_SECONDS = 4 << 20, 1.0


class Stream(Protocol):
    """Bytes of one file, in order. `whole`: they start at byte 0 although a later range was asked for. `ended`: the
    answer was as long as it said and all of it was read, so what is still missing can be asked for at once."""

    whole: bool

    @property
    def ended(self) -> bool: ...

    def wait(self, seconds: float) -> None:
        """To be called before each read: wait until a good deal has arrived, or the end, at most about so long.
        Raises Transient."""

    def read_into(self, room: memoryview) -> int | None:
        """Put what has arrived into `room`, as much as fits; returns the bytes, 0 at the end, None if there are none
        yet. Does not wait. Raises Transient, also when nothing came through stall_seconds of waiting."""

    def close(self, *, finished: bool) -> None: ...

    def abort(self) -> None:
        """End a read that waits in another thread."""


class Source(ABC):
    """One place with files. `label` names it and is safe to log and to store."""

    label: str
    remote = True

    @abstractmethod
    def entries(self) -> list[RemoteFile]:
        """All candidate files; `name` is the path below the place asked for."""

    @abstractmethod
    def open(self, file: RemoteFile, start: int, end: int) -> Stream:
        """Bytes [start, end); raises Transient, SourceChanged or StagingError."""

    def complete(self, file: RemoteFile) -> RemoteFile:
        """The file with what only a question about it alone tells (digest, ETag)."""
        return file

    def read_small(self, file: RemoteFile) -> bytes:
        """All bytes of a small file such as a list of checksums."""
        if file.size > SMALL_FILE_BYTES:
            raise StagingError(
                Reason.REFUSED,
                f"size of {file.name}",
                file.size,
                expected=f"at most {SMALL_FILE_BYTES} bytes",
            )
        stream, data, count = self.open(file, 0, file.size), bytearray(file.size), 0
        try:
            while count < file.size:
                stream.wait(SMALL_FILE_WAIT_SECONDS)
                more = stream.read_into(memoryview(data)[count:])
                if more == 0:
                    raise Transient(
                        Reason.UNREACHABLE, f"{file.name} ended after {count} of {file.size} bytes"
                    )
                count += more or 0
        finally:
            with suppress(OSError):
                stream.close(finished=False)
        return bytes(data)


class HttpSource(Source):
    """A source whose files are read over HTTP; a scheme adds its listing and how a file is addressed."""

    credentials_refused = CREDENTIALS_REFUSED

    def __init__(self, settings: StagingSettings) -> None:
        self.settings = settings
        self.http = Http(settings, self.credentials_refused)

    @abstractmethod
    def locate(self, file: RemoteFile, fresh: bool) -> Target:
        """Address and credentials of a file; `fresh` after credentials were refused."""

    def open(self, file: RemoteFile, start: int, end: int) -> Stream:
        return self.http.open_range(lambda fresh: self.locate(file, fresh), file, start, end)
