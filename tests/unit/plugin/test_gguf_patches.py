"""What the patches of vllm-gguf-plugin do that no CPU run reaches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.layers import linear
from vllm_gguf_plugin.quantization.linear import GGUFLinearMethod

from glm5_vllm.patches import gguf_layer_rank, gguf_replicated_linear
from glm5_vllm.patches.gguf_expert_grid import GRID_Z, _in_launches_that_fit

ROW = 3
# of a quantised row, in bytes
COLUMNS = 18
LAYERS = {
    "column": linear.ColumnParallelLinear,
    "group of a decode context": linear.DCPGroupColumnParallelLinear,
    "replicated": linear.ReplicatedLinear,
}


@pytest.mark.parametrize(
    ("tokens", "top_k", "launches"),
    [(64, 8, 1), (GRID_Z // 8, 8, 1), (8192, 8, 2), (65_536, 1, 2), (20_000, 8, 3)],
)
def test_experts_are_launched_within_the_grid(tokens: int, top_k: int, launches: int) -> None:
    """No launch has more pairs than CUDA's grid takes in z, and together they give what one would."""
    x = torch.randn(tokens, 2)
    # the second product of a layer gets the ids as the first did: a row for each token, its experts beside each other
    ids = torch.randint(0, 256, (tokens, top_k) if top_k > 1 else (tokens // 8, 8), dtype=torch.int32)
    pairs = []

    def kernel(
        x: torch.Tensor, _: torch.Tensor, ids: torch.Tensor, top_k: int, _type: int, row: int, tokens: int
    ) -> torch.Tensor:
        pairs.append(tokens * top_k)
        assert x.shape[0] == tokens
        assert ids.is_contiguous()
        return x.repeat_interleave(top_k, 0).sum(1, keepdim=True) * 1000 + ids.reshape(-1, 1).expand(-1, row)

    weights = torch.empty(0)
    out = _in_launches_that_fit(kernel)(x, weights, ids, top_k, 23, ROW, tokens)

    assert len(pairs) == launches
    assert max(pairs) <= GRID_Z
    torch.testing.assert_close(out, kernel(x, weights, ids, top_k, 23, ROW, tokens))


class _Quantised:
    """As much of a quantisation as a linear layer asks for."""

    online_quantization_config = None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> GGUFLinearMethod:
        return GGUFLinearMethod(self)


@pytest.mark.parametrize(("ranks", "context_ranks"), [(2, 1), (2, 2), (4, 2), (8, 8)])
@pytest.mark.parametrize("kind", ["column", "group of a decode context", "joined", "replicated"])
def test_a_rank_has_the_rows_that_its_layer_says(
    kind: str, ranks: int, context_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quantised layer is cut as the same layer with float weights: by rank, by group of ranks, part by part, or not."""
    gguf_layer_rank.apply()
    gguf_replicated_linear.apply()
    parallel = SimpleNamespace(decode_context_parallel_size=context_ranks)
    config = SimpleNamespace(parallel_config=parallel, compilation_config=SimpleNamespace(custom_ops=[]))
    monkeypatch.setattr(linear, "get_current_vllm_config", lambda: config)
    monkeypatch.setattr(linear, "get_tensor_model_parallel_world_size", lambda: ranks)
    group = {"group of a decode context": context_ranks, "replicated": ranks}.get(kind, 1)
    weight = torch.arange(64, dtype=torch.uint8)[:, None].repeat(1, COLUMNS)
    for rank in range(ranks):
        monkeypatch.setattr(linear, "get_tensor_model_parallel_rank", lambda rank=rank: rank)
        layer = _layer(kind, weight)
        share = 64 * group // ranks
        start = rank // group * share
        expected = weight[start : start + share]
        if kind == "joined":
            assert [part[0, 0] for part in layer.qweight.data_container] == [start, start]
            continue
        torch.testing.assert_close(layer.qweight.data, expected)
        assert share == sum(layer.output_partition_sizes)


def _layer(kind: str, weight: torch.Tensor) -> torch.nn.Module:
    """A loaded layer of that kind."""
    arguments = {"bias": False, "quant_config": _Quantised(), "prefix": "layer"}
    if kind == "joined":
        layer = linear.MergedColumnParallelLinear(COLUMNS, [64, 64], **arguments)
        for part in (0, 1):
            layer.qweight.weight_loader(layer.qweight, weight, part)
        return layer
    layer = LAYERS[kind](COLUMNS, 64, **arguments)
    layer.qweight.weight_loader(layer.qweight, weight)
    return layer
