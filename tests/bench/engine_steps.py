"""Times whole steps of GLM-5 from a GGUF on one card, as a TP=8 rank: engine_steps.py OUT.json

Needs vLLM's CUDA build. Writes two models of full width, one with four more expert layers, and runs each with
GLM5_WEIGHTS=memory and =speed. The difference of the two gives an expert layer; the whole model is estimated as the
smaller one and the layers it lacks. Decode is timed on the card, around the step's CUDA graph: sampling and the host are
not in it. Prefill is a whole step by the host's clock. There is no all-reduce in either.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import QuantMix, TinySpec

BATCHES = (1, 8, 32, 64)
CONTEXT, CHUNK, STEPS, VOCAB = 4224, 8192, 40, 19_360
SMALL, LARGE = 3, 7
# the smaller model lacks 73 expert layers and 2 dense ones, which are counted as expert layers though they take less
EXPERT_LAYERS, DENSE_LAYERS = 75, 3
MIX = QuantMix(v_b="Q8_0", attention_output="Q8_0", dense_in="Q8_0", dense_down="Q8_0", down="Q6_K")
RANK = {
    "heads": 8, "experts": 256, "experts_used": 8, "hidden": 6144, "q_lora": 2048, "dense_layers": 1,
    "dense_intermediate": 1536, "expert_intermediate": 256, "index_topk": 2048, "context": 202_752, "vocab": VOCAB,
}  # fmt: skip


def write_model(folder: Path, layers: int) -> Path:
    """A rank's share of GLM-5, with `layers` layers of which the first is dense."""
    spec = TinySpec(layers=layers, quants=MIX, name=f"rank-{layers}", with_reference=False, **RANK)  # type: ignore[arg-type]
    return write_tiny(folder, spec).path


def prompt(generator: random.Random, tokens: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [generator.randrange(8, VOCAB) for _ in range(tokens)]}


@contextmanager
def timed_replays() -> Iterator[list[tuple[Any, Any]]]:
    """The CUDA events around each replay of a CUDA graph inside."""
    import torch

    events: list[tuple[Any, Any]] = []
    replay = torch.cuda.CUDAGraph.replay

    def timed(graph: Any) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay(graph)
        end.record()
        events.append((start, end))

    torch.cuda.CUDAGraph.replay = timed
    try:
        yield events
    finally:
        torch.cuda.CUDAGraph.replay = replay


def decode_ms(engine: Any, batch: int) -> float:
    """Median time on the card of a step's graph in which `batch` requests of CONTEXT tokens and more get a token."""
    import torch
    from vllm import SamplingParams

    generator = random.Random(batch)
    sampling = SamplingParams(temperature=1.0, max_tokens=STEPS, ignore_eos=True, detokenize=False)
    for number in range(batch):
        engine.add_request(f"decode-{batch}-{number}", prompt(generator, CONTEXT), sampling)
    milliseconds = []
    while engine.has_unfinished_requests():
        with timed_replays() as events:
            outputs = engine.step()
        torch.cuda.synchronize()
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        if len(lengths) == batch and min(lengths) > 2 and max(lengths) < STEPS - 2 and events:
            milliseconds.append(sum(start.elapsed_time(end) for start, end in events))
    return statistics.median(milliseconds)


def prefill_seconds(engine: Any) -> float:
    """Least time of a step of CHUNK tokens that begin a prompt, of three."""
    import torch
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    seconds = []
    for number in range(3):
        engine.add_request(f"prefill-{number}", prompt(random.Random(number), CHUNK + 8), sampling)
        torch.cuda.synchronize()
        start = time.perf_counter()
        engine.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        while engine.has_unfinished_requests():
            engine.step()
    return min(seconds)


def run_one(model: str) -> dict[str, Any]:
    """Start the engine on one model and time it; GLM5_WEIGHTS comes from the environment."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("GLM5_RUN_DIR", tempfile.mkdtemp())
    os.environ.setdefault("GLM5_CACHE_DIR", tempfile.mkdtemp())
    import torch
    import triton
    import vllm

    start = time.perf_counter()
    llm = vllm.LLM(
        model,
        skip_tokenizer_init=True,
        attention_backend="TRITON_MLA_SPARSE",
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
        max_model_len=32_768,
        max_num_seqs=64,
        max_num_batched_tokens=CHUNK,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.85,
    )
    started = time.perf_counter() - start
    engine = llm.llm_engine
    return {
        "hardware": torch.cuda.get_device_name(),
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__, "triton": triton.__version__},
        "start_seconds": round(started, 1),
        "gpu_bytes": torch.cuda.memory_allocated(),
        "prefill_ms": round(prefill_seconds(engine) * 1e3, 2),
        "decode_ms": {str(batch): round(decode_ms(engine, batch), 3) for batch in BATCHES},
    }


def whole_model(small: float, large: float) -> dict[str, float]:
    """Milliseconds of an expert layer and of a step of all layers, from the steps of the two models."""
    expert = (large - small) / (LARGE - SMALL)
    missing = EXPERT_LAYERS - (SMALL - 1) + DENSE_LAYERS - 1
    return {"expert_layer_ms": round(expert, 3), "whole_model_ms": round(small + missing * expert, 2)}


def main(out: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    runs: dict[str, dict[str, Any]] = {}
    models = {layers: write_model(folder, layers) for layers in (SMALL, LARGE)}
    for weights in ("speed", "memory"):
        for layers, model in models.items():
            environment = {**os.environ, "GLM5_WEIGHTS": weights}
            command = [
                sys.executable,
                "-m",
                "tests.bench.engine_steps",
                "--one",
                str(model),
                str(out) + ".part",
            ]
            subprocess.run(command, env=environment, timeout=240, check=True)
            runs[f"{weights}-{layers}"] = json.loads(Path(str(out) + ".part").read_text())
            print(weights, layers, runs[f"{weights}-{layers}"], flush=True)
    first = next(iter(runs.values()))
    result = {
        "hardware": first["hardware"],
        "versions": first["versions"],
        "command": "python -m tests.bench.engine_steps OUT.json",
        "estimated": "2 of the 3 dense layers are counted as expert layers; no all-reduce, no sampling in decode",
        "runs": runs,
    }
    for weights in ("memory", "speed"):
        small, large = runs[f"{weights}-{SMALL}"], runs[f"{weights}-{LARGE}"]
        whole = {b: whole_model(small["decode_ms"][b], large["decode_ms"][b]) for b in small["decode_ms"]}
        result[weights] = {"decode": whole, "prefill": whole_model(small["prefill_ms"], large["prefill_ms"])}
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        Path(sys.argv[3]).write_text(json.dumps(run_one(sys.argv[2])))
    else:
        main(Path(sys.argv[1]))
