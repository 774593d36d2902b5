"""Which requests the gate lets through: allow-list, limits, and how they travel to the engine process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

# environment variable by which the supervisor hands the policy to the engine's API server
VARIABLE = "GLM5_API_GATE"
# header by which the supervisor and the sidecar prove that they are of this pod
INTERNAL_HEADER = "x-glm5-internal"
REQUEST_ID_HEADER = "x-request-id"
REQUESTS_PATH = "/_glm5/requests"
DRAIN_PATH = "/_glm5/drain"

# everything an OpenAI client needs, and the liveness of the server; a path ending in /* takes one more part
PUBLIC_ROUTES = (
    "POST:/v1/chat/completions",
    "POST:/v1/completions",
    "GET:/v1/models",
    "GET:/v1/models/*",
    "GET:/health",
)


@dataclass(frozen=True)
class GatePolicy:
    """What the gate enforces; `token` opens every route to the pod's own parts."""

    token: str
    routes: tuple[str, ...] = PUBLIC_ROUTES
    max_body_bytes: int = 16 * 1024 * 1024
    upload_seconds: float = 120

    def to_json(self) -> str:
        """The value of VARIABLE."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GatePolicy:
        """The policy that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**fields | {"routes": tuple(fields["routes"])})

    def allows(self, method: str, path: str) -> bool:
        """Whether a request from outside may pass; OPTIONS is allowed where any method is (CORS)."""
        wanted = {path, f"{path.rsplit('/', 1)[0]}/*"}
        for route in self.routes:
            allowed, _, pattern = route.partition(":")
            if pattern in wanted and method in (allowed, "OPTIONS"):
                return True
        return False
