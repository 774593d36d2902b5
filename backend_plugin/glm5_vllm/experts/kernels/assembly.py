"""PTX that turns a lane's packed words into float16 weights, written from a layout. Never imports Triton.

One block unpacks a row's lane of one chunk: 32 weights, eight of each of four groups, in the order group, then the
order of the packed words. Two weights are made at once (float16 pairs). Where codes stand in the mantissa's place, they
are or-ed under the exponent of 1024, whose unit is 1: the pair then reads 1024 + code, or 1024 + 16 * code from the
nibble above. Other codes are first brought to bytes.
"""

from __future__ import annotations

import re
import struct

from glm5_vllm.experts.layouts import SHIFT, Layout

_WEIGHTS = 32
# bytes 0 and 1, or 2 and 3, of a word under the exponent of 1024
_PAIR = ("0x4140", "0x4342")
# the table of lop3 for (a & b) | c
_AND_OR = "0xEA"


def operands(layout: Layout) -> list[str]:
    """Names of the inputs in order: words of the low bits and of the high ones, of the scales, and d."""
    low = [f"w{i}" for i in range(4)]
    high = [f"x{i}" for i in range(layout.high_bits)]
    scales = [f"s{i}" for i in range(layout.scale_words)]
    return low + high + scales + ([] if layout.has_half_scales else ["d"])


def constraints(layout: Layout) -> str:
    """Registers of the outputs and inputs as inline assembly names them."""
    return ",".join(["=&h"] * _WEIGHTS + ["r"] * len(operands(layout)))


def assembly(layout: Layout) -> str:
    """The block: outputs $0 to $31 and the inputs of `operands` behind them."""
    place = {name: f"${_WEIGHTS + i}" for i, name in enumerate(operands(layout))}
    lines = [
        ".reg .b16 low, high;",
        ".reg .b32 t, u, d2, once, sixteenth, less, less16, h0, h1, bytes0, bytes1;",
    ]
    lines += [".reg .b32 " + ", ".join(_scale_registers(layout)) + ";"]
    lines += _scales(layout, place)
    for group in range(4):
        lines += _codes(layout, place, group)
    body = "\n".join(lines)
    pairs = sorted(set(re.findall(r"\bk[0-9A-F]{8}\b", body)))
    head = ["{", f".reg .b32 {', '.join(pairs)};", *(f"mov.b32 {pair}, 0x{pair[1:]};" for pair in pairs)]
    return "\n".join([*head, body, "}"])


def _scale_registers(layout: Layout) -> list[str]:
    names = [f"c{i}{j}" for i in range(layout.scales_a_group) for j in range(2)]
    if layout.is_interleaved:
        names += [f"q{name}" for name in names]
    if _is_fused(layout):
        names += ["n0", "n1", "qn0", "qn1"]
    return names


def _is_fused(layout: Layout) -> bool:
    """Codes without a zero take one fused multiply-add: (1024 + code) * scale - 1024 * scale."""
    return layout.is_interleaved and not layout.zero


def _twice(value: float) -> str:
    """The register of a pair of the same float16 number: its instructions take no constants."""
    bits = int.from_bytes(struct.pack("<e", value), "little")
    return f"k{bits << 16 | bits:08X}"


def _scales(layout: Layout, place: dict[str, str]) -> list[str]:
    """c{i}{j}: the scales of groups 2j and 2j + 1 as a pair, times SHIFT; i counts the scales of a group."""
    if layout.has_half_scales:
        return [f"mul.rn.f16x2 c0{j}, {place[f's{j}']}, {_twice(SHIFT)};" for j in range(2)]
    lines = [f"prmt.b32 d2, {place['d']}, {place['d']}, 0x1010;"]
    lines += [f"mul.rn.f16x2 d2, d2, {_twice(SHIFT * layout.step)};"]
    for i in range(layout.scales_a_group):
        for j in range(2):
            name = f"c{i}{j}"
            lines.append(f"prmt.b32 {name}, {place[f's{i}']}, 0x64, {_PAIR[j]};")
            lines.append(f"sub.rn.f16x2 {name}, {name}, {_twice(1024 + layout.scale_zero)};")
            lines.append(f"mul.rn.f16x2 {name}, {name}, d2;")
            if layout.is_interleaved:
                lines.append(f"mul.rn.f16x2 q{name}, {name}, {_twice(1 / 16)};")
            if _is_fused(layout):
                lines.append(f"mul.rn.f16x2 n{j}, {name}, {_twice(-1024)};")
                lines.append(f"mul.rn.f16x2 qn{j}, {name}, {_twice(-64)};")
    return lines


def _of_group(target: str, pair: str, group: int) -> str:
    """Both halves of `target` are the group's number of a pair."""
    half = "high" if group & 1 else "low"
    return f"mov.b32 {{low, high}}, {pair}; mov.b32 {target}, {{{half}, {half}}};"


def _codes(layout: Layout, place: dict[str, str], group: int) -> list[str]:
    if layout.is_interleaved:
        return _interleaved(layout, place, group)
    if layout.values:
        return _from_codebook(layout, place, group)
    return _from_bytes(place[f"w{group}"], place[f"x{group}"], group)


def _output(group: int, pair: int) -> str:
    first = 8 * group + 2 * pair
    return f"mov.b32 {{${first}, ${first + 1}}}, t;"


def _interleaved(layout: Layout, place: dict[str, str], group: int) -> list[str]:
    """Codes whose low nibbles stand 0, 4, 8 and 12 bits up in both halves of a word."""
    word, exponent = place[f"w{group}"], _twice(1024)
    lines = [f"shr.u32 u, {word}, 8;"]
    if layout.high_bits:
        sharing = 4 // layout.high_bits
        high, bit = place[f"x{group // sharing}"], layout.high_bits * (group % sharing)
        # to the bit above the low nibble: of the nibbles 0 and 4 bits up, and of those 8 and 12 bits up
        lines.append(f"shl.b32 h0, {high}, {4 - bit}; shr.u32 h1, {high}, {4 + bit};")
    for pair in range(4):
        if pair % 2 == 0 and (pair == 0 or layout.scales_a_group == 2):
            lines += _scales_of_group(layout, pair // 2, group)
        above = pair % 2
        source = word if pair < 2 else "u"
        mask = 0x00F000F0 if above else 0x000F000F
        lines.append(f"lop3.b32 t, {source}, 0x{mask:08X}, {exponent}, {_AND_OR};")
        if layout.high_bits:
            mask = ((1 << layout.high_bits) - 1) * (0x01000100 if above else 0x00100010)
            lines.append(f"lop3.b32 t, h{pair // 2}, 0x{mask:08X}, t, {_AND_OR};")
        scale, less = ("sixteenth", "less16") if above else ("once", "less")
        if _is_fused(layout):
            lines.append(f"fma.rn.f16x2 t, t, {scale}, {less};")
        else:
            zero = 1024 + (16 if above else 1) * layout.zero
            lines.append(f"sub.rn.f16x2 t, t, {_twice(zero)};")
            lines.append(f"mul.rn.f16x2 t, t, {scale};")
        lines.append(_output(group, pair))
    return lines


def _scales_of_group(layout: Layout, index: int, group: int) -> list[str]:
    j = group // 2
    lines = [_of_group("once", f"c{index}{j}", group), _of_group("sixteenth", f"qc{index}{j}", group)]
    if _is_fused(layout):
        lines += [_of_group("less", f"n{j}", group), _of_group("less16", f"qn{j}", group)]
    return lines


def _from_bytes(first: str, second: str, group: int) -> list[str]:
    """Codes of a byte each, moved up by 128, in two words."""
    lines = [_of_group("once", f"c0{group // 2}", group)]
    for pair in range(4):
        lines.append(f"prmt.b32 t, {first if pair < 2 else second}, 0x64, {_PAIR[pair % 2]};")
        lines.append(f"sub.rn.f16x2 t, t, {_twice(1024 + 128)};")
        lines.append("mul.rn.f16x2 t, t, once;")
        lines.append(_output(group, pair))
    return lines


def _from_codebook(layout: Layout, place: dict[str, str], group: int) -> list[str]:
    """Codes of four bits that select one of 16 bytes: prmt looks four of them up in 8 bytes at a time."""
    moved = bytes(value + 128 for value in layout.values)
    tables = [f"0x{int.from_bytes(moved[i : i + 4], 'little'):08X}" for i in range(0, 16, 4)]
    word = place[f"w{group}"]
    # the codes' low three bits; and 4 more than a byte's number where the code's fourth bit chooses the upper table
    lines = [
        f"and.b32 t, {word}, 0x77777777;",
        f"shr.u32 u, {word}, 1;",
        "lop3.b32 u, u, 0x44444444, 0x32103210, 0xEA;",
    ]
    for half in ("bytes0", "bytes1"):
        lines += [
            f"prmt.b32 h0, {tables[0]}, {tables[1]}, t;",
            f"prmt.b32 h1, {tables[2]}, {tables[3]}, t;",
            f"prmt.b32 {half}, h0, h1, u;",
        ]
        if half == "bytes0":
            lines.append("shr.u32 t, t, 16; shr.u32 u, u, 16;")
    return lines + _from_bytes("bytes0", "bytes1", group)
