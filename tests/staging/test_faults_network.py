"""Faults between a server and the stager: what is retried, where it continues, when it gives up."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from urllib3.connectionpool import HTTPConnectionPool

from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.stager import Options
from tests.staging.conftest import QUICK, Stager
from tests.support.staging.fault_server import Fault, FaultServer, running
from tests.support.staging.faults_table import fault
from tests.support.staging.hub_server import CdnServer, HubServer
from tests.support.staging.large_gguf import SplitSet
from tests.support.staging.stores import KEYS

pytestmark = pytest.mark.staging
Serve = Callable[..., FaultServer]
# sent but lost where a run ends: a part in the socket buffers of each connection; and what every run asks for anew, lists
# of digests, sizes and the small files
SLACK_BYTES = QUICK["connections"] * QUICK["part_bytes"] + (64 << 10)
# to wait for a stall; a busy machine makes more of them than the test does
STALLS: dict[str, Any] = {"stall_seconds": 1, "retries": 100}


class SkippingClock(Clock):
    """Workers' pauses pass at once and are remembered; all other time is real."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped

    def pause(self, stop: threading.Event, seconds: float) -> None:
        if threading.current_thread().name.startswith("worker"):
            self.pauses.append(seconds)
            self.skipped += seconds
            seconds = 0
        super().pause(stop, seconds)


def published(stager: Stager, model: SplitSet) -> None:
    """The published files are the source's, byte for byte."""
    assert stager.digests == model.digests()


def continues(server: FaultServer, model: SplitSet, stager: Stager, broken: Fault, **settings: Any) -> None:
    """What broken answers brought is not asked for again, and the set ends published."""
    server.faults = [broken]
    stager(f"{server.url}/", **settings)
    published(stager, model)
    assert server.sent_bytes <= model.total_bytes + SLACK_BYTES


def waits(server: FaultServer, model: SplitSet, stager: Stager, asking: Fault, seconds: float) -> None:
    """The longest pause of a worker is the one asked for, less what had passed of it before the worker paused."""
    clock, begun = SkippingClock(), time.monotonic()
    server.faults = [asking]
    stager.clock = clock
    stager(f"{server.url}/")
    published(stager, model)
    spent = time.monotonic() - begun
    assert seconds - spent <= max(clock.pauses) <= seconds + 0.001


def refused(stager: Stager, server: FaultServer, **settings: Any) -> StagingError:
    """Staging fails and nothing is visible."""
    error = stager.fails(f"{server.url}/", **settings)
    assert stager.is_empty
    return error


@fault("connection reset in the middle of a body", then="continues at the byte where it stopped")
def test_reset_continues_at_the_byte(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """After a reset only the bytes that had not arrived are asked for."""
    continues(serve(), model, stager, Fault("reset", times=6, after=300_000))


@fault(
    "429 with Retry-After in seconds", then="all connections wait as long as the server asked, then continue"
)
def test_429_is_obeyed(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """The pause is the one the server asked for, not the backoff."""
    asking = Fault("status", status=429, headers={"Retry-After": "37"}, skip=2)
    waits(serve(), model, stager, asking, 37)


@fault(
    "429 with only a RateLimit header",
    then="all connections wait until the quota is full again, then continue",
)
def test_429_with_a_quota_is_obeyed(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """The Hub says when its quota is full again and nothing else."""
    asking = Fault("status", status=429, headers={"RateLimit": '"api";r=0;t=37'}, skip=2)
    waits(serve(), model, stager, asking, 37)


@fault(
    "503 with Retry-After as a date", then="waits until that date by the server's own clock, then continues"
)
def test_503_date_counts_from_the_servers_clock(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A Retry-After date is read against the Date of the same answer, so a wrong clock here does not matter."""
    dates = {"Retry-After": "Thu, 01 Jan 1970 00:00:41 GMT", "Date": "Thu, 01 Jan 1970 00:00:00 GMT"}
    waits(serve(), model, stager, Fault("status", status=503, headers=dates), 41)


@fault(
    "429 that never ends", then="gives up after the retries and keeps the bytes it has", ends=Reason.THROTTLED
)
def test_429_without_end(serve: Serve, stager: Stager) -> StagingError:
    """Throttling that never ends is named as such."""
    server = serve()
    server.faults = [Fault("status", status=429, times=10_000)]
    return refused(stager, server)


@fault("416 for a range of the listed size", then="lists the source again and continues")
def test_416_lists_again(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A range that the server cannot satisfy means that the listing is old."""
    server = serve()
    server.faults = [Fault("status", status=416)]
    stager(f"{server.url}/")
    published(stager, model)
    assert "source changed" in stager.log.getvalue()


@fault("body cut short", then="continues at the byte where it stopped")
def test_truncated_body_continues(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A body that ends early counts for the bytes it brought."""
    continues(serve(), model, stager, Fault("truncate", times=5, after=200_000))


@fault("answer with part of a range", then="continues at the byte where the answer ended")
def test_short_range_continues(
    serve: Serve, model: SplitSet, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole answer to less than was asked for is no failure: neither a retry nor a new connection."""
    made: list[str] = []
    real = HTTPConnectionPool._new_conn

    def new_connection(pool: HTTPConnectionPool) -> Any:
        made.append(threading.current_thread().name)
        return real(pool)

    monkeypatch.setattr(HTTPConnectionPool, "_new_conn", new_connection)
    server = serve()
    server.faults = [Fault("part", times=40, after=200_000)]
    stager(f"{server.url}/", retries=0)
    published(stager, model)
    assert server.sent_bytes <= model.total_bytes + SLACK_BYTES
    assert stager.state["retries"] == 0
    assert sum(name.startswith("worker") for name in made) <= QUICK["connections"]


@pytest.mark.parametrize("kind", ["SHA256SUMS", "Hub API"])
@fault("list of files cut short", then="asks for the list again")
def test_list_cut_short(serve: Serve, model: SplitSet, stager: Stager, kind: str) -> None:
    """Half a list is no list, and no end."""
    if kind == "SHA256SUMS":
        server = serve()
        server.faults = [Fault("truncate", name=kind, times=2, after=100)]
        stager(f"{server.url}/")
    else:
        with (
            running(CdnServer(model.folder)) as cdn,
            running(HubServer(model.folder, cdn, token=None)) as hub,
        ):
            hub.faults = [Fault("cut short", name="/revision/main", times=2)]
            stager("hf://org/model", hub={"endpoint": hub.url})
    published(stager, model)


@fault("Content-Length that contradicts Content-Range", then="does not use the answer and asks again")
def test_wrong_length_is_asked_again(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """An answer that contradicts itself is dropped."""
    server = serve()
    server.faults = [Fault("wrong length", times=3)]
    stager(f"{server.url}/")
    published(stager, model)


@fault("Content-Length that is always wrong", then="gives up after the retries", ends=Reason.REFUSED)
def test_wrong_length_without_end(serve: Serve, stager: Stager) -> StagingError:
    """A server that never makes sense is refused."""
    server = serve()
    server.faults = [Fault("wrong length", times=10_000)]
    return refused(stager, server)


@fault(
    "body that arrives a byte now and then",
    then="drops the connection after stall_seconds and continues on a new one",
)
def test_drip_is_a_stall(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A connection that lives but brings next to nothing is replaced."""
    server = serve()
    # one after the other: on a busy machine a drip may pause and look like silence, but not each of them
    server.faults = [Fault("drip", times=3, after=100_000)]
    stager(f"{server.url}/", connections=1, **STALLS)
    published(stager, model)
    assert re.search(r"\.gguf at byte \d+: \d+ bytes in \d+ s, attempt", stager.log.getvalue())


@fault(
    "response head that arrives a byte now and then",
    then="drops the connection after stall_seconds and asks again",
)
def test_a_head_that_drips_is_a_stall(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """Header lines are no progress, however many come."""
    server = serve()
    server.faults = [Fault("drip head", times=3)]
    stager(f"{server.url}/", **STALLS)
    published(stager, model)
    assert "silence" in stager.log.getvalue()


@fault(
    "silence after some bytes",
    then="drops the connection after stall_seconds and continues at the byte where it stopped",
)
def test_silence_is_a_stall(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A silent connection is replaced and what it brought is kept."""
    continues(serve(), model, stager, Fault("silence", times=2, after=100_000), **STALLS)


@fault(
    "silence that never ends",
    then="gives up after the retries and keeps the bytes it has",
    ends=Reason.STALLED,
)
def test_silence_without_end(serve: Serve, stager: Stager) -> StagingError:
    """A download that hangs ends with a reason instead of hanging."""
    server = serve()
    server.faults = [Fault("silence", times=10_000)]
    return refused(stager, server, stall_seconds=1, retries=1)


@fault("no server listens", then="gives up after the retries", ends=Reason.UNREACHABLE)
def test_unreachable(serve: Serve, stager: Stager) -> StagingError:
    """A host that cannot be reached is named."""
    server = serve()
    server.server_close()
    return refused(stager, server, retries=2)


@fault("no server listens at the S3 address", then="gives up after the retries", ends=Reason.UNREACHABLE)
def test_unreachable_s3(serve: Serve, stager: Stager, monkeypatch: pytest.MonkeyPatch) -> StagingError:
    """The S3 client's own errors of the way are tried again like those of any other source."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server = serve()
    server.server_close()
    error = stager.fails("s3://models/glm-5/", s3={"endpoint": server.url}, retries=2)
    assert "3 attempts" in str(error)
    return error


@fault("bytes flipped in flight", then="fetches only that file again")
def test_flipped_in_flight(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A digest that does not match costs one file."""
    server, spoilt = serve(), model.paths[2]
    server.faults = [Fault("flip", name=spoilt.name, after=150_000)]
    stager(f"{server.url}/")
    published(stager, model)
    assert server.sent_bytes <= model.total_bytes + spoilt.stat().st_size + SLACK_BYTES
    assert f"{spoilt.name} starts at byte 0" in stager.log.getvalue()


@fault("bytes flipped in flight each time", then="gives up after the second time", ends=Reason.CORRUPT)
def test_flipped_each_time(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """A source or proxy that always spoils the file cannot be staged from."""
    server = serve()
    server.faults = [Fault("flip", name=model.paths[2].name, times=10_000, after=150_000)]
    return refused(stager, server)


@fault(
    "server that does not support ranges",
    then="uses one connection for each file; an interrupted file starts again",
)
def test_no_ranges(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """Without ranges staging still works, a broken file from byte 0."""
    server = serve(ranges=False)
    server.faults = [Fault("reset", name=model.paths[0].name, after=1_200_000)]
    stager(f"{server.url}/")
    published(stager, model)


@fault("one answer with the whole file instead of a range", then="does not use the answer and asks again")
def test_one_whole_file_is_no_restart(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A server that served ranges is believed to have them: nothing that came is thrown away for one odd answer."""
    server = serve()
    server.faults = [Fault("whole", name=model.paths[0].name, skip=1)]
    stager(f"{server.url}/", connections=1)
    published(stager, model)
    assert "whole file in answer to a range, attempt 1" in stager.log.getvalue()
    assert "starts at byte 0" not in stager.log.getvalue()


@fault("ranges that are no longer served", then="fetches the whole file after four such answers in a row")
def test_ranges_end(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A server that keeps ignoring ranges is taken at its word."""
    server = serve()
    server.faults = [Fault("whole", name=model.paths[0].name, skip=1, times=4)]
    stager(f"{server.url}/", connections=1)
    published(stager, model)
    assert (
        f"{model.paths[0].name} starts at byte 0: its server does not serve ranges" in stager.log.getvalue()
    )


@fault("ETag that a proxy marks as weak", then="treats it as the file that was listed")
def test_weak_etag(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A proxy that weakens ETags changes no file."""
    server = serve()
    server.faults = [Fault("weak", times=4)]
    stager(f"{server.url}/")
    published(stager, model)
    assert "source changed" not in stager.log.getvalue()


@fault("wall clock jumps a day back and forth", then="is not affected, because it uses only monotonic time")
def test_clock_jump(serve: Serve, model: SplitSet, stager: Stager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time-outs, retries and leases do not look at the wall clock."""
    server, real, calls = serve(), time.time, iter(range(1 << 30))
    monkeypatch.setattr(time, "time", lambda: real() + (86400 if next(calls) % 2 else -86400))
    server.faults = [Fault("reset", times=3, after=100_000)]
    stager(f"{server.url}/", Options(verify=True))
    published(stager, model)
