"""Notes about published revisions: the source that one is asked for by, and files that were found damaged.

A verdict outlives its run. It is about an inode, because revisions and builds share files by hard links.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glm5_service.contracts.manifest import MANIFEST_NAME, Manifest
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.records import Listing
from glm5_service.staging.store.build import drop_damaged
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.store.manifest import published, require_manifest
from glm5_service.staging.store.volume import Inode, Volume, inode_of, volume_error, write_durably


def names_of(settings: StagingSettings, listing: Listing) -> dict[str, Any]:
    """What a stager compares to know a published model for the one it is asked for, without asking the source."""
    return {
        "source": listing.source,
        "tokenizer_source": settings.tokenizer_source,
        "quantisation": settings.quantisation,
    }


def relabel(settings: StagingSettings, listing: Listing, folder: Path, lock: TargetLock) -> None:
    """Note in the manifest of a published revision by which source and choice its content is asked for now."""
    manifest = require_manifest(folder)
    names = names_of(settings, listing)
    if manifest is not None and manifest.model_dump(include=set(names)) != names:
        _rewrite(folder, manifest.model_copy(update=names), lock)


def condemn(volume: Volume, damaged: frozenset[Inode], lock: TargetLock) -> None:
    """Note that no record vouches any more for a file that lies in one of `damaged`, whatever name it goes by."""
    for folder, manifest in published(volume):
        files = [
            record.condemned() if inode_of(folder / record.name) in damaged else record
            for record in manifest.files
        ]
        if files != manifest.files:
            _rewrite(folder, manifest.model_copy(update={"files": files}), lock)
    lock.check()
    drop_damaged(volume, damaged)


def _rewrite(folder: Path, manifest: Manifest, lock: TargetLock) -> None:
    lock.check()
    try:
        write_durably(folder / MANIFEST_NAME, manifest.model_dump_json(indent=1), nonce=lock.owner.nonce)
    except OSError as error:
        raise volume_error(error, f"cannot write the manifest in {folder}") from error
