"""Environment variables that pass from one part to another; `settings` knows the variable of each setting.

Writers: the chart (`PodEnvironment`), the supervisor (`EngineEnvironment`). Readers: `glm5 cluster events`, the plugin's
`envs`, vLLM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from glm5_service.contracts.base import Record

HeldWeights = Literal["speed", "memory"]


class PodEnvironment(Record):
    """What the chart tells the events container of its pod."""

    name: str = Field(alias="POD_NAME", min_length=1)
    namespace: str = Field(alias="POD_NAMESPACE", min_length=1)


class EngineEnvironment(Record):
    """What the supervisor tells the plugin in every process of the engine; no other GLM5_ variable is the plugin's."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)

    run_dir: Path = Field(alias="GLM5_RUN_DIR")
    """Folder that the containers of the pod share; the plugin attests there."""
    cache_dir: Path = Field(alias="GLM5_CACHE_DIR")
    """Folder for the config and tokenizer that are built from a GGUF."""
    weights: HeldWeights = Field(alias="GLM5_WEIGHTS")
    """What the weights of a GGUF are held as."""
    http_protocol: str | None = Field(default=None, alias="GLM5_HTTP_PROTOCOL")
    """`module:class` that speaks HTTP in the API server; left out, it is uvicorn's own choice."""
    grammar_seconds: float | None = Field(default=None, alias="GLM5_GRAMMAR_SECONDS", gt=0)
    """How long compiling one grammar may take; left out, as long as it takes."""

    model_release: str | None = Field(default=None, alias="GLM5_MODEL_RELEASE")
    """Which GLM-5 a GGUF is, where the file contradicts itself; left out, the file decides."""

    @classmethod
    def of(
        cls,
        run_dir: Path,
        cache_dir: Path,
        weights: HeldWeights,
        http_protocol: str | None = None,
        grammar_seconds: float | None = None,
        model_release: str | None = None,
    ) -> EngineEnvironment:
        """The environment of these folders, choices and limits."""
        values: dict[str, object] = {"run_dir": run_dir, "cache_dir": cache_dir, "weights": weights}
        values |= {"http_protocol": http_protocol, "grammar_seconds": grammar_seconds}
        return cls.model_validate(values | {"model_release": model_release})

    def variables(self) -> dict[str, str]:
        """Name -> value."""
        return {name: str(value) for name, value in self.model_dump(exclude_none=True).items()}
