"""Blocks, tiles, warps and splits of the expert kernels as a table per architecture, and the one rule that reads it.

No autotuning: an entry is chosen by the number of rows, rounded up as vLLM pads them for CUDA graphs, so a row's result
does not depend on whether its batch was padded. The measurements are explained in ../README.md.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from glm5_vllm.experts.layouts import LAYOUTS, SUPERBLOCK, TILE_ROWS
from glm5_vllm.gguf.file.quant_types import QuantType


@dataclass(frozen=True)
class Tile:
    """Tiles of 64 rows of weights a program holds at once, its warps and the depth of its software pipeline."""

    tiles: int
    warps: int
    stages: int


@dataclass(frozen=True)
class LaunchConfig:
    """How both products run.

    `block` pairs of one expert share a program; without `is_sorted` each pair has one of its own, and the rest of the
    block is empty. `splits` programs share the columns of gate and up. A program of down has `steps` tiles in turn.
    """

    is_sorted: bool
    block: int
    gate_up: Tile
    splits: int
    down: Tile
    steps: int


Table = tuple[tuple[int, LaunchConfig], ...]
"""(least rows, configuration), tried in order."""

# measured on an H200 with Q4_K and Q6_K at 1, 8, 64, 512 and 8192 rows (tests/results/experts_h200.json): each entry was
# the fastest tried, or within 1% of it
_SM90: Table = (
    (1024, LaunchConfig(True, 64, Tile(4, 8, 3), 1, Tile(1, 4, 3), 24)),
    (256, LaunchConfig(True, 32, Tile(2, 4, 3), 1, Tile(1, 4, 3), 16)),
    (9, LaunchConfig(True, 16, Tile(2, 4, 3), 1, Tile(1, 4, 3), 8)),
    (3, LaunchConfig(False, 16, Tile(1, 4, 3), 1, Tile(1, 4, 2), 8)),
    (1, LaunchConfig(False, 16, Tile(1, 4, 3), 4, Tile(1, 4, 1), 1)),
)
# never timed: three stages of 6-bit codes are more than the shared memory of a program
_SM90_WIDE: Table = ((1024, LaunchConfig(True, 64, Tile(4, 8, 2), 1, Tile(1, 4, 3), 24)), *_SM90[1:])
# never timed on these cards: 99 KiB of shared memory a program (SM89, SM120), and products whose sums are in registers of
# a warp, so that larger tiles spill
_SMALL: Table = (
    (1024, LaunchConfig(True, 64, Tile(2, 8, 2), 1, Tile(1, 4, 2), 24)),
    (256, LaunchConfig(True, 32, Tile(1, 4, 3), 1, Tile(1, 4, 3), 16)),
    (9, LaunchConfig(True, 16, Tile(2, 4, 2), 1, Tile(1, 4, 3), 8)),
    (3, LaunchConfig(False, 16, Tile(2, 4, 2), 1, Tile(1, 4, 2), 8)),
    (1, LaunchConfig(False, 16, Tile(1, 4, 2), 4, Tile(1, 4, 1), 1)),
)
# the tiles of _SMALL spill: 8 bytes of down with Q4_K on SM80 and SM89, 16 of gate and up with IQ3_S on SM100
_SM80: Table = ((1024, LaunchConfig(True, 64, Tile(2, 8, 2), 1, Tile(2, 8, 2), 24)), *_SMALL[1:])
_SM100: Table = ((1024, LaunchConfig(True, 64, Tile(1, 4, 2), 1, Tile(1, 4, 2), 24)), *_SMALL[1:])


@dataclass(frozen=True)
class Architecture:
    """The tables of one architecture: the second is for gate and up with codes of 6 or 8 bits."""

    table: Table
    wide: Table


ARCHITECTURES: dict[str, Architecture] = {
    "sm80": Architecture(_SM80, _SM80),
    "sm89": Architecture(_SM80, _SM80),
    "sm90": Architecture(_SM90, _SM90_WIDE),
    "sm100": Architecture(_SM100, _SM100),
    "sm120": Architecture(_SMALL, _SMALL),
}


def architecture_of(capability: tuple[int, int]) -> str:
    """Name of the table for a compute capability."""
    major, minor = capability
    if major == 8:
        return "sm80" if minor in (0, 7) else "sm89"
    return f"sm{min(major, 12)}0" if major in (9, 10, 12) else "sm120"


def padded(rows: int) -> int:
    """The rows of the CUDA graph that takes this many: 1, 2, 4 and multiples of 8."""
    return 1 << (rows - 1).bit_length() if rows <= 4 else -(-rows // 8) * 8


@functools.lru_cache(maxsize=4096)
def choose(
    rows: int,
    hidden: int,
    intermediate: int,
    types: tuple[QuantType, QuantType],
    capability: tuple[int, int],
) -> LaunchConfig:
    """The table's entry for a number of rows and the types of gate and up and of down, fitted to the shape."""
    architecture = ARCHITECTURES[architecture_of(capability)]
    table = architecture.wide if LAYOUTS[types[0]].high_bits >= 2 else architecture.table
    return fitted(next(config for least, config in table if least <= padded(rows)), hidden, intermediate)


def fitted(config: LaunchConfig, hidden: int, intermediate: int) -> LaunchConfig:
    """As many splits, tiles and steps as divide the shape; the table was measured at an intermediate size of 256."""
    # wider experts fill the card with fewer splits, and each step of down takes longer
    times = intermediate // SUPERBLOCK
    splits = math.gcd(max(1, config.splits // times), hidden // SUPERBLOCK)
    gate_up = replace(config.gate_up, tiles=math.gcd(config.gate_up.tiles, intermediate // (TILE_ROWS // 2)))
    down = replace(config.down, tiles=math.gcd(config.down.tiles, hidden // TILE_ROWS))
    steps = math.gcd(max(1, config.steps // times), hidden // TILE_ROWS // down.tiles)
    return replace(config, gate_up=gate_up, splits=splits, down=down, steps=steps)
