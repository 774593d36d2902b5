"""Every setting of `glm5`: name, type, default and meaning. Declares, reads nothing; `load` fills it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from glm5_service.settings.api import ApiSettings
from glm5_service.settings.base import Port, Seconds, Section, Words
from glm5_service.settings.flags import ALIASES, flag
from glm5_service.settings.operation import DrainSettings, HealthSettings, PreflightSettings, SidecarSettings
from glm5_service.settings.secret import SecretText, refuse_secret_flags
from glm5_service.settings.staging import StagingSettings


class ModelSettings(Section):
    """Which model is served."""

    path: Path | None = None
    """GGUF file, any file of a split set, folder with one set, or Hugging Face folder."""
    hf_folder: Annotated[Path | None, flag("--tokenizer")] = None
    """Folder with config.json and the tokenizer. Unset, both are built from the GGUF's metadata."""
    chat_template: Annotated[Path | None, flag("--chat-template")] = None
    """Jinja file to use instead of the model's chat template."""
    release: Literal["5", "5.1", "5.2", "5.3"] | None = None
    """Which GLM-5 a GGUF is, where the file contradicts itself. Unset, the file decides."""


class EngineSettings(Section):
    """What the engine is started with."""

    profile: Literal["auto", "cpu", "cuda"] = "auto"
    """Hardware profile. auto follows the installed vLLM."""
    image: str | None = None
    """Digest of the engine's image. Compiled kernels are cached per digest; unset, per installed versions."""
    host: Annotated[str, flag("--host")] = "0.0.0.0"
    """Address on which the API listens."""
    port: Annotated[Port, flag("--port")] = 8000
    """Port of the API."""
    served_model_name: Annotated[str, flag("--served-model-name")] = "glm-5"
    """Model name that clients send."""
    dtype: Annotated[Literal["auto", "float16", "bfloat16", "float32"], flag("--dtype")] = "auto"
    """Data type of activations."""
    max_model_len: Annotated[Annotated[int, Field(ge=1)] | None, flag("--max-model-len")] = None
    """Longest context in tokens. Unset, the model's own limit."""
    max_num_seqs: Annotated[int, Field(ge=1), flag("--max-num-seqs")] = 16
    """Maximum number of requests that run at once."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), flag("--gpu-memory-utilization")] = 0.92
    """Fraction of each GPU's memory for the engine. The cpu profile ignores it."""
    tensor_parallel_size: Annotated[int, Field(ge=1), flag("--tensor-parallel-size")] = 1
    """Number of GPUs for the model."""
    kv_cache_dtype: Annotated[str, flag("--kv-cache-dtype")] = "auto"
    """Data type of the KV cache, by vLLM's name."""
    attention_backend: Annotated[str | None, flag("--attention-backend")] = None
    """Attention backend to request from vLLM. Unset, health.expected_backend on cuda and none on cpu."""
    weights: Literal["auto", "speed", "memory"] = "auto"
    """Hold dense Q8_0 and Q6_K weights as floats (speed) or as in the file (memory). auto takes speed if it fits."""
    enforce_eager: Annotated[bool | None, flag("--enforce-eager")] = None
    """Run without compilation and CUDA graphs. Unset, true on the cpu profile and false on cuda."""
    cpu_kv_cache_gib: Annotated[int, Field(ge=1)] = 1
    """Size of the KV cache on the cpu profile, in GiB."""
    api_key: Annotated[SecretText | None, flag("--api-key")] = None
    """Key that clients must send. Unset, the API needs no key. vLLM gets it as an environment variable."""
    tool_call_parser: Annotated[str | None, flag("--tool-call-parser")] = None
    """Parser of tool calls, by vLLM's name (GLM-5: glm47). Unset, automatic tool choice is off."""
    reasoning_parser: Annotated[str | None, flag("--reasoning-parser")] = None
    """Parser of reasoning blocks, by vLLM's name (GLM-5: glm45)."""
    stop_timeout_seconds: Seconds = 30
    """Seconds that an engine without requests may take to stop before it is killed."""
    extra_args: Annotated[Words, BeforeValidator(refuse_secret_flags)] = Field(
        default=[], json_schema_extra={"aliases": dict(ALIASES)}
    )
    """Further arguments for `vllm serve`. A string is split as a shell would split it. Secrets are refused."""


class LogSettings(Section):
    """The log of the command itself. vLLM's log passes through."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level to log."""


class Settings(Section):
    """All settings. The variable of a setting is GLM5_, then its path in capitals with __ between the parts."""

    run_dir: Path = Path("/tmp/glm5")
    """Folder that the containers of a pod share: engine.json, staging.json, attention/rank-N.json."""
    cache_dir: Path = Field(default_factory=lambda: Path("~/.cache/glm5").expanduser())
    """Folder that outlives the pod: compiled kernels, and config and tokenizer built from the GGUF."""
    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    api: ApiSettings = ApiSettings()
    health: HealthSettings = HealthSettings()
    drain: DrainSettings = DrainSettings()
    preflight: PreflightSettings = PreflightSettings()
    sidecar: SidecarSettings = SidecarSettings()
    log: LogSettings = LogSettings()
    staging: StagingSettings = StagingSettings()
