"""What a pod's metrics look like while something happens to it, minute by minute, and which alerts that must raise.

A story changes what differs from a healthy pod; everything else keeps its healthy values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

Values = list[float | None]
POD = {"namespace": "llm", "release": "glm5", "pod": "glm5-0"}
BACKEND = {
    "rank": "0", "backend": "TRITON_MLA_SPARSE", "backend_class": "x", "dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16", "device": "x", "compute_capability": "12.0",
}  # fmt: skip
PHASES = ("preflight", "starting", "loading", "warming", "ready", "stalled", "draining", "failed", "stopped")
# the card's labels as a monitor gives them that does not honour the exporter's own
CARD = {
    "gpu": "0",
    "namespace": "gpu",
    "pod": "exporter-x",
    "exported_namespace": "llm",
    "exported_pod": "glm5-0",
}
REPLICAS = 'kube_statefulset_replicas{namespace="llm",statefulset="glm5"}'


def name_of(metric: str, labels: Mapping[str, str] = POD) -> str:
    """A series as PromQL writes it."""
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def of_pod(metric: str, **labels: str) -> str:
    """A series of the pod."""
    return name_of(metric, POD | labels)


def phase(name: str) -> str:
    """The series that is 1 in that phase."""
    return of_pod("glm5_engine_phase", phase=name)


def steps(*parts: tuple[float | None, int]) -> Values:
    """Values that stay for so many minutes each; None is no sample."""
    return [value for value, minutes in parts for _ in range(minutes)]


def counter(*parts: tuple[float, int]) -> Values:
    """A counter that grows by so much a minute, for so many minutes each."""
    return list(accumulate(value for value, minutes in parts for _ in range(minutes)))


def ramp(first: float, step: float, minutes: int) -> Values:
    """Values that grow evenly."""
    return [first + step * minute for minute in range(minutes)]


def healthy(minutes: int) -> dict[str, Values]:
    """A pod that serves."""
    flat: dict[str, float] = {
        of_pod("up", endpoint="metrics"): 1,
        of_pod("glm5_engine_started"): 1,
        of_pod("glm5_engine_ready"): 1,
        of_pod("glm5_engine_startup_duration_seconds"): 400,
        of_pod("glm5_attention_backend_match", rank="0"): 1,
        of_pod("glm5_attention_backend_info", **BACKEND): 1,
        of_pod("glm5_attention_backend_expected_info", backend="TRITON_MLA_SPARSE"): 1,
        of_pod("glm5_engine_pending_requests"): 2,
        of_pod("glm5_engine_progress_age_seconds"): 0.2,
        of_pod("glm5_kernel_compiling"): 0,
        of_pod("glm5_kernel_compiles_after_warmup_total"): 0,
        of_pod("glm5_canary_total", result="failed"): 0,
        of_pod("glm5_staging_phase", phase="done"): 1,
        of_pod("vllm:num_requests_waiting"): 0,
        of_pod("vllm:kv_cache_usage_perc"): 0.4,
        of_pod("vllm:num_preemptions_total"): 0,
        name_of("DCGM_FI_DEV_GPU_UTIL", CARD): 97,
        name_of("DCGM_FI_DEV_POWER_USAGE", CARD): 430,
        REPLICAS: 1,
    }
    flat |= {phase(name): name == "ready" for name in PHASES}
    flat |= {
        of_pod("glm5_sidecar_scrape_success", target=name): 1
        for name in ("supervisor", "engine", "run_directory")
    }
    series = {name: steps((value, minutes)) for name, value in flat.items()}
    series[of_pod("vllm:generation_tokens_total")] = counter((6000, minutes))
    for metric, le in (
        ("vllm:time_to_first_token_seconds", "10.0"),
        ("vllm:inter_token_latency_seconds", "0.1"),
    ):
        series[of_pod(f"{metric}_bucket", le=le)] = counter((100, minutes))
        series[of_pod(f"{metric}_count")] = counter((100, minutes))
    return series


@dataclass(frozen=True)
class Story:
    """What happens, one value a minute or, in long ones, `every` so many; `alerts` must fire, and no others."""

    title: str
    values: int
    changes: dict[str, Values | None]
    alerts: dict[str, dict[str, str]] = field(default_factory=dict)
    every: int = 1

    def series(self) -> dict[str, Values]:
        """Every series with its values; a change to None leaves the series out."""
        merged: dict[str, Values | None] = {**healthy(self.values), **self.changes}
        return {name: values for name, values in merged.items() if values is not None}


def gone(minutes: int, since: int, until: int) -> dict[str, Values]:
    """The healthy pod with every one of its own series missing for a while; the StatefulSet stays."""
    series = healthy(minutes)
    for name, values in series.items():
        if name != REPLICAS:
            values[since:until] = [None] * (until - since)
    return series


def restarted(minutes: int, at: int, took: int, before: Mapping[str, Values]) -> dict[str, Values]:
    """`before` with a start of the engine that takes so many minutes from `at` on; its counters begin anew."""
    series, fresh = {name: list(values) for name, values in before.items()}, healthy(minutes)
    end = at + took
    flat = {
        of_pod("glm5_engine_started"): 0,
        of_pod("glm5_engine_ready"): 0,
        phase("ready"): 0,
        phase("loading"): 1,
        of_pod("glm5_engine_pending_requests"): 0,
        of_pod("glm5_sidecar_scrape_success", target="engine"): 0,
    }
    for name, value in flat.items():
        series[name][at:end] = [value] * took
    series[of_pod("glm5_engine_startup_duration_seconds")][at:] = [
        *ramp(0, 60, took),
        *[60 * took] * (minutes - end),
    ]
    for name, values in series.items():
        if "vllm:" in name or "glm5_attention" in name:
            values[at:end] = [None] * took
        if name in fresh and ("_total" in name or "_bucket" in name or "_count" in name):
            values[end:] = fresh[name][: minutes - end]
    return series
