"""The expert kernels in the interpreter against float32 on the dequantised weights; the assembly runs as it stands."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch

from glm5_vllm.experts.kernels.configs import LaunchConfig, Tile, choose, fitted, padded
from glm5_vllm.experts.launch import ExpertInputError, most_blocks, packed_experts, sorted_pairs
from glm5_vllm.experts.layouts import LAYOUTS
from glm5_vllm.experts.pack import OutOfRangeError, can_pack, pack
from glm5_vllm.experts.reference import routed_experts
from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.quant_types import BY_NAME, QuantType
from glm5_vllm.gguf.values.dequant import dequantize
from tests.support.interpreter import poisoned_memory
from tests.support.random_blocks import SCALE_FIELDS, random_tensor

pytestmark = pytest.mark.kernels

TYPES = [quant.name for quant in LAYOUTS]
SORTED = LaunchConfig(True, 16, Tile(2, 4, 1), 1, Tile(1, 4, 1), 4)
ALONE = LaunchConfig(False, 16, Tile(1, 4, 1), 2, Tile(1, 4, 1), 2)
WIDE = LaunchConfig(True, 32, Tile(4, 8, 1), 1, Tile(2, 8, 1), 1)


@dataclass
class Case:
    """Experts as blocks of the file and as floats."""

    types: tuple[QuantType, QuantType]
    raw: tuple[torch.Tensor, torch.Tensor]
    floats: tuple[torch.Tensor, torch.Tensor]

    def packed(self) -> tuple[torch.Tensor, torch.Tensor]:
        with poisoned_memory():
            gate_up = pack(self.raw[0], self.types[0], gate_and_up=True)
            return gate_up, pack(self.raw[1], self.types[1], gate_and_up=False)


def experts(
    gate_up: str, down: str, count: int = 3, hidden: int = 256, intermediate: int = 256, seed: int = 0
) -> Case:
    rng = np.random.default_rng(seed)
    first = random_tensor(rng, (count, 2 * intermediate, hidden), gate_up, 0.04)
    second = random_tensor(rng, (count, hidden, intermediate), down, 0.06)
    raw, floats = zip(*((torch.from_numpy(a), torch.from_numpy(b)) for a, b in (first, second)), strict=True)
    return Case((BY_NAME[gate_up], BY_NAME[down]), raw, floats)


def routing(rows: int, count: int, topk: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.rand(rows, count).topk(topk, 1).indices.int()
    return torch.rand(rows, topk), ids


def error(case: Case, rows: int, config: LaunchConfig | None, ids: torch.Tensor | None = None) -> float:
    """Relative to the norm of the reference."""
    x = torch.randn(rows, case.floats[0].shape[2]).to(torch.bfloat16)
    weights, chosen = routing(rows, len(case.floats[0]))
    ids = chosen if ids is None else ids
    packed = case.packed()
    with poisoned_memory():
        out = packed_experts(x, packed, weights, ids, case.types, config)
    expected = routed_experts(x, *case.floats, weights, ids)
    return ((out.float() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def bfloat16_error(case: Case, rows: int = 64) -> float:
    """What bfloat16 weights and intermediate activations lose."""
    x = torch.randn(rows, case.floats[0].shape[2]).to(torch.bfloat16)
    weights, ids = routing(rows, len(case.floats[0]))
    expected = routed_experts(x, *case.floats, weights, ids)
    rounded = routed_experts(x, *(w.to(torch.bfloat16) for w in case.floats), weights, ids).to(torch.bfloat16)
    return ((rounded.float() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("name", TYPES)
def test_each_type_loses_less_than_bfloat16(name: str) -> None:
    """Each type in both products is closer to float32 than bfloat16 weights are."""
    torch.manual_seed(0)
    case = experts(name, name)

    assert error(case, 3, SORTED) < bfloat16_error(case)


def test_pairs_alone() -> None:
    """Pairs with a program each, and columns shared by two of them, are as close."""
    torch.manual_seed(0)
    case = experts("Q4_K", "Q6_K", hidden=512)

    assert error(case, 2, ALONE) < bfloat16_error(case)


@pytest.mark.parametrize(("hidden", "intermediate"), [(768, 512), (256, 768)])
def test_other_shapes(hidden: int, intermediate: int) -> None:
    """Wider experts, as of fewer ranks, and odd numbers of tiles and superblocks."""
    torch.manual_seed(1)
    case = experts("Q4_K", "Q6_K", 2, hidden, intermediate)

    assert error(case, 3, fitted(SORTED, hidden, intermediate)) < bfloat16_error(case)


def test_large_blocks() -> None:
    """Blocks, tiles and warps as for long prompts."""
    torch.manual_seed(2)
    case = experts("Q5_K", "Q4_K", 3)

    assert error(case, 20, WIDE) < bfloat16_error(case)


def test_all_rows_on_one_expert() -> None:
    """An expert with more pairs than a block holds gets several blocks."""
    torch.manual_seed(3)
    case = experts("Q4_K", "Q5_K")
    ids = torch.full((35, 2), 1, dtype=torch.int32)

    assert error(case, 35, SORTED, ids) < bfloat16_error(case)


@pytest.mark.parametrize("config", [SORTED, ALONE], ids=["sorted", "alone"])
def test_pairs_without_an_expert(config: LaunchConfig) -> None:
    """-1 and numbers past the last expert count nothing, and a row of only such pairs is zero."""
    torch.manual_seed(4)
    case = experts("Q4_K", "Q6_K", 4, hidden=512)
    ids = torch.tensor([[0, -1], [-1, -1], [4, 3], [2, 1], [-7, 1 << 20]], dtype=torch.int32)
    x, weights = torch.randn(5, 512).bfloat16(), torch.rand(5, 2)

    with poisoned_memory():
        out = packed_experts(x, case.packed(), weights, ids, case.types, config)

    expected = routed_experts(x, *case.floats, weights, ids)
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.01 * expected.abs().max().item())
    assert not out[1].any()
    assert not out[4].any()


def test_no_rows() -> None:
    case = experts("Q4_K", "Q6_K", 2)
    none = torch.empty(0, 2)

    out = packed_experts(torch.empty(0, 256).bfloat16(), case.packed(), none, none.int(), case.types)

    assert out.shape == (0, 256)


@pytest.mark.parametrize("name", TYPES)
def test_zero_and_subnormal_scales(name: str) -> None:
    """Blocks whose d or dmin is zero or the smallest half, negative ones too, keep their values."""
    torch.manual_seed(5)
    case = experts(name, name, 3)
    for raw, quant in zip(case.raw, case.types, strict=True):
        blocks = raw.view(-1, quant.block_bytes)
        put(blocks[::5], name, 0.0)
        put(blocks[1::5], name, 6e-8)
        put(blocks[2::5], name, -6e-8)
        put(blocks[3::5], name, -1e-4)
    case.floats = tuple(  # type: ignore[assignment]
        dequantize(raw, quant, floats.shape)
        for raw, quant, floats in zip(case.raw, case.types, case.floats, strict=True)
    )

    assert error(case, 3, SORTED) < bfloat16_error(case)


def put(blocks: torch.Tensor, name: str, number: float) -> None:
    """Write a half-precision number as d and, negated, as dmin of each block."""
    fields = SCALE_FIELDS[gguf.GGMLQuantizationType[name]]
    for start, value in ((fields.scale, number), (fields.minimum, -number)):
        if start is not None:
            blocks[:, start : start + 2] = torch.tensor([value]).half().view(torch.uint8)


@pytest.mark.parametrize("number", [65504.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", TYPES)
def test_scales_beyond_float16_are_refused(name: str, number: float) -> None:
    """The largest half, infinity and NaN as d end packing with the number and the limit."""
    case = experts(name, "Q6_K", 2)
    blocks = case.raw[0].view(-1, case.types[0].block_bytes)
    put(blocks[7:9], name, number)

    with pytest.raises(OutOfRangeError, match=rf"of {name} experts: .*expected less than"):
        case.packed()


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Half a tile of rows, and gate and up that are no whole superblocks of the product after them."""
    q4_k = BY_NAME["Q4_K"]
    assert can_pack(q4_k, 512, 6144, True)
    assert not can_pack(q4_k, 96, 256, False)
    assert not can_pack(q4_k, 256, 256, True)
    assert not can_pack(BY_NAME["Q3_K"], 512, 256, False)
    with pytest.raises(GGUFError, match="96 x 256"):
        pack(torch.zeros(1, 96, 144, dtype=torch.uint8), q4_k, gate_and_up=False)


@pytest.mark.parametrize("name", TYPES)
def test_size_after_packing(name: str) -> None:
    """A packed tensor takes the bits a weight that its layout states."""
    case = experts(name, name, 1)

    packed = case.packed()[1]

    assert packed.nbytes * 8 == LAYOUTS[case.types[1]].bits_a_weight * case.floats[1].numel()


@pytest.mark.parametrize("pairs", [6, 700])
def test_sorted_blocks(pairs: int) -> None:
    """Each block has one expert's pairs, in order; together they are all pairs that have an expert, each once."""
    torch.manual_seed(6)
    count, block = 5, 16
    ids = torch.randint(-1, count + 1, (pairs // 2, 2), dtype=torch.int32)

    with poisoned_memory():
        _, order, blocks, filled = sorted_pairs(ids, count, LaunchConfig(True, block, *[None] * 4))  # type: ignore[arg-type]

    seen = []
    for expert, first, size in blocks[: filled.item()].tolist():
        members = order[first : first + size].tolist()
        assert 1 <= size <= block
        assert all(ids.view(-1)[pair] == expert for pair in members)
        seen += members
    valid = ((ids >= 0) & (ids < count)).view(-1)
    assert seen == sorted(seen, key=lambda pair: (ids.view(-1)[pair].item(), pair))
    assert sorted(seen) == valid.nonzero().view(-1).tolist()
    assert filled.item() <= most_blocks(pairs, block, count)


def test_padding_changes_nothing() -> None:
    """Rows that a CUDA graph's padding joins keep their bits: both counts take one entry of the table."""
    torch.manual_seed(7)
    case = experts("Q4_K", "Q6_K", 2)
    packed = case.packed()
    x, (weights, ids) = torch.randn(16, 256).bfloat16(), routing(16, 2)
    ids[9:] = -1

    few = packed_experts(x[:9], packed, weights[:9], ids[:9], case.types)
    padded_out = packed_experts(x, packed, weights, ids, case.types)

    assert torch.equal(few, padded_out[:9])


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("intermediate", [256, 512, 768, 1024, 2048])
def test_table_fits_every_shape(capability: tuple[int, int], intermediate: int) -> None:
    """Splits, tiles and steps divide the shape, and rows take the entry of what they are padded to."""
    for quant in LAYOUTS:
        for rows in (*range(1, 200), 512, 8192):
            config = choose(rows, 6144, intermediate, (quant, quant), capability)
            assert config == choose(padded(rows), 6144, intermediate, (quant, quant), capability)
            assert 6144 // 256 % config.splits == 0
            assert intermediate // 32 % config.gate_up.tiles == 0
            assert 6144 // 64 % (config.down.tiles * config.steps) == 0


def test_wrong_inputs_are_named() -> None:
    """A tensor of another type or shape is an error with its name, not a wrong answer."""
    case = experts("Q4_K", "Q6_K", 2)
    packed, (weights, ids) = case.packed(), routing(2, 2)
    x = torch.randn(2, 256).bfloat16()

    with pytest.raises(ExpertInputError, match=r"topk_ids is torch\.int64"):
        packed_experts(x, packed, weights, ids.long(), case.types)
    with pytest.raises(ExpertInputError, match="packed down"):
        packed_experts(x, (packed[0], packed[0]), weights, ids, case.types)
    with pytest.raises(ExpertInputError, match=r"x is torch\.float32"):
        packed_experts(x.float(), packed, weights, ids, case.types)
