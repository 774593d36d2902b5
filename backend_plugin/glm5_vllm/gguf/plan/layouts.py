"""Layouts of other converters, brought to the one that names.py describes. Renames and takes rows; copies no bytes."""

from __future__ import annotations

from collections.abc import Mapping

from glm5_vllm.gguf.file.header import TensorInfo
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters

# names without the block's prefix: as some converters write it -> as llama.cpp does
ALIASES = {"exp_probs_b": "exp_probs_b.bias", "exp_probs_b.weight": "exp_probs_b.bias"}
# `convert_hf_to_gguf.py --fuse-gate-up-exps` writes one tensor of both: in each expert the rows of gate, then those of up
FUSED = "ffn_gate_up_exps.weight"
FUSED_PARTS = ("ffn_gate_exps.weight", "ffn_up_exps.weight")


def fused_shape(h: Hyperparameters) -> tuple[int, ...]:
    """Shape of the tensor that holds gate and up."""
    return (h.experts, 2 * h.expert_intermediate, h.hidden)


def current_layout(present: Mapping[str, TensorInfo], h: Hyperparameters) -> dict[str, TensorInfo]:
    """The tensors of one block under the names of names.py; what fits no known layout stays as it is."""
    tensors = dict(present)
    for alias, name in ALIASES.items():
        if alias in tensors and name not in tensors:
            tensors[name] = tensors.pop(alias)
    fused = tensors.get(FUSED)
    if (
        fused is not None
        and fused.shape == fused_shape(h)
        and not any(part in tensors for part in FUSED_PARTS)
    ):
        rows = h.expert_intermediate
        del tensors[FUSED]
        tensors |= {part: fused.rows_of_each(i * rows, (i + 1) * rows) for i, part in enumerate(FUSED_PARTS)}
    return tensors
