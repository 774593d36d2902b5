"""Changes to vLLM and vllm-gguf-plugin, one a file; `apply` has their order.

Each file says: symptom, cause, change, when it does not apply, when to remove it. Each is idempotent, and one whose
target is missing raises instead of being skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ORIGINAL, _MAKERS = "__glm5_original__", "__glm5_makers__"


class PatchTargetMissingError(RuntimeError):
    """The attribute to patch does not exist: the version is not the one the patch was written for."""


def replace_attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Set `owner.name` to `make(what is there)` once; a second call with `make` finds its own work and returns.

    Another patch of the same attribute goes around this one.

    Raises:
        PatchTargetMissingError: there is no such attribute.
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
    # after `make`, whose functools.wraps copies the marks of what it wraps
    setattr(replacement, _MAKERS, (*makers, maker))
    setattr(replacement, _ORIGINAL, current)
    setattr(owner, name, replacement)


def original_of(patched: Any) -> Any:
    """What stood there before `replace_attribute`."""
    return getattr(patched, _ORIGINAL)
