"""Runs the few PTX instructions of our inline assembly on numpy arrays, so that the interpreter tests what the card runs.

The interpreter of Triton knows no assembly. Numbers are rounded once, as the instructions do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def run(assembly: str, outputs: int, inputs: list[Words]) -> list[NDArray[np.uint16]]:
    """Values of the 16-bit operands $0 to $(outputs - 1), for 32-bit words of the operands behind them."""
    registers: dict[str, Any] = {f"${outputs + i}": word.astype(np.uint32) for i, word in enumerate(inputs)}
    # statements end with semicolons; braces of operands stay with their statement
    body = assembly.strip().removeprefix("{").removesuffix("}")
    for statement in filter(None, (part.strip() for part in body.split(";"))):
        name, _, rest = statement.partition(" ")
        if name == ".reg":
            continue
        target, *sources = _operands(rest)
        _assign(registers, target, _INSTRUCTIONS[name](*(_value(registers, source) for source in sources)))
    return [registers[f"${i}"] for i in range(outputs)]


def _operands(text: str) -> list[str]:
    return [part.strip() for part in re.findall(r"\{[^}]*\}|[^,{}]+", text) if part.strip()]


def _value(registers: dict[str, Any], operand: str) -> Any:
    if operand.startswith("{"):
        low, high = (registers[part.strip()].astype(np.uint32) for part in operand[1:-1].split(","))
        return low | (high << np.uint32(16))
    if operand.startswith("0x") or operand.isdigit():
        return np.uint32(int(operand, 0))
    return registers[operand]


def _assign(registers: dict[str, Any], target: str, value: Any) -> None:
    if not target.startswith("{"):
        registers[target] = value
        return
    low, high = (part.strip() for part in target[1:-1].split(","))
    registers[low], registers[high] = _halves(value)


def _halves(word: Any) -> tuple[Any, Any]:
    word = np.asarray(word, np.uint32)
    return (word & 0xFFFF).astype(np.uint16), (word >> 16).astype(np.uint16)


def _in_pairs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of float64 numbers on both float16 halves of each word."""

    def on_words(*words: Any) -> Any:
        result = []
        with np.errstate(over="ignore", invalid="ignore"):
            for halves in zip(*map(_halves, words), strict=True):
                rounded = function(*(half.view(np.float16).astype(np.float64) for half in halves))
                result.append(np.asarray(rounded).astype(np.float16).view(np.uint16).astype(np.uint32))
        return result[0] | (result[1] << np.uint32(16))

    return on_words


def _prmt(a: Any, b: Any, selector: Any) -> Any:
    """Byte i of the result is that one of b's and a's eight bytes which nibble i of the selector names."""
    eight = (np.asarray(b, np.uint64) << np.uint64(32)) | np.asarray(a, np.uint64)
    result = np.zeros((), np.uint64)
    for i in range(4):
        nibble = (np.asarray(selector, np.uint64) >> np.uint64(4 * i)) & np.uint64(15)
        assert (nibble < 8).all(), "the sign mode of prmt is not here"
        result = result | (((eight >> (nibble * np.uint64(8))) & np.uint64(255)) << np.uint64(8 * i))
    return result.astype(np.uint32)


def _lop3(a: Any, b: Any, c: Any, table: Any) -> Any:
    assert int(table) == 0xEA, "only (a & b) | c is here"
    return (a & b) | c


_INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shl.b32": lambda a, b: (a << b).astype(np.uint32),
    "shr.u32": lambda a, b: a >> b,
    "lop3.b32": _lop3,
    "prmt.b32": _prmt,
    "sub.rn.f16x2": _in_pairs(lambda a, b: a - b),
    "mul.rn.f16x2": _in_pairs(lambda a, b: a * b),
    "fma.rn.f16x2": _in_pairs(lambda a, b, c: a * b + c),
}
