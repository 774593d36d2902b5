"""The measured files of the attention kernels: their shape, and what they claim."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.engine_runs import COMPARED, GROUPS

RESULTS = Path(__file__).parents[2] / "results"


def load(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / name).read_text()))


def load_tiles() -> tuple[dict[str, str], list[dict[str, str]]]:
    """What stands above the table of tiles (`# key: value`), and its rows, one a timed tile."""
    lines = (RESULTS / "attention_tiles_h200.csv").read_text().splitlines()
    about = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    return about, list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("name", ["attention_h200.json", "engine_h200.json", "serve_h200.json"])
def test_says_where_it_comes_from(name: str) -> None:
    """A measured file names the hardware, the versions and the command."""
    result = load(name)

    assert "H200" in result["hardware"]
    assert "triton" in result["versions"]
    assert result["command"]


def test_tiles_are_one_row_each() -> None:
    """The table of tiles names its origin, and every row gives the cache, the shape, the tile, its time and torch."""
    about, tiles = load_tiles()

    assert about["hardware"] == "NVIDIA H200"
    assert {"triton", "top_k", "command"} <= about.keys()
    assert len(tiles) > 1000
    for tile in tiles:
        assert None not in tile
        assert None not in tile.values()
        assert tile["kept"] in ("yes", "no")
        assert tile["kv"] in ("wide", "fp8", "fp8_ds_mla")
        assert tile["kernel"]
        assert tile["torch"]
        assert all(int(tile[column]) > 0 for column in ("rows", "slots", "stages", "warps", "splits"))
        assert float(tile["us"]) > 0


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

    assert {120, 100, 89, 80} == {entry["variant"]["capability"] for entry in result["compiled"]}
    for entry in result["compiled"]:
        assert entry["stack_bytes"] == 0
        assert entry["shared_bytes"] <= limits[entry["variant"]["capability"]]
        assert entry["resident_programs"] >= 1


def test_fp8_time_beside_flashmla() -> None:
    """With 8 heads and an fp8_ds_mla cache the kernel takes FlashMLA's time at most, whatever the number of rows."""
    timed = load("attention_h200.json")["timed"]
    us = {e["rows"]: e["us"] for e in timed if e["kv"] == "fp8_ds_mla"}

    assert {1, 4, 16, 64, 256, 2048} <= us.keys()
    assert all(us[rows]["slots"] <= us[rows]["flashmla"] for rows in us)


ENGINE_PROMPTS = [7, 130, 2040, 2049, 3000, 5000, 9000]
# of a log probability: what rounds otherwise than bfloat16, and the GGUFs with their larger logits
LIMITS = {"ours-8-float16": 0.05}
LIMITS |= dict.fromkeys(["ours-gguf", "ours-gguf-mtp1", "ours-gguf-tp2-dcp2"], 0.065)
# ranks quantise the parts of an activation apart: each run is within FLOAT32_LIMIT of float32, on one side or the other
LIMITS |= {"ours-gguf-tp2": 0.095}
FLOAT32_LIMIT = 0.08


def test_engine_answers_as_stock_does() -> None:
    """Top log probabilities are stock's within 2e-2, and where a token differs stock's two best were as close as that."""
    comparisons = load("engine_h200.json")["comparisons"]

    for pair, comparison in comparisons.items():
        name = pair.split()[0]
        assert [e["prompt_tokens"] for e in comparison["prompts"]] == ENGINE_PROMPTS
        if name == "control-8":
            continue
        assert comparison["largest_logprob_difference"] <= LIMITS.get(name, 0.02), pair
        assert max(e.get("margin_there", 0) for e in comparison["prompts"]) <= LIMITS.get(name, 0.02), pair
    assert comparisons["control-8 with stock-8"]["largest_logprob_difference"] > 0.2


def test_recorded_runs_can_be_run_again() -> None:
    """Each recorded run is of a group that the command names, and each comparison one that a check still makes."""
    result = load("engine_h200.json")
    named = {
        name
        for group, runs in GROUPS.items()
        if group in re.split(r"[ |;]+", result["command"])
        for name in runs
    }

    assert result["runs"].keys() <= named
    assert result["comparisons"].keys() <= {f"{name} with {other}" for name, other in COMPARED.items()}


def test_gguf_answers_as_transformers_does() -> None:
    """From a GGUF, top log probabilities are within 8e-2 of float32 transformers' on the dequantised tensors."""
    compared = load("engine_h200.json")["with_float32_transformers"]

    assert "ours-gguf" in compared
    for name, prompts in compared.items():
        assert [e["prompt_tokens"] for e in prompts] == ENGINE_PROMPTS[: len(prompts)]
        assert len(prompts) == 5
        assert max(e["largest_logprob_difference"] for e in prompts) <= FLOAT32_LIMIT, name


@pytest.mark.parametrize("heads", [8, 64])
def test_decode_rate_beside_stock(heads: int) -> None:
    """An engine decodes no slower than with FLASHMLA_SPARSE at any batch."""
    runs = load("engine_h200.json")["runs"]
    ours, stock = (runs[f"{name}-{heads}"]["tokens_per_second"] for name in ("ours", "stock"))

    assert ours.keys() == stock.keys() == {"1", "8", "32", "64"}
    assert all(ours[batch] >= stock[batch] for batch in ours)
