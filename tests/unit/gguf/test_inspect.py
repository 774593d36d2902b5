"""What `inspect` prints of a sound model, and that it stays light."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from glm5_vllm.gguf.__main__ import main
from tests.support.raw_gguf import RawGGUF
from tests.support.tiny_gguf import TinyModel, write_tiny
from tests.support.tiny_spec import QuantMix, TinySpec

Layout = Literal["split3d", "split2d", "kv_b"]
HEAVY = {"torch", "numpy", "gguf", "vllm", "transformers", "triton"}


def report_of(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["inspect", str(path), "--json"]) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


def test_json(tiny: TinyModel, raw: RawGGUF, capsys: pytest.CaptureFixture[str]) -> None:
    """The report has the keys and figures of schema 1."""
    report = report_of(tiny.path, capsys)
    types, hyperparameters = report.pop("types"), report.pop("hyperparameters")
    weights, draft = report.pop("weights"), report.pop("draft_weights")
    speed, speed_draft = report.pop("speed_weights"), report.pop("speed_draft_weights")
    sizes = {tensor.name: len(tensor.data) for tensor in raw.tensors}
    mtp = [size for name, size in sizes.items() if name.startswith("blk.2.")]

    assert report == {
        "schema": 1,
        "path": str(tiny.path),
        "files": [{"path": str(tiny.path), "bytes": tiny.path.stat().st_size}],
        "architecture": "glm-dsa",
        "name": "tiny-glm-dsa",
        "tensors": 71,
        "bytes": sum(sizes.values()),
        "release": {"name": "no published GLM-5", "evidence": []},
        "context_length": 4096,
        "indexer_layers": 2,
        "load": {"tensors": 44, "bytes": sum(sizes.values()) - sum(mtp)},
        "set_aside": {
            "mtp": {"tensors": 27, "bytes": sum(mtp)},
            "mtp_copy": {"tensors": 0, "bytes": 0},
            "shared_indexer": {"tensors": 0, "bytes": 0},
        },
        "missing_mtp": [],
        "refused": [],
        "tokenizer": {
            "source": "file",
            "tokens": 320,
            "merges": 6,
            "chat_templates": ["default"],
            "error": None,
        },
        "error": None,
        "refused_total": 0,
    }
    assert isinstance(hyperparameters, dict)
    assert {name: hyperparameters[name] for name in ("layers", "kv_lora", "rope_dim", "indexer_dim")} == {
        "layers": 2,
        "kv_lora": 512,
        "rope_dim": 64,
        "indexer_dim": 128,
    }
    assert isinstance(weights, dict)
    assert weights["floats_sharded"] == 2 * 2 * (192 + 256) * 512, "kv_b_proj of two layers and two heads"
    assert weights["packed_queries"] == sum(sizes[f"blk.{n}.attn_q_b.weight"] for n in range(2))
    assert weights["floats_absorbed"] == 2 * 2 * 192 * 512, "the keys' part of kv_b_proj"
    assert weights["packed_sharded"] + weights["packed_replicated"] < report["load"]["bytes"]  # type: ignore[index]
    assert isinstance(draft, dict)
    assert draft["packed_sharded"] > 0
    assert draft["packed_queries"] == sizes["blk.2.attn_q_b.weight"]
    assert draft["floats_absorbed"] == 2 * 192 * 512
    assert isinstance(speed, dict)
    assert isinstance(speed_draft, dict)
    # q_b is Q8_0: 34 bytes of a block of 32 values
    assert speed["packed_queries"] == 0
    assert speed["floats_queries"] == weights["packed_queries"] // 34 * 32
    assert speed["floats_sharded"] > weights["floats_sharded"]
    assert speed_draft["floats_queries"] == draft["packed_queries"] // 34 * 32
    assert isinstance(types, dict)
    assert set(types) == {"F32", "Q4_K", "Q5_K", "Q6_K", "Q8_0"}
    assert sum(count["tensors"] for count in types.values()) == 71
    assert sum(count["bytes"] for count in types.values()) == sum(sizes.values())


@pytest.mark.parametrize("layout", ["split3d", "split2d", "kv_b"])
def test_queries_and_what_they_are_multiplied_by(
    layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are told apart in every layout of the file, within what is sharded; float queries are counted in values."""
    spec = TinySpec(layers=1, heads=2, layout=layout, quants=QuantMix(q_b="F16"))
    weights = report_of(write_tiny(tmp_path, spec).path, capsys)["weights"]

    assert isinstance(weights, dict)
    found = {name: weights[name] for name in ("packed_queries", "floats_queries", "floats_absorbed")}
    assert found == {
        "packed_queries": 0,
        "floats_queries": 2 * (192 + 64) * 256,
        "floats_absorbed": 2 * 192 * 512,
    }
    assert weights["floats_sharded"] == found["floats_queries"] + 2 * (192 + 256) * 512


@pytest.mark.parametrize("name", [0, 1, 2, None], ids=["first", "second", "third", "folder"])
def test_any_split(name: int | None, split: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    """Any split, or the folder, names the whole set."""
    report = report_of(split.path.parent if name is None else split.paths[name], capsys)

    assert [str(path) for path in split.paths] == [file["path"] for file in report["files"]]  # type: ignore[attr-defined]
    assert report["tensors"] == 44


def test_text(glm5: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """People read name, files, sizes by type, and what is loaded and set aside."""
    assert main(["inspect", str(glm5[3])]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "GLM-5 (glm-dsa)",
        "  release       GLM-5",
        "                  rope.freq_base 1000000: GLM-5 or GLM-5.1",
        "                  general.name GLM-5: GLM-5 or GLM-5.1",
        "  files         10, 464.8 GB",
        "  tensors       1809, 464.8 GB",
        "  layers        78, of them 3 dense and 0 with a shared indexer",
        "  experts       256, 8 a token, 1 shared",
        "  context       202752 tokens",
        "  tokenizer     154856 tokens, 313042 merges, chat templates: default",
        "  types",
        "    Q4_K          152 tensors  275.4 GB",
        "    Q5_K           76 tensors  168.3 GB",
        "    Q8_0          872 tensors  20.5 GB",
        "    F32           709 tensors  545.2 MB",
        "  would load    1782 tensors, 458.6 GB",
        "  sets aside    27 tensors, 6.2 GB (multi-token prediction, for the draft model)",
    ]


def test_refused_tensors_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that is refused is listed, and the figures still come."""
    model = write_tiny(
        tmp_path, TinySpec(layers=3, heads=1, experts=2, quants=QuantMix(gate="Q4_K", up="Q5_K"))
    )
    assert main(["inspect", str(model.path), "--json"]) == 4
    report = json.loads(capsys.readouterr().out)

    names = [refused["name"] for refused in report["refused"]]
    assert names == ["blk.1.ffn_up_exps.weight", "blk.2.ffn_up_exps.weight"]
    assert report["tensors"] == 67
    assert main(["inspect", str(model.path)]) == 4
    assert f"  refuses       {names[1]}: has type Q5_K; expected Q4_K" in capsys.readouterr().out


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """A call without a path is a usage error, not a broken model."""
    with pytest.raises(SystemExit) as ended:
        main(["inspect"])

    assert ended.value.code == 2
    assert "the following arguments are required: path" in capsys.readouterr().err


def test_imports_nothing_heavy() -> None:
    """Reading headers, planning and building config and tokenizer need the standard library alone."""
    script = "import sys, glm5_vllm.gguf.__main__, glm5_vllm.gguf.huggingface.folder; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert HEAVY & set(done.stdout.split()) == set()


def test_command_at_glm5s_size(glm5: list[Path], record_property: Callable[[str, object], None]) -> None:
    """The command as the service runs it reads ten splits of GLM-5's size; what it took is recorded, not judged."""
    argv = [sys.executable, "-m", "glm5_vllm.gguf", "inspect", str(glm5[9]), "--json"]
    started = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    record_property("inspect_seconds", round(time.perf_counter() - started, 3))

    assert json.loads(done.stdout)["tensors"] == 1809
