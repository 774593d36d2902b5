"""vLLM's model loader for glm-dsa GGUF files: plan, place every tensor, check that nothing is left over.

Quantised tensors go to vllm-gguf-plugin's parameters as they are, the rest as floats. Other architectures go to that
plugin's own loader.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm_gguf_plugin.loader import GGUFModelLoader

from glm5_vllm import envs
from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.read import TensorReader
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.hold import hold_as_float
from glm5_vllm.gguf.plan.checks import check_config, check_draft_parallel, check_parallel
from glm5_vllm.gguf.plan.names import EXPERT, Treatment
from glm5_vllm.gguf.plan.planned import LoadPlan, PlannedTensor, Role
from glm5_vllm.gguf.plan.planner import plan_load
from glm5_vllm.gguf.values.floats import read_float

logger = logging.getLogger("vllm.glm5.gguf")

# vLLM's models whose weights a glm-dsa file holds: the main model, and the draft model for multi-token prediction
ROLES = {"GlmMoeDsaForCausalLM": Role.MAIN, "DeepseekV32MTPModel": Role.MTP}
# parameters that vLLM replaces by the main model's once the draft model is loaded
SHARED_WITH_MAIN = ("embed_tokens.", "shared_head.head.")
_SECONDS_BETWEEN_LINES = 10.0


@dataclass
class Placed:
    """What was handed to the model so far."""

    names: set[str] = field(default_factory=set)
    nbytes: int = 0

    @property
    def tensors(self) -> int:
        """Tensors of the file; two parameters may share one."""
        return len(self.names)


def register_loader() -> None:
    """Make this the loader of `--load-format gguf`; calling it again changes nothing."""
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER

    if _LOAD_FORMAT_TO_MODEL_LOADER.get("gguf") is not GlmDsaModelLoader:
        register_model_loader("gguf")(GlmDsaModelLoader)


class GlmDsaModelLoader(GGUFModelLoader):
    """Loads the models of `ROLES` from a GGUF file or a set of splits, whichever of them is named."""

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        """Build the model on its device and fill it.

        Raises:
            GGUFError: the file is refused (before anything is allocated), or a parameter was left without a value.
        """
        role = _role_of(model_config)
        if role is None:
            model: nn.Module = super().load_model(vllm_config, model_config, prefix)
            return model
        plan = plan_of(model_config)
        if _is_draft_of(vllm_config.speculative_config, model_config):
            # said with the main model, not after its hundreds of GB are loaded
            plan.check_mtp()
            check_draft_parallel(vllm_config.parallel_config)
        logger.info(
            "%s is taken for %s: %s",
            plan.model.name,
            plan.release.name,
            "; ".join(plan.release.evidence) or "no statement",
        )
        check_config(plan, model_config.hf_config)
        check_parallel(plan.of(role), vllm_config.parallel_config)
        vllm_config.quant_config.unquantized_modules.extend(float_modules(plan, role))
        device = torch.device(vllm_config.device_config.device)
        with set_default_torch_dtype(model_config.dtype):
            with device:
                model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            place(model, plan, role)
            if envs.weights() is envs.Weights.SPEED:
                layers = hold_as_float(model, model_config.dtype)
                logger.info("%s: %d packed layers are held as float", plan.model.name, layers)
            placed = {name: parameter.nbytes for name, parameter in _materialised(model)}
            process_weights_after_loading(model, model_config, device)
        # the service compares this line with its estimate
        logger.info("%s: parameters take %d bytes", plan.model.name, resident_bytes(model, placed))
        return model

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Fill a model that exists already."""
        role = _role_of(model_config)
        if role is None:
            super().load_weights(model, model_config)
            return
        place(model, plan_of(model_config), role)


def _role_of(model_config: Any) -> Role | None:
    return ROLES.get(model_config.hf_config.architectures[0])


def _is_draft_of(speculative_config: Any, model_config: Any) -> bool:
    """Whether a draft model is to be loaded from the same file."""
    draft = getattr(speculative_config, "draft_model_config", None)
    weights = getattr(draft, "model_weights", None)
    return bool(weights) and weights == model_config.model_weights


def plan_of(model_config: Any) -> LoadPlan:
    """The plan of the file that vLLM's ModelConfig names; raises GGUFError if it is refused."""
    return plan_load(open_model(Path(model_config.model_weights or model_config.model)))


def resident_bytes(model: nn.Module, placed: Mapping[str, int]) -> int:
    """Bytes that the parameters of a loaded model hold on this rank, views counted once.

    `placed` gives the bytes of each parameter before it was processed: on CPU, oneDNN takes float weights into a form
    of its own, of the same size, and leaves empty parameters.
    """
    storages: dict[int, int] = {}
    packed = 0
    for name, parameter in _materialised(model):
        storage = parameter.untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage.nbytes()
        else:
            packed += placed.get(name, 0)
    return sum(storages.values()) + packed


def _materialised(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that exist: those of fused quantised layers do once their parts are joined."""
    return ((name, parameter) for name, parameter in model.named_parameters() if not is_lazy(parameter))


def float_modules(plan: LoadPlan, role: Role) -> list[str]:
    """Names of the modules whose weights the model in this role must hold in float."""
    modules = set()
    for planned in plan.of(role):
        if planned.treatment is not Treatment.KEEP and planned.target.endswith(".weight"):
            name = planned.target.removesuffix(".weight")
            modules.add(name.split(f".{EXPERT}")[0])
    return sorted(modules)


def place(model: Any, plan: LoadPlan, role: Role) -> Placed:
    """Hand every planned tensor of a role to the model's own weight loaders and check that each parameter got a value.

    Raises:
        GGUFError: parameters were never written; names them.
    """
    started = time.monotonic()
    placed = Placed()
    with TensorReader(plan.model) as reader:
        written = model.load_weights(_named_weights(plan, role, reader, placed))
    never_written = sorted(set(dict(model.named_parameters())) - set(written))
    if role is Role.MTP:
        never_written = [name for name in never_written if not any(part in name for part in SHARED_WITH_MAIN)]
    if never_written:
        raise GGUFError(
            f"parameters of the model that {plan.model.name} has no tensor for",
            ", ".join(never_written),
            expected="a tensor for each",
            remedy="Report it with the output of 'python -m glm5_vllm.gguf inspect': the plan and the model disagree",
        )
    logger.info(
        "%s, %s: %d tensors, %d bytes placed in %.1f s; %d tensors are for others",
        plan.model.name,
        role.value,
        placed.tensors,
        placed.nbytes,
        time.monotonic() - started,
        len(plan.model.tensors) - placed.tensors,
    )
    return placed


def _named_weights(
    plan: LoadPlan, role: Role, reader: TensorReader, placed: Placed
) -> Iterator[tuple[str, torch.Tensor]]:
    """(HF name, tensor) in the order of the file's blocks, counting what was taken."""
    tensors = plan.of(role)
    total = sum(planned.nbytes for planned in tensors)
    line_due = time.monotonic() + _SECONDS_BETWEEN_LINES
    for planned in tensors:
        if planned.treatment is Treatment.KEEP:
            yield from _quantised(planned, reader)
        else:
            weight = read_float(reader, planned, plan.hyperparameters)
            yield from zip(planned.targets, weight if planned.is_experts else [weight], strict=True)
        placed.names |= {source.name for source in planned.sources}
        placed.nbytes += planned.nbytes
        if time.monotonic() > line_due:
            logger.info("%s: %d of %d bytes placed", plan.model.name, placed.nbytes, total)
            line_due = time.monotonic() + _SECONDS_BETWEEN_LINES


def _quantised(planned: PlannedTensor, reader: TensorReader) -> Iterator[tuple[str, torch.Tensor]]:
    """The type of the blocks, then the blocks: the two parameters vllm-gguf-plugin makes of a quantised weight."""
    (source,) = planned.sources
    raw = reader.raw(source)
    names = [target.removesuffix("weight") for target in planned.targets]
    # the experts of a layer share one type, so it is told once
    yield f"{names[0]}qweight_type", torch.tensor(source.quant.type_id)
    for name, blocks in zip(names, raw if planned.is_experts else [raw], strict=True):
        yield f"{name}qweight", blocks
