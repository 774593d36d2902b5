"""The CPU profile's operations on quantised weights against plain float mathematics."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from demo_model.pack import quantize
from glm5_vllm.cpu import gguf_operations

TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 7, 256, 512, 5, 2


def packed(*shape: int, kind: Type, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw blocks and the floats they stand for."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * 0.1
    raw = quantize(values, kind)
    return torch.from_numpy(raw), torch.from_numpy(gguf.dequantize(raw, kind))


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q8_0])
def test_multiply_is_a_product_with_the_dequantised_weight(kind: Type) -> None:
    """multiply(raw, x) is x times the transpose of what raw stands for."""
    raw, weight = packed(96, HIDDEN, kind=kind, seed=0)
    x = torch.randn(TOKENS, HIDDEN)

    product = gguf_operations.multiply(raw, x, int(kind), 96)

    torch.testing.assert_close(product, x @ weight.T)


def test_a_parameter_is_dequantised_once_for_each_dtype() -> None:
    """The floats of a parameter are kept, and made anew for another dtype; a plain tensor's are not kept."""
    raw, weight = packed(96, HIDDEN, kind=Type.Q4_K, seed=0)
    parameter, x = torch.nn.Parameter(raw, requires_grad=False), torch.randn(TOKENS, HIDDEN)

    first = gguf_operations.multiply(parameter, x, int(Type.Q4_K), 96)
    raw.zero_()  # not seen any more: the parameter's floats are made
    again = gguf_operations.multiply(parameter, x, int(Type.Q4_K), 96)
    half = gguf_operations.multiply(parameter, x.half(), int(Type.Q4_K), 96)
    plain = gguf_operations.multiply(raw, x, int(Type.Q4_K), 96)

    torch.testing.assert_close(first, x @ weight.T)
    torch.testing.assert_close(again, first)
    assert half.abs().max() == 0
    assert plain.abs().max() == 0


def test_experts_are_mixed_as_the_router_says() -> None:
    """Each token's output is the weighted sum of its experts' SwiGLU, gate rows before up rows."""
    w13_raw, w13 = packed(EXPERTS, 2 * INTERMEDIATE, HIDDEN, kind=Type.Q4_K, seed=1)
    w2_raw, w2 = packed(EXPERTS, HIDDEN, INTERMEDIATE, kind=Type.Q6_K, seed=2)
    x, weights = torch.randn(TOKENS, HIDDEN), torch.rand(TOKENS, TOP_K)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(TOKENS)])
    expected = torch.zeros(TOKENS, HIDDEN)
    for token in range(TOKENS):
        for weight, expert in zip(weights[token], ids[token], strict=True):
            gate, up = (w13[expert] @ x[token]).chunk(2)
            expected[token] += weight * (w2[expert] @ (torch.nn.functional.silu(gate) * up))

    mixed = gguf_operations.mixture_of_experts(
        x, w13_raw, w2_raw, weights, ids, int(Type.Q4_K), int(Type.Q6_K), "silu"
    )

    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-4)


def test_another_activation_is_refused() -> None:
    """An activation that GLM-5 does not have is refused by name."""
    with pytest.raises(NotImplementedError, match="gelu; expected silu"):
        gguf_operations.mixture_of_experts(*[torch.empty(0)] * 5, 12, 12, "gelu")
