"""What can be said of docker/ without building it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chart import ROOT

pytestmark = pytest.mark.chart


@pytest.mark.parametrize(
    "path", ["docker/Dockerfile", "docker/cuda-standin.Dockerfile", "tests/e2e/models.Dockerfile"]
)
def test_hadolint_finds_nothing(path: str) -> None:
    """hadolint is silent; what is ignored has its reason beside it."""
    linter = Path(sys.executable).parent / "hadolint"
    output = subprocess.run([linter, str(ROOT / path)], capture_output=True, text=True, check=False)

    assert output.stdout == ""


def test_every_pin_has_a_reason_and_is_used() -> None:
    """Each pin stands under a comment, and the Dockerfile takes it as an argument."""
    lines = (ROOT / "docker" / "pins.env").read_text().splitlines()
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text() + (ROOT / "docker" / "lock").read_text()
    pins = {
        line.partition("=")[0]: lines[n - 1] for n, line in enumerate(lines) if "=" in line and line[0] != "#"
    }

    assert [name for name, above in pins.items() if not above.startswith("#")] == []
    assert [name for name in pins if name not in dockerfile] == []


def test_plugin_pin_is_that_of_the_cpu_environment() -> None:
    """The GGUF plugin is pinned once for images and once for the CPU environment, to the same version."""
    pins = (ROOT / "docker" / "pins.env").read_text()
    pinned = (ROOT / "requirements" / "cpu.txt").read_text()
    version = pins.split("VLLM_GGUF_PLUGIN=")[1].split()[0]

    assert f"vllm-gguf-plugin=={version}" in pinned


def test_every_image_names_its_user() -> None:
    """Each stage that sets a user has the argument it is made of in scope; otherwise the image would run as root."""
    stages = (ROOT / "docker" / "Dockerfile").read_text().split("\nFROM ")
    users = [stage for stage in stages if "USER ${USER_ID}" in stage]

    assert len(users) == 4
    assert [stage.splitlines()[0] for stage in users if "ARG USER_ID" not in stage.split("USER ")[0]] == []


@pytest.mark.parametrize("tool", ["docker", "buildah"])
def test_build_pushes_and_saves_with_either_tool(tool: str, tmp_path: Path) -> None:
    """PUSH sends each image to its registry and TAR keeps an archive of it; without them neither is done."""
    tag = f"registry.example/glm5-service:{(ROOT / 'VERSION').read_text().strip()}"
    archive = tmp_path / "service.tar"
    save, push = {
        "docker": (f"save -o {archive} {tag}", f"push -q {tag}"),
        "buildah": (f"push -q {tag} docker-archive:{archive}:{tag}", f"push {tag}"),
    }[tool]

    plain = _calls_of_build(tool, tmp_path)
    assert any(call.endswith(".") and f"-t {tag} " in call for call in plain)
    assert [call for call in plain if call.split()[0] in ("save", "push")] == []
    assert [call for call in _calls_of_build(tool, tmp_path, PUSH="1") if call not in plain] == [push]
    assert [call for call in _calls_of_build(tool, tmp_path, TAR="1") if call not in plain] == [save]


def test_local_bases_are_built_on_with_the_tool_that_has_them(tmp_path: Path) -> None:
    """A base that buildah made is not asked of docker."""
    assert _calls_of_build("docker", tmp_path, LOCAL_BASE="1") == []
    assert any(call.startswith("bud") for call in _calls_of_build("buildah", tmp_path, LOCAL_BASE="1"))


def _calls_of_build(tool: str, folder: Path, **environment: str) -> list[str]:
    """What docker/build asks of `tool` for one image; both are there, and docker runs unless buildah is meant."""
    calls = folder / "calls"
    for name in ("docker", "buildah"):
        runs = 1 if (name, tool) == ("docker", "buildah") else 0
        log = f'echo "$*" >> {calls}' if name == tool else ":"
        (folder / name).write_text(f"#!/bin/sh\n[ $1 != info ] || exit {runs}\n{log}\n")
        (folder / name).chmod(0o755)
    calls.write_text("")
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/")}
    given |= {"OUT": str(folder), "REGISTRY": "registry.example"}
    command = [str(ROOT / "docker" / "build"), "service"]
    subprocess.run(command, env=given | environment, check=True, capture_output=True)
    return calls.read_text().splitlines()
