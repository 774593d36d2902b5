"""The one table of tensors: GGUF name -> HF name, expected shape, accepted types and treatment. Default deny.

A tensor without a rule is refused by planner.py, and so is one whose shape or type its rule does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from glm5_vllm.gguf.file.quant_types import LOADABLE, LOADABLE_FLOAT, QuantType
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters

Shape = tuple[int, ...]


class Treatment(StrEnum):
    """What the loader does with a tensor's bytes."""

    KEEP = "keep"
    """Hand the blocks over as they are; vLLM multiplies by them quantised."""
    FLOAT = "float"
    """Dequantise: vLLM holds this parameter in float."""
    FUSE_KV_B = "fuse_kv_b"
    """Dequantise two tensors and join them to `kv_b_proj`."""


class Where(StrEnum):
    """Where a tensor occurs, and with that where it is missed."""

    MODEL = "model"
    BLOCK = "block"
    DENSE = "dense"
    MOE = "moe"
    INDEXER = "indexer"
    KV_B_SPLIT = "kv_b_split"
    KV_B_WHOLE = "kv_b_whole"
    MTP = "mtp"
    MTP_COPY = "mtp_copy"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. `shapes` lists the accepted shapes, the current one first."""

    gguf: str
    hf: str
    where: Where
    shapes: Callable[[Hyperparameters], tuple[Shape, ...]]
    treatment: Treatment = Treatment.KEEP
    types: frozenset[QuantType] = LOADABLE


def _one(shape: Callable[[Hyperparameters], Shape]) -> Callable[[Hyperparameters], tuple[Shape, ...]]:
    return lambda h: (shape(h),)


_hidden = _one(lambda h: (h.hidden,))
_vocab = _one(lambda h: (h.vocab, h.hidden))
_dense_in = _one(lambda h: (h.dense_intermediate, h.hidden))
_dense_out = _one(lambda h: (h.hidden, h.dense_intermediate))
_expert_in = _one(lambda h: (h.experts, h.expert_intermediate, h.hidden))
_expert_out = _one(lambda h: (h.experts, h.hidden, h.expert_intermediate))
_shared_in = _one(lambda h: (h.expert_intermediate * h.shared_experts, h.hidden))
_shared_out = _one(lambda h: (h.hidden, h.expert_intermediate * h.shared_experts))


def _norm(gguf: str, hf: str, where: Where, shapes: Callable[[Hyperparameters], tuple[Shape, ...]]) -> Rule:
    """A vector that is never quantised."""
    return Rule(gguf, hf, where, shapes, Treatment.FLOAT, LOADABLE_FLOAT)


EXPERT = "{expert}"

MODEL_RULES = (
    Rule("token_embd.weight", "model.embed_tokens.weight", Where.MODEL, _vocab),
    _norm("output_norm.weight", "model.norm.weight", Where.MODEL, _hidden),
    Rule("output.weight", "lm_head.weight", Where.MODEL, _vocab),
)

# names without their prefix: blk.N. in GGUF, model.layers.N. in HF
BLOCK_RULES = (
    _norm("attn_norm.weight", "input_layernorm.weight", Where.BLOCK, _hidden),
    _norm("ffn_norm.weight", "post_attention_layernorm.weight", Where.BLOCK, _hidden),
    Rule("attn_q_a.weight", "self_attn.q_a_proj.weight", Where.BLOCK, _one(lambda h: (h.q_lora, h.hidden))),
    _norm("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", Where.BLOCK, _one(lambda h: (h.q_lora,))),
    Rule(
        "attn_q_b.weight",
        "self_attn.q_b_proj.weight",
        Where.BLOCK,
        _one(lambda h: (h.heads * h.head_dim, h.q_lora)),
    ),
    Rule(
        "attn_kv_a_mqa.weight",
        "self_attn.kv_a_proj_with_mqa.weight",
        Where.BLOCK,
        _one(lambda h: (h.kv_lora + h.rope_dim, h.hidden)),
    ),
    _norm(
        "attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", Where.BLOCK, _one(lambda h: (h.kv_lora,))
    ),
    # older converters flattened the heads into the rows; the bytes are the same
    Rule(
        "attn_k_b.weight",
        "self_attn.kv_b_proj.weight",
        Where.KV_B_SPLIT,
        lambda h: ((h.heads, h.kv_lora, h.nope_dim), (h.heads * h.kv_lora, h.nope_dim)),
        Treatment.FUSE_KV_B,
    ),
    Rule(
        "attn_v_b.weight",
        "self_attn.kv_b_proj.weight",
        Where.KV_B_SPLIT,
        lambda h: ((h.heads, h.value_dim, h.kv_lora), (h.heads * h.value_dim, h.kv_lora)),
        Treatment.FUSE_KV_B,
    ),
    # float in either layout: vLLM absorbs kv_b_proj into the query and output projections after loading
    Rule(
        "attn_kv_b.weight",
        "self_attn.kv_b_proj.weight",
        Where.KV_B_WHOLE,
        _one(lambda h: (h.heads * (h.nope_dim + h.value_dim), h.kv_lora)),
        Treatment.FLOAT,
    ),
    Rule(
        "attn_output.weight",
        "self_attn.o_proj.weight",
        Where.BLOCK,
        _one(lambda h: (h.hidden, h.heads * h.value_dim)),
    ),
    Rule(
        "indexer.attn_q_b.weight",
        "self_attn.indexer.wq_b.weight",
        Where.INDEXER,
        _one(lambda h: (h.indexer_heads * h.indexer_dim, h.q_lora)),
    ),
    # vLLM computes wk and weights_proj as one float matrix
    Rule(
        "indexer.attn_k.weight",
        "self_attn.indexer.wk.weight",
        Where.INDEXER,
        _one(lambda h: (h.indexer_dim, h.hidden)),
        Treatment.FLOAT,
    ),
    Rule(
        "indexer.proj.weight",
        "self_attn.indexer.weights_proj.weight",
        Where.INDEXER,
        _one(lambda h: (h.indexer_heads, h.hidden)),
        Treatment.FLOAT,
    ),
    _norm(
        "indexer.k_norm.weight",
        "self_attn.indexer.k_norm.weight",
        Where.INDEXER,
        _one(lambda h: (h.indexer_dim,)),
    ),
    _norm(
        "indexer.k_norm.bias",
        "self_attn.indexer.k_norm.bias",
        Where.INDEXER,
        _one(lambda h: (h.indexer_dim,)),
    ),
    Rule("ffn_gate.weight", "mlp.gate_proj.weight", Where.DENSE, _dense_in),
    Rule("ffn_up.weight", "mlp.up_proj.weight", Where.DENSE, _dense_in),
    Rule("ffn_down.weight", "mlp.down_proj.weight", Where.DENSE, _dense_out),
    # the router decides which experts run, so vLLM keeps it in float
    Rule(
        "ffn_gate_inp.weight",
        "mlp.gate.weight",
        Where.MOE,
        _one(lambda h: (h.experts, h.hidden)),
        Treatment.FLOAT,
    ),
    _norm("exp_probs_b.bias", "mlp.gate.e_score_correction_bias", Where.MOE, _one(lambda h: (h.experts,))),
    Rule("ffn_gate_exps.weight", f"mlp.experts.{EXPERT}.gate_proj.weight", Where.MOE, _expert_in),
    Rule("ffn_up_exps.weight", f"mlp.experts.{EXPERT}.up_proj.weight", Where.MOE, _expert_in),
    Rule("ffn_down_exps.weight", f"mlp.experts.{EXPERT}.down_proj.weight", Where.MOE, _expert_out),
    Rule("ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight", Where.MOE, _shared_in),
    Rule("ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", Where.MOE, _shared_in),
    Rule("ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight", Where.MOE, _shared_out),
    # eh_proj is a plain torch Linear in vLLM's draft model
    Rule(
        "nextn.eh_proj.weight",
        "eh_proj.weight",
        Where.MTP,
        _one(lambda h: (h.hidden, 2 * h.hidden)),
        Treatment.FLOAT,
    ),
    _norm("nextn.enorm.weight", "enorm.weight", Where.MTP, _hidden),
    _norm("nextn.hnorm.weight", "hnorm.weight", Where.MTP, _hidden),
    _norm("nextn.shared_head_norm.weight", "shared_head.norm.weight", Where.MTP, _hidden),
    Rule("nextn.embed_tokens.weight", "embed_tokens.weight", Where.MTP_COPY, _vocab),
    Rule("nextn.shared_head_head.weight", "shared_head.head.weight", Where.MTP_COPY, _vocab),
)

# vLLM computes each of these groups in one layer, whose parts are either all quantised or all float
FUSED_LINEARS = (
    ("attn_q_a.weight", "attn_kv_a_mqa.weight"),
    ("ffn_gate.weight", "ffn_up.weight"),
    ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
    ("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"),
)

# the fused expert kernel keeps one type for gate and up
ONE_TYPE = ("ffn_gate_exps.weight", "ffn_up_exps.weight")

MODEL_BY_NAME = {rule.gguf: rule for rule in MODEL_RULES}
BLOCK_BY_NAME = {rule.gguf: rule for rule in BLOCK_RULES}
