"""Routed experts on packed weights: each product by the kernel that `policy` names for its type and number of tokens.

Shapes: x [tokens, hidden]; w13 uint8 [experts, 2 * intermediate, bytes of a row], gate rows before up rows; w2 uint8
[experts, hidden, bytes of a row]; topk_weights float32 and topk_ids int32 [tokens, k]. The result is [tokens, hidden] in
x's dtype: the sum over each token's experts of weight * down(silu(gate(x)) * up(x)).
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe import fused_moe
from vllm.utils.torch_utils import direct_register_custom_op
from vllm_gguf_plugin import ops

from glm5_vllm import envs
from glm5_vllm.gguf.file.quant_types import BY_ID, QuantType
from glm5_vllm.products.policy import DOWN, GATE_UP, Kernel, Step, is_dequantised, kernel_for

Pair = tuple[torch.Tensor, torch.Tensor]
Steps = tuple[Step, ...]


class Routing:
    """Which experts the tokens of one call go to; sorted by expert at the first product that needs it."""

    def __init__(self, topk_ids: torch.Tensor, experts: int) -> None:
        self.topk_ids = topk_ids
        self._experts = experts
        self._sorted: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def sorted_for(self, block_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Pairs in blocks of one expert each, the expert of each block, and the number of pairs with padding."""
        if block_size not in self._sorted:
            self._sorted[block_size] = fused_moe.moe_align_block_size(
                self.topk_ids, block_size, self._experts
            )
        return self._sorted[block_size]


def routed_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13_type: int,
    w2_type: int,
    activation: str,
) -> torch.Tensor:
    """What vllm-gguf-plugin's `fused_moe_gguf` computes, by the policy. The module's docstring gives the shapes.

    Raises:
        NotImplementedError: another activation than silu.
    """
    if activation != "silu":
        raise NotImplementedError(
            f"the experts' activation is {activation}; expected silu, the only one of GLM-5. "
            "Serve this model without glm5-vllm."
        )
    types = BY_ID[w13_type], BY_ID[w2_type]
    if is_dequantised(x.shape[0], types, envs.weights()):
        return dequantised_experts(x, (w13, w2), topk_weights, topk_ids, types)
    return packed_experts(x, (w13, w2), topk_weights, topk_ids, types)


def packed_experts(
    x: torch.Tensor,
    packed: Pair,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    types: tuple[QuantType, QuantType],
    steps: tuple[Steps, Steps] = (GATE_UP, DOWN),
) -> torch.Tensor:
    """Both products from the packed weights, each by the kernel that its `steps` name."""
    tokens, k = topk_ids.shape
    routing = Routing(topk_ids, packed[0].shape[0])
    both = _product(x, packed[0], types[0], steps[0], routing)
    gated = torch.empty(tokens * k, both.shape[1] // 2, dtype=x.dtype, device=x.device)
    torch.ops._C.silu_and_mul(gated, both)
    weighted = _product(gated, packed[1], types[1], steps[1], routing).view(tokens, k, -1)
    total = torch.empty_like(x)
    ops.moe_sum(weighted.mul_(topk_weights.view(tokens, k, 1)), total)
    return total


def dequantised_experts(
    x: torch.Tensor,
    packed: Pair,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    types: tuple[QuantType, QuantType],
) -> torch.Tensor:
    """All experts of the layer as floats of x's dtype, for the time of the call, and vLLM's product of floats."""
    gate_up, down = (_floats(blocks, quant, x.dtype) for blocks, quant in zip(packed, types, strict=True))
    return fused_moe.fused_experts(x, gate_up, down, topk_weights, topk_ids)


def _product(
    x: torch.Tensor, packed: torch.Tensor, quant: QuantType, steps: Steps, routing: Routing
) -> torch.Tensor:
    """x [tokens, columns], or a row for each pair [tokens * k, columns], by its experts' rows -> [tokens * k, rows]."""
    tokens, k = routing.topk_ids.shape
    # a row of x serves all of its token's experts, or one
    served = k if x.shape[0] == tokens else 1
    rows = packed.shape[1]
    if kernel_for(steps, tokens, quant) is Kernel.VECTOR:
        return ops.ggml_moe_a8_vec(x, packed, routing.topk_ids, served, quant.type_id, rows, x.shape[0])
    pairs = routing.sorted_for(ops.ggml_moe_get_block_size(quant.type_id))
    return ops.ggml_moe_a8(x, packed, *pairs, quant.type_id, rows, served, x.shape[0])


def _floats(packed: torch.Tensor, quant: QuantType, dtype: torch.dtype) -> torch.Tensor:
    """uint8 [experts, rows, bytes of a row] -> [experts, rows, columns] in dtype."""
    experts, rows, nbytes = packed.shape
    columns = nbytes // quant.block_bytes * quant.block_elements
    flat = ops.ggml_dequantize(packed.view(-1, nbytes), quant.type_id, experts * rows, columns, dtype)
    return flat.view(experts, rows, columns)


def _shape_only(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13_type: int,
    w2_type: int,
    activation: str,
) -> torch.Tensor:
    return torch.empty_like(x)


# an operation of torch's, so that no compiled graph looks inside and fixes the number of tokens
direct_register_custom_op("glm5_routed_experts", routed_experts, fake_impl=_shape_only)
routed_experts_operation = torch.ops.vllm.glm5_routed_experts
