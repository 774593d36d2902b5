"""Settings of `glm5 stage`: where the model comes from, where it goes, and how hard to try.

Values only: nothing is opened or contacted here. Next hop: `glm5_service.staging.command.run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

SCHEMES = ("hf", "https", "http", "s3", "oci", "file")

Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]


class Secret(BaseModel):
    """A secret given as a value (environment) or as a file that is read again whenever it was refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: SecretStr | None = None
    file: Path | None = None


class HubSettings(BaseModel):
    """The Hub that `hf://` speaks to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str = Field("https://huggingface.co", description="Hub API to ask; a mirror goes here.")
    token: Secret = Field(Secret(), description="Token for gated and private repositories.")


class HttpSettings(BaseModel):
    """How `https://` is spoken; `token` goes to the host of the source only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: Secret = Field(Secret(), description="Bearer token for the host of an https:// source.")
    ca_file: Path | None = Field(None, description="Certificate authorities to trust instead of the system's.")
    proxy: str | None = Field(None, description="Proxy for every HTTP source, as http://host:port.")


class S3Settings(BaseModel):
    """The S3 endpoint; keys come from the usual AWS files, environment or pod identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str | None = Field(None, description="Endpoint other than AWS, as https://host:port.")
    region: str | None = Field(None, description="Region; the AWS configuration decides when empty.")
    anonymous: bool = Field(False, description="Send unsigned requests (public buckets).")


class OciSettings(BaseModel):
    """The registry that `oci://` speaks to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    auth_file: Path | None = Field(None, description="Docker config.json with the registry's credentials.")
    plain_http: bool = Field(False, description="Speak http to the registry instead of https.")


class StagingSettings(BaseModel):
    """All settings of `glm5 stage`. Sizes are bytes, times seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(
        description="hf://org/repo[@revision][/folder or pattern], https://host/file or folder/, "
        "s3://bucket/prefix, oci://host/repository:tag or file:///path."
    )
    tokenizer_source: str | None = Field(
        None, description="Second source for tokenizer and config, when the first has only GGUF files."
    )
    target: Path = Field(description="Folder on the model volume that belongs to this model.")
    quantisation: str | None = Field(
        None, description="Which one to take where the source holds several, e.g. UD-Q4_K_XL."
    )
    architecture: str = Field("glm-dsa", description="general.architecture the GGUF must have; empty: any.")
    refresh: bool = Field(
        False, description="Ask the source for a newer revision even when a model from it is published."
    )
    require_digest: bool = Field(
        True, description="Refuse a remote file whose source states no digest; false relies on size and structure."
    )
    keep: Annotated[int, Field(ge=1)] = Field(
        1, description="Revisions left after publishing, the current one included. In-use ones stay in any case."
    )

    connections: Annotated[int, Field(ge=1, le=128)] = Field(8, description="Parallel ranged requests.")
    part_bytes: Annotated[int, Field(ge=1 << 20)] = Field(64 << 20, description="Size of one ranged request.")
    rate_limit: Bytes = Field(0, description="Bytes per second over all connections; 0: no limit.")
    connect_seconds: Seconds = Field(15.0, description="Time to reach a host.")
    stall_seconds: Seconds = Field(
        60.0, description="A connection silent, or under stall_bytes_per_second, for so long is dropped."
    )
    stall_bytes_per_second: Bytes = Field(4096, description="Slower than this counts as stalled.")
    retries: Annotated[int, Field(ge=0)] = Field(
        8, description="Attempts in a row without one new byte before giving up."
    )
    backoff_seconds: Seconds = Field(1.0, description="First pause between attempts; doubles each time.")
    backoff_max_seconds: Seconds = Field(60.0, description="Longest pause, unless Retry-After asks for more.")
    retry_after_max_seconds: Seconds = Field(600.0, description="Longest Retry-After that is obeyed.")

    headroom_bytes: Bytes = Field(1 << 30, description="Free space to leave on the volume.")
    lock_wait_seconds: Annotated[float, Field(ge=0)] = Field(
        86400.0, description="How long to wait for another stager on the same target; 0: do not wait."
    )
    lock_lease_seconds: Seconds = Field(
        90.0, description="A lock that shows no heartbeat for so long is taken over; above NFS attribute caching."
    )
    warm_limit_bytes: Bytes = Field(0, description="Most bytes that --warm reads into the page cache; 0: all.")

    hub: HubSettings = HubSettings()
    http: HttpSettings = HttpSettings()
    s3: S3Settings = S3Settings()
    oci: OciSettings = OciSettings()

    @field_validator("source", "tokenizer_source")
    @classmethod
    def _known_scheme(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in SCHEMES:
            raise ValueError(f"scheme of the source: {parts.scheme or value!r}; expected one of {', '.join(SCHEMES)}")
        if parts.password or (parts.username and parts.scheme in ("http", "https")):
            raise ValueError("credentials inside a source address; expected them in a token or auth file setting")
        return value
