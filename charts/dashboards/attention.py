"""Attention: what each rank runs against what it should, how fast its kernel was, and what is compiled while serving."""

from __future__ import annotations

from charts.dashboards.board import Row, board
from charts.dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panel,
    Size,
    bars,
    figure,
    labels,
    name_of_now,
    names,
    over_time,
    steps,
    timeline,
)
from charts.dashboards.queries import Query, increase, of, rate
from grafana_foundation_sdk.models.dashboard import Dashboard


def build() -> Dashboard:
    """The board."""
    about = (
        "Which attention backend each rank runs, against the expected one; kernel times; compilations while "
        "serving."
    )
    rows = [
        Row("Backend", backend()),
        Row("Kernel", kernel()),
        Row("Compilations", compilations()),
        Row("Memory", memory()),
    ]
    return board("attention", "GLM-5 / Attention", about, rows)


def backend() -> list[Panel]:
    """Expected against actual."""
    return [
        name_of_now(
            "Expected backend",
            "What every rank must attest before the pod turns ready (settings.health.expected_backend). Empty: "
            "nothing is demanded.",
            Query(f"max by (backend) ({of('glm5_attention_backend_expected_info')})", "{{backend}}"),
            Size(6, 4),
        ),
        name_of_now(
            "Actual backend",
            "What the ranks attest. A second name is a rank that differs: see the table.",
            Query(f"max by (backend) ({of('glm5_attention_backend_info')})", "{{backend}}"),
            Size(6, 4),
        ),
        name_of_now(
            "Type of the KV cache",
            "As each rank runs it. With settings.engine.kv_cache_dtype auto vLLM chooses; a type other than planned "
            "changes how many tokens fit.",
            Query(f"max by (kv_cache_dtype) ({of('glm5_attention_backend_info')})", "{{kv_cache_dtype}}"),
            Size(6, 4),
        ),
        figure(
            "Ranks attested",
            "Ranks that say what they run. Fewer than engine.tensorParallelSize: a worker does not live or "
            "has not made a step.",
            "none",
            [Query(f"count({of('glm5_attention_backend_info')})", "ranks")],
            Size(6, 4),
            limits=steps(RED, (1, GREEN)),
        ),
        timeline(
            "Rank runs the expected backend",
            "Red: another backend runs, the pod is out of service and a restart does not help; runbook "
            "GLM5WrongBackend.",
            [Query(f"max by (pod, rank) ({of('glm5_attention_backend_match')})", "{{pod}} rank {{rank}}")],
            names({0: ("another", RED), 1: ("expected", GREEN)}),
            Size(10),
        ),
        labels(
            "What each rank runs",
            "All ranks of a pod must agree in every column; one that differs slows or breaks all.",
            of("glm5_attention_backend_info"),
            [
                "pod",
                "rank",
                "backend",
                "backend_class",
                "dtype",
                "kv_cache_dtype",
                "device",
                "compute_capability",
            ],
            Size(14),
        ),
    ]


def kernel() -> list[Panel]:
    """Times and shape."""
    seconds = of("glm5_attention_kernel_duration_seconds")
    return [
        bars(
            "Time of one attention call by rows",
            "The slowest rank, measured at warm-up. Compare with docs of the plugin for your card; much "
            "more: a wrong configuration, a card that is throttled, or a shared one.",
            "s",
            [Query(f"sort(max by (rows) ({seconds}))", "{{rows}} rows")],
        ),
        over_time(
            "Slowest against fastest rank",
            "The same call on the slowest rank over that on the fastest. Much above 1: one card is slower, "
            "and all wait for it.",
            "short",
            [
                Query(
                    f"max by (pod, rows) ({seconds}) / min by (pod, rows) ({seconds})",
                    "{{pod}} {{rows}} rows",
                )
            ],
            limits=steps(GREEN, (1.2, YELLOW)),
        ),
        labels(
            "Configuration",
            "Tiles, warps and splits that were chosen for this card; the same on every rank of equal cards.",
            of("glm5_attention_kernel_configuration_info"),
            ["pod", "rank", "kernel", "configuration"],
            Size(8),
        ),
        figure(
            "Layers, heads of a rank, positions a query attends to",
            "The model's shape as the kernel sees it. Heads are those of the model divided by "
            "engine.tensorParallelSize; other figures than the model's: the wrong model is served.",
            "none",
            [
                Query(f"max({of('glm5_attention_layers')})", "layers"),
                Query(f"max({of('glm5_attention_heads')})", "heads of a rank"),
                Query(f"max({of('glm5_attention_top_k')})", "positions"),
            ],
            Size(24, 4),
        ),
    ]


def compilations() -> list[Panel]:
    """What holds up running requests."""
    return [
        over_time(
            "Kernels compiled after warm-up",
            "Between two points of the graph; should be 0. Each holds up every running request for seconds: "
            "runbook GLM5CompilesAfterWarmup.",
            "short",
            [Query(f"sum by (pod) ({increase('glm5_kernel_compiles_after_warmup_total')})", "{{pod}}")],
        ),
        over_time(
            "Share of time spent compiling",
            "While serving. Above 0 users wait for compilations; above settings.health.compile_cap_seconds at once the "
            "pod counts as hung.",
            "percentunit",
            [Query(f"sum by (pod) ({rate('glm5_kernel_compile_seconds_total')})", "{{pod}}")],
            most=1,
        ),
        timeline(
            "Compiles now",
            "A compilation that runs counts as progress, so the pod is not restarted for it.",
            [Query(f"max by (pod) ({of('glm5_kernel_compiling')})", "{{pod}}")],
            names({0: ("no", GREEN), 1: ("compiles", YELLOW)}),
            Size(8),
        ),
    ]


def memory() -> list[Panel]:
    """What was estimated before the start and what the engine reports."""
    return [
        bars(
            "Weights of a GPU",
            "Estimated by preflight from the file, and reported by the engine. Far apart: report it, "
            "preflight decides by the estimate whether the model fits.",
            "bytes",
            [Query(f"max by (source) ({of('glm5_memory_bytes')})", "{{source}}")],
            Size(12, 6),
        ),
        bars(
            "Tokens that fit into the KV cache",
            "All running requests together. Less than requests times their length: they wait or are "
            "preempted.",
            "short",
            [Query(f"max by (source) ({of('glm5_kv_cache_tokens')})", "{{source}}")],
            Size(12, 6),
        ),
    ]
