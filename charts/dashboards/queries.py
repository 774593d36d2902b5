"""PromQL that boards share: selectors by the board's variables, quantiles, states as numbers, labels of dcgm-exporter."""

from __future__ import annotations

import re
from dataclasses import dataclass

# what the rules record has no pod
OF_RELEASE = 'namespace=~"$namespace",release=~"$release"'
WHERE = f'{OF_RELEASE},pod=~"$pod"'
ENGINE_PHASES = (
    "preflight", "starting", "loading", "compiling", "warming", "ready", "stalled", "draining", "failed", "stopped",
)  # fmt: skip
STAGING_PHASES = (
    "starting", "waiting", "listing", "planning", "verifying", "fetching", "publishing", "warming", "done", "failed",
)  # fmt: skip
STARTUP = "preflight|starting|loading|compiling|warming"


@dataclass(frozen=True)
class Query:
    """One query of a panel and how its series are called; {{label}} takes the label's value."""

    expr: str
    legend: str


def of(metric: str, *matchers: str) -> str:
    """The metric of the chosen pods; a matcher is such as phase=ready, or phase=~a|b."""
    quoted = [re.sub(r"^(\w+)(=~?)(.*)$", r'\1\2"\3"', matcher) for matcher in matchers]
    return f"{metric}{{{','.join([*quoted, WHERE])}}}"


def rate(metric: str, *matchers: str) -> str:
    """Growth of a counter per second."""
    return f"rate({of(metric, *matchers)}[$__rate_interval])"


def increase(metric: str, *matchers: str) -> str:
    """Growth of a counter between two points of the graph."""
    return f"increase({of(metric, *matchers)}[$__rate_interval])"


def quantiles(histogram: str) -> list[Query]:
    """p50, p95 and p99 over all chosen pods."""
    buckets = f"sum by (le) ({rate(f'{histogram}_bucket')})"
    return [Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:.0f}") for q in (0.5, 0.95, 0.99)]


def mean(histogram: str, by: str = "pod") -> str:
    """Mean of what a histogram observed."""
    return f"sum by ({by}) ({rate(f'{histogram}_sum')}) / sum by ({by}) ({rate(f'{histogram}_count')})"


def state(metric: str, names: tuple[str, ...]) -> str:
    """Which of the states a pod is in, as its place in `names` from 1."""
    parts = (f"({of(metric, f'phase={name}')} == 1) * {n}" for n, name in enumerate(names, 1))
    return "max by (pod) (" + " or ".join(parts) + ")"


def of_gpu(metric: str) -> str:
    """A metric of dcgm-exporter by pod and card.

    Its labels of the pod that owns the card are exported_pod and exported_namespace where the exporter's monitor does
    not honour labels, and pod and namespace where it does.
    """
    foreign = f'{metric}{{exported_namespace=~"$namespace",exported_pod=~"$pod"}}'
    own = f'{metric}{{exported_pod="",namespace=~"$namespace",pod=~"$pod"}}'
    return f'max by (pod, gpu) (label_replace({foreign}, "pod", "$1", "exported_pod", "(.*)") or {own})'
