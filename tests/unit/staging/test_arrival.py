"""Bytes from a socket to a partial file: what a stream says has come, and windows that lose none of it."""

from __future__ import annotations

import errno
import http.client
import io
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from urllib3 import HTTPResponse

from glm5_service.staging.clock import Clock
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, StagingError, Transient
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources.http.body import GOOD_DEAL_BYTES, HttpStream, body_of
from glm5_service.staging.store.build import Build
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.store.volume import Volume
from glm5_service.staging.transfer.blocks import BLOCK, BlockFile
from glm5_service.staging.transfer.hashing import Hashing
from glm5_service.staging.transfer.landing import WINDOWS, Landing, Windows
from glm5_service.staging.transfer.partial import Partial
from glm5_service.staging.transfer.schedule import Transfers


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the server's, and ours."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield theirs, ours


def answer(
    ends: tuple[socket.socket, socket.socket], head: bytes, first: bytes, stall: float = 60
) -> HttpStream:
    """The body of an answer of which `first` came with the head."""
    theirs, ours = ends
    theirs.sendall(b"HTTP/1.1 206 Partial Content\r\n%b\r\n\r\n%b" % (head, first))
    response = http.client.HTTPResponse(ours)
    response.begin()
    return body_of(HTTPResponse(response, preload_content=False), whole=False, stall_seconds=stall)


def read(stream: HttpStream, count: int) -> bytes | None:
    """The next `count` bytes, None if none came; waits for the first of them."""
    room = bytearray(count)
    stream.wait(5)
    got = stream.read_into(memoryview(room))
    return None if got is None else bytes(room[:got])


def test_bytes_come_as_they_arrive(ends: tuple[socket.socket, socket.socket]) -> None:
    """What came with the head is not waited for, a pause is no end, and the end is one."""
    stream = answer(ends, b"Content-Length: 6", b"abc")
    assert read(stream, 2) == b"ab"
    assert read(stream, 10) == b"c"
    assert stream.read_into(memoryview(bytearray(10))) is None
    ends[0].sendall(b"de")
    assert read(stream, 10) == b"de"
    ends[0].close()
    assert read(stream, 10) == b""


def test_the_end_of_a_short_answer_is_an_end(ends: tuple[socket.socket, socket.socket]) -> None:
    """Who reads on after the last byte is told that there is no more, also while the connection stays open."""
    stream = answer(ends, b"Content-Length: 3", b"abc")
    assert not stream.ended
    assert read(stream, 3) == b"abc"
    assert stream.ended
    assert read(stream, 10) == b""


@pytest.mark.parametrize("head", [b"Content-Length: 0", b"Content-Length: 6", b"Connection: close"])
def test_an_answer_that_brought_nothing_or_broke_off_has_not_ended(
    ends: tuple[socket.socket, socket.socket], head: bytes
) -> None:
    """Only what a server said it would send, and sent, is asked on for at once."""
    stream = answer(ends, head, b"")
    ends[0].close()
    assert read(stream, 10) == b""
    assert not stream.ended


def test_silence_is_a_stall(ends: tuple[socket.socket, socket.socket]) -> None:
    """Only waiting in vain counts, and only until the next byte."""
    stream = answer(ends, b"Content-Length: 6", b"a", stall=0.0)
    assert read(stream, 10) == b"a"
    assert stream.read_into(memoryview(bytearray(10))) is None
    stream.wait(0.01)
    ends[0].sendall(b"b")
    assert read(stream, 10) == b"b"
    stream.wait(0.01)
    with pytest.raises(Transient) as caught:
        stream.read_into(memoryview(bytearray(10)))
    assert caught.value.reason is Reason.STALLED


def test_a_body_in_chunks(ends: tuple[socket.socket, socket.socket]) -> None:
    """Chunks are collected while somebody waits, and given out in whatever pieces there is room for."""
    stream = answer(ends, b"Transfer-Encoding: chunked", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert read(stream, 4) == b"abcd"
    assert read(stream, 4) == b"e"
    assert read(stream, 4) == b""


def test_a_byte_is_enough_again_at_the_end(ends: tuple[socket.socket, socket.socket]) -> None:
    """In the middle of a body a good deal is waited for; near its end, and for the next head, a byte."""
    size = 3 * GOOD_DEAL_BYTES

    def least() -> int:
        return ends[1].getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

    stream, waited_for, left = answer(ends, b"Content-Length: %d" % size, b""), [], size
    ends[0].setblocking(False)
    while left:
        waited_for.append(least())
        ends[0].send(b"x" * GOOD_DEAL_BYTES)
        left -= len(read(stream, GOOD_DEAL_BYTES) or b"")
    assert waited_for[0] == GOOD_DEAL_BYTES
    assert least() == 1


def landing(
    folder: Path, start: int, end: int, faults: list[BaseException]
) -> tuple[Partial, Windows, Landing]:
    partial = Partial(folder, RemoteFile("a.gguf", end, "key"), "one")
    windows = Windows(faults.append)
    return partial, windows, Landing(windows, partial, partial.epoch, start)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2 * BLOCK), st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=8))
def test_pieces_of_any_size_land(
    tmp_path_factory: pytest.TempPathFactory, start: int, pieces: list[int]
) -> None:
    """Whatever arrives at once and wherever the first byte belongs, all of it is on the volume and in the journal."""
    data = bytes(number % 251 for number in range(start + sum(pieces)))
    faults: list[BaseException] = []
    partial, windows, lands = landing(tmp_path_factory.mktemp("land"), start, len(data), faults)
    at = start
    for count in pieces:
        with lands.window() as window:
            window.put(data[at : at + count])
        at += count
    lands.drain()
    windows.close()
    assert partial.path.read_bytes()[start:] == data[start:]
    assert partial.missing() == ([(0, start)] if start else [])
    assert faults == []
    partial.close()


def test_no_window_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read or a write that fails gives its window back, and the failed write is told."""
    full, faults = OSError(28, "No space left on device"), list[BaseException]()

    def refuse(*_: object) -> None:
        raise full

    monkeypatch.setattr(Partial, "write", refuse)
    partial, windows, lands = landing(tmp_path, 0, 1 << 20, faults)
    for _ in range(2 * WINDOWS):
        with lands.window() as window:
            window.put(b"x" * BLOCK)
        with pytest.raises(ValueError, match="broken"), lands.window():
            raise ValueError("broken")
    lands.drain()
    windows.close()
    assert faults == [full] * (2 * WINDOWS)
    partial.close()


def test_volume_that_does_not_give_bytes_back_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read error while hashing is the volume's: the run ends, and the file keeps what came."""
    faults: list[BaseException] = []
    partial, windows, lands = landing(tmp_path, 0, 4 * BLOCK, faults)
    with lands.window() as window:
        window.put(b"x" * 2 * BLOCK)
    lands.drain()
    windows.close()
    halt, progress = threading.Event(), Progress(io.StringIO(), None, Clock())
    transfers = Transfers([partial], BLOCK, "glm-dsa", halt)
    lock = TargetLock(tmp_path, Clock(), 90, threading.Event())
    build = Build(Volume(tmp_path), "revision", "one")
    hashing = Hashing(transfers, build, lock, progress, halt)

    def refuse(*_: object) -> None:
        # so that a hasher that goes on comes to an end
        halt.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(BlockFile, "read", refuse)
    with pytest.raises(StagingError, match="cannot read") as caught:
        hashing.catch_up()
    assert caught.value.reason is Reason.VOLUME_FAULT
    assert partial.done_bytes == 2 * BLOCK
    assert progress.restarts == 0
    partial.close()


def test_a_whole_file_is_doubted_where_ranges_worked(tmp_path: Path) -> None:
    """One bad moment of all workers is one answer to each; a range to any of them begins the count anew; but a server
    that never served one is taken at its word."""
    partial = Partial(tmp_path, RemoteFile("a.gguf", 4 * BLOCK, "key"), "one")
    transfers = Transfers([partial], BLOCK, "glm-dsa", threading.Event())
    first, *others = (claim for _ in range(4) if (claim := transfers.claim(None)) is not None)
    assert not transfers.is_doubtful(first, 3)
    transfers.ranges_work(first)
    assert all(transfers.is_doubtful(claim, 1) for claim in (first, *others))
    transfers.ranges_work(others[0])
    assert transfers.is_doubtful(first, 1)
    assert not transfers.is_doubtful(first, 1)
    transfers.take_whole(first)
    assert not transfers.is_doubtful(first, 3)
    partial.close()
