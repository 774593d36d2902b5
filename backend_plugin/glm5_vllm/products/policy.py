"""Which kernel multiplies by which experts, as data. Measured on an H200 by tests/bench/gguf_products.py.

README.md beside this file has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from glm5_vllm.envs import Weights
from glm5_vllm.gguf.file.quant_types import BY_NAME, QuantType


class Kernel(StrEnum):
    """How a layer's routed experts are multiplied."""

    VECTOR = "vector"
    """ggml_moe_a8_vec: a block for each row of weights of each pair of token and expert."""
    TILED = "tiled"
    """ggml_moe_a8: pairs sorted by expert, several of one expert a block."""


@dataclass(frozen=True, slots=True)
class Step:
    """From `rows` tokens on, `kernel`."""

    rows: int
    kernel: Kernel


# the types that have the tiled kernel; the others have the vector kernel alone
TILED_TYPES = frozenset(BY_NAME[name] for name in ("Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"))

# gate and up have few rows of many columns, down has many rows of few columns: a block of the vector kernel has next
# to nothing to do there (256 columns on each of 8 ranks)
GATE_UP = (Step(1, Kernel.VECTOR), Step(32, Kernel.TILED))
DOWN = (Step(1, Kernel.TILED),)

# from these many tokens on, dequantising a layer's experts and multiplying floats takes less time
DEQUANTISED_FROM = 1024
DEQUANTISED_FROM_WITHOUT_TILED = 128


def is_dequantised(rows: int, types: tuple[QuantType, QuantType], weights: Weights) -> bool:
    """Whether `rows` tokens are multiplied by a layer's experts in float, of `types` (gate and up, down)."""
    has_tiled = TILED_TYPES.issuperset(types)
    least = DEQUANTISED_FROM if has_tiled else DEQUANTISED_FROM_WITHOUT_TILED
    return weights is Weights.SPEED and rows >= least


def kernel_for(steps: tuple[Step, ...], rows: int, quant: QuantType) -> Kernel:
    """The kernel of one product (`GATE_UP` or `DOWN`) for `rows` tokens and weights of type `quant`."""
    if quant not in TILED_TYPES:
        return Kernel.VECTOR
    return max((step for step in steps if step.rows <= max(rows, 1)), key=lambda step: step.rows).kernel
