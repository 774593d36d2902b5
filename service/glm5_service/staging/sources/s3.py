"""s3://bucket/prefix: boto3 lists the objects; presigned addresses are read by the HTTP client of all sources.

The digest of an object is its SHA-256 checksum, else what its ETag is the MD5 of.
"""

from __future__ import annotations

import base64
import os
import queue
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    MetadataRetrievalError,
    NoCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as NoConnection
from botocore.parsers import ResponseParserError
from urllib3 import HTTPHeaderDict

from glm5_service.errors import SettingsError
from glm5_service.foreign import clean, whole
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import Reason, StagingError, Transient
from glm5_service.staging.records import Digest, RemoteFile, belongs, stated
from glm5_service.staging.sources.base import HttpSource
from glm5_service.staging.sources.http.answers import CREDENTIALS_REFUSED, retry_after
from glm5_service.staging.sources.http.client import Target
from glm5_service.staging.sources.secrets import environment_keys

URL_LIFETIME_SECONDS = 3600
# a question may be several requests: pages of a list, and where the keys come from
WAITS_EACH = 4
# codes of a 400; the answer to HEAD has no body, so there the code is the bare status
CREDENTIALS_OVER = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "400"})
# what stands for the way to S3, or to where the keys come from, and may be gone in a moment
UNREACHABLE = (HTTPClientError, NoConnection, MetadataRetrievalError, CredentialRetrievalError)
_ETAG = re.compile(r'^"(?P<hex>[0-9a-f]{32})(-(?P<parts>[0-9]{1,5}))?"$')


class S3Source(HttpSource):
    """Objects under a prefix of a bucket. `key` is the object's key."""

    # a session token that is over is a 400 here
    credentials_refused = CREDENTIALS_REFUSED | {400}

    def __init__(self, uri: str, settings: StagingSettings) -> None:
        super().__init__(settings)
        # as written: # and ? are characters of a key like others
        self._bucket, _, self._prefix = uri.removeprefix("s3://").partition("/")
        self.label = uri
        if not self._bucket:
            raise SettingsError("S3 address", uri, expected="s3://bucket/prefix")
        # made for the first question: where keys come from is asked then
        self._client: Any = None

    def entries(self) -> list[RemoteFile]:
        """What lies under the prefix; a GGUF stands for its set and what lies beside it."""
        parent, slash, name = self._prefix.rpartition("/")
        base = parent + slash
        if name.endswith(".gguf"):
            beside = self._ask(lambda: self._contents(Prefix=base, Delimiter="/"))
            return [file for file in self._files(beside, base) if belongs(file.name, name)]
        files = self._files(self._ask(lambda: self._contents(Prefix=self._prefix)), base)
        # a prefix without its slash names a folder; a name that merely starts alike is another model
        folder = f"{self._prefix.removeprefix(base)}/"
        if any(file.name.startswith(folder) for file in files):
            return [replace(f, name=f.name.removeprefix(folder)) for f in files if f.name.startswith(folder)]
        # a folder whose name only begins like the prefix is another model
        return [file for file in files if not name or "/" not in file.name]

    def _contents(self, **which: str) -> list[dict[str, Any]]:
        pages = self._connected().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, **which)
        return [item for page in pages for item in page.get("Contents", [])]

    @staticmethod
    def _files(found: list[dict[str, Any]], base: str) -> list[RemoteFile]:
        """Objects by their names below `base`; what ends in a slash only marks a folder."""
        return [
            RemoteFile(item["Key"].removeprefix(base), item["Size"], item["Key"])
            for item in found
            if not item["Key"].endswith("/")
        ]

    def complete(self, file: RemoteFile) -> RemoteFile:
        head = self._head(file, ChecksumMode="ENABLED")
        digest = file.digest or _checksum(head) or self._etag_digest(file, head)
        return replace(file, size=self._size(file, head), digest=digest, etag=head.get("ETag"))

    def locate(self, file: RemoteFile, fresh: bool) -> Target:
        if fresh:
            self._client = None
        params = {"Bucket": self._bucket, "Key": file.key}
        return Target(
            self._ask(
                lambda: str(
                    self._connected().generate_presigned_url(
                        "get_object", Params=params, ExpiresIn=URL_LIFETIME_SECONDS
                    )
                )
            )
        )

    def _etag_digest(self, file: RemoteFile, head: dict[str, Any]) -> Digest | None:
        match = _ETAG.fullmatch(head.get("ETag", ""))
        is_encrypted = head.get("ServerSideEncryption", "").startswith("aws:kms")
        if match is None or is_encrypted or head.get("SSECustomerAlgorithm"):
            return None
        if match["parts"] is None:
            return Digest("md5", match["hex"])
        part = self._size(file, self._head(file, PartNumber=1))
        if part == 0 or -(-self._size(file, head) // part) != int(match["parts"]):
            return None
        return Digest("s3-parts", f"{match['hex']}-{match['parts']}", part)

    def _size(self, file: RemoteFile, head: dict[str, Any]) -> int:
        size = whole(head.get("ContentLength"))
        if size is None:
            raise StagingError(
                Reason.REFUSED,
                f"size of {file.name}",
                head.get("ContentLength"),
                expected="a number of bytes",
            )
        return size

    def _head(self, file: RemoteFile, **more: object) -> dict[str, Any]:
        return dict(
            self._ask(lambda: self._connected().head_object(Bucket=self._bucket, Key=file.key, **more))
        )

    def _connected(self) -> Any:
        """The client, to be called within a question: making it may fail for a moment as well."""
        client = self._client
        if client is None:
            client = self._client = self._connect()
        return client

    def _connect(self) -> Any:
        s3, http, settings = self.settings.s3, self.settings.http, self.settings
        options: dict[str, object] = {"s3": {"addressing_style": "path"}} if s3.endpoint else {}
        if s3.anonymous:
            options["signature_version"] = UNSIGNED
        elif s3.endpoint:
            options["signature_version"] = "s3v4"
        config = Config(
            connect_timeout=settings.connect_seconds,
            read_timeout=settings.stall_seconds,
            retries={"total_max_attempts": 1},
            # without the setting botocore reads the environment, as proxies.py does
            proxies={"http": http.proxy, "https": http.proxy} if http.proxy else None,
            **options,  # type: ignore[arg-type]
        )
        # a session of its own reads credential files again, which is the point after a refusal
        return boto3.session.Session(**environment_keys(os.environ)).client(
            "s3",
            endpoint_url=s3.endpoint,
            region_name=s3.region or ("us-east-1" if s3.endpoint else None),
            verify=str(http.ca_file) if http.ca_file else None,
            config=config,
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer; credentials that are refused are read anew once."""
        try:
            return self._ask_once(question)
        except StagingError as error:
            if error.reason is not Reason.UNAUTHORIZED:
                raise
        self._client = None
        return self._ask_once(question)

    def _ask_once(self, question: Callable[[], Any]) -> Any:
        where = f"s3://{self._bucket}"
        try:
            return _within(WAITS_EACH * self.settings.stall_seconds, question, where)
        except NoCredentialsError as error:
            raise StagingError(Reason.UNAUTHORIZED, "no S3 credentials for", where) from error
        except ClientError as error:
            answer = error.response.get("ResponseMetadata", {})
            status, code = (
                answer.get("HTTPStatusCode", 0),
                clean(error.response.get("Error", {}).get("Code", ""), 80),
            )
            wait = retry_after(HTTPHeaderDict(answer.get("HTTPHeaders", {})))
            raise _refusal(status, code, f"{status} {code} from {where}", wait) from error
        except UNREACHABLE as error:
            if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise StagingError(Reason.UNTRUSTED, "certificate is not trusted", where) from error
            raise Transient(Reason.UNREACHABLE, f"{type(error).__name__} from {where}") from error
        except (BotoCoreError, ResponseParserError, ValueError) as error:
            raise StagingError(Reason.REFUSED, f"S3 client of {where}", type(error).__name__) from error


def _within(seconds: float, question: Callable[[], Any], where: str) -> Any:
    """The answer, or Transient(STALLED): botocore's own time-out begins anew with each byte that drips in."""
    answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=ask, name="s3", daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise Transient(Reason.STALLED, f"no answer for {seconds:.0f} s: {where}") from None
    if error is not None:
        raise error
    return answer


def _checksum(head: dict[str, Any]) -> Digest | None:
    value = head.get("ChecksumSHA256")
    if not value or "-" in value or head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    try:
        return stated("sha256", base64.b64decode(value).hex())
    except ValueError:
        return None


def _refusal(status: int, code: str, value: str, wait: float | None) -> Exception:
    if status in CREDENTIALS_REFUSED or code in CREDENTIALS_OVER:
        return StagingError(Reason.UNAUTHORIZED, "source refused the credentials", value)
    if status == 404:
        return StagingError(Reason.NOT_FOUND, "source has no such bucket or object", value)
    if status == 429 or status >= 500:
        return Transient(Reason.THROTTLED if status in (429, 503) else Reason.UNREACHABLE, value, wait)
    return StagingError(Reason.REFUSED, "source refused the request", value)
