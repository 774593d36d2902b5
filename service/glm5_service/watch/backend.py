"""Whether every rank runs the attention backend that is expected of this model and profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glm5_service.contracts.attestation import Attestation
from glm5_service.host.vllm_build import Profile

# backends of the plugin, by profile; GLM-5 served by another one is a fault, whatever its speed
BACKENDS: dict[Profile, str] = {"cpu": "TORCH_MLA_SPARSE", "cuda": "TRITON_MLA_SPARSE"}
SPARSE_ARCHITECTURES = frozenset({"glm-dsa", "glm_moe_dsa"})


@dataclass(frozen=True)
class BackendCheck:
    """Attested backends compared with the expected one. `is_wrong` does not change by waiting."""

    problem: str | None = None
    is_wrong: bool = False


def expected_backend(setting: str, profile: Profile, architecture: str | None) -> str | None:
    """Return the backend that `health.expected_backend` demands, or None for any."""
    if setting == "none":
        return None
    if setting == "auto":
        return BACKENDS[profile] if architecture in SPARSE_ARCHITECTURES else None
    return setting


def check_backend(attested: Sequence[Attestation], expected: str | None, ranks: int) -> BackendCheck:
    """Compare every rank's attestation with the expected backend. A rank counts once it computed real attention."""
    if expected is None:
        return BackendCheck()
    for record in attested:
        if record.backend != expected:
            found = record.backend or "no backend"
            return BackendCheck(
                f"rank {record.rank} runs attention backend {found}; expected {expected}", True
            )
    done = {record.rank for record in attested if record.first_call_at is not None}
    missing = [str(rank) for rank in range(ranks) if rank not in done]
    if missing:
        return BackendCheck(f"no attention by {expected} attested yet by ranks {', '.join(missing)}")
    return BackendCheck()
