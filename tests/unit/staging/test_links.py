"""Symbolic links on the model volume are never followed: nothing outside of it is read, written or removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glm5_service.contracts.manifest import MANIFEST_NAME
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.sources import open_source
from glm5_service.staging.stager import Options
from glm5_service.staging.store import files
from glm5_service.staging.store.inuse import hold
from glm5_service.staging.store.lease import boot_id
from glm5_service.staging.store.volume import Volume
from glm5_service.staging.transfer.blocks import BlockFile
from glm5_service.staging.transfer.journal import Coverage, Journal
from tests.unit.staging.test_run import Runner, change, headers_are_fine, source, stage

__all__ = ["headers_are_fine", "source", "stage"]

FOLDERS = ["revisions", "in-use", ".staging", ".staging/lock", ".staging/partial", ".staging/build"]


def contents(folder: Path) -> dict[str, bytes | str]:
    """Everything below `folder`, links as what they say."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the volume, with files of the names that staging writes and removes."""
    folder = tmp_path / "outside"
    for name in (
        "m.gguf",
        "config.json",
        "x.partial",
        "x.journal",
        "00000001.json",
        "probe.x",
        "trash.x/y",
        "old/z",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"precious {name}")
    return folder


@pytest.mark.parametrize("options", [Options(), Options(verify=True), Options(dry_run=True)])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_working_folder_that_is_a_link(stage: Runner, outside: Path, name: str, options: Options) -> None:
    """Refused before anything is written or removed, and the message names the link."""
    link, before = stage.target / name, contents(outside)
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(StagingError, match="symbolic link") as caught:
        stage(options)
    assert caught.value.reason is Reason.SYMBOLIC_LINK
    assert str(link) in str(caught.value)
    assert contents(outside) == before


def test_a_folder_that_becomes_a_link(tmp_path: Path, outside: Path) -> None:
    """Also where the check came too early: each operation looks at the folder it works in."""
    (tmp_path / "folder").symlink_to(outside)
    path, before = tmp_path / "folder/m.gguf", contents(outside)
    for attempt in (
        lambda: files.read_bytes(path),
        lambda: files.write_text(path, "mine"),
        lambda: files.remove(path),
        lambda: files.remove_tree(path),
        lambda: files.names(path.parent),
        lambda: files.make_folder(path.parent),
        lambda: files.copy(outside / "old/z", path),
        lambda: BlockFile(path),
    ):
        with pytest.raises(OSError, match="symbolic links"):
            attempt()
    assert contents(outside) == before


def test_a_file_that_is_a_link(tmp_path: Path, outside: Path) -> None:
    """Neither opened nor overwritten; what is removed is the link."""
    path, before = tmp_path / "m.gguf", contents(outside)
    for name in ("m.gguf", "nothing", "old"):
        path.symlink_to(outside / name)
        for attempt in (
            lambda: files.read_bytes(path),
            lambda: files.write_text(path, "mine"),
            lambda: files.copy(outside / "old/z", path),
            lambda: BlockFile(path),
        ):
            with pytest.raises(OSError, match=r"symbolic links|File exists"):
                attempt()
        files.remove_tree(path) if name == "old" else files.remove(path)
        assert not path.is_symlink()
    assert contents(outside) == before


@pytest.mark.parametrize("where", ["build", "records", "partial", "journal", "both"])
def test_links_in_place_of_what_a_run_left(
    stage: Runner, outside: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build or partial file that is a link costs nothing outside: it is removed, or the run is refused."""
    monkeypatch.setattr("glm5_service.staging.plan._same_volume", lambda *_: False)
    stage()
    revision, before = stage.revisions[0], contents(outside)
    files.remove_tree(stage.target / "revisions")
    (stage.target / "current").unlink()
    model = next(e for e in open_source(f"file://{stage.source}", StagingSettings()).entries() if e.is_gguf)
    volume = Volume(stage.target)
    volume.prepare()
    if where in ("build", "records"):
        suffix = ".records" if where == "records" else ""
        (volume.builds / f"{revision}{suffix}").symlink_to(outside)
    else:
        data, journal = (volume.partials / f"m.gguf.dead.{kind}" for kind in ("partial", "journal"))
        covered = Coverage()
        covered.add(0, 10)
        Journal(journal, model, covered, boot_id()).close()
        data.write_bytes(b"GGUF")
        for path in (data, journal):
            if where in (path.suffix[1:], "both"):
                path.unlink()
                path.symlink_to(outside / f"x{path.suffix}")
    if where in ("build", "records"):
        with pytest.raises(StagingError, match="symbolic link"):
            stage()
    else:
        assert stage() is not None
    assert contents(outside) == before


def test_links_among_the_revisions(stage: Runner, source: Path, outside: Path) -> None:
    """A link beside the revisions is no revision: neither read as a model, nor pruned, nor swept."""
    stage()
    (outside / MANIFEST_NAME).write_bytes((stage.target / "current" / MANIFEST_NAME).read_bytes())
    before = contents(outside)
    (stage.target / "revisions/linked").symlink_to(outside)
    (stage.target / ".staging/trash.x").symlink_to(outside)
    (stage.target / ".staging/build/old").symlink_to(outside)
    change(source, "{ }")
    assert stage(refresh=True, keep=1) is not None
    assert stage(Options(verify=True)) is not None
    assert contents(outside) == before


def test_a_published_file_that_is_a_link_is_brought_again(stage: Runner, source: Path) -> None:
    """A revision whose file is a link is not the one that was verified: the file itself takes its place."""
    stage()
    published = stage.target / "current/m.gguf"
    published.unlink()
    published.symlink_to(source / "m.gguf")
    assert stage() is not None
    assert not (stage.target / "current/m.gguf").is_symlink()
    assert (stage.target / "current/m.gguf").samefile(source / "m.gguf")


@pytest.mark.parametrize("is_relative", [True, False])
@pytest.mark.parametrize("is_linked", [True, False])
def test_a_hub_cache_is_published_as_files(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool, is_linked: bool
) -> None:
    """The model outlives the cache that it was linked to or copied from."""
    if not is_linked:
        monkeypatch.setattr("glm5_service.staging.plan._same_volume", lambda *_: False)
    blobs = stage.target.parent / "hub/blobs"
    blobs.mkdir(parents=True)
    for name in ("m.gguf", "config.json"):
        (source / name).rename(blobs / f"{name}-blob")
        (source / name).symlink_to(
            os.path.relpath(blobs, source) + f"/{name}-blob" if is_relative else blobs / f"{name}-blob"
        )
    assert stage() is not None
    data = (blobs / "m.gguf-blob").read_bytes()
    files.remove_tree(blobs.parent)
    published = stage.target / "current/m.gguf"
    assert not published.is_symlink()
    assert published.read_bytes() == data


def test_a_lease_is_not_written_through_a_link(stage: Runner, outside: Path) -> None:
    """A reader that cannot hold is told so."""
    stage()
    before = contents(outside)
    files.remove_tree(stage.target / "in-use")
    (stage.target / "in-use").symlink_to(outside)
    with pytest.raises(StagingError, match="symbolic link"), hold(stage.target, Clock()):
        pass
    assert contents(outside) == before


def test_a_target_behind_a_link_is_a_target(stage: Runner, tmp_path: Path) -> None:
    """Where the volume is mounted is the operator's choice; only what is below the target is ours."""
    (tmp_path / "real").mkdir()
    stage.target.symlink_to(tmp_path / "real")
    assert stage() is not None
