"""A release from its first installation to its removal, on a real cluster.

The steps run in order, each on the state that the last one left.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.request
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e import release as r
from tests.e2e.conftest import Record
from tests.support.chart import ROOT, tool

pytestmark = pytest.mark.cluster

Values = dict[str, Any]
# a busy machine with two cores takes minutes to import vLLM in three processes
START_SECONDS = 900
MODEL_FILES = sorted((ROOT / "service" / "demo_model").glob("*.gguf"))
MODEL_BYTES = sum(path.stat().st_size for path in MODEL_FILES)


def sent() -> dict[str, int]:
    """Bytes of each model file that left the model server so far."""
    text = r.kubectl(
        "exec", "deployment/models", "--", "python3", "-c",
        "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/sent').read().decode())",
    )  # fmt: skip
    found: dict[str, int] = json.loads(text)
    return found


def wait_ready(not_uid: str | None = None) -> None:
    r.until("glm5-0 ready", START_SECONDS, lambda: r.is_ready(not_uid=not_uid))


def restarts() -> int:
    return int(r.container("engine")["restartCount"])


def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="try-me", max_retries=0, timeout=120)


def status(release: str = "glm5") -> str:
    argv = [str(ROOT / ".venv/bin/glm5"), "cluster", "status", "-n", r.NAMESPACE, "--release", release]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout


def test_staging_killed_in_the_middle_resumes(values: Values, record: Record) -> None:
    """A pod killed while it stages leaves its successor no byte to fetch twice, but for what was on the way."""
    slow = values | {"staging": {"rateLimitBytes": 400_000}}
    with record.step("install; staging killed in the middle, continued by the next pod") as facts:
        r.install(slow)
        r.until("staging is under way", 120, lambda: sum(sent().values()) > MODEL_BYTES / 3)
        uid, before = r.pod_uid(), sum(sent().values())
        r.kubectl("delete", "pod", "glm5-0", "--grace-period=0", "--force")
        r.until("the next pod stages", 120, lambda: r.pod_uid() not in (None, uid))
        screen = status()
        r.until(
            "the next pod has staged", 240, lambda: r.container("stage").get("state", {}).get("terminated")
        )
        facts |= {
            "model_bytes": MODEL_BYTES,
            "bytes_before_kill": before,
            "bytes_in_all": sum(sent().values()),
        }

    assert before < MODEL_BYTES
    assert "glm5-0" in screen
    assert r.container("stage")["state"]["terminated"]["exitCode"] == 0
    # each of two connections had a send and a receive buffer full on the way when the pod died
    assert MODEL_BYTES <= facts["bytes_in_all"] <= 1.05 * MODEL_BYTES + 2 * (1 << 19)


def test_phases_are_watched_until_ready(record: Record) -> None:
    """`glm5 cluster status` shows the engine's phases on the way, and an Event tells that it is ready."""
    seen: set[str] = set()

    def look() -> bool:
        seen.update(re.findall(r"^phase +(\w+)", status(), re.MULTILINE))
        return r.is_ready()

    with record.step("from staged to ready") as facts:
        r.until("ready", START_SECONDS, look)
        facts["phases_seen"] = sorted(seen)
    events = r.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}").split()

    assert {"loading", "warming"} & seen
    assert "EngineReady" in events
    assert "TORCH_MLA_SPARSE" in status()


def test_chart_tests_pass(record: Record) -> None:
    """`helm test` passes: models, chat, stream, tool call, reasoning, wrong key, closed routes, backend."""
    with record.step("helm test") as facts:
        output = r.helm("test", "glm5", "--timeout", "300s")
        facts["passed"] = output.count("Succeeded")

    assert facts["passed"] >= 8


def test_client_speaks_through_the_service(record: Record) -> None:
    """The openai SDK gets an answer through the Service."""
    with record.step("chat with the openai SDK") as facts, r.forwarded("service/glm5", 8000) as url:
        answer = client(url).chat.completions.create(
            model="glm5-demo",
            messages=[{"role": "user", "content": "What is this project?"}],
            max_tokens=64,
            temperature=0,
        )
        facts["answer"] = answer.choices[0].message.content

    assert "vLLM" in facts["answer"]


def test_metrics_name_the_backend(record: Record) -> None:
    """/metrics of the pod names the attention backend that its rank runs."""
    with record.step("metrics") as facts, r.forwarded("pod/glm5-0", 9400) as url:
        text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
        facts["lines"] = len(text.splitlines())

    assert 'backend="TORCH_MLA_SPARSE"' in text
    assert "vllm:" in text


def test_engine_killed_is_restarted(record: Record) -> None:
    """A killed engine process ends the container, and the pod is ready again from the volume it has."""
    served, before = sent(), restarts()
    with record.step("engine core killed with SIGKILL") as facts:
        killed = r.in_engine(signal_engine("SIGKILL")).split()
        r.until("restarted", 240, lambda: restarts() == before + 1)
        facts["last_failure"] = next(
            line for line in status().splitlines() if line.startswith("last failure")
        )
        wait_ready()

    assert len(killed) == 1
    assert "the engine ended by itself: it lost EngineCore" in facts["last_failure"]
    assert served == sent()


def test_hung_engine_is_restarted(record: Record) -> None:
    """A stopped engine process answers nothing, is found by the liveness probe, and is restarted."""
    before, uid = restarts(), r.pod_uid()
    with record.step("engine core stopped with SIGSTOP until restarted") as facts:
        stopped = r.in_engine(signal_engine("SIGSTOP")).split()
        started = time.monotonic()
        r.until("not ready", 240, lambda: not r.is_ready())
        facts["seconds_to_not_ready"] = round(time.monotonic() - started, 1)
        r.until("restarted", 480, lambda: restarts() == before + 1)
        facts["seconds_to_restart"] = round(time.monotonic() - started, 1)
        wait_ready()
    last = r.container("engine")["lastState"]["terminated"]

    # events are no proof: a kubelet drops those of a pod that had many
    assert len(stopped) == 1
    assert r.pod_uid() == uid
    # nobody but the liveness probe tells the engine of a pod that stays to stop
    assert last["message"].startswith("told to stop while failed: ")


def flip_byte(path: str) -> str:
    """Python that changes one byte of a file."""
    return (
        f"f = open('{path}', 'r+b'); f.seek(5000); b = f.read(1)[0]; f.seek(5000); f.write(bytes([b ^ 255]))"
    )


def signal_engine(name: str) -> str:
    """Python that sends a signal to the process that vLLM titles EngineCore and prints its id."""
    return (
        "import os, signal, pathlib\n"
        "for p in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    if p.read_bytes().startswith(b'VLLM::EngineCore'):\n"
        f"        os.kill(int(p.parent.name), signal.{name}); print(p.parent.name)\n"
    )


def test_corrupt_file_is_fetched_again(record: Record) -> None:
    """A file damaged on the volume is fetched again when the pod starts next, and no other."""
    before, uid = sent(), r.pod_uid()
    damaged = MODEL_FILES[0].name
    with record.step("one file damaged on the volume; pod deleted, ready again") as facts:
        r.in_engine(flip_byte(f"/models/glm5-demo/current/{damaged}"))
        r.kubectl("delete", "pod", "glm5-0")
        wait_ready(not_uid=uid)
        after = sent()
        # asking for a file's size takes a byte of it
        grown = {name: after[name] - before[name] for name in after if after[name] - before[name] > 1}
        facts["fetched_again"] = grown

    assert list(grown) == [damaged]
    assert MODEL_FILES[0].stat().st_size <= grown[damaged] <= MODEL_FILES[0].stat().st_size + 1000


def test_upgrade_drains_a_running_stream(values: Values, record: Record) -> None:
    """On an upgrade the old pod ends its running stream to the last token, then the new one starts."""
    uid = r.pod_uid()
    pieces: list[str] = []
    ended: list[str | None] = []

    def stream(url: str) -> None:
        for chunk in client(url).chat.completions.create(
            model="glm5-demo",
            messages=[{"role": "user", "content": "What is this project?"}],
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
    with record.step("upgrade while a stream runs") as facts, r.forwarded("pod/glm5-0", 8000) as url:
        request = threading.Thread(target=stream, args=(url,))
        request.start()
        r.until("the stream flows", 60, lambda: len(pieces) > 3)
        at_upgrade = len(pieces)
        r.install(values | {"drainSeconds": 250})
        request.join(timeout=300)
        facts |= {
            "pieces_before_upgrade": at_upgrade,
            "pieces_in_all": len(pieces),
            "finish_reason": ended[-1],
        }
        text = log.communicate(timeout=120)[0]
        facts["drained"] = re.findall(r"drained: .*", text)
        wait_ready(not_uid=uid)

    assert facts["finish_reason"] == "length"
    assert facts["pieces_in_all"] > at_upgrade
    assert facts["drained"][0].startswith("drained: 1 finished, 0 aborted")


def test_broken_upgrade_is_rolled_back(values: Values, record: Record) -> None:
    """A release whose image does not exist is undone by `helm rollback` alone."""
    with record.step("upgrade to an image that does not exist, then helm rollback to ready") as facts:
        r.install(values | {"images": values["images"] | {"engine": {"tag": "no-such"}}})
        r.until(
            "the image is missed",
            180,
            lambda: (
                "ErrImageNeverPull" in json.dumps(r.container("engine"))
                or "ImagePull" in json.dumps(r.container("engine"))
            ),
        )
        facts["status"] = next(line for line in status().splitlines() if line.startswith("waiting"))
        uid = r.pod_uid()
        r.helm("rollback", "glm5")
        wait_ready(not_uid=uid)

    assert "Image" in facts["status"]


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
        r.until("unschedulable", 60, lambda: "Insufficient nvidia.com/gpu" in status("glm5-gpus"))
        facts["status"] = [line for line in status("glm5-gpus").splitlines() if "nvidia.com/gpu" in line]
        r.helm("uninstall", "glm5-gpus")

    assert any("8 needed" in line for line in facts["status"])


def test_model_outlives_the_release(values: Values, record: Record) -> None:
    """Uninstalling keeps the volume, and a new installation is ready without fetching a byte."""
    before = sent()
    with record.step("uninstall") as facts:
        r.helm("uninstall", "glm5", "--wait")
        r.until("no pod", 120, lambda: r.pod_uid() is None)
        facts["claim"] = (r.get("pvc", "model-glm5-0") or {}).get("status", {}).get("phase")
    with record.step("install again, ready"):
        r.install(values)
        wait_ready()

    assert facts["claim"] == "Bound"
    assert before == sent()
