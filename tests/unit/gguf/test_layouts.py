"""Layouts of other converters load as llama.cpp's own do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFValueType as Type

from glm5_vllm.gguf.file.read import TensorReader
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.inspect import inspect, report
from glm5_vllm.gguf.loader import Placed, _named_weights
from glm5_vllm.gguf.plan.planned import Role
from glm5_vllm.gguf.plan.planner import plan_load
from tests.support.raw_gguf import RawGGUF, RawTensor


def fuse_gate_and_up(raw: RawGGUF) -> None:
    """Gate and up as one tensor, as `convert_hf_to_gguf.py --fuse-gate-up-exps` writes them."""
    for layer in (1, 2):
        gate, up = (raw.tensor(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up"))
        experts, rows, columns = gate.shape
        size = len(gate.data) // experts
        parts = [part.data[i * size : (i + 1) * size] for i in range(experts) for part in (gate, up)]
        at = raw.tensors.index(gate)
        raw.drop(up.name)
        name = f"blk.{layer}.ffn_gate_up_exps.weight"
        raw.tensors[at] = RawTensor(name, (experts, 2 * rows, columns), gate.type_id, b"".join(parts))


def weights(path: Path, role: Role) -> dict[str, torch.Tensor]:
    """What the loader hands to the model."""
    plan = plan_load(open_model(path))
    with TensorReader(plan.model) as reader:
        return {name: weight.clone() for name, weight in _named_weights(plan, role, reader, Placed())}


@pytest.mark.parametrize("role", [Role.MAIN, Role.MTP])
def test_fused_gate_and_up(role: Role, raw: RawGGUF, tmp_path: Path) -> None:
    """Experts whose gate and up are one tensor give the parameters of the unfused file, bit for bit."""
    separate = weights(raw.write(tmp_path / "separate.gguf"), role)
    fuse_gate_and_up(raw)

    fused = weights(raw.write(tmp_path / "fused.gguf"), role)

    assert separate.keys() == fused.keys()
    assert [name for name, weight in separate.items() if not torch.equal(weight, fused[name])] == []


def test_fused_tensor_is_counted_once(raw: RawGGUF, tmp_path: Path) -> None:
    """The report counts the tensors and bytes of the file, though two parameters are made of one tensor."""
    before = report(inspect(raw.write(tmp_path / "separate.gguf")))
    fuse_gate_and_up(raw)

    after = report(inspect(raw.write(tmp_path / "fused.gguf")))

    assert (after["tensors"], after["bytes"]) == (before["tensors"] - 2, before["bytes"])
    assert after["load"] == before["load"] | {"tensors": before["load"]["tensors"] - 1}
    assert after["weights"] == before["weights"]


@pytest.mark.parametrize("alias", ["exp_probs_b", "exp_probs_b.weight"])
def test_router_bias_under_other_names(alias: str, raw: RawGGUF, tmp_path: Path) -> None:
    """The router's bias loads under the names that some converters give it."""
    expected = weights(raw.write(tmp_path / "usual.gguf"), Role.MAIN)
    raw.tensor("blk.1.exp_probs_b.bias").name = f"blk.1.{alias}"

    found = weights(raw.write(tmp_path / "alias.gguf"), Role.MAIN)

    assert expected.keys() == found.keys()
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert torch.equal(expected[name], found[name])


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("rope.scaling.factor", Type.FLOAT32, 1.0),
        ("rope.scaling.factor", Type.FLOAT32, 0.0),
        ("rope.scale_linear", Type.FLOAT32, 1.0),
        ("rope.scaling.type", Type.STRING, "none"),
        ("rope.scaling.original_context_length", Type.UINT32, 4096),
    ],
)
def test_rope_keys_that_scale_nothing(
    key: str, kind: Type, value: object, raw: RawGGUF, tmp_path: Path
) -> None:
    """A key of rope scaling that changes no position is taken."""
    raw.metadata[f"glm-dsa.{key}"] = (kind, value)

    assert not plan_load(open_model(raw.write(tmp_path / "m.gguf"))).refusals


def test_no_scaling_whatever_its_factor(raw: RawGGUF, tmp_path: Path) -> None:
    """The type none says that a factor is not used."""
    raw.metadata["glm-dsa.rope.scaling.type"] = (Type.STRING, "none")
    raw.metadata["glm-dsa.rope.scaling.factor"] = (Type.FLOAT32, 4.0)

    assert not plan_load(open_model(raw.write(tmp_path / "m.gguf"))).refusals
