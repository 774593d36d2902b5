"""Every metric of the sidecar: name, type, labels, help; and the series of vLLM that pass through unchanged.

Nothing is exported that is not listed here, and the reference page is generated from this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One metric family. A counter's name ends in _total, an info's in _info."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


_ENGINE = (
    Metric(
        "glm5_build_info",
        "gauge",
        "Versions of what runs; always 1.",
        ("service", "plugin", "vllm", "torch", "triton"),
    ),
    Metric("glm5_model_info", "gauge", "The served model; always 1.", ("model", "architecture")),
    Metric("glm5_engine_phase", "gauge", "1 for the phase the engine is in, 0 for the others.", ("phase",)),
    Metric("glm5_engine_condition", "gauge", "1; why the engine is in its phase.", ("condition",)),
    Metric("glm5_engine_started", "gauge", "1 once the engine has ever been ready."),
    Metric("glm5_engine_ready", "gauge", "1 while the engine serves; 0 if nobody answers for it."),
    Metric("glm5_engine_live", "gauge", "0 if only a restart helps, or nobody answers for the engine."),
    Metric(
        "glm5_engine_phase_duration_seconds",
        "gauge",
        "Time spent so far in each phase that ended.",
        ("phase",),
    ),
    Metric(
        "glm5_engine_startup_duration_seconds",
        "gauge",
        "Time from the start, its checks included, to ready; while it starts, the time so far.",
    ),
    Metric(
        "glm5_engine_progress_age_seconds",
        "gauge",
        "Time since the engine last took a step, the canary's included.",
    ),
    Metric("glm5_engine_pending_requests", "gauge", "User requests that run or wait."),
)
_REQUESTS = (
    Metric("glm5_api_requests_total", "counter", "User requests that ended; the canary is not among them."),
    Metric("glm5_api_requests_refused_total", "counter", "User requests refused by the gate.", ("reason",)),
    Metric("glm5_canary_total", "counter", "The supervisor's own requests for one token.", ("result",)),
    Metric("glm5_canary_duration_seconds", "gauge", "How long the last canary that passed took."),
    Metric("glm5_canary_consecutive_failures", "gauge", "Canaries that failed since the last that passed."),
    Metric(
        "glm5_drain_requests",
        "gauge",
        "How running requests ended when the engine was told to stop.",
        ("outcome",),
    ),
    Metric("glm5_drain_duration_seconds", "gauge", "How long draining took."),
)
_KERNELS = (
    Metric("glm5_kernel_compiles_after_warmup_total", "counter", "Distinct kernels compiled after warm-up."),
    Metric("glm5_kernel_compile_seconds_total", "counter", "Time after warm-up in which a compilation ran."),
    Metric("glm5_kernel_compiling", "gauge", "1 while a compilation runs."),
    Metric("glm5_memory_bytes", "gauge", "Memory of the model per GPU.", ("what", "source")),
    Metric("glm5_kv_cache_tokens", "gauge", "Tokens that fit into the KV cache.", ("source",)),
)
_ATTENTION = (
    Metric(
        "glm5_attention_backend_info",
        "gauge",
        "What each rank runs; always 1.",
        ("rank", "backend", "backend_class", "dtype", "kv_cache_dtype", "device", "compute_capability"),
    ),
    Metric(
        "glm5_attention_backend_expected_info",
        "gauge",
        "The backend every rank must run; always 1.",
        ("backend",),
    ),
    Metric("glm5_attention_backend_match", "gauge", "1 if the rank runs the expected backend.", ("rank",)),
    Metric("glm5_attention_layers", "gauge", "Attention layers of the rank.", ("rank",)),
    Metric("glm5_attention_heads", "gauge", "Query heads of the rank.", ("rank",)),
    Metric("glm5_attention_top_k", "gauge", "Positions each query attends to.", ("rank",)),
    Metric(
        "glm5_attention_kernel_configuration_info",
        "gauge",
        "Tiles, warps and splits of a kernel; always 1.",
        ("rank", "kernel", "configuration"),
    ),
    Metric(
        "glm5_attention_kernel_duration_seconds",
        "gauge",
        "Measured time of one attention call by rows, taken at warm-up.",
        ("rank", "rows"),
    ),
)
_STAGING = (
    Metric("glm5_staging_phase", "gauge", "1 for the phase staging is in.", ("phase",)),
    Metric("glm5_staging_failed", "gauge", "1 if staging failed, by reason.", ("reason",)),
    Metric(
        "glm5_staging_bytes", "gauge", "Bytes of the model: in total, present, fetched, hashed.", ("state",)
    ),
    Metric(
        "glm5_staging_rate_bytes_per_second", "gauge", "Bytes per second from the source, over half a minute."
    ),
    Metric("glm5_staging_retries_total", "counter", "Requests to the source that were repeated."),
    Metric("glm5_staging_restarts_total", "counter", "Files that had to be fetched again."),
    Metric(
        "glm5_staging_phase_duration_seconds", "gauge", "Time spent in each phase that ended.", ("phase",)
    ),
    Metric("glm5_staging_updated_timestamp_seconds", "gauge", "When staging last reported."),
)
_SIDECAR = (
    Metric(
        "glm5_sidecar_scrape_success", "gauge", "1 if the target could be read for this page.", ("target",)
    ),
    Metric("glm5_sidecar_scrape_duration_seconds", "gauge", "How long reading the target took.", ("target",)),
)
SECTIONS = {
    "Engine": _ENGINE,
    "Requests": _REQUESTS,
    "Kernels and memory": _KERNELS,
    "Attention": _ATTENTION,
    "Staging": _STAGING,
    "The sidecar itself": _SIDECAR,
}
CATALOG = {metric.name: metric for section in SECTIONS.values() for metric in section}

# families of vLLM, as their names begin in the text format
PASSED_THROUGH = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:iteration_tokens_total",
    # these four are there with speculative decoding only
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
)

# those of the plugin, which stand on vLLM's page and pass through as well
PLUGIN = (
    Metric(
        "glm5_grammar_compilations_total",
        "counter",
        "Grammars of structured outputs that were tried, by result: passed, refused, slow, crashed.",
        ("result",),
    ),
    Metric("glm5_grammar_compile_seconds_total", "counter", "Time spent on trying grammars."),
    Metric(
        "glm5_grammar_waiting_requests",
        "gauge",
        "Requests that wait until their grammar is tried; they are no sign of a hang.",
    ),
)


def reference() -> str:
    """The reference page, in Markdown."""
    lines = [
        "# Metrics of the sidecar",
        "",
        "Generated from `glm5_service/sidecar/catalog.py` by `glm5 sidecar --reference`; do not edit.",
        "",
    ]
    for title, metrics in {**SECTIONS, "Structured output, from the API server": PLUGIN}.items():
        lines += [f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        lines += [f"| `{m.name}` | {m.kind} | {', '.join(m.labels) or '-'} | {m.help} |" for m in metrics]
        lines.append("")
    lines += ["## Passed through from vLLM unchanged", "", *(f"- `{name}`" for name in PASSED_THROUGH), ""]
    lines += [
        "vLLM counts every request it serves, the supervisor's canaries (one token each, only while the engine is",
        "idle) among them; `glm5_api_requests_total` counts users only, and `glm5_canary_total` what to subtract.",
        "",
    ]
    return "\n".join(lines)
