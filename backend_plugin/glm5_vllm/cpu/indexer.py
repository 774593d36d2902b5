"""DSA's lightning indexer in torch, for the CPU profile.

score(t, s) = sum over heads h of w[t, h] * relu(q[t, h] . k[s]). Each row attends to the causal top-k of its scores
(DeepSeek-V3.2, section 2.1). Keys are cached in the activation dtype, so that results equal those of transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.layernorm import LayerNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, ReplicatedLinear
from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache
from vllm.v1.attention.backend import AttentionBackend

from glm5_vllm.cpu.metadata import RowMetadata, RowMetadataBuilder, write_rows


class TorchIndexerBackend(AttentionBackend):
    """Tells vLLM which metadata the indexer's key cache needs. It computes nothing."""

    @staticmethod
    def get_name() -> str:
        return "TORCH_DSA_INDEXER"

    @staticmethod
    def get_impl_cls() -> Any:
        return None

    @staticmethod
    def get_builder_cls() -> type[RowMetadataBuilder]:
        return RowMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []


class TorchIndexerCache(DeepseekV32IndexerCache):
    """Paged cache of the indexer's keys: [blocks, block_size, 128] in the activation dtype."""

    def get_attn_backend(self) -> type[AttentionBackend]:
        return TorchIndexerBackend


class TorchIndexer(nn.Module):
    """Replaces `Indexer` of the generic model file. It has the same weights and the same call."""

    def __init__(
        self,
        vllm_config: Any,
        config: Any,
        hidden_size: int,
        q_lora_rank: int,
        quant_config: Any,
        cache_config: Any,
        topk_indices_buffer: torch.Tensor | None,
        prefix: str = "",
        is_inplace_rope: bool = False,
    ) -> None:
        super().__init__()
        self.topk_tokens: int = config.index_topk
        self.heads: int = config.index_n_heads
        self.head_dim: int = config.index_head_dim
        self.rope_dim: int = config.qk_rope_head_dim
        self.topk_indices_buffer = topk_indices_buffer
        self.wq_b = ReplicatedLinear(
            q_lora_rank,
            self.head_dim * self.heads,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.wq_b",
        )
        # stays in float as in the stock model file, because its two halves may have different quantisations
        self.wk_weights_proj = MergedColumnParallelLinear(
            hidden_size,
            [self.head_dim, self.heads],
            bias=False,
            quant_config=None,
            disable_tp=True,
            prefix=f"{prefix}.wk_weights_proj",
        )
        self.k_norm = LayerNorm(self.head_dim, eps=1e-6, dtype=torch.float32)
        self.k_cache = TorchIndexerCache(
            head_dim=self.head_dim,
            dtype=vllm_config.model_config.dtype,
            prefix=f"{prefix}.k_cache",
            cache_config=cache_config,
        )

    def forward(
        self, hidden_states: torch.Tensor, qr: torch.Tensor, positions: torch.Tensor, rotary_emb: nn.Module
    ) -> torch.Tensor | None:
        """Write the step's keys. Then write each row's top-k positions into the shared buffer, with -1 after the last.

        Args:
            hidden_states: [rows, hidden]. qr: [rows, q_lora_rank], the normed query latent. positions: int [rows].
            rotary_emb: the indexer's rotary embedding.
        """
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict) or self.topk_indices_buffer is None:
            return self.topk_indices_buffer  # a profiling run: there is no cache yet
        step: RowMetadata = metadata[self.k_cache.prefix]
        q, k, weights = self._project(hidden_states, qr, positions, rotary_emb)
        rows = step.num_actual_tokens
        write_rows(self.k_cache.kv_cache, step.slot_mapping, k[:rows])
        self.topk_indices_buffer[:rows] = -1
        for request in range(step.num_reqs):
            part = slice(int(step.query_start_loc[request]), int(step.query_start_loc[request + 1]))
            if part.stop > part.start:
                top = self._top_positions(q[part], weights[part], step.position_of_row[part], step, request)
                self.topk_indices_buffer[part, : top.shape[1]] = top
        return self.topk_indices_buffer

    def _project(
        self, hidden_states: torch.Tensor, qr: torch.Tensor, positions: torch.Tensor, rotary_emb: nn.Module
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q [rows, heads, 128], k [rows, 128], weights [rows, heads]. The weights include both scale factors."""
        q = self.wq_b(qr)[0].view(-1, self.heads, self.head_dim)
        k, weights = self.wk_weights_proj(hidden_states)[0].split([self.head_dim, self.heads], dim=-1)
        k = self.k_norm(k)
        q_rope, q_plain = q.split([self.rope_dim, self.head_dim - self.rope_dim], dim=-1)
        k_rope, k_plain = k.split([self.rope_dim, self.head_dim - self.rope_dim], dim=-1)
        q_rope, k_rope = rotary_emb(positions, q_rope, k_rope.unsqueeze(1))
        q = torch.cat([q_rope.reshape_as(q[..., : self.rope_dim]), q_plain], dim=-1)
        k = torch.cat([k_rope.reshape(-1, self.rope_dim), k_plain], dim=-1)
        # convert to float before scaling. Rounding the weights first would flip near-ties in the top-k
        return q, k, weights.float() * (self.head_dim**-0.5 * self.heads**-0.5)

    def _top_positions(
        self, q: torch.Tensor, weights: torch.Tensor, position: torch.Tensor, step: RowMetadata, request: int
    ) -> torch.Tensor:
        """Return top-k positions of one request's rows: int32 [rows, min(top-k, length)], with -1 if there are fewer."""
        length = int(step.seq_lens[request])
        s = torch.arange(length)
        cache = self.k_cache.kv_cache
        keys = cache[step.block_table[request].long()[s // step.block_size], s % step.block_size].float()
        scores = torch.relu(torch.einsum("thd,sd->ths", q.float(), keys))
        scores = torch.einsum("ths,th->ts", scores, weights)
        scores = scores.masked_fill(s[None] > position[:, None], float("-inf"))
        top = scores.topk(min(self.topk_tokens, length), dim=-1)
        return top.indices.masked_fill(top.values == float("-inf"), -1).to(torch.int32)
