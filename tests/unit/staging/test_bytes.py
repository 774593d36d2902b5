"""Ranges, journals, block writes and digests: what keeps bytes right across kills."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_service.staging.content import Hasher
from glm5_service.staging.reasons import StagingError
from glm5_service.staging.records import Digest, RemoteFile
from glm5_service.staging.store import files
from glm5_service.staging.store.manifest import is_version, record_of
from glm5_service.staging.transfer.blocks import BLOCK, BlockFile, Window
from glm5_service.staging.transfer.journal import Coverage, Journal, read_journal, transfer_identity
from glm5_service.staging.transfer.partial import Partial, best_leftover, drop_foreign

FILE = RemoteFile("a.gguf", 1000, "key", Digest("sha256", "0" * 64), '"v1"')
ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@settings(deadline=None)
@given(ranges)
def test_coverage_is_the_set_of_its_bytes(pairs: list[tuple[int, int]]) -> None:
    """Whatever ranges are added in whatever order, coverage is their union."""
    coverage, bytes_ = Coverage(), set[int]()
    for start, end in pairs:
        coverage.add(start, end)
        bytes_ |= set(range(start, end))
    assert coverage.total == len(bytes_)
    assert {b for start, end in coverage.missing(60) for b in range(start, end)} == set(range(60)) - bytes_
    assert coverage.frontier == next(b for b in range(61) if b not in bytes_)


def test_coverage_merges_neighbours() -> None:
    """Ranges that touch are one range, so a finished file is one."""
    coverage = Coverage()
    for start in (20, 0, 10):
        coverage.add(start, start + 10)
    assert coverage.ranges() == [(0, 30)]


def journal_with(path: Path, boot: str = "boot") -> Path:
    journal = Journal(path, FILE, Coverage(), boot)
    journal.written(0, 100)
    journal.synced(journal.lines)
    journal.written(100, 250)
    journal.close()
    return path


def test_same_boot_trusts_every_line(tmp_path: Path) -> None:
    """After a kill the page cache still has all bytes that were written."""
    entry = read_journal(journal_with(tmp_path / "j"), "boot")
    assert entry is not None
    assert entry.coverage.ranges() == [(0, 250)]
    assert entry.is_about(FILE)


def test_another_boot_trusts_what_was_synced(tmp_path: Path) -> None:
    """After a crash of the machine only synced bytes count."""
    entry = read_journal(journal_with(tmp_path / "j"), "another boot")
    assert entry is not None
    assert entry.coverage.ranges() == [(0, 100)]


@pytest.mark.parametrize("cut", range(1, 12))
def test_torn_last_line_does_not_count(tmp_path: Path, cut: int) -> None:
    """A line that the kill cut short, at any byte, is not read as another range."""
    path = journal_with(tmp_path / "j")
    path.write_bytes(path.read_bytes()[:-cut])
    entry = read_journal(path, "boot")
    assert entry is not None
    assert entry.coverage.ranges() == [(0, 100)]


@pytest.mark.parametrize(
    "content",
    [b"", b"not json\n", b"[]\n", b"{}\n", b'{"name": "a.gguf"'],
    ids=["empty", "text", "list", "object", "torn"],
)
def test_unusable_journal_is_none(tmp_path: Path, content: bytes) -> None:
    """A journal without a whole header says nothing."""
    (tmp_path / "j").write_bytes(content)
    assert read_journal(tmp_path / "j", "boot") is None


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_journal_out_of_reach_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A journal that the volume does not give now is no missing one: nothing is dropped, by nobody who asks."""
    partial = Partial(tmp_path, FILE, "one")
    put(partial, 0, b"x" * 100)
    partial.close()
    before = sorted(tmp_path.iterdir())

    def refuse(_: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_bytes", refuse)
        for ask in (
            lambda: drop_foreign(tmp_path, [FILE], print),
            lambda: best_leftover(tmp_path, FILE),
            lambda: Partial(tmp_path, FILE, "two"),
        ):
            with pytest.raises(StagingError, match=os.strerror(number)):
                ask()
    assert sorted(tmp_path.iterdir()) == before
    found = best_leftover(tmp_path, FILE)
    assert found is not None
    assert found[1].coverage.ranges() == [(0, 100)]


@pytest.mark.parametrize("checkpoint", [False, True], ids=["before a checkpoint", "after one"])
def test_short_run_keeps_what_it_took_over(tmp_path: Path, checkpoint: bool) -> None:
    """A run that ends before its first checkpoint loses nothing of earlier runs, not even for another boot."""
    first = Partial(tmp_path, FILE, "one")
    put(first, 0, b"x" * 300)
    if checkpoint:
        first.checkpoint()
    first.close()
    Partial(tmp_path, FILE, "two").close()
    entry = read_journal(tmp_path / "a.gguf.two.journal", "another boot")
    assert entry is not None
    assert entry.coverage.ranges() == [(0, 300)]


def test_a_new_journal_says_only_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data first, then the journal, and only then does it replace the one before: a crash between any two is safe."""
    first = Partial(tmp_path, FILE, "one")
    put(first, 0, b"x" * 300)
    first.close()
    steps: list[str] = []
    for name in ("fdatasync", "fsync", "replace"):
        real = getattr(os, name)

        def noted(*given: object, name: str = name, real: Callable[..., None] = real) -> None:
            steps.append(name)
            real(*given)

        monkeypatch.setattr(os, name, noted)
    Partial(tmp_path, FILE, "two").close()
    # the last one is the folder's
    assert steps == ["fdatasync", "fsync", "replace", "fsync"]


def test_failed_restart_leaves_the_file_closable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no new journal can be started the old one is still open, so the end of the run hides no error."""
    partial = Partial(tmp_path, FILE, "one")

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StagingError, match="cannot start"):
        partial.restart()
    partial.close()


@pytest.mark.parametrize(
    ("listed", "journal", "why"),
    [
        ([], None, "no file of this model"),
        ([FILE], "", "its journal is missing or damaged"),
        ([replace(FILE, etag='"v2"')], None, "of another version of the file"),
    ],
    ids=["not listed", "no journal", "other version"],
)
def test_what_is_dropped_is_said(
    tmp_path: Path, listed: list[RemoteFile], journal: str | None, why: str
) -> None:
    """Bytes that are thrown away are named with the reason."""
    Partial(tmp_path, FILE, "one").close()
    if journal is not None:
        (tmp_path / "a.gguf.one.journal").write_text(journal)
    said: list[str] = []
    drop_foreign(tmp_path, listed, said.append)
    assert said == [f"a.gguf.one.partial is dropped: {why}"]
    assert list(tmp_path.iterdir()) == []


def test_weak_etag_is_the_same_version(tmp_path: Path) -> None:
    """A mark of weakness, which a proxy may put on any ETag, makes no other file, transfer or revision."""
    weak = replace(FILE, etag='W/"v1"')
    assert transfer_identity(weak) == transfer_identity(FILE)
    bare, weak, other = (replace(FILE, digest=None, etag=etag) for etag in ('"v1"', 'W/"v1"', '"v2"'))
    assert weak.identity() == bare.identity() != other.identity()
    record = record_of(bare, "0", tmp_path.stat())
    assert is_version(record, weak)
    assert not is_version(record, other)


@pytest.mark.parametrize(
    "other",
    [
        RemoteFile("a.gguf", 1001, "key", FILE.digest, FILE.etag),
        RemoteFile("a.gguf", 1000, "key", Digest("sha256", "1" * 64), FILE.etag),
        RemoteFile("a.gguf", 1000, "key", FILE.digest, '"v2"'),
    ],
    ids=["size", "digest", "etag"],
)
def test_other_version_is_not_continued(tmp_path: Path, other: RemoteFile) -> None:
    """A partial file of another size, digest or ETag is dropped, not continued."""
    partial = Partial(tmp_path, FILE, "one")
    put(partial, 0, b"x" * 100)
    partial.close()
    assert best_leftover(tmp_path, other) is None
    drop_foreign(tmp_path, [other], print)
    assert list(tmp_path.iterdir()) == []


def fill(window: Window, position: int, data: bytes) -> Window:
    window.restart(position)
    window.room[: len(data)] = data
    window.filled(len(data))
    return window


def put(partial: Partial, position: int, data: bytes) -> None:
    partial.write(fill(Window(1 << 16), position, data), partial.epoch)


def test_partial_continues_under_a_new_name(tmp_path: Path) -> None:
    """The next process takes the file over under a name of its own and misses exactly what was not written."""
    first = Partial(tmp_path, FILE, "one")
    put(first, 0, b"x" * 300)
    put(first, 500, b"y" * 100)
    first.close()
    second = Partial(tmp_path, FILE, "two")
    assert second.missing() == [(300, 500), (600, 1000)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf.two.journal", "a.gguf.two.partial"]
    second.close()


def test_restart_ignores_the_old_epoch(tmp_path: Path) -> None:
    """A worker that still delivers for a file that was started again changes nothing."""
    partial = Partial(tmp_path, FILE, "one")
    before = partial.epoch
    partial.restart()
    partial.write(fill(Window(1 << 16), 0, b"x" * 10), before)
    assert partial.done_bytes == 0
    partial.close()


@settings(deadline=None)
@given(st.data())
def test_block_file_writes_any_range(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Ranges at any offset and of any length end up where they belong, around and over block borders."""
    path = tmp_path_factory.mktemp("blocks") / "file"
    size = 5 * BLOCK + 123
    expected, file, window = bytearray(size), BlockFile(path), Window(5 * BLOCK)
    try:
        file.write(window)
        for number in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, size - 1))
            length = min(data.draw(st.integers(1, 3 * BLOCK)), size - start)
            file.write(fill(window, start, bytes([number + 1]) * length))
            expected[start : start + length] = bytes([number + 1]) * length
        content = path.read_bytes()
        assert content == bytes(expected[: len(content)])
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        assert (
            bytes(file.read(window, at, len(content)))
            == content[at : at + len(file.read(window, at, len(content)))]
        )
    finally:
        file.close()


def test_full_window_ends_at_a_block() -> None:
    """A window filled from a ragged position ends aligned, so that the next one starts aligned."""
    window = Window(4 * BLOCK)
    window.restart(BLOCK + 100)
    window.filled(len(window.room))
    assert (window.position + window.count) % BLOCK == 0


def hashed(digest: Digest, data: bytes, step: int) -> Hasher:
    hasher = Hasher(RemoteFile("a", len(data), "k", digest))
    for at in range(0, len(data), step):
        hasher.update(memoryview(data)[at : at + step])
    return hasher


DATA = bytes(range(256)) * 10
PARTS = [hashlib.md5(DATA[at : at + 1000]).digest() for at in range(0, len(DATA), 1000)]
DIGESTS = [
    Digest("sha256", hashlib.sha256(DATA).hexdigest()),
    Digest("md5", hashlib.md5(DATA).hexdigest()),
    Digest("git-sha1", hashlib.sha1(b"blob 2560\0" + DATA).hexdigest()),
    Digest("s3-parts", f"{hashlib.md5(b''.join(PARTS)).hexdigest()}-3", 1000),
]


@pytest.mark.parametrize("digest", DIGESTS, ids=lambda digest: digest.kind)
@pytest.mark.parametrize("step", [1, 999, 1000, 4096])
def test_every_kind_of_digest(digest: Digest, step: int) -> None:
    """Bytes in pieces of any size match the digest of the whole, and one changed byte does not."""
    assert hashed(digest, DATA, step).fault() is None
    assert hashed(digest, DATA[:-1] + b"!", step).fault() is not None
    assert hashed(digest, DATA, step).sha256 == hashlib.sha256(DATA).hexdigest()


def test_journal_header_has_no_secret(tmp_path: Path) -> None:
    """The journal names the file and its version, not where it comes from."""
    file = RemoteFile("a.gguf", 10, "https://host/a.gguf?Signature=secret", FILE.digest, FILE.etag)
    Journal(tmp_path / "j", file, Coverage(), "boot").close()
    assert set(json.loads((tmp_path / "j").read_text().splitlines()[0])) == {
        "name",
        "size",
        "version",
        "etag",
        "boot",
    }
