"""Tiles, warps and splits of the kernels as a table per architecture, and the one rule that reads it.

No autotuning: the same shape takes the same entry in every process, so the same input gives the same bits after a
restart. The measurements beside the entries are explained in ../README.md.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum

import triton

MAX_SPLITS = 64
# row counts measured at warm-up and written to the attestation
ATTESTED_ROWS = (1, 8, 64, 512)
# up to here positions become slots inside the attention launch. H200, 8 heads, time beside vLLM's converter and ready
# slots: 0.80 to 0.83 at 1 row, 0.95 to 0.96 at 64, 0.96 to 0.98 at 128; at 256 and 512 rows 1.01 with a wide cache, 0.98
# to 0.99 with fp8, 1.06 with fp8_ds_mla. Layers that share an indexer share vLLM's conversion too: never tried here
FUSED_ROWS = 1024


class KVFormat(Enum):
    """How one row of the KV cache is stored."""

    WIDE = "wide"  # 576 values of 16 or 32 bits
    FP8 = "fp8"  # 576 float8_e4m3 values, one scale for the whole tensor
    # 656 bytes: 512 float8_e4m3, four float32 scales, 64 values of the activation's type
    FP8_GROUPED = "fp8_ds_mla"


@dataclass(frozen=True)
class Tile:
    """Slots a program gathers at once, depth of the software pipeline, warps of a program, and heads it computes.

    Heads are rows of the matrix instruction with a wide cache, 16 at least. With an fp8 cache they are its columns, 8 at
    least, and the kernel is written for 4 warps.
    """

    slots: int
    stages: int
    warps: int
    heads: int = 16


@dataclass(frozen=True)
class LaunchConfig:
    """Everything about a launch that is not in its tensors."""

    tile: Tile
    splits: int
    overlap_launches: bool  # programmatic dependent launch, from SM90 up


@dataclass(frozen=True)
class Architecture:
    """The tiles of one architecture and KV format.

    `by_splits` holds (least splits, tile), tried in order. `many_rows` serves where there are more programs than
    multiprocessors, and `many_heads` more than 32 heads from `MANY_HEADS_ROWS` rows up. Where two programs share a
    multiprocessor well, up to `doubled_splits` splits are doubled. `few_heads` is the table of up to `FEW_HEADS` heads.
    """

    by_splits: tuple[tuple[int, Tile], ...]
    many_rows: Tile
    many_heads: Tile | None = None
    doubled_splits: int = 0
    few_heads: Architecture | None = None


MANY_HEADS_ROWS = 16
FEW_HEADS = 8

# measured on an H200 with 8 heads (tests/results/attention_tiles_h200.csv): each entry was the fastest tried, or within
# 3% of it. More heads with an fp8 cache were not timed: theirs are the tiles that were within 6% of the fastest where
# blocks of 16 were half empty
_SM90_FP8 = Architecture(
    by_splits=((64, Tile(32, 3, 4)), (32, Tile(64, 3, 4)), (1, Tile(32, 3, 4))),
    many_rows=Tile(32, 3, 4),
    doubled_splits=8,
    few_heads=Architecture(
        by_splits=((64, Tile(32, 3, 4, heads=8)), (1, Tile(64, 3, 4, heads=8))),
        many_rows=Tile(64, 3, 4, heads=8),
        doubled_splits=8,
    ),
)
_SM90 = {
    KVFormat.WIDE: Architecture(
        by_splits=((16, Tile(32, 5, 4)), (1, Tile(64, 5, 4))),
        many_rows=Tile(64, 3, 4),
        many_heads=Tile(64, 3, 8, heads=64),
    ),
    KVFormat.FP8: _SM90_FP8,
    KVFormat.FP8_GROUPED: _SM90_FP8,
}


def _fp8_of_32_slots(doubled_splits: int = 0) -> Architecture:
    """The fp8 tile that fits every card, for few heads and for more."""
    few, more = Tile(32, 3, 4, heads=8), Tile(32, 3, 4)
    few_heads = Architecture(((1, few),), few, doubled_splits=doubled_splits)
    return Architecture(((1, more),), more, doubled_splits=doubled_splits, few_heads=few_heads)


# never timed. The tile of 64 heads takes more shared memory there than a program has, and others of 64 slots spill
_SM100 = {
    KVFormat.WIDE: Architecture(((1, Tile(32, 5, 4)),), Tile(64, 3, 4)),
    KVFormat.FP8: _fp8_of_32_slots(doubled_splits=8),
    KVFormat.FP8_GROUPED: _fp8_of_32_slots(doubled_splits=8),
}
# never timed on these cards: 99 KiB of shared memory a program (SM86, SM89, SM120) hold two tiles of 32 slots once. With
# one program a multiprocessor, as there, an H200 takes 1.19 times as long for this fp8 tile as for that of 64 slots,
# which does not fit here
_SMALL_MEMORY = {
    KVFormat.WIDE: Architecture(((64, Tile(32, 3, 4)), (1, Tile(32, 5, 4))), Tile(32, 5, 4)),
    KVFormat.FP8: _fp8_of_32_slots(),
    KVFormat.FP8_GROUPED: _fp8_of_32_slots(),
}
# never timed; no fp8 conversion in hardware, so no fp8 cache
_SM80 = {KVFormat.WIDE: Architecture(((64, Tile(32, 3, 4)), (1, Tile(32, 5, 4))), Tile(64, 3, 4))}
ARCHITECTURES: dict[str, dict[KVFormat, Architecture]] = {
    "sm80": _SM80,
    "sm86": {KVFormat.WIDE: _SMALL_MEMORY[KVFormat.WIDE]},
    "sm89": _SMALL_MEMORY,
    "sm90": _SM90,
    "sm100": _SM100,
    "sm120": _SMALL_MEMORY,
}
# every row takes the same splits and tile whatever stands beside it
BATCH_INVARIANT_SPLITS = 4


def architecture_of(capability: tuple[int, int]) -> str:
    """Name of the table for a compute capability; an unknown minor falls back to the major's oldest."""
    major, minor = capability
    if major == 8:
        return "sm89" if minor == 9 else "sm80" if minor in (0, 7) else "sm86"
    return f"sm{min(major, 12)}0" if major in (9, 10, 12) else "sm120"


def supported_formats(capability: tuple[int, int]) -> tuple[KVFormat, ...]:
    """KV formats that the kernels read on this capability."""
    return tuple(ARCHITECTURES[architecture_of(capability)])


@functools.lru_cache(maxsize=4096)
def choose(
    rows: int,
    heads: int,
    width: int,
    kv_format: KVFormat,
    capability: tuple[int, int],
    multiprocessors: int,
    batch_invariant: bool = False,
) -> LaunchConfig:
    """The table's entry for a shape: splits fill the card when rows do not, and a split holds at least one tile."""
    table = ARCHITECTURES[architecture_of(capability)][kv_format]
    if heads <= FEW_HEADS and table.few_heads:
        table = table.few_heads
    overlap = capability >= (9, 0)
    if batch_invariant:
        tile = next(tile for least, tile in table.by_splits if least <= BATCH_INVARIANT_SPLITS)
        return LaunchConfig(tile, BATCH_INVARIANT_SPLITS, overlap)
    many_heads = table.many_heads if heads > 32 and rows >= MANY_HEADS_ROWS else None
    programs = rows * triton.cdiv(heads, (many_heads or table.many_rows).heads)
    if programs > multiprocessors:
        return LaunchConfig(many_heads or table.many_rows, 1, overlap)
    splits = 1 << (min(MAX_SPLITS, multiprocessors // programs).bit_length() - 1)
    if splits <= table.doubled_splits:
        splits *= 2
    while True:
        tile = many_heads or next(tile for least, tile in table.by_splits if least <= splits)
        if splits == 1 or splits * tile.slots <= width:
            return LaunchConfig(tile, splits, overlap)
        splits //= 2
