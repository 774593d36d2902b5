"""Float32 torch reference of sparse MLA over a virtual block table. Never imports vLLM or Triton.

The kernels are tested against it, and the CPU profile serves with it.
"""

from __future__ import annotations

import torch

# rows of q computed at once: bounds the gathered [chunk, width, 576] float32 block to a few tens of MB
_ROWS_AT_ONCE = 16


def physical_slots(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    request_of_row: torch.Tensor,
    block_size: int,
    block_stride_rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn request-local token positions into physical KV slots: the virtual block table of page size 1.

    Args:
        positions: int [rows, width], token positions inside the row's request; negative means none.
        block_table: int [requests, max_blocks], physical block of each logical block.
        request_of_row: int [rows], the request each row belongs to.
        block_size: tokens per block.
        block_stride_rows: rows of the flat cache from one block to the next; `block_size` where layers do not
            interleave.

    Returns:
        slots int32 [rows, width], valid ones first in their given order and -1 after them, and counts int32 [rows].
        A position whose block lies outside the table is none, never slot 0.
    """
    stride = block_size if block_stride_rows is None else block_stride_rows
    position = positions.long()
    block = position.clamp(min=0) // block_size
    is_valid = (position >= 0) & (block < block_table.shape[1])
    physical = block_table.long()[request_of_row.long()[:, None], block.clamp(max=block_table.shape[1] - 1)]
    slots = torch.where(is_valid, physical * stride + position % block_size, -1)
    # a stable sort by "is none" keeps the order of the valid ones
    order = torch.sort((~is_valid).to(torch.int8), dim=1, stable=True).indices
    return slots.gather(1, order).to(torch.int32), is_valid.sum(1).to(torch.int32)


def sparse_mla(
    q: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    scale: float,
    *,
    value_dim: int = 512,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from each row of q to the KV rows its slots name.

    out = softmax(scale * q . kv[slots]) @ kv[slots, :value_dim], and lse = logsumexp(scale * q . kv[slots]) with the
    natural logarithm (multi-head latent attention after weight absorption: the latent is both key and value).

    Args:
        q: [rows, heads, dim], latent and rope parts side by side.
        kv: [num_slots, dim], the flat KV cache of one layer.
        slots: int [rows, width]; an entry counts if its column is below the row's count and it is not negative.
        counts: int [rows].
        scale: factor on the scores.
        value_dim: how many leading columns of a KV row are its value.

    Returns:
        out float32 [rows, heads, value_dim] and lse float32 [rows, heads]; a row without a valid entry gives zeros
        and -inf.
    """
    rows, heads, _ = q.shape
    out = torch.zeros(rows, heads, value_dim, dtype=torch.float32, device=q.device)
    lse = torch.full((rows, heads), float("-inf"), dtype=torch.float32, device=q.device)
    column = torch.arange(slots.shape[1], device=q.device)
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        is_valid = (column < counts[part, None]) & (slots[part] >= 0)
        gathered = kv[slots[part].long().clamp(min=0)].float()
        # an unselected slot may hold NaN, and 0 * NaN is NaN: clear it before any product
        gathered = torch.where(is_valid[..., None], gathered, 0.0)
        scores = torch.einsum("rhd,rwd->rhw", q[part].float(), gathered) * scale
        scores = scores.masked_fill(~is_valid[:, None], float("-inf"))
        part_lse = scores.logsumexp(-1)
        weights = torch.exp(scores - torch.where(part_lse.isinf(), 0.0, part_lse)[..., None])
        out[part] = torch.einsum("rhw,rwd->rhd", weights, gathered[..., :value_dim])
        lse[part] = part_lse
    return out, lse
