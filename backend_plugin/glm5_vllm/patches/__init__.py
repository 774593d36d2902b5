"""Changes to vLLM and vllm-gguf-plugin, one in each file. `apply` has their order.

Each file says the symptom, the cause, the change, when it does not apply, and when to remove it. Each patch is
idempotent. A patch whose target is missing raises an error and is not skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ORIGINAL, _MAKERS = "__glm5_original__", "__glm5_makers__"


class PatchTargetMissingError(RuntimeError):
    """The attribute to patch does not exist. The patch was written for another version."""


def replace_attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Set `owner.name` to `make(current value)`. A second call with the same `make` does nothing.

    A later patch of the same attribute wraps this one.

    Raises:
        PatchTargetMissingError: `owner` has no such attribute.
    """
    current = getattr(owner, name, None)
    if current is None:
        where = getattr(owner, "__name__", type(owner).__name__)
        raise PatchTargetMissingError(
            f"nothing to patch at {where}.{name}; expected it in the tested versions. "
            "Install a tested vLLM and vllm-gguf-plugin, or a newer glm5-vllm."
        )
    maker = f"{make.__module__}.{make.__qualname__}"
    makers = vars(current).get(_MAKERS, ())
    if maker in makers:
        return
    replacement = make(current)
    # set the marks after `make`, because functools.wraps copies the marks of the wrapped function
    setattr(replacement, _MAKERS, (*makers, maker))
    setattr(replacement, _ORIGINAL, current)
    setattr(owner, name, replacement)


def original_of(patched: Any) -> Any:
    """Return the value before `replace_attribute`."""
    return getattr(patched, _ORIGINAL)
