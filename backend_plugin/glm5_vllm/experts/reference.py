"""Float32 torch reference of routed experts. Never imports vLLM or Triton."""

from __future__ import annotations

import torch
from torch.nn.functional import silu


def routed_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> torch.Tensor:
    """The sum over each token's experts of weight * down(silu(gate(x)) * up(x)), as GLM-5's experts compute it.

    Args:
        x: [tokens, hidden].
        gate_up: float [experts, 2 * intermediate, hidden], rows of gate before those of up.
        down: float [experts, hidden, intermediate].
        topk_weights: [tokens, k].
        topk_ids: int [tokens, k]; a pair whose expert does not exist counts nothing.

    Returns:
        float32 [tokens, hidden].
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    intermediate = down.shape[2]
    for expert in topk_ids.unique().tolist():
        if not 0 <= expert < len(gate_up):
            continue
        token, k = (topk_ids == expert).nonzero(as_tuple=True)
        both = x[token].float() @ gate_up[expert].float().T
        hidden = silu(both[:, :intermediate]) * both[:, intermediate:]
        out.index_add_(0, token, (hidden @ down[expert].float().T) * topk_weights[token, k, None].float())
    return out
