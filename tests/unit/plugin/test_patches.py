"""The rules every upstream patch keeps."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_vllm import patches, versions

PATCHES = sorted(
    p.stem for p in Path(patches.__file__).parent.glob("*.py") if p.stem not in ("__init__", "apply")
)
HEADINGS = ("Symptom:", "Cause:", "Change:", "Does not apply:", "Remove when:")


@pytest.mark.parametrize("name", PATCHES)
def test_each_patch_says_why_it_is_there(name: str) -> None:
    """A patch's docstring has symptom, cause, change, where it does not apply and when to remove it, in this order."""
    text = (Path(patches.__file__).parent / f"{name}.py").read_text().split('"""')[1]

    positions = [text.find(heading) for heading in HEADINGS]

    assert -1 not in positions, dict(zip(HEADINGS, positions, strict=True))
    assert positions == sorted(positions)


def _plus_one(inner: Callable[[], int]) -> Callable[[], int]:
    return functools.wraps(inner)(lambda: inner() + 1)


def _times_ten(inner: Callable[[], int]) -> Callable[[], int]:
    return functools.wraps(inner)(lambda: inner() * 10)


def test_a_patch_is_applied_once() -> None:
    """Applying twice leaves one layer, and the original can be had back."""
    owner = types.SimpleNamespace(f=lambda: 1)
    original = owner.f

    for _ in range(2):
        patches.replace_attribute(owner, "f", _plus_one)

    assert owner.f() == 2
    assert patches.original_of(owner.f) is original


def test_two_patches_of_one_attribute_both_apply() -> None:
    """Each is there once, in the order in which they came, however often all are applied."""
    owner = types.SimpleNamespace(f=lambda: 1)

    for _ in range(2):
        patches.replace_attribute(owner, "f", _plus_one)
        patches.replace_attribute(owner, "f", _times_ten)

    assert owner.f() == 20


def test_a_missing_target_raises() -> None:
    """A patch whose target does not exist ends the start with the name of the target."""
    with pytest.raises(patches.PatchTargetMissingError, match=r"nothing to patch at owner\.gone"):
        patches.replace_attribute(types.ModuleType("owner"), "gone", lambda original: original)


@pytest.mark.parametrize(
    ("found", "platform", "told"),
    [
        ("0.99.1+cu130", "cuda", r"on cuda: 0\.99\.1; expected 0\.33\.0\."),
        ("0.32.0", "cuda", r"on cuda: 0\.32\.0; expected 0\.33\.0\."),
        ("0.33.0", "cpu", r"on cpu: 0\.33\.0; expected 0\.32\.0\."),
        ("0.99.1", "", r"on an unknown platform: 0\.99\.1; expected 0\.33\.0 or 0\.32\.0\."),
    ],
)
def test_untested_vllm_is_refused(
    found: str, platform: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vLLM version that was not tested on this platform is refused with its number and the tested one."""
    fake = types.ModuleType("vllm")
    fake.__version__ = found  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "vllm", fake)

    with pytest.raises(versions.UntestedVersionError, match=told):
        versions.check_vllm(platform)


@pytest.mark.parametrize(
    ("found", "platform"),
    [("0.33.0+cu130", "cuda"), ("0.32.0", "cpu"), ("0.32.0+cpu", "cpu"), ("0.33.0", "")],
)
def test_tested_vllm_is_taken(found: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version tested on a platform passes, with or without a local suffix."""
    fake = types.ModuleType("vllm")
    fake.__version__ = found  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "vllm", fake)

    versions.check_vllm(platform)
