"""Reads files back from disk and compares them with a stated digest, or with the manifest (`glm5 stage --verify`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from glm5_service.contracts.manifest import FileRecord, Manifest
from glm5_service.staging.content import Hasher
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Stopped
from glm5_service.staging.records import Digest, RemoteFile
from glm5_service.staging.store.files import open_file
from glm5_service.staging.store.volume import Inode, inode_of, volume_error

READ_BYTES = 1 << 20

T = TypeVar("T")


def hash_file(
    path: Path, file: RemoteFile, progress: Progress, stop: threading.Event
) -> tuple[str, str | None]:
    """SHA-256 of the file on disk, and how it differs from the stated digest (None: it does not)."""
    hasher, buffer = Hasher(file), memoryview(bytearray(READ_BYTES))
    size = 0
    try:
        with open(open_file(path, os.O_RDONLY), "rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count := source.readinto(buffer):
                if stop.is_set():
                    raise Stopped
                hasher.update(buffer[:count])
                size += count
                progress.hashed(count)
    except OSError as error:
        raise volume_error(error, f"cannot read {path}") from error
    if size != file.size:
        return hasher.sha256, f"size is {size}, expected {file.size}"
    return hasher.sha256, hasher.fault()


def in_parallel(work: Callable[[T], None], items: Iterable[T], progress: Progress) -> None:
    """Run `work` on each item, as many at once as there are processors; the first error is raised."""
    with ThreadPoolExecutor(max(1, min(8, len(os.sched_getaffinity(0))))) as pool:
        pending = {pool.submit(work, item) for item in items}
        while pending:
            done, pending = wait(pending, timeout=0.2)
            progress.tick()
            for future in done:
                future.result()


@dataclass(frozen=True)
class Damage:
    """Files that are not what the manifest says, and the inodes that they lie in; a missing file has none."""

    names: frozenset[str] = frozenset()
    inodes: frozenset[Inode] = frozenset()


def audit(folder: Path, manifest: Manifest, progress: Progress, stop: threading.Event) -> Damage:
    """What is damaged in a published revision; each file is named in the log."""
    damaged: dict[str, Inode | None] = {}

    def check(record: FileRecord) -> None:
        path, inode = folder / record.name, inode_of(folder / record.name)
        fault: str | None
        if inode is None:
            fault = "missing"
        elif record.is_condemned:
            fault = "found damaged before"
        else:
            file = RemoteFile(record.name, record.size, "", Digest("sha256", record.sha256))
            _, fault = hash_file(path, file, progress, stop)
        progress.say(f"{record.name}: {fault or 'verified'}")
        if fault is not None:
            damaged[record.name] = inode

    in_parallel(check, manifest.files, progress)
    return Damage(frozenset(damaged), frozenset(inode for inode in damaged.values() if inode is not None))
