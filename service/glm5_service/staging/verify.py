"""Reads files back from disk: digests of what is there, and the structure of the GGUF as the plugin sees it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from glm5_service.engine.inspect import inspect_model
from glm5_service.errors import ModelError
from glm5_service.staging.digests import Hasher
from glm5_service.staging.faults import Stopped
from glm5_service.staging.manifest import ModelSummary, TypeFacts
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.volume import volume_error

READ_BYTES = 1 << 20

T = TypeVar("T")


def hash_file(
    path: Path, file: RemoteFile, progress: Progress, stop: threading.Event
) -> tuple[str, str | None]:
    """SHA-256 of the file on disk, and how it differs from the stated digest (None: it does not)."""
    hasher, buffer = Hasher(file), memoryview(bytearray(READ_BYTES))
    size = 0
    try:
        with open(path, "rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count := source.readinto(buffer):
                if stop.is_set():
                    raise Stopped
                hasher.update(buffer[:count])
                size += count
                progress.read_back(count)
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


def check_structure(folder: Path, names: list[str], architecture: str) -> ModelSummary:
    """What the headers of the model in `folder` say; raises StagingError unless it is the model expected.

    Magic, header, split numbers and counts, and that all splits are of one model, are the plugin's to judge.
    """
    ggufs = [name for name in names if name.endswith(".gguf")]
    try:
        facts = inspect_model(folder / ggufs[0]).gguf
    except ModelError as error:
        raise StagingError(Reason.NOT_A_MODEL, str(error).rstrip(".")) from error
    assert facts is not None
    seen = sorted(part.path.name for part in facts.files)
    if seen != sorted(ggufs):
        raise StagingError(
            Reason.INCOMPLETE, "files of the model", ", ".join(seen), expected=", ".join(ggufs)
        )
    if architecture and facts.architecture != architecture:
        raise StagingError(
            Reason.WRONG_ARCHITECTURE,
            f"architecture of {ggufs[0]}",
            facts.architecture,
            expected=architecture,
        )
    return ModelSummary(
        architecture=facts.architecture,
        name=facts.name,
        tensors=facts.tensors,
        tensor_bytes=facts.bytes,
        context_length=facts.context_length,
        splits=len(facts.files),
        types={name: TypeFacts(tensors=kind.tensors, bytes=kind.bytes) for name, kind in facts.types.items()},
        first_file=ggufs[0],
    )
