"""Instruction sets that this process must not use, though the processor has them.

The names on the right are those of `torch.cpu.get_capabilities()`, by which vLLM chooses its CPU kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

AMX = ("amx_tile", "amx_int8", "amx_bf16", "amx_fp16")
_BF16 = ("avx512_bf16", "avx512_fp16")
_AVX512 = (
    "avx512_f", "avx512_bw", "avx512_cd", "avx512_dq", "avx512_vl", "avx512_ifma", "avx512_vbmi", "avx512_vbmi2",
    "avx512_bitalg", "avx512_vpopcntdq",
)  # fmt: skip
# what each value of oneDNN's ONEDNN_MAX_CPU_ISA leaves out, from the narrowest to the widest
HIDDEN_BY_LIMIT: Mapping[str, tuple[str, ...]] = {
    "AVX2": (*_AVX512, "avx512_vnni", *_BF16, *AMX),
    "AVX512_CORE": ("avx512_vnni", *_BF16, *AMX),
    "AVX512_CORE_VNNI": (*_BF16, *AMX),
    "AVX512_CORE_BF16": ("avx512_fp16", *AMX),
    "AVX512_CORE_FP16": AMX,
    "AVX512_CORE_AMX": ("amx_fp16",),
    "DEFAULT": (),
}
# a line of the log, and the attestation, name these; the others follow from them
SHOWN = ("avx2", "avx512_f", "avx512_bf16", "amx_tile")


def hidden_by_limit(limit: str | None) -> tuple[str, ...]:
    """Features that oneDNN's limit leaves out; none without a limit.

    Raises:
        ValueError: a limit that is not in the table.
    """
    if not limit:
        return ()
    try:
        return HIDDEN_BY_LIMIT[limit.upper()]
    except KeyError:
        raise ValueError(
            f"ONEDNN_MAX_CPU_ISA is {limit!r}; expected one of {', '.join(HIDDEN_BY_LIMIT)}. "
            "Set one of them, or unset it."
        ) from None


def shown(capabilities: Mapping[str, object]) -> list[str]:
    """The instruction sets by which kernels are chosen, of those in use."""
    return [name for name in SHOWN if capabilities.get(name)]
