"""The engine against transformers on the same weights, float32, on this processor and on lesser ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cpus import NO_AMX, NO_AVX512, NO_BF16, Cpu
from tests.support.engine import LOG, EngineRun, run_engine
from tests.support.hf_model import (
    largest_logprob_difference,
    load_float32,
    random_config,
    random_prompts,
    save_random_model,
    without_sparsity,
)

pytestmark = pytest.mark.engine

LENGTHS = (12, 60, 100, 300)
TOLERANCE = 1e-3
CHUNKED = {"enable_chunked_prefill": True, "max_num_batched_tokens": 64}
WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}


def engine_arguments(**changes: Any) -> dict[str, Any]:
    return {
        "dtype": "float32",
        "max_model_len": 1024,
        "skip_tokenizer_init": True,
        "block_size": 16,
        **changes,
    }


@pytest.mark.parametrize(
    ("prefill", "prefix_caching"), [(CHUNKED, True), (WHOLE, False)], ids=["chunked-cached", "whole-uncached"]
)
def test_engine_equals_transformers(
    random_model: Path, tmp_path: Path, prefill: dict[str, Any], prefix_caching: bool
) -> None:
    """Every top logprob is within 1e-3 of transformers', also when the second round is read from the prefix cache."""
    prompts = random_prompts(LENGTHS)
    arguments = engine_arguments(**prefill, enable_prefix_caching=prefix_caching)

    first, second = run_engine(EngineRun(str(random_model), prompts, rounds=2, engine=arguments), tmp_path)
    model = load_float32(random_model)

    assert max(largest_logprob_difference(model, prompts, first)) < TOLERANCE
    assert max(largest_logprob_difference(model, prompts, second)) < TOLERANCE
    assert (second[-1].cached_tokens > 0) == prefix_caching
    # the control: without sparsity the same comparison fails where more than index_topk tokens are in reach
    dense = largest_logprob_difference(without_sparsity(model), prompts, first)
    assert dense[0] < TOLERANCE
    assert dense[-1] > 0.1


@pytest.mark.parametrize("cpu", [NO_AMX, NO_BF16, NO_AVX512], ids=str)
def test_engine_equals_transformers_on_every_cpu(random_model: Path, tmp_path: Path, cpu: Cpu) -> None:
    """Without AMX, avx512_bf16 or AVX-512 prompts are cut into chunks and read from the prefix cache as well."""
    if reason := cpu.reason_to_skip():
        pytest.skip(reason)
    prompts = random_prompts(LENGTHS)
    arguments = engine_arguments(**CHUNKED, enable_prefix_caching=True)
    run = EngineRun(str(random_model), prompts, rounds=2, engine=arguments, environment=cpu.environment)

    first, second = run_engine(run, tmp_path)
    model = load_float32(random_model)

    assert max(largest_logprob_difference(model, prompts, first)) < TOLERANCE
    assert max(largest_logprob_difference(model, prompts, second)) < TOLERANCE
    assert second[-1].cached_tokens > 0
    (said,) = [line for line in (tmp_path / LOG).read_text().splitlines() if "CPU profile: " in line]
    assert "chunked prefill on, prefix caching on, at most 64 tokens a step, blocks of 16 tokens" in said
    used = said.partition("instruction sets ")[2].partition(";")[0].split(", ")
    assert cpu.hides.replace("avx512f", "avx512_f") not in used


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        pytest.param({"index_topk": 2048}, (2300,), id="topk-2048"),
        pytest.param(
            {"index_topk": 64, "indexer_types": ["full", "shared", "full"], "index_topk_pattern": "FSF"},
            (60, 300),
            id="shared-indexer",
        ),
    ],
)
def test_real_top_k_and_shared_indexers(
    tmp_path: Path, config: dict[str, Any], lengths: tuple[int, ...]
) -> None:
    """GLM-5's top-k of 2048 past its length, and GLM-5.2's layers that reuse the indexer before them, agree too."""
    folder = tmp_path / "model"
    save_random_model(folder, random_config(**config))
    prompts = random_prompts(lengths)
    arguments = engine_arguments(max_model_len=4096, max_num_batched_tokens=4096)

    (completions,) = run_engine(EngineRun(str(folder), prompts, max_tokens=6, engine=arguments), tmp_path)

    assert max(largest_logprob_difference(load_float32(folder), prompts, completions)) < TOLERANCE
