"""The measured files of the GGUF products: where they come from, what they claim, and what the README quotes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "backend_plugin/glm5_vllm/products/README.md").read_text()


def load(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "tests/results" / name).read_text()))


@pytest.mark.parametrize("name", ["gguf_products_h200.json", "gguf_steps_h200.json"])
def test_says_where_it_comes_from(name: str) -> None:
    """A measured file names the hardware, the versions and the command."""
    result = load(name)

    assert "H200" in result["hardware"]
    assert result["versions"]["vllm"] == "0.33.0"
    assert result["command"]


def test_no_choice_is_slower_than_the_peers() -> None:
    """Whatever the types and the number of tokens, the policy takes at most 3 % longer than the plugin's own choice."""
    layers = [entry for entry in load("gguf_products_h200.json")["experts"] if "plugin" in entry["us"]]

    assert len(layers) > 30
    assert [entry for entry in layers if entry["us"]["ours"] > 1.03 * entry["us"]["plugin"]] == []


def test_no_choice_is_much_further_from_float32() -> None:
    """The error is at most 1.5 times the peer's, which rounds activations to 8 bits as well."""
    errors = [entry["relative_error"] for entry in load("gguf_products_h200.json")["experts"]]

    assert all(error["ours"] <= 1.5 * error["plugin"] for error in errors if error)


@pytest.mark.parametrize("who", ["ours", "plugin"])
def test_readme_quotes_the_file(who: str) -> None:
    """The README's row of expert times is that of the measured file."""
    us = {
        entry["rows"]: entry["us"][who]
        for entry in load("gguf_products_h200.json")["experts"]
        if (entry["gate_up"], entry["down"]) == ("Q4_K", "Q6_K")
    }
    row = " | ".join(str(us[rows]) for rows in (1, 8, 32, 64, 128, 512, 1024, 8192))

    assert f"| {row} |" in README


def test_readme_quotes_the_steps() -> None:
    """The README's prompt step is that of the measured file."""
    found = load("gguf_steps_h200.json")["prefill_8192"]

    assert f"{found['memory']['whole_model_ms']:.0f} ms under `memory`" in README
    assert f"{found['speed']['whole_model_ms']:.0f} ms under `speed`" in README
    assert found["speed"]["whole_model_ms"] < 0.15 * found["memory"]["whole_model_ms"]
