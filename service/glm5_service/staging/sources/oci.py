"""oci://host/repository[:tag][@digest]: an artifact whose layers are the files, named by their title annotation.

Uses one manifest of the OCI distribution API, and a token if the registry asks for one. Not oras (0.2.43): its requests
have no time-out, a failing one sleeps up to 131 s and ignores SIGTERM, and it reads no byte ranges.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated
from urllib.parse import urlencode

from pydantic import BaseModel, Field
from urllib3.response import BaseHTTPResponse

from glm5_service.errors import SettingsError
from glm5_service.foreign import LARGEST, parse_json, plain
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.records import RemoteFile, stated
from glm5_service.staging.sources.base import HttpSource
from glm5_service.staging.sources.http.answers import public_url
from glm5_service.staging.sources.http.client import Target, origin
from glm5_service.staging.sources.secrets import registry_login

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
TITLE_KEYS = ("org.opencontainers.image.title", "org.cncf.model.filepath")
_ADDRESS = re.compile(
    r"^oci://(?P<host>[^/]+)/(?P<repo>[a-z0-9._/-]+?)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class Layer(BaseModel):
    """What is used of a layer's descriptor."""

    digest: str
    size: Annotated[int, Field(ge=0, le=LARGEST, strict=True)]
    annotations: dict[str, str] | None = None


class OciSource(HttpSource):
    """The layers of one manifest. `key` is a layer's digest."""

    def __init__(self, uri: str, settings: StagingSettings) -> None:
        super().__init__(settings)
        match = _ADDRESS.match(uri)
        if match is None:
            raise SettingsError("OCI address", uri, expected="oci://host/repository[:tag][@sha256:...]")
        self._host, self._repo = match["host"], match["repo"]
        self._tag, self._digest = match["tag"] or "latest", match["digest"]
        self._base = f"{'http' if settings.oci.plain_http else 'https'}://{self._host}"
        self._authorization: dict[str, str] = {}
        self.label = uri

    def entries(self) -> list[RemoteFile]:
        manifest = self._manifest()
        layers = manifest.get("layers")
        if not isinstance(layers, list):
            raise StagingError(
                Reason.NOT_A_MODEL, "manifest has no layers", self.label, expected="an artifact manifest"
            )
        return [self._layer(layer) for layer in layers]

    def _layer(self, layer: object) -> RemoteFile:
        """The file that a layer of the manifest is."""
        try:
            fields = Layer.model_validate(layer)
            kind, _, hex_digits = fields.digest.partition(":")
            digest = stated("sha256", hex_digits if kind == "sha256" else fields.digest)
        except ValueError as error:
            raise StagingError(
                Reason.REFUSED,
                f"layer in the manifest of {self.label}",
                layer,
                expected="sha256 digest and size",
            ) from error
        notes = fields.annotations or {}
        title = next((notes[key] for key in TITLE_KEYS if key in notes), None)
        if plain(title) is None:
            raise StagingError(
                Reason.NOT_A_MODEL, "layer without a title", title or fields.digest, expected=TITLE_KEYS[0]
            )
        return RemoteFile(str(title), fields.size, fields.digest, digest)

    def locate(self, file: RemoteFile, fresh: bool) -> Target:
        url = f"{self._base}/v2/{self._repo}/blobs/{file.key}"
        if fresh:
            self._log_in(url)
        return Target(url, self._authorization)

    def _manifest(self) -> dict[str, object]:
        url = f"{self._base}/v2/{self._repo}/manifests/{self._digest or self._tag}"

        def target(fresh: bool) -> Target:
            if fresh:
                self._log_in(url)
            return Target(url, self._authorization)

        response = self.http.send_authorised("GET", target, {"Accept": MANIFEST_TYPES})
        data = self.http.read_all(response, f"the manifest of {self.label}")
        if self._digest and self._digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
            raise StagingError(Reason.CORRUPT, "digest of the manifest", self.label, expected=self._digest)
        try:
            return dict(parse_json(data))
        except (ValueError, TypeError) as error:
            raise StagingError(Reason.REFUSED, "manifest", self.label, expected="JSON") from error

    def _log_in(self, url: str) -> None:
        """Answer the registry's challenge: basic credentials, or a token bought with them."""
        login = registry_login(self.settings.oci.auth_file, self._host)
        basic = {"Authorization": f"Basic {login}"} if login else {}
        challenge = self._challenge(url)
        scheme, fields = challenge.partition(" ")[0].lower(), dict(_CHALLENGE.findall(challenge))
        if scheme == "bearer" and fields.get("realm"):
            self._authorization = {"Authorization": f"Bearer {self._token(fields, basic)}"}
        else:
            self._authorization = basic

    def _challenge(self, url: str) -> str:
        response: BaseHTTPResponse = self.http.send(
            "GET", Target(url), {"Accept": MANIFEST_TYPES}, accept=(401,)
        )
        response.close()
        return response.headers.get("WWW-Authenticate", "")

    def _token(self, fields: dict[str, str], basic: dict[str, str]) -> str:
        realm = fields["realm"]
        if origin(realm)[0] != "https" and not self.settings.oci.plain_http:
            raise StagingError(Reason.UNTRUSTED, "token service of the registry", realm, expected="https")
        scope = fields.get("scope", f"repository:{self._repo}:pull")
        query = {"scope": scope, **({"service": fields["service"]} if "service" in fields else {})}
        response = self.http.send("GET", Target(f"{realm}?{urlencode(query)}", basic))
        answer = self.http.read_all(response, f"the token from {public_url(realm)}")
        try:
            token = parse_json(answer)
            return str(token.get("token") or token["access_token"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StagingError(
                Reason.REFUSED, "token service of the registry", realm, expected="a token"
            ) from error
