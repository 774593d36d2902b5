"""Faults inside the real engine's processes, for tests: put this folder on PYTHONPATH of the engine.

`slow.json` in the run directory makes the next attention call wait `seconds` or until `slow-over` is there, as a
compilation if `mark` says so.
"""

import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from pathlib import Path

TARGET = "glm5_vllm.cpu.backend"


def _slow_down(implementation):
    original = implementation.forward_mqa

    def forward_mqa(self, *args, **kwargs):
        path = Path(os.environ["GLM5_RUN_DIR"]) / "slow.json"
        if path.exists():
            fault = json.loads(path.read_text())
            path.unlink()
            from glm5_vllm import compile_marks

            mark = compile_marks.compiling("slow_kernel") if fault["mark"] else contextlib.nullcontext()
            with mark:
                _wait(fault["seconds"], path.with_name("slow-over"))
        return original(self, *args, **kwargs)

    implementation.forward_mqa = forward_mqa


def _wait(seconds, over):
    over.unlink(missing_ok=True)  # of an earlier fault
    end = time.monotonic() + seconds
    while time.monotonic() < end and not over.exists():
        time.sleep(0.05)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _slow_down(module.TorchMLASparseImpl)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("GLM5_RUN_DIR"):
    sys.meta_path.insert(0, _Finder())
