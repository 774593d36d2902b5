"""The attestation file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from glm5_vllm import attest, compile_marks


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLM5_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(attest, "_record", None)
    monkeypatch.setattr(attest, "_rank", lambda: 3)
    return tmp_path


def facts(backend: str = "TORCH_MLA_SPARSE") -> attest.LayerFacts:
    return attest.LayerFacts(backend, f"some.module.{backend}", "float32", "auto", 8, 2048)


def read(run_dir: Path) -> dict[str, object]:
    return json.loads((run_dir / "attention" / "rank-3.json").read_text())


def test_file_names_backend_layers_and_first_call(run_dir: Path) -> None:
    """The file counts the layers built and has no first call until attention was really computed."""
    attest.layer_built(facts())
    attest.layer_built(facts())
    built = read(run_dir)
    attest.first_call()
    called = read(run_dir)

    assert (built["backend"], built["layers"], built["first_call_at"]) == ("TORCH_MLA_SPARSE", 2, None)
    assert isinstance(called["first_call_at"], float)


def test_layers_of_two_backends_show(run_dir: Path) -> None:
    """A rank whose layers run on different backends names both, so that no expectation can match."""
    attest.layer_built(facts("A"))
    attest.layer_built(facts("B"))

    assert read(run_dir)["backend"] == "A,B"


def test_measured_times_are_kept_by_rows(run_dir: Path) -> None:
    """Kernel times are sorted by rows and kept beside the configurations."""
    attest.layer_built(facts())
    attest.kernel_configured("decode", {"splits": 16})
    attest.kernel_timed(64, 5e-5)
    attest.kernel_timed(1, 1e-5)

    record = read(run_dir)

    assert record["kernel_seconds"] == {"1": 1e-5, "64": 5e-5}
    assert record["kernel_configurations"] == {"decode": {"splits": 16}}


def test_a_folder_that_cannot_be_written_ends_nothing(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that cannot write goes on, is not attested, and is as soon as it can."""
    attest.layer_built(facts())
    blocked = run_dir / "file"
    blocked.touch()
    monkeypatch.setenv("GLM5_RUN_DIR", str(blocked / "below"))
    attest.kernel_timed(1, 1e-5)
    with compile_marks.compiling("k"):
        pass

    assert not attest.first_call()
    assert not compile_marks._running

    monkeypatch.setenv("GLM5_RUN_DIR", str(run_dir))
    assert attest.first_call()
    assert read(run_dir)["first_call_at"]


@pytest.mark.parametrize(
    ("block", "is_attested"), [(0, False), (7, True)], ids=["captured graph", "real request"]
)
def test_a_real_request_attests(
    block: int, is_attested: bool, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first row of a real request attests, also on a rank whose cache another rank's token does not enter."""
    from glm5_vllm.attention import backend

    attest.layer_built(facts())
    monkeypatch.setattr(
        backend.SparseMLACommonMetadataBuilder, "build", lambda *_: SimpleNamespace(num_decode_tokens=1)
    )
    builder = backend.TritonMLASparseMetadataBuilder.__new__(backend.TritonMLASparseMetadataBuilder)
    builder._is_first_call_seen = False
    batch = SimpleNamespace(block_table_tensor=torch.tensor([[block, 0]]), slot_mapping=torch.tensor([-1]))

    builder.build(0, batch)

    assert bool(read(run_dir)["first_call_at"]) == is_attested


def test_nothing_is_written_without_a_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GLM5_RUN_DIR every call is a no-op."""
    monkeypatch.delenv("GLM5_RUN_DIR", raising=False)
    monkeypatch.setattr(attest, "_record", None)

    attest.layer_built(facts())
    attest.first_call()

    assert attest._record is None
