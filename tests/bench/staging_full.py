"""Staging at full size, for the record: 2 GB from every source, 50 kills of it, and a 406 GB set that is mostly holes.

python -m tests.bench.staging_full {sources,kills,sparse} OUT.json [--work DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.glm5_command import clean_environment
from tests.support.machine import Usage, hardware, measured
from tests.support.staging.kills import stage_with_kills
from tests.support.staging.large_gguf import TWO_GB, SplitSet, digests_of, write_set
from tests.support.staging.sparse import sparse_report
from tests.support.staging.stores import KEYS, STORES


def two_gb(work: Path) -> SplitSet:
    """The 2 GB set, written once."""
    folder = work / "model"
    if not (folder / "SHA256SUMS").exists():
        write_set(folder, TWO_GB, 10).write_sums()
    return SplitSet(folder, tuple(sorted(folder.glob("*.gguf"))))


def flags(settings: Mapping[str, Any], prefix: str = "staging.") -> list[str]:
    """Nested settings as --set flags."""
    found: list[str] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found += flags(value, f"{prefix}{name}.")
        else:
            found += ["--set", f"{prefix}{name}={value}"]
    return found


def stage(uri: str, target: Path, settings: Mapping[str, Any]) -> Usage:
    command = [sys.executable, "-m", "glm5_service", "stage", uri, "--target", str(target)]
    command += ["--run-dir", str(target.parent / "run"), *flags({"headroom_bytes": 0, **settings})]
    return measured(command, clean_environment(**KEYS))


def sources(work: Path) -> list[dict[str, Any]]:
    """One run from each store; the digests are compared with those of the set itself."""
    model = two_gb(work)
    expected = model.digests()
    rows = []
    for name, store in STORES.items():
        place_work = work / "store"
        shutil.rmtree(place_work, ignore_errors=True)
        shutil.rmtree(work / "volume", ignore_errors=True)
        with mock.patch.dict(os.environ, KEYS), store(model, place_work) as place:
            used = stage(place.uri, work / "volume/model", place.settings)
        assert used.returncode == 0, used.stderr[-2000:]
        current = work / "volume/model/current"
        found = digests_of(path for path in sorted(current.iterdir()) if path.name != "manifest.json")
        rows.append({"source": name, "bytes": model.total_bytes, "digests_equal": found == expected,
                     "command_seconds": round(used.seconds, 1), "cpu_seconds": round(used.cpu_seconds, 1),
                     "peak_mib": round(used.peak_mib)})  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
        shutil.rmtree(work / "volume")
        shutil.rmtree(place_work, ignore_errors=True)
    return rows


def kills(work: Path) -> list[dict[str, Any]]:
    """50 SIGKILLs with the default part size."""
    shutil.rmtree(work / "kills", ignore_errors=True)
    (work / "kills").mkdir()
    report = stage_with_kills(
        two_gb(work), work / "kills", kills=50, connections=8, seconds_a_set=40, part_bytes=64 << 20
    )
    shutil.rmtree(work / "kills")
    assert report.sent_bytes <= report.allowed_bytes
    return [report.to_dict()]


def sparse(work: Path) -> list[dict[str, Any]]:
    return [sparse_report(work / "sparse")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
        "sources": sources,
        "kills": kills,
        "sparse": sparse,
    }
    parser.add_argument("what", choices=parts)
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/staging-full"))
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = parts[arguments.what](arguments.work)
    command = f"python -m tests.bench.staging_full {arguments.what} {arguments.out}"
    facts = {"command": command, "hardware": hardware(), "load_at_end": os.getloadavg()[0], "rows": rows}
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
