"""Runs engines with this backend beside stock's and compares what they say: engine_check.py GROUP FOLDER [GPU ...]

Each run is a process of its own (engine_run.py) that has its card to itself: vLLM refuses to start where another process
gives memory back. FOLDER keeps each run's output and summary-GROUP.json.
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

from tests.gpu.engine_run import VOCAB, EngineRun, random_prompts, write_model
from tests.support.tiny_spec import QuantMix, TinySpec

OURS, STOCK = "TRITON_MLA_SPARSE", "FLASHMLA_SPARSE"
LONGEST_REFERENCE = 3000
IQ_EXPERTS = QuantMix(gate="IQ4_XS", up="IQ4_XS", down="IQ4_XS")

# both backends of a pair on the same card, one after the other
RATES = {
    heads: {
        f"stock-{heads}": EngineRun(STOCK, heads, measure_rate=True),
        f"ours-{heads}": EngineRun(OURS, heads, measure_rate=True),
    }
    for heads in (8, 64)
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
    "ours-8-triton-indexer": EngineRun(OURS, 8, triton_indexer=True),
    # other positions than the indexer's must show, or equal tokens prove nothing
    "control-8": EngineRun(OURS, 8, top_k=1024),
}
PARALLEL = {
    "ours-64-tp2": EngineRun(OURS, 64, tensor_parallel=2),
    "ours-64-tp2-dcp2": EngineRun(OURS, 64, tensor_parallel=2, context_parallel=2),
}
GGUF = {
    "gguf": {
        "stock-gguf": EngineRun(STOCK, 8),
        "ours-gguf": EngineRun(OURS, 8),
        "ours-gguf-mtp1": EngineRun(OURS, 8, drafted=1),
    },
    "gguf-parallel": {
        "ours-gguf": EngineRun(OURS, 8),
        "ours-gguf-tp2": EngineRun(OURS, 8, tensor_parallel=2),
    },
    # experts without a kernel for many rows; 8192 tokens with 8 experts each exceed CUDA's grid in one launch
    "gguf-iq": {"ours-gguf": EngineRun(OURS, 8, batched_tokens=8192)},
}
GROUPS = {"rates-8": RATES[8], "rates-64": RATES[64], "modes": MODES, "parallel": PARALLEL, **GGUF}
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
    "ours-8-triton-indexer": "ours-8",
    "control-8": "stock-8",
    "ours-gguf": "stock-gguf",
    "ours-gguf-mtp1": "ours-gguf",
    "ours-gguf-tp2": "ours-gguf",
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


def run_all(runs: dict[str, EngineRun], folder: Path, cards: list[str]) -> None:
    """Every run on the next free card, or one after the other where a run takes them all."""
    waiting: Queue[tuple[str, EngineRun]] = Queue()
    for item in runs.items():
        waiting.put(item)
    whole = any(run.tensor_parallel > 1 for run in runs.values())

    def work(places: str) -> None:
        while True:
            try:
                name, run = waiting.get_nowait()
            except Empty:
                return
            execute(name, run, folder, places)

    places = [",".join(cards)] if whole else cards
    workers = [threading.Thread(target=work, args=(place,)) for place in places]
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


def write_gguf(folder: Path, experts: QuantMix) -> tuple[Path, Path]:
    """A GGUF of three splits and a block that drafts: its first file, and transformers' folder of it."""
    from tests.support.tiny_gguf import write_tiny

    spec = TinySpec(
        heads=8, experts_used=8, expert_intermediate=512, index_topk=2048, context=16384, vocab=VOCAB,
        quants=experts, splits=3, mtp=True,
    )  # fmt: skip
    written = write_tiny(folder / "gguf", spec)
    return written.path, written.write_reference(folder / "reference")


def against_transformers(outputs: list[dict[str, Any]], reference: Path) -> list[dict[str, Any]]:
    """The largest difference from float32 transformers on the dequantised tensors, for the shorter prompts."""
    from tests.support.engine import Completion
    from tests.support.hf_model import largest_logprob_difference, load_float32

    pairs = zip(random_prompts(), outputs, strict=True)
    shorter = [(prompt, output) for prompt, output in pairs if len(prompt) <= LONGEST_REFERENCE]
    completions = [
        Completion(output["tokens"], [{int(t): p for t, p in top.items()} for top in output["logprobs"]], 0)
        for _, output in shorter
    ]
    prompts = [prompt for prompt, _ in shorter]
    largest = largest_logprob_difference(load_float32(reference).cuda(), prompts, completions)
    return [
        {"prompt_tokens": len(prompt), "largest_logprob_difference": round(difference, 5)}
        for prompt, difference in zip(prompts, largest, strict=True)
    ]


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
    placed = {}
    if group in GGUF:
        gguf, reference = write_gguf(target / "models", IQ_EXPERTS if group == "gguf-iq" else QuantMix())
        placed = {
            n: replace(run, model=str(gguf), tokenizer=str(reference)) for n, run in GROUPS[group].items()
        }
    else:
        for name, run in GROUPS[group].items():
            model = target / "models" / str(run.heads)
            if not model.exists():
                write_model(model, run.heads)
            placed[name] = replace(run, model=str(model))
    run_all(placed, target, sys.argv[3:] or ["0"])
    summary = summarize(target)
    if group in GGUF:
        outputs = json.loads((target / "ours-gguf.json").read_text())["outputs"]
        summary["ours-gguf with transformers"] = against_transformers(outputs, reference)
        print(summary["ours-gguf with transformers"])
    (target / f"summary-{group}.json").write_text(json.dumps(summary, indent=1))
    for pair, comparison in summary["comparisons"].items():
        short = [(entry["prompt_tokens"], entry["equal_tokens"]) for entry in comparison["prompts"]]
        print(pair, comparison["tokens_equal"], comparison["largest_logprob_difference"], short)
    for name, result in summary["runs"].items():
        print(name, result["start_seconds"], result.get("tokens_per_second", ""))
