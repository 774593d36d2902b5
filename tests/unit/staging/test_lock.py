"""The lock and the leases: exactly one holder, also among the dead, the paused and those with wrong clocks."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.store import files
from glm5_service.staging.store import lease as lease_module
from glm5_service.staging.store.inuse import held_revisions, hold
from glm5_service.staging.store.lease import (
    Lease,
    Owner,
    Watch,
    create_lease,
    read_lease,
    this_owner,
    write_lease,
)
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.store.volume import Volume

ELSEWHERE = Owner(
    host="other-host", boot="other-boot", namespace="pid:[1]", pid=4711, started="99", nonce="abcdef"
)


class FakeClock(Clock):
    """Time passes only in pauses."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def pause(self, stop: threading.Event, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self.now += seconds
            super().pause(stop, 0)
        else:
            super().pause(stop, seconds)


def lock_in(folder: Path, clock: Clock | None = None) -> TargetLock:
    return TargetLock(folder, clock or FakeClock(), 90, threading.Event())


def test_second_waits_and_then_gives_up(tmp_path: Path) -> None:
    """While the holder lives nobody else gets the lock."""
    with_first, told = lock_in(tmp_path, Clock()), list[Owner | None]()
    with_first.acquire(0, told.append)
    with with_first, pytest.raises(StagingError) as caught:
        lock_in(tmp_path).acquire(20, told.append)
    assert caught.value.reason is Reason.LOCKED
    assert told[0] == with_first.owner


def test_lock_is_released_on_a_full_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file can be written, the lock is freed in place, and the error that ends the run is not hidden."""
    lock = lock_in(tmp_path)
    lock.acquire(0, lambda _: None)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(StagingError, match="the first error"), lock:
            raise StagingError(Reason.OUT_OF_SPACE, "the first error", "x")
    lock_in(tmp_path).acquire(0, lambda _: None)


def test_released_lock_is_free_at_once(tmp_path: Path) -> None:
    """The next stager after an orderly end does not wait."""
    for _ in range(3):
        lock = lock_in(tmp_path)
        lock.acquire(0, lambda _: None)
        lock.release()
    assert [path.name for path in tmp_path.iterdir()] == ["00000003.json"]


def test_silent_holder_elsewhere_is_dead_after_a_lease(tmp_path: Path) -> None:
    """A holder that cannot be seen from here is dead once its heartbeat stood still for a lease."""
    write_lease(tmp_path / "00000007.json", Lease(owner=ELSEWHERE, beat=5, held=True))
    clock = FakeClock()
    lock = lock_in(tmp_path, clock)
    lock.acquire(1000, lambda _: None)
    assert 90 <= clock.now - 1000 <= 92
    lock.release()


def test_beating_holder_elsewhere_lives(tmp_path: Path) -> None:
    """A heartbeat is any change, so neither clock of the two machines matters."""
    path, clock, beats = tmp_path / "00000001.json", FakeClock(), iter(range(10_000))

    def beat(_: Owner | None) -> None:
        write_lease(path, Lease(owner=ELSEWHERE, beat=next(beats), held=True))

    beat(None)
    with pytest.raises(StagingError) as caught:
        lock_in(tmp_path, clock).acquire(500, beat)
    assert caught.value.reason is Reason.LOCKED


def test_dead_process_here_is_seen_at_once(tmp_path: Path) -> None:
    """A holder that was killed on this machine costs no waiting."""
    script = (
        "import sys; from pathlib import Path; from glm5_service.staging.store.lease import *; "
        "write_lease(Path(sys.argv[1]), Lease(owner=this_owner(), beat=1, held=True))"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "00000001.json")], check=True)
    clock = FakeClock()
    lock = lock_in(tmp_path, clock)
    lock.acquire(0, lambda _: None)
    lock.release()
    assert clock.now == 1000


def test_reused_pid_is_not_the_holder() -> None:
    """A process that merely has the number of the dead one does not keep its lock alive."""
    assert this_owner().model_copy(update={"started": "1"}).is_gone()
    assert not this_owner().is_gone()


def test_one_of_many_wins(tmp_path: Path) -> None:
    """Whoever of many takes a dead holder's lock at the same moment, exactly one has it."""
    write_lease(
        tmp_path / "00000001.json",
        Lease(owner=this_owner().model_copy(update={"started": "1"}), beat=1, held=True),
    )
    together, won = threading.Barrier(8), list[TargetLock]()

    def compete() -> None:
        lock = lock_in(tmp_path, Clock())
        together.wait()
        try:
            lock.acquire(0, lambda _: None)
        except StagingError:
            return
        won.append(lock)

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].release()


def test_late_rival_gives_up_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who saw the lock free while two others had it in turn can create a number that is gone again; it does not count."""
    first = lock_in(tmp_path)
    first.acquire(0, lambda _: None)
    first.release()
    late, holder = lock_in(tmp_path), lock_in(tmp_path)
    real = TargetLock._create

    def overtaken(lock: TargetLock, number: int) -> bool:
        monkeypatch.undo()
        between = lock_in(tmp_path)
        between.acquire(0, lambda _: None)
        between.release()
        holder.acquire(0, lambda _: None)
        return real(lock, number)

    monkeypatch.setattr(TargetLock, "_create", overtaken)
    with pytest.raises(StagingError) as caught:
        late.acquire(0, lambda _: None)
    assert caught.value.reason is Reason.LOCKED
    holder.check()
    assert [path.name for path in tmp_path.iterdir()] == ["00000003.json"]
    holder.release()


def test_holder_that_was_overtaken_stops(tmp_path: Path) -> None:
    """A holder that slept through its lease looks before it writes, and finds that the lock is gone."""
    clock = FakeClock()
    lock = lock_in(tmp_path, clock)
    lock.acquire(0, lambda _: None)
    lock.check()
    assert create_lease(tmp_path / "00000002.json", Lease(owner=ELSEWHERE, beat=0, held=True))
    clock.now += 60
    with pytest.raises(StagingError) as caught:
        lock.check()
    assert caught.value.reason is Reason.LOCK_LOST
    lock.release()
    assert read_lease(tmp_path / "00000002.json") == Lease(owner=ELSEWHERE, beat=0, held=True)


def test_create_lease_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where link() is not possible, exclusive creation decides."""

    def no_link(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lease_module.os, "link", no_link)
    assert create_lease(tmp_path / "a", Lease(owner=this_owner(), beat=0, held=True))
    assert not create_lease(tmp_path / "a", Lease(owner=ELSEWHERE, beat=0, held=True))


def test_watch_starts_again_with_every_beat(tmp_path: Path) -> None:
    """A lease is counted from the last change that was seen."""
    clock = FakeClock()
    watch, path = Watch(clock, 30), tmp_path / "x"
    for beat in range(5):
        assert not watch.is_dead(path, Lease(owner=ELSEWHERE, beat=beat, held=True))
        clock.now += 29
    clock.now += 1
    assert watch.is_dead(path, Lease(owner=ELSEWHERE, beat=4, held=True))


def published(target: Path, name: str) -> Volume:
    volume = Volume(target)
    volume.prepare()
    (volume.revisions / name).mkdir()
    volume.current.symlink_to(f"revisions/{name}")
    return volume


def test_held_revision_is_in_use_until_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that holds a revision is seen as soon as its lease beats, and not after it let go."""
    monkeypatch.setattr("glm5_service.staging.store.inuse.BEAT_SECONDS", 0.02)
    volume = published(tmp_path, "one")
    with hold(tmp_path) as folder:
        assert folder == volume.revisions / "one"
        assert held_revisions(volume, {"one"}, Clock(), threading.Event()) == {"one"}
    assert held_revisions(volume, {"one"}, Clock(), threading.Event()) == set()


def test_lease_of_a_dead_reader_is_removed(tmp_path: Path) -> None:
    """A reader that was killed does not keep its revision for ever."""
    volume = published(tmp_path, "one")
    write_lease(volume.in_use / "one~x.json", Lease(owner=ELSEWHERE, beat=1, held=True))
    clock = FakeClock()
    assert held_revisions(volume, {"one"}, clock, threading.Event()) == set()
    assert list(volume.in_use.iterdir()) == []
    assert clock.now >= 1030


def test_lease_out_of_reach_counts_as_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that the volume does not give now may be a living reader's."""
    volume = published(tmp_path, "one")
    write_lease(volume.in_use / "one~x.json", Lease(owner=ELSEWHERE, beat=1, held=True))

    def refuse(_: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_bytes", refuse)
        assert held_revisions(volume, {"one"}, FakeClock(), threading.Event()) == {"one"}
    assert (volume.in_use / "one~x.json").exists()
