"""Compiles every shipped configuration for cards that are not here (about 2 minutes on 2 cores)."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# an environment of its own (requirements/triton.txt): the Triton of the CUDA image, not the one of the CPU profile
PYTHON = Path(os.environ.get("GLM5_TRITON_PYTHON", ROOT / ".venv-triton/bin/python"))


@pytest.mark.offline_compile
@pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with requirements/triton.txt at {PYTHON}")
def test_every_configuration_fits() -> None:
    """No configuration the table can choose spills registers or exceeds shared memory on SM80, SM89, SM100 and SM120."""
    done = subprocess.run(
        [PYTHON, ROOT / "tests/bench/offline_compile.py"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "backend_plugin")},
    )

    assert done.returncode == 0, done.stdout + done.stderr
