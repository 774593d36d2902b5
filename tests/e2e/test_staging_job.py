"""A Job stages instead of an init container. Goes on with what test_release left: a release and its claim."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import glm5
from tests.e2e import release as r
from tests.e2e.conftest import Record
from tests.e2e.glm5 import MODEL_BYTES, SOON_SECONDS, STEP_SECONDS, Values

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(STEP_SECONDS)]


def stagers() -> list[dict[str, Any]]:
    """Pods of the staging Job."""
    return r.listed("pod", "app.kubernetes.io/component=staging")


def test_job_stages_while_the_pod_waits(values: Values, record: Record) -> None:
    """A Job stages without a replica and goes on after a kill; a pod that waits for it turns ready and answers."""
    job = values | {
        "model": values["model"]
        | {"folder": "staged-by-job", "volume": {"type": "existingClaim", "existingClaim": "model-glm5-0"}},
        # the source asks for no token; the Job alone has the Secret
        "staging": {
            "mode": "job",
            "cpus": 0.25,
            "rateLimitBytes": 400_000,
            "credentials": {"token": "unused"},
        },
        # Job and pod together fit on two cores
        "engine": values["engine"] | {"cpus": 1},
    }
    with record.step(
        "uninstall; install with a staging Job and no replica; its pod killed in the middle"
    ) as facts:
        r.helm("uninstall", "glm5", "--wait")
        r.until("no pod", SOON_SECONDS, lambda: r.pod_uid() is None)
        before = glm5.sent_in_all()
        r.install(job | {"replicas": 0})
        r.until("the Job is under way", SOON_SECONDS, lambda: glm5.sent_in_all() - before > MODEL_BYTES / 3)
        killed, at_kill = stagers()[0]["metadata"]["name"], glm5.sent_in_all() - before
        facts["screen"] = glm5.status()
        r.kubectl("delete", "pod", killed, "--grace-period=0", "--force")
        r.until(
            "the Job's next pod",
            SOON_SECONDS,
            lambda: any(pod["metadata"]["name"] != killed for pod in stagers()),
        )
    with record.step("replicas: 1; the pod waits for the Job, ready") as more:
        r.install(job)
        r.until(
            "the pod waits",
            SOON_SECONDS,
            lambda: any("staging       waiting for another stager" in line for line in glm5.status()),
        )
        more["screen"] = glm5.status()
        r.until("the Job is done", SOON_SECONDS, lambda: stagers()[0]["status"]["phase"] == "Succeeded")
        more |= {"bytes_before_kill": at_kill, "bytes_in_all": glm5.sent_in_all() - before}
        glm5.wait_ready()
        more |= {"screen_when_ready": glm5.status(), "answer": glm5.answer()}

    assert facts["screen"][0].endswith("stages, 0 restarts")
    assert at_kill < MODEL_BYTES
    assert MODEL_BYTES <= more["bytes_in_all"] <= MODEL_BYTES + glm5.LOST_BYTES
    assert r.container("wait-for-model")["state"]["terminated"]["exitCode"] == 0
    assert "vLLM" in more["answer"]
