"""What the patches of vllm-gguf-plugin do that no CPU run reaches."""

from __future__ import annotations

import pytest
import torch

from glm5_vllm.patches.gguf_expert_grid import GRID_Z, _in_launches_that_fit

ROW = 3


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
