"""Figures that pages quote are those of the recorded results."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTENTION = "backend_plugin/glm5_vllm/attention/README.md"


def result(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "tests/results" / f"{name}.json").read_text()))


def page(name: str) -> str:
    """A page as one line, so that a sentence is found wherever it breaks."""
    return " ".join((ROOT / name).read_text().split())


def ratios(kv: str) -> list[float]:
    """Our time by FlashMLA's for each number of rows, with 8 heads."""
    timed = result("attention_h200")["timed"]
    return [e["us"]["slots"] / e["us"]["flashmla"] for e in timed if (e["kv"], e["heads"]) == (kv, 8)]


def sentences() -> Iterator[tuple[str, str]]:
    """Page and the words on it that hold figures, made from the results."""
    wide, fp8 = ratios("wide"), ratios("fp8_ds_mla")
    yield "README.md", f"takes {min(wide):.2f} to {max(wide):.2f} of the time of FlashMLA's sparse kernel"
    yield "docs/proofs.md", f"1 to 2048 rows take {min(wide):.2f} to {max(wide):.2f} of FlashMLA's time"
    yield "docs/proofs.md", f"cache they take {min(fp8):.2f} to {max(fp8):.2f} of it"

    compiled = result("offline_compile")["compiled"]
    yield "docs/proofs.md", f"Each of {len(compiled)} configurations"

    soak = result("soak")
    yield (
        "docs/proofs.md",
        f"{soak['soak_seconds'] / 60:.0f} minutes at full load, {soak['user_requests']} requests",
    )

    kills = result("staging-kills")["rows"][0]
    yield "docs/proofs.md", f"{kills['kills']} kills with SIGKILL"
    yield "docs/proofs.md", f"for {kills['sent_per_set']:.2f} times its bytes"

    full = result("staging-full-size")["rows"][0]
    plan, rest = full["steps"]["plan"]["seconds"], full["steps"]["continue and publish"]["seconds"]
    yield "docs/proofs.md", f"A set of {full['set_bytes'] / 1e9:.0f} GB is planned in {plan} s"
    yield "docs/proofs.md", f"published after a kill in {rest} s"

    speed = [entry["ratio_of_best"] for entry in result("staging-speed")["summary"].values()]
    quoted = "{:.2f}, {:.2f} and {:.2f} of curl's rate".format(*speed)
    yield "docs/proofs.md", f"With 1, 4 and 16 connections it runs at {quoted}"

    yield "docs/proofs.md", f"All {result('boards')['panels_queries']} queries of the boards"


@pytest.mark.parametrize(("name", "words"), list(sentences()), ids=lambda text: text[:60])
def test_sentence(name: str, words: str) -> None:
    """The page has the sentence with the recorded figures."""
    assert words in page(name)


def tables(name: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Head and rows of each table of a page."""
    for block in re.findall(r"(?:^\|.*\n)+", (ROOT / name).read_text(), re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines())
        yield head, rows


def shown(cell: str, value: float) -> bool:
    """Whether a cell is this value, to as many digits as it shows."""
    decimals = len(cell.partition(".")[2])
    return abs(float(cell) - value) <= 0.5 * 10**-decimals + 1e-9


def test_times_of_the_kernels() -> None:
    """The tables of the attention page are the recorded times, by rows and cache."""
    timed = result("attention_h200")["timed"]
    by_shape = {(e["kv"], e["rows"]): e for e in timed if e["heads"] == 8}
    checked = 0
    for head, rows in tables(ATTENTION):
        if head[:3] == ["rows", "bytes", "this"]:
            columns = ("slots", "positions", "converter_and_slots", "flashmla", "stock_triton_decode")
            for count, at_rate, *cells in rows:
                entry = by_shape["wide", int(count)]
                assert shown(at_rate, entry["bytes_at_copy_rate_us"]), count
                for cell, column in zip(cells, columns, strict=True):
                    assert shown(cell, entry["us"][column]), (count, column)
                    checked += 1
        if head[:3] == ["rows", "`fp8`", "`fp8_ds_mla`"]:
            for count, one_scale, grouped, flashmla in rows:
                us = by_shape["fp8_ds_mla", int(count)]["us"]
                assert shown(one_scale, by_shape["fp8", int(count)]["us"]["slots"]), count
                assert shown(grouped, us["slots"]), count
                assert shown(flashmla, us["flashmla"]), count
                checked += 3

    assert checked > 50


def test_rates_of_the_engine() -> None:
    """The attention page's table of tokens a second is what the engine's runs recorded."""
    runs = result("engine_h200")["runs"]
    columns = ("ours-64", "stock-64", "ours-8", "stock-8")
    (rows,) = [rows for head, rows in tables(ATTENTION) if head[0] == "requests"]

    for batch, *cells in rows:
        for cell, name in zip(cells, columns, strict=True):
            assert shown(cell, runs[name]["tokens_per_second"][batch]), (batch, name)


def test_what_did_not_help() -> None:
    """Each time in the lab notebook's tables of tiles is one of the recorded times at those rows."""
    lines = (ROOT / "tests/results/attention_tiles_h200.csv").read_text().splitlines()
    tiles = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    checked = 0
    for head, rows in tables("docs/lab-notebook.md"):
        for row in rows:
            count, cells = (row[1], row[2:]) if head[1] == "rows" else ("256", row[1:])
            timed = [float(tile["us"]) for tile in tiles if tile["rows"] == count]
            for cell in cells:
                assert any(shown(cell, us) for us in timed), row
                checked += 1

    assert checked > 20
