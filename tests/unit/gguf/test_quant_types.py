"""The table of ggml types against the gguf package's."""

from __future__ import annotations

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from glm5_vllm.gguf.file.quant_types import ALL_TYPES, LOADABLE, LOADABLE_FLOAT, LOADABLE_NAMES


def test_table_is_ggmls() -> None:
    """Ids, names and block layouts are those of the gguf package, none missing."""
    expected = {(int(kind), kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}

    assert expected == {(q.type_id, q.name, q.block_elements, q.block_bytes) for q in ALL_TYPES}


def test_loadable_are_known() -> None:
    """Every type we load is in the table, once."""
    assert len(LOADABLE_NAMES) == len(LOADABLE)


def test_loadable_are_what_kernels_take() -> None:
    """A quantised type is loaded where the plugin's kernels take it, in CUDA and in Triton, and not elsewhere."""
    from vllm_gguf_plugin import ops
    from vllm_gguf_plugin.triton.fused_moe.utils import TRITON_FUSED_MOE_SUPPORTED_TYPES
    from vllm_gguf_plugin.triton.gemm.utils import TRITON_SUPPORTED_TYPES

    quantised = {quant.type_id for quant in LOADABLE - LOADABLE_FLOAT}
    assert quantised == ops._CUDA_GEMV_QUANT_TYPES
    assert quantised <= TRITON_SUPPORTED_TYPES & TRITON_FUSED_MOE_SUPPORTED_TYPES
