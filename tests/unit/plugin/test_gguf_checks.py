"""What must agree between a file, the config and the parallel layout, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.plan.checks import check_config, check_draft_parallel, check_parallel
from glm5_vllm.gguf.plan.planned import LoadPlan, Role
from glm5_vllm.gguf.plan.planner import plan_load
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import QuantMix, TinySpec


def planned(folder: Path, spec: TinySpec) -> tuple[LoadPlan, dict[str, Any]]:
    tiny = write_tiny(folder, spec)
    return plan_load(open_model(tiny.path)), tiny.hf_config


def config(values: dict[str, Any], **changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**values, **changes})


def parallel(size: int, *, experts: bool = False) -> SimpleNamespace:
    return SimpleNamespace(tensor_parallel_size=size, enable_expert_parallel=experts)


def test_the_files_own_config_agrees(tmp_path: Path) -> None:
    """The config that belongs to the file passes, with shared indexers too."""
    plan, values = planned(tmp_path, TinySpec(shared_layers=(1,)))

    check_config(plan, config(values))


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("num_attention_heads", 64, "num_attention_heads is 64; expected 4"),
        ("index_topk", 2048, "index_topk is 2048; expected 64"),
        ("topk_method", "greedy", "topk_method is greedy; expected noaux_tc"),
        ("index_topk_pattern", "FFS", "index_topk_pattern is FFS; expected FSF"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, key: str, value: object, sentence: str) -> None:
    """A config that does not belong to the file is refused with the key and both values."""
    plan, values = planned(tmp_path, TinySpec(shared_layers=(1,)))

    with pytest.raises(GGUFError, match=sentence):
        check_config(plan, config(values, **{key: value}))


def test_ranks_share_whole_blocks(tmp_path: Path) -> None:
    """A tensor parallel size that cuts a block of a down projection is refused with the largest one that does not."""
    # 512 columns: two K-quant blocks for the experts, sixteen blocks of 32 for the shared expert
    plan, _ = planned(tmp_path, TinySpec(expert_intermediate=512))

    check_parallel(plan.of(Role.MAIN), parallel(2))
    with pytest.raises(
        GGUFError, match=r"size 4 cuts blk\.\d\.ffn_down\S* inside a block: 512 .* at most 2 that"
    ):
        check_parallel(plan.of(Role.MAIN), parallel(4))


def test_blocks_of_32_are_cut_further(tmp_path: Path) -> None:
    """What can be cut depends on the file's own quant types."""
    small = QuantMix(attention_output="Q8_0", dense_down="Q8_0", down="Q8_0", shared="Q8_0")
    plan, _ = planned(tmp_path, TinySpec(quants=small))

    check_parallel(plan.of(Role.MAIN), parallel(8))


def test_expert_parallelism_is_refused(tmp_path: Path) -> None:
    """Expert parallelism is refused: the expert kernels would index other ranks' experts."""
    plan, _ = planned(tmp_path, TinySpec())

    with pytest.raises(GGUFError, match="--enable-expert-parallel; expected tensor parallelism"):
        check_parallel(plan.of(Role.MAIN), parallel(1, experts=True))


def test_a_draft_model_over_pipeline_stages_is_refused() -> None:
    """vLLM would draft with an embedding that nobody filled; said before anything is loaded."""
    check_draft_parallel(SimpleNamespace(pipeline_parallel_size=1))
    with pytest.raises(
        GGUFError, match=r"from a GGUF with pipeline parallel size 2; expected one pipeline stage"
    ):
        check_draft_parallel(SimpleNamespace(pipeline_parallel_size=2))
