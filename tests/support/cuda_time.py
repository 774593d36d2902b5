"""Times on a CUDA card: one call inside a graph, and the rate of a large copy."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch


def graph_us(call: Callable[[Any], Any], inputs: list[Any], repeats: int = 15) -> float:
    """Median time of one call, captured once for each input and replayed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for each in inputs[:2]:
            call(each)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for each in inputs:
            call(each)
    for _ in range(3):
        graph.replay()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) * 1e3 / len(inputs)


def copy_rate() -> float:
    """Bytes read and written a second by a large copy on this card."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    start.record()
    target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return 2 * source.numel() / (start.elapsed_time(end) / 1e3)
