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

    @field_validator("extra_routes")
    @classmethod
    def _routes(cls, routes: list[str]) -> list[str]:
        for route in routes:
            method, colon, path = route.partition(":")
            if not colon or not method.isupper() or not path.startswith("/"):
                raise ValueError(f"routes as METHOD:/path, such as POST:/v1/responses, not {route}")
        return routes
