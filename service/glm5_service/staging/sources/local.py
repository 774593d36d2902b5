"""file:///path: a folder, or one file of a set, on a volume that is already mounted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from urllib.parse import unquote

from glm5_service.staging.reasons import Reason, SourceChanged, StagingError
from glm5_service.staging.records import RemoteFile, belongs
from glm5_service.staging.sources.base import Source, Stream


class LocalSource(Source):
    """Files of a folder; one file stands for its whole split set. `key` is a file's path with links followed."""

    remote = False

    def __init__(self, uri: str) -> None:
        self.label = uri
        # # and ? are characters of a path like others
        self._path = Path(unquote(uri.removeprefix("file://").removeprefix("localhost")))

    def entries(self) -> list[RemoteFile]:
        path = self._path
        try:
            if path.is_dir():
                return self._below(path)
            if not path.exists():
                raise StagingError(Reason.NOT_FOUND, "no such file or folder", path)
            return [file for file in self._below(path.parent) if belongs(file.name, path.name)]
        except OSError as error:
            raise StagingError(_reason(error), f"cannot list {path}", error.strerror) from error

    def _below(self, folder: Path) -> list[RemoteFile]:
        """All files below `folder`, but for folders within that are closed to this user, such as lost+found."""

        def refuse(error: OSError) -> None:
            # pathlib's rglob takes a folder that cannot be listed for an empty one
            if error.errno != errno.EACCES or Path(error.filename) == folder:
                raise error

        walk = os.walk(folder, onerror=refuse)
        found = sorted(Path(parent, name) for parent, _, names in walk for name in names)
        return [self._entry(item, folder) for item in found if item.is_file()]

    def open(self, file: RemoteFile, start: int, end: int) -> Stream:
        try:
            # a pipe put in its place would wait for a writer
            fd = os.open(file.key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _fault(error, file) from error
        if _version(os.fstat(fd)) != file.etag:
            os.close(fd)
            raise SourceChanged(file.name, "size, mtime or inode differ")
        return LocalStream(fd, start, file)

    @staticmethod
    def _entry(path: Path, folder: Path) -> RemoteFile:
        # a Hub cache keeps names as links to its blobs; the file itself is what is read, and linked to
        real = path.resolve(strict=True)
        stat = real.stat()
        return RemoteFile(str(path.relative_to(folder)), stat.st_size, str(real), etag=_version(stat))


class LocalStream:
    """Bytes of a local file from `position` on."""

    whole = False
    ended = False

    def __init__(self, fd: int, position: int, file: RemoteFile) -> None:
        self._fd, self._position, self._file = fd, position, file

    def wait(self, seconds: float) -> None:
        """A local read does not wait."""

    def read_into(self, room: memoryview) -> int:
        try:
            count = os.preadv(self._fd, [room], self._position)
        except OSError as error:
            raise _fault(error, self._file) from error
        self._position += count
        return count

    def close(self, *, finished: bool) -> None:
        os.close(self._fd)

    def abort(self) -> None:
        """Nobody waits."""


def _version(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns}-{stat.st_ino}-{stat.st_size}"


def _fault(error: OSError, file: RemoteFile) -> StagingError:
    return StagingError(_reason(error), f"cannot read {file.key}", error.strerror)


def _reason(error: OSError) -> Reason:
    reasons = {errno.ENOENT: Reason.NOT_FOUND, errno.EACCES: Reason.UNAUTHORIZED}
    return reasons.get(error.errno or 0, Reason.VOLUME_FAULT)
