"""What a model path is: finds the file for the engine and has the plugin read its header in another process.

Never opens a GGUF file itself; the plugin's `python -m glm5_vllm.gguf inspect` is the only reader.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from glm5_service.contracts.command_lines import GGUF_MODULE, InspectArguments
from glm5_service.contracts.model_report import GgufFacts
from glm5_service.errors import EngineError, ModelError, SettingsError
from glm5_service.foreign import parse_json
from glm5_service.settings.tree import ModelSettings

# a 402 GB set has a header of a few MB; beyond this the storage hangs
INSPECT_TIMEOUT_SECONDS = 120
AS_IT_IS = ModelSettings()
_SPLIT = re.compile(r"^(?P<set>.*)-\d{5}-of-\d{5}\.gguf$")


class ModelFacts(BaseModel):
    """The model as the engine is given it; `gguf` is None for a Hugging Face folder."""

    model_config = ConfigDict(frozen=True)

    path: Path
    gguf: GgufFacts | None = None
    architecture: str | None = None


def locate(path: Path) -> Path:
    """The GGUF file, or the Hugging Face folder, that names the model; raises on anything else."""
    try:
        return _located(path)
    except (OSError, ValueError) as error:
        # such as a name longer than the file system allows, or a NUL in it
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(
            "cannot read the model path", path, remedy=f"{reason}. Check the path."
        ) from error


def _located(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise SettingsError("no such model", path, expected="a GGUF file or a folder that holds a model")
    files = sorted(path.glob("*.gguf"))
    sets: dict[str, Path] = {}
    for file in files:
        match = _SPLIT.match(file.name)
        sets.setdefault(match["set"] if match else file.name, file)
    if len(sets) == 1:
        return files[0]
    if sets:
        names = ", ".join(file.name for file in sets.values())
        raise SettingsError(
            "folder holds several models", path, expected="one", remedy=f"Name one of {names}."
        )
    if (path / "config.json").is_file():
        return path
    if pieces := sorted(path.glob("*.gguf?*")):
        # raw pieces of a file: the plugin says how to join them
        return pieces[0]
    raise SettingsError("no model in folder", path, expected="*.gguf, or config.json with safetensors")


def inspect_model(path: Path, served: ModelSettings = AS_IT_IS) -> ModelFacts:
    """Facts of the model at `path`; raises ModelError (exit code 4) if it cannot be served.

    `served` names what serves instead of the file's own tokenizer and templates, and which release it is.
    """
    model = locate(path)
    if model.is_dir():
        return ModelFacts(path=model, architecture=_model_type(model / "config.json"))
    arguments = InspectArguments(
        path=model,
        hf_folder=served.hf_folder,
        chat_template=served.chat_template,
        release=served.release,
        json_output=True,
    )
    output = _run_plugin(arguments, capture=True)
    try:
        report = json.loads(output.stdout)
        if error := report.get("error"):
            raise ModelError(str(error).rstrip("."), remedy="See `glm5 gguf inspect`.")
        facts = GgufFacts.model_validate(report)
    except (ValueError, AttributeError, ValidationError) as error:
        tail = (output.stderr.strip().splitlines() or ["no output"])[-1]
        raise EngineError(
            "model inspection gave no readable report",
            f"exit {output.returncode}, {tail}",
            expected="JSON of schema 1",
            remedy="Check that glm5-vllm and glm5-service are of the same release.",
        ) from error
    return ModelFacts(path=model, gguf=facts, architecture=facts.architecture)


def _model_type(config: Path) -> str | None:
    try:
        found = parse_json(config.read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(
            "not a model configuration", config, expected="a JSON object", remedy=f"{error}."
        ) from error
    return str(found) if found else None


def show(path: Path, *, as_json: bool) -> int:
    """Print the plugin's report on stdout; returns its exit code."""
    return _run_plugin(InspectArguments(path=locate(path), json_output=as_json), capture=False).returncode


def _run_plugin(arguments: InspectArguments, *, capture: bool) -> subprocess.CompletedProcess[str]:
    require_plugin()
    argv = [sys.executable, "-m", GGUF_MODULE, *arguments.argv()]
    try:
        return subprocess.run(
            argv, text=True, capture_output=capture, timeout=INSPECT_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            "model inspection did not end",
            f"{INSPECT_TIMEOUT_SECONDS} s",
            remedy="Check the storage of the model.",
        ) from error


def require_plugin(find: Callable[[str], object | None] = importlib.util.find_spec) -> None:
    """Raise EngineError unless the plugin is installed beside this service."""
    if find("glm5_vllm") is None:
        raise EngineError(
            "the engine plugin is not installed",
            sys.executable,
            expected="glm5-vllm in the same environment",
            remedy="Install backend_plugin/, or run this in the engine image.",
        )
