"""Launchers of the kernels: they check what the kernels assume, pick the configuration and never touch vLLM.

Two entries: `attend_slots` takes any table of physical KV rows (the general sparse pattern), `attend_positions`
takes request-local positions and turns them into rows through a block table inside the same launch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import triton

from glm5_vllm.attention.kernels.configs import (
    BATCH_INVARIANT_SPLITS,
    MAX_SPLITS,
    KVFormat,
    LaunchConfig,
    choose,
)
from glm5_vllm.attention.kernels.sparse_mla import attend_kernel
from glm5_vllm.attention.kernels.sparse_mla_fp8 import attend_fp8_kernel
from glm5_vllm.attention.kernels.splits import merge_kernel

LATENT, ROPE = 512, 64
GROUPED_ROW_BYTES = 656
ALIGNED_BYTES = 16
_LOG2_E = math.log2(math.e)
_MERGE_COLUMNS = 128
_MOST_HEADS = 64  # of one program
# what the interpreter is told it runs on: the table of the smallest card that reads every format
_INTERPRETED = ((8, 9), 128)

Query = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class KernelInputError(ValueError):
    """A tensor does not have the shape, type or stride that the kernels are written for."""


@dataclass(frozen=True)
class Workspace:
    """Scratch of fixed address: parts of split rows, and the slots of converted positions.

    `parts` float32 [entries, 512], `part_lse` float32 [entries], `slots` int32 [slot rows, width]. One launch uses it
    at a time: launches that share it belong on one stream.
    """

    parts: torch.Tensor
    part_lse: torch.Tensor
    slots: torch.Tensor

    @classmethod
    def create(cls, heads: int, width: int, slot_rows: int, device: torch.device) -> Workspace:
        """Room for every configuration of the table at `heads` heads, and for `slot_rows` converted rows.

        Splits stop where every multiprocessor has a program; batch invariance takes its rows in chunks of what fits.
        """
        _, multiprocessors = _device(device)
        entries = max(multiprocessors * _MOST_HEADS, MAX_SPLITS * heads, BATCH_INVARIANT_SPLITS * heads * 4)
        return cls(
            parts=torch.empty(entries, LATENT, dtype=torch.float32, device=device),
            part_lse=torch.empty(entries, dtype=torch.float32, device=device),
            slots=torch.empty(slot_rows, width, dtype=torch.int32, device=device),
        )

    @property
    def nbytes(self) -> int:
        return self.parts.nbytes + self.part_lse.nbytes + self.slots.nbytes


def configuration(
    rows: int, heads: int, width: int, kv_format: KVFormat, device: torch.device, batch_invariant: bool
) -> LaunchConfig:
    """What a launch of this shape takes from the table on this device."""
    capability, multiprocessors = _device(device)
    return choose(rows, heads, width, kv_format, capability, multiprocessors, batch_invariant)


def kv_format_of(kv: torch.Tensor) -> KVFormat:
    """The format of flat KV rows [slots, 576] or, as uint8, [slots, 656]."""
    if kv.dtype == torch.uint8 and kv.shape[-1] == GROUPED_ROW_BYTES:
        return KVFormat.FP8_GROUPED
    if kv.dtype == torch.float8_e4m3fn:
        return KVFormat.FP8
    if kv.dtype in (torch.bfloat16, torch.float16, torch.float32):
        return KVFormat.WIDE
    raise KernelInputError(
        f"sparse MLA cannot read KV rows of {kv.dtype} with {kv.shape[-1]} columns; expected 576 columns of bfloat16, "
        "float16 or float8_e4m3fn, or uint8 with 656. Choose another --kv-cache-dtype."
    )


def attend_slots(
    q: Query,
    kv: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    scale: float,
    *,
    workspace: Workspace,
    kv_scale: float = 1.0,
    batch_invariant: bool = False,
    config: LaunchConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from each row of q to the KV rows its slots name; the slots may follow any pattern.

    Args:
        q: [rows, heads, 576], or its latent [rows, heads, 512] and rope [rows, heads, 64] parts.
        kv: [num_slots, 576], or uint8 [num_slots, 656]; rows may lie apart, columns may not.
        slots: int32 [rows, width]; an entry counts if its column is below the row's count and it is not negative.
        counts: int32 [rows].
        scale: factor on the scores.
        workspace: see Workspace.
        kv_scale: what a float8_e4m3fn cache is multiplied with.
        batch_invariant: give each row the same bits whatever rows stand beside it.
        config: overrides the table (benchmarks and tests).

    Returns:
        out [rows, heads, 512] in q's type and lse float32 [rows, heads] (natural logarithm); a row without a valid
        entry gives zeros and -inf.
    """
    _check_rows("slots", slots, 2)
    _check_rows("counts", counts, 1)
    return _launch(
        q, kv, slots, scale, workspace, kv_scale, batch_invariant, config, counts=counts, block_size=0
    )


def attend_positions(
    q: Query,
    kv: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    request_of_row: torch.Tensor,
    block_size: int,
    block_stride_rows: int,
    scale: float,
    *,
    workspace: Workspace,
    kv_scale: float = 1.0,
    batch_invariant: bool = False,
    config: LaunchConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend_slots` for positions inside each row's request: the block table is applied in the same launch.

    Args:
        positions: int32 [rows, width]; negative means none, and so does a position outside the block table.
        block_table: int32 [requests, max_blocks].
        request_of_row: int32 [rows].
        block_size: tokens per block.
        block_stride_rows: rows of the flat cache from one block to the next.
    """
    for name, tensor, dim in (
        ("positions", positions, 2),
        ("block_table", block_table, 2),
        ("request_of_row", request_of_row, 1),
    ):
        _check_rows(name, tensor, dim)
    if positions.shape[0] > workspace.slots.shape[0] or positions.shape[1] > workspace.slots.shape[1]:
        raise KernelInputError(
            f"sparse MLA got {tuple(positions.shape)} positions; expected at most {tuple(workspace.slots.shape)}. "
            "Create the workspace for more rows, or convert the positions before the call."
        )
    return _launch(
        q,
        kv,
        positions,
        scale,
        workspace,
        kv_scale,
        batch_invariant,
        config,
        block_table=block_table,
        request_of_row=request_of_row,
        block_size=block_size,
        block_stride_rows=block_stride_rows,
    )


def _launch(
    q: Query,
    kv: torch.Tensor,
    index: torch.Tensor,
    scale: float,
    workspace: Workspace,
    kv_scale: float,
    batch_invariant: bool,
    config: LaunchConfig | None,
    *,
    counts: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    request_of_row: torch.Tensor | None = None,
    block_size: int,
    block_stride_rows: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    q_latent, q_rope = (q[..., :LATENT], q[..., LATENT:]) if isinstance(q, torch.Tensor) else q
    _check_query(q_latent, q_rope, index)
    kv_format = kv_format_of(kv)
    row_bytes = kv.stride(0) * kv.element_size()
    if kv.stride(1) != 1 or row_bytes % ALIGNED_BYTES:
        raise KernelInputError(
            f"sparse MLA got KV rows {row_bytes} bytes apart and values {kv.stride(1)} apart; expected a multiple of "
            f"{ALIGNED_BYTES} bytes and 1. Pass flat cache rows."
        )
    rows, heads, _ = q_latent.shape
    out = torch.empty(rows, heads, LATENT, dtype=q_latent.dtype, device=q_latent.device)
    lse = torch.empty(rows, heads, dtype=torch.float32, device=q_latent.device)
    if rows == 0:
        return out, lse
    if config is None:
        config = configuration(rows, heads, index.shape[1], kv_format, q_latent.device, batch_invariant)
    rows_at_once = rows
    if config.splits > 1:
        fitting = workspace.part_lse.shape[0] // (config.splits * heads)
        # chunks that start at a multiple of 16 bytes of counts take the kernel already compiled
        rows_at_once = rows if fitting >= rows else max(fitting // 4 * 4, min(fitting, 1))
    if rows_at_once == 0:
        raise KernelInputError(
            f"sparse MLA got {heads} heads with {config.splits} splits; expected at most "
            f"{workspace.part_lse.shape[0]} parts. Create the workspace for this number of heads."
        )
    if kv_format is not KVFormat.WIDE:
        kv = kv.view(torch.int32)
    unused = workspace.slots
    for start in range(0, rows, rows_at_once):
        part = slice(start, min(start + rows_at_once, rows))
        _launch_rows(
            q_latent[part],
            q_rope[part],
            kv,
            index[part],
            unused if counts is None else counts[part],
            unused if block_table is None else block_table,
            unused if request_of_row is None else request_of_row[part],
            block_size,
            block_stride_rows,
            out[part],
            lse[part],
            scale * kv_scale * _LOG2_E,
            kv_scale,
            kv_format,
            workspace,
            config,
        )
    return out, lse


def _launch_rows(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    kv: torch.Tensor,
    index: torch.Tensor,
    counts: torch.Tensor,
    block_table: torch.Tensor,
    request_of_row: torch.Tensor,
    block_size: int,
    block_stride_rows: int,
    out: torch.Tensor,
    lse: torch.Tensor,
    score_scale: float,
    value_scale: float,
    kv_format: KVFormat,
    workspace: Workspace,
    config: LaunchConfig,
) -> None:
    rows, heads, _ = q_latent.shape
    width = index.shape[1]
    # the interpreter knows no launch attributes
    overlap = config.overlap_launches and q_latent.is_cuda
    attributes = {"launch_pdl": True} if overlap else {}
    split_width = triton.cdiv(triton.cdiv(width, config.tile.slots), config.splits) * config.tile.slots
    kernel, constants = attend_kernel, {}
    if kv_format is not KVFormat.WIDE:
        grouped = kv_format is KVFormat.FP8_GROUPED
        kernel, constants = attend_fp8_kernel, {"GROUPED": grouped, "INTERPRETED": not q_latent.is_cuda}
    kernel[(rows * config.splits * triton.cdiv(heads, config.tile.heads),)](
        q_latent,
        q_rope,
        kv,
        index,
        counts,
        block_table,
        request_of_row,
        workspace.slots,
        out,
        lse,
        workspace.parts,
        workspace.part_lse,
        score_scale,
        value_scale,
        heads,
        width,
        block_table.shape[1],
        block_stride_rows,
        q_latent.stride(0),
        q_latent.stride(1),
        q_rope.stride(0),
        q_rope.stride(1),
        kv.stride(0) * kv.element_size() // ALIGNED_BYTES,
        index.stride(0),
        block_table.stride(0),
        BLOCK_SIZE=block_size,
        SPLITS=config.splits,
        BH=config.tile.heads,
        BN=config.tile.slots,
        BC=min(1024, triton.next_power_of_2(split_width)),
        STAGES=config.tile.stages,
        PDL=overlap,
        num_warps=config.tile.warps,
        **constants,
        **attributes,
    )
    if config.splits > 1:
        merge_kernel[(rows * heads, LATENT // _MERGE_COLUMNS)](
            workspace.parts,
            workspace.part_lse,
            out,
            lse,
            heads,
            SPLITS=config.splits,
            BD=_MERGE_COLUMNS,
            PDL=overlap,
            num_warps=2,
            **attributes,
        )


@functools.lru_cache(maxsize=16)
def _device(device: torch.device) -> tuple[tuple[int, int], int]:
    """Compute capability and multiprocessors of a device."""
    if device.type != "cuda":
        return _INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), properties.multi_processor_count


def _check_query(q_latent: torch.Tensor, q_rope: torch.Tensor, index: torch.Tensor) -> None:
    """The kernels read 16 bytes at a time: last dimensions are contiguous, other strides are multiples of 16."""
    shapes = (tuple(q_latent.shape), tuple(q_rope.shape))
    rows, heads = index.shape[0], q_latent.shape[1]
    if shapes != ((rows, heads, LATENT), (rows, heads, ROPE)):
        raise KernelInputError(
            f"sparse MLA got queries of shape {shapes[0]} and {shapes[1]} for {rows} index rows; expected "
            f"({rows}, heads, {LATENT}) and ({rows}, heads, {ROPE}). Pass the absorbed latent query and its rope part."
        )
    for part in (q_latent, q_rope):
        if part.stride(2) != 1 or part.stride(0) % 16 or part.stride(1) % 16:
            raise KernelInputError(
                f"sparse MLA got a query with strides {part.stride()}; expected multiples of 16 and 1. "
                "Make the query contiguous."
            )


def _check_rows(name: str, tensor: torch.Tensor, dim: int) -> None:
    if tensor.dtype != torch.int32 or tensor.dim() != dim or tensor.stride(-1) != 1:
        raise KernelInputError(
            f"sparse MLA got {name} of {tensor.dtype}, shape {tuple(tensor.shape)} and strides {tensor.stride()}; "
            f"expected contiguous int32 rows of {dim} dimensions. Convert them before the call."
        )
