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

from glm5_service.staging.reasons import Reason, SourceChanged, StagingError, Transient
from glm5_service.staging.records import RemoteFile, opaque

CONTENT_RANGE = re.compile(r"^bytes (\d+)-(\d+)/(\d+|\*)$")
CREDENTIALS_REFUSED = frozenset({401, 403})
RETRIED_CLIENT_ERRORS = {408: Reason.UNREACHABLE, 425: Reason.UNREACHABLE, 429: Reason.THROTTLED}


def public_url(url: str) -> str:
    """The address without what may be secret: user, password, query, fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def status_fault(
    response: BaseHTTPResponse, url: str, credentials_refused: frozenset[int] = CREDENTIALS_REFUSED
) -> Exception:
    """What a status other than success stands for."""
    status, where = response.status, public_url(url)
    said = response.headers.get("X-Error-Message", "")[:200]
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
