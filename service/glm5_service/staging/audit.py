"""`glm5 stage --verify`: hashes a published model from disk, needs neither source nor write permission."""

from __future__ import annotations

import threading
from pathlib import Path

from glm5_service.staging.manifest import Manifest
from glm5_service.staging.progress import Progress
from glm5_service.staging.records import Digest, RemoteFile
from glm5_service.staging.verify import hash_file, in_parallel


def audit(folder: Path, manifest: Manifest, progress: Progress, stop: threading.Event) -> frozenset[Path]:
    """The paths of the files that are not what the manifest says; each is named in the log."""
    damaged: set[Path] = set()

    def check(file: RemoteFile) -> None:
        path = folder / file.name
        if not path.exists():
            fault: str | None = "missing"
        else:
            _, fault = hash_file(path, file, progress, stop)
        progress.say(f"{file.name}: {fault or 'verified'}")
        if fault is not None:
            damaged.add(path)

    files = [RemoteFile(r.name, r.size, "", Digest("sha256", r.sha256)) for r in manifest.files]
    in_parallel(check, files, progress)
    return frozenset(damaged)
