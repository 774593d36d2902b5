"""The plugin's marks of compilations are what the supervisor reads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from glm5_service.rundir import RunDir
from glm5_vllm import compile_marks


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run directory that the plugin knows."""
    monkeypatch.setenv("GLM5_RUN_DIR", str(tmp_path))
    return RunDir(tmp_path)


def test_a_mark_is_there_while_a_kernel_compiles(run_dir: RunDir) -> None:
    """The supervisor sees process, kernel and start of a compilation, and nothing after its end."""
    before = time.time()
    with compile_marks.compiling("_decode"), compile_marks.compiling("_merge"):
        [(pid, mark)] = run_dir.compile_marks()
        assert (pid, mark.kernel) == (os.getpid(), "_decode")
        assert before <= mark.since <= time.time()
    assert run_dir.compile_marks() == []


def test_a_failed_compilation_leaves_no_mark(run_dir: RunDir) -> None:
    """An error in the compiler must not look like a compilation for ever."""
    with pytest.raises(RuntimeError), compile_marks.compiling("_decode"):
        raise RuntimeError
    assert run_dir.compile_marks() == []


def test_triton_hooks_mark_and_pass_on(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's hooks set and clear the mark, once however often they are installed, and call those before them."""
    from triton import knobs

    called: list[str] = []
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", None)
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **facts: called.append("after"))
    compile_marks.watch_triton()
    compile_marks.watch_triton()
    facts = {"fn": SimpleNamespace(name="_decode"), "key": "k"}
    assert not knobs.runtime.jit_cache_hook(**facts)
    assert [mark.kernel for _, mark in run_dir.compile_marks()] == ["_decode"]
    knobs.runtime.jit_post_compile_hook(**facts)
    assert (run_dir.compile_marks(), called) == ([], ["after"])
