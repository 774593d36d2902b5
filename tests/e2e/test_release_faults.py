"""The engine of a running release breaks, and Kubernetes heals it. Goes on with what test_release left."""

from __future__ import annotations

import time

import pytest

from tests.e2e import glm5
from tests.e2e import release as r
from tests.e2e.conftest import Record
from tests.e2e.glm5 import STEP_SECONDS
from tests.e2e.release import SOON_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(STEP_SECONDS)]


def test_engine_killed_is_restarted(record: Record) -> None:
    """A killed engine process ends the container, and the pod is ready again from the volume it has."""
    served, before = glm5.sent(), glm5.restarts()
    with record.step("engine core killed with SIGKILL, ready again") as facts:
        killed = glm5.signal_engine("SIGKILL")
        r.until("restarted", SOON_SECONDS, lambda: glm5.restarts() == before + 1)
        facts["screen"] = glm5.screen("^last failure .*: the engine ended by itself: it lost EngineCore")
        glm5.wait_ready()

    assert len(killed) == 1
    assert served == glm5.sent()


def test_hung_engine_is_restarted(record: Record) -> None:
    """A stopped engine process answers nothing, is found by the liveness probe, and is restarted."""
    before, uid = glm5.restarts(), r.pod_uid()
    with record.step("engine core stopped with SIGSTOP, restarted, ready again") as facts:
        stopped = glm5.signal_engine("SIGSTOP")
        started = time.monotonic()
        r.until("not ready", SOON_SECONDS, lambda: not r.is_ready())
        facts["seconds_to_not_ready"] = round(time.monotonic() - started, 1)
        facts["screen"] = glm5.status()
        r.until("restarted", 2 * SOON_SECONDS, lambda: glm5.restarts() == before + 1)
        facts["seconds_to_restart"] = round(time.monotonic() - started, 1)
        facts["screen_after_restart"] = glm5.status()
        glm5.wait_ready()
    last = r.container("engine")["lastState"]["terminated"]

    # events are no proof: a kubelet drops those of a pod that had many
    assert len(stopped) == 1
    assert r.pod_uid() == uid
    # nobody but the liveness probe tells the engine of a pod that stays to stop
    assert last["message"].startswith("told to stop while failed: ")
