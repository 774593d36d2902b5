"""https://host/folder/file.gguf or https://host/folder/: a plain web server.

A web server lists nothing. So a file stands for all splits that its name implies, and a folder needs a SHA256SUMS file.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote, unquote, urljoin, urlsplit

from glm5_service.errors import SettingsError
from glm5_service.foreign import whole
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import SPLIT_NAME, Digest, RemoteFile
from glm5_service.staging.sources.base import SMALL_FILE_BYTES, HttpSource
from glm5_service.staging.sources.checksums import SUMS_NAME, parse_sums
from glm5_service.staging.sources.http.answers import content_range, public_url
from glm5_service.staging.sources.http.client import Target, origin
from glm5_service.staging.sources.secrets import bearer

UNKNOWN_SIZE = 0


class HttpsSource(HttpSource):
    """Files beside each other on a web server. `key` is a file's address."""

    def __init__(self, uri: str, settings: StagingSettings) -> None:
        super().__init__(settings)
        self._uri = uri
        self.label = public_url(uri)
        if not urlsplit(uri).hostname:
            raise SettingsError("source address", self.label, expected="https://host/path")

    def entries(self) -> list[RemoteFile]:
        """Splits implied by the name, and what SHA256SUMS lists; sizes come with `complete`."""
        sums = self._sums()
        names = dict.fromkeys([*self._implied(), *sums])
        if not names:
            raise StagingError(
                Reason.NOT_FOUND, f"{SUMS_NAME} in folder", self.label, expected="a list of its files"
            )
        return [
            RemoteFile(
                name,
                UNKNOWN_SIZE,
                self._address(name),
                Digest("sha256", sums[name]) if name in sums else None,
            )
            for name in names
        ]

    def complete(self, file: RemoteFile) -> RemoteFile:
        """Size and ETag, asked with a range of one byte: that also works where HEAD does not."""
        response = self.http.send_authorised(
            "GET", lambda fresh: self.locate(file, fresh), {"Range": "bytes=0-0"}, accept=(416,)
        )
        headers = response.headers
        response.close()
        if response.status == 206:
            told, found = headers.get("Content-Range"), content_range(headers)
            size = found[2] if found else None
        else:
            told = headers.get("Content-Length")
            size = whole(told) if response.status == 200 else None
        if size is None:
            raise StagingError(
                Reason.REFUSED, f"size of {file.name}", told, expected="Content-Length or Content-Range"
            )
        return replace(file, size=size, etag=headers.get("ETag") or headers.get("Last-Modified"))

    def locate(self, file: RemoteFile, fresh: bool) -> Target:
        same = origin(file.key) == origin(self._uri)
        return Target(file.key, bearer(self.settings.http.token) if same else {})

    def _implied(self) -> list[str]:
        name = unquote(urlsplit(self._uri).path.rpartition("/")[2])
        match = SPLIT_NAME.match(name)
        if match is None:
            return [name] if name else []
        return [
            f"{match['stem']}-{number:05d}-of-{match['count']}.gguf"
            for number in range(1, int(match["count"]) + 1)
        ]

    def _address(self, name: str) -> str:
        parts = urlsplit(urljoin(self._uri, quote(name)))
        # a query (a signature, a version) belongs to every file of the folder
        return parts._replace(query=urlsplit(self._uri).query).geturl()

    def _sums(self) -> dict[str, str]:
        listed = RemoteFile(SUMS_NAME, UNKNOWN_SIZE, self._address(SUMS_NAME))
        try:
            response = self.http.send_authorised("GET", lambda fresh: self.locate(listed, fresh))
        except StagingError as error:
            # stores without the right to list answer 403 for what does not exist
            if error.reason in (Reason.NOT_FOUND, Reason.UNAUTHORIZED) and self._implied():
                return {}
            raise
        data = self.http.read_all(response, f"{SUMS_NAME} of {self.label}", SMALL_FILE_BYTES)
        return parse_sums(data, self.label)
