"""Routed experts on packed weights: checks what the kernels assume, picks the configuration, launches; no vLLM.

Everything is sized by the shapes alone, so calls can be captured in CUDA graphs.
"""

from __future__ import annotations

import functools

import torch
import triton

from glm5_vllm.experts.kernels.configs import LaunchConfig, choose
from glm5_vllm.experts.kernels.products import (
    activate_kernel,
    down_kernel,
    gate_up_kernel,
    prepare_kernel,
    sum_kernel,
)
from glm5_vllm.experts.kernels.routing import COUNTED_ALONE, count_kernel, place_kernel
from glm5_vllm.experts.kernels.weights import Constants, constants
from glm5_vllm.experts.layouts import LAYOUTS, SUPERBLOCK, TILE_ROWS
from glm5_vllm.gguf.file.quant_types import QuantType

Pair = tuple[torch.Tensor, torch.Tensor]

_PREPARED_COLUMNS = 2048
_SUMMED_COLUMNS = 1024
# with 64, or fewer warps, the compiler spills
_STEP, _PLACE_WARPS = 32, 8
_CHUNK = 512
# what the interpreter is told it runs on: the table of the smallest card
_INTERPRETED = (8, 9)


class ExpertInputError(ValueError):
    """A tensor does not have the shape or type that the kernels are written for."""


def packed_experts(
    x: torch.Tensor,
    packed: Pair,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    types: tuple[QuantType, QuantType],
    config: LaunchConfig | None = None,
) -> torch.Tensor:
    """The sum over each token's experts of weight * down(silu(gate(x)) * up(x)).

    Args:
        x: bfloat16 or float16 [tokens, hidden], within float16's range.
        packed: what `pack` made of gate and up, and of down.
        topk_weights: float32 [tokens, k].
        topk_ids: int32 [tokens, k]; a pair whose expert does not exist (-1, say) counts nothing.
        types: of gate and up, and of down.
        config: overrides the table (benchmarks and tests).

    Returns:
        [tokens, hidden] in x's type.
    """
    rows, hidden = x.shape
    topk = topk_ids.shape[1]
    experts, intermediate = _checked(x, packed, topk_weights, topk_ids, types)
    total = torch.empty_like(x)
    if rows == 0:
        return total
    config = config or choose(rows, hidden, intermediate, types, _capability(x.device))
    pairs = rows * topk
    routing = sorted_pairs(topk_ids, experts, config)
    blocks = pairs if not config.is_sorted else routing[2].shape[0]

    halves, sums = _floats(x, rows, hidden), _floats(x, rows, hidden // 16)
    grid = rows, triton.cdiv(hidden, _PREPARED_COLUMNS)
    prepare_kernel[grid](x, halves, sums, hidden, _PREPARED_COLUMNS, num_warps=4)

    activations, activation_sums = _floats(x, pairs, intermediate), _floats(x, pairs, intermediate // 16)
    parts = activations
    if config.splits > 1:
        parts = torch.empty(config.splits, pairs, 2, intermediate, dtype=torch.float32, device=x.device)
    tile = config.gate_up
    layout = _constants(types[0])
    gate_up_kernel[blocks * (intermediate // (TILE_ROWS // 2) // tile.tiles), config.splits](
        halves, sums, packed[0], *routing, activations, activation_sums, parts, pairs, experts,
        hidden, intermediate, topk, layout,
        config.block, tile.tiles, tile.warps, tile.stages, config.splits, config.is_sorted,
        num_warps=tile.warps,
    )  # fmt: skip

    if config.splits > 1:
        grid = pairs, intermediate // SUPERBLOCK
        activate_kernel[grid](
            parts, activations, activation_sums, pairs, intermediate, config.splits, num_warps=1
        )

    of_pairs = torch.empty(pairs, hidden, dtype=x.dtype, device=x.device)
    tile = config.down
    layout = _constants(types[1])
    down_kernel[(blocks * (hidden // TILE_ROWS // tile.tiles // config.steps),)](
        activations, activation_sums, packed[1], *routing, of_pairs, experts,
        hidden, intermediate, layout,
        config.block, tile.tiles, tile.warps, tile.stages, config.steps, config.is_sorted,
        num_warps=tile.warps,
    )  # fmt: skip

    grid = rows, triton.cdiv(hidden, _SUMMED_COLUMNS)
    sum_kernel[grid](
        of_pairs, topk_ids, topk_weights, total, experts, hidden, topk, _SUMMED_COLUMNS, num_warps=4
    )
    return total


def most_blocks(pairs: int, block: int, experts: int) -> int:
    """Blocks that sorting can fill: each expert may leave one of its own unfilled."""
    return min(pairs, pairs // block + experts)


def sorted_pairs(
    topk_ids: torch.Tensor, experts: int, config: LaunchConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids, and, where they are sorted, the order of pairs, the blocks [blocks, 3] and the number of blocks."""
    if not config.is_sorted:
        return topk_ids, topk_ids, topk_ids, topk_ids
    pairs, bins = topk_ids.numel(), triton.next_power_of_2(experts)
    is_counted = pairs > COUNTED_ALONE.value
    chunk = _CHUNK if is_counted else _STEP
    chunks = triton.cdiv(pairs, chunk)
    empty = functools.partial(torch.empty, dtype=torch.int32, device=topk_ids.device)
    order, blocks, block_count = empty(pairs), empty(most_blocks(pairs, config.block, experts), 3), empty(1)
    counts = block_count
    if is_counted:
        counts = empty(chunks, bins)
        count_kernel[(chunks,)](topk_ids, counts, pairs, experts, bins, chunk, num_warps=4)
    place_kernel[(chunks,)](
        topk_ids, counts, order, blocks, block_count, pairs,
        experts, bins, config.block, chunk, _STEP, is_counted, num_warps=_PLACE_WARPS,
    )  # fmt: skip
    return topk_ids, order, blocks, block_count


def _floats(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.float16, device=x.device)


@functools.cache
def _constants(quant: QuantType) -> Constants:
    return constants(LAYOUTS[quant])


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else _INTERPRETED


def _checked(
    x: torch.Tensor,
    packed: Pair,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    types: tuple[QuantType, QuantType],
) -> tuple[int, int]:
    """Number of experts and intermediate size."""
    rows, hidden = x.shape
    experts, tiles = packed[0].shape[:2]
    intermediate = tiles * TILE_ROWS // 2
    of_gate_up = experts, tiles, hidden // SUPERBLOCK, LAYOUTS[types[0]].words
    of_down = experts, hidden // TILE_ROWS, intermediate // SUPERBLOCK, LAYOUTS[types[1]].words
    _expect("packed gate and up", packed[0], of_gate_up, torch.int32)
    _expect("packed down", packed[1], of_down, torch.int32)
    _expect("topk_ids", topk_ids, (rows, topk_ids.shape[1]), torch.int32)
    _expect("topk_weights", topk_weights, tuple(topk_ids.shape), torch.float32)
    _expect("x", x, (rows, hidden), *(torch.bfloat16, torch.float16))
    return experts, intermediate


def _expect(name: str, tensor: torch.Tensor, shape: tuple[int, ...], *dtypes: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype not in dtypes or not tensor.is_contiguous():
        raise ExpertInputError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}; expected contiguous "
            f"{' or '.join(str(dtype) for dtype in dtypes)} {list(shape)}"
        )
