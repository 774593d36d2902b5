"""The measured files of the attention kernels: their shape, and what they claim."""

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "results"


def load(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / name).read_text()))


@pytest.mark.parametrize(
    "name",
    ["attention_h200.json", "attention_tiles_h200.json", "engine_h200.json", "serve_h200.json"],
)
def test_says_where_it_comes_from(name: str) -> None:
    """A measured file names the hardware, the versions and the command."""
    result = load(name)

    assert "H200" in result["hardware"]
    assert "triton" in result["versions"]
    assert result["command"]


@pytest.mark.parametrize(
    ("rows", "of_flashmla", "of_stock_decode"),
    [
        (1, 0.20, 0.25),
        (4, 0.22, 0.25),
        (16, 0.35, 0.40),
        (64, 0.75, 0.60),
        (256, 1.00, 0.50),
        (2048, 1.00, 0.45),
    ],
)
def test_time_beside_what_it_replaces(rows: int, of_flashmla: float, of_stock_decode: float) -> None:
    """With 8 heads and a bfloat16 cache the kernel takes at most this share of the others' time."""
    timed = load("attention_h200.json")["timed"]
    us = next(e["us"] for e in timed if (e["kv"], e["heads"], e["rows"]) == ("wide", 8, rows))

    assert us["slots"] <= of_flashmla * us["flashmla"]
    assert us["slots"] <= of_stock_decode * us["stock_triton_decode"]


@pytest.mark.parametrize(("rows", "most"), [(64, 1.35), (256, 1.15)])
def test_time_beside_its_bytes(rows: int, most: float) -> None:
    """Where the card is full, a call takes little more than its KV bytes at the copy rate."""
    timed = load("attention_h200.json")["timed"]
    entry = next(e for e in timed if (e["kv"], e["heads"], e["rows"]) == ("wide", 8, rows))

    assert entry["us"]["slots"] <= most * entry["bytes_at_copy_rate_us"]


def test_offline_compilation_fits() -> None:
    """Every configuration compiled offline fits its card's shared memory without spilled registers."""
    result = load("offline_compile.json")
    limits = {int(capability): limit for capability, limit in result["shared_limit_bytes"].items()}

    assert {120, 89, 80} == {entry["variant"]["capability"] for entry in result["compiled"]}
    for entry in result["compiled"]:
        assert entry["stack_bytes"] == 0
        assert entry["shared_bytes"] <= limits[entry["variant"]["capability"]]
        assert entry["resident_programs"] >= 1


def test_engine_file_says_what_it_does_not_show() -> None:
    """The engine runs name their weights, and every comparison lists all prompts."""
    result = load("engine_h200.json")

    assert "dummy weights" in result["weights"]
    for comparison in result["comparisons"].values():
        assert [e["prompt_tokens"] for e in comparison["prompts"]] == [7, 130, 2040, 2049, 3000, 5000, 9000]
