"""The Triton indexer's scores in the interpreter against plain torch."""

import pytest
import torch

from glm5_vllm.indexer.fallback import needs_triton_logits
from glm5_vllm.indexer.logits import (
    IndexerInputError,
    mqa_logits,
    paged_mqa_logits,
    paged_mqa_logits_metadata,
)
from tests.support.interpreter import poisoned_memory

pytestmark = pytest.mark.kernels

HEADS, DIM, PAGE = 32, 128, 64


def fp8(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.float8_e4m3fn)


def scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """One row: q [heads, dim], weights [heads], keys [tokens, dim], scale [tokens]."""
    return (weights[:, None] * (q.float() @ keys.float().T).relu()).sum(0) * scale


def test_gathered_keys() -> None:
    """Each row's scores stand from column 0 on for the tokens it sees, and nothing else is written."""
    torch.manual_seed(0)
    rows, tokens = 70, 200
    q, keys = fp8(rows, HEADS, DIM), fp8(tokens, DIM)
    scale, weights = torch.rand(tokens), torch.randn(rows, HEADS)
    first = torch.randint(0, 60, (rows,), dtype=torch.int32)
    last = torch.minimum(first + torch.randint(0, 140, (rows,)), torch.tensor(tokens)).int()

    with poisoned_memory():
        logits = mqa_logits((q, None), (keys, scale), weights, first, last, 160)

    for row in range(rows):
        a, b = int(first[row]), int(last[row])
        expected = scores(q[row], weights[row], keys[a:b], scale[a:b])
        torch.testing.assert_close(logits[row, : b - a], expected, rtol=1e-4, atol=1e-4)
        assert logits[row, b - a :].isnan().all()


@pytest.mark.parametrize("rows_a_request", [1, 2])
def test_paged_keys(rows_a_request: int) -> None:
    """Decode rows read each page's keys and the scales behind them, up to their own length; NaN elsewhere never shows."""
    torch.manual_seed(1)
    requests, blocks, width = 3, 9, 3
    lengths = torch.tensor([[130, 131], [1, 2], [64, 65]], dtype=torch.int32)[:, :rows_a_request].contiguous()
    table = torch.randperm(blocks).view(requests, width).int()
    keys, scale = fp8(blocks, PAGE, DIM), torch.rand(blocks, PAGE)
    cache = torch.empty(blocks, PAGE * (DIM + 4), dtype=torch.uint8)
    cache[:, : PAGE * DIM] = keys.view(torch.uint8).view(blocks, -1)
    cache[:, PAGE * DIM :] = scale.view(torch.uint8).view(blocks, -1)
    q, weights = (
        fp8(requests, rows_a_request, HEADS, DIM),
        torch.randn(requests * rows_a_request, HEADS),
    )
    used = torch.zeros(blocks, PAGE, dtype=torch.bool)
    for request in range(requests):
        for token in range(int(lengths[request].max())):
            used[table[request, token // PAGE], token % PAGE] = True
    cache[:, : PAGE * DIM].view(blocks, PAGE, DIM)[~used] = 0x7F

    with poisoned_memory():
        logits = paged_mqa_logits(
            (q, None),
            cache.view(blocks, PAGE, 1, DIM + 4),
            weights,
            lengths,
            table,
            paged_mqa_logits_metadata(lengths, PAGE, 132),
            PAGE * width + 5,
        )

    for request in range(requests):
        seen = keys[table[request].long()].view(-1, DIM)
        seen_scale = scale[table[request].long()].view(-1)
        for i in range(rows_a_request):
            row, n = request * rows_a_request + i, int(lengths[request, i])
            expected = scores(q[request, i], weights[row], seen[:n], seen_scale[:n])
            torch.testing.assert_close(logits[row, :n], expected, rtol=1e-4, atol=1e-4)
            assert logits[row, n:].isnan().all()


def test_refuses_a_query_with_its_own_scale() -> None:
    """The packed fp4 query is named and refused."""
    with pytest.raises(IndexerInputError, match="expected contiguous float8_e4m3fn"):
        mqa_logits(
            (torch.zeros(1, HEADS, DIM // 2, dtype=torch.int8), torch.zeros(1, HEADS)),
            (fp8(4, DIM), torch.ones(4)),
            torch.ones(1, HEADS),
            torch.zeros(1).int(),
            torch.ones(1).int(),
            4,
        )


@pytest.mark.parametrize(
    ("capability", "has_nvcc", "expected"),
    [((8, 9), True, True), ((12, 0), True, False), ((12, 0), False, True), ((9, 0), False, False)],
)
def test_where_it_is_used(capability: tuple[int, int], has_nvcc: bool, expected: bool) -> None:
    """SM8x needs it, SM120 only where nothing can compile DeepGEMM's kernels, and SM90 never."""
    assert expected == needs_triton_logits(capability, has_nvcc)
