"""`glm5 serve` with the real engine: phases, OpenAI clients, probes and metrics under load, and draining."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.glm5_command import PATIENCE_SECONDS, start_glm5
from tests.support.load import Load, latency
from tests.support.prometheus import start_prometheus
from tests.support.results import record
from tests.support.serving import START_SECONDS, Serving, free_port, start_serving, suspended

pytestmark = pytest.mark.engine

MODEL = Path(__file__).parents[2] / "demo_model"
SETTINGS = (
    "engine.max_model_len=2048",
    "engine.tool_call_parser=glm47",
    "health.canary_idle_seconds=5",
    "drain.endpoint_grace_seconds=1",
    "drain.limit_seconds=30",
)
# the recorded soak is 30 minutes; the one of every run is bounded
SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "20"))
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The demo model, served and ready."""
    run_dir = tmp_path_factory.mktemp("serve")
    (run_dir / "end").touch()
    running = start_serving(MODEL, run_dir, *SETTINGS)
    try:
        running.until_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(serving: Serving) -> openai.OpenAI:
    """The OpenAI client, without retries that would hide a refusal."""
    return openai.OpenAI(base_url=f"{serving.api}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def sidecar(serving: Serving) -> Iterator[tuple[str, int]]:
    """A sidecar beside the engine: address of its page and its pid."""
    port = free_port()
    process = start_glm5(
        "sidecar", "--run-dir", serving.run_dir, "--port", port,
        "--set", f"engine.port={serving.port}", "--set", f"health.port={serving.health_port}",
        "--set", "sidecar.timeout_seconds=30",
        log=serving.run_dir / "sidecar.log", fake=False,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/metrics"

    def answers() -> bool:
        try:
            return httpx.get(url, timeout=PATIENCE_SECONDS).status_code == 200
        except httpx.HTTPError:
            return False

    serving.until(answers)
    yield url, process.pid
    process.terminate()
    process.wait()


def test_every_phase_up_to_ready_is_recorded(serving: Serving) -> None:
    """The way to readiness goes through preflight, starting, loading and warming, each with its time."""
    phases = {span["phase"]: span["seconds"] for span in serving.status()["phases"]}
    assert list(phases) == ["preflight", "starting", "loading", "warming"]
    record("startup-phases", {"model": "demo model", "seconds": phases})


def test_estimates_are_what_the_engine_reports(serving: Serving) -> None:
    """Preflight's bytes of weights and count of tokens that fit are within 5 percent of the engine's."""
    memory = serving.status()["memory"]
    assert memory["weights_estimated_bytes"] == pytest.approx(memory["weights_reported_bytes"], rel=0.05)
    assert memory["kv_estimated_tokens"] == pytest.approx(memory["kv_reported_tokens"], rel=0.05)
    record("fit-cpu", {"model": "demo model", **memory})


def test_openai_client_passes_the_gate(client: openai.OpenAI, serving: Serving) -> None:
    """Models, completions, chat, streaming and tools of the OpenAI client reach the engine."""
    assert [model.id for model in client.models.list()] == ["glm-5"]
    assert client.completions.create(model="glm-5", prompt="hello", max_tokens=2).usage.completion_tokens <= 2  # type: ignore[union-attr]
    messages: Any = [{"role": "user", "content": "What is the virtual block table?"}]
    chat = client.chat.completions.create(model="glm-5", messages=messages, max_tokens=8)
    assert chat.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(model="glm-5", messages=messages, max_tokens=8, stream=True)
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] is not None
    tools = client.chat.completions.create(model="glm-5", messages=messages, max_tokens=8, tools=[WEATHER])
    assert tools.choices[0].finish_reason in {"stop", "length", "tool_calls"}


@pytest.mark.parametrize(
    "route",
    [
        "GET /metrics",
        "GET /docs",
        "GET /openapi.json",
        "POST /tokenize",
        "GET /version",
        "POST /v1/responses",
    ],
)
def test_nothing_else_passes_the_gate(serving: Serving, route: str) -> None:
    """Routes of vLLM outside the list are not there for the outside."""
    method, path = route.split()
    answer = httpx.request(method, serving.api + path, json={}, timeout=PATIENCE_SECONDS)
    assert answer.status_code == 404


def test_request_id_reaches_the_answer(client: openai.OpenAI) -> None:
    """The client's id names the request in vLLM and comes back."""
    answer = client.completions.with_raw_response.create(
        model="glm-5", prompt="hello", max_tokens=1, extra_headers={"X-Request-Id": "order-66"}
    )
    assert answer.headers["x-request-id"] == "order-66"
    assert "order-66" in answer.parse().id


def test_idle_engine_is_asked_for_a_token_that_is_not_user_traffic(serving: Serving) -> None:
    """Canaries pass while idle, and users' counts stay as they are."""
    # a request may end after its client has the answer
    serving.until(lambda: serving.gate()["running"] == 0)
    passed, before = serving.status()["canary"]["passed"], serving.gate()
    serving.until(lambda: serving.status()["canary"]["passed"] >= passed + 2)
    assert serving.gate() == before


@pytest.mark.timeout(SOAK_SECONDS + 3 * START_SECONDS)
def test_probes_and_scrapes_are_fast_under_full_load(serving: Serving, sidecar: tuple[str, int]) -> None:
    """While the engine is saturated no probe fails, p99 is under 50 ms, and a scrape costs little."""
    url, pid = sidecar
    psutil.cpu_percent()
    sidecar_process = psutil.Process(pid)
    with Load(serving.api, users=16) as load:
        probes = {
            name: latency(f"http://127.0.0.1:{serving.health_port}/{name}", SOAK_SECONDS / 2)
            for name in ("livez", "readyz")
        }
        busy = psutil.cpu_percent()
        before = sum(sidecar_process.cpu_times()[:2])
        scrapes = latency(url, 5)
        cpu_ms = (sum(sidecar_process.cpu_times()[:2]) - before) / scrapes["requests"] * 1000
    assert load.errors == []
    assert {status for figures in probes.values() for status in figures["statuses"]} == {200}
    figures = {
        "soak_seconds": SOAK_SECONDS,
        "user_requests": load.finished,
        "host_cpu_percent": busy,
        "probes": probes,
        "scrapes_under_load": scrapes,
        "scrapes_idle": latency(url, 5),
        "scrape_cpu_ms": round(cpu_ms, 1),
        "core_percent_at_15_s": round(cpu_ms / 15_000 * 100, 2),
    }
    record("soak" if SOAK_SECONDS >= 600 else "probes-under-load", figures)
    print(figures)


def test_metrics_page_is_clean_and_bounded(sidecar: tuple[str, int], tmp_path: Path) -> None:
    """promtool accepts our metrics, and the number of series does not grow with traffic."""
    page = httpx.get(sidecar[0], timeout=PATIENCE_SECONDS).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    ours = [sample for sample in samples if sample.name.startswith("glm5_")]
    assert {
        sample.labels["target"]: sample.value for sample in ours if sample.name.endswith("scrape_success")
    } == {
        "supervisor": 1,
        "engine": 1,
        "run_directory": 1,
    }
    assert len(ours) < 120
    record("metrics-cardinality", {"glm5_series": len(ours), "vllm_series": len(samples) - len(ours)})
    if promtool := shutil.which("promtool"):
        # vLLM's own names hold colons, which the linter keeps for recording rules
        text = "".join(f"{line}\n" for line in page.splitlines() if "vllm:" not in line)
        done = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus here (apt.txt)")
def test_prometheus_scrapes_the_sidecar(serving: Serving, sidecar: tuple[str, int], tmp_path: Path) -> None:
    """A real Prometheus takes the page: our metrics and vLLM's arrive, and no sample is refused."""
    target = httpx.URL(sidecar[0]).netloc.decode()
    prometheus = start_prometheus(tmp_path, [{"job_name": "glm5", "static_configs": [{"targets": [target]}]}])

    def seen(expr: str) -> float | None:
        # a page that is late is missing until the next one
        serving.until(lambda: prometheus.value(expr) is not None)
        return prometheus.value(expr)

    try:
        seen("glm5_engine_ready == 1")
        seen('glm5_attention_backend_match{rank="0"} == 1')
        seen("vllm:generation_tokens_total > 0")
        seen('up{job="glm5"} == 1')
        samples = seen("(scrape_samples_scraped == scrape_samples_post_metric_relabeling) > 0")
        record("prometheus-scrape", {"samples": samples, "seconds": seen("scrape_duration_seconds")})
    finally:
        prometheus.stop()


def test_drain_finishes_what_it_can_and_counts_the_rest(serving: Serving) -> None:
    """On SIGTERM a stream goes on to its end, one over the limit is aborted and counted, and the exit code is 0."""
    results: dict[str, Any] = {}
    url = f"{serving.api}/v1/completions"

    def ask(name: str, tokens: int) -> None:
        body = {"model": "glm-5", "prompt": name, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        try:
            with httpx.stream("POST", url, json=body, timeout=START_SECONDS) as answer:
                results[name] = [line for line in answer.iter_lines() if line]
        except httpx.HTTPError as error:
            results[name] = [error, error]

    def is_refused() -> bool:
        return outsider.post(url, json={}).status_code == 503

    short, endless = (threading.Thread(target=ask, args=pair) for pair in (("short", 8), ("endless", 2000)))
    core = serving.engine_process("EngineCore")
    # neither ends before the drain, nor the second one within its limit, however fast the machine
    with suspended(core), httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_SECONDS) as outsider:
        short.start()
        endless.start()
        serving.until(lambda: serving.gate()["running"] == 2)
        started = time.monotonic()
        serving.process.send_signal(signal.SIGTERM)
        serving.until(lambda: serving.probe("readyz")[0] == 503)
        serving.until(is_refused)
    short.join()
    with suspended(core):
        serving.until(lambda: serving.engine_json()["drain"])
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    endless.join()
    assert '"finish_reason":"length"' in results["short"][-2]
    # vLLM ends it with finish_reason abort, or with an error if its core is gone first
    assert '"finish_reason":"length"' not in "".join(map(str, results["endless"][-2:]))
    outcome = serving.engine_json()["drain"]
    assert (outcome["aborted"], outcome["refused"] >= 1, outcome["finished"] >= 1) == (1, True, True)
    assert "1 aborted" in (serving.run_dir / "end").read_text()
    record("drain", {**outcome, "to_exit_seconds": round(time.monotonic() - started, 1)})
