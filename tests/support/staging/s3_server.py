"""The part of the S3 API that staging uses, over a fault server: listing, HEAD and presigned GET, for one access key."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.staging.fault_server import FaultServer, _Handler

BUCKET = "models"
_ERROR = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


class S3Server(FaultServer):
    """One bucket with the files of `root`. Whoever signs with another key than `key` is told that his token expired."""

    def __init__(self, root: Path, *, key: str) -> None:
        super().__init__(root)
        self.key = key

    def plan(self, path: str) -> Path | None:
        return super().plan(path.removeprefix(f"/{BUCKET}"))

    def answer_api(self, handler: _Handler, path: str) -> bool:
        parts = urlsplit(handler.path)
        query = parse_qs(parts.query)
        kind = "head" if handler.command == "HEAD" else "list" if "list-type" in query else "get"
        # the faults of listing and HEAD; those of GET act where the bytes are sent
        fault = self.next_fault(kind) if kind != "get" else None
        if fault is not None and fault.action is not None:
            fault.action()
        signed = query.get("X-Amz-Credential", [handler.headers.get("Authorization", "").partition("=")[2]])
        file = self.plan(path)
        if signed[0].partition("/")[0] != self.key:
            handler.plain(400, body=b"" if kind == "head" else _ERROR.encode())
        elif kind == "list":
            handler.plain(200, {"Content-Type": "application/xml"}, self._listing().encode())
        elif kind == "head" and file is not None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(file.stat().st_size))
            handler.send_header("ETag", self.etag(file))
            handler.end_headers()
        else:
            return False
        return True

    def etag(self, file: Path) -> str:
        return f'"{hashlib.md5(file.read_bytes()).hexdigest()}"'

    def _listing(self) -> str:
        items = "".join(
            f"<Contents><Key>{escape(unquote(path.name))}</Key><Size>{path.stat().st_size}</Size></Contents>"
            for path in sorted(self.root.iterdir())
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
