"""Preflight against reality: the estimate against what the engine reports, and an all-reduce of real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_service.model.inspection import inspect_model
from glm5_service.preflight import allreduce, fit
from tests.support.engine import EngineRun, log_facts, run_engine
from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.results import record
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import TinySpec

pytestmark = pytest.mark.engine

GIB = 1024**3


@pytest.mark.parametrize(
    ("name", "spec", "dtype", "dtype_bytes"),
    [
        ("five-layers-two-shared-indexers", TinySpec(layers=5, shared_layers=(1, 3)), "bfloat16", 2),
        ("four-layers-mtp-float32", TinySpec(layers=4, mtp=True), "float32", 4),
    ],
)
def test_memory_is_estimated_within_5_percent(
    tmp_path: Path, name: str, spec: TinySpec, dtype: str, dtype_bytes: int
) -> None:
    """Layers, shared indexers, a set-aside MTP block and the type all count as they do in the engine."""
    tiny = write_tiny(tmp_path / "gguf", spec)
    hf = tiny.write_config(tmp_path / "hf")
    gguf = inspect_model(tiny.path).gguf
    assert gguf is not None
    need = fit.demand(gguf, fit.Layout("cpu", 1, dtype_bytes, "auto", eager=True, held="speed"))
    arguments = {"dtype": dtype, "tokenizer": str(hf), "skip_tokenizer_init": True, "max_model_len": 1024}

    run_engine(EngineRun(str(tiny.path), [[1, 2, 3]], max_tokens=1, engine=arguments), tmp_path)

    reported = log_facts(tmp_path)
    figures = {
        "weights_estimated_bytes": need.weights,
        "weights_reported_bytes": reported.weights_bytes,
        "kv_estimated_tokens_per_gib": GIB // need.kv_per_token,
        "kv_reported_tokens_per_gib": reported.kv_tokens,
    }
    record(f"fit-{name}", figures)
    assert need.weights == pytest.approx(reported.weights_bytes, rel=0.05)
    assert GIB // need.kv_per_token == pytest.approx(reported.kv_tokens, rel=0.05)


def test_all_reduce_of_real_ranks() -> None:
    """Two processes with torch add up their vectors, through gloo where there is no GPU."""
    outcome = allreduce.run(2, "gloo", PATIENCE_SECONDS)
    assert outcome.error is None
