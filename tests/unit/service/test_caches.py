"""Folders of compiled kernels: one a combination of image, driver and GPU, old ones pruned."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from glm5_service.engine import caches
from glm5_service.host.hardware import Gpu, Host

GPU = Gpu("RTX PRO 6000", 1, 1, (12, 0), False)
HOST = Host((GPU,), "595.1", (13, 2), True, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("image", "host", "installed"),
    [
        ("sha256:b", HOST, {}),
        (None, HOST, {"torch": "2.14.0"}),
        ("sha256:a", replace(HOST, driver="596.0"), {}),
        ("sha256:a", replace(HOST, gpus=(replace(GPU, capability=(9, 0)),)), {}),
    ],
    ids=["image", "versions", "driver", "GPU"],
)
def test_another_combination_has_another_key(
    image: str | None, host: Host, installed: dict[str, str]
) -> None:
    """What changes the compiled code changes the folder."""
    assert caches.cache_key(image, host, installed) != caches.cache_key("sha256:a", HOST, {})


def test_key_is_stable_and_names_the_architecture() -> None:
    """The same combination finds its cache again, versions do not matter where the image is known."""
    key = caches.cache_key("sha256:a", HOST, {"torch": "1"})
    assert key == caches.cache_key("sha256:a", HOST, {"torch": "2"})
    assert key.startswith("sm120-")


def test_keys_used_last_are_kept(tmp_path: Path) -> None:
    """Pruning removes the keys that were used longest ago."""
    for age, name in enumerate(["new", "middle", "old", "older"]):
        (tmp_path / name / "triton").mkdir(parents=True)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert sorted(caches.prune(tmp_path, 2)) == ["old", "older"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "new"]


def test_a_key_that_another_start_removes_meanwhile_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts prune the same volume; a folder that is listed and gone is one less to remove."""
    (tmp_path / "new").mkdir()
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / "gone", folder / "new"]))
    assert caches.prune(tmp_path, 1) == []


def test_every_compiler_gets_a_folder_of_this_key(tmp_path: Path) -> None:
    """All caches lie below one key and none elsewhere."""
    environment = caches.prepare(tmp_path, "sha256:a")
    assert set(environment) == set(caches.VARIABLES)
    assert len({Path(folder).parent for folder in environment.values()}) == 1
    assert Path(environment["TRITON_CACHE_DIR"]).is_relative_to(tmp_path / "jit")
