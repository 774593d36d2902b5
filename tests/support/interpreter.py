"""Triton's interpreter for kernel tests on a machine without a card: choosing it, mending its bfloat16, and assembly.

It has to be chosen before Triton is first imported, which is why tests/conftest.py does so.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.support import ptx


def choose_interpreter() -> None:
    """Make `triton.jit` interpret in this process only; child processes keep their own choice."""
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None or "triton" in sys.modules:
        return
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language

    triton.knobs.propagate_env = False
    triton.knobs.runtime.interpret = True
    del os.environ["TRITON_INTERPRET"]
    _widen_bfloat16_products()
    _round_to_bfloat16()
    _run_assembly()


def _widen_bfloat16_products() -> None:
    """The interpreter stores bfloat16 as uint16 and multiplies those integers in `tl.dot`; give it float32 instead."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar == tl.bfloat16:
            return interpreter.TensorHandle(
                (handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32
            )
        return handle

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return original(self, widened(a), widened(b), d, *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _round_to_bfloat16() -> None:
    """The interpreter cuts float32 down to bfloat16; round to nearest as the hardware does."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._convert_float

    def convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source == tl.float32 and target == tl.bfloat16:
            rounded = torch.from_numpy(values.copy()).to(torch.bfloat16)
            return rounded.view(torch.uint16).numpy().reshape(values.shape)
        return original(values, source, target, rounding)

    interpreter._convert_float = convert


def _run_assembly() -> None:
    """The interpreter knows no assembly; run that of 32-bit words to 16-bit floats, a word an element."""
    import triton.language as tl
    from triton.runtime import interpreter

    class Results(list[Any]):
        get_result = list.__getitem__

    def create_inline_asm(
        self: Any, assembly: str, constraints: str, values: Any, types: Any, pure: bool, pack: int
    ) -> Any:
        assert pack == 1
        assert all(kind.scalar == tl.float16 for kind in types)
        results = ptx.run(assembly, len(types), [value.data.view("uint32") for value in values])
        return Results(interpreter.TensorHandle(result.view("float16"), tl.float16) for result in results)

    interpreter.InterpreterBuilder.create_inline_asm = create_inline_asm


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill what `torch.empty` returns with NaN (floats) or -7 (integers), so that reading it shows."""
    original = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = original(*args, **kwargs)
        return tensor.fill_(float("nan") if tensor.is_floating_point() else -7)

    torch.empty = poisoned  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.empty = original
