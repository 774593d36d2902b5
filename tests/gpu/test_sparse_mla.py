"""The compiled kernels on a card against the float32 reference, at the sizes they serve."""

import pytest
import torch

from glm5_vllm.attention import reference
from glm5_vllm.attention.kernels.configs import KVFormat, supported_formats
from glm5_vllm.attention.kernels.inputs import KVRows, Positions, Query, Slots
from glm5_vllm.attention.kernels.launch import Workspace, attend
from tests.support.sparse_case import (
    LSE_TOLERANCE,
    SCALE,
    TOLERANCE,
    Case,
    expect_reference,
    largest_difference,
    make_case,
    relative_error,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]

TOPK = 2048
F16, BF16 = torch.float16, torch.bfloat16


def skip_unless_read(kv_kind: str) -> None:
    """Skip a test of a cache that this card's kernels do not read."""
    if KVFormat(kv_kind) not in supported_formats(torch.cuda.get_device_capability()):
        pytest.skip(f"this card reads no {kv_kind} cache")


def workspace(heads: int, width: int = TOPK, slot_rows: int = 0) -> Workspace:
    """Scratch full of NaN: what is read before it is written shows."""
    scratch = Workspace.create(heads, width, slot_rows, torch.device("cuda"))
    scratch.parts.fill_(float("nan"))
    scratch.part_lse.fill_(float("nan"))
    return scratch


def run(case: Case, *, batch_invariant: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return attend(
        Query.of(case.q, SCALE),
        KVRows(case.kv, case.kv_scale),
        Slots(case.slots, case.counts),
        workspace(case.q.shape[1], case.slots.shape[1]),
        batch_invariant=batch_invariant,
    )


@pytest.mark.parametrize("rows", [1, 3, 16, 64, 200, 1500])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("kv_kind", ["wide", "fp8", "fp8_ds_mla"])
def test_rows_types_and_layouts(kv_kind: str, dtype: torch.dtype, rows: int) -> None:
    """Every KV layout, type and number of rows gives the reference's answer, whatever unused memory holds."""
    skip_unless_read(kv_kind)
    case = make_case(rows, 8, TOPK, 40_000, dtype, kv_kind, "cuda")

    expect_reference(case, *run(case))


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 12, 16, 17, 32, 64, 128])
def test_head_counts(heads: int) -> None:
    """Every number of heads from 1 to 128 gives the reference's answer with few rows and with many."""
    for rows in (2, 90):
        case = make_case(rows, heads, TOPK, 10_000, BF16, device="cuda")

        expect_reference(case, *run(case))


@pytest.mark.parametrize("heads", [1, 8, 12, 17, 64])
@pytest.mark.parametrize("kv_kind", ["fp8", "fp8_ds_mla"])
def test_fp8_head_counts(kv_kind: str, heads: int) -> None:
    """With an fp8 cache too any number of heads gives the reference's answer with few rows and with many."""
    skip_unless_read(kv_kind)
    for rows in (2, 150):
        case = make_case(rows, heads, TOPK, 10_000, BF16, kv_kind, "cuda")

        expect_reference(case, *run(case))


@pytest.mark.parametrize("width", [1, 63, 100, 2047])
@pytest.mark.parametrize("kv_kind", ["wide", "fp8", "fp8_ds_mla"])
def test_odd_widths(kv_kind: str, width: int) -> None:
    """An index table that does not fill its tiles gives the reference's answer."""
    skip_unless_read(kv_kind)
    case = make_case(5, 8, width, 4000, BF16, kv_kind, "cuda")

    expect_reference(case, *run(case))


def test_rows_beyond_two_to_the_31_elements() -> None:
    """A slot whose element offset does not fit 32 bits is read at its place."""
    num_slots = 2**31 // 576 + 5000
    kv = torch.full((num_slots, 576), float("nan"), dtype=BF16, device="cuda")
    slots = torch.arange(num_slots - TOPK, num_slots, dtype=torch.int32, device="cuda").repeat(4, 1)
    kv[-TOPK:] = torch.randn(TOPK, 576, device="cuda")
    q = torch.randn(4, 8, 576, device="cuda").to(BF16)
    counts = torch.full((4,), TOPK, dtype=torch.int32, device="cuda")

    case = Case(q, kv, kv, slots, counts, 1.0)
    expect_reference(case, *run(case))


@pytest.mark.parametrize("rows", [1, 7, 64, 300])
def test_positions_through_a_block_table(rows: int) -> None:
    """Positions turned into slots inside the launch give the bits of slots made by the reference and kept in order."""
    torch.manual_seed(rows)
    blocks, requests = 300, 5
    kv = torch.randn(blocks * 128, 576, device="cuda").to(BF16)
    table = torch.stack([torch.randperm(blocks, device="cuda")[:100] for _ in range(requests)]).int()
    request = torch.randint(0, requests, (rows,), dtype=torch.int32, device="cuda")
    positions = torch.randint(-500, 100 * 64 + 400, (rows, TOPK), dtype=torch.int32, device="cuda")
    q = torch.randn(rows, 8, 576, device="cuda").to(BF16)
    slots, counts = reference.physical_slots(positions, table, request, 64, 128)
    expected_out, expected_lse = reference.sparse_mla(q, kv, slots, counts, SCALE)

    index = Positions(positions, table, request, 64, 128)
    out, lse = attend(Query.of(q, SCALE), KVRows(kv), index, workspace(8, slot_rows=rows))

    assert relative_error(out, expected_out) < TOLERANCE[BF16]
    assert largest_difference(lse, expected_lse) < LSE_TOLERANCE[BF16]


def test_same_input_same_bits() -> None:
    """The same input gives the same bits every time, split or not."""
    for rows in (1, 16, 300):
        case = make_case(rows, 8, TOPK, 20_000, BF16, device="cuda")
        first = run(case)

        for _ in range(5):
            again = run(case)
            assert torch.equal(first[0], again[0])
            assert torch.equal(first[1], again[1])


def test_batch_invariance() -> None:
    """With batch invariance every row has the same bits alone and in any batch."""
    case = make_case(700, 8, TOPK, 20_000, BF16, device="cuda")
    together = run(case, batch_invariant=True)

    for row in (0, 3, 699):
        part = slice(row, row + 1)
        alone = run(
            Case(case.q[part], case.kv, case.kv_float, case.slots[part], case.counts[part], 1.0),
            batch_invariant=True,
        )
        assert torch.equal(together[0][part], alone[0])
        assert torch.equal(together[1][part], alone[1])


@pytest.mark.parametrize("rows", [4, 64])
def test_graph_replay_with_padded_rows(rows: int) -> None:
    """A captured launch reads what stands in its inputs at replay; rows of padding give zeros and disturb no other."""
    case = make_case(rows, 8, TOPK, 20_000, BF16, device="cuda")
    scratch = workspace(8)
    slots, counts = torch.zeros_like(case.slots), torch.zeros_like(case.counts)

    def attend() -> tuple[torch.Tensor, torch.Tensor]:
        return attend(Query.of(case.q, SCALE), KVRows(case.kv), Slots(slots, counts), scratch)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out, lse = attend()
    slots.copy_(case.slots)
    counts.copy_(case.counts)
    counts[-1] = 0
    case.q[-1] = float("nan")
    graph.replay()
    torch.cuda.synchronize()

    expected_out, expected_lse = reference.sparse_mla(
        case.q[:-1], case.kv_float, slots[:-1], counts[:-1], SCALE
    )
    assert relative_error(out[:-1], expected_out) < TOLERANCE[BF16]
    assert largest_difference(lse[:-1], expected_lse) < LSE_TOLERANCE[BF16]
    assert torch.count_nonzero(out[-1]) == 0
    assert lse[-1].isneginf().all()
