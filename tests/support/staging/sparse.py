"""A set of GLM-5's own size that is mostly holes: staged to the last file but one, then killed, then continued."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources.listing import make_offer
from glm5_service.staging.store.build import Build
from glm5_service.staging.store.lease import boot_id
from glm5_service.staging.store.manifest import read_manifest
from glm5_service.staging.store.volume import Volume
from glm5_service.staging.transfer.journal import Coverage, Journal
from tests.support.glm5_command import clean_environment
from tests.support.machine import measured
from tests.support.staging.large_gguf import FULL_SIZE, SplitSet, write_set
from tests.support.staging.nginx import nginx

# every header of the set is shorter
HEADER_BYTES = 16 << 20
MISSING_BYTES = 200 << 20


def sparse_report(work: Path) -> dict[str, Any]:
    """Plan, continue, publish and look again; gives times, memory and bytes."""
    shutil.rmtree(work, ignore_errors=True)
    model = write_set(work / "source", FULL_SIZE, 10, sparse=True)
    with nginx(model.folder, work / "nginx") as base:
        uri, target = f"{base}/{model.paths[0].name}", work / "volume/model"
        unfinished = leave_as_killed(model, uri, target)
        command = [sys.executable, "-m", "glm5_service", "stage", uri, "--target", str(target)]
        command += ["--run-dir", str(work / "run"), "--set", "staging.require_digest=false"]
        steps = {
            "plan": measured([*command, "--dry-run"], clean_environment()),
            "continue and publish": measured(command, clean_environment()),
            "find it published": measured(command, clean_environment()),
        }
        after = json.loads((work / "run/staging.json").read_text())
    manifest = read_manifest(target / "current")
    report = {
        "set_bytes": model.total_bytes,
        "splits": len(model.paths),
        "unfinished_file_bytes": unfinished.size,
        "published_bytes": manifest.total_bytes if manifest else 0,
        "tensors": manifest.gguf.tensors if manifest else 0,
        "phase_at_end": after["phase"],
        "steps": {
            name: {
                "returncode": used.returncode,
                "seconds": round(used.seconds, 1),
                "peak_mib": round(used.peak_mib),
            }
            for name, used in steps.items()
        },
        "log": steps["continue and publish"].stderr.splitlines()[-8:],
    }
    shutil.rmtree(work)
    return report


def leave_as_killed(model: SplitSet, uri: str, target: Path) -> RemoteFile:
    """The volume as a stager leaves it that was killed in its last file; gives that file."""
    settings = StagingSettings(source=uri, target=target, require_digest=False)
    offer = make_offer(settings)
    volume = Volume(target)
    volume.prepare()
    build = Build(volume, offer.listing.revision, "killed")
    build.prepare()
    unfinished = min((file for file in offer.listing.files if file.is_gguf), key=lambda file: file.size)
    for file in offer.listing.files:
        if file != unfinished:
            copy_header(model.folder / file.name, build.path(file.name))
            # what a hole hashes to is not computed here: nothing reads this file again
            build.keep(file, "0" * 64, build.path(file.name).stat())
    partial = volume.partials / f"{unfinished.name}.killed.partial"
    copy_header(model.folder / unfinished.name, partial)
    coverage = Coverage()
    coverage.add(0, unfinished.size - MISSING_BYTES)
    Journal(partial.with_suffix(".journal"), unfinished, coverage, boot_id()).close()
    return unfinished


def copy_header(source: Path, target: Path) -> None:
    """A copy of a file that is a hole after its header."""
    size = source.stat().st_size
    with open(source, "rb") as file:
        target.write_bytes(file.read(min(size, HEADER_BYTES)))
    with open(target, "r+b") as file:
        file.truncate(size)
