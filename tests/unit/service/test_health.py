"""The state machine: what the probes say for given facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_service.watch.health import Facts, Limits, assess, canary_is_due, standing_still_seconds

LIMITS = Limits(stall_seconds=120, compile_cap_seconds=600, canary_failures=3)
SERVING = Facts(
    now=1000, startup="warming", api_answered=True, canary_passed=True, was_ready=True, progress_at=995
)
BUSY = replace(SERVING, pending=2, pending_since=990.0, queued=2)
STALE = replace(BUSY, queued=0)


@pytest.mark.parametrize(
    ("facts", "phase", "ready", "live"),
    [
        pytest.param(Facts(0), "starting", False, True, id="process runs"),
        pytest.param(Facts(0, startup="loading"), "loading", False, True, id="weights load"),
        pytest.param(Facts(0, startup="compiling"), "compiling", False, True, id="graphs are captured"),
        pytest.param(
            Facts(0, startup="warming", api_answered=True), "warming", False, True, id="no token yet"
        ),
        pytest.param(
            replace(SERVING, backend_problem="rank 1 missing"), "warming", False, True, id="not attested"
        ),
        pytest.param(
            replace(SERVING, backend_problem="rank 0 runs X", backend_wrong=True),
            "failed",
            False,
            True,
            id="wrong backend",
        ),
        pytest.param(SERVING, "ready", True, True, id="idle"),
        pytest.param(BUSY, "ready", True, True, id="busy"),
        pytest.param(replace(BUSY, now=1054), "ready", True, True, id="slow step"),
        pytest.param(replace(BUSY, now=1055), "stalled", False, True, id="half of the limit without a step"),
        pytest.param(replace(BUSY, now=1115), "failed", False, False, id="the limit without a step"),
        pytest.param(replace(SERVING, now=9999), "ready", True, True, id="nothing to do for hours"),
        pytest.param(replace(SERVING, canary_failures=1), "stalled", False, True, id="one canary failed"),
        pytest.param(replace(SERVING, canary_failures=3), "failed", False, False, id="canaries failed"),
        pytest.param(replace(SERVING, api_says_dead=True), "failed", False, False, id="/health says dead"),
        pytest.param(
            replace(SERVING, lost_processes=("EngineCore",)), "failed", False, False, id="core gone"
        ),
        pytest.param(replace(SERVING, exit_code=-9), "failed", False, False, id="engine ended"),
        pytest.param(replace(BUSY, stop_requested=True), "draining", False, True, id="draining"),
        pytest.param(
            replace(SERVING, stop_requested=True, exit_code=0), "stopped", False, False, id="stopped"
        ),
    ],
)
def test_verdict(facts: Facts, phase: str, ready: bool, live: bool) -> None:
    """Each situation has one phase, and readiness and liveness follow from it."""
    verdict = assess(facts, LIMITS)
    assert (verdict.phase, verdict.ready, verdict.live) == (phase, ready, live)
    assert verdict.reason
    assert verdict.ready or verdict.phase == "stopped" or verdict.remedy


@pytest.mark.parametrize("seconds", [30, 90, 599])
def test_a_compilation_is_progress_up_to_its_cap(seconds: int) -> None:
    """Work that waits for a kernel to compile neither costs readiness nor liveness."""
    facts = replace(
        BUSY, now=1000 + seconds, compiling="ptxas", compile_since=1000.0, compile_seen_at=1000.0 + seconds
    )
    verdict = assess(facts, LIMITS)
    assert (verdict.phase, verdict.live, verdict.reason) == (
        "ready",
        True,
        f"compiling ptxas for {seconds} s while serving",
    )


def test_a_compilation_over_its_cap_is_a_hang() -> None:
    """A compiler that never ends is found one stall limit after the cap."""
    facts = replace(BUSY, now=1000 + 719, compiling="nvcc", compile_since=1000.0, compile_seen_at=1719.0)
    assert assess(facts, LIMITS).live
    assert not assess(replace(facts, now=1720, compile_seen_at=1720.0), LIMITS).live


def test_waiting_counts_from_the_request() -> None:
    """An engine that was idle for an hour has not stood still for an hour when a request comes."""
    facts = replace(SERVING, now=5000, progress_at=1000.0, pending=1, pending_since=4990.0)
    assert standing_still_seconds(facts, LIMITS) == 10


@pytest.mark.parametrize(
    ("facts", "last", "due"),
    [
        pytest.param(Facts(0), None, False, id="API not up"),
        pytest.param(Facts(0, api_answered=True), None, True, id="first"),
        pytest.param(SERVING, 950.0, False, id="a token came lately"),
        pytest.param(replace(SERVING, now=1055), 950.0, True, id="idle for long"),
        pytest.param(replace(BUSY, now=1055), 950.0, False, id="users wait"),
        pytest.param(
            replace(BUSY, now=1055, queued=None), 950.0, True, id="users wait, and counters cannot be read"
        ),
        pytest.param(replace(STALE, now=1024), 950.0, False, id="the engine says it has nothing, lately"),
        pytest.param(replace(STALE, now=1025), 950.0, True, id="and for a quarter of the stall limit"),
        pytest.param(replace(STALE, now=1025, pending_since=1000.0), 950.0, False, id="a request just came"),
        pytest.param(replace(STALE, now=1025, compiling="ptxas"), 950.0, False, id="it compiles for users"),
        pytest.param(replace(STALE, now=1025, canary_failures=1), 1020.0, True, id="users wait, one failed"),
        pytest.param(replace(SERVING, canary_failures=1), 996.0, False, id="failed just now"),
        pytest.param(replace(SERVING, canary_failures=1, now=1001), 996.0, True, id="again after a failure"),
        pytest.param(replace(SERVING, now=9999, stop_requested=True), 1.0, False, id="draining"),
    ],
)
def test_canary_is_due(facts: Facts, last: float | None, due: bool) -> None:
    """The canary goes out when it tells something new and takes nobody's place."""
    assert canary_is_due(facts, LIMITS, idle_seconds=60, last_canary_at=last) is due
