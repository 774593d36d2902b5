"""A Job stages instead of an init container. Goes on with what test_release left: a release and its claim."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import glm5
from tests.e2e import release as r
from tests.e2e.conftest import Record
from tests.e2e.glm5 import MODEL_BYTES, START_SECONDS, STEP_SECONDS, Values
from tests.e2e.release import SOON_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(STEP_SECONDS)]


def stagers() -> list[dict[str, Any]]:
    """Pods of the staging Job."""
    return r.listed("pod", "app.kubernetes.io/component=staging")


def has_staged() -> bool:
    """Whether a pod of the Job has ended well."""
    return any(pod["status"]["phase"] == "Succeeded" for pod in stagers())


def test_job_stages_while_the_pod_waits(values: Values, record: Record) -> None:
    """A Job stages without a replica and goes on after a kill; a pod that waits for it turns ready and answers."""
    job = values | {
        "model": values["model"]
        | {"folder": "staged-by-job", "volume": {"type": "existingClaim", "existingClaim": "model-glm5-0"}},
        # the source asks for no token; the Job alone has the Secret
        "staging": {
            "mode": "job",
            "cpus": 0.25,
            "credentials": {"token": "unused"},
        },
        "settings": values["settings"] | {"staging": {"rate_limit": 200_000}},
        # Job and pod together fit on two cores
        "engine": values["engine"] | {"cpus": 1},
    }
    with record.step("uninstall; install with a staging Job and no replica"):
        glm5.uninstall()
        before = glm5.sent_in_all()
        r.install(job | {"replicas": 0})
        r.until("the Job is under way", SOON_SECONDS, lambda: glm5.sent_in_all() - before > MODEL_BYTES / 3)
    with glm5.crawling():
        with record.step("its pod killed in the middle") as facts:
            facts["screen"] = glm5.screen("^glm5-stage-.* stages, 0 restarts\nstaging       fetching, ")
            killed, at_kill = stagers()[0]["metadata"]["name"], glm5.sent_in_all() - before
            r.kubectl("delete", "pod", killed, "--grace-period=0", "--force")
            r.until(
                "the Job's next pod",
                SOON_SECONDS,
                lambda: any(pod["metadata"]["name"] != killed for pod in stagers()),
            )
        with record.step("replicas: 1; the pod waits for the Job") as facts:
            r.install(job)
            # not the Job's pod, which waits as well if the killed one's lock is still held
            facts["screen"] = glm5.screen("^glm5-0 .*\n(.+\n)*?staging       waiting for another stager")
    with record.step("the Job is done, ready") as facts:
        # a stager that was not given the time to say goodbye keeps its lock for a while
        r.until("the Job is done", START_SECONDS, has_staged)
        facts |= {"bytes_before_kill": at_kill, "bytes_in_all": glm5.sent_in_all() - before}
        glm5.wait_ready()
        facts |= {"screen_when_ready": glm5.status(), "answer": glm5.answer()}

    assert at_kill < MODEL_BYTES
    assert MODEL_BYTES <= facts["bytes_in_all"] <= MODEL_BYTES + glm5.LOST_BYTES
    assert r.container("wait-for-model")["state"]["terminated"]["exitCode"] == 0
    assert "vLLM" in facts["answer"]
