"""fp8 (e4m3) cache words as float16 operands; never imports vLLM.

float16 holds every e4m3 value exactly and the card makes two at once; bfloat16 would go through float32, at four times
the instructions. The cache is read as 32-bit words because the compiler pipelines those, and fp8 it does not.
"""

from __future__ import annotations

import triton
import triton.language as tl

_ABOVE_MANTISSA = tl.constexpr(0x7F800000)
_ONE = tl.constexpr(0x3F800000)


@triton.jit
def power_of_two(value):
    """The largest power of two p not above a float32 from 0 to below 2^127, 1/p and log2(p); of 0: 1, 1 and 0."""
    bits = value.to(tl.int32, bitcast=True) & _ABOVE_MANTISSA
    bits = tl.where(bits == 0, _ONE, bits)
    power = bits.to(tl.float32, bitcast=True)
    inverse = (-bits + 2 * _ONE).to(tl.float32, bitcast=True)
    return power, inverse, ((bits - _ONE) >> 23).to(tl.float32)


# float16 values $0 to $3 of the bytes of $4
_CONVERT = tl.constexpr("""{
    .reg .b16 low, high;
    .reg .b32 first, second;
    mov.b32 {low, high}, $4;
    cvt.rn.f16x2.e4m3x2 first, low;
    cvt.rn.f16x2.e4m3x2 second, high;
    mov.b32 {$0, $1}, first;
    mov.b32 {$2, $3}, second;
    }""")
_FOUR = tl.constexpr((tl.float16, tl.float16, tl.float16, tl.float16))


@triton.jit
def _interpreted(words, BYTE: tl.constexpr):
    """One byte of each word as the assembly gives it, by integers: the interpreter knows no assembly."""
    code = (words >> (8 * BYTE)) & 0xFF
    # e4m3's exponent and mantissa stand 7 bits higher in float16, whose exponent is biased by 8 more
    bits = ((code & 0x80) << 8) | ((code & 0x7F) << 7)
    value = bits.to(tl.int16).to(tl.float16, bitcast=True) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value).to(tl.float16)


@triton.jit
def float16_values(words, INTERPRETED: tl.constexpr):
    """int32 words [A, B, C] of four e4m3 values each -> float16 [A, B, 4 C]."""
    if INTERPRETED:
        a, b = _interpreted(words, 0), _interpreted(words, 1)
        c, d = _interpreted(words, 2), _interpreted(words, 3)
    else:
        a, b, c, d = tl.inline_asm_elementwise(_CONVERT, "=h,=h,=h,=h,r", [words], _FOUR, True, 1)
    values = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(values, [words.shape[0], words.shape[1], 4 * words.shape[2]])
