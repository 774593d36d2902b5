"""Packed dense layers that become float, on layers of vLLM's own; the engine's tests compare whole models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm_gguf_plugin.quantization.linear import GGUFLinearMethod

from glm5_vllm.gguf.file.quant_types import BY_NAME
from glm5_vllm.gguf.hold import hold_as_float
from glm5_vllm.patches import gguf_cpu_operations
from tests.support.random_blocks import random_tensor

ROWS, COLUMNS = 6, 256


class Layer(LinearBase):
    """A packed layer whose parts are placed already, without vLLM's parallel state."""

    def __init__(self, parts: list[tuple[str, torch.Tensor]]) -> None:
        nn.Module.__init__(self)
        self.quant_method = GGUFLinearMethod(None)
        self.quant_method.process_weights_after_loading = lambda _: None  # type: ignore[method-assign]
        width = max(blocks.shape[1] for _, blocks in parts)
        padded = torch.cat([nn.functional.pad(blocks, (0, width - blocks.shape[1])) for _, blocks in parts])
        self.qweight = nn.Parameter(padded, requires_grad=False)
        offsets = {n: (n * ROWS, (n + 1) * ROWS, blocks.shape[1]) for n, (_, blocks) in enumerate(parts)}
        joined = len(parts) > 1
        self.qweight.shard_id = list(offsets) if joined else []
        self.qweight.shard_offset_map = offsets
        ids = {n: BY_NAME[quant].type_id for n, (quant, _) in enumerate(parts)}
        self.qweight_type = SimpleNamespace(weight_type=ids[0], shard_weight_type=ids if joined else {})


def random_part(quant: str) -> tuple[tuple[str, torch.Tensor], np.ndarray[Any, Any]]:
    blocks, floats = random_tensor(np.random.default_rng(0), (ROWS, COLUMNS), quant, 1.0)
    return (quant, torch.from_numpy(blocks)), floats


@pytest.fixture(autouse=True)
def operations() -> None:
    gguf_cpu_operations.apply()


@pytest.mark.parametrize("quants", [("Q8_0",), ("Q6_K",), ("Q8_0", "Q8_0"), ("Q6_K", "Q8_0")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_those_of_the_file(quants: tuple[str, ...], dtype: torch.dtype) -> None:
    """Each part is dequantised by its own type, without what pads it, in the order of the output."""
    parts, floats = zip(*(random_part(quant) for quant in quants), strict=True)
    model = nn.Sequential(Layer(list(parts)))

    assert hold_as_float(model, dtype) == 1
    layer: Any = model[0]
    assert torch.equal(layer.weight, torch.from_numpy(np.concatenate(floats)).to(dtype))
    assert isinstance(layer.quant_method, UnquantizedLinearMethod)
    assert not hasattr(layer, "qweight")


@pytest.mark.parametrize("quants", [("Q4_K",), ("Q8_0", "Q4_K")])
def test_other_types_stay_packed(quants: tuple[str, ...]) -> None:
    """A layer with a part of another type keeps its blocks and its product."""
    parts = [random_part(quant)[0] for quant in quants]
    model = nn.Sequential(Layer(parts))

    assert hold_as_float(model, torch.float32) == 0
    layer: Any = model[0]
    assert isinstance(layer.quant_method, GGUFLinearMethod)
    assert torch.equal(layer.qweight[:ROWS, : parts[0][1].shape[1]], parts[0][1])
