"""What a load plan consists of: data only. Made by planner.py, used by the loader and by inspect.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.header import TensorInfo
from glm5_vllm.gguf.file.splits import Model
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters
from glm5_vllm.gguf.model.release import Release
from glm5_vllm.gguf.plan.names import EXPERT, Treatment


class Role(StrEnum):
    """Who uses a tensor."""

    MAIN = "main"
    MTP = "mtp"
    """The block that predicts the token after next: the draft model loads it, the main model skips it."""
    MTP_COPY = "mtp_copy"
    """That block's own embedding and head: vLLM gives the draft model the main model's, so nobody loads them."""
    SHARED_INDEXER = "shared_indexer"
    """An indexer's tensors in a layer that reuses another layer's selection: nobody loads them."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One HF parameter (or all experts of one), and the tensors it is made of.

    For routed experts `target` holds the placeholder `{expert}` and `shape` is [experts, rows, columns].
    """

    target: str
    role: Role
    treatment: Treatment
    shape: tuple[int, ...]
    sources: tuple[TensorInfo, ...]
    layer: int | None

    @property
    def is_experts(self) -> bool:
        return EXPERT in self.target

    @property
    def targets(self) -> tuple[str, ...]:
        """The HF names, one per expert for routed experts."""
        if not self.is_experts:
            return (self.target,)
        return tuple(self.target.replace(EXPERT, str(expert)) for expert in range(self.shape[0]))

    @property
    def nbytes(self) -> int:
        """Bytes of the sources in the file."""
        return sum(source.nbytes for source in self.sources)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one tensor, or one that is missing, stops the load, and what to do about it."""

    name: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What becomes of every tensor; a plan that `plan_load` returned has no refusals."""

    model: Model
    hyperparameters: Hyperparameters
    release: Release
    tensors: tuple[PlannedTensor, ...]
    refusals: tuple[Refusal, ...]
    missing_mtp: tuple[str, ...]

    @property
    def indexer_types(self) -> tuple[str, ...]:
        """ "full" or "shared" for each main layer."""
        return self.release.indexer_types

    def of(self, role: Role) -> tuple[PlannedTensor, ...]:
        """The planned tensors of one role."""
        return tuple(tensor for tensor in self.tensors if tensor.role is role)

    def check_mtp(self) -> None:
        """Raise GGUFError where the draft model cannot be loaded from this file."""
        if not self.hyperparameters.mtp_layers:
            raise GGUFError(
                f"{self.model.name} has no block for multi-token prediction",
                remedy="Serve it without speculative decoding, or use a file that keeps the block",
            )
        if self.missing_mtp:
            raise GGUFError(
                "tensors of the multi-token prediction block are missing",
                ", ".join(self.missing_mtp),
                remedy="Serve the model without speculative decoding",
            )
