"""Reads the engine's log line by line: start-up phase, compilations after warm-up, memory, lost processes. Pure.

The patterns are for vLLM 0.32 and 0.33. No other module knows the wording of the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from glm5_service.watch.health import Startup

GIB = 1024**3
ORDER: tuple[Startup, ...] = ("starting", "loading", "compiling", "warming")
_PHASES: tuple[tuple[re.Pattern[str], Startup], ...] = (
    (re.compile(r"Starting to load model |Loading model from scratch"), "loading"),
    (
        re.compile(
            r"Warming up model for the compilation|Dynamo bytecode transform|Compiling a graph"
            r"|Capturing CUDA graphs|DeepGEMM warmup|torch\.compile took|flashinfer autotun"
        ),
        "compiling",
    ),
    (
        re.compile(
            r"init engine \(profile, create kv cache, warmup model\) took|Application startup complete"
        ),
        "warming",
    ),
)
_COMPILED_LATE = re.compile(r"(?:Triton|CuTeDSL|TileLang) [\w ]+ during inference: ([^\s.]+)")
# our loader writes this line in every profile. On a card vLLM then writes what it measured there
_PARAMETERS = re.compile(r": parameters take (\d+) bytes")
_WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
# a core reports its worker, and the API server reports its core
_LOST = re.compile(r"Worker proc (\S+) died unexpectedly|MPClient: engine core exited unexpectedly")


@dataclass(frozen=True)
class LogFacts:
    """What the log has shown so far."""

    startup: Startup = "starting"
    compiles_after_warmup: int = 0
    last_compile: str | None = None
    weights_bytes: int | None = None
    kv_tokens: int | None = None
    lost: tuple[str, ...] = ()


def read_line(facts: LogFacts, line: str) -> LogFacts:
    """Return `facts` after one more line. Phases only move forward."""
    for pattern, phase in _PHASES:
        if pattern.search(line) and ORDER.index(phase) > ORDER.index(facts.startup):
            facts = replace(facts, startup=phase)
    if match := _COMPILED_LATE.search(line):
        facts = replace(facts, compiles_after_warmup=facts.compiles_after_warmup + 1, last_compile=match[1])
    if match := _PARAMETERS.search(line):
        facts = replace(facts, weights_bytes=int(match[1]))
    if match := _WEIGHTS.search(line):
        facts = replace(facts, weights_bytes=int(float(match[1]) * GIB))
    if match := _KV_TOKENS.search(line):
        facts = replace(facts, kv_tokens=int(match[1].replace(",", "")))
    if match := _LOST.search(line):
        facts = replace(facts, lost=tuple(dict.fromkeys((*facts.lost, match[1] or "EngineCore"))))
    return facts
