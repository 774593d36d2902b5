"""hf://org/repo[@revision][/folder, file or pattern]: one request to the Hub API gives sizes and digests.

Not huggingface_hub (2.4): this is one JSON document, and that client limits neither the size of an answer nor the total
time of a dripping one. Tests compare both clients. Not hf_xet (1.8): its sessions take neither a certificate authority
nor a proxy, and the Hub serves the same bytes by HTTP ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import quote

from glm5_service.errors import SettingsError
from glm5_service.foreign import parse_json, plain, whole
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import SPLIT_NAME, RemoteFile, stated
from glm5_service.staging.sources.base import HttpSource
from glm5_service.staging.sources.http.client import Target
from glm5_service.staging.sources.secrets import bearer


@dataclass(frozen=True)
class HubAddress:
    """The parts of an hf:// address."""

    repo: str
    revision: str
    path: str


def parse_address(uri: str) -> HubAddress:
    """Take an hf:// address apart; `@` ends the repository, a revision with slashes is written with %2F."""
    parts = uri.removeprefix("hf://").split("/", 2)
    if len(parts) < 2 or not all(parts[:2]):
        raise SettingsError("Hub address", uri, expected="hf://org/repo[@revision][/folder or pattern]")
    name, _, revision = parts[1].partition("@")
    return HubAddress(f"{parts[0]}/{name}", revision or "main", parts[2].strip("/") if len(parts) > 2 else "")


class HubSource(HttpSource):
    """A repository of a Hub, at the commit its revision pointed to when it was listed."""

    def __init__(self, uri: str, settings: StagingSettings) -> None:
        super().__init__(settings)
        self._address = parse_address(uri)
        self._endpoint = settings.hub.endpoint.rstrip("/")
        self._commit = self._address.revision
        self.label = uri

    def entries(self) -> list[RemoteFile]:
        """Files below the folder (or matching the pattern), and those of the root for tokenizer and config."""
        address = self._address
        revision = address.revision if "%" in address.revision else quote(address.revision, safe="")
        url = f"{self._endpoint}/api/models/{quote(address.repo)}/revision/{revision}?blobs=true"
        response = self.http.send_authorised("GET", lambda _: self._target(url))
        data = self.http.read_all(response, f"the list of {self.label}")
        try:
            answer = parse_json(data)
            self._commit = str(stated("git-sha1", answer["sha"]).hex)
            files = [self._entry(item) for item in answer["siblings"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StagingError(
                Reason.REFUSED,
                f"answer of the Hub API at {self._endpoint}",
                error,
                expected="a repository's file list",
            ) from error
        return [file for file in files if self._is_asked_for(file.key)]

    def locate(self, file: RemoteFile, fresh: bool) -> Target:
        return self._target(
            f"{self._endpoint}/{quote(self._address.repo)}/resolve/{self._commit}/{quote(file.key)}"
        )

    def _target(self, url: str) -> Target:
        # the token file is read for every request, so a rotated token is seen without asking for `fresh`
        return Target(url, bearer(self.settings.hub.token))

    def _is_asked_for(self, path: str) -> bool:
        wanted = self._address.path
        if not wanted or ("/" not in path and not path.endswith(".gguf")):
            return True
        if match := SPLIT_NAME.match(wanted):
            # one split stands for its set
            wanted = f"{match['stem']}-?????-of-{match['count']}.gguf"
        return fnmatchcase(path, wanted) or path.startswith(f"{wanted}/")

    @staticmethod
    def _entry(item: dict[str, object]) -> RemoteFile:
        path, lfs = plain(item["rfilename"]), item.get("lfs")
        holder = lfs if isinstance(lfs, dict) else item
        size, blob = whole(holder.get("size")), item.get("blobId")
        if path is None or size is None:
            raise ValueError(f"no name with a size: {item.get('rfilename')!r}, {holder.get('size')!r}")
        if isinstance(lfs, dict):
            return RemoteFile(path, size, path, stated("sha256", lfs["sha256"]))
        return RemoteFile(path, size, path, stated("git-sha1", blob) if blob else None)
