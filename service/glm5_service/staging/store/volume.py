"""The folders of a target on the model volume, and the few file operations that must survive a crash.

target/current -> revisions/<revision>      what readers open; replaced by rename
target/revisions/<revision>/                a whole model with its manifest.json; its files never change once visible
target/in-use/                              leases of readers
target/.staging/                            lock, partial files, the revision being built
"""

from __future__ import annotations

import errno
import os
import uuid
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.store import files

_REASONS = {
    errno.ENOSPC: Reason.OUT_OF_SPACE,
    errno.EDQUOT: Reason.OUT_OF_SPACE,
    errno.EROFS: Reason.READ_ONLY,
    errno.EACCES: Reason.READ_ONLY,
    errno.EPERM: Reason.READ_ONLY,
    errno.ELOOP: Reason.SYMBOLIC_LINK,
}

Inode = tuple[int, int]
"""Device and number of what may be one file under several names."""


@dataclass(frozen=True)
class Volume:
    """Paths below one target."""

    target: Path

    @classmethod
    def at(cls, target: Path) -> Volume:
        """The volume at `target`; where it is mounted is its operator's choice, so links up to there are followed."""
        return cls(Path(os.path.realpath(target)))

    @property
    def current(self) -> Path:
        return self.target / "current"

    @property
    def revisions(self) -> Path:
        return self.target / "revisions"

    @property
    def in_use(self) -> Path:
        return self.target / "in-use"

    @property
    def staging(self) -> Path:
        return self.target / ".staging"

    @property
    def locks(self) -> Path:
        return self.staging / "lock"

    @property
    def partials(self) -> Path:
        return self.staging / "partial"

    @property
    def builds(self) -> Path:
        return self.staging / "build"

    def build(self, revision: str) -> Path:
        """Where a revision is put together; verified files only."""
        return self.builds / revision

    def current_revision(self) -> Path | None:
        """The folder that `current` points to, if it does."""
        try:
            resolved = self.current.resolve(strict=True)
        except (OSError, RuntimeError):
            return None
        return resolved if resolved.is_dir() else None

    @property
    def folders(self) -> tuple[Path, ...]:
        """All working folders, each behind the one that it is in."""
        return self.revisions, self.in_use, self.staging, self.locks, self.partials, self.builds

    def check(self) -> None:
        """Raise StagingError if a working folder is a symbolic link: what is written and removed there lies elsewhere."""
        for folder in self.folders:
            try:
                if folder.is_symlink():
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            except OSError as error:
                raise volume_error(error, f"cannot use {folder}") from error

    def prepare(self) -> None:
        """Make the working folders and prove that this user may write; raises StagingError."""
        try:
            self.target.mkdir(parents=True, exist_ok=True)
            for folder in self.folders:
                files.make_folder(folder)
            # no pid: in pods every stager is process 1
            probe = self.staging / f"probe.{uuid.uuid4().hex}"
            files.write_text(probe, "probe")
            files.remove(probe)
        except OSError as error:
            raise volume_error(error, f"cannot write to {self.target}") from error


def volume_error(error: OSError, what: str) -> StagingError:
    """The operating system's refusal as a reason a person can act on."""
    reason = _REASONS.get(error.errno or 0, Reason.VOLUME_FAULT)
    if reason is Reason.SYMBOLIC_LINK:
        return StagingError(reason, what, "it is a symbolic link", expected="a file or folder of the volume")
    return StagingError(reason, what, error.strerror or str(error))


def read_if_there(path: Path) -> bytes | None:
    """The bytes of a small file, None if there is no such file. Raises StagingError if it cannot be read: that is no
    reason to take for gone what it is about."""
    try:
        return files.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise volume_error(error, f"cannot read {path}") from error


def entries(folder: Path, pattern: str = "*") -> list[Path]:
    """What is in `folder` under a name that matches, sorted; nothing if there is no such folder. Raises StagingError if
    it cannot be listed: that is no empty folder, and pathlib's glob takes it for one."""
    try:
        return sorted(folder / name for name in files.names(folder) if fnmatchcase(name, pattern))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise volume_error(error, f"cannot list {folder}") from error


def inode_of(path: Path) -> Inode | None:
    """The inode at `path`, None if there is none. Raises StagingError if the volume does not tell."""
    try:
        stat = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise volume_error(error, f"cannot look at {path}") from error
    return stat.st_dev, stat.st_ino


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable, whoever wrote them."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = files.open_file(path, flags)
    try:
        os.fsync(fd)
    except OSError as error:
        # some network filesystems cannot sync what is not open for writing; they order names by themselves
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def write_durably(path: Path, text: str, *, nonce: str) -> None:
    """Replace `path` by `text` in one step, durable when this returns."""
    temporary = path.with_name(f".{path.name}.{nonce}")
    files.write_text(temporary, text, sync=True)
    temporary.replace(path)
    sync_folder(path.parent)
