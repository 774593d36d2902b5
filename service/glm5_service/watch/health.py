"""Phase, readiness and liveness as a pure function of observed facts. Knows no clock, no process, no network.

`observe` gathers the facts; the health server of `supervise` answers the probes with the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glm5_service.contracts.engine import Condition, Phase

Startup = Literal["starting", "loading", "compiling", "warming"]


@dataclass(frozen=True)
class Limits:
    """Limits in seconds and counts, after which an engine without progress counts as hung."""

    stall_seconds: float
    compile_cap_seconds: float
    canary_failures: int


@dataclass(frozen=True)
class Facts:
    """What is known of the engine at `now`. Times are seconds of one monotonic clock. None means never."""

    now: float
    startup: Startup = "starting"
    stop_requested: bool = False
    exit_code: int | None = None
    lost_processes: tuple[str, ...] = ()
    lost_since: float | None = None
    api_answered: bool = False
    api_says_dead: bool = False
    backend_problem: str | None = None
    backend_wrong: bool = False
    canary_passed: bool = False
    canary_failures: int = 0
    canary_error: str | None = None
    was_ready: bool = False
    # user requests that have arrived completely. The engine may have them, or may have finished them
    pending: int = 0
    pending_since: float | None = None
    # requests by the engine's own counters. None if these cannot be read
    queued: int | None = None
    progress_at: float | None = None
    compile_since: float | None = None
    compile_seen_at: float | None = None
    compiling: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What the probes answer, why, and what to do about it."""

    phase: Phase
    condition: Condition
    reason: str
    remedy: str = ""
    ready: bool = False
    live: bool = True


def assess(facts: Facts, limits: Limits) -> Verdict:
    """Return the verdict on `facts`. The first rule that applies decides."""
    return _ended(facts) or _dead(facts) or _starting(facts) or _stuck(facts, limits) or _serving(facts)


def _ended(facts: Facts) -> Verdict | None:
    if facts.exit_code is not None:
        if facts.stop_requested:
            return Verdict("stopped", "stopped", "the engine stopped as it was told to", live=False)
        reason = f"the engine ended with {facts.exit_code}"
        return Verdict("failed", "ended", reason, "Restart the container.", live=False)
    if facts.stop_requested:
        reason = "told to stop; running requests finish"
        return Verdict("draining", "draining", reason, "Nothing. The pod ends.")
    return None


def _dead(facts: Facts) -> Verdict | None:
    if facts.lost_processes:
        names = ", ".join(facts.lost_processes)
        return Verdict(
            "failed", "process_lost", f"the engine lost {names}", "Restart the container.", live=False
        )
    if facts.api_says_dead:
        reason = "vLLM says that its engine is dead"
        return Verdict("failed", "engine_dead", reason, "Restart the container.", live=False)
    return None


def _starting(facts: Facts) -> Verdict | None:
    if facts.backend_wrong and facts.backend_problem:
        remedy = "Correct the settings. A restart changes nothing."
        return Verdict("failed", "backend_wrong", facts.backend_problem, remedy)
    if not facts.api_answered:
        reason = f"the engine is {facts.startup}"
        return Verdict(facts.startup, "starting_up", reason, "The API answers.")
    if not facts.canary_passed:
        reason = f"no token yet: {facts.canary_error}" if facts.canary_error else "the first token is awaited"
        return Verdict("warming", "first_token_awaited", reason, "One token comes from the engine.")
    if facts.backend_problem:
        remedy = "Every rank attests the expected backend. For a backend of vLLM's own set health.expected_backend=none."
        return Verdict("warming", "backend_not_attested", facts.backend_problem, remedy)
    return None


def _stuck(facts: Facts, limits: Limits) -> Verdict | None:
    """Readiness fails at half the limit, because that costs little. Liveness fails at the limit."""
    stood = standing_still_seconds(facts, limits)
    if stood >= limits.stall_seconds / 2:
        return Verdict(
            "failed" if stood >= limits.stall_seconds else "stalled",
            "no_step",
            f"{facts.pending} requests wait and no engine step was seen for {stood:.0f} s",
            f"An engine step. After {limits.stall_seconds:g} s the container is restarted.",
            live=stood < limits.stall_seconds,
        )
    if facts.canary_failures:
        is_live = facts.canary_failures < limits.canary_failures
        canaries = "canary" if facts.canary_failures == 1 else "canaries"
        return Verdict(
            "stalled" if is_live else "failed",
            "no_token",
            f"{facts.canary_failures} {canaries} in a row gave no token: {facts.canary_error}",
            f"A canary that passes. After {limits.canary_failures} failures the container is restarted.",
            live=is_live,
        )
    return None


def _serving(facts: Facts) -> Verdict:
    if facts.compiling is not None and facts.compile_since is not None:
        reason = f"compiling {facts.compiling} for {facts.now - facts.compile_since:.0f} s while serving"
        return Verdict("ready", "compiling_kernel", reason, ready=True)
    if facts.pending:
        return Verdict("ready", "serving", f"serving, {facts.pending} requests running", ready=True)
    return Verdict("ready", "idle", "idle", ready=True)


def standing_still_seconds(facts: Facts, limits: Limits) -> float:
    """Return the seconds that requests have waited without progress. A compilation counts as progress up to its cap."""
    if facts.pending == 0 or facts.pending_since is None:
        return 0.0
    signs = [facts.pending_since]
    if facts.progress_at is not None:
        signs.append(facts.progress_at)
    compiled = compiled_until(facts, limits)
    if compiled is not None:
        signs.append(compiled)
    return facts.now - max(signs)


def compiled_until(facts: Facts, limits: Limits) -> float | None:
    """Return when a compilation last counted as progress, up to its cap, or None if nothing was compiled."""
    if facts.compile_since is None or facts.compile_seen_at is None:
        return None
    return min(facts.compile_seen_at, facts.compile_since + limits.compile_cap_seconds)


def canary_is_due(facts: Facts, limits: Limits, *, idle_seconds: float, last_canary_at: float | None) -> bool:
    """Whether to ask for a token now: to become ready, after a failure, or when nothing else shows progress.

    Returns False while the engine has user requests, by its own counters, or compiles for one.
    """
    is_over = (
        facts.stop_requested or facts.exit_code is not None or facts.lost_processes or facts.api_says_dead
    )
    if is_over or not facts.api_answered:
        return False
    if not facts.canary_passed or last_canary_at is None:
        return True
    if facts.pending and (facts.queued or facts.compiling):
        return False
    wait, since = idle_seconds, max(last_canary_at, facts.progress_at or 0.0)
    if facts.pending and facts.pending_since is not None:
        # either a client does not read its answer, or the engine hangs and its counters are old. The token shows
        # which, in time for the stall limit
        wait, since = min(wait, limits.stall_seconds / 4), max(since, facts.pending_since)
    if facts.canary_failures:
        wait = min(wait, RETRY_SECONDS)
    return facts.now - since >= wait


RETRY_SECONDS = 5.0
