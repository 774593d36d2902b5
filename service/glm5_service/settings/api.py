"""Settings of the API's outer gate."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from glm5_service.settings.base import Seconds, Section, Words


class ApiSettings(Section):
    """What of the API can be reached from outside."""

    gate: bool = True
    """Let only listed routes through; without it every route of vLLM is open and draining cannot wait."""
    extra_routes: Words = Field(default=[])
    """Further routes to let through, each as METHOD:/path, where a path ending in /* takes one more part."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 16 * 1024 * 1024
    """Largest request body."""
    upload_seconds: Seconds = 120
    """How long a client may take to send its request; after that it is refused with 408."""

    max_bodies_bytes: Annotated[int, Field(ge=1)] = 512 * 1024 * 1024
    """Most bytes of request bodies held at the same time; beyond it, bodies over 64 KiB are refused with 503."""
    max_elements: Annotated[int, Field(ge=1)] = 100_000
    """Most strings, lists and objects in one request; token ids are not among them."""
    max_messages: Annotated[int, Field(ge=1)] = 4096
    """Most messages of a request, and parts of a message."""
    head_seconds: Seconds = 10
    """How long a client may take to send the headers of a request."""
    max_connections: Annotated[int, Field(ge=1)] = 4096
    """Most open connections; beyond it, the one that has waited longest for its headers is closed."""
    grammar_seconds: Seconds = 10
    """How long compiling the grammar of one structured output may take; after that it is refused with 400."""

    @field_validator("extra_routes")
    @classmethod
    def _routes(cls, routes: list[str]) -> list[str]:
        for route in routes:
            method, colon, path = route.partition(":")
            if not colon or not method.isupper() or not path.startswith("/"):
                raise ValueError(f"routes as METHOD:/path, such as POST:/v1/responses, not {route}")
        return routes
