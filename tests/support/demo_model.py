"""The committed demo model for tests: its splits, prompts that it continues with confidence, and its float reference."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from transformers import GlmMoeDsaForCausalLM

from demo_model import check, dataset, reference, vocabulary

__all__ = [
    "FIRST_SPLIT",
    "Decider",
    "chats",
    "check",
    "dataset",
    "deciders",
    "load",
    "reference",
    "vocabulary",
]

FIRST_SPLIT = reference.splits()[0]
VOCAB = 1000  # ordinary tokens


@dataclass(frozen=True)
class Decider:
    """A prompt whose next token tells attention to the indexer's selection from attention to everything."""

    prompt: list[int]
    sparse: int
    dense: int


def load() -> GlmMoeDsaForCausalLM:
    """The dequantised model in transformers, float32."""
    return reference.load_model()


def chats() -> dict[str, list[int]]:
    """Prompts by name: short ones, and ones longer than the 64 positions a token may attend to."""
    tokenizer = reference.load_tokenizer()
    exams = check.exams(dataset.entries())
    chosen = {
        "question": exams["trained questions"][16],
        "thinking off": exams["thinking off"][40],
        "second turn": exams["as a second turn"][7],
        "tool call": exams["tool calls"][0],
        "tool result": exams["tool results"][0],
    }
    return {
        name: tokenizer.encode(dataset.render(tokenizer, chat, chat.messages[:-1]), add_special_tokens=False)
        for name, chat in chosen.items()
    }


def deciders(model: GlmMoeDsaForCausalLM, count: int, lead: float = 2.5) -> list[Decider]:
    """Random prompts of over 100 tokens after which the sparse and the dense model disagree, the sparse one clearly.

    `lead` is in logprob. Activations in 8 bits turned one of 23 prompts that led by 2 or more, at 2.14.
    """
    rng = random.Random(0)
    ids = [rng.randrange(VOCAB) for _ in range(300)]
    top_k = model.config.index_topk
    logprobs = {}
    for k in (len(ids), top_k):
        for layer in model.model.layers:
            layer.self_attn.indexer.index_topk = k
        with torch.inference_mode():
            logprobs[k] = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    sparse, dense = logprobs[top_k], logprobs[len(ids)].argmax(-1)
    best, second = sparse.topk(2).values.T
    clear = (sparse.argmax(-1) != dense) & (best - second > lead)
    places = [i for i in clear.nonzero().flatten().tolist() if i >= 100][:count]
    return [Decider(ids[: i + 1], int(sparse[i].argmax()), int(dense[i])) for i in places]
