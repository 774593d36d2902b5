"""What the end-to-end steps do to a cluster: kubectl, helm, port-forward, waiting. Knows no expectations."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any

import yaml

from tests.support.chart import CHART, tool

Json = dict[str, Any]
NAMESPACE = os.environ.get("GLM5_E2E_NAMESPACE", "glm5-e2e")
REGISTRY = os.environ.get("GLM5_E2E_REGISTRY", "localhost")
HELM = os.environ.get("GLM5_E2E_HELM", "helm4")
# whatever the cluster has to do: a pod, a container, an answer
SOON_SECONDS = 300
# how a command or request ends that a busy cluster had no answer for
NO_ANSWER = (AssertionError, subprocess.SubprocessError, OSError, HTTPException)


def run(*argv: str, stdin: str | None = None, check: bool = True, timeout: float = 600) -> str:
    """Output of a command; its stderr is in the error if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, input=stdin, timeout=timeout, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(argv)[:300]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout + (done.stderr if not check else "")


def kubectl(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    """kubectl in the namespace of the tests."""
    return run(str(tool("kubectl")), "-n", NAMESPACE, *argv, stdin=stdin, check=check)


def read(*argv: str) -> str:
    """What a kubectl that changes nothing says; asked again while the cluster does not answer."""
    # also nothing is an answer
    return str(until(f"kubectl {' '.join(argv)[:300]}", SOON_SECONDS, lambda: [kubectl(*argv)])[0])


def get(kind: str, name: str) -> Json | None:
    """An object, or None."""
    text = read("get", kind, name, "-o", "json", "--ignore-not-found")
    return json.loads(text) if text.strip() else None


def listed(kind: str, labels: str) -> list[Json]:
    """Objects with these labels."""
    items: list[Json] = json.loads(read("get", kind, "-l", labels, "-o", "json"))["items"]
    return items


def helm(*argv: str, timeout: float = 900) -> str:
    """helm in the namespace of the tests."""
    return run(str(tool(HELM)), "-n", NAMESPACE, *argv, timeout=timeout)


def install(values: Json, name: str = "glm5") -> str:
    """Install or upgrade a release with these values over the CPU example; does not wait."""
    example = str(CHART / "examples" / "cpu-demo.yaml")
    text = yaml.safe_dump(values)
    argv = [
        str(tool(HELM)),
        "-n",
        NAMESPACE,
        "upgrade",
        "--install",
        name,
        str(CHART),
        "-f",
        example,
        "-f",
        "-",
    ]
    return run(*argv, stdin=text)


def until(what: str, seconds: float, condition: Callable[[], Any]) -> Any:
    """The first true value of `condition`; AssertionError after `seconds`. One that finds no answer is asked again."""
    deadline = time.monotonic() + seconds
    failure: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
            failure = None
        except NO_ANSWER as error:
            failure = error
        time.sleep(1)
    last = f", in the end {type(failure).__name__}: {failure}" if failure else ""
    raise AssertionError(f"{what}: not within {seconds:g} s{last}\n{describe()}") from failure


def describe() -> str:
    """What helps to understand a failed wait."""
    pods = kubectl("get", "pods", "-o", "wide", check=False)
    log = kubectl("logs", "glm5-0", "--all-containers", "--tail=15", check=False)
    events = kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)
    return f"{pods}\n{log}\n{events[-1500:]}"


def pod_uid(name: str = "glm5-0") -> str | None:
    """Identity of the pod that has this name now."""
    found = get("pod", name)
    return str(found["metadata"]["uid"]) if found else None


def is_ready(name: str = "glm5-0", not_uid: str | None = None) -> bool:
    """Whether the pod, and not one that came before it, is ready."""
    found = get("pod", name)
    if not found or found["metadata"]["uid"] == not_uid or "deletionTimestamp" in found["metadata"]:
        return False
    conditions = found.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def container(name: str, pod: str = "glm5-0") -> Json:
    """Status of a container of the pod."""
    status = (get("pod", pod) or {}).get("status", {})
    both = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next((item for item in both if item["name"] == name), {})


def has_ended(name: str) -> bool:
    """Whether a container of the pod has ended."""
    return "terminated" in container(name).get("state", {})


def event_reasons() -> list[str]:
    """Reasons of all events in the namespace."""
    return read("get", "events", "-o", "jsonpath={.items[*].reason}").split()


def in_engine(script: str) -> str:
    """Run Python in the engine container."""
    return kubectl("exec", "glm5-0", "-c", "engine", "--", "python3", "-c", script)


@contextlib.contextmanager
def forwarded(target: str, port: int) -> Iterator[str]:
    """Address on this machine that reaches a port of a Service or pod."""
    process, url = until(f"a way to {target}", SOON_SECONDS, lambda: _forward(target, port))
    try:
        yield url
    finally:
        process.terminate()
        process.wait()


def _forward(target: str, port: int) -> tuple[subprocess.Popen[str], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = probe.getsockname()[1]
    argv = [str(tool("kubectl")), "-n", NAMESPACE, "port-forward", target, f"{local}:{port}"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if "Forwarding" not in line:
        process.terminate()
        process.wait()
        raise AssertionError(line)
    return process, f"http://127.0.0.1:{local}"


def has_default_class() -> bool:
    """Whether the cluster makes volumes by itself."""
    text = read("get", "storageclass", "-o", "json")
    key = "storageclass.kubernetes.io/is-default-class"
    return any(i["metadata"].get("annotations", {}).get(key) == "true" for i in json.loads(text)["items"])


def apply(*documents: Json) -> None:
    """kubectl apply."""
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
