"""Command lines by which one process of ours starts another, each with its parser.

The plugin's own parsers are vLLM's and `glm5_vllm.gguf`'s; contract tests run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from glm5_service.contracts.base import Record

# modules of the plugin, run with `python -m`
SERVE_MODULE: Final = "glm5_vllm.serve"
GGUF_MODULE: Final = "glm5_vllm.gguf"
HEALTH_MODULE: Final = "glm5_service.supervise.health_server"


class InspectArguments(Record):
    """`python -m glm5_vllm.gguf`: have a model's header read."""

    path: Path
    hf_folder: Path | None = None
    """Serves config and tokenizer instead of the file's metadata."""
    chat_template: Path | None = None
    """Serves instead of the file's templates."""
    release: str | None = None
    """Which GLM-5 it is, where the file contradicts itself."""
    json_output: bool = False

    def argv(self) -> list[str]:
        """What follows the module's name."""
        argv = ["inspect", str(self.path)]
        if self.hf_folder is not None:
            argv += ["--hf-folder", str(self.hf_folder)]
        if self.chat_template is not None:
            argv += ["--chat-template", str(self.chat_template)]
        if self.release is not None:
            argv += ["--release", self.release]
        return [*argv, *(["--json"] if self.json_output else [])]


class HealthServerArguments(Record):
    """The supervisor's health server, a process of its own."""

    descriptor: int
    """Socket on which the supervisor sends its states."""
    host: str
    port: int
    stale_seconds: float
    """A state older than this says nothing."""

    def argv(self) -> list[str]:
        """What follows the module's name."""
        return [str(value) for value in self.model_dump().values()]

    @classmethod
    def of(cls, argv: Sequence[str]) -> HealthServerArguments:
        """The arguments that `argv()` gave."""
        return cls.model_validate(dict(zip(cls.model_fields, argv, strict=True)))
