"""The HTTP client of all sources: requests, redirects that pass no secret on, and byte ranges.

answers.py says what an answer means, body.py reads its body. This module never retries: transfer/patience.py does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError
from urllib3.response import BaseHTTPResponse

from glm5_service import __version__
from glm5_service.foreign import whole
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.reasons import Reason, StagingError, Transient
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources.http.answers import (
    CREDENTIALS_REFUSED,
    check_range,
    network_fault,
    public_url,
    status_fault,
)
from glm5_service.staging.sources.http.body import HttpStream, body_of
from glm5_service.staging.sources.http.deadline import pools
from glm5_service.staging.sources.http.pace import Pace
from glm5_service.staging.sources.http.proxies import manager, proxy_for

MAX_REDIRECTS = 6
# the Hub's list of a repository with ten thousand files has a few MB
ANSWER_BYTES = 64 << 20
READ_BYTES, READ_SECONDS = 64 << 10, 1.0
# a refusal's body is read so far, and so long, to keep its connection
DISCARD_BYTES, DISCARD_SECONDS = 64 << 10, 1.0


@dataclass(frozen=True)
class Target:
    """Where to ask; `secrets` are headers that only the origin of `url` may see."""

    url: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


Locate = Callable[[bool], Target]
"""Gives the target of a file; True asks for fresh credentials because the last ones were refused."""


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: what must be equal for a secret to be sent along. Raises StagingError for no address."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise _no_address(url) from error
    return parts.scheme, (parts.hostname or "").lower(), port


def _no_address(url: str) -> StagingError:
    return StagingError(
        Reason.REFUSED,
        "address that cannot be asked",
        public_url(url),
        expected="http or https, a host, a port",
    )


class Http:
    """A pool of connections; safe to use from many threads."""

    def __init__(
        self, settings: StagingSettings, credentials_refused: frozenset[int] = CREDENTIALS_REFUSED
    ) -> None:
        """`credentials_refused`: the statuses by which this kind of server refuses credentials."""
        self._credentials_refused = credentials_refused
        self._timeout = urllib3.Timeout(connect=settings.connect_seconds, read=settings.stall_seconds)
        self._settings, self._pools = settings, dict[str | None, urllib3.PoolManager]()
        self._guard = threading.Lock()

    def send(
        self,
        method: str,
        target: Target,
        headers: Mapping[str, str] | None = None,
        *,
        accept: tuple[int, ...] = (),
    ) -> BaseHTTPResponse:
        """One request, redirects followed; the body is not read yet. Statuses in `accept` are no errors."""
        url, secrets = target.url, dict(target.secrets)
        base = {"User-Agent": f"glm5-stage/{__version__}", "Accept-Encoding": "identity", **(headers or {})}
        for _ in range(MAX_REDIRECTS):
            response = self._send_once(method, url, {**base, **secrets})
            if response.status not in (301, 302, 303, 307, 308):
                if response.status >= 300 and response.status not in accept:
                    _discard(response)
                    raise status_fault(response, url, self._credentials_refused)
                return response
            _discard(response)
            following = _following(url, response.headers.get("Location", ""))
            if origin(following) != origin(url):
                secrets = {}
            url = following
        raise StagingError(Reason.REFUSED, "redirected too often", public_url(target.url))

    def send_authorised(
        self,
        method: str,
        locate: Locate,
        headers: Mapping[str, str] | None = None,
        *,
        accept: tuple[int, ...] = (),
    ) -> BaseHTTPResponse:
        """As `send`; credentials that are refused are fetched anew once (expired token, expired signature)."""
        try:
            return self.send(method, locate(False), headers, accept=accept)
        except StagingError as error:
            if error.reason is not Reason.UNAUTHORIZED:
                raise
        return self.send(method, locate(True), headers, accept=accept)

    def open_range(self, locate: Locate, file: RemoteFile, start: int, end: int) -> HttpStream:
        """Bytes [start, end) of `file`. The stream says `whole` if the server ignored the range and starts at 0."""
        headers = {"Range": f"bytes={start}-{end - 1}"}
        if file.etag and not file.etag.startswith("W/"):
            headers["If-Range"] = file.etag
        response = self.send_authorised("GET", locate, headers, accept=(412, 416))
        try:
            check_range(response, file, start, end)
        except Exception:
            response.close()
            raise
        return body_of(response, whole=response.status == 200, stall_seconds=self._settings.stall_seconds)

    def read_all(self, response: BaseHTTPResponse, where: str, limit: int = ANSWER_BYTES) -> bytes:
        """The whole body of a short answer, such as a list of files. Raises Transient if it breaks off or drips,
        StagingError if it is longer than `limit` bytes."""
        data, pace = bytearray(), Pace(self._settings, Clock())
        stream = body_of(response, whole=True, stall_seconds=self._settings.stall_seconds)
        room = memoryview(bytearray(READ_BYTES))
        try:
            while len(data) <= limit:
                stream.wait(READ_SECONDS)
                count = stream.read_into(room)
                if count == 0:
                    break
                data += room[: count or 0]
                if not stream.ended:
                    pace.check(count or 0, 0)
        finally:
            stream.close(finished=stream.ended)
        if len(data) > limit:
            raise StagingError(
                Reason.REFUSED, f"size of {where}", f"more than {limit} bytes", expected=f"at most {limit}"
            )
        said = whole(response.headers.get("Content-Length"))
        if said is not None and len(data) < said:
            raise Transient(Reason.UNREACHABLE, f"{where} ended after {len(data)} of {said} bytes")
        return bytes(data)

    def _pool(self, url: str) -> urllib3.PoolManager:
        """The connections for `url`: those of the proxy it goes through."""
        settings = self._settings
        proxy = proxy_for(url, settings.http.proxy)
        with self._guard:
            if proxy not in self._pools:
                options: dict[str, object] = {"maxsize": settings.connections, "num_pools": 8}
                if settings.http.ca_file:
                    options["ca_certs"] = str(settings.http.ca_file)
                pool = self._pools[proxy] = manager(proxy, **options)
                pool.pool_classes_by_scheme = pools(settings.stall_seconds)
            return self._pools[proxy]

    def _send_once(self, method: str, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        try:
            return self._pool(url).urlopen(
                method,
                url,
                headers=headers,
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=self._timeout,
            )
        except (LocationValueError, ValueError) as error:
            raise _no_address(url) from error
        except HTTPError as error:
            raise network_fault(error, public_url(url)) from error


def _following(url: str, location: str) -> str:
    """Where a redirect leads to."""
    try:
        following = urljoin(url, location)
    except ValueError as error:
        raise _no_address(location) from error
    scheme, host, _ = origin(following)
    if scheme not in ("http", "https") or not host:
        raise _no_address(following)
    if origin(url)[0] == "https" and scheme != "https":
        raise StagingError(
            Reason.UNTRUSTED, "redirect away from https", public_url(following), expected="https"
        )
    return following


def _discard(response: BaseHTTPResponse) -> None:
    """Make the connection fit for the next request; a long error page, or one that drips, is not worth reading."""
    stream = body_of(response, whole=True, stall_seconds=DISCARD_SECONDS)
    room, until, left = (
        memoryview(bytearray(DISCARD_BYTES)),
        time.monotonic() + DISCARD_SECONDS,
        DISCARD_BYTES,
    )
    with suppress(Transient):
        while not stream.ended and left > 0 and time.monotonic() < until:
            stream.wait(DISCARD_SECONDS / 4)
            count = stream.read_into(room)
            if count == 0:
                break
            left -= count or 0
    stream.close(finished=stream.ended or response.headers.get("Content-Length") == "0")
