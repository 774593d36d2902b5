"""All requests of a source go through the proxy, or none does."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from glm5_service.errors import SettingsError
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import StagingError, Transient
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources import open_source
from glm5_service.staging.sources.http.proxies import proxy_for

SOURCES = {
    "hf": ("hf://o/r", {"hub": {"endpoint": "http://hub.invalid"}}),
    "http": ("http://host.invalid/m.gguf", {}),
    "s3": ("s3://bucket/m", {"s3": {"endpoint": "http://s3.invalid"}}),
    "s3 unsigned": ("s3://bucket/m", {"s3": {"endpoint": "http://s3.invalid", "anonymous": True}}),
    "oci": ("oci://registry.invalid/r:t", {"oci": {"plain_http": True}}),
}


@contextlib.contextmanager
def proxy() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A proxy that refuses everything, and what was asked of it: the address and the proxy's credentials."""
    seen: list[tuple[str, str]] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line, login = self.rfile.readline().decode().split(" "), ""
            while text := self.rfile.readline().decode().strip():
                if text.lower().startswith("proxy-authorization"):
                    login = text.partition(": ")[2]
            seen.append((line[1], login))
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(kind: str, **http: Any) -> None:
    """List the source, and ask for a byte of a file."""
    uri, given = SOURCES[kind]
    source = open_source(uri, StagingSettings.model_validate({**given, "http": http, "retries": 0}))
    key = "http://host.invalid/m.gguf" if kind == "http" else "m"
    for question in (source.entries, lambda: source.open(RemoteFile("m.gguf", 1000, key), 0, 1)):
        with contextlib.suppress(StagingError, Transient):
            question()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


@pytest.mark.parametrize("by", ["setting", "environment", "lower case", "bare"])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_request_of_a_source(kind: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing and transfer go the same way; none of these hosts exists, so what is not seen went astray."""
    with proxy() as (address, seen):
        if by == "setting":
            ask(kind, proxy=f"http://{address}")
        else:
            name = "http_proxy" if by == "lower case" else "HTTP_PROXY"
            monkeypatch.setenv(name, address if by == "bare" else f"http://{address}")
            ask(kind)
        assert len(seen) >= 2
        assert all(".invalid" in asked for asked, _ in seen)


@pytest.mark.parametrize("kind", SOURCES)
def test_no_request_of_a_source(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_PROXY holds for all of them too; the setting is above the environment."""
    with proxy() as (address, seen):
        monkeypatch.setenv("HTTP_PROXY", f"http://{address}")
        monkeypatch.setenv("NO_PROXY", ".invalid")
        ask(kind)
        assert seen == []
        ask(kind, proxy=f"http://{address}")
        assert len(seen) >= 2


@pytest.mark.parametrize("kind", SOURCES)
def test_credentials_of_a_proxy(kind: str) -> None:
    """User and password of the proxy's address are sent with every request, and to nobody but the proxy."""
    with proxy() as (address, seen):
        ask(kind, proxy=f"http://user:p%40ss@{address}")
        assert len(seen) >= 2
        assert {login for _, login in seen} == {"Basic dXNlcjpwQHNz"}


@pytest.mark.parametrize("value", ["socks5://user:hidden@h:1080", "http://", "http://h:hidden"])
def test_a_proxy_that_cannot_be_spoken_to(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, without its password in the message."""
    monkeypatch.setenv("HTTP_PROXY", value)
    with pytest.raises(SettingsError, match="proxy") as caught:
        open_source("http://host.invalid/m.gguf", StagingSettings()).entries()
    assert "hidden" not in str(caught.value)


def test_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """By scheme, unless the host is excepted."""
    monkeypatch.setenv("HTTPS_PROXY", "p:1")
    monkeypatch.setenv("NO_PROXY", "internal,10.0.0.1")
    assert proxy_for("https://h/", None) == "http://p:1"
    assert proxy_for("http://h/", None) is None
    assert proxy_for("https://a.internal/", None) is None
    assert proxy_for("https://10.0.0.1/", None) is None
    assert proxy_for("https://a.internal/", "http://q:2") == "http://q:2"
