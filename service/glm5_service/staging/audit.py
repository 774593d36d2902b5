"""`glm5 stage --verify`: hashes a published model from disk, needs neither source nor write permission."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from glm5_service.staging.manifest import FileRecord, Manifest
from glm5_service.staging.progress import Progress
from glm5_service.staging.records import Digest, RemoteFile
from glm5_service.staging.verify import hash_file, in_parallel
from glm5_service.staging.volume import Inode, inode_of


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
