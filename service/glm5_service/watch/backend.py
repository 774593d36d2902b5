"""Checks that every rank runs the attention backend that this model and profile expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glm5_service.contracts.attestation import Attestation
from glm5_service.host.vllm_build import Profile

# the plugin's backends by profile. Another backend under GLM-5 is a fault, however fast it is
BACKENDS: dict[Profile, str] = {"cpu": "TORCH_MLA_SPARSE", "cuda": "TRITON_MLA_SPARSE"}
SPARSE_ARCHITECTURES = frozenset({"glm-dsa", "glm_moe_dsa"})


@dataclass(frozen=True)
class BackendCheck:
    """Attested backends compared with the expected one. Waiting does not change `is_wrong`."""

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
    """Compare each rank's attestation with the expected backend. A rank counts after it has computed real attention."""
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
