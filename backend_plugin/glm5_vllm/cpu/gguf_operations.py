"""Torch operations on GGUF-quantised weights for the CPU profile: dequantise, multiply, mixture of experts.

They have the signatures of vllm_gguf_plugin.ops and replace its CUDA and Triton kernels. Weights are dequantised in
float32. Products are computed in the activation dtype.
"""

from __future__ import annotations

import torch
from torch.nn import Parameter
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from glm5_vllm.gguf.file.quant_types import BY_ID
from glm5_vllm.gguf.values.dequant import dequantize as reference_dequantize

# floats of the model's own weights, made at first use. The profile's models are small. Dequantising them again for
# every token would take longer than the products
_floats_of = WeakTensorKeyDictionary()


def dequantize(raw: torch.Tensor, quant_type: int, m: int, n: int, dtype: torch.dtype | None) -> torch.Tensor:
    """Dequantise raw blocks of m * n elements to [m, n] in `dtype` (float32 if None)."""
    return reference_dequantize(raw, BY_ID[quant_type], (m, n)).to(dtype or torch.float32)


def multiply(raw: torch.Tensor, x: torch.Tensor, quant_type: int, rows: int) -> torch.Tensor:
    """Multiply x [tokens, columns] by the transpose of raw [rows, bytes per row]. Returns [tokens, rows]."""
    return x @ _weight(raw, quant_type, (rows, x.shape[1]), x.dtype).T


def _weight(raw: torch.Tensor, quant_type: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return the floats of raw blocks in `shape`. Only parameters are cached, because they last and do not change."""
    known = _floats_of.get(raw) if isinstance(raw, Parameter) else None
    if known is None or known.dtype != dtype:
        known = reference_dequantize(raw, BY_ID[quant_type], shape).to(dtype)
        if isinstance(raw, Parameter):
            _floats_of[raw] = known
    return known


def mixture_of_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13_type: int,
    w2_type: int,
    activation: str,
) -> torch.Tensor:
    """Routed experts: sum over each token's experts of weight * down(silu(gate(x)) * up(x)).

    Args:
        x: [tokens, hidden]. w13: raw [experts, 2 * intermediate, bytes], gate rows before up rows.
        w2: raw [experts, hidden, bytes]. topk_weights, topk_ids: [tokens, k].
        w13_type, w2_type: ggml type ids. activation: only silu.

    Raises:
        NotImplementedError: another activation.
    """
    if activation != "silu":
        raise NotImplementedError(
            f"activation of the experts: {activation}; expected silu, the only one of GLM-5"
        )
    tokens, hidden = x.shape
    gate_up = _weight(w13, w13_type, (*w13.shape[:2], hidden), x.dtype)
    down = _weight(w2, w2_type, (w2.shape[0], hidden, w13.shape[1] // 2), x.dtype)
    out = torch.zeros(tokens, hidden, dtype=torch.float32)
    for expert in topk_ids.unique().tolist():
        token, choice = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token] @ gate_up[expert].T).chunk(2, dim=-1)
        expert_out = (F.silu(gate) * up) @ down[expert].T
        out.index_add_(0, token, expert_out.float() * topk_weights[token, choice, None].float())
    return out.to(x.dtype)
