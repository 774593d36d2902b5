"""A release from its first installation to its removal and second installation, on a real cluster.

The steps run in order, each on the state that the last one left.
"""

from __future__ import annotations

import re
import subprocess
import threading

import pytest

from tests.e2e import glm5
from tests.e2e import release as r
from tests.e2e.conftest import Record
from tests.e2e.glm5 import MODEL_BYTES, MODEL_FILES, START_SECONDS, STEP_SECONDS, Values
from tests.e2e.release import SOON_SECONDS
from tests.support.chart import tool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(STEP_SECONDS)]


def test_staging_killed_in_the_middle_resumes(values: Values, record: Record) -> None:
    """A pod killed while it stages leaves its successor no byte to fetch twice, but for what was on the way."""
    slow = values | {"settings": values["settings"] | {"staging": {"rate_limit": 200_000}}}
    with record.step("install; staging killed in the middle, continued by the next pod") as facts:
        r.install(slow)
        r.until("staging is under way", SOON_SECONDS, lambda: glm5.sent_in_all() > MODEL_BYTES / 3)
        with glm5.crawling():
            facts["screen"] = glm5.screen("^staging       fetching, ")
            uid, before = r.pod_uid(), glm5.sent_in_all()
            r.kubectl("delete", "pod", "glm5-0", "--grace-period=0", "--force")
        r.until("the next pod stages", SOON_SECONDS, lambda: r.pod_uid() not in (None, uid))
        # a stager that was not given the time to say goodbye keeps its lock for a while
        r.until("the next pod has staged", START_SECONDS, lambda: r.has_ended("stage"))
        facts |= {
            "model_bytes": MODEL_BYTES,
            "bytes_before_kill": before,
            "bytes_in_all": glm5.sent_in_all(),
        }

    assert before < MODEL_BYTES
    assert r.container("stage")["state"]["terminated"]["exitCode"] == 0
    assert MODEL_BYTES <= facts["bytes_in_all"] <= MODEL_BYTES + glm5.LOST_BYTES


def test_phases_are_watched_until_ready(record: Record) -> None:
    """`glm5 cluster status` shows the engine's phases on the way, and an Event tells that it is ready."""
    with record.step("from staged to ready") as facts:
        with glm5.watched() as shown:
            glm5.wait_ready()
            r.until("the watch shows ready", SOON_SECONDS, lambda: "ready" in shown())
            phases = shown()
        facts |= {
            "phases_seen": sorted(phases),
            "screen": glm5.screen("^backend       rank 0 TORCH_MLA_SPARSE"),
        }
        r.until("an Event tells ready", SOON_SECONDS, lambda: "EngineReady" in r.event_reasons())

    assert {"loading", "warming"} & phases


def test_chart_tests_pass(record: Record) -> None:
    """`helm test` passes: models, chat, stream, tool call, reasoning, wrong key, closed routes, backend."""
    with record.step("helm test") as facts:
        output = r.helm("test", "glm5", "--timeout", "600s")
        facts["passed"] = output.count("Succeeded")

    assert facts["passed"] >= 8


def test_client_speaks_through_the_service(record: Record) -> None:
    """The openai SDK gets an answer through the Service."""
    with record.step("chat with the openai SDK") as facts:
        facts["answer"] = glm5.answer()

    assert "vLLM" in facts["answer"]


def test_metrics_name_the_backend(record: Record) -> None:
    """/metrics of the pod names the attention backend that its rank runs."""

    def whole() -> str:
        text = glm5.metrics()
        # on a busy machine the engine's own part may come too late for the sidecar's page
        return text if "vllm:" in text else ""

    with record.step("metrics") as facts:
        text = r.until("a page with the engine's part", SOON_SECONDS, whole)
        facts["lines"] = len(text.splitlines())

    assert 'backend="TORCH_MLA_SPARSE"' in text


@pytest.fixture(scope="module")
def sent_before_damage() -> dict[str, int]:
    """One file is damaged on the volume of the running release; what had been sent by then."""
    before = glm5.sent()
    glm5.damage(f"/models/glm5-demo/current/{MODEL_FILES[0].name}")
    return before


def test_upgrade_drains_a_running_stream(
    values: Values, sent_before_damage: dict[str, int], record: Record
) -> None:
    """On an upgrade the old pod ends its running stream to the last token before there is a new one."""
    uid = r.pod_uid()
    pieces: list[str] = []
    ended: list[str | None] = []

    def stream(url: str) -> None:
        for chunk in glm5.client(url).chat.completions.create(
            model="glm5-demo",
            messages=glm5.QUESTION,
            max_tokens=1000,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            pieces.append(chunk.choices[0].delta.content or "")
            ended.append(chunk.choices[0].finish_reason)

    log = subprocess.Popen(
        [str(tool("kubectl")), "-n", r.NAMESPACE, "logs", "-f", "glm5-0", "-c", "engine"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with (
        record.step("upgrade while a stream runs, to the end of the old pod") as facts,
        r.forwarded("pod/glm5-0", 8000) as url,
    ):
        request = threading.Thread(target=stream, args=(url,))
        request.start()
        r.until("the stream flows", SOON_SECONDS, lambda: len(pieces) > 3)
        at_upgrade = len(pieces)
        r.install(values | {"drainSeconds": 250})
        facts["screen"] = glm5.screen("^phase         draining ")
        request.join(timeout=SOON_SECONDS)
        facts |= {
            "pieces_before_upgrade": at_upgrade,
            "pieces_in_all": len(pieces),
            "finish_reason": ended[-1],
            "drained": re.findall(r"drained: .*", log.communicate(timeout=SOON_SECONDS)[0]),
        }
        r.until("the next pod", SOON_SECONDS, lambda: r.pod_uid() not in (None, uid))

    assert facts["finish_reason"] == "length"
    assert facts["pieces_in_all"] > at_upgrade
    assert facts["drained"][0].startswith("drained: 1 finished, 0 aborted")


def test_damaged_file_is_fetched_again(sent_before_damage: dict[str, int], record: Record) -> None:
    """The next pod fetches the file that was damaged on the volume again, and no other, and turns ready."""
    with record.step("the upgraded pod fetches one damaged file again, ready") as facts:
        glm5.wait_ready()
        after, before = glm5.sent(), sent_before_damage
        # asking for a file's size takes a byte of it
        grown = {name: after[name] - before[name] for name in after if after[name] - before[name] > 1}
        facts["fetched_again"] = grown

    assert list(grown) == [MODEL_FILES[0].name]
    assert MODEL_FILES[0].stat().st_size <= grown[MODEL_FILES[0].name] <= MODEL_FILES[0].stat().st_size + 1000


def test_broken_upgrade_is_rolled_back(values: Values, record: Record) -> None:
    """A release whose image does not exist is undone by `helm rollback` alone."""
    with record.step("upgrade to an image that does not exist, then helm rollback to ready") as facts:
        r.install(values | {"images": values["images"] | {"engine": {"tag": "no-such"}}})
        facts["screen"] = glm5.screen("^waiting       engine: .*Image")
        uid = r.pod_uid()
        r.helm("rollback", "glm5")
        glm5.wait_ready(not_uid=uid)


def test_pod_without_gpus_is_explained(values: Values, record: Record) -> None:
    """On a node without enough GPUs the pod stays pending, and `glm5 cluster status` says why, node by node."""
    wishes = {
        "profile": "cuda",
        "fullnameOverride": "glm5-gpus",
        "engine": {"tensorParallelSize": 8, "cpus": 0.1, "memory": "1Gi", "shmSize": "17Gi"},
        "model": values["model"] | {"volume": {"type": "hostPath", "hostPath": "/var"}},
    }
    with record.step("second release that asks for 8 GPUs") as facts:
        r.install(values | wishes, name="glm5-gpus")
        by_scheduler, by_node = r"Insufficient nvidia\.com/gpu", r"nvidia\.com/gpu free, 8 needed"
        facts["screen"] = glm5.screen(rf"{by_scheduler}[\s\S]*{by_node}", release="glm5-gpus")
        r.helm("uninstall", "glm5-gpus")


def test_model_outlives_the_release(values: Values, record: Record) -> None:
    """Uninstalling keeps the volume, and a new installation is ready without fetching a byte."""
    before = glm5.sent()
    with record.step("uninstall") as facts:
        glm5.uninstall()
        facts["claim"] = (r.get("pvc", "model-glm5-0") or {}).get("status", {}).get("phase")
    with record.step("install again, ready"):
        r.install(values)
        glm5.wait_ready()

    assert facts["claim"] == "Bound"
    assert before == glm5.sent()
