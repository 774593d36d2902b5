"""Runs engines with this backend beside stock's and compares what they say: engine_check.py GROUP FOLDER [GPU ...]

Each run is a process of its own (engine_run.py) that has its card to itself: vLLM refuses to start where another process
gives memory back. FOLDER keeps each run's output and summary-GROUP.json; the exit code is 0 where every run ended well.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.gpu.engine_run import EngineRun, write_model
from tests.gpu.engine_runs import GROUPS, MODELS, OURS
from tests.gpu.engine_summary import against_transformers, summarize
from tests.gpu.process import end_groups_on_termination, exit_code, process_group
from tests.support.tiny_spec import TinySpec

RUN_SECONDS = 300


def execute(name: str, run: EngineRun, folder: Path, cards: str, seconds: float = RUN_SECONDS) -> int:
    """One process, ended after its time; its log stays beside its output. Returns its exit code."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": cards}
    command = [sys.executable, "-m", "tests.gpu.engine_run", json.dumps(asdict(run))]
    command += [str(folder / f"{name}.json")]
    with process_group(command, folder / f"{name}.log", environment) as process:
        code = exit_code(process, seconds)
    print(f"{name}: " + (f"ended after {seconds} s" if code is None else f"exit code {code}"), flush=True)
    return process.returncode


def run_all(runs: dict[str, EngineRun], folder: Path, cards: list[str]) -> dict[str, int | None]:
    """Every run on the next free card, or one after the other where one takes them all.

    Returns the exit codes of those that failed.
    """
    waiting: Queue[tuple[str, EngineRun]] = Queue()
    for name, run in runs.items():
        # an answer of before would pass for this run's
        (folder / f"{name}.json").unlink(missing_ok=True)
        waiting.put((name, run))
    whole = any(run.tensor_parallel > 1 for run in runs.values())
    codes: dict[str, int] = {}

    def work(places: str) -> None:
        while True:
            try:
                name, run = waiting.get_nowait()
            except Empty:
                return
            codes[name] = execute(name, run, folder, places)

    places = [",".join(cards)] if whole else cards
    workers = [threading.Thread(target=work, args=(place,)) for place in places]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {name: codes.get(name) for name in runs if codes.get(name) != 0}


def require_cards(group: str, cards: list[str]) -> None:
    """Raise SystemExit where a named card is missing or a run wants more."""
    import torch

    wanted = max(len(cards), *(run.tensor_parallel for run in GROUPS[group].values()))
    found = torch.cuda.device_count()
    if found < wanted:
        raise SystemExit(
            f"group {group} wants {wanted} cards and {found} of those named ({' '.join(cards)}) are there: "
            f"name as many as it wants, as in engine_check.py gguf-parallel FOLDER 0 1"
        )


def write_gguf(folder: Path, spec: TinySpec) -> tuple[Path, Path]:
    """A GGUF's first file, and transformers' folder of it."""
    from tests.support.tiny_gguf import write_tiny

    written = write_tiny(folder / "gguf", spec)
    return written.path, written.write_reference(folder / "reference")


def with_models(group: str, folder: Path) -> dict[str, EngineRun]:
    """The group's runs with the models they load, written where they are not there."""
    if group in MODELS:
        gguf, reference = write_gguf(folder / group, MODELS[group])
        return {
            n: replace(run, model=str(gguf), tokenizer=str(reference)) for n, run in GROUPS[group].items()
        }
    runs = {}
    for name, run in GROUPS[group].items():
        model = folder / str(run.heads)
        if not model.exists():
            unfinished = folder / f"{run.heads}.unfinished"
            write_model(unfinished, run.heads)
            unfinished.rename(model)
        runs[name] = replace(run, model=str(model))
    return runs


def show(summary: dict[str, Any]) -> None:
    for pair, comparison in summary["comparisons"].items():
        short = [(entry["prompt_tokens"], entry["equal_tokens"]) for entry in comparison["prompts"]]
        print(pair, comparison["tokens_equal"], comparison["largest_logprob_difference"], short)
    for name, result in summary["runs"].items():
        print(name, result["start_seconds"], result.get("tokens_per_second", ""))
    print(f"failed: {summary['failed'] or 'none'}", flush=True)


def main(group: str, folder: Path, cards: list[str]) -> int:
    """The exit code."""
    # for this process too: transformers' model goes where the engines were
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(cards)
    require_cards(group, cards)
    (folder / "models").mkdir(parents=True, exist_ok=True)
    written = folder / f"summary-{group}.json"
    written.unlink(missing_ok=True)
    runs = with_models(group, folder / "models")
    failed = run_all(runs, folder, cards)
    command = f"python -m tests.gpu.engine_check {group} FOLDER {' '.join(cards)}"
    summary = {**summarize(folder, command), "failed": failed}
    written.write_text(json.dumps(summary, indent=1))
    show(summary)
    for name, run in runs.items():
        # transformers knows the dequantised tensors of a GGUF
        if group in MODELS and run.backend == OURS and name not in failed:
            outputs = json.loads((folder / f"{name}.json").read_text())["outputs"]
            differences = against_transformers(outputs, Path(run.tokenizer))
            summary.setdefault("with_float32_transformers", {})[name] = differences
            written.write_text(json.dumps(summary, indent=1))
            print(f"{name} with transformers", differences)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in GROUPS:
        raise SystemExit(f"engine_check.py GROUP FOLDER [GPU ...] with one group of {', '.join(GROUPS)}")
    end_groups_on_termination()
    raise SystemExit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or ["0"]))
