"""Carries out the part of a plan that needs no source: reuses, links and rehashes files on the volume.

Returns the files that have to be fetched. Next: transfer/fetch.py.
"""

from __future__ import annotations

import threading

from glm5_service.contracts.manifest import FileRecord
from glm5_service.staging.plan import Action, Plan, Step
from glm5_service.staging.progress import Progress
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.store import files
from glm5_service.staging.store.build import Build
from glm5_service.staging.store.volume import sync_file, volume_error
from glm5_service.staging.verify import hash_file, in_parallel


def assemble(plan: Plan, build: Build, progress: Progress, stop: threading.Event) -> list[RemoteFile]:
    """Bring into the build what is here and sound; the rest is returned, in the plan's order."""
    to_fetch = {step.file.name for step in plan.steps if step.action in (Action.FETCH, Action.RESUME)}
    to_hash: list[Step] = []
    for step in plan.steps:
        progress.files[step.file.name] = str(step.action)
        if step.action is Action.REUSE:
            _bring(step, build)
            assert step.record is not None
            if step.record.is_untouched(build.path(step.file.name)):
                _keep(build, step.file, step.record.sha256)
            else:
                to_hash.append(step)
        elif step.action is Action.REHASH:
            _bring(step, build)
            to_hash.append(step)
        elif step.action is Action.ADOPT:
            assert step.here is not None
            if build.link(step.here, step.file.name):
                to_hash.append(step)
            else:
                progress.lost(step.have_bytes)
                to_fetch.add(step.file.name)

    def check(step: Step) -> None:
        path = build.path(step.file.name)
        sha256, fault = hash_file(path, step.file, progress, stop)
        if fault is None:
            _keep(build, step.file, sha256)
            progress.files[step.file.name] = "verified"
            return
        progress.say(f"{step.file.name} is damaged on the volume and is fetched again: {fault}")
        progress.lost(step.have_bytes)
        build.drop(step.file.name)
        to_fetch.add(step.file.name)

    in_parallel(check, to_hash, progress)
    return [step.file for step in plan.steps if step.file.name in to_fetch]


def _keep(build: Build, file: RemoteFile, sha256: str) -> FileRecord:
    path = build.path(file.name)
    try:
        # a copy, or what somebody just put there, may be in the page cache only; the record outlives it
        sync_file(path)
        return build.keep(file, sha256, path.stat())
    except OSError as error:
        raise volume_error(error, f"cannot sync {path}") from error


def _bring(step: Step, build: Build) -> None:
    """Put the file at `here` into the build: a second name for it, a copy where the volume has no hard links."""
    assert step.here is not None
    if step.here == build.path(step.file.name) or build.link(step.here, step.file.name):
        return
    try:
        files.copy(step.here, build.path(step.file.name))
    except OSError as error:
        raise volume_error(error, f"cannot copy {step.here}") from error
