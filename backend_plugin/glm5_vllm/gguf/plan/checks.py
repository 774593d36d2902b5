"""What must agree between a planned file, the model's config and the way it is spread over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.model.release import FULL
from glm5_vllm.gguf.plan.names import Treatment
from glm5_vllm.gguf.plan.planned import LoadPlan, PlannedTensor

# HF config key -> the hyperparameter it must equal: a config of another model would load and answer nonsense
CONFIG_KEYS = {
    "num_hidden_layers": "layers",
    "first_k_dense_replace": "dense_layers",
    "hidden_size": "hidden",
    "intermediate_size": "dense_intermediate",
    "moe_intermediate_size": "expert_intermediate",
    "vocab_size": "vocab",
    "num_attention_heads": "heads",
    "q_lora_rank": "q_lora",
    "kv_lora_rank": "kv_lora",
    "qk_rope_head_dim": "rope_dim",
    "qk_nope_head_dim": "nope_dim",
    "v_head_dim": "value_dim",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_used",
    "n_shared_experts": "shared_experts",
    "n_group": "expert_groups",
    "topk_group": "expert_groups_used",
    "norm_topk_prob": "normalize_experts",
    "index_n_heads": "indexer_heads",
    "index_head_dim": "indexer_dim",
    "index_topk": "indexer_top_k",
}

# tensors that a rank takes a range of columns of, by the end of their HF name; each range must be whole blocks
CUT_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")


def check_config(plan: LoadPlan, config: Any) -> None:
    """Raise GGUFError where the HF config is not one of this file's model."""
    for key, field in CONFIG_KEYS.items():
        wanted, found = getattr(plan.hyperparameters, field), getattr(config, key, None)
        if found != wanted:
            raise _config_error(plan, key, found, wanted)
    if getattr(config, "topk_method", None) != "noaux_tc":
        raise _config_error(plan, "topk_method", getattr(config, "topk_method", None), "noaux_tc")
    # vLLM drops the indexer of a layer that the config calls shared without a word
    pattern = "".join("F" if kind == FULL else "S" for kind in plan.indexer_types)
    found = getattr(config, "index_topk_pattern", None) or "F" * len(pattern)
    if "S" in pattern + found and found != pattern and getattr(config, "index_topk_freq", 1) == 1:
        raise _config_error(plan, "index_topk_pattern", found, pattern)


def check_parallel(tensors: Iterable[PlannedTensor], parallel: Any) -> None:
    """Raise GGUFError where the ranks cannot share the blocks of these tensors.

    Args:
        tensors: what is loaded.
        parallel: vLLM's ParallelConfig.
    """
    if parallel.enable_expert_parallel:
        raise GGUFError(
            "expert parallelism of a GGUF model: --enable-expert-parallel",
            expected="tensor parallelism, the only way vllm-gguf-plugin's expert kernels know",
            remedy="Leave the flag out",
        )
    size = parallel.tensor_parallel_size
    for planned in tensors:
        if planned.treatment is Treatment.KEEP and planned.target.endswith(CUT_BY_COLUMNS):
            _check_columns(planned, size)


def check_draft_parallel(parallel: Any) -> None:
    """Raise GGUFError where vLLM wants the draft model to bring an embedding of its own.

    Args:
        parallel: vLLM's ParallelConfig.
    """
    size = parallel.pipeline_parallel_size
    if size > 1:
        # the main model's embedding is on the first rank, the draft model runs on the last
        raise GGUFError(
            f"multi-token prediction from a GGUF with pipeline parallel size {size}",
            expected="one pipeline stage, where the draft model uses the main model's embedding",
            remedy="Leave out --speculative-config (engine.mtpTokens: 0), or spread the model over one node's GPUs only",
        )


def _check_columns(planned: PlannedTensor, size: int) -> None:
    (source,) = planned.sources
    columns, block = planned.shape[-1], source.quant.block_elements
    if columns % (size * block):
        raise GGUFError(
            f"tensor parallel size {size} cuts {source.name} inside a block",
            f"{columns} columns in {source.quant.name} blocks of {block}",
            expected=f"a size of at most {columns // block} that divides the blocks evenly",
            remedy="Set a smaller --tensor-parallel-size",
        )


def _config_error(plan: LoadPlan, key: str, found: object, wanted: object) -> GGUFError:
    return GGUFError(
        f"config.json does not belong to {plan.model.name}: {key} is {found}",
        expected=f"{wanted}",
        remedy="Point --hf-config-path at this model's folder, or leave it out to build the config from the file",
    )
