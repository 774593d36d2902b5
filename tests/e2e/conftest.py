"""The cluster of the end-to-end steps: namespace, volume, model server; and the record of what each step took."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import release as r
from tests.support import results
from tests.support.chart import tool

# for looking into a failure: what there is, is left there, and the next session goes on with it
KEEP = os.environ.get("GLM5_E2E_KEEP") == "1"
# a folder of the node for the volume, where the cluster makes none by itself
LOCAL_VOLUME = Path(os.environ.get("GLM5_E2E_LOCAL_VOLUME", "/var/lib/glm5-e2e"))
VALUES: dict[str, Any] = {
    "images": {"registry": r.REGISTRY, "pullPolicy": os.environ.get("GLM5_E2E_PULL", "Never")},
    "model": {"source": "http://models/glm5-demo/"},
    "engine": {"cpus": float(os.environ.get("GLM5_E2E_CPUS", "1"))},
    "staging": {"cpus": 1},
    # quick to notice a hang, since the test waits for it
    "settings": {"health": {"stall_seconds": 20, "canary_idle_seconds": 10, "canary_timeout_seconds": 10}},
    "events": {"enabled": True},
    # room for a stream that a busy machine writes slowly and that a quick one has not ended before the upgrade
    "drainSeconds": 240,
    # a policy sees the port of the pod behind a Service
    "networkPolicy": {"stagingPorts": [8080]},
}


@dataclass
class Record:
    """Seconds and facts of every step and the outcome of every test, written as JSON when the session ends."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a step; what is put into the yielded map is recorded with it."""
        facts: dict[str, Any] = {}
        started = time.monotonic()
        yield facts
        seconds = round(time.monotonic() - started, 1)
        self.steps.append({"step": name, "seconds": seconds, **facts})
        print(f"\n[{seconds:6.1f} s] {name}", flush=True)
        for key, value in facts.items():
            print(f"  {key}:", *(value if isinstance(value, list) else [value]), sep="\n    ", flush=True)


RECORD = pytest.StashKey[Record]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RECORD] = Record()


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """What came of each test, so that a record of a session that failed says so."""
    outcomes = item.config.stash[RECORD].outcomes
    if call.when == "call" or call.excinfo:
        outcomes[item.name] = "failed" if call.excinfo else "passed"


@pytest.fixture(scope="session")
def record(pytestconfig: pytest.Config) -> Iterator[Record]:
    """The record of this session."""
    found = pytestconfig.stash[RECORD]
    yield found
    server = json.loads(r.read("version", "-o", "json"))["serverVersion"]["gitVersion"]
    figures = {
        "kubernetes": server,
        "helm": r.run(str(tool(r.HELM)), "version", "--template", "{{.Version}}"),
        "engine_cpus": VALUES["engine"]["cpus"],
        "seconds": round(sum(step["seconds"] for step in found.steps)),
        "steps": found.steps,
        "outcomes": found.outcomes,
    }
    results.record("cluster-e2e" if r.HELM == "helm4" else f"cluster-e2e-{r.HELM}", figures)


@pytest.fixture(scope="session")
def values() -> Iterator[dict[str, Any]]:
    """Values of the release, on a namespace with a model server and, if need be, a volume."""
    if "KUBECONFIG" not in os.environ and not Path("~/.kube/config").expanduser().exists():
        pytest.fail("no kubeconfig; expected KUBECONFIG. Start a cluster, such as tests/e2e/lab/cluster up.")
    kubectl = str(tool("kubectl"))
    r.run(kubectl, "create", "namespace", r.NAMESPACE, check=not KEEP)
    chosen = dict(VALUES)
    if not r.has_default_class():
        r.run(kubectl, "apply", "-f", "-", stdin=json.dumps(local_volume()))
        chosen["model"] = VALUES["model"] | {"volume": {"storageClass": "glm5-e2e"}}
    r.apply(*model_server())
    r.kubectl("rollout", "status", "deployment/models", "--timeout=600s")
    yield chosen
    if not KEEP:
        r.run(kubectl, "delete", "namespace", r.NAMESPACE, "--timeout=540s", check=False)
        r.run(kubectl, "delete", "pv", "glm5-e2e", "--ignore-not-found", check=False)
        shutil.rmtree(LOCAL_VOLUME, ignore_errors=True)


def local_volume() -> dict[str, Any]:
    """A volume in a folder of the first node, as a local one so that fsGroup is applied."""
    LOCAL_VOLUME.mkdir(parents=True, exist_ok=True)
    if not KEEP and any(LOCAL_VOLUME.iterdir()):
        pytest.fail(f"folder of the volume is not empty: {LOCAL_VOLUME}; expected no model. Remove it.")
    nodes = json.loads(r.read("get", "nodes", "-o", "json"))["items"]
    name = {"key": "kubernetes.io/hostname", "operator": "In", "values": [nodes[0]["metadata"]["name"]]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "glm5-e2e"},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "glm5-e2e",
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(LOCAL_VOLUME)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [name]}]}},
        },
    }


def model_server() -> list[dict[str, Any]]:
    """The demo model behind HTTP: an init container with the files, the server as a script in a ConfigMap."""
    labels = {"app": "models"}
    script = (Path(__file__).parent / "model_server.py").read_text()
    image = f"{r.REGISTRY}/glm5-e2e-models:1"
    server = {
        "name": "server",
        "image": image,
        "imagePullPolicy": VALUES["images"]["pullPolicy"],
        "command": ["python3", "-u", "/script/model_server.py", "/models", "8080"],
        "readinessProbe": {
            "httpGet": {"path": "/sent", "port": 8080},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
        },
        "volumeMounts": [{"name": "script", "mountPath": "/script"}],
    }
    pod = {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [server],
        "volumes": [{"name": "script", "configMap": {"name": "models"}}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "models"},
            "data": {"model_server.py": script},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "models"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "models"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ]
