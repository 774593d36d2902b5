"""What a launch takes: the query, the KV rows and the index. Each checks what the kernels assume of its tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from glm5_vllm.attention.kernels.configs import KVFormat

LATENT, ROPE = 512, 64
GROUPED_ROW_BYTES = 656
ALIGNED_BYTES = 16


class KernelInputError(ValueError):
    """A tensor does not have the shape, type or stride that the kernels are written for."""


@dataclass(frozen=True)
class Query:
    """The absorbed query: `latent` [rows, heads, 512], `rope` [rows, heads, 64], and the factor on the scores.

    Raises:
        KernelInputError: another shape, or strides that the kernels' reads of 16 bytes do not allow.
    """

    latent: torch.Tensor
    rope: torch.Tensor
    scale: float

    def __post_init__(self) -> None:
        shapes = (tuple(self.latent.shape), tuple(self.rope.shape))
        rows, heads = shapes[0][:2]
        if shapes != ((rows, heads, LATENT), (rows, heads, ROPE)):
            raise KernelInputError(
                f"sparse MLA got queries of shape {shapes[0]} and {shapes[1]}; expected (rows, heads, {LATENT}) and "
                f"(rows, heads, {ROPE}). Pass the absorbed latent query and its rope part."
            )
        for part in (self.latent, self.rope):
            if part.stride(2) != 1 or part.stride(0) % 16 or part.stride(1) % 16:
                raise KernelInputError(
                    f"sparse MLA got a query with strides {part.stride()}; expected multiples of 16 and 1. "
                    "Make the query contiguous."
                )

    @classmethod
    def of(cls, q: torch.Tensor | tuple[torch.Tensor, torch.Tensor], scale: float) -> Query:
        """From one tensor [rows, heads, 576], or from its latent and rope parts."""
        latent, rope = (q[..., :LATENT], q[..., LATENT:]) if isinstance(q, torch.Tensor) else q
        return cls(latent, rope, scale)

    @property
    def rows(self) -> int:
        return self.latent.shape[0]

    @property
    def heads(self) -> int:
        return self.latent.shape[1]

    def __getitem__(self, part: slice) -> Query:
        return Query(self.latent[part], self.rope[part], self.scale)


@dataclass(frozen=True)
class KVRows:
    """Flat cache rows [slots, 576], or uint8 [slots, 656]; rows may lie apart, columns may not.

    `scale` is what a float8_e4m3fn cache is multiplied with.

    Raises:
        KernelInputError: a type that no kernel reads, or rows that are not aligned to 16 bytes.
    """

    rows: torch.Tensor
    scale: float = 1.0

    def __post_init__(self) -> None:
        kv_format_of(self.rows)
        if self.rows.stride(1) != 1 or self.row_bytes % ALIGNED_BYTES:
            raise KernelInputError(
                f"sparse MLA got KV rows {self.row_bytes} bytes apart and values {self.rows.stride(1)} apart; expected "
                f"a multiple of {ALIGNED_BYTES} bytes and 1. Pass flat cache rows."
            )

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.rows.stride(0) * self.rows.element_size()

    @property
    def format(self) -> KVFormat:
        return kv_format_of(self.rows)


@dataclass(frozen=True)
class Slots:
    """Physical KV rows of each query row; they may follow any pattern.

    `slots` int32 [rows, width]: an entry counts if its column is below the row's count and it is not negative.
    `counts` int32 [rows].
    """

    slots: torch.Tensor
    counts: torch.Tensor

    def __post_init__(self) -> None:
        _check_rows("slots", self.slots, 2)
        _check_rows("counts", self.counts, 1)

    @property
    def entries(self) -> torch.Tensor:
        return self.slots

    def __getitem__(self, part: slice) -> Slots:
        return Slots(self.slots[part], self.counts[part])


@dataclass(frozen=True)
class Positions:
    """Positions inside each row's request; the launch turns them into KV rows through the block table.

    `positions` int32 [rows, width]: negative means none, and so does a position outside the block table.
    `block_table` int32 [requests, max_blocks]; `request_of_row` int32 [rows]; `block_size` tokens a block;
    `block_stride_rows` rows of the flat cache from one block to the next.
    """

    positions: torch.Tensor
    block_table: torch.Tensor
    request_of_row: torch.Tensor
    block_size: int
    block_stride_rows: int

    def __post_init__(self) -> None:
        _check_rows("positions", self.positions, 2)
        _check_rows("block_table", self.block_table, 2)
        _check_rows("request_of_row", self.request_of_row, 1)

    @property
    def entries(self) -> torch.Tensor:
        return self.positions

    def __getitem__(self, part: slice) -> Positions:
        request_of_row = self.request_of_row[part]
        return Positions(
            self.positions[part], self.block_table, request_of_row, self.block_size, self.block_stride_rows
        )


def kv_format_of(rows: torch.Tensor) -> KVFormat:
    """The format of flat KV rows [slots, 576] or, as uint8, [slots, 656].

    Raises:
        KernelInputError: no kernel reads the type.
    """
    if rows.dtype == torch.uint8 and rows.shape[-1] == GROUPED_ROW_BYTES:
        return KVFormat.FP8_GROUPED
    if rows.dtype == torch.float8_e4m3fn:
        return KVFormat.FP8
    if rows.dtype in (torch.bfloat16, torch.float16, torch.float32):
        return KVFormat.WIDE
    raise KernelInputError(
        f"sparse MLA cannot read KV rows of {rows.dtype} with {rows.shape[-1]} columns; expected 576 columns of "
        "bfloat16, float16 or float8_e4m3fn, or uint8 with 656. Choose another --kv-cache-dtype."
    )


def _check_rows(name: str, tensor: torch.Tensor, dim: int) -> None:
    if tensor.dtype != torch.int32 or tensor.dim() != dim or tensor.stride(-1) != 1:
        raise KernelInputError(
            f"sparse MLA got {name} of {tensor.dtype}, shape {tuple(tensor.shape)} and strides {tensor.stride()}; "
            f"expected contiguous int32 rows of {dim} dimensions. Convert them before the call."
        )
