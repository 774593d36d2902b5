"""Makes a finished build a revision, and a revision the current one, each in one step.

Order: every file is verified and synced; manifest; rename of the folder; rename of the link `current`. A reader that
resolves `current` sees a whole model at every moment.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from glm5_service.contracts.manifest import MANIFEST_NAME, FileRecord, Manifest, ModelSummary, TypeFacts
from glm5_service.errors import ModelError
from glm5_service.model.inspection import inspect_model
from glm5_service.settings.staging import StagingSettings
from glm5_service.settings.tree import ModelSettings
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import Listing
from glm5_service.staging.store import files
from glm5_service.staging.store.amend import names_of
from glm5_service.staging.store.build import Build
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.store.volume import Volume, sync_folder, volume_error, write_durably


def publish(
    settings: StagingSettings,
    served: ModelSettings,
    listing: Listing,
    volume: Volume,
    build: Build,
    lock: TargetLock,
) -> tuple[Path, Manifest]:
    """Check the structure of the build, write its manifest and make it a revision: its folder. Raises StagingError."""
    names = [file.name for file in listing.files]
    summary = check_structure(build.folder, names, settings.architecture, served)
    records = [_verified(build, name) for name in names]
    manifest = Manifest(
        **names_of(settings, listing),
        revision=listing.revision,
        files=records,
        gguf=summary,
        staged_at=datetime.now(UTC),
    )
    lock.check()
    try:
        _drop_strangers(build.folder, names)
        write_durably(
            build.folder / MANIFEST_NAME, manifest.model_dump_json(indent=1), nonce=lock.owner.nonce
        )
        final = _free_name(volume, listing.revision)
        build.folder.rename(final)
        sync_folder(volume.revisions)
    except OSError as error:
        raise volume_error(error, "cannot publish the model") from error
    build.discard_records()
    return final, manifest


def switch(volume: Volume, revision: Path, lock: TargetLock) -> None:
    """Point `current` at a published revision, in one step."""
    lock.check()
    link = volume.target / f".current.{lock.owner.nonce}"
    try:
        files.remove(link)
        link.symlink_to(os.path.relpath(revision, volume.target))
        link.replace(volume.current)
        sync_folder(volume.target)
    except OSError as error:
        raise volume_error(error, "cannot switch to the model") from error


def _verified(build: Build, name: str) -> FileRecord:
    record = build.record(name)
    if record is None:
        raise StagingError(
            Reason.CORRUPT, "file changed after it was verified", name, expected="nobody else writes"
        )
    return record


def _drop_strangers(folder: Path, names: list[str]) -> None:
    """A revision holds what its listing names and nothing else."""
    for name in files.names(folder):
        if name not in names:
            files.remove_tree(folder / name)


def _free_name(volume: Volume, revision: str) -> Path:
    """The revision's folder; a repaired one is published beside the damaged one, which readers may still have."""
    number = 1
    while (path := volume.revisions / (revision if number == 1 else f"{revision}-{number}")).exists():
        number += 1
    return path


def check_structure(folder: Path, names: list[str], architecture: str, served: ModelSettings) -> ModelSummary:
    """What the headers of the model in `folder` say; raises StagingError unless it is the model expected.

    Its tokenizer and chat template must serve, unless `served` names others.

    Magic, header, split numbers and counts, and that all splits are of one model, are the plugin's to judge.
    """
    ggufs = [name for name in names if name.endswith(".gguf")]
    try:
        facts = inspect_model(folder / ggufs[0], served).gguf
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
