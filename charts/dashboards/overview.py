"""Overview: is it serving, with which backend, how fast, and how much waits."""

from __future__ import annotations

from charts.dashboards.board import Row, board
from charts.dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panel,
    Size,
    figure,
    name_of_now,
    over_time,
    phases,
    steps,
)
from charts.dashboards.queries import ENGINE_PHASES, OF_RELEASE, Query, increase, of, quantiles, rate
from grafana_foundation_sdk.models.dashboard import Dashboard

CANARIES = "The supervisor's canaries, one token each while nobody asks, are among them."


def build() -> Dashboard:
    """The board."""
    about = "Whether GLM-5 is served, by which attention backend, how fast, and what waits."
    rows = [
        Row("Serving", serving()),
        Row("Traffic", traffic()),
        Row("Latency", latency()),
        Row("Load", load()),
    ]
    return board("overview", "GLM-5 / Overview", about, rows)


def serving() -> list[Panel]:
    """Ready pods, backend, phase."""
    small = Size(4, 6)
    return [
        figure(
            "Pods ready",
            "Pods that serve. 0: nobody is served; look at the phase beside it, then at the board Start-up "
            "and staging.",
            "none",
            [Query(f"sum({of('glm5_engine_ready')})", "ready")],
            small,
            limits=steps(RED, (1, GREEN)),
        ),
        name_of_now(
            "Attention backend",
            "What the ranks attest, with the type of their KV cache. More than one name: ranks differ; see "
            "the board Attention.",
            Query(
                f"max by (backend, kv_cache_dtype) ({of('glm5_attention_backend_info')})",
                "{{backend}} {{kv_cache_dtype}}",
            ),
            Size(6, 6),
        ),
        figure(
            "Ranks on another backend",
            "Ranks that do not run the expected backend. Above 0 the pod stays out of service: runbook "
            "GLM5WrongBackend.",
            "none",
            [
                Query(
                    f"count({of('glm5_attention_backend_match')}) - sum({of('glm5_attention_backend_match')})",
                    "ranks",
                )
            ],
            small,
            limits=steps(GREEN, (1, RED)),
        ),
        phases(
            "Phase",
            "What each pod does. Stalled or failed: runbooks GLM5EngineStalled and GLM5EngineFailed. "
            "Loading and warming are normal after a start; how long they may take is on the board Start-up "
            "and staging.",
            "glm5_engine_phase",
            ENGINE_PHASES,
            Size(10, 6),
        ),
    ]


def traffic() -> list[Panel]:
    """Tokens, requests, and how they end."""
    return [
        over_time(
            "Tokens per second",
            f"Tokens generated, and prompt tokens read. {CANARIES} Falls to nothing while requests run: "
            "runbook GLM5EngineStalled.",
            "short",
            [
                Query(f"sum by (pod) ({rate('vllm:generation_tokens_total')})", "{{pod}} generated"),
                Query(f"sum by (pod) ({rate('vllm:prompt_tokens_total')})", "{{pod}} read"),
            ],
        ),
        over_time(
            "User requests per second",
            "Requests that ended, without canaries, and those the gate refused, by reason. Many refused: "
            "read the reason; size and route are the client's fault, draining is ours. Grammars of structured "
            "output by result: slow ones were ended at api.grammar_seconds.",
            "reqps",
            [
                Query(f"sum by (pod) ({rate('glm5_api_requests_total')})", "{{pod}} ended"),
                Query(f"sum by (reason) ({rate('glm5_api_requests_refused_total')})", "refused: {{reason}}"),
                Query(f"sum by (result) ({rate('glm5_grammar_compilations_total')})", "grammars: {{result}}"),
            ],
        ),
        over_time(
            "How requests end",
            f"By finish reason. {CANARIES} abort: clients go away, often because they wait too long. error: "
            "read the engine's log.",
            "reqps",
            [
                Query(
                    f"sum by (finished_reason) ({rate('vllm:request_success_total')})", "{{finished_reason}}"
                )
            ],
            stacked=True,
        ),
    ]


def latency() -> list[Panel]:
    """What users wait for."""
    slow = [
        Query(
            f"max by (release) (glm5:{kind}_slow:ratio_rate1h{{{OF_RELEASE}}})",
            f"{{{{release}}}} {text}",
        )
        for kind, text in (("ttft", "first tokens"), ("inter_token", "tokens"))
    ]
    return [
        over_time(
            "Time to first token",
            f"Queue and reading of the prompt. {CANARIES} Grows with the queue (below) and with long "
            "prompts; if neither grows, look for compilations on the board Attention.",
            "s",
            quantiles("vllm:time_to_first_token_seconds"),
            Size(6),
        ),
        over_time(
            "Time between tokens",
            "What a reader sees as speed. Grows with the batch (board Engine detail). p99 far above p95: "
            "long prompts are read between the tokens of others, or kernels compile.",
            "s",
            quantiles("vllm:inter_token_latency_seconds"),
            Size(6),
        ),
        over_time(
            "Whole request",
            f"From arrival to last token; depends on how much is asked for. {CANARIES} Compare with its own "
            "past, not with a limit.",
            "s",
            quantiles("vllm:e2e_request_latency_seconds"),
            Size(6),
        ),
        over_time(
            "Slow share, one hour",
            "Share of first tokens and of tokens that came later than promised (prometheusRule.slo). Above "
            "the budget, 5 % by default, for long: runbook GLM5LatencySLOSlow. Recorded by the chart's "
            "rules; empty without them.",
            "percentunit",
            slow,
            Size(6),
            limits=steps(GREEN, (0.05, YELLOW), (0.3, RED)),
        ),
    ]


def load() -> list[Panel]:
    """What waits, what is full, what fails."""
    return [
        over_time(
            "Requests running and waiting",
            "Waiting for long means that more arrives than is served: runbook GLM5QueueGrowing. Running "
            "below settings.engine.max_num_seqs while others wait: the KV cache is full.",
            "short",
            [
                Query(f"sum by (pod) ({of('vllm:num_requests_running')})", "{{pod}} running"),
                Query(f"sum by (pod) ({of('vllm:num_requests_waiting')})", "{{pod}} waiting"),
            ],
        ),
        over_time(
            "KV cache in use",
            "Near 100 % requests wait or are preempted and computed again: runbook GLM5KVCacheFull.",
            "percentunit",
            [Query(f"max by (pod) ({of('vllm:kv_cache_usage_perc')})", "{{pod}}")],
            limits=steps(GREEN, (0.85, YELLOW), (0.95, RED)),
            most=1,
        ),
        over_time(
            "What failed",
            "Events between two points of the graph; all should be 0. Canaries failed, but for those before "
            "the first token of a start: runbook GLM5CanaryFailing. Requests ended with an error: the "
            "engine's log. Aborted by a drain: runbook GLM5DrainAborted.",
            "short",
            [
                Query(
                    f"sum by (pod) ({increase('glm5_canary_total', 'result=failed')})",
                    "{{pod}} canaries failed",
                ),
                Query(
                    f"sum by (pod) ({increase('vllm:request_success_total', 'finished_reason=error')})",
                    "{{pod}} requests with an error",
                ),
                Query(
                    f"max by (pod) ({of('glm5_drain_requests', 'outcome=aborted')})",
                    "{{pod}} aborted by a drain",
                ),
            ],
        ),
    ]
