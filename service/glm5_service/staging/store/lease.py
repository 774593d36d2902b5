"""A lease: a small file whose heartbeat shows that its owner lives. It needs no flock and no common clock.

An observer calls an owner dead when the heartbeat stands still for a whole lease on the observer's own clock. An owner
that was a process of this kernel and namespace is dead as soon as the process is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import uuid
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glm5_service.foreign import LARGEST
from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import StagingError
from glm5_service.staging.store import files
from glm5_service.staging.store.volume import read_if_there

NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@cache
def boot_id() -> str:
    """Name of this boot of this kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class _Frozen(BaseModel):
    """Base of what is in a lease file."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Owner(_Frozen):
    """Who holds a lease: a process, its place, and a nonce that no other run has."""

    host: str
    boot: str
    namespace: str
    pid: Annotated[int, Field(ge=0, lt=1 << 31)]
    started: str
    nonce: str

    def is_gone(self) -> bool:
        """True only if the process is known to have ended; False if it lives or cannot be seen from here."""
        if (self.boot, self.namespace) != (boot_id(), _namespace()):
            return False
        return _start_time(self.pid) != self.started


def this_owner() -> Owner:
    """This process, with a fresh nonce."""
    pid = os.getpid()
    return Owner(
        host=socket.gethostname(),
        boot=boot_id(),
        namespace=_namespace(),
        pid=pid,
        started=_start_time(pid),
        nonce=uuid.uuid4().hex[:12],
    )


class Lease(_Frozen):
    """What a lease file says."""

    owner: Owner
    beat: Annotated[int, Field(ge=0, le=LARGEST)]
    held: bool


def read_lease(path: Path) -> Lease | None:
    """The lease at `path`; None if there is none that can be read."""
    try:
        return require_lease(path)
    except StagingError:
        return None


def require_lease(path: Path) -> Lease | None:
    """As `read_lease`; raises StagingError if the volume does not give it."""
    data = read_if_there(path)
    try:
        return Lease.model_validate_json(data or b"")
    except ValidationError:
        return None


def write_lease(path: Path, lease: Lease) -> None:
    """Replace the lease in one step; only its owner does this."""
    temporary = path.with_name(f".{path.name}.{lease.owner.nonce}")
    try:
        files.write_text(temporary, lease.model_dump_json())
        temporary.replace(path)
    except OSError:
        files.remove(temporary)
        raise


def free_lease(path: Path, free: Lease) -> None:
    """Mark our lease as free. On a full volume no second file can be written, but this one has its block already."""
    try:
        write_lease(path, free)
    except OSError:
        # what cannot be written at all is found dead by others, once this process is gone or its lease is over
        with (
            contextlib.suppress(OSError),
            open(files.open_file(path, os.O_RDWR), "r+", encoding="utf-8") as file,
        ):
            file.write(free.model_dump_json())


def create_lease(path: Path, lease: Lease) -> bool:
    """Create the lease file; False if somebody else already did. link() is atomic where O_EXCL is not."""
    temporary = path.with_name(f".{path.name}.{lease.owner.nonce}")
    files.write_text(temporary, lease.model_dump_json())
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS may lose the answer to a link that succeeded; the link count tells
        return temporary.stat().st_nlink == 2
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        return _create_exclusively(path, lease)
    finally:
        files.remove(temporary)
    return True


def _create_exclusively(path: Path, lease: Lease) -> bool:
    """The next best on a filesystem without hard links; a reader may see the file before its content."""
    try:
        with open(files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(lease.model_dump_json())
    except FileExistsError:
        return False
    return True


class Watch:
    """One observer's view of leases over time; decides which of them are dead."""

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self._clock, self._lease_seconds = clock, lease_seconds
        self._seen: dict[Path, tuple[Lease | None, float]] = {}

    def is_dead(self, path: Path, lease: Lease | None) -> bool:
        """True if the owner of `lease`, just read from `path`, is gone; call again after a pause otherwise."""
        if lease is not None and (not lease.held or lease.owner.is_gone()):
            return True
        now = self._clock.monotonic()
        before = self._seen.get(path)
        if before is None or before[0] != lease:
            self._seen[path] = (lease, now)
            return False
        return now - before[1] >= self._lease_seconds


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _start_time(pid: int) -> str:
    """Start of a process in ticks since boot; empty if there is no such process, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
