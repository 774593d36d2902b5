"""Flags of `vllm serve`: which one a setting becomes, and vLLM's other names of one. Data; the JSON Schema has it too."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

# the chart's check of engine.extra_args reads them from the JSON Schema
ALIASES: Final[dict[str, str]] = {
    "--device-memory-utilization": "--gpu-memory-utilization",
    "-ac": "--attention-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}


def flag(name: str) -> Any:
    """Flag of `vllm serve` that a setting becomes; the command line and the chart's checks follow from it."""
    return Field(json_schema_extra={"flag": name})
