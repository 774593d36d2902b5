"""fp8 words as float16 operands, against torch's own conversion, in Triton's interpreter."""

import pytest
import torch
import triton
import triton.language as tl

from glm5_vllm.attention.kernels.fp8 import float16_values, power_of_two

pytestmark = pytest.mark.kernels

ROWS, COLUMNS = 2, 128


@triton.jit
def convert(words, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)[None, :, None]
    b_words = tl.load(words + row * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)[None, None, :])
    tl.store(out + row * COLUMNS + tl.arange(0, COLUMNS)[None, None, :], float16_values(b_words, True))


@triton.jit
def split(values, out, SIZE: tl.constexpr):
    power, inverse, exponent = power_of_two(tl.load(values + tl.arange(0, SIZE)))
    tl.store(out + tl.arange(0, SIZE), power)
    tl.store(out + SIZE + tl.arange(0, SIZE), inverse)
    tl.store(out + 2 * SIZE + tl.arange(0, SIZE), exponent)


def test_every_code_is_torchs_value() -> None:
    """All 256 codes, NaN and subnormal ones too, become what torch makes of them."""
    codes = torch.arange(256, dtype=torch.uint8).view(ROWS, COLUMNS)
    out = torch.zeros(ROWS, COLUMNS, dtype=torch.float16)

    convert[(1,)](codes.view(torch.int32), out, ROWS, COLUMNS)

    torch.testing.assert_close(out, codes.view(torch.float8_e4m3fn).half(), rtol=0, atol=0, equal_nan=True)


def test_power_of_two() -> None:
    """A value splits into the power of two below it and a factor from 1 up to 2; zero has the power 1."""
    values = torch.tensor([0.0, 1.0, 1.99, 2.0, 0.3, 448.0, 1e-30, 1.7e38])
    out = torch.zeros(3, values.numel())

    split[(1,)](values, out, values.numel())

    exponent = torch.where(values == 0, 0, torch.frexp(values).exponent - 1).float()
    assert torch.equal(out, torch.stack((torch.exp2(exponent), torch.exp2(-exponent), exponent)))
