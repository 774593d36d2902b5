"""Engine detail: what the scheduler does, what caches and speculation bring, and how it drains."""

from __future__ import annotations

from charts.dashboards import gpus
from charts.dashboards.board import Row, board
from charts.dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panel,
    Size,
    figure,
    labels,
    names,
    over_time,
    steps,
    timeline,
)
from charts.dashboards.queries import Query, increase, mean, of, quantiles, rate
from grafana_foundation_sdk.models.dashboard import Dashboard


def build() -> Dashboard:
    """The board."""
    about = "Batch, prefill and decode, prefix cache, preemptions, speculation, canaries, draining and GPUs."
    rows = [
        Row("Scheduler", scheduler()),
        Row("Caches and speculation", caches()),
        Row("Supervision", supervision()),
        Row("GPUs (dcgm-exporter)", gpus.panels()),
    ]
    return board("engine", "GLM-5 / Engine detail", about, rows)


def scheduler() -> list[Panel]:
    """Batches and where the time goes."""
    parts = (("queue", "waiting"), ("prefill", "reading the prompt"), ("decode", "generating"))
    return [
        over_time(
            "Batch",
            "Running requests, and tokens that one step computes on average. Many requests and few tokens a "
            "step: pure generation; hundreds of tokens: prompts are read in between, and the others wait "
            "longer for their tokens.",
            "short",
            [
                Query(f"sum by (pod) ({of('vllm:num_requests_running')})", "{{pod}} requests"),
                Query(mean("vllm:iteration_tokens_total"), "{{pod}} tokens a step"),
            ],
        ),
        over_time(
            "Steps per second",
            "Turns of the engine. 0 while requests run: it hangs, runbook GLM5EngineStalled.",
            "short",
            [Query(f"sum by (pod) ({rate('vllm:iteration_tokens_total_count')})", "{{pod}}")],
        ),
        over_time(
            "Prompt tokens read against tokens generated",
            "Mostly read: long prompts; the prefix cache helps if they share their beginning. Canaries, one "
            "token each, are among them.",
            "short",
            [
                Query(f"sum({rate('vllm:prompt_tokens_total')})", "read"),
                Query(f"sum({rate('vllm:generation_tokens_total')})", "generated"),
            ],
        ),
        over_time(
            "Where a request's time goes",
            "Mean time of requests that ended. Waiting above the rest: too much arrives. Reading above "
            "generating: long prompts, or a slow prefill kernel.",
            "s",
            [Query(mean(f"vllm:request_{name}_time_seconds"), "{{pod}} " + text) for name, text in parts],
            Size(8),
            stacked=True,
        ),
        over_time(
            "Time in the queue",
            "Until the first step. p99 in the range of the promised time to first token: scale out or limit "
            "clients.",
            "s",
            quantiles("vllm:request_queue_time_seconds"),
            Size(8),
        ),
        over_time(
            "Time per output token of a request",
            "Mean of each request's own tokens; what one user sees as speed. Compare with the batch: it "
            "grows with it.",
            "s",
            quantiles("vllm:request_time_per_output_token_seconds"),
            Size(8),
        ),
    ]


def caches() -> list[Panel]:
    """Prefix cache, preemptions, speculation."""
    drafted = f"sum by (pod) ({rate('vllm:spec_decode_num_draft_tokens_total')})"
    return [
        over_time(
            "Prefix cache: share of prompt tokens found",
            "Low although prompts share their beginning: the cache is too small (KV cache in use), or "
            "replicas share no clients (router.policy cache_aware).",
            "percentunit",
            [
                Query(
                    f"sum by (pod) ({rate('vllm:prefix_cache_hits_total')}) / sum by (pod) "
                    f"({rate('vllm:prefix_cache_queries_total')})",
                    "{{pod}}",
                )
            ],
            Size(6),
            most=1,
        ),
        over_time(
            "Preemptions",
            "Requests thrown out of the KV cache to be computed again, between two points of the graph. "
            "More than a few: runbook GLM5KVCacheFull.",
            "short",
            [Query(f"sum by (pod) ({increase('vllm:num_preemptions_total')})", "{{pod}}")],
            Size(6),
        ),
        over_time(
            "Speculation: share of proposed tokens accepted",
            "Below 40 % it costs more than it gains: runbook GLM5SpecAcceptanceLow. Empty with "
            "engine.mtpTokens 0.",
            "percentunit",
            [
                Query(
                    f"sum by (pod) ({rate('vllm:spec_decode_num_accepted_tokens_total')}) / {drafted}",
                    "{{pod}}",
                )
            ],
            Size(6),
            limits=steps(RED, (0.4, YELLOW), (0.6, GREEN)),
            most=1,
        ),
        over_time(
            "Speculation: tokens accepted of each proposal",
            "By position. A position that is hardly ever accepted is wasted: lower engine.mtpTokens. Empty "
            "with engine.mtpTokens 0.",
            "percentunit",
            [
                Query(
                    f"sum by (position) ({rate('vllm:spec_decode_num_accepted_tokens_per_pos_total')})"
                    f" / on () group_left sum({rate('vllm:spec_decode_num_drafts_total')})",
                    "position {{position}}",
                )
            ],
            Size(6),
            most=1,
        ),
    ]


def supervision() -> list[Panel]:
    """Canaries, draining, the sidecar itself, versions."""
    return [
        over_time(
            "Canaries",
            "The supervisor's own requests, between two points of the graph. Failed, but for those before "
            "the first token of a start: runbook GLM5CanaryFailing. Inconclusive ones were overtaken by user "
            "requests.",
            "short",
            [Query(f"sum by (pod, result) ({increase('glm5_canary_total')})", "{{pod}} {{result}}")],
            Size(6),
        ),
        over_time(
            "Time of the last canary and since the last step",
            "One token of an idle engine, and how long no step was seen. The latter grows up to "
            "settings.health.canary_idle_seconds while idle; with requests running it must stay near 0.",
            "s",
            [
                Query(f"max by (pod) ({of('glm5_canary_duration_seconds')})", "{{pod}} canary"),
                Query(
                    f"max by (pod) ({of('glm5_engine_progress_age_seconds')})", "{{pod}} since the last step"
                ),
            ],
            Size(6),
        ),
        over_time(
            "How drains ended",
            "Requests of the last drain: finished, aborted at drainSeconds, refused meanwhile. Aborted: "
            "runbook GLM5DrainAborted.",
            "short",
            [Query(f"max by (pod, outcome) ({of('glm5_drain_requests')})", "{{pod}} {{outcome}}")],
            Size(6),
        ),
        over_time(
            "Time of drains",
            "Near drainSeconds: requests are longer than the limit allows, the next ones may be aborted.",
            "s",
            [Query(f"max by (pod) ({of('glm5_drain_duration_seconds')})", "{{pod}}")],
            Size(6),
        ),
        timeline(
            "Can the sidecar read its targets",
            "Red: what depends on the target is missing or old; runbooks GLM5SupervisorSilent and "
            "GLM5EngineMetricsMissing. The engine is red until its API answers.",
            [Query(f"max by (pod, target) ({of('glm5_sidecar_scrape_success')})", "{{pod}} {{target}}")],
            names({0: ("no", RED), 1: ("yes", GREEN)}),
            Size(10, 6),
        ),
        over_time(
            "How long the sidecar reads",
            "Part of every scrape. Near the scrape's timeout: the engine's API server is overloaded.",
            "s",
            [
                Query(
                    f"max by (pod, target) ({of('glm5_sidecar_scrape_duration_seconds')})",
                    "{{pod}} {{target}}",
                )
            ],
            Size(8, 6),
        ),
        figure(
            "Engines beyond help",
            "Pods of which only a restart can help; the kubelet does it. 0 is good.",
            "none",
            [Query(f"count({of('glm5_engine_live')} == 0) or on () vector(0)", "pods")],
            Size(6, 6),
            limits=steps(GREEN, (1, RED)),
        ),
        labels(
            "Versions",
            "What runs. After a rollout all pods must agree.",
            f"{of('glm5_build_info')} * on (namespace, pod) group_left (model, architecture) "
            f"{of('glm5_model_info')}",
            ["pod", "model", "architecture", "service", "plugin", "vllm", "torch", "triton"],
            Size(24, 4),
        ),
    ]
