"""What the plugin really writes is what the schemas say and the service reads: no key unknown, none missing."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft7Validator
from pydantic import BaseModel

from glm5_service.contracts import command_lines, generate
from glm5_service.contracts.attestation import Attestation
from glm5_service.contracts.compile_mark import CompileMark
from glm5_service.contracts.environment import EngineEnvironment
from glm5_service.contracts.model_report import GgufFacts, UnreadableModel
from glm5_service.rundir import RunDir
from glm5_vllm import attest, compile_marks, envs
from glm5_vllm.gguf.__main__ import main as gguf
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import QuantMix, TinySpec

ROOT = Path(__file__).resolve().parents[2]


def written(text: str | bytes, model: type[BaseModel]) -> Any:
    """The document, valid by its schema and unchanged by reading and writing it through its model."""
    name = next(name for name, (each, _) in generate.SCHEMAS.items() if each is model)
    document = json.loads(text)
    Draft7Validator(json.loads((generate.FOLDER / f"{name}.json").read_text())).validate(document)
    assert json.loads(model.model_validate(document).model_dump_json(by_alias=True)) == document
    return document


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run directory that the supervisor told the plugin of."""
    told = EngineEnvironment.of(tmp_path, tmp_path / "cache", "speed").variables()
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert (envs.run_dir(), envs.cache_dir()) == (tmp_path, tmp_path / "cache")
    monkeypatch.setattr(attest, "_record", None)
    monkeypatch.setattr(attest, "_rank", lambda: 3)
    return RunDir(tmp_path)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_attestation(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, on_gpu: bool) -> None:
    """A rank's file is whole from its first layer on, and after everything that can be added to it."""
    if on_gpu:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    path = run_dir.attention / "rank-3.json"
    attest.layer_built(attest.LayerFacts("A", "m.A", "bfloat16", "auto", 8, 2048))
    written(path.read_bytes(), Attestation)
    attest.kernel_configured("decode", {"BLOCK": 64, "splits": 4})
    attest.kernel_timed(1, 1e-5)
    assert attest.first_call()
    document = written(path.read_bytes(), Attestation)
    assert document["compute_capability"] == ("12.0" if on_gpu else None)
    assert [record.rank for record in run_dir.attestations()] == [3]


def test_compile_mark(run_dir: RunDir) -> None:
    """A mark is whole, and lies where the supervisor looks."""
    with compile_marks.compiling("_decode"):
        written((run_dir.compiles / f"{os.getpid()}.json").read_bytes(), CompileMark)
        assert [mark.kernel for _, mark in run_dir.compile_marks()] == ["_decode"]


def test_inspection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report on a sound model, on one that is refused, and on one that cannot be read."""
    sound = ROOT / "demo_model" / "glm5-demo-00001-of-00003.gguf"
    assert gguf(command_lines.InspectArguments(path=sound, json_output=True).argv()) == 0
    assert written(capsys.readouterr().out, GgufFacts)["error"] is None
    mixed = TinySpec(layers=3, heads=1, experts=2, quants=QuantMix(gate="Q4_K", up="Q5_K"))
    refused = write_tiny(tmp_path, mixed).path
    assert gguf(command_lines.InspectArguments(path=refused, json_output=True).argv()) == 4
    assert written(capsys.readouterr().out, GgufFacts)["refused"]
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert gguf(command_lines.InspectArguments(path=broken, json_output=True).argv()) == 4
    written(capsys.readouterr().out, UnreadableModel)


def test_the_plugin_reads_no_variable_of_ours_that_nobody_sets() -> None:
    """Every GLM5_ variable in the plugin is one that the supervisor sets, and the other way round."""
    read = {
        str(node.value)
        for path in (ROOT / "backend_plugin" / "glm5_vllm").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("GLM5_")
    }
    assert read == set(EngineEnvironment.of(Path(), Path(), "speed", "module:class", 1, "5.1").variables())


@pytest.mark.parametrize(
    "module", [command_lines.SERVE_MODULE, command_lines.GGUF_MODULE, command_lines.HEALTH_MODULE]
)
def test_modules_that_are_started_exist(module: str) -> None:
    """A module that one process starts another with is there under that name."""
    base = ROOT / ("backend_plugin" if module.startswith("glm5_vllm") else "service")
    path = base / module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
