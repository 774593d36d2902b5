"""File operations on the model volume that follow no symbolic link.

Each one opens the folder and works inside it. A link in place of the file or its folder is an error.
`volume.Volume.check` checks the folders above.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COPY_BYTES = 1 << 20


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A descriptor of `folder`. Raises OSError: with ELOOP if it is a symbolic link."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        if folder.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder)) from None
        raise
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(path: Path, flags: int, mode: int = 0o644) -> int:
    """As os.open."""
    with opened(path.parent) as folder:
        return os.open(path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)


def read_bytes(path: Path) -> bytes:
    """All bytes of a small file."""
    with open(open_file(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        return file.read()


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Make `path` a file with this text; durable on return if `sync`."""
    with open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def copy(source: Path, target: Path) -> None:
    """Copy the bytes of `source`, wherever it lies, to `target`, which must not exist."""
    with (
        open(source, "rb", buffering=0) as given,
        open(open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0) as taken,
    ):
        shutil.copyfileobj(given, taken, COPY_BYTES)


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    with opened(folder) as fd:
        return os.listdir(fd)


def make_folder(folder: Path) -> None:
    """Have `folder` be there; its parent is."""
    with suppress(FileExistsError):
        folder.mkdir()
    with opened(folder):
        pass


def remove(path: Path) -> None:
    """Remove a file or a link, if it is there."""
    with suppress(FileNotFoundError), opened(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Remove what is at `path`: a folder with all that is in it, a file, or a link and not what it leads to."""
    with opened(path.parent) as folder:
        try:
            is_folder = stat.S_ISDIR(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return
        if is_folder:
            shutil.rmtree(path.name, dir_fd=folder)
        else:
            os.unlink(path.name, dir_fd=folder)
