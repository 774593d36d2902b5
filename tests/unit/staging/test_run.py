"""Whole runs on a small folder: plan, publish, keep, reuse, report."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from glm5_service.contracts.manifest import Manifest, ModelSummary
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.command import run
from glm5_service.staging.progress import Progress, duration_text, size_text
from glm5_service.staging.reasons import Reason, SourceChanged, StagingError
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources.base import Stream
from glm5_service.staging.sources.listing import Offer, make_offer
from glm5_service.staging.sources.local import LocalSource, LocalStream
from glm5_service.staging.stager import Options
from glm5_service.staging.store import files
from glm5_service.staging.store.lease import Lease, write_lease
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.store.manifest import read_manifest
from glm5_service.staging.store.prune import prune, sweep
from glm5_service.staging.store.volume import Volume
from glm5_service.staging.warm import resident_bytes
from tests.unit.staging.test_lock import ELSEWHERE, FakeClock

SUMMARY = ModelSummary(
    architecture="glm-dsa",
    name="m",
    tensors=1,
    tensor_bytes=4,
    context_length=None,
    splits=1,
    types={},
    first_file="m.gguf",
)


@pytest.fixture(autouse=True)
def headers_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """These files are no real GGUF; the real header reader is asked in the tests against servers."""
    monkeypatch.setattr("glm5_service.staging.store.publish.check_structure", lambda *_: SUMMARY)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "m.gguf").write_bytes(b"GGUF" + bytes(range(256)) * 300)
    (folder / "config.json").write_text("{}")
    return folder


class Runner:
    """Runs staging from a folder on another device's rules: files are copied, never linked to the source."""

    def __init__(self, tmp_path: Path, source: Path) -> None:
        self.target, self.run_dir, self.source = tmp_path / "target", tmp_path / "run", source
        self.termination = tmp_path / "termination"
        self.log = io.StringIO()

    def __call__(self, options: Options = Options(), **settings: Any) -> Manifest | None:  # noqa: B008
        given = {"source": f"file://{self.source}", "target": self.target, "headroom_bytes": 0, **settings}
        given["termination_log"] = self.termination
        run(StagingSettings(**given), options, run_dir=self.run_dir, out=self.log, clock=None)
        return read_manifest(self.target / "current")

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "staging.json").read_text()))

    @property
    def revisions(self) -> list[str]:
        return sorted(path.name for path in (self.target / "revisions").iterdir())


@pytest.fixture
def stage(tmp_path: Path, source: Path) -> Runner:
    return Runner(tmp_path, source)


def change(source: Path, text: str) -> None:
    """Replace a file, as a publisher does."""
    (source / "new").write_text(text)
    (source / "new").replace(source / "config.json")


def test_dry_run_changes_nothing(stage: Runner) -> None:
    """A plan is printed with sizes and estimates, and the volume stays as it is."""
    assert stage(Options(dry_run=True)) is None
    assert not stage.target.exists()
    assert "to fetch" in stage.log.getvalue()
    assert "at 1.00 GB/s" in stage.log.getvalue()


def test_folder_on_the_volume_is_linked(stage: Runner, source: Path) -> None:
    """A model that is on the volume already takes no second space."""
    stage()
    assert (stage.target / "current/m.gguf").stat().st_ino == (source / "m.gguf").stat().st_ino
    assert stage.state["fetched_bytes"] == 0


def test_where_links_fail_files_are_copied(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder on another filesystem, or one that forbids links, is copied and hashed."""
    monkeypatch.setattr("glm5_service.staging.store.build.Build.link", lambda *_: False)
    stage()
    assert (stage.target / "current/m.gguf").read_bytes() == (source / "m.gguf").read_bytes()
    assert (stage.target / "current/m.gguf").stat().st_ino != (source / "m.gguf").stat().st_ino
    assert stage.state["fetched_bytes"] == sum(path.stat().st_size for path in source.iterdir())


@pytest.mark.parametrize("ended", [False, True], ids=["of a part", "of an answer to less"])
def test_late_end_is_no_stall(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Few bytes after a long pause are taken for what they are when no more are to come: nothing is asked for again."""
    late, real, reads = [0.0], LocalStream.read_into, list[int]()

    def wait(_: LocalStream, seconds: float) -> None:
        late[0] += 100

    def read_into(stream: LocalStream, room: memoryview) -> int:
        reads.append(real(stream, room[:30_000] if ended else room))
        return reads[-1]

    monkeypatch.setattr("glm5_service.staging.store.build.Build.link", lambda *_: False)
    monkeypatch.setattr(Clock, "monotonic", lambda _: time.monotonic() + late[0])
    monkeypatch.setattr(LocalStream, "wait", wait)
    monkeypatch.setattr(LocalStream, "read_into", read_into)
    monkeypatch.setattr(LocalStream, "ended", ended)
    stage(stall_seconds=60)
    assert (stage.target / "current/m.gguf").read_bytes() == (source / "m.gguf").read_bytes()
    assert len(reads) == (4 if ended else 2)
    assert "attempt" not in stage.log.getvalue()


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
def test_what_is_recorded_is_on_disk(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """No file is vouched for that only the page cache has, also where the stager did not write it."""
    synced: list[int] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    if not links:
        stage(keep=2)
        change(source, "{ }")
        monkeypatch.setattr("glm5_service.staging.store.build.Build.link", lambda *_: False)
        monkeypatch.setattr("glm5_service.staging.plan._same_volume", lambda *_: False)
    monkeypatch.setattr(os, "fsync", fsync)
    stage(keep=2, refresh=True)
    assert (stage.target / "current/m.gguf").stat().st_ino in synced


def test_published_model_is_left_alone(stage: Runner, source: Path) -> None:
    """A second run asks nobody: the source may even be gone."""
    first = stage()
    source.rename(source.with_name("gone"))
    assert stage() == first


def test_waiting_ends_with_the_model_that_is_asked_for(stage: Runner, source: Path, tmp_path: Path) -> None:
    """Who waits fetches nothing and is done when another stager publishes that model; another model does not count."""
    elsewhere = shutil.copytree(source, tmp_path / "elsewhere")
    stage(source=f"file://{elsewhere}")
    waiting, phases = tmp_path / "waiting" / "staging.json", []

    class Publisher(Clock):
        def pause(self, stop: threading.Event, seconds: float) -> None:
            phases.append(json.loads(waiting.read_text())["phase"])
            stage()

    settings = StagingSettings(source=f"file://{source}", target=stage.target)
    run(settings, Options(wait=True), run_dir=waiting.parent, out=stage.log, clock=Publisher())

    assert phases == ["waiting"]
    assert read_manifest(stage.target / "current").source == f"file://{source}"  # type: ignore[union-attr]
    assert json.loads(waiting.read_text())["fetched_bytes"] == 0


def state_digests(source: Path) -> None:
    """Put a SHA256SUMS beside the files, as a publisher does."""
    lines = [
        f"{hashlib.sha256((source / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("m.gguf", "config.json")
    ]
    (source / "SHA256SUMS").write_text("".join(lines))


def test_same_content_is_found_under_its_new_name(
    stage: Runner, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror, a pin or a quantisation that names what is published already fetches nothing, and from then on who waits
    for it, or starts without the source, finds it."""
    state_digests(source)
    before = stage()
    mirror = shutil.copytree(source, tmp_path / "mirror")
    asked = {"source": f"file://{mirror}", "tokenizer_source": f"file://{mirror}", "quantisation": "m"}
    after = stage(**asked)
    assert before is not None
    assert after == before.model_copy(update=asked)
    mirror.rename(tmp_path / "gone")
    assert stage(Options(wait=True), **asked) == after
    assert stage(**asked) == after
    assert stage.revisions == [before.revision]


def test_refresh_stages_beside_and_switches(stage: Runner, source: Path) -> None:
    """A newer revision replaces the link at once; unchanged files are shared with the old one."""
    stage(keep=2)
    old = (stage.target / "current").resolve()
    change(source, "{ }")
    stage(keep=2, refresh=True)
    new = (stage.target / "current").resolve()
    assert new != old
    assert (new / "m.gguf").stat().st_ino == (old / "m.gguf").stat().st_ino
    assert len(stage.revisions) == 2


def test_keep_removes_the_oldest(stage: Runner, source: Path) -> None:
    """Revisions beyond `keep` go, the newest stay."""
    for number in range(4):
        change(source, " " * number)
        stage(keep=2, refresh=True)
    assert len(stage.revisions) == 2
    assert (stage.target / "current").resolve().name in stage.revisions


def test_going_back_only_switches(stage: Runner, source: Path) -> None:
    """A revision that is still there is made current without fetching or building anything."""
    first = stage(keep=2)
    before = (source / "config.json").read_bytes(), (source / "config.json").stat()
    old = (source / "config.json").rename(source.parent / "old.json")
    (source / "config.json").write_text("{ }")
    stage(keep=2, refresh=True)
    old.replace(source / "config.json")
    assert (source / "config.json").stat().st_mtime_ns == before[1].st_mtime_ns
    assert stage(keep=2, refresh=True) == first
    assert len(stage.revisions) == 2


def test_revision_in_use_is_never_pruned(stage: Runner, source: Path) -> None:
    """What a reader holds stays, whatever `keep` says."""
    stage()
    held = (stage.target / "current").resolve().name
    beats = iter(range(10_000))

    class Beating(FakeClock):
        def pause(self, stop: Any, seconds: float) -> None:
            # one writer: the lock's thread pauses as well
            if threading.current_thread() is threading.main_thread():
                write_lease(
                    stage.target / f"in-use/{held}~r.json",
                    Lease(owner=ELSEWHERE, beat=next(beats), held=True),
                )
            super().pause(stop, seconds)

    write_lease(stage.target / f"in-use/{held}~r.json", Lease(owner=ELSEWHERE, beat=0, held=True))
    change(source, "{ }")
    given = StagingSettings(
        source=f"file://{source}", target=stage.target, headroom_bytes=0, refresh=True, keep=1
    )
    run(given, out=stage.log, clock=Beating())
    assert held in stage.revisions
    assert len(stage.revisions) == 2


def test_folder_without_manifest_is_no_model(stage: Runner) -> None:
    """A folder that was never published is not a model, and is removed."""
    stage()
    (stage.target / "revisions/half").mkdir()
    (stage.target / "current/manifest.json").write_text("{")
    stage()
    assert "half" not in stage.revisions
    assert read_manifest(stage.target / "current") is not None


def prune_in(volume: Volume) -> list[str]:
    """Prune to one revision; gives what was said."""
    said: list[str] = []
    lock = TargetLock(volume.locks, Clock(), 90, threading.Event())
    lock.acquire(0, lambda _: None)
    with lock:
        prune(volume, 1, lock, Clock(), threading.Event(), said.append)
    return said


@pytest.mark.parametrize("fault", ["newer", "damaged", "out of reach"])
def test_unreadable_manifest_dooms_no_revision(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """What a newer version published, and what cannot be read, may be a whole model: it stays and is named."""
    stage(keep=2)
    old = (stage.target / "current").resolve()
    change(source, "{ }")
    stage(keep=2, refresh=True)
    manifest, real = old / "manifest.json", files.read_bytes
    if fault == "newer":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema_version": 2}))
    elif fault == "damaged":
        manifest.write_text("{")

    def read_bytes(path: Path) -> bytes:
        if path == manifest and fault == "out of reach":
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(files, "read_bytes", read_bytes)
    assert prune_in(Volume(stage.target)) == [
        f"{old} stays, its manifest.json cannot be read; remove the folder if nobody needs it"
    ]
    assert (old / "m.gguf").exists()


def unlistable(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int = errno.EIO) -> None:
    """The volume does not list this folder."""
    real = files.names

    def names(path: Path) -> list[str]:
        if path == folder:
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(files, "names", names)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", ["in-use", "revisions"])
def test_nothing_is_pruned_while_a_folder_cannot_be_listed(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """A listing that the volume does not give is no empty one: a reader may hold what would go."""
    stage(keep=2)
    change(source, "{ }")
    stage(keep=2, refresh=True)
    before, folder = stage.revisions, stage.target / name
    with monkeypatch.context() as patch:
        unlistable(patch, folder, number)
        said = prune_in(Volume(stage.target))
    assert said == [f"no revision is removed: cannot list {folder}: {os.strerror(number)}"]
    assert stage.revisions == before


def test_listing_out_of_reach_does_not_fail_a_published_model(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is current by then, so what cannot be listed for pruning is said and the run ends well."""
    stage()
    change(source, "{ }")
    with monkeypatch.context() as patch:
        unlistable(patch, stage.target / "in-use")
        stage(refresh=True)
    assert stage.state["phase"] == "done"
    assert len(stage.revisions) == 2


@pytest.mark.parametrize("name", ["revisions", ".staging/partial", ".staging/build", ".staging/lock"])
def test_folder_that_cannot_be_listed_is_not_empty(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What lies on the volume is not fetched again, and no lock taken, because a folder cannot be listed now."""
    stage()
    before = stage.revisions
    change(source, "{ }")
    with monkeypatch.context() as patch:
        unlistable(patch, stage.target / name)
        with pytest.raises(StagingError, match="cannot list") as caught:
            stage(refresh=True)
    assert caught.value.reason is Reason.VOLUME_FAULT
    assert stage.revisions == before


def test_sweep_says_what_it_cannot_list(stage: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leftovers cost room and no more."""
    stage()
    volume, said = Volume(stage.target), list[str]()
    lock = TargetLock(volume.locks, Clock(), 90, threading.Event())
    lock.acquire(0, lambda _: None)
    with lock:
        unlistable(monkeypatch, volume.partials)
        sweep(volume, lock, said.append)
    assert said == [f"nothing is swept: cannot list {volume.partials}: Input/output error"]


@pytest.mark.parametrize("step", ["drop_foreign", "assemble", "prune"])
def test_who_lost_the_lock_removes_nothing(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What lies in the working folder is the successor's from then on: after waiting for a list of files, after hashing
    for hours, and at the end."""
    volume, lost = Volume(stage.target), list[bool]()
    theirs = [volume.partials / "x.gguf.other.partial", volume.build("other") / "x.gguf"]
    before = "condemn" if step == "drop_foreign" else step

    def take_over(*_: object) -> list[Any]:
        lost.append(True)
        for path in theirs:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        return []

    def check(_: TargetLock) -> None:
        if lost:
            raise StagingError(Reason.LOCK_LOST, "lock taken over")

    stage()
    spoil(stage.target / "current/m.gguf")
    monkeypatch.setattr("glm5_service.staging.plan._same_volume", lambda *_: False)
    monkeypatch.setattr(TargetLock, "check", check)
    monkeypatch.setattr(f"glm5_service.staging.stager.{before}", take_over)
    with pytest.raises(StagingError, match="lock taken over"):
        stage(Options(verify=True))
    assert all(path.exists() for path in theirs)


def test_nothing_is_pruned_without_a_current_revision(stage: Runner) -> None:
    """While it is not known which revision readers have, none goes."""
    stage()
    (stage.target / "revisions/half").mkdir()
    (stage.target / "current").unlink()
    assert prune_in(Volume(stage.target)) == [
        f"no revision is removed: {stage.target / 'current'} cannot be followed"
    ]
    assert len(stage.revisions) == 2


def test_manifest_out_of_reach_is_not_fetched_again(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that does not give a manifest now is a fault of the volume, not a reason to stage the model anew."""
    stage()
    before, real = stage.revisions, files.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "manifest.json":
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_bytes", read_bytes)
        with pytest.raises(StagingError, match="cannot read") as caught:
            stage()
    assert caught.value.reason is Reason.VOLUME_FAULT
    assert stage.revisions == before
    assert stage() is not None


def test_leftover_that_cannot_be_removed_is_said(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the model is current a file that will not go is no failure."""
    stage()
    stuck = stage.target / ".staging/partial/.nfs0001"
    stuck.touch()
    change(source, "{ }")
    real = files.remove

    def remove(path: Path) -> None:
        if path == stuck:
            raise OSError(errno.EBUSY, "Device or resource busy")
        real(path)

    monkeypatch.setattr(files, "remove", remove)
    assert stage(refresh=True) is not None
    assert f"cannot remove {stuck}: Device or resource busy" in stage.log.getvalue()
    assert stage.state["phase"] == "done"


def test_failed_sync_does_not_hide_the_error(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends for a reason keeps it when what came cannot be put on disk as well."""

    def gone(*_: object) -> None:
        raise StagingError(Reason.NOT_FOUND, "no such file")

    def refuse(*_: object) -> None:
        raise StagingError(Reason.VOLUME_FAULT, "cannot sync")

    monkeypatch.setattr("glm5_service.staging.store.build.Build.link", lambda *_: False)
    monkeypatch.setattr("glm5_service.staging.sources.local.LocalSource.open", gone)
    monkeypatch.setattr("glm5_service.staging.transfer.partial.Partial.checkpoint", refuse)
    with pytest.raises(StagingError) as caught:
        stage()
    assert caught.value.reason is Reason.NOT_FOUND


def test_failure_is_told_everywhere(stage: Runner, source: Path) -> None:
    """staging.json and the termination message carry the reason, the exit code is the reason's."""
    stage.termination.touch()
    (source / "m.gguf").unlink()
    with pytest.raises(StagingError) as caught:
        stage()
    assert caught.value.exit_code == 3
    assert stage.state["phase"] == "failed"
    assert stage.state["reason"] == Reason.NOT_FOUND
    assert stage.termination.read_text() == f"NotFound: {caught.value}"


def test_unexpected_error_is_told_everywhere(stage: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a fault of the program leaves a report, with its kind and not its text, which may hold a secret."""

    def break_down(_: StagingSettings) -> None:
        raise RuntimeError("https://host/x?Signature=s")

    stage.termination.touch()
    monkeypatch.setattr("glm5_service.staging.stager.make_offer", break_down)
    with pytest.raises(RuntimeError):
        stage()
    assert (stage.state["phase"], stage.state["reason"]) == ("failed", Reason.INTERNAL)
    assert stage.termination.read_text().startswith("Internal: unexpected error: RuntimeError")
    assert "Signature" not in stage.state["message"] + stage.termination.read_text()


def test_source_that_changes_while_it_is_listed_is_listed_again(
    stage: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two questions of one listing may meet two versions."""
    faults = [SourceChanged("SHA256SUMS", "ETag differs")]

    def change_once(settings: StagingSettings) -> Offer:
        if faults:
            raise faults.pop()
        return make_offer(settings)

    monkeypatch.setattr("glm5_service.staging.stager.make_offer", change_once)
    assert stage(backoff_seconds=0.01) is not None


def test_no_termination_file_is_made(stage: Runner, source: Path) -> None:
    """Outside a pod nothing is written where the kubelet would look."""
    (source / "m.gguf").unlink()
    with pytest.raises(StagingError):
        stage()
    assert not stage.termination.exists()


def test_no_room_is_seen_first(stage: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free space is compared with what is to be written, headroom included, before anything is written."""
    monkeypatch.setattr("glm5_service.staging.plan._same_volume", lambda *_: False)
    with pytest.raises(StagingError, match="free bytes on the volume") as caught:
        stage(headroom_bytes=1 << 60)
    assert caught.value.reason is Reason.OUT_OF_SPACE


def test_nothing_is_left_behind(stage: Runner) -> None:
    """After success the working folder holds the lock and nothing else."""
    stage()
    left = {path.name for path in (stage.target / ".staging").rglob("*") if path.is_file()}
    assert left == {"00000001.json"}


def test_manifest_holds_what_was_verified(stage: Runner) -> None:
    """Names, sizes and digests, and the stat that later trust depends on."""
    manifest = stage()
    assert manifest is not None
    record = next(item for item in manifest.files if item.name == "m.gguf")
    stat = (stage.target / "current/m.gguf").stat()
    assert (record.size, record.mtime_ns, record.inode) == (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    assert len(record.sha256) == 64
    assert manifest.gguf.first_file == "m.gguf"


def test_verify_without_damage_needs_no_source(stage: Runner, source: Path) -> None:
    """Hashing what is published works when the source is gone."""
    stage()
    source.rename(source.with_name("gone"))
    stage(Options(verify=True))
    assert stage.state["hashed_bytes"] > 0


def test_dry_verification_tells_damage_and_nothing_else(stage: Runner, source: Path) -> None:
    """Beside a pod that serves, a damaged model is an error; its report and the source are left alone."""
    stage()
    stage.termination.touch()
    before = stage.state
    stage(Options(verify=True, dry_run=True))
    file = stage.target / "current/m.gguf"
    stat, data = file.stat(), bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    source.rename(source.with_name("gone"))
    with pytest.raises(StagingError, match=r"damaged on the volume: m\.gguf") as caught:
        stage(Options(verify=True, dry_run=True))
    assert caught.value.exit_code == 4
    assert stage.state == before
    assert stage.termination.read_text() == ""


@pytest.fixture
def copied(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source states digests and is not on the volume, so damage there is not its own."""
    state_digests(source)
    monkeypatch.setattr("glm5_service.staging.plan._same_volume", lambda *_: False)


def spoil(file: Path) -> None:
    """Change bytes on disk and leave size, mtime and inode as they were verified."""
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.seek(5000)
        opened.write(b"damage")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def is_sound(stage: Runner, source: Path) -> bool:
    return (stage.target / "current/m.gguf").read_bytes() == (source / "m.gguf").read_bytes()


@pytest.mark.usefixtures("copied")
def test_damage_is_not_found_again_under_another_name(stage: Runner, source: Path) -> None:
    """Revisions share files, so what is damaged in one is damaged in all: it is fetched, not reused, and from no
    revision's folder taken for sound again."""
    stage(keep=2)
    change(source, "{ }")
    state_digests(source)
    stage(keep=2, refresh=True)
    spoil(stage.target / "current/m.gguf")
    stage(Options(verify=True), keep=2)
    assert is_sound(stage, source)
    stage(Options(verify=True, dry_run=True))
    damaged = [
        name
        for name in stage.revisions
        if (stage.target / "revisions" / name / "m.gguf").read_bytes() != (source / "m.gguf").read_bytes()
    ]
    assert damaged
    for name in damaged:
        folder = stage.target / "revisions" / name
        assert [record.name for record in read_manifest(folder).touched(folder)] == ["m.gguf"]  # type: ignore[union-attr]


@pytest.mark.usefixtures("copied")
def test_verdict_outlives_the_run(stage: Runner, source: Path) -> None:
    """A folder found damaged is not switched to when the repaired one is touched later."""
    stage(keep=2)
    spoil(stage.target / "current/m.gguf")
    stage(Options(verify=True), keep=2)
    os.utime(stage.target / "current/m.gguf")
    stage(keep=2)
    assert is_sound(stage, source)


@pytest.mark.usefixtures("copied")
def test_verdict_holds_when_the_repair_fails(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage that was found is not served by the next run because this one could not fetch the file."""

    real = LocalSource.open

    def gone(source: LocalSource, file: RemoteFile, start: int, end: int) -> Stream:
        if file.is_gguf:
            raise StagingError(Reason.NOT_FOUND, "no such file")
        return real(source, file, start, end)

    stage()
    spoil(stage.target / "current/m.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(LocalSource, "open", gone)
        with pytest.raises(StagingError, match="no such file"):
            stage(Options(verify=True))
    with pytest.raises(StagingError, match=r"damaged on the volume: m\.gguf"):
        stage(Options(verify=True, dry_run=True))
    stage()
    assert is_sound(stage, source)


@pytest.mark.usefixtures("copied")
def test_damage_is_found_in_an_unfinished_build(
    stage: Runner, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that reused the file before it was read again is not finished with it."""

    def broken(*_: object) -> None:
        raise StagingError(Reason.NOT_A_MODEL, "broken")

    stage()
    change(source, "{ }")
    state_digests(source)
    with monkeypatch.context() as patch:
        patch.setattr("glm5_service.staging.store.publish.check_structure", broken)
        with pytest.raises(StagingError, match="broken"):
            stage(refresh=True)
    spoil(stage.target / "current/m.gguf")
    stage(Options(verify=True), refresh=True)
    assert is_sound(stage, source)


def test_damage_that_the_source_shares_is_an_error(stage: Runner, source: Path) -> None:
    """A source without digests that is linked has the same bytes: it is named, and staged from once it is replaced."""
    stage()
    good = (source / "m.gguf").read_bytes()
    spoil(stage.target / "current/m.gguf")
    for options in (Options(verify=True), Options()):
        with pytest.raises(
            StagingError, match=f"damaged, and linked to the model: {source}/m.gguf"
        ) as caught:
            stage(options)
        assert caught.value.reason is Reason.CORRUPT
    (source / "new").write_bytes(good)
    (source / "new").replace(source / "m.gguf")
    stage()
    assert (stage.target / "current/m.gguf").read_bytes() == good


@pytest.mark.parametrize("other", ["source", "tokenizer_source", "quantisation"])
@pytest.mark.usefixtures("copied")
def test_verification_asks_for_no_name(stage: Runner, source: Path, tmp_path: Path, other: str) -> None:
    """What is published is hashed also if it was published under another name, and repaired from the one asked for."""
    stage()
    spoil(stage.target / "current/m.gguf")
    mirror = shutil.copytree(source, tmp_path / "mirror")
    asked = {other: "m" if other == "quantisation" else f"file://{mirror}"}
    with pytest.raises(StagingError, match=r"damaged on the volume: m\.gguf"):
        stage(Options(verify=True, dry_run=True), **asked)
    stage(Options(verify=True), **asked)
    assert is_sound(stage, source)


def test_two_stagers_may_try_the_volume_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pods every stager is process 1, so the files they try the volume with have names of their own."""
    real, inside = files.write_text, list[Path]()

    def write_text(path: Path, text: str) -> None:
        real(path, text)
        inside.append(path)
        if len(inside) == 1:
            Volume(tmp_path).prepare()

    monkeypatch.setattr(files, "write_text", write_text)
    Volume(tmp_path).prepare()
    assert len(set(inside)) == 2


def test_warm_says_how_much_is_resident(stage: Runner) -> None:
    """After warming all of the model is in the page cache, and the log says so."""
    stage(Options(warm=True))
    file = stage.target / "current/m.gguf"
    assert resident_bytes(file) == file.stat().st_size
    assert "(100.0%)" in stage.log.getvalue()


def test_warm_respects_its_limit(stage: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than the limit is read."""
    read: list[tuple[Path, int]] = []
    monkeypatch.setattr("glm5_service.staging.warm.in_parallel", lambda _, pieces, __: read.extend(pieces))
    stage(Options(warm=True), warm_limit_bytes=1000)
    assert sum(count for _, count in read) == 1000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_on_a_terminal_line_elsewhere() -> None:
    """People at a terminal see one line that moves, logs get a line at each phase."""
    terminal, log = Terminal(), io.StringIO()
    for out in (terminal, log):
        progress = Progress(out, None, FakeClock())
        progress.total_bytes = 200
        progress.enter("fetching")
        progress.fetched(100)
        progress.enter("publishing")
    assert terminal.getvalue().count("\n") == 0
    assert "50% 100 B of 200 B" in terminal.getvalue()
    assert log.getvalue().splitlines()[1].startswith("phase=publishing bytes=100 total=200 (50.0%,")


def test_a_line_every_ten_seconds() -> None:
    """A log is not flooded: between phases there is a line in ten seconds."""
    out, clock = io.StringIO(), FakeClock()
    progress = Progress(out, None, clock)
    progress.enter("fetching")
    for _ in range(250):
        clock.now += 0.1
        progress.tick()
    assert len(out.getvalue().splitlines()) == 1 + 2


def test_rate_and_eta() -> None:
    """The rate is that of the last half minute and the rest of the bytes gives the time left."""
    out, clock = io.StringIO(), FakeClock()
    progress = Progress(out, None, clock)
    progress.total_bytes = 100_000_000
    progress.enter("fetching")
    for _ in range(20):
        clock.now += 1
        progress.fetched(1_000_000)
        progress.tick()
    assert "rate=1.0 MB/s eta=1 min 20 s" in out.getvalue()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (405_962_117_216, "405.96 GB")]
)
def test_size_text(count: int, text: str) -> None:
    """Sizes are decimal, as disks are sold."""
    assert size_text(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (65, "1 min 05 s"), (7260, "2 h 01 min")])
def test_duration_text(seconds: int, text: str) -> None:
    """Times as a person says them."""
    assert duration_text(seconds) == text


def test_unwritable_run_dir_does_not_stop_staging(stage: Runner) -> None:
    """A report that cannot be written is said once; the model is staged."""
    stage.run_dir.write_text("a file where a folder should be")
    assert stage() is not None
    assert stage.log.getvalue().count("cannot write staging.json") == 1


def test_report_goes_on_when_it_can_be_written_again(tmp_path: Path) -> None:
    """A full disk for a moment does not freeze staging.json; each time it begins is said once."""
    out, clock, blocker = io.StringIO(), FakeClock(), tmp_path / "run"
    progress = Progress(out, blocker, clock)
    for _ in range(2):
        blocker.write_text("a file where a folder should be")
        for _ in range(3):
            clock.now += 10
            progress.tick()
        blocker.unlink()
        clock.now += 10
        progress.enter("fetching")
        assert json.loads((blocker / "staging.json").read_text())["phase"] == "fetching"
        shutil.rmtree(blocker)
    assert out.getvalue().count("cannot write staging.json") == 2
