"""What can be said of docker/ without building it."""

from __future__ import annotations

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
