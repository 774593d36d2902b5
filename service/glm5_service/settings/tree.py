"""Every setting of `glm5`: name, type, default and meaning. Declares, reads nothing; `load` fills it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from glm5_service.settings.api import ApiSettings
from glm5_service.settings.base import Port, Seconds, Section, Words, flag
from glm5_service.settings.operation import DrainSettings, HealthSettings, PreflightSettings, SidecarSettings
from glm5_service.settings.secret import SecretText, refuse_secret_flags
from glm5_service.settings.staging import StagingSettings


class ModelSettings(Section):
    """Which model is served."""

    path: Path | None = None
    """A GGUF file, any file of a split set, or a folder that holds one set (or a Hugging Face folder)."""
    hf_folder: Annotated[Path | None, flag("--tokenizer")] = None
    """Folder with config.json and the tokenizer; without it both are built from the GGUF's own metadata."""
    chat_template: Annotated[Path | None, flag("--chat-template")] = None
    """Jinja file used instead of the model's own chat template."""


class EngineSettings(Section):
    """What the engine is started with."""

    profile: Literal["auto", "cpu", "cuda"] = "auto"
    """Hardware profile; auto takes the one of the installed vLLM."""
    image: str | None = None
    """Digest of the engine's image; compiled kernels are kept apart by it (unset: by installed versions)."""
    host: Annotated[str, flag("--host")] = "0.0.0.0"
    """Address the API listens on."""
    port: Annotated[Port, flag("--port")] = 8000
    """Port of the API."""
    served_model_name: Annotated[str, flag("--served-model-name")] = "glm-5"
    """Model name that clients send."""
    dtype: Annotated[Literal["auto", "float16", "bfloat16", "float32"], flag("--dtype")] = "auto"
    """Activation type."""
    max_model_len: Annotated[Annotated[int, Field(ge=1)] | None, flag("--max-model-len")] = None
    """Longest context in tokens; unset takes the model's own."""
    max_num_seqs: Annotated[int, Field(ge=1), flag("--max-num-seqs")] = 16
    """Most requests that run at once."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), flag("--gpu-memory-utilization")] = 0.92
    """Part of each GPU's memory the engine may use; the cpu profile ignores it."""
    tensor_parallel_size: Annotated[int, Field(ge=1), flag("--tensor-parallel-size")] = 1
    """GPUs the model is spread over."""
    kv_cache_dtype: Annotated[str, flag("--kv-cache-dtype")] = "auto"
    """Type of the KV cache, as vLLM names it."""
    attention_backend: Annotated[str | None, flag("--attention-backend")] = None
    """Attention backend asked of vLLM; unset asks for health.expected_backend on cuda, and for none on cpu."""
    enforce_eager: Annotated[bool | None, flag("--enforce-eager")] = None
    """Run without compilation and CUDA graphs; unset is true on the cpu profile, false on cuda."""
    cpu_kv_cache_gib: Annotated[int, Field(ge=1)] = 1
    """Memory of the KV cache on the cpu profile, in GiB."""
    api_key: Annotated[SecretText | None, flag("--api-key")] = None
    """Key that clients must send; handed to vLLM by environment, never on its command line."""
    tool_call_parser: Annotated[str | None, flag("--tool-call-parser")] = None
    """Parser of tool calls, as vLLM names it (GLM-5: glm47); unset leaves automatic tool choice off."""
    reasoning_parser: Annotated[str | None, flag("--reasoning-parser")] = None
    """Parser of reasoning blocks, as vLLM names it (GLM-5: glm45)."""
    stop_timeout_seconds: Seconds = 30
    """How long the engine may take to stop, once no request runs, before it is killed."""
    extra_args: Annotated[Words, BeforeValidator(refuse_secret_flags)] = Field(default=[])
    """Further arguments for `vllm serve`, passed on as they are; a string is split as a shell would split it."""


class LogSettings(Section):
    """What the command itself logs; vLLM's own log passes through."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written to stderr."""


class Settings(Section):
    """The whole tree. Environment names are GLM5_ + the path in capitals with __ between the parts."""

    run_dir: Path = Path("/tmp/glm5")
    """Folder for facts that the parts of a pod share (engine.json, attention/rank-N.json, staging.json)."""
    cache_dir: Path = Field(default_factory=lambda: Path("~/.cache/glm5").expanduser())
    """Folder that outlives the pod: configuration and tokenizer built from the GGUF, compiled kernels."""
    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    api: ApiSettings = ApiSettings()
    health: HealthSettings = HealthSettings()
    drain: DrainSettings = DrainSettings()
    preflight: PreflightSettings = PreflightSettings()
    sidecar: SidecarSettings = SidecarSettings()
    log: LogSettings = LogSettings()
    staging: StagingSettings = StagingSettings()
