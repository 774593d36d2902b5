"""Decide what becomes of every tensor of a model, before anything is allocated.

`examine` gives the whole picture, refusals included; `plan_load` gives the plan or raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from glm5_vllm import envs
from glm5_vllm.gguf.errors import FETCH_OR_CONVERT, OTHER_LAYOUT, GGUFError
from glm5_vllm.gguf.file.header import TensorInfo
from glm5_vllm.gguf.file.quant_types import CHOOSE_ANOTHER, LOADABLE_NAMES
from glm5_vllm.gguf.file.splits import Model
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters, read_hyperparameters
from glm5_vllm.gguf.model.release import FULL, decide_release
from glm5_vllm.gguf.plan.layouts import FUSED, current_layout, fused_shape
from glm5_vllm.gguf.plan.names import (
    BLOCK_BY_NAME,
    BLOCK_RULES,
    FUSED_LINEARS,
    MODEL_BY_NAME,
    MODEL_RULES,
    ONE_TYPE,
    Rule,
    Treatment,
    Where,
)
from glm5_vllm.gguf.plan.planned import LoadPlan, PlannedTensor, Refusal, Role
from glm5_vllm.gguf.printable import NAME_LIMIT, printable

_COPIES = {Where.MTP_COPY: Role.MTP_COPY}
BLOCK_NAME = re.compile(r"blk\.(\d{1,4})\.(.+)")
_BLOCK_NUMBER = re.compile(r"blk\.\d+\.")
# kinds of faults that an error names; `inspect` lists the tensors
_MOST_KINDS = 4


def plan_load(model: Model) -> LoadPlan:
    """Plan the load of `model`.

    Raises:
        GGUFError: the architecture or a hyperparameter is wrong, or tensors are refused.
    """
    plan = examine(model)
    if plan.refusals:
        raise refuse(plan)
    return plan


def refuse(plan: LoadPlan) -> GGUFError:
    """The error that a plan with refusals ends in, to be raised; it names one tensor of each kind of fault."""
    kinds: dict[str, list[Refusal]] = {}
    for refusal in plan.refusals:
        kinds.setdefault(_BLOCK_NUMBER.sub("blk.", f"{refusal.name} {refusal.reason}"), []).append(refusal)
    faults = [
        f"tensor {alike[0].name} {alike[0].reason}"
        + (f" (and {len(alike) - 1} more)" if len(alike) > 1 else "")
        for alike in kinds.values()
    ]
    if len(faults) > _MOST_KINDS:
        faults[_MOST_KINDS:] = [f"{len(faults) - _MOST_KINDS} more kinds of faults"]
    remedies = dict.fromkeys(alike[0].remedy for alike in kinds.values())
    return GGUFError(f"{plan.model.path.name}: {'; '.join(faults)}", remedy=". ".join(remedies))


def examine(model: Model, release: str | None = None) -> LoadPlan:
    """Plan the load and keep what is refused in the plan instead of raising.

    Args:
        model: the model.
        release: which GLM-5 it is, where its statements disagree; unset takes `GLM5_MODEL_RELEASE`.

    Raises:
        GGUFError: the architecture or a hyperparameter is wrong, or the model contradicts itself on which GLM-5 it
            is, so that no tensor can be judged.
    """
    hyperparameters = read_hyperparameters(model.header)
    blocks = _group_by_block(model, hyperparameters)
    decided = release or envs.model_release()
    found = decide_release(model.header, hyperparameters, model.tensors, decided)
    types = found.indexer_types
    planner = _Planner(hyperparameters)
    planner.plan_model({name: model.tensors[name] for name in MODEL_BY_NAME if name in model.tensors})
    for layer in range(hyperparameters.blocks):
        present = current_layout(blocks.get(layer, {}), hyperparameters)
        planner.plan_block(layer, present, runs_indexer=layer >= len(types) or types[layer] == FULL)
    return LoadPlan(
        model,
        hyperparameters,
        found,
        tuple(planner.planned),
        (*planner.unused(model.tensors.values()), *planner.refusals),
        tuple(planner.missing_mtp),
    )


def _group_by_block(model: Model, h: Hyperparameters) -> dict[int, dict[str, TensorInfo]]:
    """The tensors of each block, by their name without the block's prefix."""
    blocks: dict[int, dict[str, TensorInfo]] = {}
    for name, tensor in model.tensors.items():
        match = BLOCK_NAME.fullmatch(name)
        if match and int(match[1]) < h.blocks and name == f"blk.{int(match[1])}.{match[2]}":
            blocks.setdefault(int(match[1]), {})[match[2]] = tensor
    return blocks


class _Planner:
    """Collects planned tensors and refusals, block by block."""

    def __init__(self, hyperparameters: Hyperparameters) -> None:
        self.h = hyperparameters
        self.planned: list[PlannedTensor] = []
        self.refusals: list[Refusal] = []
        self.missing_mtp: list[str] = []
        self._seen: set[str] = set()

    def plan_model(self, present: dict[str, TensorInfo]) -> None:
        for rule in MODEL_RULES:
            tensor = present.get(rule.gguf)
            if tensor is None:
                self._refuse(rule.gguf, "is missing")
            elif self._accepts(rule, tensor):
                treatment = _treatment(rule, tensor)
                self.planned.append(
                    PlannedTensor(rule.hf, Role.MAIN, treatment, tensor.shape, (tensor,), None)
                )

    def plan_block(self, layer: int, present: dict[str, TensorInfo], *, runs_indexer: bool) -> None:
        role = Role.MAIN if layer < self.h.layers else Role.MTP
        accepted: dict[str, tuple[Rule, TensorInfo]] = {}
        for rule in _rules_of(layer, self.h, has_whole_kv_b="attn_kv_b.weight" in present):
            tensor = present.get(rule.gguf)
            if tensor is not None:
                if self._accepts(rule, tensor):
                    accepted[rule.gguf] = (rule, tensor)
            elif rule.where is not Where.MTP_COPY and (runs_indexer or rule.where is not Where.INDEXER):
                self._miss(f"blk.{layer}.{rule.gguf}", role)
        self._check_one_type(accepted)
        self._add_kv_b(layer, role, accepted)
        floats = _forced_floats(accepted)
        for name, (rule, tensor) in accepted.items():
            is_unused = rule.where is Where.INDEXER and not runs_indexer
            treatment = Treatment.FLOAT if name in floats else _treatment(rule, tensor)
            target = f"model.layers.{layer}.{rule.hf}"
            tensor_role = Role.SHARED_INDEXER if is_unused else _COPIES.get(rule.where, role)
            self.planned.append(PlannedTensor(target, tensor_role, treatment, tensor.shape, (tensor,), layer))

    def unused(self, tensors: Iterable[TensorInfo]) -> list[Refusal]:
        """A refusal of each tensor that nothing takes: often why another one is missing."""
        return [
            _refusal(each.name, self._why_unused(each)) for each in tensors if each.name not in self._seen
        ]

    def _why_unused(self, tensor: TensorInfo) -> str:
        match = BLOCK_NAME.fullmatch(tensor.name)
        if match and match[2] == FUSED:
            expected = list(fused_shape(self.h))
            return (
                f"has shape {list(tensor.shape)}; expected {expected}, and no separate gate and up beside it"
            )
        if match and match[2] in BLOCK_BY_NAME:
            return f"has no place in block {int(match[1])} of {self.h.blocks}"
        return "is unknown; no parameter of the model takes it"

    def _accepts(self, rule: Rule, tensor: TensorInfo) -> bool:
        self._seen.add(tensor.name)
        shapes = rule.shapes(self.h)
        if tensor.quant not in rule.types:
            names = [name for name in LOADABLE_NAMES if any(quant.name == name for quant in rule.types)]
            reason = f"has type {tensor.quant.name}; expected one of {', '.join(names)}"
            self._refuse(tensor.name, reason, CHOOSE_ANOTHER)
        elif tensor.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            reason = f"has shape {list(tensor.shape)}; expected {expected}"
            self._refuse(tensor.name, reason, FETCH_OR_CONVERT)
        else:
            return True
        return False

    def _check_one_type(self, accepted: dict[str, tuple[Rule, TensorInfo]]) -> None:
        pair = [accepted[name][1] for name in ONE_TYPE if name in accepted]
        if len(pair) == len(ONE_TYPE) and pair[0].quant != pair[1].quant:
            self._refuse(
                pair[1].name,
                f"has type {pair[1].quant.name}; expected {pair[0].quant.name} as {pair[0].name}, "
                "for the fused expert kernel keeps one type for both",
                CHOOSE_ANOTHER,
            )

    def _add_kv_b(self, layer: int, role: Role, accepted: dict[str, tuple[Rule, TensorInfo]]) -> None:
        parts = [accepted.pop(name) for name in ("attn_k_b.weight", "attn_v_b.weight") if name in accepted]
        if len(parts) == 2:
            shape = (self.h.heads * (self.h.nope_dim + self.h.value_dim), self.h.kv_lora)
            target = f"model.layers.{layer}.{parts[0][0].hf}"
            sources = tuple(tensor for _, tensor in parts)
            self.planned.append(PlannedTensor(target, role, Treatment.FUSE_KV_B, shape, sources, layer))

    def _miss(self, name: str, role: Role) -> None:
        if role is Role.MTP:
            self.missing_mtp.append(name)
        else:
            self._refuse(name, "is missing")

    def _refuse(self, name: str, reason: str, remedy: str = OTHER_LAYOUT) -> None:
        self.refusals.append(_refusal(name, reason, remedy))


def _refusal(name: str, reason: str, remedy: str = OTHER_LAYOUT) -> Refusal:
    return Refusal(printable(name, NAME_LIMIT), reason, remedy)


def _rules_of(layer: int, h: Hyperparameters, *, has_whole_kv_b: bool) -> list[Rule]:
    wanted = {Where.BLOCK, Where.INDEXER, Where.DENSE if layer < h.dense_layers else Where.MOE}
    wanted.add(Where.KV_B_WHOLE if has_whole_kv_b else Where.KV_B_SPLIT)
    if layer >= h.layers:
        wanted |= {Where.MTP, Where.MTP_COPY}
    return [rule for rule in BLOCK_RULES if rule.where in wanted]


def _treatment(rule: Rule, tensor: TensorInfo) -> Treatment:
    """The rule's treatment, except that floats cannot be kept quantised."""
    is_float = rule.treatment is Treatment.KEEP and tensor.quant.is_float
    return Treatment.FLOAT if is_float else rule.treatment


def _forced_floats(accepted: dict[str, tuple[Rule, TensorInfo]]) -> set[str]:
    """Names that must become float because another part of their fused linear is float."""
    forced: set[str] = set()
    for group in FUSED_LINEARS:
        parts = [name for name in group if name in accepted]
        if any(accepted[name][1].quant.is_float for name in parts):
            forced.update(parts)
    return forced
