"""Waiting, giving up, and what HTTP answers mean."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from glm5_service.settings.staging import Secret, StagingSettings
from glm5_service.staging.content import architecture_in, peek
from glm5_service.staging.reasons import REMEDIES, Reason, StagingError, Stopped, Transient
from glm5_service.staging.sources.http.answers import public_url, retry_after
from glm5_service.staging.sources.http.client import origin
from glm5_service.staging.sources.http.pace import Pace
from glm5_service.staging.sources.secrets import bearer, registry_login
from glm5_service.staging.transfer.patience import Patience, RateLimit
from tests.unit.staging.test_lock import FakeClock

SETTINGS = StagingSettings(retries=3, backoff_seconds=2, backoff_max_seconds=5, retry_after_max_seconds=100)


def patience(clock: FakeClock) -> Patience:
    return Patience(SETTINGS, clock, threading.Event())


def busy(seconds: float | None = None) -> Transient:
    return Transient(Reason.THROTTLED, "status 429", seconds)


def test_backoff_doubles_up_to_its_limit() -> None:
    """Pauses grow, spread by up to a half, and end at the longest one."""
    clock = FakeClock()
    waits, one = [], patience(clock)
    for attempt in (1, 2, 3):
        before = clock.now
        one.failed(busy(), attempt, "fetching a")
        waits.append(clock.now - before)
    assert [most / 2 <= wait <= most for wait, most in zip(waits, (2, 4, 5), strict=True)] == [True] * 3


def test_gives_up_with_the_reason_of_the_last() -> None:
    """After the allowed attempts the last fault is the reason."""
    with pytest.raises(
        StagingError, match="fetching a, 4 attempts without progress, the last: status 429"
    ) as caught:
        patience(FakeClock()).failed(busy(), 4, "fetching a")
    assert caught.value.reason is Reason.THROTTLED


@pytest.mark.parametrize(("asked", "waited"), [(30.0, 30.0), (1000.0, 100.0)], ids=["as asked", "capped"])
def test_retry_after_holds_everybody(asked: float, waited: float) -> None:
    """What one worker was told, the others wait for as well."""
    clock = FakeClock()
    one = patience(clock)
    one.failed(busy(asked), 1, "fetching a")
    assert clock.now == 1000 + waited
    clock.now = 1000
    one.wait_turn()
    assert clock.now == 1000 + waited


def test_stop_ends_every_pause() -> None:
    """A run that is told to stop does not sit out a pause."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        Patience(SETTINGS, FakeClock(), stop).failed(busy(50), 1, "fetching a")


def test_rate_limit_keeps_the_average() -> None:
    """Over time no more passes than the limit, whatever the pieces."""
    clock = FakeClock()
    limit = RateLimit(1000, clock, threading.Event())
    for piece in (10, 500, 1500, 90, 900):
        limit.spend(piece)
    assert clock.now - 1000 == pytest.approx(3.0, abs=0.11)


def test_pace_forgives_our_own_limit() -> None:
    """Slow because we asked for slow is no stall; slow by itself is."""
    clock = FakeClock()
    pace = Pace(StagingSettings(stall_seconds=10, stall_bytes_per_second=100), clock)
    clock.now += 11
    pace.check(5, waited=11)
    clock.now += 11
    with pytest.raises(Transient, match="10 bytes in 11 s"):
        pace.check(5, waited=0)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:00 GMT", "Date": "Thu, 01 Jan 1970 00:00:30 GMT"}, 30.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT", "Date": "Thu, 01 Jan 1970 00:00:30 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
    ids=["seconds", "date", "past", "nonsense", "none"],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds and dates are understood, dates against the server's own clock."""
    assert retry_after(headers) == seconds


def test_public_url_has_no_secret() -> None:
    """What is logged has neither user nor query."""
    assert public_url("https://me:pw@host:8/a/b?X-Amz-Signature=s#f") == "https://host:8/a/b"


@pytest.mark.parametrize("other", ["http://host/a", "https://host:444/a", "https://host.evil/a"])
def test_origin_is_scheme_host_and_port(other: str) -> None:
    """A secret stays with the origin it is for."""
    assert origin("https://HOST:443/b") == origin("https://host/a")
    assert origin("https://host/a") != origin(other)


def test_secret_file_is_read_anew(tmp_path: Path) -> None:
    """A mounted secret that rotates is seen at the next request."""
    path = tmp_path / "token"
    path.write_text("one\n")
    secret = Secret(file=path)
    assert bearer(secret) == {"Authorization": "Bearer one"}
    path.write_text("two\n")
    assert bearer(secret) == {"Authorization": "Bearer two"}


@pytest.mark.parametrize(
    ("entry", "login"),
    [('{"auth": "YTpi"}', "YTpi"), ('{"username": "a", "password": "b"}', "YTpi")],
    ids=["auth", "user and password"],
)
def test_registry_login(tmp_path: Path, entry: str, login: str) -> None:
    """Credentials are those of the registry's own host, in both forms that Docker writes."""
    path = tmp_path / "config.json"
    path.write_text(f'{{"auths": {{"https://reg:5000": {entry}}}}}')
    assert registry_login(path, "reg:5000") == login
    assert registry_login(path, "other:5000") is None


def header(architecture: str) -> bytes:
    key, value = b"general.architecture", architecture.encode()
    text = (8).to_bytes(4, "little") + len(value).to_bytes(8, "little") + value
    return b"GGUF" + bytes(20) + len(key).to_bytes(8, "little") + key + text


def test_peek_reads_the_architecture() -> None:
    """The architecture is found in the first bytes, and only when all of it is there."""
    assert architecture_in(header("glm-dsa")) == "glm-dsa"
    assert architecture_in(header("glm-dsa")[:-1]) is None
    peek("a.gguf", header("glm-dsa"), "glm-dsa")
    peek("a.gguf", b"GGUF" + bytes(100), "glm-dsa")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", Reason.NOT_A_MODEL),
        (b"<!doctype html>", Reason.NOT_A_MODEL),
        (header("llama"), Reason.WRONG_ARCHITECTURE),
    ],
    ids=["pointer", "web page", "llama"],
)
def test_peek_refuses(head: bytes, reason: Reason) -> None:
    """What is certainly wrong is named from the first bytes."""
    with pytest.raises(StagingError) as caught:
        peek("a.gguf", head, "glm-dsa")
    assert caught.value.reason is reason


def test_every_reason_has_a_remedy() -> None:
    """The fixed list is complete: each reason tells what to do and how the process ends."""
    assert set(REMEDIES) == set(Reason)
    assert all(remedy.text.endswith(".") and remedy.exit_code for remedy in REMEDIES.values())
