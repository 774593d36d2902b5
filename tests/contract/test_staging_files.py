"""What the stager writes is what its readers read: no key unknown, none missing."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from glm5_service.contracts.manifest import MANIFEST_NAME, FileRecord, Manifest
from glm5_service.contracts.staging import StagingState
from glm5_service.rundir import RunDir, read
from glm5_service.sidecar.collect import staging_points
from glm5_service.staging.clock import Clock
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.verify import hash_file
from tests.unit.staging.test_run import Runner, headers_are_fine, source, stage

__all__ = ["headers_are_fine", "source", "stage"]


@pytest.mark.parametrize("failed", [False, True])
def test_staging_json(tmp_path: Path, failed: bool) -> None:
    """The file of a run and of a failed one has exactly the keys of the model."""
    progress = Progress(io.StringIO(), tmp_path, Clock())
    progress.enter("fetching")
    if failed:
        progress.failed(StagingError(Reason.OUT_OF_SPACE, "free bytes", 1))
    written = RunDir(tmp_path).staging.read_bytes()
    StagingState.model_validate_json(written, extra="forbid")
    assert set(json.loads(written)) == set(StagingState.model_fields)
    for name in StagingState.model_fields:
        less = {key: value for key, value in json.loads(written).items() if key != name}
        with pytest.raises(ValidationError):
            StagingState.model_validate(less)


def test_manifest_and_records(stage: Runner) -> None:
    """A published manifest has exactly the keys of the models, in every file's record as well."""
    stage()
    written = (stage.target / "current" / MANIFEST_NAME).read_bytes()
    manifest = Manifest.model_validate_json(written, extra="forbid")
    assert set(json.loads(written)) == set(Manifest.model_fields)
    assert all(set(record) == set(FileRecord.model_fields) for record in json.loads(written)["files"])
    assert manifest.files


def test_hashing_is_seen_by_the_sidecar(tmp_path: Path) -> None:
    """While a file is verified the metric of hashed bytes grows; GLM5StagingStalled stays silent by it."""
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(5 << 20))
    progress = Progress(io.StringIO(), tmp_path, Clock())
    progress.enter("verifying")

    def hashed() -> float:
        state = read(RunDir(tmp_path).staging, StagingState)
        assert state is not None
        return next(
            float(point.value)
            for point in staging_points(state)
            if (point.metric, point.labels) == ("glm5_staging_bytes", ("hashed",))
        )

    assert hashed() == 0
    hash_file(path, RemoteFile("m.gguf", 5 << 20, ""), progress, threading.Event())
    progress.tick(force=True)
    assert hashed() == 5 << 20
