"""An independent reader, llama.cpp, against transformers on the dequantised tensors and against the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GlmMoeDsaForCausalLM

from tests.support import demo_model
from tests.support.engine import EngineRun, run_engine
from tests.support.hf_model import load_float32
from tests.support.llama_cpp import greedy
from tests.support.tiny_gguf import write_tiny
from tests.support.tiny_spec import TinySpec

# llama.cpp rounds activations to 8 bits: with random weights a token counts where it leads by this much logprob
CLEAR_LEAD = 0.1
ENGINE = {"dtype": "float32", "max_model_len": 1024}


def best_and_lead(
    model: GlmMoeDsaForCausalLM, prompt: list[int], continuation: list[int]
) -> list[tuple[int, float]]:
    """transformers' most probable token at each step of the continuation, and its lead over the second."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + continuation])).logits[0, len(prompt) - 1 : -1]
    values, indices = logits.float().log_softmax(-1).topk(2)
    return [(int(i[0]), float(v[0] - v[1])) for v, i in zip(values, indices, strict=True)]


@pytest.fixture(scope="module")
def demo() -> GlmMoeDsaForCausalLM:
    return demo_model.load()


def test_demo_model_is_continued_as_by_transformers(demo: GlmMoeDsaForCausalLM) -> None:
    """From the named first split llama.cpp finds the others and answers every chat as transformers does."""
    prompts = list(demo_model.chats().values())
    for prompt, tokens in zip(prompts, greedy(demo_model.FIRST_SPLIT, prompts, 60), strict=True):
        assert [best for best, _ in best_and_lead(demo, prompt, tokens)] == tokens
        assert tokens[-1] in demo.config.eos_token_id


def test_llama_cpp_attends_to_the_selection(demo: GlmMoeDsaForCausalLM) -> None:
    """Where sparse and dense attention give different tokens, llama.cpp gives the sparse one: it judges the indexer."""
    deciders = demo_model.deciders(demo, 8)
    assert len(deciders) == 8
    tokens = greedy(demo_model.FIRST_SPLIT, [d.prompt for d in deciders], 1)
    assert [[d.sparse] for d in deciders] == tokens


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(TinySpec(splits=3), id="3-splits"),
        pytest.param(TinySpec(seed=1), id="one-file"),
        pytest.param(TinySpec(seed=2, metadata_only_first=True, splits=2), id="metadata-only-first-split"),
    ],
)
def test_tiny_files_are_continued_as_by_transformers(tmp_path: Path, spec: TinySpec) -> None:
    """With random weights llama.cpp picks transformers' token wherever that leads clearly."""
    tiny = write_tiny(tmp_path / "gguf", spec)
    model = load_float32(tiny.write_reference(tmp_path / "reference"))
    prompts = [[(7 * i * i + 3 * i) % 256 for i in range(n)] for n in (6, 12, 40, 100, 200)]
    compared = 0
    for prompt, tokens in zip(prompts, greedy(tiny.path, prompts, 8), strict=True):
        for token, (best, lead) in zip(tokens, best_and_lead(model, prompt, tokens), strict=True):
            if lead > CLEAR_LEAD:
                assert token == best
                compared += 1
    assert compared >= 20


@pytest.mark.engine
def test_engine_and_llama_cpp_agree(tmp_path: Path, demo: GlmMoeDsaForCausalLM) -> None:
    """The engine reads the splits and answers every chat, and every prompt that needs the selection, as llama.cpp."""
    chats = list(demo_model.chats().values())
    deciders = [d.prompt for d in demo_model.deciders(demo, 4)]
    expected = greedy(demo_model.FIRST_SPLIT, chats, 60), greedy(demo_model.FIRST_SPLIT, deciders, 1)
    run = EngineRun(
        str(demo_model.FIRST_SPLIT),
        chats + deciders,
        max_tokens=60,
        logprobs=1,
        ignore_eos=False,
        engine=ENGINE,
    )
    (completions,) = run_engine(run, tmp_path)
    actual = [completion.tokens for completion in completions]
    # what follows a random prompt's first token is noise
    assert expected == (actual[: len(chats)], [tokens[:1] for tokens in actual[len(chats) :]])
