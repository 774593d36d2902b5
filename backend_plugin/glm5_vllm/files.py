"""Writing a file whole: a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from pathlib import Path

logger = logging.getLogger("vllm.glm5.files")


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` by rename; the folder must exist.

    The temporary name is unique over processes, and over containers that share the volume, whose ids repeat.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def try_write(path: Path, data: bytes) -> bool:
    """`write_whole`, its folder made, for work that goes on without the file: False and one log line where it failed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        _warn(path.name, error.strerror or str(error))
        return False
    return True


@functools.lru_cache(maxsize=64)
def _warn(name: str, reason: str) -> None:
    logger.warning("%s could not be written: %s; serving goes on without it", name, reason)
