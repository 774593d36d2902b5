"""Multi-token prediction from the block that the GGUF carries: what it proposes, and that it changes no answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support.engine import EngineRun, run_engine
from tests.support.hf_model import draft_tokens, load_float32, random_prompts
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import TinySpec

pytestmark = pytest.mark.engine


def test_draft_model_proposes_what_the_block_says(tmp_path: Path) -> None:
    """Greedy tokens stay the main model's, and each proposed token is transformers' of the dequantised block."""
    tiny = write_tiny(tmp_path / "gguf", TinySpec(splits=3, mtp=True))
    main = load_float32(tiny.write_reference(tmp_path / "reference"))
    hf = tiny.write_config(tmp_path / "hf")
    # longer than index_topk, so that the block's own indexer selects
    prompt = [token % tiny.hf_config["vocab_size"] for token in random_prompts((100,))[0]]
    run = EngineRun(
        str(tiny.path),
        [prompt],
        max_tokens=12,
        engine={
            "dtype": "float32",
            "tokenizer": str(hf),
            "skip_tokenizer_init": True,
            "max_model_len": 512,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
        },
    )

    ((completion,),) = run_engine(run, tmp_path)
    proposed = [draft for (draft,) in json.loads((tmp_path / "out.json").read_text())["drafts"]]

    tokens = prompt + completion.tokens
    with torch.no_grad():
        logits = main(torch.tensor([tokens[:-1]]), use_cache=False).logits[0]
    assert completion.tokens == logits[len(prompt) - 1 :].argmax(-1).tolist()
    expected = draft_tokens(main, tiny.mtp_reference(), tokens, len(prompt) + 1)
    assert set(expected) - set(completion.tokens), "a block that repeats the main model would prove nothing"
    assert proposed[-len(expected) :] == expected
