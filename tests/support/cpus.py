"""Other processors than this machine's: its own, with instruction sets hidden from the engine.

The switch is `ONEDNN_MAX_CPU_ISA`, for one run or for a tier: `ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 make test-engine`.
oneDNN keeps to it. The plugin hides the rest from vLLM, which then loads another library of kernels. The plugin does not
ask the kernel for hidden AMX: code that uses it all the same ends with SIGILL.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SWITCH = "ONEDNN_MAX_CPU_ISA"


@dataclass(frozen=True)
class Cpu:
    """A kind of processor: what to set, the feature that is hidden, and the flag by which /proc/cpuinfo names it."""

    name: str
    hides: str
    environment: dict[str, str]

    def __str__(self) -> str:
        return self.name

    def reason_to_skip(self) -> str:
        """Why this machine can't play the kind; empty if it can."""
        if os.environ.get(SWITCH):
            return f"{SWITCH} is set for the whole run"
        return "" if self.hides in flags() else f"this CPU has no {self.hides} to hide"


# as AMD's Zen 4 and 5, and Intel's Cooper Lake
NO_AMX = Cpu("no-amx", "amx_tile", {SWITCH: "AVX512_CORE_BF16"})
# as Intel's Skylake to Ice Lake
NO_BF16 = Cpu("no-avx512_bf16", "avx512_bf16", {SWITCH: "AVX512_CORE"})
# as AMD's Zen 1 to 3, and Intel's Haswell; ATEN_CPU_CAPABILITY is the limit of torch's own kernels
NO_AVX512 = Cpu("no-avx512", "avx512f", {SWITCH: "AVX2", "ATEN_CPU_CAPABILITY": "avx2"})


def flags() -> set[str]:
    """This processor's features, as /proc/cpuinfo names them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def hiding(cpu: Cpu) -> dict[str, str]:
    """The environment of a run as on `cpu`; empty where this machine can't play it and is taken as it is."""
    return {} if cpu.reason_to_skip() else cpu.environment
