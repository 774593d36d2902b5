"""Ends running requests in order: readiness fails, a grace, new ones are refused, the rest finish or are aborted.

Records the outcome; stopping the engine afterwards is the supervisor's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from glm5_service import termination
from glm5_service.engine.vllm_api import VllmApi
from glm5_service.rundir import DrainOutcome, RunDir, write
from glm5_service.settings.operation import DrainSettings

POLL_SECONDS = 0.2
# polls in a row that the gate may leave unanswered before the requests behind it count as lost
UNANSWERED = 25
log = logging.getLogger("glm5")


async def drain(api: VllmApi, settings: DrainSettings, has_ended: Callable[[], bool]) -> DrainOutcome:
    """Let running requests finish, for at most `limit_seconds`; returns how they ended. Never raises."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    before = await api.gate()
    if before is None:
        return DrainOutcome(finished=0, aborted=0, refused=0, seconds=0, reason="the gate does not answer")
    await _sleep_unless(has_ended, settings.endpoint_grace_seconds)
    counts = await api.drain() or before
    log.info("draining running=%d limit=%g s", counts.running, settings.limit_seconds)
    deadline, unanswered = loop.time() + settings.limit_seconds, 0
    while counts.running and not has_ended() and loop.time() < deadline and unanswered < UNANSWERED:
        await asyncio.sleep(POLL_SECONDS)
        now = await api.gate()
        unanswered = 0 if now else unanswered + 1
        counts = now or counts
    if not counts.running:
        reason = "all requests finished"
    elif has_ended():
        reason = "the engine ended while draining"
    elif unanswered:
        reason = "the gate stopped answering"
    else:
        reason = f"the limit of {settings.limit_seconds:g} s was reached"
    return DrainOutcome(
        finished=counts.finished - before.finished,
        aborted=counts.running,
        refused=counts.refused.get("draining", 0),
        seconds=round(loop.time() - started, 3),
        reason=reason,
    )


def record(outcome: DrainOutcome, run_dir: RunDir, settings: DrainSettings) -> None:
    """Write the outcome to the run directory, the log and the termination message."""
    line = f"drained: {outcome.finished} finished, {outcome.aborted} aborted in {outcome.seconds:g} s"
    log.info("%s (%s)", line, outcome.reason)
    write(run_dir.drain, outcome)
    termination.tell(settings.termination_log, f"{line}; {outcome.reason}\n")


async def _sleep_unless(has_ended: Callable[[], bool], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while loop.time() < deadline and not has_ended():
        await asyncio.sleep(min(POLL_SECONDS, max(deadline - loop.time(), 0)))
