"""Speed of `glm5 stage` against curl: same server, same set, same number of parallel ranges, taking turns.

    python -m tests.bench.staging_speed OUT.json [--rounds 5] [--connections 1 4 16] [--work DIR]

curl is run in both ways it can do N parallel ranges, N processes and one process with --parallel, and the faster one
counts. It writes to the same filesystem and hashes nothing. Staging hashes everything and syncs every file to disk;
its time is that of the phase `fetching`, from the first request for bytes to the last file verified and synced.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.support.machine import hardware, measured
from tests.support.staging.large_gguf import TWO_GB, SplitSet, write_set
from tests.support.staging.nginx import nginx

PART_BYTES = 64 << 20
IDLE_SHARE, IDLE_WAIT_SECONDS = 0.95, 5.0


def ranges_of(model: SplitSet) -> list[tuple[str, int, int]]:
    """The ranges of the whole set, as staging cuts them."""
    return [
        (path.name, start, min(start + PART_BYTES, path.stat().st_size) - 1)
        for path in model.paths
        for start in range(0, path.stat().st_size, PART_BYTES)
    ]


def curl_config(base: str, out: Path, ranges: list[tuple[str, int, int]], config: Path) -> Path:
    lines = []
    for name, first, last in ranges:
        lines += [
            f'url = "{base}/{name}"',
            f'range = "{first}-{last}"',
            f'output = "{out}/{name}.{first}"',
            "next",
        ]
    config.write_text("\n".join(lines[:-1]) + "\n")
    return config


def children_cpu() -> float:
    """CPU seconds of every child that ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def curl_processes(base: str, out: Path, model: SplitSet, connections: int, work: Path) -> float:
    """Seconds for N curl processes, each with every N-th range on one connection."""
    ranges = ranges_of(model)
    configs = [
        curl_config(base, out, ranges[number::connections], work / f"curl-{number}")
        for number in range(min(connections, len(ranges)))
    ]
    begun = time.monotonic()
    running = [subprocess.Popen(["curl", "-s", "-f", "-K", str(config)]) for config in configs]
    assert [process.wait() for process in running] == [0] * len(running)
    return time.monotonic() - begun


def curl_parallel(base: str, out: Path, model: SplitSet, connections: int, work: Path) -> float:
    """Seconds for one curl with --parallel."""
    config = curl_config(base, out, ranges_of(model), work / "curl-parallel")
    command = ["curl", "-s", "-f", "--parallel", "--parallel-immediate", "--parallel-max", str(connections)]
    begun = time.monotonic()
    subprocess.run([*command, "-K", str(config)], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - begun


def stage(base: str, target: Path, connections: int, run_dir: Path) -> dict[str, float]:
    """Seconds, CPU seconds and peak memory of one staging run."""
    command = [sys.executable, "-m", "glm5_service", "stage", f"{base}/", "--target", str(target)]
    command += [
        "--connections",
        str(connections),
        "--run-dir",
        str(run_dir),
        "--set",
        "staging.headroom_bytes=0",
    ]
    used = measured(command)
    assert used.returncode == 0, used.stderr
    state = json.loads((run_dir / "staging.json").read_text())
    return {
        "fetch_seconds": state["phase_seconds"]["fetching"],
        "command_seconds": used.seconds,
        "cpu_seconds": used.cpu_seconds,
        "max_rss_mib": used.peak_mib,
    }


def fresh(folder: Path) -> Path:
    """An empty folder; what was deleted is gone from the page cache and the disk before the clock starts.

    Waits a while for a machine that does nothing else: on two cores any other work decides the figure.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
    until = time.monotonic() + IDLE_WAIT_SECONDS
    while idle_share(1.0) < IDLE_SHARE and time.monotonic() < until:
        pass
    return folder


def idle_share(seconds: float) -> float:
    """Share of all cores that has nothing to do over so many seconds."""

    def ticks() -> list[int]:
        return [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]

    before = ticks()
    time.sleep(seconds)
    spent = [after - then for after, then in zip(ticks(), before, strict=True)]
    # user, nice, system, idle, iowait, ...
    return (spent[3] + spent[4]) / sum(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--work", type=Path, default=Path("/tmp/staging-speed"))
    arguments = parser.parse_args()
    work: Path = arguments.work
    model = SplitSet(work / "model", tuple(sorted((work / "model").glob("*.gguf"))))
    if not (work / "model" / "SHA256SUMS").exists():
        model = write_set(work / "model", TWO_GB, 10)
        model.write_sums()
    size = model.total_bytes
    rows = []
    with nginx(work / "model", work / "nginx") as base:
        for path in model.paths:
            subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
        for connections in arguments.connections:
            for number in range(arguments.rounds):
                load = os.getloadavg()[0]
                out, before = fresh(work / "out"), children_cpu()
                many = curl_processes(base, out, model, connections, work)
                curl_cpu = children_cpu() - before
                staged = stage(base, fresh(work / "out") / "model", connections, work / "run")
                one = curl_parallel(base, fresh(work / "out"), model, connections, work)
                fresh(work / "out")
                row = {
                    "connections": connections,
                    "round": number,
                    "load_before": round(load, 2),
                    "curl_processes_seconds": many,
                    "curl_parallel_seconds": one,
                    "curl_cpu_seconds": curl_cpu,
                }
                rows.append({**row, **staged})
                print(json.dumps(rows[-1]), flush=True)
    summary = {}
    for connections in arguments.connections:
        mine = [row for row in rows if row["connections"] == connections]
        best_curl = min(min(r["curl_processes_seconds"], r["curl_parallel_seconds"]) for r in mine)
        pairs = [
            min(r["curl_processes_seconds"], r["curl_parallel_seconds"]) / r["fetch_seconds"] for r in mine
        ]
        best = min(mine, key=lambda row: row["fetch_seconds"])
        summary[str(connections)] = {
            "curl_best_gb_per_s": round(size / best_curl / 1e9, 3),
            "stage_best_gb_per_s": round(size / best["fetch_seconds"] / 1e9, 3),
            "ratio_of_best": round(best_curl / best["fetch_seconds"], 3),
            "ratio_median_of_pairs": round(statistics.median(pairs), 3),
            "curl_cpu_seconds_per_gb": round(
                statistics.median(r["curl_cpu_seconds"] for r in mine) / size * 1e9, 2
            ),
            "cpu_seconds_per_gb": round(statistics.median(r["cpu_seconds"] for r in mine) / size * 1e9, 2),
            "max_rss_mib": round(max(r["max_rss_mib"] for r in mine)),
        }
    facts = {
        "what": "glm5 stage against curl without hashing, GB/s of 1e9 bytes, nginx on the same machine",
        "command": "python -m tests.bench.staging_speed " + " ".join(sys.argv[1:]),
        "bytes": size,
        "hardware": hardware(),
        "summary": summary,
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
