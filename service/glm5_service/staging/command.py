"""`glm5 stage`: one run, its signals, and the report of its end. Next: stager.py.

Errors leave as Glm5Error. By then staging.json and the termination message are written.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from glm5_service.errors import ExitCode, Glm5Error
from glm5_service.settings.staging import StagingSettings
from glm5_service.settings.tree import ModelSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, StagingError, Stopped
from glm5_service.staging.report import write_termination
from glm5_service.staging.stager import PLAIN, SERVED, Options, Stager


def run(
    settings: StagingSettings,
    options: Options = PLAIN,
    *,
    served: ModelSettings = SERVED,
    run_dir: Path | None = None,
    out: TextIO | None = None,
    clock: Clock | None = None,
) -> int:
    """Stage the model; returns the exit code, raises Glm5Error with the reason.

    `served` says what serves instead of the file's own tokenizer and template, which then need not be sound.
    `wait` only waits until another stager has published it. `dry_run` prints the plan and changes nothing. `verify`
    hashes what is published from disk and has the damaged files fetched again; with `dry_run` they are an error. `warm`
    reads the model into the page cache at the end. `run_dir` gets staging.json, except from a dry run: beside a pod that
    serves, its own report stays.
    """
    clock = clock or Clock()
    progress = Progress(out or sys.stderr, None if options.dry_run else run_dir, clock)
    termination_log = None if options.dry_run else settings.termination_log
    stop = threading.Event()
    try:
        with _signals(stop):
            Stager(settings, progress, clock, stop, served).stage(options)
    except Stopped:
        error: Glm5Error = StagingError(Reason.INTERRUPTED, "staging was told to stop")
        _report(error, progress, termination_log)
        raise error from None
    except Glm5Error as error:
        _report(error, progress, termination_log)
        raise
    except Exception as fault:
        # its kind only: the text may hold an address with its signature
        _report(
            StagingError(Reason.INTERNAL, "unexpected error", type(fault).__name__), progress, termination_log
        )
        raise
    progress.done()
    return ExitCode.DONE


def _report(error: Glm5Error, progress: Progress, termination_log: Path | None) -> None:
    if not isinstance(error, StagingError):
        error = StagingError(Reason.SETTINGS, str(error).rstrip("."))
    progress.failed(error)
    if termination_log is not None:
        write_termination(termination_log, error)


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask for an orderly end; only the main thread may install handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
