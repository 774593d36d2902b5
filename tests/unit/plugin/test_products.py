"""The policy of products as it is read: which kernel, and which weights become float."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_vllm import envs
from glm5_vllm.envs import Weights
from glm5_vllm.gguf.file.quant_types import BY_NAME, LOADABLE
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.plan.held import held_targets
from glm5_vllm.gguf.plan.planned import Role
from glm5_vllm.gguf.plan.planner import examine
from glm5_vllm.products.policy import DOWN, GATE_UP, Kernel, is_dequantised, kernel_for
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import SMALL, QuantMix

Q4_K, Q6_K, IQ4_XS = BY_NAME["Q4_K"], BY_NAME["Q6_K"], BY_NAME["IQ4_XS"]


@pytest.mark.parametrize("rows", [0, 1, 16, 31, 32, 1023, 8192])
@pytest.mark.parametrize("steps", [GATE_UP, DOWN])
def test_every_number_of_rows_has_a_kernel(steps: tuple[object, ...], rows: int) -> None:
    """No type and no number of rows is left without a kernel, and a type without a tiled kernel never gets it."""
    for quant in LOADABLE:
        kernel = kernel_for(steps, rows, quant)  # type: ignore[arg-type]
        assert kernel is Kernel.VECTOR or not quant.name.startswith("IQ")


@pytest.mark.parametrize(
    ("steps", "rows", "kernel"),
    [(GATE_UP, 31, Kernel.VECTOR), (GATE_UP, 32, Kernel.TILED), (DOWN, 1, Kernel.TILED)],
)
def test_the_kernel_changes_where_the_table_says(
    steps: tuple[object, ...], rows: int, kernel: Kernel
) -> None:
    """Gate and up stay with the vector kernel up to 31 tokens, down is tiled from the first."""
    assert kernel_for(steps, rows, Q4_K) is kernel  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "types", "weights", "expected"),
    [
        (1023, (Q4_K, Q6_K), Weights.SPEED, False),
        (1024, (Q4_K, Q6_K), Weights.SPEED, True),
        (1024, (Q4_K, Q6_K), Weights.MEMORY, False),
        (127, (Q4_K, IQ4_XS), Weights.SPEED, False),
        (128, (Q4_K, IQ4_XS), Weights.SPEED, True),
    ],
)
def test_long_chunks_dequantise_under_speed_alone(
    rows: int, types: tuple[object, object], weights: Weights, expected: bool
) -> None:
    """Experts become float for a long chunk, sooner where there is no tiled kernel, and never to save memory."""
    assert is_dequantised(rows, types, weights) is expected  # type: ignore[arg-type]


def test_layers_are_held_whole_or_not_at_all(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A joined layer is float only if each of its parts is of such a type; embedding and experts stay packed."""
    mix = QuantMix(
        q_a="Q8_0", kv_a="Q5_0", q_b="Q8_0", output="Q6_K", embedding="Q8_0", down="Q6_K", shared="Q8_0"
    )
    path = write_tiny(tmp_path_factory.mktemp("model"), replace(SMALL, quants=mix)).path
    held = held_targets(examine(open_model(path)).of(Role.MAIN))

    assert "model.layers.0.self_attn.q_b_proj.weight" in held
    assert "lm_head.weight" in held
    assert {name.split(".")[-2] for name in held if "shared_experts" in name} == {
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert not any(
        part in name for name in held for part in ("q_a_proj", "kv_a_proj", "embed_tokens", ".experts.")
    )


def test_an_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """GLM5_WEIGHTS takes two values, and speed is what it is without one."""
    monkeypatch.delenv("GLM5_WEIGHTS", raising=False)
    assert envs.weights() is Weights.SPEED
    monkeypatch.setenv("GLM5_WEIGHTS", "fast")
    with pytest.raises(ValueError, match="'fast'; expected speed or memory"):
        envs.weights()
