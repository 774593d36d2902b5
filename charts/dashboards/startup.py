"""Start-up and staging: how far the model's way to the volume and into the GPUs is, and how long each part took."""

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
    over_time,
    phases,
    steps,
    timeline,
)
from charts.dashboards.queries import (
    ENGINE_PHASES,
    OF_RELEASE,
    STAGING_PHASES,
    STARTUP,
    Query,
    increase,
    of,
)
from grafana_foundation_sdk.models.dashboard import Dashboard

BUDGET = f"max by (release) (glm5:startup_budget_seconds{{{OF_RELEASE}}})"
IN_JOB = (
    "With staging.mode job the stager is a pod of its own, without metrics, and this one waits: read its log."
)


def build() -> Dashboard:
    """The board."""
    about = (
        "From the source to ready: staging with bytes, rate and time left; phases of the engine; the start-up "
        "budget."
    )
    rows = [
        Row("Staging", staging()),
        Row("Staging in detail", detail()),
        Row("Start of the engine", engine()),
    ]
    return board("startup", "GLM-5 / Start-up and staging", about, rows, since="now-6h")


def staging() -> list[Panel]:
    """How far it is."""
    total, present = (
        f"sum by (pod) ({of('glm5_staging_bytes', f'state={name}')})" for name in ("total", "present")
    )
    left = f"clamp_min({total} - {present}, 0)"
    per_second = f"sum by (pod) ({of('glm5_staging_rate_bytes_per_second')})"
    return [
        figure(
            "Present on the volume",
            "Share of the model's bytes. Stays below 100 % without growing: runbook GLM5StagingStalled. "
            f"{IN_JOB}",
            "percentunit",
            [Query(f"{present} / {total}", "{{pod}}")],
            Size(4, 6),
            limits=steps(YELLOW, (1, GREEN)),
        ),
        figure(
            "Time left",
            "Bytes that are missing at the rate of the last half minute; 0 when all is there. Longer than "
            "planned: compare the rate with staging.networkGBps.",
            "s",
            [Query(f"({left} / clamp_min({per_second}, 1)) * ({left} > bool 0)", "{{pod}}")],
            Size(4, 6),
        ),
        figure(
            "Failed attempts, by reason",
            'Failures that staging reports now; "none" is good. Each reason has its remedy in runbook '
            "GLM5StagingFailed.",
            "none",
            [
                Query(
                    f"max by (pod, reason) ({of('glm5_staging_failed')}) or on () vector(0)",
                    "{{pod}} {{reason}}",
                )
            ],
            Size(4, 6),
            limits=steps(GREEN, (1, RED)),
        ),
        phases(
            "Phase of staging",
            "Fetching takes longest; verifying is hashing. Waiting: another stager holds the volume's lock.",
            "glm5_staging_phase",
            STAGING_PHASES,
            Size(12, 6),
        ),
    ]


def detail() -> list[Panel]:
    """Bytes, rate, faults."""
    return [
        over_time(
            "Bytes",
            "Present on the volume, fetched by this attempt, hashed. Present falls: a damaged file is "
            "fetched again.",
            "decbytes",
            [Query(f"sum by (pod, state) ({of('glm5_staging_bytes')})", "{{pod}} {{state}}")],
        ),
        over_time(
            "Rate from the source",
            "Over half a minute. Far below staging.networkGBps: the source throttles (lower "
            "settings.staging.connections) or the volume is slow.",
            "Bps",
            [Query(f"sum by (pod) ({of('glm5_staging_rate_bytes_per_second')})", "{{pod}}")],
        ),
        over_time(
            "Repeated requests and files fetched again",
            "Between two points of the graph. Some repeats are normal on a long way; files fetched again "
            "mean bad bytes from source, proxy or disk.",
            "short",
            [
                Query(f"sum by (pod) ({increase('glm5_staging_retries_total')})", "{{pod}} requests"),
                Query(f"sum by (pod) ({increase('glm5_staging_restarts_total')})", "{{pod}} files"),
            ],
        ),
        bars(
            "Time by phase of staging",
            "Fetching is the network or the source, verifying the CPU and the volume (about one core per "
            "1.5 GB/s).",
            "s",
            [
                Query(
                    f"max by (pod, phase) ({of('glm5_staging_phase_duration_seconds')})", "{{pod}} {{phase}}"
                )
            ],
            Size(16, 7),
        ),
        figure(
            "Last word of the stager",
            "Time since it last reported. Grows while staging runs: it hangs, or was killed; runbook "
            "GLM5StagingStalled. After staging it grows for ever.",
            "s",
            [Query(f"time() - max by (pod) ({of('glm5_staging_updated_timestamp_seconds')})", "{{pod}}")],
            Size(8, 7),
        ),
    ]


def engine() -> list[Panel]:
    """Phases up to ready, against the budget."""
    took = f"max by (release, pod) ({of('glm5_engine_startup_duration_seconds')})"
    during = of("glm5_engine_phase_duration_seconds", f"phase=~{STARTUP}")
    return [
        figure(
            "Last start",
            "From the engine's start to ready; while it starts, so far. The first after staging reads a "
            "cold volume and compiles; later ones should be much faster.",
            "s",
            [Query(took, "{{pod}}")],
            Size(4, 7),
        ),
        figure(
            "Budget",
            "After this time the kubelet restarts the container, which begins anew (startup.budgetSeconds). "
            "Recorded by the chart's rules; empty without them.",
            "s",
            [Query(BUDGET, "{{release}}")],
            Size(4, 7),
        ),
        figure(
            "Share of the budget",
            "Above 80 % the next slow disk ends in a restart loop: runbook GLM5StartupOverBudget. Measure "
            "startup.storageGBps.",
            "percentunit",
            [Query(f"{took} / on (release) group_left {BUDGET}", "{{pod}}")],
            Size(4, 7),
            limits=steps(GREEN, (0.6, YELLOW), (0.8, RED)),
        ),
        bars(
            "Time by phase of the start",
            "Loading depends on the volume (or the page cache), compiling and warming on whether "
            "cache.persistent kept the kernels.",
            "s",
            [Query(f"max by (pod, phase) ({during})", "{{pod}} {{phase}}")],
            Size(12, 7),
        ),
        phases(
            "Phase of the engine",
            "Starting again and again: it fails or is over its budget; see `glm5 cluster status` and "
            "runbook GLM5EngineFailed.",
            "glm5_engine_phase",
            ENGINE_PHASES,
            Size(12, 7),
        ),
        timeline(
            "Why",
            "The condition behind the phase. backend_wrong, no_step, no_token, engine_dead and process_lost "
            "need somebody; the others are on the way or good.",
            [Query(f"max by (pod, condition) ({of('glm5_engine_condition')})", "{{pod}} {{condition}}")],
            [],
            Size(12, 7),
        ),
    ]
