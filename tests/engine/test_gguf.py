"""What the engine computes from a GGUF file against transformers on the dequantised tensors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glm5_service.model.inspection import inspect_model
from glm5_service.preflight import fit
from tests.support.engine import EngineRun, log_facts, run_engine
from tests.support.hf_model import largest_logprob_difference, load_float32, random_prompts
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import QuantMix, TinySpec

pytestmark = pytest.mark.engine

# float32: rounding of sums in another order. float16 and bfloat16: 11 and 8 bits of mantissa through three layers,
# for prompts shorter than index_topk and with every expert used, so that no near-tie of indexer or router decides
TOLERANCE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
ALL_EXPERTS = {"experts": 2, "experts_used": 2}

RARE = QuantMix(
    embedding="Q5_0", output="IQ4_NL", q_a="Q4_0", q_b="IQ4_XS", kv_a="Q5_0", v_b="IQ4_XS", attention_output="Q3_K",
    indexer="Q4_0", dense_in="Q2_K", dense_down="Q3_K", gate="Q3_K", up="Q3_K", down="Q4_K", shared="Q5_K",
)  # fmt: skip
# as llama-quantize mixes them: codebooks for most, a minimum in every block for a few
SMALLEST = QuantMix(
    embedding="IQ3_S", output="Q5_1", q_a="IQ2_XS", q_b="IQ2_S", kv_a="IQ2_XXS", k_b="Q5_1", v_b="IQ3_XXS",
    attention_output="IQ1_M", indexer="Q4_1", indexer_proj="IQ1_S", dense_in="IQ3_XXS", dense_down="Q4_1", gate="IQ2_XXS",
    up="IQ2_XXS", down="Q5_1", shared="IQ1_S",
)  # fmt: skip
FLOATS = QuantMix(
    q_a="BF16", kv_a="F16", k_b="F16", v_b="BF16", dense_in="F16", gate="F16", up="F16", down="BF16"
)  # fmt: skip


def estimated_weights(path: Path, dtype: str, ranks: int) -> int:
    """Bytes that preflight expects the parameters of a rank to take."""
    gguf = inspect_model(path).gguf
    assert gguf
    return fit.demand(
        gguf, fit.Layout("cpu", ranks, 4 if dtype == "float32" else 2, "auto", eager=True, held="speed")
    ).weights


def a_core_for_each(ranks: int) -> dict[str, str]:
    """Where the ranks run, so that they do not take vLLM's cores by NUMA node, of which there may be one."""
    cores = sorted(os.sched_getaffinity(0))
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))}


@pytest.mark.parametrize(
    ("spec", "dtype", "lengths", "ranks"),
    [
        pytest.param(TinySpec(splits=3, mtp=True), "float32", (12, 60, 100, 300), 1, id="k-quants-3-splits"),
        # 1e-3 is far from what a part that went to the wrong rank does: 4
        pytest.param(
            TinySpec(splits=3, mtp=True, expert_intermediate=512),
            "float32",
            (12, 60, 100),
            2,
            id="k-quants-2-ranks",
        ),
        pytest.param(
            TinySpec(layout="split2d", quants=FLOATS), "float32", (12, 60), 2, id="float-experts-2-ranks"
        ),
        pytest.param(
            TinySpec(layout="kv_b", quants=RARE), "float32", (60, 300), 1, id="rare-types-legacy-kv_b"
        ),
        pytest.param(TinySpec(quants=SMALLEST), "float32", (12, 60), 1, id="smallest-types"),
        pytest.param(
            TinySpec(layout="split2d", quants=FLOATS, **ALL_EXPERTS),
            "float16",
            (12, 50),
            1,
            id="float-experts-float16",
        ),
        pytest.param(
            TinySpec(shared_layers=(1,), **ALL_EXPERTS), "bfloat16", (12, 50), 1, id="shared-indexer-bfloat16"
        ),
    ],
)
def test_engine_computes_what_the_file_says(
    tmp_path: Path, spec: TinySpec, dtype: str, lengths: tuple[int, ...], ranks: int
) -> None:
    """Every layout, split, quant type and number of ranks gives transformers' logprobs, whichever split is named."""
    tiny = write_tiny(tmp_path / "gguf", spec)
    reference = tiny.write_reference(tmp_path / "reference")
    hf = tiny.write_config(tmp_path / "hf")
    prompts = [
        [token % tiny.hf_config["vocab_size"] for token in prompt] for prompt in random_prompts(lengths)
    ]
    arguments = {"dtype": dtype, "tokenizer": str(hf), "skip_tokenizer_init": True, "max_model_len": 1024}
    run = EngineRun(
        str(tiny.paths[-1]),
        prompts,
        engine=arguments | {"tensor_parallel_size": ranks},
        environment=a_core_for_each(ranks) if ranks > 1 else {},
    )

    (completions,) = run_engine(run, tmp_path)

    largest = largest_logprob_difference(load_float32(reference), prompts, completions)
    assert max(largest) < TOLERANCE[dtype], largest
    assert estimated_weights(tiny.path, dtype, ranks) == pytest.approx(
        log_facts(tmp_path).weights_bytes, rel=0.05
    )
