"""One life of a pod under a real Prometheus: staged, started, loaded, hurt in many ways, drained, gone.

The sidecar and the engine are real; the pages of dcgm-exporter and kube-state-metrics are recorded ones, and so is the
attestation of a GPU rank that stands in for a wrong backend.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from glm5_service.rundir import write_text
from tests.support.chart import ROOT
from tests.support.cpus import NO_AMX, hiding
from tests.support.glm5_command import PATIENCE_SECONDS, glm5, start_glm5
from tests.support.load import Load
from tests.support.prometheus import Daemon, Post, Prometheus, start_alertmanager, start_prometheus, until
from tests.support.results import RESULTS
from tests.support.rules import rendered, write_rules
from tests.support.serving import Serving, free_port, start_serving, suspended
from tests.support.staging.fault_server import FaultServer, running

MODEL = ROOT / "demo_model"
PAGES = ROOT / "tests" / "monitoring" / "pages"
TARGET = {"namespace": "llm", "release": "glm5", "pod": "glm5-0", "endpoint": "metrics"}
SETTINGS = (
    "health.stall_seconds=16",
    "health.canary_idle_seconds=2",
    "health.canary_timeout_seconds=3",
    "health.canary_failures=3",
    "health.poll_seconds=0.5",
    "drain.endpoint_grace_seconds=0",
    "drain.limit_seconds=1",
    "api.max_body_bytes=20000",
    "engine.max_model_len=1024",
    "engine.max_num_seqs=2",
    "engine.extra_args=--middleware faulty_metrics.FaultyMetrics --enable-prefix-caching",
)
# the least that the schema allows, so that a fault of seconds is seen; waiting times are tested by the stories
THRESHOLDS = {
    "stallSeconds": 10,
    "tokenlessFor": "10m",
    "canaryFailures": 1,
    "queuedRequests": 1,
    "compilesPerHour": 0,
}
WAIT = "2s"


@dataclass
class Pod:
    """What runs, and when it began."""

    folder: Path
    post: Post
    alertmanager: Daemon
    prometheus: Prometheus
    sidecar: subprocess.Popen[bytes]
    ports: dict[str, int]
    began: float
    engine: Serving | None = None
    seconds: dict[str, int] = field(default_factory=dict)
    ended: float = 0.0

    @property
    def serving(self) -> Serving:
        """The engine that runs."""
        assert self.engine is not None
        return self.engine

    @property
    def run_dir(self) -> Path:
        """The run directory that sidecar, stager and engine share."""
        return self.folder / "run"

    def seen(self, expr: str) -> None:
        """Wait until Prometheus has data for a query."""
        until(lambda: self.prometheus.value(expr) is not None, expr)

    def fires(self, alert: str) -> None:
        """Wait until an alert fires."""
        self.seen(f'ALERTS{{alertname="{alert}",alertstate="firing"}}')

    def delivered(self, alert: str, status: str) -> list[dict[str, Any]]:
        """What the webhook got of an alert; status is firing or resolved."""
        return [
            one for one in self.post.alerts if (one["labels"]["alertname"], one["status"]) == (alert, status)
        ]

    def stop(self) -> None:
        """End everything that still runs."""
        if self.engine:
            self.engine.stop()
        self.sidecar.terminate()
        self.sidecar.wait()
        self.prometheus.stop()
        self.alertmanager.stop()
        self.post.stop()


def _short_rules(folder: Path) -> Path:
    groups = rendered(thresholds=THRESHOLDS)
    for group in groups:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = WAIT
    write_rules(groups, folder / "rules.yaml")
    return folder / "rules.yaml"


def begin(folder: Path) -> Pod:
    """Prometheus, Alertmanager and the sidecar, as before the stager and the engine start."""
    cards = (PAGES / "dcgm-exporter-4.prom").read_text()
    others = cards.replace('gpu="0"', 'gpu="2"').replace('gpu="1"', 'gpu="3"')
    replicas = 'kube_statefulset_replicas{namespace="llm",statefulset="glm5"} 1\n'
    post = Post({"/renamed": cards, "/honoured": others, "/replicas": replicas})
    ports = {name: free_port() for name in ("sidecar", "engine", "health")}
    run_dir = folder / "run"
    run_dir.mkdir()
    (run_dir / "end").touch()

    def job(name: str, path: str, honour: bool, address: str, labels: dict[str, str]) -> dict[str, Any]:
        targets = [{"targets": [address], "labels": labels}]
        return {"job_name": name, "metrics_path": path, "honor_labels": honour, "static_configs": targets}

    exporter = {"namespace": "gpu", "pod": "exporter"}
    jobs = [
        job("glm5", "/metrics", False, f"127.0.0.1:{ports['sidecar']}", TARGET),
        job("gpu", "/renamed", False, post.address, exporter),
        job("gpu-honoured", "/honoured", True, post.address, exporter),
        job("replicas", "/replicas", True, post.address, {}),
    ]
    alertmanager = start_alertmanager(folder, f"http://{post.address}/alerts")
    sidecar = start_glm5(
        "sidecar", "--run-dir", run_dir, "--port", ports["sidecar"],
        "--set", f"engine.port={ports['engine']}", "--set", f"health.port={ports['health']}",
        log=folder / "sidecar.log", fake=False,
    )  # fmt: skip
    prometheus = start_prometheus(folder, jobs, _short_rules(folder), alertmanager.address)
    return Pod(folder, post, alertmanager, prometheus, sidecar, ports, time.time())


def stage(pod: Pod) -> None:
    """A source that is not there, then the demo model at a rate that can be watched."""
    common = ("--run-dir", pod.run_dir, "--target", pod.folder / "models")
    assert glm5("stage", f"file://{pod.folder}/nowhere", *common, fake=False).returncode == 3
    pod.fires("GLM5StagingFailed")
    source = pod.folder / "source"
    source.mkdir()
    for path in MODEL.glob("*.gguf"):
        (source / path.name).symlink_to(path)
    with running(FaultServer(source)) as server:
        url = f"{server.url}/{min(MODEL.glob('*.gguf')).name}"
        slowly = ("--rate-limit", 1_500_000, "--set", "staging.require_digest=false")
        done = glm5("stage", url, *slowly, *common, fake=False)
    assert done.returncode == 0, done.stderr
    pod.seen('glm5_staging_phase{phase="done"}')


def serve(pod: Pod) -> None:
    """The engine, from its start to ready."""
    pod.engine = _start(pod)
    pod.engine.until_ready()
    pod.seen("glm5_engine_ready == 1")


def _start(pod: Pod) -> Serving:
    return start_serving(
        pod.folder / "models" / "current", pod.run_dir, *SETTINGS,
        ports=(pod.ports["engine"], pod.ports["health"]),
        PYTHONPATH=str(ROOT / "tests" / "support" / "fault_injection"),
        # the other engine tests run on the processor as it is
        **hiding(NO_AMX),
    )  # fmt: skip


def load(pod: Pod) -> None:
    """More users than run at once, until rates and quantiles have data; one request is refused, one has a grammar."""
    serving = pod.serving
    with Load(serving.api, users=4, max_tokens=24) as users:
        until(lambda: users.finished >= 16, "16 requests")
        big = {"model": "glm-5", "prompt": "x" * 30_000}
        answer = httpx.post(f"{serving.api}/v1/completions", json=big, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 413
        choice = {
            "model": "glm-5",
            "prompt": "a",
            "max_tokens": 2,
            "structured_outputs": {"choice": ["a", "b"]},
        }
        answer = httpx.post(f"{serving.api}/v1/completions", json=choice, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text
        pod.seen("rate(glm5_grammar_compilations_total[15s])")
        _compile(pod, serving)
    assert users.errors == []


def _compile(pod: Pod, serving: Serving) -> None:
    fault = {"seconds": PATIENCE_SECONDS, "mark": True}
    write_text(serving.run_dir / "slow.json", json.dumps(fault))
    pod.seen("glm5_kernel_compiling == 1")
    (serving.run_dir / "slow-over").touch()
    until(lambda: pod.prometheus.value("glm5_kernel_compiling == 0") is not None, "compiled")


def hurt(pod: Pod) -> None:
    """Faults one after the other, each until its alert fires, each healed before the next."""
    serving = pod.serving

    # idle at first, when only the canary can tell
    with suspended(serving.engine_process("EngineCore")):
        pod.fires("GLM5CanaryFailing")
        waiting = _ask(serving, 8)
        pod.fires("GLM5EngineStalled")
        pod.fires("GLM5NotReady")
    waiting()
    serving.until_ready()

    write_text(serving.run_dir / "metrics-fault", "gone")
    pod.fires("GLM5EngineMetricsMissing")
    (serving.run_dir / "metrics-fault").unlink()

    path = serving.run_dir / "attention" / "rank-0.json"
    kept = path.read_text()
    write_text(path, json.dumps(_attested_on_a_gpu()))
    pod.fires("GLM5WrongBackend")
    pod.fires("GLM5EngineFailed")
    until(lambda: pod.delivered("GLM5WrongBackend", "firing"), "the alert at the webhook")
    write_text(path, kept)
    serving.until_ready()
    pod.seen(
        "min_over_time(glm5_engine_ready[5s]) == 1 and on (pod) min_over_time(glm5_attention_backend_match[5s]) == 1"
    )


def _attested_on_a_gpu() -> dict[str, Any]:
    """What a rank on an H200 attested, with the kernel's times that were measured there."""
    record: dict[str, Any] = json.loads((RESULTS / "serve_h200.json").read_text())["attestation"]
    timed = json.loads((RESULTS / "attention_h200.json").read_text())["timed"]
    shape = timed[0]
    rows = [one for one in timed if (one["kv"], one["heads"]) == (shape["kv"], shape["heads"])]
    return record | {"kernel_seconds": {str(one["rows"]): one["us"]["slots"] / 1e6 for one in rows}}


def _ask(serving: Serving, tokens: int) -> Callable[[], None]:
    """A request in the background; call the result to wait for its end."""
    body = {"model": "glm-5", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}

    def post() -> None:
        with contextlib.suppress(httpx.HTTPError):  # the drain cuts off its request
            httpx.post(f"{serving.api}/v1/completions", json=body, timeout=PATIENCE_SECONDS)

    thread = threading.Thread(target=post)
    thread.start()
    return thread.join


def end(pod: Pod) -> None:
    """Told to stop with a request that outlasts the drain; then the supervisor is gone, then the sidecar."""
    serving = pod.serving
    # an engine that stands still ends no request before the drain's limit
    with suspended(serving.engine_process("EngineCore")):
        waiting = _ask(serving, 1000)
        serving.until(lambda: serving.gate()["running"] == 1)
        serving.process.send_signal(signal.SIGTERM)
        serving.until(lambda: serving.engine_json()["drain"])
    waiting()
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    drained = serving.engine_json()["drain"]
    assert drained["aborted"] == 1, drained
    pod.fires("GLM5DrainAborted")
    _start_again(pod)
    pod.sidecar.terminate()
    pod.fires("GLM5SidecarDown")
    pod.ended = time.time()


def _start_again(pod: Pod) -> None:
    """The kubelet's restart of the container, up to where Prometheus sees it."""
    pod.engine = _start(pod)
    pod.seen("resets(max by (pod) (glm5_engine_started)[2m:15s]) > 0")
    pod.engine.stop()
