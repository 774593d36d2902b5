"""Drains the engine: readiness fails, new requests are refused after a grace, the rest finish or are aborted.

Records the outcome; stopping the engine afterwards is the supervisor's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from glm5_service.contracts.engine import DrainOutcome
from glm5_service.contracts.gate_counts import GateCounts
from glm5_service.contracts.termination import TerminationMessage
from glm5_service.rundir import RunDir, try_write
from glm5_service.settings.operation import DrainSettings
from glm5_service.watch.vllm_api import VllmApi

POLL_SECONDS = 0.2
# polls in a row that the gate may leave unanswered before the requests behind it count as lost
UNANSWERED = 25
log = logging.getLogger("glm5")


async def drain(
    api: VllmApi, settings: DrainSettings, pending: int, has_ended: Callable[[], bool]
) -> DrainOutcome:
    """Let running requests finish, for at most `limit_seconds`; returns how they ended. Never raises.

    `pending` is how many requests ran when the engine was last looked at: they are lost if the gate never answers.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline = started + settings.endpoint_grace_seconds + settings.limit_seconds

    def is_over() -> bool:
        return has_ended() or loop.time() >= deadline

    def why_not_all(otherwise: str) -> str:
        if has_ended():
            return "the engine ended while draining"
        return f"the limit of {settings.limit_seconds:g} s was reached" if is_over() else otherwise

    before = await _patiently(api.gate, is_over)
    if before is None:
        reason, seconds = why_not_all("the gate does not answer"), round(loop.time() - started, 3)
        return DrainOutcome(finished=0, aborted=pending, refused=0, seconds=seconds, reason=reason)
    await _sleep_unless(has_ended, settings.endpoint_grace_seconds)
    # told again with every poll: an order that was lost would let new requests in
    now: GateCounts | None
    counts = now = await _patiently(api.drain, is_over) or before
    log.info("draining requests=%d limit=%g s", counts.held, settings.limit_seconds)
    while now and now.held and not is_over():
        await asyncio.sleep(POLL_SECONDS)
        now = await _patiently(api.drain, is_over)
        counts = now or counts
    return DrainOutcome(
        finished=counts.finished - before.finished,
        aborted=counts.held,
        refused=counts.refused.get("draining", 0),
        seconds=round(loop.time() - started, 3),
        reason=why_not_all("the gate stopped answering") if counts.held else "all requests finished",
    )


def record(outcome: DrainOutcome, run_dir: RunDir, settings: DrainSettings) -> None:
    """Write the outcome to the log, the termination message and the run directory; never raises."""
    line = f"drained: {outcome.finished} finished, {outcome.aborted} aborted in {outcome.seconds:g} s"
    log.info("%s (%s)", line, outcome.reason)
    TerminationMessage(sentence=f"{line}; {outcome.reason}\n").leave(settings.termination_log)
    try_write(run_dir.drain, outcome)


async def _patiently(
    ask: Callable[[], Awaitable[GateCounts | None]], is_over: Callable[[], bool]
) -> GateCounts | None:
    """Return the gate's counts. None after UNANSWERED polls without an answer, or at the end of the drain."""
    for _ in range(UNANSWERED):
        counts = await ask()
        if counts is not None or is_over():
            return counts
        await asyncio.sleep(POLL_SECONDS)
    return None


async def _sleep_unless(has_ended: Callable[[], bool], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while loop.time() < deadline and not has_ended():
        await asyncio.sleep(min(POLL_SECONDS, max(deadline - loop.time(), 0)))
