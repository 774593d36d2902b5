"""vLLM's own decode kernel in Triton's interpreter over the virtual block table: where this backend comes from."""

from types import ModuleType

import pytest
import torch

from glm5_vllm.attention import reference
from tests.support.sparse_case import SCALE, largest_difference, relative_error

pytestmark = pytest.mark.kernels


@pytest.fixture(scope="module")
def decode() -> ModuleType:
    """vLLM's kernel module, with the Triton that vLLM hides where it finds no card."""
    vllm_triton = pytest.importorskip("vllm.triton_utils")
    import triton
    import triton.language as tl

    hidden = vllm_triton.triton, vllm_triton.tl
    vllm_triton.triton, vllm_triton.tl = triton, tl
    from vllm.v1.attention.ops import triton_decode_attention

    vllm_triton.triton, vllm_triton.tl = hidden
    assert triton_decode_attention.triton is triton
    return triton_decode_attention


@pytest.mark.parametrize(
    ("heads", "counts"),
    [(8, [64, 17, 1]), (4, [130, 129]), (64, [33])],
    ids=["8-heads", "4-heads-uneven", "64-heads"],
)
def test_slots_are_a_block_table_of_page_size_one(decode: ModuleType, heads: int, counts: list[int]) -> None:
    """Physical slots as pages of one token, and their count as the length, give the reference within 1e-5 in float32."""
    torch.manual_seed(0)
    num_slots, splits = 400, 4
    rows, width = len(counts), max(counts)
    kv, q = torch.randn(num_slots, 576), torch.randn(rows, heads, 576)
    slots = torch.stack([torch.randperm(num_slots)[:width] for _ in range(rows)]).int()
    lengths = torch.tensor(counts, dtype=torch.int32)
    out, lse = torch.empty(rows, heads, 512), torch.empty(rows, heads)
    keys = kv.view(num_slots, 1, 1, 576)

    decode.decode_attention_fwd(
        q,
        keys,
        keys[..., :512],
        out,
        lse,
        slots,
        lengths,
        torch.empty(rows, heads, splits, 513),
        splits,
        SCALE,
        1,
        k_scale=torch.ones(()),
        v_scale=torch.ones(()),
        is_mla=True,
    )

    expected_out, expected_lse = reference.sparse_mla(q, kv, slots, lengths, SCALE)
    assert relative_error(out, expected_out) < 1e-5
    assert largest_difference(lse, expected_lse) < 1e-5


def test_an_empty_row_is_not_defined_there(decode: ModuleType) -> None:
    """Length 0 gives NaN in vLLM's kernel: the reason why an empty row is part of the contract of ours."""
    kv, q = torch.randn(8, 576), torch.randn(1, 4, 576)
    out, keys = torch.zeros(1, 4, 512), kv.view(8, 1, 1, 576)

    decode.decode_attention_fwd(
        q,
        keys,
        keys[..., :512],
        out,
        torch.zeros(1, 4),
        torch.zeros(1, 4, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1, 4, 1, 513),
        1,
        SCALE,
        1,
        k_scale=torch.ones(()),
        v_scale=torch.ones(()),
        is_mla=True,
    )

    assert out.isnan().all()
