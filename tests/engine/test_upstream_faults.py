"""Faults of the pinned packages that a patch works around: when one of these fails, the patch can go."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine

ROTARY = """
from glm5_vllm.patches import original_of, vllm_distribution_name
vllm_distribution_name.apply()
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.plugins import load_general_plugins
load_general_plugins()
with set_current_vllm_config(VllmConfig()):
    from vllm.model_executor.layers.rotary_embedding import get_rope
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    parameters = {"rope_type": "default", "rope_theta": 1e6}
    rope = get_rope(64, max_position=128, is_neox_style=False, rope_parameters=parameters)
    stock = original_of(RotaryEmbedding.forward_cpu)
    torch.manual_seed(0)
    positions = torch.arange(7)
    for heads in (None, 4):
        query = torch.randn(7, 64) if heads is None else torch.randn(7, heads, 64)
        key = torch.randn(7, 64)
        expected = rope.forward_native(positions, query.clone(), key.clone())[0]
        got = stock(rope, positions, query.clone(), key.clone())[0]
        print(float((got - expected).norm() / expected.norm()))
"""


def run(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("\n")[:-1]


def test_stock_cpu_rotation_is_wrong_for_three_dimensions() -> None:
    """patches/cpu_rotary_embedding: the stock operation is right for [tokens, 64] and wrong for [tokens, heads, 64]."""
    two_dimensions, three_dimensions = (float(line) for line in run(ROTARY)[-2:])

    assert two_dimensions < 1e-5
    assert three_dimensions > 0.1


def test_cpu_build_is_not_called_vllm() -> None:
    """patches/vllm_distribution_name: no distribution is called vllm, so the stock command line ends at once."""
    program = """
import importlib.metadata
try:
    importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError as error:
    print(error)
"""

    assert run(program) == ["No package metadata was found for vllm"]


def test_vllm_has_no_flag_for_the_http_protocol() -> None:
    """patches/api_http_protocol: no flag of `vllm serve` goes to uvicorn as `http`."""
    program = """
from glm5_vllm.patches import vllm_distribution_name
vllm_distribution_name.apply()
from vllm.entrypoints.launchers.cli_args import FrontendArgs
print(sorted(name for name in vars(FrontendArgs) if name in ("http", "http_protocol", "uvicorn_http")))
"""

    assert run(program)[-1] == "[]"


def test_xgrammar_cannot_be_interrupted() -> None:
    """patches/grammar_time_limit: xgrammar's compiler takes no limit of time."""
    program = """
import inspect
import xgrammar
compile = xgrammar.GrammarCompiler.compile_json_schema
made = [*inspect.signature(xgrammar.GrammarCompiler).parameters, *inspect.signature(compile).parameters]
print([name for name in made if "time" in name or "deadline" in name or "cancel" in name])
"""

    assert run(program)[-1] == "[]"
