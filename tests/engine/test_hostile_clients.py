"""Hostile clients against the real engine: each is refused or served, and the pod stays ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.hostile import INPUTS, half_sent_heads
from tests.support.load import Load
from tests.support.serving import Serving, start_serving

pytestmark = pytest.mark.engine

MODEL = Path(__file__).parents[2] / "demo_model"
# the demo model has few tokens, so its grammars compile fast; this ends the large ones
GRAMMAR_SECONDS = 0.1
MEMORY_BYTES = 300 * 1024**2
SLOW_SCHEMA = {
    "type": "object",
    "properties": {f"p{n}": {"type": "string", "maxLength": 20} for n in range(990)},
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The demo model, served and ready, with a short time for grammars."""
    running = start_serving(
        MODEL,
        tmp_path_factory.mktemp("hostile"),
        "engine.max_model_len=2048",
        "health.canary_idle_seconds=5",
        f"api.grammar_seconds={GRAMMAR_SECONDS}",
    )
    try:
        running.until_ready()
        yield running
    finally:
        running.stop()


def _is_well(serving: Serving) -> bool:
    return (serving.probe("readyz")[0], serving.probe("livez")[0]) == (200, 200)


def _ask(serving: Serving, **fields: Any) -> httpx.Response:
    body = {"model": "glm-5", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **fields}
    url = f"{serving.api}/v1/chat/completions"
    return httpx.post(url, json=body, timeout=PATIENCE_SECONDS, trust_env=False)


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "1,000 half-sent heads"])
def test_a_hostile_client_costs_little(serving: Serving, name: str) -> None:
    """It gets an answer below 500 or a closed connection; memory stays near, and both probes 200."""
    api = psutil.Process(serving.status()["pid"])
    before = api.memory_info().rss
    said = INPUTS[name](serving.port)
    assert said[0] in "24c" or said.endswith("Error"), said
    assert api.memory_info().rss - before < MEMORY_BYTES
    assert _is_well(serving)


def test_half_sent_heads_are_closed_and_starve_nobody(serving: Serving) -> None:
    """A thousand of them are all closed, and honest requests are served meanwhile."""
    said: list[str] = []
    thread = threading.Thread(
        target=lambda: said.append(half_sent_heads(1000, PATIENCE_SECONDS)(serving.port))
    )
    thread.start()
    assert _ask(serving).status_code == 200
    thread.join()
    assert said[0].startswith("1000 of 1000 closed")
    assert _is_well(serving)


def test_a_grammar_that_takes_too_long_is_refused_and_others_go_on(serving: Serving) -> None:
    """At the limit it gets 400; streams and small grammars are served beside it, and it is counted."""
    constraint = {"type": "json_schema", "json_schema": {"name": "x", "schema": SLOW_SCHEMA}}
    with Load(serving.api, users=2, max_tokens=16) as load:
        slow = _ask(serving, response_format=constraint)
        assert _ask(serving, response_format={"type": "json_object"}).status_code == 200
    assert (slow.status_code, "took longer" in slow.text) == (400, True), slow.text
    assert (load.errors, load.finished > 0) == ([], True)
    page = httpx.get(f"{serving.api}/metrics", headers=serving.internal(), timeout=PATIENCE_SECONDS).text
    assert 'glm5_grammar_compilations_total{result="slow"}' in page
    assert _is_well(serving)


def test_nothing_is_left_of_a_grammar_that_was_ended(serving: Serving) -> None:
    """No process and no thread compiles on after its client has its answer."""
    _ask(
        serving, response_format={"type": "json_schema", "json_schema": {"name": "y", "schema": SLOW_SCHEMA}}
    )
    api = psutil.Process(serving.status()["pid"])
    helpers = [child for child in api.children() if "glm5_vllm.grammar.helper" in child.cmdline()]
    serving.until(lambda: all(not helper.children() for helper in helpers))
    assert len(helpers) == 1
