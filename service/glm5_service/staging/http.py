"""The one way staging speaks HTTP: requests, redirects that keep secrets at home, and ranged reads.

Turns every status and network error into a StagingError (final), Transient (try again) or SourceChanged (list again).
Owns no retries; next hop: retry.py.
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit, urlunsplit

import urllib3
from urllib3.exceptions import (
    HTTPError,
    LocationValueError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.response import BaseHTTPResponse

from glm5_service import __version__
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.faults import SourceChanged, Transient
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import RemoteFile

MAX_REDIRECTS = 6
CONTENT_RANGE = re.compile(r"^bytes (\d+)-(\d+)/(\d+|\*)$")
RETRIED_CLIENT_ERRORS = {408: Reason.UNREACHABLE, 425: Reason.UNREACHABLE, 429: Reason.THROTTLED}


@dataclass(frozen=True)
class Target:
    """Where to ask; `secrets` are headers that only the origin of `url` may see."""

    url: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


Locate = Callable[[bool], Target]
"""Gives the target of a file; True asks for fresh credentials because the last ones were refused."""


def public_url(url: str) -> str:
    """The address without what may be secret: user, password, query, fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: what must be equal for a secret to be sent along."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").lower(), port


class Http:
    """A pool of connections; safe to use from many threads."""

    def __init__(self, settings: StagingSettings) -> None:
        self._timeout = urllib3.Timeout(connect=settings.connect_seconds, read=settings.stall_seconds)
        ca_file = settings.http.ca_file
        options: dict[str, object] = {"maxsize": settings.connections, "num_pools": 8}
        if ca_file:
            options["ca_certs"] = str(ca_file)
        proxy = settings.http.proxy
        self._pool: urllib3.PoolManager = (
            urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)  # type: ignore[arg-type]
        )

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
                    raise _fault(response, url)
                return response
            _discard(response)
            following = urljoin(url, response.headers.get("Location", ""))
            if urlsplit(url).scheme == "https" and urlsplit(following).scheme != "https":
                raise StagingError(
                    Reason.UNTRUSTED, "redirect away from https", public_url(following), expected="https"
                )
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
            _check_range(response, file, start, end)
        except Exception:
            response.close()
            raise
        return HttpStream(response, whole=response.status == 200)

    def _send_once(self, method: str, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        try:
            return self._pool.urlopen(
                method,
                url,
                headers=headers,
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=self._timeout,
            )
        except LocationValueError as error:
            raise StagingError(Reason.NOT_FOUND, "not an address", public_url(url)) from error
        except HTTPError as error:
            raise _network_fault(error, public_url(url)) from error


class HttpStream:
    """The body of one answer. `whole` is True if it starts at byte 0 of the file in spite of the range."""

    def __init__(self, response: BaseHTTPResponse, *, whole: bool) -> None:
        self._response, self.whole = response, whole

    def read(self, limit: int) -> bytes:
        """What has arrived, at most `limit` bytes; empty at the end."""
        try:
            return self._response.read1(limit, decode_content=False)
        except HTTPError as error:
            raise _network_fault(error, "while reading") from error
        except OSError as error:
            raise Transient(Reason.UNREACHABLE, f"connection broke: {error}") from error

    def close(self, *, finished: bool) -> None:
        """Give the connection back if its body was read to the end, else end it."""
        if finished:
            self._response.release_conn()
        else:
            self._response.close()

    def abort(self) -> None:
        """Wake a thread that waits for bytes; it sees the end of the body."""
        with suppress(ValueError, OSError, RuntimeError):
            self._response.shutdown()


def _discard(response: BaseHTTPResponse) -> None:
    """Make the connection fit for the next request; a long error page is not worth reading."""
    try:
        length = int(response.headers.get("Content-Length", "-1"))
    except ValueError:
        length = -1
    if 0 <= length <= 65536:
        response.drain_conn()
        response.release_conn()
    else:
        response.close()


def _fault(response: BaseHTTPResponse, url: str) -> Exception:
    status, where = response.status, public_url(url)
    said = response.headers.get("X-Error-Message", "")[:200]
    value = f"{status} from {where}" + (f" ({said})" if said else "")
    if status in (401, 403):
        return StagingError(Reason.UNAUTHORIZED, "source refused the credentials", value)
    if status in (404, 410):
        return StagingError(Reason.NOT_FOUND, "source has no such file", value)
    if status in RETRIED_CLIENT_ERRORS or status >= 500:
        reason = RETRIED_CLIENT_ERRORS.get(status, Reason.UNREACHABLE)
        return Transient(reason, f"status {value}", retry_after(response.headers))
    return StagingError(Reason.REFUSED, "source refused the request", value)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds asked for by Retry-After; a date counts from the answer's own Date, whatever our clock says."""
    text = headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    try:
        until = email.utils.parsedate_to_datetime(text)
        now = email.utils.parsedate_to_datetime(headers.get("Date", ""))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _network_fault(error: Exception, where: str) -> Exception:
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return StagingError(Reason.UNTRUSTED, "certificate is not trusted", where)
    if isinstance(error, ReadTimeoutError):
        return Transient(Reason.STALLED, f"silence: {where}")
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).lower()
    return Transient(Reason.UNREACHABLE, f"{kind} error: {where}")


def _check_range(response: BaseHTTPResponse, file: RemoteFile, start: int, end: int) -> None:
    """Raise unless the answer is bytes [start, end) of the listed file, or the whole of it."""
    headers, status = response.headers, response.status
    if status in (412, 416):
        raise SourceChanged(file.name, f"range {start}-{end - 1} refused with {status}")
    etag = headers.get("ETag")
    if file.etag and etag and etag != file.etag:
        raise SourceChanged(file.name, f"ETag is {etag}, was {file.etag}")
    if headers.get("Content-Encoding", "identity") != "identity":
        raise StagingError(
            Reason.REFUSED, f"encoding of {file.name}", headers["Content-Encoding"], expected="none"
        )
    length = headers.get("Content-Length")
    if status == 200:
        if length is not None and int(length) != file.size:
            raise SourceChanged(file.name, f"size is {length}, was {file.size}")
        return
    match = CONTENT_RANGE.match(headers.get("Content-Range", ""))
    if match is None:
        raise Transient(Reason.REFUSED, f"status {status} without a usable Content-Range for {file.name}")
    first, last, total = int(match[1]), int(match[2]), match[3]
    if total != "*" and int(total) != file.size:
        raise SourceChanged(file.name, f"size is {total}, was {file.size}")
    if first != start or last >= end or (length is not None and int(length) != last - first + 1):
        raise Transient(
            Reason.REFUSED, f"answer for {file.name} contradicts itself: {match[0]}, length {length}"
        )
