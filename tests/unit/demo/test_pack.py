"""Packing against gguf-py's dequantisation, which is not ours."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as QT
from gguf.quants import dequantize

from demo_model.pack import quantize

# type -> largest relative error of normal values. Those of the K-quants are 1% above what the scale search
# reaches, below what a plain min/max scale leaves (0.078, 0.038, 0.019)
ERROR = {
    QT.Q4_K: 0.0722,
    QT.Q5_K: 0.0362,
    QT.Q6_K: 0.0174,
    QT.Q8_0: 0.0055,
    QT.Q4_0: 0.09,
    QT.Q5_0: 0.045,
    QT.BF16: 0.002,
    QT.F16: 0.0003,
    QT.F32: 0.0,
}
K_QUANTS = [QT.Q4_K, QT.Q5_K, QT.Q6_K]
TYPES = pytest.mark.parametrize("qtype", ERROR, ids=lambda t: t.name)
TYPES_K = pytest.mark.parametrize("qtype", K_QUANTS, ids=lambda t: t.name)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape, np.float32)


def unpack(packed: np.ndarray, qtype: QT) -> np.ndarray:
    return np.asarray(dequantize(packed, qtype), np.float32)


def relative_error(x: np.ndarray, qtype: QT) -> float:
    return float(np.sqrt(np.mean((unpack(quantize(x, qtype), qtype) - x) ** 2) / np.mean(x**2)))


@TYPES
def test_shape_is_leading_axes_and_bytes_of_the_row(qtype: QT) -> None:
    """Packed rows keep their leading axes and are as many bytes long as the type says."""
    block, size = GGML_QUANT_SIZES[qtype]
    packed = quantize(normal(2, 3, 512), qtype)
    assert ("uint8", (2, 3, 512 // block * size)) == (packed.dtype.name, packed.shape)


@TYPES
def test_error_of_normal_values_is_that_of_the_type(qtype: QT) -> None:
    """Unpacking gives the values back within the error that the type's bits allow."""
    assert relative_error(normal(64, 1024), qtype) <= ERROR[qtype]


@TYPES_K
def test_each_row_is_packed_by_itself(qtype: QT) -> None:
    """A row's bytes do not depend on its neighbours, nor on where the chunks of the work end."""
    x = normal(4100, 256)
    assert np.array_equal(quantize(x[4090:4100], qtype), quantize(x, qtype)[4090:4100])


@TYPES_K
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 3e-3], ids=str)
def test_a_constant_block_survives(qtype: QT, value: float) -> None:
    """A block of one value comes back as that value to float16 and 6-bit scale rounding, zero exactly."""
    back = unpack(quantize(np.full((1, 256), value, np.float32), qtype), qtype)
    assert back == pytest.approx(np.full((1, 256), value), rel=0.02, abs=0)


@pytest.mark.parametrize("qtype", [QT.Q4_K, QT.Q5_K], ids=lambda t: t.name)
def test_an_offset_costs_little_where_the_type_has_a_minimum(qtype: QT) -> None:
    """Values far below zero keep their spread: the minimum takes the offset."""
    x = normal(16, 256)
    moved = unpack(quantize(x - 8, qtype), qtype)
    assert np.sqrt(np.mean((moved - (x - 8)) ** 2)) < 0.12


@TYPES_K
def test_small_sub_blocks_keep_their_own_scale(qtype: QT) -> None:
    """A sub-block 8 times smaller than its block's largest keeps a relative error near that of the type."""
    x = normal(64, 256)
    x[:, 64:128] /= 8
    back = unpack(quantize(x, qtype), qtype)[:, 64:128]
    part = x[:, 64:128]
    assert np.sqrt(np.mean((back - part) ** 2) / np.mean(part**2)) < 1.5 * ERROR[qtype]


@pytest.mark.parametrize(
    ("qtype", "row", "block"), [(QT.Q4_K, 192, 256), (QT.Q6_K, 300, 256), (QT.Q8_0, 48, 32)], ids=str
)
def test_a_row_of_part_blocks_is_refused(qtype: QT, row: int, block: int) -> None:
    """A row that is not a whole number of blocks is an error that names both."""
    message = f"rows of {row} values as {qtype.name}; expected a multiple of {block}"
    with pytest.raises(ValueError, match=message):
        quantize(np.zeros((2, row), np.float32), qtype)


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    """One NaN would spoil its whole block in silence, so it stops the packing."""
    x = np.zeros((1, 256), np.float32)
    x[0, 5] = value
    with pytest.raises(ValueError, match="finite"):
        quantize(x, QT.Q4_K)


def test_a_scale_beyond_float16_is_refused() -> None:
    """A block whose scale float16 cannot hold is an error, not a block of infinities."""
    with pytest.raises(ValueError, match="65504"):
        quantize(np.full((1, 256), 1e9, np.float32), QT.Q6_K)


def test_a_type_that_can_only_be_read_is_refused() -> None:
    """A type that neither we nor gguf-py can write is an error that names it."""
    with pytest.raises(ValueError, match="cannot pack as Q2_K"):
        quantize(np.zeros((1, 256), np.float32), QT.Q2_K)
