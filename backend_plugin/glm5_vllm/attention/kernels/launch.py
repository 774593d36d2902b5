"""The launcher of the kernels: picks the configuration, splits the rows and never touches vLLM.

One entry, `attend`. Its index is either `Slots`, any table of physical KV rows (the general sparse pattern), or
`Positions` inside each row's request, which the same launch turns into rows through a block table.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton

from glm5_vllm.attention.kernels.configs import (
    BATCH_INVARIANT_SPLITS,
    MAX_SPLITS,
    KVFormat,
    LaunchConfig,
    choose,
)
from glm5_vllm.attention.kernels.inputs import (
    ALIGNED_BYTES,
    LATENT,
    KernelInputError,
    KVRows,
    Positions,
    Query,
    Slots,
)
from glm5_vllm.attention.kernels.sparse_mla import attend_kernel
from glm5_vllm.attention.kernels.sparse_mla_fp8 import attend_fp8_kernel
from glm5_vllm.attention.kernels.splits import merge_kernel

_LOG2_E = math.log2(math.e)
_MERGE_COLUMNS = 128
_MOST_HEADS = 64  # of one program
# what the interpreter is told it runs on: the table of the smallest card that reads every format
_INTERPRETED = ((8, 9), 128)


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


class Attended(NamedTuple):
    """`out` [rows, heads, 512] in the query's type, `lse` float32 [rows, heads] (natural logarithm)."""

    out: torch.Tensor
    lse: torch.Tensor


def attend(
    query: Query,
    kv: KVRows,
    index: Slots | Positions,
    workspace: Workspace,
    *,
    batch_invariant: bool = False,
    config: LaunchConfig | None = None,
) -> Attended:
    """Attend from each row of the query to the KV rows that its row of the index names.

    Args:
        query: see Query.
        kv: see KVRows.
        index: as many rows as the query.
        workspace: see Workspace.
        batch_invariant: give each row the same bits whatever rows stand beside it.
        config: overrides the table (benchmarks and tests).

    Returns:
        The result; a row without a valid entry gives zeros and -inf.

    Raises:
        KernelInputError: the index has other rows than the query, or the workspace is too small.
    """
    _check_index(query, index, workspace)
    rows, heads = query.rows, query.heads
    device = query.latent.device
    result = Attended(
        torch.empty(rows, heads, LATENT, dtype=query.latent.dtype, device=device),
        torch.empty(rows, heads, dtype=torch.float32, device=device),
    )
    if rows == 0:
        return result
    if config is None:
        width = index.entries.shape[1]
        config = configuration(rows, heads, width, kv.format, device, batch_invariant)
    rows_at_once = _rows_at_once(query, workspace, config)
    for start in range(0, rows, rows_at_once):
        part = slice(start, min(start + rows_at_once, rows))
        part_result = Attended(result.out[part], result.lse[part])
        _launch(query[part], kv, index[part], part_result, workspace, config)
    return result


def _rows_at_once(query: Query, workspace: Workspace, config: LaunchConfig) -> int:
    """Rows whose split parts fit the workspace."""
    if config.splits == 1:
        return query.rows
    fitting = workspace.part_lse.shape[0] // (config.splits * query.heads)
    if fitting == 0:
        raise KernelInputError(
            f"sparse MLA got {query.heads} heads with {config.splits} splits; expected at most "
            f"{workspace.part_lse.shape[0]} parts. Create the workspace for this number of heads."
        )
    # chunks that start at a multiple of 16 bytes of counts take the kernel already compiled
    return query.rows if fitting >= query.rows else max(fitting // 4 * 4, 1)


class _IndexArguments(NamedTuple):
    """The index as the kernels take it; BLOCK_SIZE 0 says that the entries are slots."""

    entries: torch.Tensor
    counts: torch.Tensor
    block_table: torch.Tensor
    request_of_row: torch.Tensor
    block_size: int
    block_stride_rows: int


def _arguments(index: Slots | Positions, unused: torch.Tensor) -> _IndexArguments:
    """`unused` stands for the tensors that this kind of index does not have."""
    if isinstance(index, Slots):
        return _IndexArguments(index.slots, index.counts, unused, unused, 0, 0)
    return _IndexArguments(
        index.positions,
        unused,
        index.block_table,
        index.request_of_row,
        index.block_size,
        index.block_stride_rows,
    )


def _launch(
    query: Query,
    kv: KVRows,
    index: Slots | Positions,
    result: Attended,
    workspace: Workspace,
    config: LaunchConfig,
) -> None:
    entries, counts, block_table, request_of_row, block_size, block_stride_rows = _arguments(
        index, workspace.slots
    )
    width = entries.shape[1]
    on_card = query.latent.is_cuda
    # the interpreter knows no launch attributes
    overlap = config.overlap_launches and on_card
    attributes = {"launch_pdl": True} if overlap else {}
    split_width = triton.cdiv(triton.cdiv(width, config.tile.slots), config.splits) * config.tile.slots
    kernel, constants, kv_rows = attend_kernel, {}, kv.rows
    if kv.format is not KVFormat.WIDE:
        grouped = kv.format is KVFormat.FP8_GROUPED
        kernel, constants = attend_fp8_kernel, {"GROUPED": grouped, "INTERPRETED": not on_card}
        kv_rows = kv.rows.view(torch.int32)
    kernel[(query.rows * config.splits * triton.cdiv(query.heads, config.tile.heads),)](
        query.latent,
        query.rope,
        kv_rows,
        entries,
        counts,
        block_table,
        request_of_row,
        workspace.slots,
        result.out,
        result.lse,
        workspace.parts,
        workspace.part_lse,
        query.scale * kv.scale * _LOG2_E,
        kv.scale,
        query.heads,
        width,
        block_table.shape[1],
        block_stride_rows,
        query.latent.stride(0),
        query.latent.stride(1),
        query.rope.stride(0),
        query.rope.stride(1),
        kv.row_bytes // ALIGNED_BYTES,
        entries.stride(0),
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
        _merge(result, workspace, config, overlap, attributes)


def _merge(
    result: Attended, workspace: Workspace, config: LaunchConfig, overlap: bool, attributes: dict[str, bool]
) -> None:
    """Join the parts of each split row."""
    rows, heads = result.lse.shape
    merge_kernel[(rows * heads, LATENT // _MERGE_COLUMNS)](
        workspace.parts,
        workspace.part_lse,
        result.out,
        result.lse,
        heads,
        SPLITS=config.splits,
        BD=_MERGE_COLUMNS,
        PDL=overlap,
        num_warps=2,
        **attributes,
    )


def _check_index(query: Query, index: Slots | Positions, workspace: Workspace) -> None:
    rows, width = index.entries.shape
    if rows != query.rows:
        raise KernelInputError(
            f"sparse MLA got queries of shape {tuple(query.latent.shape)} for {rows} index rows; expected one index "
            "row a query row. Pass the same rows of both."
        )
    room = tuple(workspace.slots.shape)
    if isinstance(index, Positions) and (rows > room[0] or width > room[1]):
        raise KernelInputError(
            f"sparse MLA got {(rows, width)} positions; expected at most {room}. "
            "Create the workspace for more rows, or convert the positions before the call."
        )


@functools.lru_cache(maxsize=16)
def _device(device: torch.device) -> tuple[tuple[int, int], int]:
    """Compute capability and multiprocessors of a device."""
    if device.type != "cuda":
        return _INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), properties.multi_processor_count
