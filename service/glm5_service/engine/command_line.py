"""Settings, model facts and profile -> the engine's argv and environment. Pure: starts and reads nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pydantic import SecretStr

from glm5_service.api.policy import PUBLIC_ROUTES, VARIABLE, BodyLimits, ConnectionLimits, GatePolicy
from glm5_service.contracts.command_lines import SERVE_MODULE
from glm5_service.contracts.environment import EngineEnvironment
from glm5_service.engine import arguments
from glm5_service.host.vllm_build import Profile
from glm5_service.model.inspection import ModelFacts
from glm5_service.settings import Settings
from glm5_service.settings.api import ApiSettings
from glm5_service.settings.schema import leaves

# nothing in a serving pod may ask the network for a model, a tokenizer or permission to run
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class EngineCommand:
    """How the engine is started; `environment` and `secrets` (never shown) add to the service's own."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    secrets: Mapping[str, str]


# by which vLLM is given its key
KEY_VARIABLE = "VLLM_API_KEY"
GATE = "glm5_service.api.gate.Gate"
# the plugin hands it to vLLM's HTTP server, which has no flag for it
PROTOCOL = "glm5_service.api.connections:ApiProtocol"


def engine_command(
    settings: Settings,
    model: ModelFacts,
    profile: Profile,
    backend: str | None,
    token: str,
    caches: Mapping[str, str],
) -> EngineCommand:
    """The command that serves `model`: the plugin's entry, then what would follow `vllm serve`.

    `backend` is the attention backend that is expected; `token` opens the API's inner routes to the parts of this pod;
    `caches` says where compiled kernels go.
    """
    engine, gate = settings.engine, settings.api.gate
    argv = [sys.executable, "-m", SERVE_MODULE, str(model.path)]
    for flag, value in _all_flags(settings, profile, backend).items():
        if value is not None:
            argv += [flag, str(value)]
    if engine.enforce_eager if engine.enforce_eager is not None else profile == "cpu":
        argv.append("--enforce-eager")
    if gate:
        argv.append("--disable-uvicorn-access-log")  # the gate's own line carries the request id
    if engine.tool_call_parser:
        argv.append("--enable-auto-tool-choice")
    told = EngineEnvironment.of(
        settings.run_dir,
        settings.cache_dir,
        # preflight settles auto; where it did not look, what needs no more memory is right
        "memory" if engine.weights == "auto" else engine.weights,
        PROTOCOL if gate else None,
        settings.api.grammar_seconds,
        settings.model.release,
    )
    environment = {**_QUIET, **caches, **told.variables(), "PYTHONUNBUFFERED": "1"}
    if profile == "cpu":
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(engine.cpu_kv_cache_gib)
    secrets = {KEY_VARIABLE: engine.api_key.get_secret_value()} if engine.api_key else {}
    if gate:
        secrets[VARIABLE] = _policy(settings.api, token).to_json()
    return EngineCommand((*argv, *engine.extra_args), environment, secrets)


def _all_flags(settings: Settings, profile: Profile, backend: str | None) -> dict[str, object | None]:
    """Every flag with its value; None leaves it out."""
    engine = settings.engine
    # where vLLM has a backend of its own it would take that one, and the expectation would never be met; it refuses to be
    # asked twice
    is_asked = arguments.keys(engine.extra_args, arguments.ATTENTION).get("backend") is not None
    asked = engine.attention_backend or (backend if profile == "cuda" and not is_asked else None)
    has_backend = arguments.STRUCTURED in arguments.flags(engine.extra_args)
    flags = _flags(settings) | {
        "--attention-backend": asked,
        "--hf-config-path": settings.model.hf_folder,
        # by default the first request that the usual one can't serve chooses another for all that follow
        "--structured-outputs-config.backend": None if has_backend else "xgrammar",
        "--middleware": GATE if settings.api.gate else None,
    }
    if profile == "cpu":
        flags["--gpu-memory-utilization"] = None
    return flags


def _flags(settings: Settings) -> dict[str, object | None]:
    """Every setting that becomes a flag with its value; a secret goes by environment, and a switch has no value."""
    found: dict[str, object | None] = {}
    for path, leaf in leaves().items():
        value = reduce(getattr, path.split("."), settings)
        if leaf.flag and not isinstance(value, bool | SecretStr):
            found[leaf.flag] = value
    return found


def _policy(api: ApiSettings, token: str) -> GatePolicy:
    return GatePolicy(
        token,
        routes=PUBLIC_ROUTES + tuple(api.extra_routes),
        max_body_bytes=api.max_body_bytes,
        upload_seconds=api.upload_seconds,
        max_bodies_bytes=api.max_bodies_bytes,
        body=BodyLimits(max_elements=api.max_elements, max_messages=api.max_messages),
        connection=ConnectionLimits(head_seconds=api.head_seconds, connections=api.max_connections),
    )
