"""The kernels in Triton's interpreter against the float32 reference, at small sizes."""

from dataclasses import replace

import pytest
import torch

from glm5_vllm.attention import reference
from glm5_vllm.attention.kernels import launch
from glm5_vllm.attention.kernels.configs import KVFormat, LaunchConfig, Tile, choose, supported_formats
from glm5_vllm.attention.kernels.inputs import KernelInputError, KVRows, Positions, Query, Slots
from glm5_vllm.attention.kernels.launch import Workspace, attend, configuration
from tests.support.interpreter import poisoned_memory
from tests.support.sparse_case import (
    LSE_TOLERANCE,
    SCALE,
    TOLERANCE,
    Case,
    expect_reference,
    grouped_float,
    grouped_rows,
    largest_difference,
    make_case,
    relative_error,
)

pytestmark = pytest.mark.kernels

CPU = torch.device("cpu")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def config(splits: int, slots: int = 32, heads: int = 16) -> LaunchConfig:
    return LaunchConfig(Tile(slots, 3, 4, heads), splits, overlap_launches=False)


def run(
    case: Case, launched: LaunchConfig | None = None, scale: float = SCALE
) -> tuple[torch.Tensor, torch.Tensor]:
    with poisoned_memory():
        workspace = Workspace.create(case.q.shape[1], case.slots.shape[1], 0, CPU)
        query, kv = Query.of(case.q, scale), KVRows(case.kv, case.kv_scale)
        return attend(query, kv, Slots(case.slots, case.counts), workspace, config=launched)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_activation_types(dtype: torch.dtype, splits: int) -> None:
    """Every activation type gives the reference's answer with and without splits, whatever unused memory holds."""
    case = make_case(rows=4, heads=8, width=100, num_slots=300, dtype=dtype)

    expect_reference(case, *run(case, config(splits)))


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 12, 16, 17, 64, 128])
def test_head_counts(heads: int) -> None:
    """Every number of heads from 1 to 128 gives the reference's answer, also where it does not fill a block."""
    case = make_case(rows=2, heads=heads, width=20, num_slots=64, dtype=F32)

    expect_reference(case, *run(case, config(2, slots=16)))


@pytest.mark.parametrize("width", [1, 31, 32, 63, 111])
@pytest.mark.parametrize(("kv_kind", "dtype"), [("wide", F32), ("fp8", BF16), ("fp8_ds_mla", F16)])
def test_odd_widths(kv_kind: str, dtype: torch.dtype, width: int) -> None:
    """A width that does not fill its tiles or its splits gives the reference's answer."""
    case = make_case(rows=3, heads=4, width=width, num_slots=128, dtype=dtype, kv_kind=kv_kind)

    expect_reference(case, *run(case, config(4)))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("kv_kind", ["fp8", "fp8_ds_mla"])
def test_fp8_caches(kv_kind: str, dtype: torch.dtype, splits: int) -> None:
    """A float8_e4m3 cache with one scale and the packed 656-byte layout give the reference's answer on their values."""
    case = make_case(rows=4, heads=8, width=70, num_slots=200, dtype=dtype, kv_kind=kv_kind)

    expect_reference(case, *run(case, config(splits)))


@pytest.mark.parametrize("tile_heads", [8, 16])
@pytest.mark.parametrize("heads", [1, 8, 11, 17])
@pytest.mark.parametrize("kv_kind", ["fp8", "fp8_ds_mla"])
def test_fp8_head_counts(kv_kind: str, heads: int, tile_heads: int) -> None:
    """With an fp8 cache too a block of heads may be full, partly empty or one of several."""
    case = make_case(rows=2, heads=heads, width=40, num_slots=64, dtype=BF16, kv_kind=kv_kind)

    expect_reference(case, *run(case, config(1, heads=tile_heads)))


@pytest.mark.parametrize("query_size", [2.0**-16, 2.0**20], ids=["small", "large"])
def test_grouped_magnitudes_beyond_float16(query_size: float) -> None:
    """Latents of 2^-24 to 2^18 beside each other and queries outside float16's range give the reference's answer."""
    case = make_case(rows=3, heads=8, width=60, num_slots=200, dtype=BF16)
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([2.0**-24, 2.0**-10, 1.0, 2.0**18])[torch.randint(4, (200, 1), generator=generator)]
    latent = torch.randn(200, 512, generator=generator) * sizes
    kv = grouped_rows(latent, torch.randn(200, 64, generator=generator).to(BF16))
    # scores stay near 1 for the largest latents
    q = (case.q.float() * query_size).to(BF16)
    grouped = replace(case, q=q, kv=kv, kv_float=grouped_float(kv, BF16))
    scale = 2.0**-22 / query_size

    out, lse = run(grouped, config(2), scale)

    expected_out, expected_lse = reference.sparse_mla(q, grouped.kv_float, case.slots, case.counts, scale)
    assert relative_error(out, expected_out) < TOLERANCE[BF16]
    assert largest_difference(lse, expected_lse) < LSE_TOLERANCE[BF16]


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("normal", [0, 32, 60], ids=["none", "last half", "all but four"])
def test_grouped_latents_of_zeros(normal: int, splits: int) -> None:
    """Latents of zeros, whose scales are the least of float32, count as zeros, alone and before others."""
    case = make_case(rows=1, heads=8, width=64, num_slots=64, dtype=BF16)
    latent = torch.randn(64, 512, generator=torch.Generator().manual_seed(3))
    latent[: 64 - normal] = 0
    kv = grouped_rows(latent, case.kv_float[:, 512:].to(BF16))
    slots, counts = torch.arange(64, dtype=torch.int32)[None], torch.full((1,), 64, dtype=torch.int32)

    zeros = Case(case.q, kv, grouped_float(kv, BF16), slots, counts, 1.0)
    out, lse = run(zeros, config(splits, heads=8))

    expected_out, expected_lse = reference.sparse_mla(zeros.q, zeros.kv_float, slots, counts, SCALE)
    assert largest_difference(out, expected_out) < 1e-2
    assert largest_difference(lse, expected_lse) < LSE_TOLERANCE[BF16]


def test_query_in_two_parts() -> None:
    """A query given as latent and rope parts with strides of their own equals the concatenated one, bit for bit."""
    case = make_case(rows=3, heads=8, width=50, num_slots=100, dtype=F16)
    expected = run(case)
    heads_first = case.q[..., :512].transpose(0, 1).contiguous().transpose(0, 1)

    query = Query(heads_first, case.q[..., 512:], SCALE)
    actual = attend(query, KVRows(case.kv), Slots(case.slots, case.counts), Workspace.create(8, 50, 0, CPU))

    assert torch.equal(expected[0], actual[0])
    assert torch.equal(expected[1], actual[1])


@pytest.mark.parametrize(("block_size", "stride"), [(64, 64), (16, 48)], ids=["adjacent", "interleaved"])
def test_positions_through_a_block_table(block_size: int, stride: int) -> None:
    """Positions inside a request become slots in the launch as in the reference; one outside the table is none."""
    torch.manual_seed(1)
    rows, heads, width, blocks = 5, 8, 96, 6
    kv = torch.randn(blocks * stride + block_size, 576)
    q = torch.randn(rows, heads, 576)
    table = torch.stack([torch.randperm(blocks) for _ in range(3)]).int()
    request = torch.tensor([0, 0, 2, 1, 2], dtype=torch.int32)
    positions = torch.randint(-10, blocks * block_size + 30, (rows, width), dtype=torch.int32)
    positions[3] = -1
    slots, counts = reference.physical_slots(positions, table, request, block_size, stride)
    expected_out, expected_lse = reference.sparse_mla(q, kv, slots, counts, SCALE)

    for splits in (1, 2):
        with poisoned_memory():
            out, lse = attend(
                Query.of(q, SCALE),
                KVRows(kv),
                Positions(positions, table, request, block_size, stride),
                Workspace.create(heads, width, rows, CPU),
                config=config(splits),
            )

        assert relative_error(out, expected_out) < TOLERANCE[F32]
        assert largest_difference(lse, expected_lse) < LSE_TOLERANCE[F32]


@pytest.mark.parametrize("kv_kind", ["wide", "fp8", "fp8_ds_mla"])
def test_positions_give_the_bits_of_slots(kv_kind: str) -> None:
    """Where every block lies at its own place positions are slots, and with any cache both entries give the same bits."""
    case = make_case(rows=4, heads=8, width=70, num_slots=192, dtype=BF16, kv_kind=kv_kind)
    column = torch.arange(70)
    positions = torch.where(column < case.counts[:, None], case.slots, -1)
    table, request = torch.arange(192 // 16, dtype=torch.int32)[None], torch.zeros(4, dtype=torch.int32)
    expected = run(case, config(2))

    with poisoned_memory():
        actual = attend(
            Query.of(case.q, SCALE),
            KVRows(case.kv, case.kv_scale),
            Positions(positions, table, request, 16, 16),
            Workspace.create(8, 70, 4, CPU),
            config=config(2),
        )

    assert torch.equal(expected[0], actual[0])
    assert torch.equal(expected[1], actual[1])


def test_any_sparse_pattern() -> None:
    """A pattern that is no DSA (four sink tokens and a sliding window) equals dense attention under the same mask."""
    context, window, sinks = 80, 24, 4
    torch.manual_seed(2)
    kv, q = torch.randn(context, 576), torch.randn(context, 2, 576)
    token, column = torch.arange(context)[:, None], torch.arange(context)[None, :]
    is_visible = (column <= token) & ((column > token - window) | (column < sinks))
    scores = torch.einsum("thd,sd->ths", q, kv) * SCALE
    expected = scores.masked_fill(~is_visible[:, None], -torch.inf).softmax(-1) @ kv[:, :512]

    recent = token - torch.arange(window)
    sink = torch.arange(sinks).expand(context, -1)
    # a sink inside the window is named once
    slots = torch.cat((recent, torch.where(sink <= token - window, sink, -1)), 1).int().clamp(min=-1)
    counts = torch.full((context,), slots.shape[1], dtype=torch.int32)
    workspace = Workspace.create(2, slots.shape[1], 0, CPU)
    out, _ = attend(Query.of(q, SCALE), KVRows(kv), Slots(slots, counts), workspace)

    assert relative_error(out, expected) < TOLERANCE[F32]


def test_batch_invariance() -> None:
    """With batch invariance a row has the same bits alone and among others, also when the rows come in chunks."""
    case = make_case(rows=4, heads=4, width=130, num_slots=200, dtype=F16)
    workspace = Workspace(torch.empty(3 * 4 * 4, 512), torch.empty(3 * 4 * 4), torch.empty(0, 130).int())

    def of(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        query, index = Query.of(case.q[rows], SCALE), Slots(case.slots[rows], case.counts[rows])
        return attend(query, KVRows(case.kv), index, workspace, batch_invariant=True)

    together, alone = of(slice(None)), of(slice(3, 4))

    assert torch.equal(together[0][3:], alone[0])
    assert torch.equal(together[1][3:], alone[1])


def test_no_rows() -> None:
    """No rows give empty results and no launch."""
    case = make_case(rows=2, heads=4, width=8, num_slots=16, dtype=F32)

    query, index = Query.of(case.q[:0], SCALE), Slots(case.slots[:0], case.counts[:0])
    out, lse = attend(query, KVRows(case.kv), index, Workspace.create(4, 8, 0, CPU))

    assert (out.shape, lse.shape) == ((0, 4, 512), (0, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": "long"}, "got slots of torch.int64"),
        ({"q": "short"}, "got queries of shape"),
        ({"q": "rows"}, "for 2 index rows"),
        ({"q": "strides"}, "got a query with strides"),
        ({"kv": "columns"}, "cannot read KV rows of torch.float64"),
        ({"kv": "stride"}, "got KV rows 2308 bytes apart"),
    ],
    ids=lambda value: "-".join(f"{k}-{v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_refused_inputs(change: dict[str, str], message: str) -> None:
    """A tensor the kernels are not written for is refused before any launch, with its value and the way out."""
    case = make_case(rows=2, heads=4, width=8, num_slots=16, dtype=F32)
    q, kv, slots = case.q, case.kv, case.slots
    match change:
        case {"slots": _}:
            slots = slots.long()
        case {"q": "short"}:
            q = q[..., :512]
        case {"q": "rows"}:
            q = q[:1]
        case {"q": "strides"}:
            q = torch.randn(2, 4, 577)[..., :576]
        case {"kv": "columns"}:
            kv = kv.double()
        case _:
            kv = torch.randn(16, 577)[:, :576]

    workspace = Workspace.create(4, 8, 0, CPU)
    with pytest.raises(KernelInputError, match=message):
        attend(Query.of(q, SCALE), KVRows(kv), Slots(slots, case.counts), workspace)


@pytest.mark.parametrize(
    ("kv_format", "expected"),
    [(KVFormat.WIDE, [64, 32, 8, 2, 1, 1]), (KVFormat.FP8_GROUPED, [64, 32, 16, 4, 1, 1])],
)
def test_splits_shrink_as_rows_grow(kv_format: KVFormat, expected: list[int]) -> None:
    """The table splits one row over the card and stops splitting when the rows fill it."""
    rows = (1, 4, 16, 64, 256, 2048)

    assert expected == [choose(n, 8, 2048, kv_format, (9, 0), 132).splits for n in rows]


@pytest.mark.parametrize("kv_format", list(KVFormat), ids=str)
@pytest.mark.parametrize(("capability", "multiprocessors"), [((8, 9), 142), ((9, 0), 132), ((12, 0), 188)])
def test_workspace_holds_every_configuration(
    capability: tuple[int, int], multiprocessors: int, kv_format: KVFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a card's table chooses, the parts of all rows fit the scratch made for their heads."""
    monkeypatch.setattr(launch, "_device", lambda device: (capability, multiprocessors))
    for heads in (1, 8, 17, 64, 128):
        entries = Workspace.create(heads, 8, 0, CPU).part_lse.shape[0]
        for rows in range(1, 300):
            config = configuration(rows, heads, 2048, kv_format, CPU, False)
            assert config.splits == 1 or rows * config.splits * heads <= entries


def test_few_heads_take_a_table_of_their_own() -> None:
    """With an fp8 cache a program computes 8 heads where no more are there, and 16 where they are."""
    for capability in ((8, 9), (9, 0), (12, 0)):
        for rows in (1, 4, 16, 64, 256):
            chosen = [choose(rows, h, 2048, KVFormat.FP8_GROUPED, capability, 132).tile.heads for h in (8, 9)]
            assert chosen == [8, 16]


def test_formats_by_capability() -> None:
    """fp8 caches are offered where the hardware converts fp8, and nowhere else."""
    assert supported_formats((8, 0)) == (KVFormat.WIDE,)
    assert supported_formats((8, 6)) == (KVFormat.WIDE,)
    assert supported_formats((8, 9)) == (KVFormat.WIDE, KVFormat.FP8, KVFormat.FP8_GROUPED)
    assert supported_formats((12, 0)) == (KVFormat.WIDE, KVFormat.FP8, KVFormat.FP8_GROUPED)
