"""Sets of splits and a stager for the tests against real servers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from glm5_service.contracts.manifest import Manifest
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.command import run
from glm5_service.staging.reasons import StagingError
from glm5_service.staging.stager import Options
from glm5_service.staging.store.manifest import read_manifest
from tests.support.staging.fault_server import FaultServer, running
from tests.support.staging.large_gguf import SMALL, SplitSet, digests_of, write_set

# quick where a person would wait: the rules are the same
QUICK: dict[str, Any] = {
    "part_bytes": 1 << 20,
    "connections": 4,
    "backoff_seconds": 0.01,
    "backoff_max_seconds": 0.05,
    # a busy machine pauses for seconds; a test that waits for a stall asks for less
    "stall_seconds": 30,
    "headroom_bytes": 0,
    "retries": 4,
}


@dataclass
class Stager:
    """Runs `glm5 stage` in this process and keeps what it said."""

    target: Path
    clock: Clock | None = None
    log: io.StringIO = field(default_factory=io.StringIO)

    def __call__(self, source: str, options: Options = Options(), **settings: Any) -> Manifest:  # noqa: B008
        given = StagingSettings(**{**QUICK, "source": source, "target": self.target, **settings})
        run(given, options, run_dir=self.target.parent / "run", out=self.log, clock=self.clock)
        manifest = self.manifest
        assert manifest is not None
        return manifest

    def fails(self, source: str, **settings: Any) -> StagingError:
        """Run and expect a StagingError."""
        with pytest.raises(StagingError) as caught:
            self(source, **settings)
        return caught.value

    @property
    def current(self) -> Path:
        return self.target / "current"

    @property
    def manifest(self) -> Manifest | None:
        return read_manifest(self.current)

    @property
    def state(self) -> dict[str, Any]:
        """staging.json of the last run."""
        return dict(json.loads((self.target.parent / "run/staging.json").read_text()))

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every published file but the manifest, from disk."""
        return digests_of(sorted(p for p in self.current.iterdir() if p.name != "manifest.json"))

    @property
    def is_empty(self) -> bool:
        """True while nothing is published."""
        return not self.current.exists() and not list((self.target / "revisions").glob("*"))


@pytest.fixture(scope="session")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> SplitSet:
    """Five splits of 10 MB together, with tokenizer, config and SHA256SUMS."""
    model = write_set(tmp_path_factory.mktemp("small"), SMALL, 4)
    model.write_sums()
    return model


@pytest.fixture
def model(small_set: SplitSet, tmp_path: Path) -> SplitSet:
    """A copy of the small set that a test may spoil."""
    folder = tmp_path / "source"
    folder.mkdir()
    for path in small_set.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return SplitSet(folder, tuple(folder / path.name for path in small_set.paths))


@pytest.fixture
def stager(tmp_path: Path) -> Stager:
    return Stager(tmp_path / "volume" / "model")


@pytest.fixture
def serve(model: SplitSet) -> Iterator[Callable[..., FaultServer]]:
    """Starts fault servers on the model's folder; all end with the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> FaultServer:
            return stack.enter_context(running(FaultServer(model.folder, **options)))

        yield start
