"""The table of ggml types against the gguf package's."""

from __future__ import annotations

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from glm5_vllm.gguf.quant_types import ALL_TYPES, LOADABLE, LOADABLE_NAMES


def test_table_is_ggmls() -> None:
    """Ids, names and block layouts are those of the gguf package, none missing."""
    expected = {(int(kind), kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}

    assert expected == {(q.type_id, q.name, q.block_elements, q.block_bytes) for q in ALL_TYPES}


def test_loadable_are_known() -> None:
    """Every type we load is in the table, once."""
    assert len(LOADABLE_NAMES) == len(LOADABLE)
