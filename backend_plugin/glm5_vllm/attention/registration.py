"""Makes vLLM know the backend by name, keep that name across processes, and choose it where stock has nothing.

Called by the plugin's entry point in every process, any number of times. Imports no kernel: a front end without a card
registers the name too.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from functools import wraps
from typing import Any

BACKEND_NAME = "TRITON_MLA_SPARSE"
BACKEND_CLASS = "glm5_vllm.attention.backend.TritonMLASparseBackend"


class RegistrationError(RuntimeError):
    """vLLM's registry or platform is not what this backend was written for."""


def register_backend() -> None:
    """Add the name to vLLM's registry, in front where stock has nothing; refuse a name that is somebody else's."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.backends.registry import register_backend as vllm_register_backend

    member = AttentionBackendEnum.__members__.get(BACKEND_NAME)
    if member is None:
        vllm_register_backend(BACKEND_NAME, BACKEND_CLASS)
    elif member.get_path() != BACKEND_CLASS:
        raise RegistrationError(
            f"registering the attention backend {BACKEND_NAME} failed: the name belongs to {member.get_path()}; "
            f"expected {BACKEND_CLASS} or a free name. Remove the other plugin, or use that backend without this one."
        )
    # a member that was added at run time pickles by value, and a spawned worker unpickles before it loads plugins
    copyreg.pickle(AttentionBackendEnum, _reduce_member)


def prefer_backend() -> None:
    """Let the CUDA platform try the backend first on SM120, and last where stock's sparse backends do not reach.

    On SM90 and SM100 stock has its own kernels and stays the default; there the backend is chosen by
    `--attention-backend`. Stock's own list stays behind ours, so a configuration we refuse falls back to it.
    """
    from vllm.platforms import cuda

    stock = getattr(cuda, "_get_backend_priorities", None)
    if stock is None:
        raise RegistrationError(
            "preferring the attention backend failed: vllm.platforms.cuda has no _get_backend_priorities; expected the "
            "function that lists backends. Use the vLLM version this plugin names."
        )
    if not getattr(stock, "lists_triton_mla_sparse", False):
        cuda._get_backend_priorities = _with_backend(stock)


def _with_backend(stock: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    member = AttentionBackendEnum[BACKEND_NAME]

    @wraps(stock)
    def priorities(use_mla: bool, device_capability: Any, *args: Any, **kwargs: Any) -> list[Any]:
        listed = stock(use_mla, device_capability, *args, **kwargs)
        if not use_mla:
            return listed
        return [member, *listed] if device_capability.major == 12 else [*listed, member]

    priorities.lists_triton_mla_sparse = True  # type: ignore[attr-defined]
    return priorities


def _reduce_member(member: Any) -> tuple[Callable[[str], Any], tuple[str]]:
    return member_by_name, (member.name,)


def member_by_name(name: str) -> Any:
    """What a pickled registry member becomes in another process, which may not have loaded plugins yet."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    register_backend()
    return AttentionBackendEnum[name]
