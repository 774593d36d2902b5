"""Stages a set while killing the stager again and again, and counts what that cost."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from glm5_service.staging.store.manifest import read_manifest
from tests.support.staging.fault_server import FaultServer, running
from tests.support.staging.large_gguf import SplitSet, digests_of
from tests.support.staging.processes import start_stage


@dataclass(frozen=True)
class KillReport:
    """What the server sent over all runs, against what the rule allows."""

    kills: int
    runs_to_the_end: int
    kills_by_phase: dict[str, int]
    connections: int
    part_bytes: int
    set_bytes: int
    sent_bytes: int

    @property
    def allowed_bytes(self) -> float:
        """1.05 times the sets, plus one part for each worker and kill."""
        return 1.05 * self.set_bytes * self.runs_to_the_end + self.kills * self.connections * self.part_bytes

    def to_dict(self) -> dict[str, object]:
        once = self.sent_bytes / (self.set_bytes * self.runs_to_the_end)
        return {**asdict(self), "allowed_bytes": round(self.allowed_bytes), "sent_per_set": round(once, 4)}


def stage_with_kills(
    model: SplitSet,
    work: Path,
    *,
    kills: int,
    connections: int,
    seconds_a_set: float,
    part_bytes: int,
    seed: int = 1,
) -> KillReport:
    """Kill at `kills` random moments; whenever a model is published it is compared and staged anew elsewhere.

    The rate is limited so that a set takes about `seconds_a_set`, which spreads the kills over all phases.
    """
    chance = random.Random(seed)
    expected = model.digests()
    size = sum(path.stat().st_size for path in model.folder.iterdir() if path.name != "SHA256SUMS")
    done, killed, phases = 0, 0, Counter[str]()
    settings = (
        f"connections={connections}",
        f"part_bytes={part_bytes}",
        f"rate_limit={int(size / seconds_a_set)}",
    )
    with running(FaultServer(model.folder)) as server:
        while killed < kills or done == 0 or (work / f"model-{done}").exists():
            target = work / f"model-{done}"
            process = start_stage(f"{server.url}/", target, settings=settings)
            reader = threading.Thread(target=process.communicate, daemon=True)
            reader.start()
            if killed < kills:
                reader.join(chance.uniform(0.3, seconds_a_set / 2))
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    phases[_phase(work)] += 1
                    killed += 1
            reader.join()
            current = target / "current"
            if current.exists():
                # whatever is visible is whole, also after a kill in the middle of publishing
                manifest = read_manifest(current)
                assert manifest is not None
                found = digests_of(path for path in current.iterdir() if path.name != "manifest.json")
                assert found == expected
                done += 1
                if killed >= kills:
                    break
    return KillReport(killed, done, dict(phases), connections, part_bytes, size, server.sent_bytes)


def _phase(work: Path) -> str:
    """What the last run was doing."""
    try:
        return str(json.loads((work / "run/staging.json").read_text())["phase"])
    except (OSError, ValueError):
        return "starting"
