"""Which requests the gate lets through: allow-list, limits, and how they travel to the engine process. Data only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace

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


# lists of a request, by the name of their key wherever it stands, and how many entries each may have
# (those of a conversation are in the settings)
CONVERSATION_LISTS = frozenset({"messages", "input", "content"})
LIST_ITEMS = {
    "prompt": 128,
    "tools": 512,
    "functions": 512,
    "tool_calls": 512,
    "stop": 64,
    "stop_sequences": 64,
    "stop_token_ids": 1024,
    "bad_words": 1024,
    "allowed_token_ids": 262_144,
    "choice": 1000,
    "guided_choice": 1000,
    "structures": 128,
    "triggers": 128,
    "enum": 1000,
}
# objects of a request by the name of their key, and how many entries each may have
OBJECT_ITEMS = {"logit_bias": 1024, "metadata": 64}
# every other list or object
OTHER_ITEMS = 5000
# lists of token ids are bounded by `max_numbers` only
TOKEN_LISTS = frozenset({"prompt", "tokens", "input", "allowed_token_ids", "prompt_token_ids"})
# answers that one request may ask for: of one prompt, and of all its prompts together
MAX_ANSWERS, MAX_SEQUENCES = 128, 1024
# keys whose value is a JSON schema or a grammar, wherever they stand
SCHEMA_KEYS = frozenset({"schema", "json", "guided_json"})
TOOL_SCHEMA_KEYS = frozenset({"parameters", "input_schema"})
GRAMMAR_KEYS = frozenset({"grammar", "guided_grammar", "definition", "structural_tag"})
REGEX_KEYS = frozenset({"regex", "guided_regex", "pattern"})
# keywords of a schema that list alternatives, and those whose number repeats a part of the grammar
ALTERNATIVES = ("anyOf", "oneOf", "allOf", "prefixItems")
REPEATS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


@dataclass(frozen=True)
class BodyLimits:
    """How much JSON a request may hold: strings and containers, other values, levels of nesting, messages or parts."""

    max_elements: int = 100_000
    max_numbers: int = 2_000_000
    max_depth: int = 64
    max_messages: int = 4096


@dataclass(frozen=True)
class SchemaLimits:
    """How large what constrains an answer may be; the sums are over all schemas of a request.

    Each keeps what compiles in about a second with a vocabulary of 151,552 tokens; what does not, though it is within
    them, ends at the time limit of a compilation.
    """

    max_bytes: int = 262_144
    max_depth: int = 32
    max_properties: int = 1000
    max_enum_entries: int = 1000
    max_alternatives: int = 1000
    max_repeats: int = 20_000
    max_regex_characters: int = 2048
    max_grammar_characters: int = 65_536

    def of_tools(self) -> SchemaLimits:
        """Those of all tools together: an agent has hundreds, and they are compiled only where a call is forced."""
        many = {
            name: 10 * getattr(self, name)
            for name in ("max_properties", "max_enum_entries", "max_alternatives")
        }
        return replace(self, **many, max_repeats=10**12)


@dataclass(frozen=True)
class ConnectionLimits:
    """What a connection may cost before its request is whole."""

    head_bytes: int = 65_536
    head_count: int = 128
    head_seconds: float = 10
    idle_seconds: float = 75
    connections: int = 4096


# the servers of probes and of metrics have few clients, and these send little
SMALL_SERVER = ConnectionLimits(
    head_bytes=16_384, head_count=64, head_seconds=5, idle_seconds=75, connections=256
)


@dataclass(frozen=True)
class GatePolicy:
    """What the gate enforces; `token` opens every route to the pod's own parts.

    A body up to `small_body_bytes` is admitted even where all bodies together are at their limit.
    """

    token: str
    routes: tuple[str, ...] = PUBLIC_ROUTES
    max_body_bytes: int = 16 * 1024 * 1024
    upload_seconds: float = 120
    max_bodies_bytes: int = 512 * 1024 * 1024
    small_body_bytes: int = 64 * 1024
    # a body of the largest size and what may follow it
    drain_bytes: int = 32 * 1024 * 1024
    drain_seconds: float = 5
    body: BodyLimits = field(default_factory=BodyLimits)
    schema: SchemaLimits = field(default_factory=SchemaLimits)
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)

    def to_json(self) -> str:
        """The value of VARIABLE."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GatePolicy:
        """The policy that `to_json` wrote."""
        fields = json.loads(text)
        parts = {
            "routes": tuple(fields["routes"]),
            "body": BodyLimits(**fields["body"]),
            "schema": SchemaLimits(**fields["schema"]),
            "connection": ConnectionLimits(**fields["connection"]),
        }
        return cls(**fields | parts)

    def reads_json(self, path: str) -> bool:
        """Whether the route takes JSON whatever its client says."""
        return f"POST:{path}" in PUBLIC_ROUTES

    def allows(self, method: str, path: str) -> bool:
        """Whether a request from outside may pass; OPTIONS is allowed where any method is (CORS)."""
        wanted = {path, f"{path.rsplit('/', 1)[0]}/*"}
        for route in self.routes:
            allowed, _, pattern = route.partition(":")
            if pattern in wanted and method in (allowed, "OPTIONS"):
                return True
        return False
