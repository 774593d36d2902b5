"""Settings of `glm5 stage`: where the model comes from, where it goes, and how hard to try.

Values only: nothing is opened or contacted here. Next hop: `glm5_service.staging.command.run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator

from glm5_service.redact import register
from glm5_service.settings.base import Seconds, Section
from glm5_service.settings.secret import SecretText

SCHEMES = ("hf", "https", "http", "s3", "oci", "file")

Bytes = Annotated[int, Field(ge=0)]


def _web_address(value: str) -> str:
    try:
        parts = urlsplit(value)
        if parts.password:
            register(parts.password)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("no address of a server; expected https://host or http://host:port")
    return value


def _source_address(value: str) -> str:
    """`value` if it names a place; only https:// addresses have a query, and none has a fragment."""
    scheme, mark, rest = value.partition("://")
    if not mark or scheme not in SCHEMES:
        raise ValueError(
            f"scheme {scheme if mark else value!r} is not known; expected one of {', '.join(SCHEMES)}"
        )
    if not value.isprintable():
        raise ValueError("the address holds characters that cannot be printed")
    authority = rest.partition("/")[0]
    if "@" in authority:
        raise ValueError("the address holds credentials; expected them in a token or auth_file setting")
    if scheme == "file" and authority not in ("", "localhost"):
        raise ValueError(f"file:// names host {authority!r}; expected file:///path on a mounted volume")
    if scheme in ("http", "https"):
        _web_address(value)
        if "#" in value:
            raise ValueError("a server never sees what is behind #; expected %23 in its place")
    if scheme == "oci":
        _web_address(f"https://{authority}")
    return value


WebAddress = Annotated[str, AfterValidator(_web_address)]


class Secret(Section):
    """A secret: a value (from the environment) or a file, read again whenever the secret was refused."""

    value: SecretText | None = None
    """The secret itself; meant for the environment, not for a file in version control."""
    file: Path | None = None
    """File that holds the secret."""


class HubSettings(Section):
    """The Hub that hf:// speaks to."""

    endpoint: WebAddress = "https://huggingface.co"
    """Hub to ask; a mirror goes here."""
    token: Secret = Secret()
    """Token for gated and private repositories."""


class HttpSettings(Section):
    """How HTTP sources are reached."""

    token: Secret = Secret()
    """Bearer token for an https:// source; sent to the host of the source only."""
    ca_file: Path | None = None
    """Certificate authorities to trust instead of the system's."""
    proxy: WebAddress | None = None
    """Proxy for every request to a source, as http://host:port. Unset, HTTP_PROXY, HTTPS_PROXY and NO_PROXY hold."""


class S3Settings(Section):
    """The S3 that s3:// speaks to; keys come from the usual AWS files, environment or pod identity."""

    endpoint: WebAddress | None = None
    """Endpoint other than AWS, as https://host:port."""
    region: str | None = None
    """Region; unset leaves it to the AWS configuration."""
    anonymous: bool = False
    """Send unsigned requests (public buckets)."""


class OciSettings(Section):
    """The registry that oci:// speaks to."""

    auth_file: Path | None = None
    """Docker config.json with the registry's credentials."""
    plain_http: bool = False
    """Speak http to the registry instead of https."""


class StagingSettings(Section):
    """Where the model comes from, where it goes, and how hard `glm5 stage` tries."""

    source: str | None = None
    """hf://org/repo[@revision][/folder or pattern], https://host/file or folder/, s3://bucket/prefix,
    oci://host/repository:tag or file:///path."""
    tokenizer_source: str | None = None
    """Second source, for tokenizer and config, if the first has only GGUF files."""
    target: Path = Path("/models/glm-5")
    """Folder on the model volume that belongs to this model."""
    quantisation: str | None = None
    """Quantisation to take if the source holds several, e.g. UD-Q4_K_XL. The exact label wins."""
    architecture: str = "glm-dsa"
    """general.architecture that the GGUF must have. Empty accepts any."""
    refresh: bool = False
    """Look for a newer revision at the source even if a model from it is published."""
    require_digest: bool = True
    """Refuse a remote file whose source states no digest. If false, only size and structure are checked."""
    aside: bool = False
    """Publish without making the new revision current, and remove none. The next run makes it current."""
    keep: Annotated[int, Field(ge=1)] = 1
    """Revisions kept after publishing, including the current one. Revisions in use always stay."""

    connections: Annotated[int, Field(ge=1, le=128)] = 8
    """Parallel ranged requests."""
    part_bytes: Annotated[int, Field(ge=1 << 20)] = 64 << 20
    """Bytes of one ranged request."""
    rate_limit: Bytes = 0
    """Bytes per second over all connections. 0 means no limit."""
    connect_seconds: Seconds = 15
    """Time to reach a host."""
    stall_seconds: Seconds = 60
    """Seconds after which a connection is dropped if it is silent or slower than stall_bytes_per_second."""
    stall_bytes_per_second: Bytes = 4096
    """Slower than this counts as stalled."""
    retries: Annotated[int, Field(ge=0)] = 8
    """Attempts in a row without a new byte before staging fails."""
    backoff_seconds: Seconds = 1
    """First pause between attempts. It doubles each time."""
    backoff_max_seconds: Seconds = 60
    """Longest pause, unless the server asks for more."""
    retry_after_max_seconds: Seconds = 600
    """Longest wait that a server may ask for."""

    headroom_bytes: Bytes = 1 << 30
    """Free space to leave on the volume."""
    lock_wait_seconds: Annotated[float, Field(ge=0)] = 86400
    """Seconds to wait for another stager of the same target. 0 does not wait."""
    lock_lease_seconds: Seconds = 90
    """Seconds without a heartbeat after which a lock is taken over. Must be longer than NFS caches attributes."""
    warm_limit_bytes: Bytes = 0
    """Most bytes that --warm reads into the page cache. 0 means the whole model."""

    termination_log: Path = Path("/dev/termination-log")
    """File that gets the reason of a failure, written only if it exists (the kubelet makes it)."""

    hub: HubSettings = HubSettings()
    http: HttpSettings = HttpSettings()
    s3: S3Settings = S3Settings()
    oci: OciSettings = OciSettings()

    @field_validator("source", "tokenizer_source")
    @classmethod
    def _known_scheme(cls, value: str | None) -> str | None:
        if value is None:
            return None
        return _source_address(value)
