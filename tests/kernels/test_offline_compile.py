"""Compiles every shipped configuration for cards that are not here (about 8 minutes on 2 cores)."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# an environment of its own (requirements/triton.txt): the Triton of the CUDA image, not the one of the CPU profile
PYTHON = Path(os.environ.get("GLM5_TRITON_PYTHON", ROOT / ".venv-triton/bin/python"))


@pytest.mark.offline_compile
@pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with requirements/triton.txt at {PYTHON}")
@pytest.mark.parametrize("script", ["offline_compile.py", "offline_experts.py"])
@pytest.mark.timeout(1800)
def test_every_configuration_fits(script: str) -> None:
    """No configuration the tables can choose spills registers or exceeds shared memory on SM80, SM89, SM100 and SM120.

    The expert kernels are compiled for SM90 too.
    """
    done = subprocess.run(
        [PYTHON, ROOT / "tests/bench" / script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "backend_plugin")},
    )

    assert done.returncode == 0, done.stdout + done.stderr
