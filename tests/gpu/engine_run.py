"""One engine on random weights in the shape of GLM-5: greedy tokens, their log probabilities and the decode rate.

Run by engine_check.py, one process a run: engine_run.py '{"backend": ..., "heads": ...}' OUT.json
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glm5_vllm.files import write_whole
from tests.support.hf_model import VOCAB, random_config

PROMPT_TOKENS = (7, 130, 2040, 2049, 3000, 5000, 9000)
NEW_TOKENS = 24
BATCHES = (1, 8, 32, 64)
RATE_PROMPT, RATE_STEPS = 2600, 300
LIKELY = 64


@dataclass(frozen=True)
class EngineRun:
    """What one process starts."""

    backend: str
    heads: int
    model: str = ""
    top_k: int = 2048
    eager: bool = False
    drafted: int = 0
    tensor_parallel: int = 1
    context_parallel: int = 1
    kv_cache_dtype: str = "bfloat16"
    dtype: str = "bfloat16"
    batched_tokens: int = 4096
    measure_rate: bool = False
    triton_indexer: bool = False
    tokenizer: str = ""
    memory: float = 0.28
    weights: str = "speed"


def write_model(folder: Path, heads: int, seed: int = 1) -> None:
    """A 4-layer GLM-5 with the real head sizes and indexer, small elsewhere, and one layer that drafts.

    Its weights are random and wide enough for attention to decide the tokens: with vLLM's dummy weights it does not.
    Every expert is used, so that no near-tie of the router decides, and few tokens have logits worth choosing, small
    enough for a step of bfloat16 to be below the tolerance of a log probability.
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import GlmMoeDsaForCausalLM

    layers, hidden = 4, 512
    config = random_config(
        2048,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        mlp_layer_types=["dense", *["sparse"] * (layers - 1)],
        num_experts_per_tok=8,
        max_position_embeddings=65536,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        dtype="bfloat16",
    )
    config.architectures = ["GlmMoeDsaForCausalLM"]
    torch.manual_seed(seed)
    model = GlmMoeDsaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight *= 0.25
        model.lm_head.weight[LIKELY:] *= 0.1
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    last, drafting = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    tensors |= {
        name.replace(last, drafting): t.clone() for name, t in tensors.items() if name.startswith(last)
    }
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors |= {f"{drafting}{name}.weight": ones.clone() for name in ("enorm", "hnorm", "shared_head.norm")}
    tensors[f"{drafting}eh_proj.weight"] = torch.randn(hidden, 2 * hidden).to(torch.bfloat16) * 0.05
    tensors[f"{drafting}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    tensors[f"{drafting}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, "num_nextn_predict_layers": 1}))


def decode_rate(llm: Any, batch: int) -> float:
    """Tokens a second of decode alone: the batch over the median time of a step in which every request decodes."""
    from vllm import SamplingParams

    generator = random.Random(batch)
    sampling = SamplingParams(temperature=0, max_tokens=RATE_STEPS, ignore_eos=True, detokenize=False)
    engine = llm.llm_engine
    for number in range(batch):
        prompt = [generator.randrange(8, VOCAB) for _ in range(RATE_PROMPT)]
        engine.add_request(f"rate-{batch}-{number}", {"prompt_token_ids": prompt}, sampling)
    seconds = []
    while engine.has_unfinished_requests():
        start = time.perf_counter()
        outputs = engine.step()
        # in a step that decodes for everybody, everybody gets a token and nobody its first
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        if len(lengths) == batch and min(lengths) > 1 and max(lengths) < RATE_STEPS:
            seconds.append(time.perf_counter() - start)
    return batch / statistics.median(seconds)


def random_prompts() -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(8, VOCAB) for _ in range(n)] for n in PROMPT_TOKENS]


def generate(llm: Any) -> list[dict[str, Any]]:
    """All prompts in one batch of mixed lengths."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": prompt} for prompt in random_prompts()]
    sampling = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, logprobs=5, ignore_eos=True, detokenize=False
    )
    return [
        {
            "prompt_tokens": n,
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [
                {str(token): entry.logprob for token, entry in step.items()}
                for step in output.outputs[0].logprobs
            ],
        }
        for n, output in zip(PROMPT_TOKENS, llm.generate(prompts, sampling, use_tqdm=False), strict=True)
    ]


def main(run: EngineRun, out: Path) -> None:
    run_dir = Path(tempfile.mkdtemp())
    os.environ["GLM5_RUN_DIR"], os.environ["GLM5_WEIGHTS"] = str(run_dir), run.weights
    if run.tensor_parallel == 1:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    if run.triton_indexer:
        from glm5_vllm.indexer.fallback import use_triton_logits

        use_triton_logits()
    start = time.perf_counter()
    llm = LLM(
        run.model,
        skip_tokenizer_init=True,
        tokenizer=run.tokenizer or run.model,
        attention_backend=run.backend,
        enforce_eager=run.eager,
        max_model_len=16384,
        gpu_memory_utilization=run.memory,
        dtype=run.dtype,
        kv_cache_dtype=run.kv_cache_dtype,
        max_num_seqs=64,
        max_num_batched_tokens=run.batched_tokens,
        enable_prefix_caching=False,
        hf_overrides={"index_topk": run.top_k},
        tensor_parallel_size=run.tensor_parallel,
        decode_context_parallel_size=run.context_parallel,
        **(
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": run.drafted}}
            if run.drafted
            else {}
        ),
    )
    result: dict[str, Any] = {"run": asdict(run), "start_seconds": round(time.perf_counter() - start, 1)}
    result["outputs"] = generate(llm)
    if run.measure_rate:
        result["tokens_per_second"] = {str(batch): round(decode_rate(llm, batch), 1) for batch in BATCHES}
    result["attestation"] = [json.loads(p.read_text()) for p in sorted(run_dir.glob("attention/rank-*.json"))]
    write_whole(out, json.dumps(result).encode())


if __name__ == "__main__":
    main(EngineRun(**json.loads(sys.argv[1])), Path(sys.argv[2]))
