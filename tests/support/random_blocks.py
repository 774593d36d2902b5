"""Random tensors of every quant type, and what they mean in float32 by the gguf package's own reading.

Blocks are random bits with fitting scales rather than quantised floats: that is fast, reaches types that
nothing here can write, and uses the whole range of each field.
"""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ScaleFields:
    """Byte offsets of a block's half-precision scale and minimum; `ratio` of the two centres values on 0.

    With `spread` the scale's nibbles are the top ones of the four 16-bit words that start at `scale`.
    """

    scale: int
    minimum: int | None = None
    ratio: float = 0.0
    spread: bool = False

    def put(self, blocks: Bytes, scale: NDArray[np.float64], minimum: NDArray[np.float64]) -> None:
        """Write both into the blocks, where there are such fields; one number of each a block."""
        halves = scale.astype(np.float16).view(np.uint16)
        if self.spread:
            words = blocks[:, self.scale : self.scale + 8].copy().view(np.uint16)
            top = (halves[:, None] >> np.arange(0, 16, 4, dtype=np.uint16)) << 12
            blocks[:, self.scale : self.scale + 8] = (words & 0xFFF | top).view(np.uint8)
        else:
            blocks[:, self.scale : self.scale + 2] = halves[:, None].view(np.uint8)
        if self.minimum is not None:
            of = minimum.astype(np.float16)[:, None].view(np.uint8)
            blocks[:, self.minimum : self.minimum + 2] = of


FLOATS = ("F32", "F16", "BF16")
SCALE_FIELDS = {
    Type.Q4_0: ScaleFields(0),
    Type.Q5_0: ScaleFields(0),
    Type.Q8_0: ScaleFields(0),
    Type.IQ4_NL: ScaleFields(0),
    Type.IQ4_XS: ScaleFields(0),
    Type.IQ3_S: ScaleFields(0),
    Type.IQ3_XXS: ScaleFields(0),
    Type.IQ2_S: ScaleFields(0),
    Type.IQ2_XS: ScaleFields(0),
    Type.IQ2_XXS: ScaleFields(0),
    Type.IQ1_S: ScaleFields(0),
    Type.IQ1_M: ScaleFields(48, spread=True),
    Type.Q3_K: ScaleFields(108),
    Type.Q6_K: ScaleFields(208),
    # the ratio is the mean of the quants, for scales and minima are drawn alike
    Type.Q2_K: ScaleFields(80, 82, 1.5),
    Type.Q4_K: ScaleFields(0, 2, 7.5),
    Type.Q5_K: ScaleFields(0, 2, 15.5),
    # these add their minimum
    Type.Q4_1: ScaleFields(0, 2, -7.5),
    Type.Q5_1: ScaleFields(0, 2, -15.5),
}


def random_tensor(
    rng: np.random.Generator, shape: tuple[int, ...], quant: str, deviation: float
) -> tuple[Bytes, Floats]:
    """Bytes [*shape[:-1], row bytes] of a random tensor of type `quant`, and its float32 values."""
    packed = random_blocks(rng, shape, quant, deviation)
    return packed, floats_of(packed, quant)


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], quant: str, deviation: float) -> Bytes:
    """Bytes [*shape[:-1], row bytes] of a random tensor of type `quant`."""
    kind = Type[quant]
    if quant in FLOATS:
        return pack_floats(rng.standard_normal(shape, np.float32) * deviation, quant)[0]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape)) // block
    fields = SCALE_FIELDS[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    steps = rng.uniform(0.5, 1.5, count)
    fields.put(blocks, steps, steps * fields.ratio)
    unit = gguf.quants.dequantize(blocks[:256], kind).std()
    steps *= deviation / unit
    fields.put(blocks, steps, steps * fields.ratio)
    return blocks.reshape(*shape[:-1], shape[-1] // block * size)


def floats_of(packed: Bytes, quant: str) -> Floats:
    """Float32 values of the bytes of a tensor of type `quant`."""
    if quant == "BF16":
        return (packed.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if quant in FLOATS:
        return packed.view(np.float32 if quant == "F32" else np.float16).astype(np.float32)
    return gguf.quants.dequantize(packed, Type[quant])


def pack_floats(values: Floats, quant: str) -> tuple[Bytes, Floats]:
    """The bytes of `values` in a float type, and the values after rounding to it."""
    if quant == "BF16":
        bits = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits.view(np.uint8), (bits.astype(np.uint32) << 16).view(np.float32)
    rounded = np.ascontiguousarray(values, np.float32 if quant == "F32" else np.float16)
    return rounded.view(np.uint8), rounded.astype(np.float32)
