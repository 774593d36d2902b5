"""The stories of every alert: when it fires, and when it must not although something happens."""

from __future__ import annotations

from collections.abc import Mapping

from tests.monitoring.stories import (
    BACKEND,
    CARD,
    POD,
    REPLICAS,
    Story,
    Values,
    counter,
    gone,
    healthy,
    name_of,
    of_pod,
    phase,
    ramp,
    restarted,
    steps,
)

READY, STARTED = of_pod("glm5_engine_ready"), of_pod("glm5_engine_started")
PENDING, AGE = of_pod("glm5_engine_pending_requests"), of_pod("glm5_engine_progress_age_seconds")
TOKENS, UP = of_pod("vllm:generation_tokens_total"), of_pod("up", endpoint="metrics")
WAITING, KV = of_pod("vllm:num_requests_waiting"), of_pod("vllm:kv_cache_usage_perc")
STARTUP = of_pod("glm5_engine_startup_duration_seconds")
DONE, FETCHING = of_pod("glm5_staging_phase", phase="done"), of_pod("glm5_staging_phase", phase="fetching")
VERIFYING = of_pod("glm5_staging_phase", phase="verifying")
REPORTED = of_pod("glm5_staging_updated_timestamp_seconds")
PRESENT, HASHED = (of_pod("glm5_staging_bytes", state=state) for state in ("present", "hashed"))
ABORTED = of_pod("glm5_drain_requests", outcome="aborted")
DRAFTS = of_pod("vllm:spec_decode_num_draft_tokens_total")
ACCEPTED = of_pod("vllm:spec_decode_num_accepted_tokens_total")
UTIL, POWER = name_of("DCGM_FI_DEV_GPU_UTIL", CARD), name_of("DCGM_FI_DEV_POWER_USAGE", CARD)
OWN_CARD = {"gpu": "0", "namespace": "llm", "pod": "glm5-0"}
CRITICAL, WARNING = POD | {"severity": "critical"}, POD | {"severity": "warning"}


def slow(metric: str, le: str, *good: tuple[float, int]) -> dict[str, list[float | None]]:
    """A latency histogram with 100 observations a minute, of which so many are good."""
    minutes = sum(part[1] for part in good)
    return {
        of_pod(f"{metric}_bucket", le=le): counter(*good),
        of_pod(f"{metric}_count"): counter((100, minutes)),
    }


def nothing_else(minutes: int) -> dict[str, None]:
    """Every healthy series left out."""
    return dict.fromkeys(healthy(minutes))


def dies(minutes: int, serves: int, loads: int, last_word: str = "failed") -> dict[str, Values | None]:
    """Over and over: ready for so long, ended for a minute, loading for so long; killed, it never says that it failed."""

    def repeated(*values: float) -> Values:
        """A value while it serves, one for the minute of its end, one while it loads."""
        return (steps(*zip(values, (serves, 1, loads), strict=True)) * minutes)[:minutes]

    return {
        READY: repeated(1, 0, 0), STARTED: repeated(1, serves > 0, 0), PENDING: repeated(2, 0, 0), TOKENS: None,
        phase("ready"): repeated(1, 0, 0), phase("loading"): repeated(0, last_word == "loading", 1),
        phase("failed"): repeated(0, last_word == "failed", 0),
        STARTUP: ([*steps((60 * loads, serves + 1)), *ramp(0, 60, loads)] * minutes)[:minutes],
        of_pod("glm5_sidecar_scrape_success", target="supervisor"): repeated(1, 0, 1),
        of_pod("glm5_sidecar_scrape_success", target="engine"): repeated(1, 0, 0),
    }  # fmt: skip


def replaced(every: int, before: Mapping[str, Values | None]) -> dict[str, Values | None]:
    """`before` with a pod at another address after every so many minutes."""
    series = dict(before)
    for name in (STARTED, STARTUP):
        values = series.pop(name) or []
        series[name] = None
        for begin in range(0, len(values), every):
            after = len(values) - begin - every
            series[name.replace("}", f',instance="{begin}"}}')] = [
                *steps((None, begin)), *values[begin:][:every], *steps((None, after)),
            ]  # fmt: skip
    return series


def comes_and_goes(minutes: int, loads: int, serves: int, away: int) -> dict[str, Values]:
    """A second pod, there to load and to serve for so long, over and over; its last values stay for five minutes."""
    started, startup = steps((0, loads), (1, serves)), [*ramp(0, 60, loads), *steps((60 * loads, serves))]
    return {
        of_pod(name, pod="glm5-1"): ([*there, *steps((None, away))] * minutes)[:minutes]
        for name, there in (
            ("glm5_engine_started", started),
            ("glm5_engine_startup_duration_seconds", startup),
        )
    }


def upgraded(minutes: int, *at: int, took: int) -> dict[str, Values]:
    """Upgrades at these minutes; the last page before ready came three seconds late each time."""
    series = healthy(minutes)
    for begin in at:
        series = restarted(minutes, begin, took, series)
        series[STARTUP][begin + took - 1] = 60 * took + 3
    return series


TTFT = ("vllm:time_to_first_token_seconds", "10.0")
INTER_TOKEN = ("vllm:inter_token_latency_seconds", "0.1")
SLO = {"namespace": "llm", "release": "glm5"}


def of_job(metric: str, job: str, **labels: str) -> str:
    """What kube-state-metrics says about a Job, or about the container of its pod."""
    whose = {"container": "stage", "pod": f"{job}-x7x7x"} if "container" in metric else {"job_name": job}
    return name_of(metric, {"namespace": "llm", **whose, **labels})


JOB, OTHER_JOB = "glm5-stage-0a1b2c3d", "glm5-next-stage-0a1b2c3d"
ATTEMPTS = "kube_pod_container_status_restarts_total"

FIRING = [
    Story(
        "stops serving and stays up", 30,
        {
            READY: steps((1, 10), (0, 20)), phase("ready"): steps((1, 10), (0, 20)),
            phase("stalled"): steps((0, 10), (1, 20)),
        },
        {"GLM5NotReady": CRITICAL},
    ),
    Story(
        "fails at every start", 60,
        {
            READY: steps((0, 60)), STARTED: steps((0, 60)), phase("ready"): steps((0, 60)), TOKENS: None,
            phase("failed"): steps((1, 5), (0, 1)) * 10, phase("starting"): steps((0, 5), (1, 1)) * 10,
        },
        {"GLM5EngineFailed": CRITICAL},
    ),
    Story(
        "preflight refuses to start the engine", 30,
        {
            **nothing_else(30), UP: steps((1, 30)), REPLICAS: steps((1, 30)), DONE: steps((1, 30)),
            of_pod("glm5_sidecar_scrape_success", target="supervisor"): steps((0, 30)),
        },
        {"GLM5EngineFailed": CRITICAL},
    ),
    Story("ends by itself late in each load", 240, dies(240, 0, 14), {"GLM5EngineRestarting": CRITICAL}),
    Story("is killed late in each load", 240, dies(240, 0, 24, "loading"), {"GLM5EngineRestarting": CRITICAL}),
    Story(
        "a group of nodes is recreated whenever it ends", 240, replaced(15, dies(240, 0, 14)),
        {"GLM5EngineRestarting": CRITICAL},
    ),
    Story(
        "is recreated minutes after the end of each load", 240, {**comes_and_goes(240, loads=14, serves=1, away=8)},
        {"GLM5EngineRestarting": CRITICAL | {"pod": "glm5-1"}},
    ),
    Story("ends by itself some time after each load", 240, dies(240, 20, 12), {"GLM5EngineRestarting": CRITICAL}),
    Story(
        "starts within a minute and ends again and again", 120, dies(120, 20, 1), {"GLM5EngineRestarting": CRITICAL}
    ),
    Story(
        "a rank runs another backend", 10,
        {
            READY: steps((0, 10)), STARTED: steps((0, 10)),
            of_pod("glm5_attention_backend_match", rank="0"): steps((0, 10)),
            of_pod("glm5_attention_backend_info", **BACKEND): None,
            of_pod("glm5_attention_backend_info", **BACKEND | {"backend": "FLASHMLA"}): steps((1, 10)),
        },
        {"GLM5WrongBackend": CRITICAL | {"rank": "0", "backend": "FLASHMLA"}},
    ),
    Story(
        "ready without an attestation", 10,
        {of_pod("glm5_attention_backend_info", **BACKEND): None, of_pod("glm5_attention_backend_match", rank="0"): None},
        {"GLM5BackendNotAttested": WARNING},
    ),
    Story(
        "work is queued and no step is taken", 12,
        {AGE: [*steps((0.2, 8)), *ramp(30, 60, 4)], UTIL: steps((0, 12))},
        {"GLM5EngineStalled": CRITICAL},
    ),
    Story(
        "steps are taken and no token comes", 30,
        {TOKENS: counter((6000, 10), (0, 20)), UTIL: steps((40, 30))},
        {"GLM5EngineStalled": CRITICAL},
    ),
    Story(
        "canaries fail", 20,
        {of_pod("glm5_canary_total", result="failed"): counter((0, 10), (1, 3), (0, 7)), PENDING: steps((0, 20))},
        {"GLM5CanaryFailing": CRITICAL},
    ),
    Story(
        "the supervisor is gone and its last word stays", 20,
        {of_pod("glm5_sidecar_scrape_success", target="supervisor"): steps((1, 5), (0, 15))},
        {"GLM5SupervisorSilent": WARNING},
    ),
    Story(
        "vLLM's page cannot be read", 20,
        {of_pod("glm5_sidecar_scrape_success", target="engine"): steps((1, 5), (0, 15))},
        {"GLM5EngineMetricsMissing": WARNING},
    ),
    Story(
        "vLLM's histogram is called otherwise", 20,
        {of_pod("vllm:time_to_first_token_seconds_count"): None},
        {"GLM5EngineMetricsMissing": WARNING},
    ),
    Story(
        "the sidecar does not answer", 20,
        {**gone(20, 5, 20), UP: steps((1, 5), (0, 15))},
        {"GLM5SidecarDown": WARNING},
    ),
    Story(
        "a drain aborts requests and the pod goes", 30,
        {**gone(30, 12, 13), ABORTED: steps((None, 10), (2, 2), (None, 18))},
        {"GLM5DrainAborted": WARNING},
    ),
    Story(
        "the pod is gone and wanted", 30, gone(30, 5, 30),
        {"GLM5PodMissing": {"namespace": "llm", "release": "glm5", "severity": "critical"}},
    ),
    Story(
        "one of two pods is pending", 30, {REPLICAS: steps((2, 30))},
        {"GLM5PodMissing": {"namespace": "llm", "release": "glm5", "severity": "critical"}},
    ),
    Story(
        "nobody knows the StatefulSet", 30, {REPLICAS: None},
        {"GLM5PodMissing": SLO | {"statefulset": "glm5", "severity": "critical"}},
    ),
    Story(
        "the start takes longer than four fifths of its budget", 60,
        restarted(60, 10, 30, healthy(60)),
        {"GLM5StartupOverBudget": WARNING},
    ),
    Story(
        "staging fails and is tried again", 30,
        {
            **nothing_else(30), UP: steps((1, 30)), REPLICAS: steps((1, 30)),
            of_pod("glm5_staging_failed", reason="OutOfSpace"): steps((None, 5), (1, 1), (None, 24)),
        },
        {"GLM5StagingFailed": CRITICAL | {"reason": "OutOfSpace"}},
    ),
    Story(
        "the source sends nothing", 30,
        {
            **nothing_else(30), UP: steps((1, 30)), REPLICAS: steps((1, 30)), FETCHING: steps((1, 30)),
            REPORTED: ramp(0, 60, 30), PRESENT: [*ramp(0, 1e9, 10), *steps((9e9, 20))],
        },
        {"GLM5StagingStalled": WARNING},
    ),
    Story(
        "the volume gives no byte to verify", 30,
        {
            **nothing_else(30), UP: steps((1, 30)), REPLICAS: steps((1, 30)), VERIFYING: steps((1, 30)),
            REPORTED: ramp(0, 60, 30), PRESENT: steps((48e9, 30)), HASHED: steps((0, 30)),
        },
        {"GLM5StagingStalled": WARNING},
    ),
    Story(
        "the stager reports nothing", 30,
        {
            **nothing_else(30), UP: steps((1, 30)), REPLICAS: steps((1, 30)),
            of_pod("glm5_staging_phase", phase="warming"): steps((1, 30)), REPORTED: [*ramp(0, 60, 5), *steps((240, 25))],
        },
        {"GLM5StagingStalled": WARNING},
    ),
    Story(
        "an attempt of the staging Job fails", 40, {of_job(ATTEMPTS, JOB): counter((0, 10), (1, 1), (0, 29))},
        {"GLM5StagingJobFailed": SLO | {"severity": "critical"}},
    ),
    Story(
        "the staging Job gives up", 40, {of_job("kube_job_failed", JOB, condition="true"): steps((None, 10), (1, 30))},
        {"GLM5StagingJobFailed": SLO | {"severity": "critical"}},
    ),
    Story("more arrives than is served", 40, {WAITING: ramp(0, 2, 40)}, {"GLM5QueueGrowing": WARNING}),
    Story(
        "the cache is full and requests wait for it", 30,
        {KV: steps((0.4, 5), (0.99, 25)), WAITING: steps((0, 5), (3, 25))},
        {"GLM5KVCacheFull": WARNING},
    ),
    Story(
        "the cache is full and requests are preempted", 30,
        {KV: steps((0.4, 5), (0.99, 25)), of_pod("vllm:num_preemptions_total"): counter((0, 5), (1, 25))},
        {"GLM5KVCacheFull": WARNING},
    ),
    Story(
        "kernels are compiled while it serves", 30,
        {of_pod("glm5_kernel_compiles_after_warmup_total"): counter((0, 10), (1, 4), (0, 16))},
        {"GLM5CompilesAfterWarmup": WARNING},
    ),
    Story(
        "most proposed tokens are refused", 60,
        {DRAFTS: counter((6000, 60)), ACCEPTED: counter((1200, 60))},
        {"GLM5SpecAcceptanceLow": WARNING},
    ),
    Story(
        "cards spin on a barrier", 20,
        {TOKENS: counter((6000, 5), (0, 15)), POWER: steps((430, 5), (130, 15)), PENDING: steps((0, 20))},
        {"GLM5HighUtilNoTokens": CRITICAL},
    ),
    Story(
        "cards spin on a barrier, labels honoured", 20,
        {
            UTIL: None, POWER: None, PENDING: steps((0, 20)), TOKENS: counter((6000, 5), (0, 15)),
            name_of("DCGM_FI_DEV_GPU_UTIL", OWN_CARD): steps((100, 20)),
            name_of("DCGM_FI_DEV_POWER_USAGE", OWN_CARD): steps((430, 5), (130, 15)),
        },
        {"GLM5HighUtilNoTokens": CRITICAL},
    ),
    Story("the exporter has no power", 40, {POWER: None}, {"GLM5GPUMetricsMissing": WARNING}),
    Story(
        "nine of ten first tokens are late", 90, slow(*TTFT, (100, 30), (10, 60)),
        {"GLM5LatencySLOFast": SLO | {"slo": "ttft", "severity": "critical"},
         "GLM5LatencySLOSlow": SLO | {"slo": "ttft", "severity": "warning"}},
    ),
    Story(
        "nine of ten tokens are late", 90, slow(*INTER_TOKEN, (100, 30), (10, 60)),
        {"GLM5LatencySLOFast": SLO | {"slo": "inter_token", "severity": "critical"},
         "GLM5LatencySLOSlow": SLO | {"slo": "inter_token", "severity": "warning"}},
    ),
    Story(
        "a tenth of the first tokens is late for three days", 600, slow(*TTFT, (90, 600)),
        {"GLM5LatencySLOSlow": SLO | {"slo": "ttft", "severity": "warning"}}, every=8,
    ),
]  # fmt: skip

SILENT = [
    Story("serves for two hours", 120, {}),
    Story(
        "idle for two hours, asked for a token each minute", 120,
        {
            PENDING: steps((0, 120)), AGE: steps((55, 120)), TOKENS: counter((1, 120)), UTIL: steps((0, 120)),
            POWER: steps((90, 120)), **slow(*INTER_TOKEN, (100, 120)),
        },
    ),
    Story(
        "planned rollout: drains within its limit, is gone for a minute, starts within its budget", 120,
        restarted(120, 36, 24, {
            **gone(120, 35, 36),
            READY: steps((1, 28), (0, 7), (None, 1), (1, 84)),
            phase("ready"): steps((1, 28), (0, 7), (None, 1), (1, 84)),
            phase("draining"): steps((0, 28), (1, 7), (None, 1), (0, 84)),
            ABORTED: steps((None, 33), (0, 2), (None, 85)),
        }),
    ),
    Story(
        "drains while a client does not read its answer", 60,
        {
            READY: steps((1, 28), (0, 32)), phase("ready"): steps((1, 28), (0, 32)),
            phase("draining"): steps((0, 28), (1, 12), (0, 20)), phase("stopped"): steps((0, 40), (1, 20)),
            PENDING: steps((2, 28), (1, 12), (0, 20)), AGE: [*steps((0.2, 28)), *ramp(0, 60, 12), *steps((0, 20))],
            TOKENS: counter((6000, 28), (0, 32)), UTIL: steps((60, 28), (0, 32)),
        },
    ),
    Story("scaled to zero and back", 240, {**gone(240, 30, 180), REPLICAS: steps((1, 30), (0, 150), (1, 60))}),
    Story("the container restarts once and starts within its budget", 120, restarted(120, 36, 24, healthy(120))),
    Story("two upgrades within an hour", 180, upgraded(180, 20, 60, took=24)),
    Story("an upgrade every hour and a minute", 240, upgraded(240, 20, 81, 142, 203, took=24)),
    Story(
        "a scaler adds and removes a replica every 45 minutes", 240,
        {**comes_and_goes(240, loads=20, serves=13, away=12)},
    ),
    Story(
        "fails once and starts again", 90,
        {**restarted(90, 31, 20, healthy(90)), phase("failed"): steps((0, 30), (1, 1), (0, 59)),
         READY: steps((1, 30), (0, 21), (1, 39))},
    ),
    Story(
        "one scrape in ten fails", 60,
        {UP: steps((1, 9), (0, 1)) * 6},
    ),
    Story(
        "compiles for three minutes while work is queued", 30,
        {AGE: [*steps((0.2, 10)), *ramp(10, 60, 3), *steps((0.2, 17))],
         of_pod("glm5_kernel_compiling"): steps((0, 10), (1, 3), (0, 17)),
         of_pod("glm5_kernel_compiles_after_warmup_total"): counter((0, 10), (1, 1), (0, 19))},
    ),
    Story(
        "ready without an attestation, and none is asked for", 20,
        {
            of_pod("glm5_attention_backend_info", **BACKEND): None,
            of_pod("glm5_attention_backend_match", rank="0"): None,
            of_pod("glm5_attention_backend_expected_info", backend="TRITON_MLA_SPARSE"): None,
        },
    ),
    Story("a long prompt is read for eight minutes", 40, {TOKENS: counter((6000, 10), (0, 8), (6000, 22))}),
    Story("one canary fails", 30, {of_pod("glm5_canary_total", result="failed"): counter((0, 10), (1, 1), (0, 19))}),
    Story("a drain ends with every request finished", 30, {ABORTED: steps((0, 30))}),
    Story(
        "staging takes an hour, with a pause of four minutes", 90,
        {
            **nothing_else(90), UP: steps((1, 90)), REPLICAS: steps((1, 90)), FETCHING: steps((1, 60), (0, 30)),
            DONE: steps((0, 60), (1, 30)), REPORTED: ramp(0, 60, 90),
            PRESENT: [*ramp(0, 1e9, 30), *steps((29e9, 4)), *ramp(30e9, 1e9, 56)],
        },
    ),
    Story(
        "a large file is verified for 20 minutes", 40,
        {
            **nothing_else(40), UP: steps((1, 40)), REPLICAS: steps((1, 40)), DONE: steps((0, 30), (1, 10)),
            VERIFYING: [*steps((0, 5), (1, 20), (0, 15))], REPORTED: ramp(0, 60, 40), PRESENT: steps((48e9, 40)),
            HASHED: [*steps((0, 5)), *ramp(0, 2.4e9, 20), *steps((48e9, 15))],
        },
    ),
    Story(
        "waits for the lock of another stager", 60,
        {
            **nothing_else(60), UP: steps((1, 60)), REPLICAS: steps((1, 60)), REPORTED: ramp(0, 60, 60),
            of_pod("glm5_staging_phase", phase="waiting"): steps((1, 60)),
        },
    ),
    Story(
        "the pod is deleted while it stages", 30,
        {
            **nothing_else(30), UP: steps((1, 30)), REPLICAS: steps((1, 30)),
            of_pod("glm5_staging_failed", reason="Interrupted"): steps((None, 10), (1, 1), (None, 19)),
        },
    ),
    Story(
        "the staging Job was disturbed long ago, and the Job of another release fails", 60,
        {
            of_job(ATTEMPTS, JOB): steps((3, 60)), of_job("kube_job_failed", JOB, condition="true"): steps((0, 60)),
            of_job(ATTEMPTS, OTHER_JOB): counter((1, 60)),
            of_job("kube_job_failed", OTHER_JOB, condition="true"): steps((1, 60)),
        },
    ),
    Story("forty requests come at once and are served", 40, {WAITING: steps((0, 10), (40, 3), (20, 3), (0, 24))}),
    Story("the cache is full and nobody waits", 30, {KV: steps((0.99, 30))}),
    Story("good speculation", 60, {DRAFTS: counter((6000, 60)), ACCEPTED: counter((4200, 60))}),
    Story("hardly any speculation", 60, {DRAFTS: counter((6, 60)), ACCEPTED: counter((0, 60))}),
    Story("real work at full utilisation", 30, {UTIL: steps((100, 30)), POWER: steps((560, 30))}),
    Story("four of a hundred first tokens are late for a day", 300, slow(*TTFT, (96, 300)), every=5),
    Story("one bad minute", 240, slow(*TTFT, (100, 120), (0, 1), (100, 119))),
]  # fmt: skip
