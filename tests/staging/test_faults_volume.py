"""Faults of the volume and of the stager itself: space, permission, damage on disk, rivals, kills."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.stager import Options
from glm5_service.staging.store import files
from glm5_service.staging.store.lease import boot_id
from glm5_service.staging.store.prune import prune
from glm5_service.staging.transfer.blocks import BlockFile, Window
from glm5_service.staging.transfer.hashing import Hashing
from glm5_service.staging.transfer.journal import read_journal
from tests.staging.conftest import QUICK, Stager
from tests.staging.test_faults_network import SLACK_BYTES, Serve, published, refused
from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.staging.fault_server import Fault, Hold
from tests.support.staging.faults_table import fault
from tests.support.staging.large_gguf import SplitSet
from tests.support.staging.processes import Follower, start_stage

pytestmark = pytest.mark.staging
# of a stager whose requests a test holds
PATIENT = (f"stall_seconds={PATIENCE_SECONDS}",)


@contextmanager
def filesystem(path: Path, size_bytes: int) -> Iterator[Path]:
    """A filesystem of its own at `path`."""
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        # lazily: a thread that hangs on a server keeps its file open
        subprocess.run(["umount", "--lazy", path], check=True)


@fault("too little free space", then="ends before the first byte", ends=Reason.OUT_OF_SPACE)
def test_no_room(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """Room is counted before anything is fetched."""
    server = serve()
    with filesystem(stager.target.parent, model.total_bytes // 2):
        error = refused(stager, server)
    assert server.sent_bytes < SLACK_BYTES / 1000
    return error


@fault(
    "disk full at a random byte",
    then="ends; when there is space again, the next run continues at the byte where it stopped",
    ends=Reason.OUT_OF_SPACE,
)
def test_disk_fills_up(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """What was written before the disk was full is kept and used by the next run, also if not a byte was left."""
    server = serve()
    with filesystem(stager.target.parent, model.total_bytes + (3 << 20)) as volume:
        filler = volume / "filler"
        # the part that this request brings needs more than is left, whatever has come by then
        smallest = min(path.stat().st_size % QUICK["part_bytes"] for path in model.paths)

        def fill() -> None:
            room = os.statvfs(volume)
            free = room.f_bavail * room.f_frsize
            left = random.choice((0, random.randrange(smallest // 2)))
            with suppress(OSError):
                # others write as well
                filler.write_bytes(bytes(free - left))

        server.faults = [Fault("fill", skip=2, action=fill)]
        error = refused(stager, server)
        filler.unlink()
        stager(f"{server.url}/")
        published(stager, model)
    assert server.sent_bytes <= model.total_bytes + 2 * SLACK_BYTES
    return error


@fault(
    "symbolic link in place of a working folder",
    then="ends before it writes; nothing behind the link is touched",
    ends=Reason.SYMBOLIC_LINK,
)
def test_a_working_folder_that_is_a_link(serve: Serve, stager: Stager, tmp_path: Path) -> StagingError:
    """What lies behind the link is somebody else's."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "m.gguf.dead.partial").write_text("precious")
    (stager.target / ".staging").mkdir(parents=True)
    (stager.target / ".staging/partial").symlink_to(outside)
    error = stager.fails(f"{serve().url}/")
    assert [path.read_text() for path in outside.iterdir()] == ["precious"]
    return error


@fault("journal with a range beyond the end of its file", then="fetches only that file again")
def test_a_journal_beyond_its_file(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A damaged journal costs its file and no more."""
    server = serve()
    server.faults = [Fault("status", name=model.paths[-1].name, skip=1, status=404, times=10_000)]
    stager.fails(f"{server.url}/", connections=1)
    for journal in (stager.target / ".staging/partial").glob("*.journal"):
        with journal.open("a") as file:
            file.write("w 0 999999999\n")
    server.faults = []
    before = server.sent_bytes
    stager(f"{server.url}/")
    published(stager, model)
    assert server.sent_bytes - before <= model.paths[-1].stat().st_size + SLACK_BYTES


@fault("read-only volume", then="ends before the first byte", ends=Reason.READ_ONLY)
def test_read_only(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """A volume that cannot be written is refused at once."""
    server, volume = serve(), stager.target.parent
    with filesystem(volume, 4 * model.total_bytes):
        subprocess.run(["mount", "-o", "remount,ro", volume], check=True)
        error = stager.fails(f"{server.url}/")
    assert server.sent_bytes < SLACK_BYTES / 1000
    return error


@fault("read-only volume with the model on it", then="finds the model published and writes nothing")
def test_read_only_with_model(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """Starting a pod from a read-only volume needs neither lock nor source."""
    server, volume = serve(), stager.target.parent
    with filesystem(volume, 4 * model.total_bytes):
        stager(f"{server.url}/")
        subprocess.run(["mount", "-o", "remount,ro", volume], check=True)
        asked = len(server.seen)
        stager(f"{server.url}/", Options(verify=True))
        assert len(server.seen) == asked
        published(stager, model)


@fault(
    "bytes flipped on disk, size and mtime as before",
    then="`--verify` finds them and fetches that file again",
)
def test_flipped_on_disk(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """Exactly the damaged file is fetched again, and the others are not even copied."""
    server = serve()
    stager(f"{server.url}/")
    spoilt = stager.current / model.paths[2].name
    inodes = {path.name: path.stat().st_ino for path in stager.current.iterdir()}
    flip(spoilt, keep_times=True)
    before = server.sent_bytes
    stager(f"{server.url}/")
    assert stager.digests != model.digests()
    stager(f"{server.url}/", Options(verify=True))
    published(stager, model)
    assert server.sent_bytes - before <= spoilt.stat().st_size + 4096
    changed = {path.name for path in stager.current.iterdir() if inodes[path.name] != path.stat().st_ino}
    assert changed == {spoilt.name, "manifest.json"}


@fault(
    "bytes flipped on disk in a file that two revisions share",
    then="`--verify` fetches that file again; no damaged revision stays published",
)
def test_flipped_in_a_shared_file(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """The verdict is about the file, whatever names it has, and outlives the run."""
    server = serve()
    stager(f"{server.url}/", keep=3)
    (model.folder / "config.json").write_text("{ }")
    model.write_sums()
    stager(f"{server.url}/", keep=3, refresh=True)
    flip(stager.current / model.paths[2].name, keep_times=True)
    before = server.sent_bytes
    stager(f"{server.url}/", Options(verify=True), keep=3)
    published(stager, model)
    assert server.sent_bytes - before <= model.paths[2].stat().st_size + 4096
    os.utime(stager.current / model.paths[2].name)
    stager(f"{server.url}/", keep=3)
    published(stager, model)


@fault(
    "file on disk changed (mtime differs)",
    then="hashes it at the next run, and fetches it again if it is damaged",
)
def test_touched_on_disk(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """Earlier verification is trusted only while size, mtime and inode match."""
    server = serve()
    stager(f"{server.url}/")
    flip(stager.current / model.paths[2].name, keep_times=False)
    before = server.sent_bytes
    stager(f"{server.url}/")
    published(stager, model)
    assert server.sent_bytes - before <= model.paths[2].stat().st_size + 4096


@fault("file on disk touched, bytes as before", then="hashes it and fetches nothing")
def test_touched_but_sound(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A doubt is settled by reading, not by fetching."""
    server = serve()
    stager(f"{server.url}/")
    os.utime(stager.current / model.paths[2].name)
    before = server.sent_bytes
    stager(f"{server.url}/")
    published(stager, model)
    # the list of digests and a byte a file for its size
    assert server.sent_bytes - before < 4096


@fault(
    "journal of a partial file that cannot be read for a moment",
    then="ends and keeps everything; the next run continues at the byte where it stopped",
    ends=Reason.VOLUME_FAULT,
)
def test_journal_out_of_reach(
    serve: Serve, model: SplitSet, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> StagingError:
    """Bytes whose journal cannot be read now are not bytes without a journal."""
    server, last, real = serve(), model.paths[-1].name, files.read_bytes
    server.faults = [Fault("status", name=last, skip=1, status=404, times=10_000)]
    stager.fails(f"{server.url}/", connections=1)
    server.faults = []
    partials = sorted((stager.target / ".staging/partial").glob("*.partial"))
    assert partials
    broken = [OSError(errno.EIO, "Input/output error")]

    def read_bytes(path: Path) -> bytes:
        if path.suffix == ".journal" and broken:
            raise broken.pop()
        return real(path)

    monkeypatch.setattr(files, "read_bytes", read_bytes)
    error = refused(stager, server)
    assert sorted((stager.target / ".staging/partial").glob("*.partial")) == partials
    before = server.sent_bytes
    stager(f"{server.url}/")
    published(stager, model)
    assert server.sent_bytes - before < model.paths[-1].stat().st_size
    return error


@fault(
    "bytes of a partial file that cannot be read back for a moment",
    then="ends and keeps everything; the next run continues at the byte where it stopped",
    ends=Reason.VOLUME_FAULT,
)
def test_read_back_fails(
    serve: Serve, model: SplitSet, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> StagingError:
    """A read error says nothing about the bytes that came."""
    server, real = serve(), BlockFile.read
    broken = iter([OSError(errno.EIO, "Input/output error")])

    def read(file: BlockFile, window: Window, position: int, end: int) -> memoryview:
        if position and (error := next(broken, None)) is not None:
            raise error
        return real(file, window, position, end)

    monkeypatch.setattr(BlockFile, "read", read)
    # as if no byte had come in order
    monkeypatch.setattr(Hashing, "take", lambda *_: None)
    error = refused(stager, server)
    stager(f"{server.url}/")
    published(stager, model)
    assert server.sent_bytes <= model.total_bytes + SLACK_BYTES
    assert "starts at byte 0" not in stager.log.getvalue()
    return error


@pytest.mark.parametrize("folder", ["in-use", "revisions"])
@fault(
    "folder of leases or revisions that cannot be listed for a moment",
    then="removes no revision and says so; the next run that changes the volume does",
)
def test_listing_out_of_reach(
    serve: Serve, model: SplitSet, stager: Stager, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """What is not listed may be there: a reader's lease above all."""
    server, real, pruning = serve(), files.names, threading.Event()

    def names(path: Path) -> list[str]:
        if pruning.is_set() and path == stager.target / folder:
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    def prune_now(*given: Any) -> None:
        pruning.set()
        prune(*given)
        pruning.clear()

    stager(f"{server.url}/")
    (model.folder / "config.json").write_text("{ }")
    model.write_sums()
    with monkeypatch.context() as patch:
        patch.setattr(files, "names", names)
        patch.setattr("glm5_service.staging.stager.prune", prune_now)
        stager(f"{server.url}/", refresh=True)
    published(stager, model)
    assert f"no revision is removed: cannot list {stager.target / folder}" in stager.log.getvalue()
    assert len(list((stager.target / "revisions").iterdir())) == 2
    stager(f"{server.url}/", refresh=True)
    assert len(list((stager.target / "revisions").iterdir())) == 1


@fault("old revision that cannot be removed", then="says so; the next run that changes the volume removes it")
def test_revision_cannot_be_removed(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """The new model is current by then, so what stays of the old one is no failure."""
    server = serve()
    stager(f"{server.url}/", keep=1)
    (model.folder / "config.json").write_text("{ }")
    model.write_sums()
    # a mount within can be moved along, but not removed
    busy = stager.current.resolve() / "busy"
    busy.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", busy], check=True)
    try:
        stager(f"{server.url}/", keep=1, refresh=True)
    finally:
        for mounted in (busy, *(stager.target / ".staging").glob("trash.*/busy")):
            subprocess.run(["umount", mounted], check=mounted != busy)
    published(stager, model)
    assert f"cannot remove {busy.parent}: Device or resource busy" in stager.log.getvalue()
    stager(f"{server.url}/", refresh=True)
    assert not list((stager.target / ".staging").glob("trash.*"))


@fault("two stagers on one volume", then="one stages; the other waits and finds the model published")
def test_two_stagers(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """Two stagers fetch the model once, without any help from flock."""
    server, hold = serve(), Hold()
    # whoever fetches is not done before the other one has come
    server.faults = [Fault("hold", action=hold)]
    pair = [start_stage(f"{server.url}/", stager.target, settings=PATIENT) for _ in range(2)]
    logs = [follower.end() for follower in [Follower(process, hold.go_on) for process in pair]]
    assert [process.returncode for process in pair] == [0, 0], logs
    published(stager, model)
    assert server.sent_bytes <= model.total_bytes + 16384
    assert sum("another stager works on" in log for log in logs) == 1


@fault(
    "two stagers, the second is told not to wait",
    then="the second ends; the first continues",
    ends=Reason.LOCKED,
)
def test_second_does_not_wait(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """`lock_wait_seconds=0` ends at once when somebody else works."""
    server, hold = serve(), Hold()
    server.faults = [Fault("hold", action=hold)]
    first = start_stage(f"{server.url}/", stager.target, settings=PATIENT)
    assert hold.begun.wait(PATIENCE_SECONDS)
    error = stager.fails(f"{server.url}/", lock_wait_seconds=0)
    hold.go_on.set()
    assert first.wait(PATIENCE_SECONDS) == 0
    published(stager, model)
    return error


@fault(
    "stager killed while another waits",
    then="the other takes over and continues at the byte where the first stopped",
)
def test_takes_over_the_dead(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A dead holder's lock is taken at once on the same machine, and its partial files are used."""
    server, hold, waits = serve(), Hold(), threading.Event()
    server.faults = [Fault("hold", skip=5, action=hold)]
    first = start_stage(f"{server.url}/", stager.target, settings=(*PATIENT, "connections=2"))
    assert hold.begun.wait(PATIENCE_SECONDS)
    second = start_stage(f"{server.url}/", stager.target, settings=("connections=2",))
    follower = Follower(second, waits)
    assert waits.wait(PATIENCE_SECONDS)
    first.send_signal(signal.SIGKILL)
    first.wait()
    hold.go_on.set()
    log = follower.end()
    assert second.returncode == 0, log
    published(stager, model)
    assert server.sent_bytes <= model.total_bytes + SLACK_BYTES


@fault(
    "SIGTERM",
    then="writes what it has to disk and ends; the next run, on any node, continues at the byte where it stopped",
    ends=Reason.INTERRUPTED,
)
def test_sigterm(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """An orderly stop loses no byte, not even for a machine that cannot know what this one's page cache had."""
    server, begun = serve(), threading.Event()
    # too slow to be done before the signal
    server.faults = [Fault("drip", skip=5, times=10_000, after=100_000, action=begun.set)]
    first = start_stage(f"{server.url}/", stager.target, settings=(*PATIENT, "connections=2"))
    assert begun.wait(PATIENCE_SECONDS)
    until_covered(stager)
    first.terminate()
    log = first.communicate(timeout=PATIENCE_SECONDS)[1]
    assert first.returncode == 1
    assert stager.is_empty
    reason = stager.state["reason"]
    assert covered(stager, boot_id()) == covered(stager, "another boot") != []
    server.faults = []
    stager(f"{server.url}/")
    published(stager, model)
    # sent but not yet received: what lies in socket buffers
    assert server.sent_bytes <= model.total_bytes + SLACK_BYTES
    assert "told to stop" in log
    return StagingError(Reason(reason), "as staging.json says")


@fault(
    "SIGTERM while no connection brings an answer",
    then="ends within the pod's 30 s; the next run continues at the byte where it stopped",
    ends=Reason.INTERRUPTED,
)
def test_sigterm_in_silence(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """Connections that wait for a server are given up together, not one after the other."""
    server, silent = serve(), threading.Event()

    def fall_silent() -> None:
        silent.set()
        server.held.wait(PATIENCE_SECONDS)

    server.faults = [Fault("silence", skip=4, times=10_000, action=fall_silent)]
    first = start_stage(f"{server.url}/", stager.target, settings=("stall_seconds=300", "connections=16"))
    assert silent.wait(PATIENCE_SECONDS)
    until_covered(stager)
    first.terminate()
    try:
        log = first.communicate(timeout=30)[1]
    finally:
        first.kill()
    assert first.returncode == 1, log
    reason = stager.state["reason"]
    assert covered(stager, "another boot") != []
    server.faults = []
    stager(f"{server.url}/")
    published(stager, model)
    assert server.sent_bytes <= model.total_bytes + SLACK_BYTES
    return StagingError(Reason(reason), "as staging.json says")


def until_covered(stager: Stager) -> None:
    """Return once something that came is in a journal."""
    patience = time.monotonic() + PATIENCE_SECONDS
    while not covered(stager, boot_id()):
        assert time.monotonic() < patience
        time.sleep(0.05)


def covered(stager: Stager, boot: str) -> list[tuple[int, int]]:
    """The ranges that the journals vouch for in a boot."""
    journals = sorted((stager.target / ".staging/partial").glob("*.journal"))
    entries = [read_journal(journal, boot) for journal in journals]
    return [pair for entry in entries if entry is not None for pair in entry.coverage.ranges()]


def flip(path: Path, *, keep_times: bool) -> None:
    """Change one byte in the middle of a file."""
    stat = path.stat()
    with open(path, "r+b") as file:
        file.seek(stat.st_size // 2)
        byte = file.read(1)[0]
        file.seek(stat.st_size // 2)
        file.write(bytes([byte ^ 0xFF]))
    if keep_times:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
