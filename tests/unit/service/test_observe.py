"""What counts as progress, as waiting work, as a compilation and as a lost process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from glm5_service.contracts.compile_mark import CompileMark
from glm5_service.contracts.gate_counts import GateCounts
from glm5_service.watch.backend import BackendCheck, check_backend, expected_backend
from glm5_service.watch.health import Facts, Limits, Verdict, assess, canary_is_due
from glm5_service.watch.logwatch import LogFacts, read_line
from glm5_service.watch.observe import BLIND_SECONDS, Observer
from glm5_service.watch.processes import ProcessView
from glm5_service.watch.vllm_api import CanaryResult, Sample, parse_steps
from tests.support.records import attestation

CORE, WORKER = (11, "EngineCore"), (12, "Worker")
ALL = ProcessView(frozenset({10, 11, 12}), frozenset({CORE, WORKER}))
PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="glm-5"} 2.0
vllm:num_requests_waiting{engine="0",model_name="glm-5"} 1.0
vllm:generation_tokens_total{engine="0",model_name="glm-5"} 40.0
vllm:generation_tokens_total{engine="1",model_name="glm-5"} 2.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="glm-5"} 7.0
"""


LIMITS = Limits(stall_seconds=120, compile_cap_seconds=600, canary_failures=3)
CANARY_SECONDS = 30


def _page(tokens: float, aborted: int = 0, running: int = 0) -> str:
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\n'
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n'
        f'vllm:request_success_total{{engine="0",finished_reason="abort"}} {aborted}\n'
    )


def _gate(running: int = 0, sent: int = 0) -> GateCounts:
    return GateCounts(running, 0, sent, {}, 0, False)


def _observer(**facts: Any) -> Observer:
    return Observer(Facts(0, was_ready=True, canary_passed=True, api_answered=True, **facts), LIMITS)


def _look(observer: Observer, now: float, **seen: Any) -> None:
    sample = Sample(200, parse_steps(seen["page"]) if "page" in seen else None, seen.get("gate"))
    view = seen.get("processes", ALL)
    observer.look(now, sample, view, LogFacts(), BackendCheck(), seen.get("marks", []))


def test_step_counters_are_summed_over_engines() -> None:
    """Series of several engines count together; others are not read."""
    steps = parse_steps(PAGE)
    assert steps
    assert (steps.pending, steps.total("vllm:generation_tokens_total")) == (3, 42.0)
    assert steps.total("vllm:request_success_total") == 0


@pytest.mark.parametrize(
    "page",
    [
        "",
        "process_cpu_seconds_total 3.0\n",
        "# HELP vllm:num_requests_running\n",
        "vllm:num_requests_running three\n",
    ],
)
def test_a_page_without_step_counters_cannot_be_read(page: str) -> None:
    """Where vLLM counts no steps, there are none to stand still."""
    assert parse_steps(page) is None


def test_nan_is_no_request_and_no_step() -> None:
    """A gauge that is NaN, steadily or now and then, neither counts as a request nor hides a hang."""
    observer = _observer()
    _look(observer, 1, page=_page(5) + "vllm:kv_cache_usage_perc NaN\n")
    for now, usage in ((2, "NaN"), (3, "0.5"), (4, "NaN"), (5, "0.5")):
        _look(observer, now, page=_page(5) + f"vllm:kv_cache_usage_perc {usage}\n")
    nothing = parse_steps("vllm:num_requests_running NaN\nvllm:generation_tokens_total 5\n")

    assert observer.facts.progress_at is None
    assert nothing
    assert nothing.pending == 0


def test_a_timestamp_behind_a_value_is_not_the_value() -> None:
    """The text format allows milliseconds since 1970 as a third word."""
    steps = parse_steps('vllm:num_requests_running{engine="0"} 3 1764547200000\n')

    assert steps
    assert steps.pending == 3


def test_moving_counters_are_progress_and_client_aborts_are_not() -> None:
    """Clients that give up move vLLM's request counts; only what the scheduler moves counts as a step."""
    observer = _observer()
    _look(observer, 1, page=_page(5))
    _look(observer, 2, page=_page(6))
    _look(observer, 3, page=_page(6, aborted=3))
    assert observer.facts.progress_at == 2


def test_waiting_work_is_what_the_gate_holds() -> None:
    """A hung engine never reports the requests that reach it; the gate in front of it does."""
    observer = _observer()
    _look(observer, 1, page=_page(5), gate=_gate(0))
    _look(observer, 2, page=_page(5), gate=_gate(3))
    _look(observer, 9, page=_page(5), gate=_gate(1))
    assert (observer.facts.pending, observer.facts.pending_since) == (1, 2)
    _look(observer, 10, page=_page(5), gate=_gate(0))
    assert (observer.facts.pending, observer.facts.pending_since) == (0, None)


def test_answers_to_users_are_progress_only_where_counters_cannot_be_read() -> None:
    """While the counters are readable they alone decide; without them, answers that go out are the sign of life."""
    observer = _observer()
    _look(observer, 1, page=_page(5), gate=_gate(1, sent=1))
    _look(observer, 2, page=_page(5), gate=_gate(1, sent=2))
    assert observer.facts.progress_at is None
    _look(observer, 2 + BLIND_SECONDS + 1, gate=_gate(1, sent=3))
    assert observer.is_blind
    assert observer.facts.progress_at == 13


def test_compilers_and_marks_are_compilations() -> None:
    """A compiler in the engine's session, or a mark by one of its living processes, is a compilation."""
    observer = _observer()
    _look(observer, 1, processes=replace(ALL, compilers=("ptxas",)))
    assert (observer.facts.compiling, observer.facts.compile_since) == ("ptxas", 1)
    mark = CompileMark(kernel="decode", since=time.time())
    _look(observer, 2, marks=[(12, mark)])
    assert observer.facts.compiling == "decode"
    _look(observer, 3, marks=[(99, mark)])
    assert observer.facts.compiling is None


def test_compiling_takes_no_longer_than_it_has_lasted() -> None:
    """The look that finds a compilation counts from its mark, not from the look before; a compiler has no mark."""
    observer, age = _observer(), 60
    _look(observer, 10_000, marks=[(12, CompileMark(kernel="decode", since=time.time() - age))])
    assert age <= observer.compiled_seconds < 10_000
    before = observer.compiled_seconds
    _look(observer, 10_001, marks=[(12, CompileMark(kernel="decode", since=time.time() - age))])
    assert observer.compiled_seconds == before + 1
    _look(observer, 10_003, processes=replace(ALL, compilers=("ptxas",)))
    assert observer.compiled_seconds == before + 3


def test_a_chain_of_compilations_has_one_cap() -> None:
    """Without a step between them, the second compilation does not restart the clock of the first."""
    observer = _observer()
    compiling = replace(ALL, compilers=("nvcc",))
    _look(observer, 1, page=_page(1), processes=compiling)
    _look(observer, 2, page=_page(1))
    _look(observer, 3, page=_page(1), processes=compiling)
    assert observer.facts.compile_since == 1
    _look(observer, 4, page=_page(2))
    _look(observer, 5, page=_page(2), processes=compiling)
    assert observer.facts.compile_since == 5


def test_a_process_that_was_there_when_ready_must_stay() -> None:
    """The engine core may die while the API server goes on answering; its absence is enough."""
    observer = Observer(Facts(0), LIMITS)
    _look(observer, 1)
    observer.facts = replace(observer.facts, was_ready=True)
    _look(observer, 2, processes=ProcessView(frozenset({10, 12}), frozenset({WORKER})))
    assert observer.facts.lost_processes == ("EngineCore",)


def test_processes_may_come_and_go_before_readiness() -> None:
    """While it starts, vLLM ends helpers of its own."""
    observer = Observer(Facts(0), LIMITS)
    _look(observer, 1)
    _look(observer, 2, processes=ProcessView(frozenset({10, 12}), frozenset({WORKER})))
    assert observer.facts.lost_processes == ()


def test_canary_that_fails_while_others_get_tokens_says_nothing() -> None:
    """A canary that times out behind user work is inconclusive; on an idle engine it is a failure."""
    observer = _observer()
    _look(observer, 1, page=_page(1, running=1), gate=_gate(1))
    observer.canary_done(2, 1, CanaryResult(1.0, "no answer in 1 s"))
    assert (observer.canary.inconclusive, observer.facts.canary_failures) == (1, 0)
    _look(observer, 3, page=_page(1, running=1), gate=_gate(0))
    observer.canary_done(4, 3, CanaryResult(1.0, "no answer in 1 s"))
    assert (observer.canary.failed, observer.facts.canary_failures) == (1, 1)
    observer.canary_done(6, 5, CanaryResult(0.1, None))
    assert (observer.canary.passed, observer.facts.canary_failures) == (1, 0)


def test_a_canary_behind_a_compilation_for_users_says_nothing() -> None:
    """Counters that are older than the request say nothing is there while its kernel compiles; the stall limit knows."""
    observer = _observer()
    _look(observer, 1, page=_page(1), gate=_gate(1), processes=replace(ALL, compilers=("ptxas",)))
    observer.canary_done(2, 0.5, CanaryResult(1.0, "no answer in 1 s"))
    assert (observer.canary.inconclusive, observer.facts.canary_failures) == (1, 0)


def _watch(seconds: int, seen: Callable[[int], dict[str, Any]], *, answers: bool) -> list[Verdict]:
    """The verdicts of so many looks, one a second, with the canaries that are due; they pass or get no answer."""
    observer = _observer(progress_at=0.0)
    observer.last_canary_at, asked = 0.0, None
    verdicts = []
    for now in range(1, seconds + 1):
        if asked is not None and (answers or now - asked >= CANARY_SECONDS):
            error = None if answers else f"no answer in {CANARY_SECONDS} s"
            observer.canary_done(now, asked, CanaryResult(now - asked, error))
            asked = None
        _look(observer, now, **seen(now))
        verdicts.append(assess(observer.facts, LIMITS))
        last = observer.last_canary_at
        if asked is None and canary_is_due(observer.facts, LIMITS, idle_seconds=60, last_canary_at=last):
            asked = now
    return verdicts


def _first(verdicts: list[Verdict], lost: Callable[[Verdict], bool]) -> int | None:
    return next((second for second, verdict in enumerate(verdicts, 1) if lost(verdict)), None)


def test_an_answer_that_its_client_does_not_take_is_no_hang() -> None:
    """The gate holds a request for ten minutes that the engine has done with: always ready, on the canary's word."""
    verdicts = _watch(600, lambda now: {"page": _page(5), "gate": _gate(1)}, answers=True)
    assert {(verdict.ready, verdict.live) for verdict in verdicts} == {(True, True)}


@pytest.mark.parametrize("running", [0, 1], ids=["counters from before the request", "counters know of it"])
def test_a_hung_engine_is_found_whatever_its_old_counters_say(running: int) -> None:
    """A request that came at 10 s costs readiness half a limit later and liveness at the limit, give or take a look."""
    verdicts = _watch(
        200, lambda now: {"page": _page(5, running=running), "gate": _gate(now >= 10)}, answers=False
    )
    assert _first(verdicts, lambda verdict: not verdict.ready) == 10 + 60
    assert _first(verdicts, lambda verdict: not verdict.live) == 10 + 120


def _gives_up(period: int, busy: int) -> Callable[[int], GateCounts]:
    """A client that asks once a period and gives up after so many seconds."""
    return lambda now: _gate(now % period < busy)


PERIODS = [(27, 25), (32, 30), (62, 60), (70, 60), (101, 100)]


@pytest.mark.parametrize("running", [0, 1])
@pytest.mark.parametrize(("period", "busy"), PERIODS)
def test_clients_that_give_up_do_not_hide_a_hung_engine(period: int, busy: int, running: int) -> None:
    """Where each request ends before any limit and the next one comes, the canary between them counts.

    Whether the engine's last counters speak of a request or of none says nothing of those that came later.
    """
    gate = _gives_up(period, busy)
    verdicts = _watch(600, lambda now: {"page": _page(5, running=running), "gate": gate(now)}, answers=False)
    dead = _first(verdicts, lambda verdict: not verdict.live)
    assert dead is not None
    assert dead <= 60 + 3 * (CANARY_SECONDS + period)


def test_clients_that_give_up_do_not_hide_a_kernel_that_does_not_end() -> None:
    """Between requests as well a compilation is an excuse up to its cap, and the canary counts from then on."""
    compiling, gate = replace(ALL, compilers=("ptxas",)), _gives_up(62, 60)
    verdicts = _watch(
        1200,
        lambda now: {"page": _page(5, running=1), "gate": gate(now), "processes": compiling},
        answers=False,
    )
    dead = _first(verdicts, lambda verdict: not verdict.live)
    assert dead is not None
    cap = LIMITS.compile_cap_seconds
    assert cap < dead <= cap + 60 + 3 * (CANARY_SECONDS + 62)


@pytest.mark.parametrize("step_seconds", [1, 20])
@pytest.mark.parametrize("idle", [61, 65, 69])
def test_a_canary_that_users_overtake_is_no_hang(idle: int, step_seconds: int) -> None:
    """It goes out after a minute of silence and waits behind those who come next: their steps speak for the engine."""

    def seen(now: int) -> dict[str, Any]:
        rounds, second = divmod(now, idle + 60)
        steps = rounds * 60 + max(second - idle, 0)
        return {"page": _page(steps // step_seconds, running=3), "gate": _gate(second >= idle)}

    assert {(verdict.ready, verdict.live) for verdict in _watch(1200, seen, answers=False)} == {(True, True)}


def test_an_engine_that_counts_no_steps_is_judged_by_its_answers() -> None:
    """With --disable-log-stats a loaded engine is ready on the word of what it sends, although no canary gets through."""
    page = "process_cpu_seconds_total 3.0\n"
    verdicts = _watch(600, lambda now: {"page": page, "gate": _gate(16, sent=16 * now)}, answers=False)
    assert {(verdict.ready, verdict.live) for verdict in verdicts} == {(True, True)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("(Worker pid=1) INFO Starting to load model /m...", LogFacts(startup="loading")),
        ("INFO Capturing CUDA graphs (decode, FULL): 3%", LogFacts(startup="compiling")),
        (
            "INFO init engine (profile, create kv cache, warmup model) took 0.47 s",
            LogFacts(startup="warming"),
        ),
        ("INFO GPU KV cache size: 254,080 tokens, Maximum concurrency", LogFacts(kv_tokens=254080)),
        ("INFO glm5: parameters take 12 bytes", LogFacts(weights_bytes=12)),
        ("INFO Model loading took 1.5 GiB memory and 2.0 seconds", LogFacts(weights_bytes=3 * 2**29)),
        (
            "WARNING Triton kernel JIT compilation during inference: _decode. This causes a latency spike",
            LogFacts(compiles_after_warmup=1, last_compile="_decode"),
        ),
        (
            "(EngineCore pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:316] Worker proc VllmWorker-1 died "
            "unexpectedly (exit code: -9), shutting down executor.",
            LogFacts(lost=("VllmWorker-1",)),
        ),
        (
            "(APIServer pid=8) WARNING 12-01 10:00:00 [core_client.py:818] [shutdown] MPClient: engine core exited "
            "unexpectedly; starting cleanup",
            LogFacts(lost=("EngineCore",)),
        ),
        ("INFO something else", LogFacts()),
    ],
)
def test_log_lines(line: str, expected: LogFacts) -> None:
    """Lines of vLLM's log are facts; a phase never goes back."""
    assert read_line(LogFacts(), line) == expected
    assert read_line(LogFacts(startup="warming"), line).startup == "warming"


@pytest.mark.parametrize(
    ("setting", "architecture", "expected"),
    [
        ("auto", "glm-dsa", "TORCH_MLA_SPARSE"),
        ("auto", "qwen3", None),
        ("none", "glm-dsa", None),
        ("OTHER", "qwen3", "OTHER"),
    ],
)
def test_expected_backend(setting: str, architecture: str, expected: str | None) -> None:
    """GLM-5 must run on the plugin's backend of its profile unless the settings say otherwise."""
    assert expected_backend(setting, "cpu", architecture) == expected


@pytest.mark.parametrize(
    ("attested", "problem", "wrong"),
    [
        ([], "no attention by B attested yet by ranks 0, 1", False),
        ([(0, "B", 1.0)], "no attention by B attested yet by ranks 1", False),
        ([(0, "B", 1.0), (1, "B", None)], "no attention by B attested yet by ranks 1", False),
        ([(0, "B", 1.0), (1, "A", 1.0)], "rank 1 runs attention backend A; expected B", True),
        ([(0, "B", 1.0), (1, "B", 2.0)], None, False),
    ],
)
def test_every_rank_must_attest(
    attested: list[tuple[int, str, float | None]], problem: str | None, wrong: bool
) -> None:
    """Readiness needs real attention by the expected backend on every rank."""
    records = [attestation(rank, name, first_call_at=at) for rank, name, at in attested]
    assert check_backend(records, "B", 2) == BackendCheck(problem, wrong)
