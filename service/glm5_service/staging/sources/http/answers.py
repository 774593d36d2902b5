"""What an HTTP answer means for staging: StagingError (final), Transient (try again), SourceChanged (list again) or fine.

Sends nothing and reads no body.
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from urllib3.exceptions import ReadTimeoutError, SSLError
from urllib3.response import BaseHTTPResponse

from glm5_service.foreign import clean, whole
from glm5_service.staging.reasons import Reason, SourceChanged, StagingError, Transient
from glm5_service.staging.records import RemoteFile, opaque

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
# the quota's reset, in seconds: `"api";r=0;t=290`, or `limit=100, remaining=0, reset=290`
_RATE_LIMIT = re.compile(r"\b(?:t|reset)=([0-9]{1,19})\b")
CREDENTIALS_REFUSED = frozenset({401, 403})
RETRIED_CLIENT_ERRORS = {408: Reason.UNREACHABLE, 425: Reason.UNREACHABLE, 429: Reason.THROTTLED}


def public_url(url: str) -> str:
    """The address without what may be secret: user, password, query, fragment; "an address" if it is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def status_fault(
    response: BaseHTTPResponse, url: str, credentials_refused: frozenset[int] = CREDENTIALS_REFUSED
) -> Exception:
    """What a status other than success stands for."""
    status, where = response.status, public_url(url)
    said = clean(response.headers.get("X-Error-Message", ""), 200)
    value = f"{status} from {where}" + (f" ({said})" if said else "")
    if status in credentials_refused:
        return StagingError(Reason.UNAUTHORIZED, "source refused the credentials", value)
    if status in (404, 410):
        return StagingError(Reason.NOT_FOUND, "source has no such file", value)
    if status in RETRIED_CLIENT_ERRORS or status >= 500:
        reason = RETRIED_CLIENT_ERRORS.get(status, Reason.UNREACHABLE)
        return Transient(reason, f"status {value}", retry_after(response.headers))
    return StagingError(Reason.REFUSED, "source refused the request", value)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: by Retry-After, else until the quota of a RateLimit header is full again.

    A date counts from the answer's own Date, whatever our clock says.
    """
    text = headers.get("Retry-After", "")
    if (seconds := whole(text)) is not None:
        return float(seconds)
    if text:
        return _until(text, headers.get("Date", ""))
    # the Hub's 429 states only this; both forms of the IETF draft are in use
    resets = [*_RATE_LIMIT.findall(headers.get("RateLimit", "")), headers.get("RateLimit-Reset", "")]
    waits = [wait for wait in map(whole, resets) if wait is not None]
    return float(max(waits)) if waits else None


def _until(date: str, now: str) -> float | None:
    try:
        wait = email.utils.parsedate_to_datetime(date) - email.utils.parsedate_to_datetime(now)
        return max(0.0, wait.total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def network_fault(error: Exception, where: str) -> Exception:
    """What an error below HTTP stands for."""
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return StagingError(Reason.UNTRUSTED, "certificate is not trusted", where)
    if isinstance(error, ReadTimeoutError | TimeoutError):
        return Transient(Reason.STALLED, f"silence: {where}")
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).lower()
    return Transient(Reason.UNREACHABLE, f"{kind} error: {where}")


def check_range(response: BaseHTTPResponse, file: RemoteFile, start: int, end: int) -> None:
    """Raise unless the answer is bytes [start, end) of the listed file, or the whole of it."""
    headers, status = response.headers, response.status
    if status in (412, 416):
        raise SourceChanged(file.name, f"range {start}-{end - 1} refused with {status}")
    etag = headers.get("ETag")
    if file.etag and etag and opaque(etag) != opaque(file.etag):
        raise SourceChanged(file.name, f"ETag is {etag}, was {file.etag}")
    if headers.get("Content-Encoding", "identity") != "identity":
        raise StagingError(
            Reason.REFUSED, f"encoding of {file.name}", headers["Content-Encoding"], expected="none"
        )
    said = headers.get("Content-Length")
    length = whole(said)
    if said is not None and length is None:
        raise Transient(
            Reason.REFUSED, f"Content-Length for {file.name} is no number of bytes: {clean(said)}"
        )
    if status == 200:
        if length not in (None, file.size):
            raise SourceChanged(file.name, f"size is {length}, was {file.size}")
        return
    found = content_range(headers)
    if found is None:
        raise Transient(Reason.REFUSED, f"status {status} without a usable Content-Range for {file.name}")
    first, last, total = found
    if total not in (None, file.size):
        raise SourceChanged(file.name, f"size is {total}, was {file.size}")
    if first != start or not start <= last < end or length not in (None, last - first + 1):
        raise Transient(
            Reason.REFUSED,
            f"answer for {file.name} contradicts itself: bytes {first}-{last}, Content-Length {length}",
        )


def content_range(headers: Mapping[str, str]) -> tuple[int, int, int | None] | None:
    """First byte, last byte and size of the file (None: not told) of a 206; None if Content-Range is not usable."""
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if match is None:
        return None
    first, last, total = whole(match[1]), whole(match[2]), whole(match[3])
    if first is None or last is None or (total is None and match[3] != "*"):
        return None
    return first, last, total
