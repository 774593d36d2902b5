"""Runs engines with this backend beside stock's and compares what they say: engine_check.py GROUP FOLDER [GPU ...]

Each run is a process of its own (engine_run.py) on one of the named cards, three at a time a card where no rate is
measured. FOLDER keeps each run's output and summary-GROUP.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.gpu.engine_run import EngineRun, write_model

OURS, STOCK = "TRITON_MLA_SPARSE", "FLASHMLA_SPARSE"

RATES = {
    "stock-64": EngineRun(STOCK, 64, measure_rate=True),
    "ours-64": EngineRun(OURS, 64, measure_rate=True),
    "stock-8": EngineRun(STOCK, 8, measure_rate=True),
    "ours-8": EngineRun(OURS, 8, measure_rate=True),
}
MODES = {
    "ours-64-eager": EngineRun(OURS, 64, eager=True),
    "ours-8-eager": EngineRun(OURS, 8, eager=True),
    "ours-64-whole-prefill": EngineRun(OURS, 64, batched_tokens=16384),
    "stock-64-mtp2": EngineRun(STOCK, 64, drafted=2),
    "ours-64-mtp2": EngineRun(OURS, 64, drafted=2),
    "ours-8-mtp3": EngineRun(OURS, 8, drafted=3),
    "stock-8-fp8_ds_mla": EngineRun(STOCK, 8, kv_cache_dtype="fp8_ds_mla"),
    "ours-8-fp8_ds_mla": EngineRun(OURS, 8, kv_cache_dtype="fp8_ds_mla"),
    "ours-8-fp8": EngineRun(OURS, 8, kv_cache_dtype="fp8"),
    "ours-8-float16": EngineRun(OURS, 8, dtype="float16", kv_cache_dtype="float16"),
    # other positions than the indexer's must show, or equal tokens prove nothing
    "control-8": EngineRun(OURS, 8, top_k=1024),
}
PARALLEL = {
    "ours-64-tp2": EngineRun(OURS, 64, tensor_parallel=2),
    "ours-64-tp2-dcp2": EngineRun(OURS, 64, tensor_parallel=2, context_parallel=2),
}
GROUPS = {"rates": RATES, "modes": MODES, "parallel": PARALLEL}
# what each run is compared with, and whether its tokens must be equal
COMPARED = {
    "ours-64": "stock-64",
    "ours-8": "stock-8",
    "ours-64-eager": "stock-64",
    "ours-8-eager": "stock-8",
    "ours-64-whole-prefill": "stock-64",
    "stock-64-mtp2": "stock-64",
    "ours-64-mtp2": "stock-64",
    "ours-8-mtp3": "stock-8",
    "ours-8-fp8_ds_mla": "stock-8-fp8_ds_mla",
    "ours-8-fp8": "stock-8",
    "ours-8-float16": "stock-8",
    "control-8": "stock-8",
    "ours-64-tp2": "ours-64",
    "ours-64-tp2-dcp2": "ours-64-tp2",
}


def execute(name: str, run: EngineRun, folder: Path, cards: str) -> None:
    """One process; its log stays beside its output."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": cards}
    command = [
        sys.executable,
        "-m",
        "tests.gpu.engine_run",
        json.dumps(asdict(run)),
        str(folder / f"{name}.json"),
    ]
    with (folder / f"{name}.log").open("w") as log:
        code = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False
        ).returncode
    print(f"{name}: exit code {code}", flush=True)


def run_all(runs: dict[str, EngineRun], folder: Path, cards: list[str], at_once: int) -> None:
    waiting: Queue[tuple[str, EngineRun]] = Queue()
    for item in runs.items():
        waiting.put(item)

    def work(card: str) -> None:
        while True:
            try:
                name, run = waiting.get_nowait()
            except Empty:
                return
            execute(name, run, folder, ",".join(cards) if run.tensor_parallel > 1 else card)

    workers = [threading.Thread(target=work, args=(card,)) for card in cards for _ in range(at_once)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def compare(actual: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Per prompt: how many leading tokens are equal, and the largest difference of a shared top log probability."""
    prompts = []
    for ours, theirs in zip(actual["outputs"], expected["outputs"], strict=True):
        pairs = list(zip(ours["tokens"], theirs["tokens"], strict=True))
        equal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        # steps after the first different token have different contexts
        steps = list(zip(ours["logprobs"], theirs["logprobs"], strict=True))[: equal + 1]
        differences = [abs(a[token] - b[token]) for a, b in steps for token in a.keys() & b.keys()]
        entry = {"prompt_tokens": ours["prompt_tokens"], "equal_tokens": equal, "of": len(pairs)}
        entry["largest_logprob_difference"] = round(max(differences), 5)
        if equal < len(pairs):
            a, b = ours["tokens"][equal], theirs["tokens"][equal]
            entry["margin_there"] = round(abs(steps[-1][1].get(str(a), -99) - steps[-1][1][str(b)]), 5)
        prompts.append(entry)
    return {
        "tokens_equal": all(entry["equal_tokens"] == entry["of"] for entry in prompts),
        "largest_logprob_difference": max(entry["largest_logprob_difference"] for entry in prompts),
        "prompts": prompts,
    }


def summarize(folder: Path) -> dict[str, Any]:
    found = {
        path.stem: json.loads(path.read_text())
        for path in folder.glob("*.json")
        if "summary" not in path.stem
    }
    return {
        "runs": {
            name: {key: value for key, value in result.items() if key != "outputs"}
            for name, result in found.items()
        },
        "comparisons": {
            f"{name} with {other}": compare(found[name], found[other])
            for name, other in COMPARED.items()
            if name in found and other in found
        },
    }


if __name__ == "__main__":
    group, target = sys.argv[1], Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    models = {heads: target / "models" / str(heads) for heads in (8, 64)}
    for heads, model in models.items():
        if not model.exists():
            write_model(model, heads)
    placed = {name: replace(run, model=str(models[run.heads])) for name, run in GROUPS[group].items()}
    run_all(placed, target, sys.argv[3:] or ["0"], at_once=3 if group == "modes" else 1)
    summary = summarize(target)
    (target / f"summary-{group}.json").write_text(json.dumps(summary, indent=1))
    for pair, comparison in summary["comparisons"].items():
        short = [(entry["prompt_tokens"], entry["equal_tokens"]) for entry in comparison["prompts"]]
        print(pair, comparison["tokens_equal"], comparison["largest_logprob_difference"], short)
    for name, result in summary["runs"].items():
        print(name, result["start_seconds"], result.get("tokens_per_second", ""))
