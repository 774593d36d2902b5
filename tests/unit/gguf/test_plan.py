"""What becomes of each tensor: roles, treatments, indexer sharing, and the model's size in figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFValueType as Type

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.plan.names import Treatment
from glm5_vllm.gguf.plan.planned import LoadPlan, PlannedTensor, Role
from glm5_vllm.gguf.plan.planner import examine, plan_load
from tests.support.raw_gguf import Array, RawGGUF
from tests.support.tiny_gguf import TinyModel, write_tiny
from tests.support.tiny_spec import QuantMix, TinySpec

FULL, SHARED = "full", "shared"


def by_source(plan: LoadPlan) -> dict[str, PlannedTensor]:
    return {source.name: planned for planned in plan.tensors for source in planned.sources}


def test_every_tensor_has_one_role(tiny: TinyModel) -> None:
    """The plan holds every tensor of the file once, and those of the MTP block apart."""
    model = open_model(tiny.path)
    plan = plan_load(model)
    names = [source.name for planned in plan.tensors for source in planned.sources]
    mtp = {source.name for planned in plan.of(Role.MTP) for source in planned.sources}

    assert sorted(model.tensors) == sorted(names)
    assert {name for name in names if name.startswith("blk.2.")} == mtp
    plan.check_mtp()


def test_treatments(tiny: TinyModel) -> None:
    """vLLM's float parameters are dequantised, kv_b_proj is joined, all else keeps its blocks."""
    planned = by_source(plan_load(open_model(tiny.path)))
    treatments = {
        name.removeprefix("blk.1."): each.treatment for name, each in planned.items() if "blk.1." in name
    }
    floats = {"indexer.attn_k", "indexer.proj", "indexer.k_norm", "ffn_gate_inp", "exp_probs_b"}
    floats |= {"attn_norm", "ffn_norm", "attn_q_a_norm", "attn_kv_a_norm"}

    assert floats == {name.rsplit(".", 1)[0] for name, each in treatments.items() if each is Treatment.FLOAT}
    fused = {name for name, each in treatments.items() if each is Treatment.FUSE_KV_B}
    assert fused == {"attn_k_b.weight", "attn_v_b.weight"}


def test_experts_have_a_target_each(tiny: TinyModel) -> None:
    """The experts of one tensor are named one by one."""
    planned = by_source(plan_load(open_model(tiny.path)))["blk.1.ffn_down_exps.weight"]

    assert planned.shape == (4, 256, 256)
    assert planned.targets == tuple(f"model.layers.1.mlp.experts.{e}.down_proj.weight" for e in range(4))


@pytest.mark.parametrize(
    ("mix", "pair"),
    [
        (QuantMix(q_a="F16"), ("attn_q_a.weight", "attn_kv_a_mqa.weight")),
        (QuantMix(kv_a="BF16"), ("attn_q_a.weight", "attn_kv_a_mqa.weight")),
    ],
    ids=["q_a", "kv_a"],
)
def test_fused_linear_is_float_or_quantised(mix: QuantMix, pair: tuple[str, str], tmp_path: Path) -> None:
    """Where one part of a fused linear is float, the other is dequantised too."""
    planned = by_source(plan_load(open_model(write_tiny(tmp_path, TinySpec(layers=1, quants=mix)).path)))

    assert [planned[f"blk.0.{name}"].treatment for name in pair] == [Treatment.FLOAT] * 2


def test_mtp_block_is_optional(raw: RawGGUF, tmp_path: Path) -> None:
    """An incomplete MTP block is reported and stops only the draft model."""
    raw.drop("blk.2.nextn.eh_proj.weight")
    plan = plan_load(open_model(raw.write(tmp_path / "m.gguf")))

    assert plan.missing_mtp == ("blk.2.nextn.eh_proj.weight",)
    with pytest.raises(
        GGUFError, match=r"are missing: blk\.2\.nextn\.eh_proj\.weight\. Serve the model without"
    ):
        plan.check_mtp()


@pytest.mark.parametrize("name", ["embed_tokens", "shared_head_head"])
def test_mtp_blocks_own_embedding_and_head_are_set_aside(raw: RawGGUF, tmp_path: Path, name: str) -> None:
    """vLLM gives the draft model the main model's embedding and head, so a file's copies of them are nobody's."""
    original = next(tensor for tensor in raw.tensors if tensor.name == "token_embd.weight")
    raw.tensors.append(replace(original, name=f"blk.2.nextn.{name}.weight"))
    plan = plan_load(open_model(raw.write(tmp_path / "m.gguf")))

    assert [p.sources[0].name for p in plan.of(Role.MTP_COPY)] == [f"blk.2.nextn.{name}.weight"]
    plan.check_mtp()


def test_no_mtp_block(split: TinyModel) -> None:
    """A file without the block cannot serve as draft model."""
    with pytest.raises(GGUFError, match=r"^tiny-glm-dsa has no block for multi-token prediction"):
        plan_load(open_model(split.path)).check_mtp()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TinySpec(layers=3), (FULL, FULL, FULL)),
        (TinySpec(layers=3, shared_layers=(1,)), (FULL, SHARED, FULL)),
        (TinySpec(layers=3, shared_layers=(1,), write_indexer_types=True), (FULL, SHARED, FULL)),
        (
            TinySpec(layers=3, shared_layers=(1,), write_indexer_types=True, repeat_indexer=True),
            (FULL, SHARED, FULL),
        ),
        (
            TinySpec(layers=8, heads=1, experts=2, context=1 << 20),
            (FULL, FULL, FULL, *[SHARED] * 3, FULL, SHARED),
        ),
    ],
    ids=["all", "left-out", "key", "key-and-repeated", "by-context"],
)
def test_indexer_types(spec: TinySpec, expected: tuple[str, ...], tmp_path: Path) -> None:
    """Which layers share is told by the key, by the tensors left out, or by GLM-5.2's context length."""
    plan = plan_load(open_model(write_tiny(tmp_path, spec).path))

    assert expected == plan.indexer_types
    idle = {planned.layer for planned in plan.of(Role.SHARED_INDEXER)}
    carried = (
        {i for i, kind in enumerate(expected) if kind == SHARED}
        if not spec.shared_layers or spec.repeat_indexer
        else set()
    )
    assert carried == idle


@pytest.mark.parametrize(
    ("element", "values"),
    [
        (Type.BOOL, [True, False]),
        (Type.INT32, [1, 0]),
        (Type.STRING, [FULL, SHARED]),
        (Type.UINT32, [1, 0, 1]),
    ],
    ids=["bool", "int", "string", "with-mtp"],
)
def test_spellings_of_indexer_types(
    element: Type, values: list[object], raw: RawGGUF, tmp_path: Path
) -> None:
    """The key is read in every form converters write it in."""
    raw.metadata["glm-dsa.attention.indexer.types"] = (Type.ARRAY, Array(element, values))

    assert examine(open_model(raw.write(tmp_path / "m.gguf"))).indexer_types == (FULL, SHARED)


def test_glm5_in_figures(glm5: list[Path]) -> None:
    """At real size the plan places every tensor: 1,809 of them, 432.8 GiB, as published for this mix."""
    plan = plan_load(open_model(glm5[4]))
    sizes = {role: sum(planned.nbytes for planned in plan.of(role)) for role in Role}

    assert len(plan.model.tensors) == 1809
    assert round(sum(sizes.values()) / 2**30, 1) == 432.8
    assert [len(plan.of(role)) for role in Role] == [1782 - 78, 27 - 1, 0, 0]
