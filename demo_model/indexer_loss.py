"""Teaches the indexer which tokens attention looks at; the language loss cannot, because a top-k has no gradient.

The loss is the one of DeepSeek-V3.2's dense warm-up (arXiv 2512.02556, section 2.1): KL divergence from the
attention weights, averaged over heads, to the softmax of the index scores.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import apply_rotary_pos_emb_interleave


class IndexerLoss:
    """Collects the loss of every layer while the model runs; `take` returns their mean and starts anew."""

    def __init__(self, model: GlmMoeDsaForCausalLM) -> None:
        self.losses: list[torch.Tensor] = []
        self.is_on = True
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(self._after_attention, with_kwargs=True)

    def take(self) -> torch.Tensor:
        loss = torch.stack(self.losses).mean() if self.losses else torch.zeros(())
        self.losses.clear()
        return loss

    def _after_attention(
        self,
        attention: torch.nn.Module,
        _args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: tuple[Any, ...],
    ) -> None:
        if not (self.is_on and attention.training):
            return
        # both sides detached: the indexer learns from attention, and does not pull at it
        target = output[1].detach().float().mean(1)
        hidden = kwargs["hidden_states"].detach()
        scores = index_scores(attention, hidden, kwargs["position_embeddings"])
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        log_index = F.log_softmax(scores.masked_fill(~causal, float("-inf")), -1).masked_fill(~causal, 0)
        kl = (target * (target.clamp_min(1e-9).log() - log_index)).sum(-1)
        self.losses.append(kl.mean())


def index_scores(
    attention: Any, hidden: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Scores [batch, query, key] as GlmMoeDsaIndexer computes them, with a gradient to the indexer alone."""
    indexer = attention.indexer
    heads, dim, rope_dim = indexer.n_heads, indexer.head_dim, indexer.qk_rope_head_dim
    with torch.no_grad():
        residual = attention.q_a_layernorm(attention.q_a_proj(hidden))
    q = indexer.wq_b(residual).unflatten(-1, (heads, dim))
    k = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
    q_rot, k_rot = apply_rotary_pos_emb_interleave(
        q[..., :rope_dim], k[..., :rope_dim], *rope, unsqueeze_dim=2
    )
    q = torch.cat([q_rot, q[..., rope_dim:]], -1)
    k = torch.cat([k_rot, k[..., rope_dim:]], -1).squeeze(2)
    per_head = F.relu(torch.einsum("bqhd,bkd->bqhk", q, k) * dim**-0.5)
    weights = indexer.weights_proj(hidden) * heads**-0.5
    return torch.einsum("bqh,bqhk->bqk", weights, per_head).float()
