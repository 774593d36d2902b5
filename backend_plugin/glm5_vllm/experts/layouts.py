"""How each quant type is packed for the expert kernels, as data. Never imports Triton or vLLM.

A packed tensor is int32 [experts, tiles, superblocks, words]. One tile has 64 rows of weights and one superblock 256
columns: two chunks of 128, each four groups of 32. Its words stand in sections, in this order:

    low     [chunk][lane of 256][group]       the low four bits of the eight weights that a lane holds of a group
    high    [lane][chunk][word]               their further bits; of 8-bit weights [chunk][lane][group], as the low ones
    scales  [word of the chunk][chunk][row]   four bytes, one a group; or two half-precision numbers
    minima  [warp][lane][half of the rows]    four bytes: groups 2c and 2c + 1 of two rows
    d       [row]                             the block's half-precision d, and dmin in the upper half

A weight is d * step * (scale - scale_zero) * value(code) - dmin * minimum, where value(code) is code - zero or an entry
of `values`.
"""

from __future__ import annotations

from dataclasses import dataclass

from glm5_vllm.gguf.file.quant_types import BY_NAME, IQ4_VALUES, QuantType

TILE_ROWS = 64
SUPERBLOCK = 256
# weights are held times this, an exact power of two: it keeps d * scale out of float16's subnormal numbers
SHIFT = 64.0
HALF_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Layout:
    """How the weights of one type are packed; the module's docstring has the meaning of each part."""

    high_bits: int = 0
    """Bits of a code beside its low four: 0, 1, 2 or 4."""
    zero: int = 0
    values: tuple[int, ...] = ()
    """The codebook's 16 entries, from -128 to 127, where codes are not linear."""
    scales_a_group: int = 1
    """Two where a scale covers 16 columns."""
    has_half_scales: bool = False
    """Each group has a half-precision scale of its own, and there is no d."""
    scale_zero: int = 0
    has_minima: bool = False
    step: float = 1.0
    """A power of two."""

    @property
    def is_interleaved(self) -> bool:
        """Whether codes are or-ed into the mantissa of float16 pairs where they stand, and so stand two by two."""
        return not self.values and self.high_bits < 4

    @property
    def scale_words(self) -> int:
        return 2 if self.has_half_scales else self.scales_a_group

    @property
    def sections(self) -> tuple[int, int, int, int, int]:
        """Where high, scales, minima and d start, and the number of words."""
        high = 2048
        scales = high + 512 * self.high_bits
        minima = scales + 128 * self.scale_words
        d = minima + 128 * self.has_minima
        return high, scales, minima, d, d + 64 * (not self.has_half_scales)

    @property
    def words(self) -> int:
        """Words of a tile's superblock."""
        return self.sections[-1]

    @property
    def bits_a_weight(self) -> float:
        return self.words * 32 / (TILE_ROWS * SUPERBLOCK)

    @property
    def largest_code(self) -> int:
        """The largest magnitude of value(code)."""
        if self.values:
            return max(map(abs, self.values))
        return max(self.zero, (16 << self.high_bits) - 1 - self.zero)

    @property
    def largest_scale(self) -> float:
        """What d * step * scale has to stay below for float16 to hold every number on the way."""
        # codes without a zero are unpacked as 1024 + code, times the scale, less 1024 times the scale
        factor = 1024 if self.is_interleaved and not self.zero else self.largest_code
        return HALF_MAX / (SHIFT * factor)

    @property
    def largest_minimum(self) -> float:
        """The same of dmin * minimum."""
        return HALF_MAX / SHIFT


def _grid(levels: tuple[int, ...]) -> tuple[int, ...]:
    """Codes of a type of levels and signs: the level in the low three bits, the sign above."""
    return levels + tuple(-level for level in levels)


LAYOUTS: dict[QuantType, Layout] = {
    BY_NAME["Q4_K"]: Layout(has_minima=True),
    BY_NAME["Q5_K"]: Layout(high_bits=1, has_minima=True),
    BY_NAME["Q6_K"]: Layout(high_bits=2, zero=32, scales_a_group=2, scale_zero=128),
    BY_NAME["Q8_0"]: Layout(high_bits=4, zero=128, has_half_scales=True),
    BY_NAME["IQ4_XS"]: Layout(values=IQ4_VALUES, scale_zero=32),
    # an index of the file names four levels at once; here each weight has its own level and sign
    BY_NAME["IQ3_S"]: Layout(values=_grid((1, 3, 5, 7, 9, 11, 13, 15))),
    BY_NAME["IQ3_XXS"]: Layout(values=_grid((4, 12, 20, 28, 36, 44, 52, 62)), step=0.25),
}
