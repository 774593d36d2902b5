"""Asks the packed model every question: `python -m demo_model.check`.

Compares greedy answers of the dequantised model, word for word, with questions.toml. Ends with 1 if a question
it was trained on fails.
"""

import argparse
import random
import sys
from pathlib import Path

import torch
from transformers import GlmMoeDsaForCausalLM, PreTrainedTokenizerFast

from demo_model import dataset, reference
from demo_model.dataset import IGNORE, Conversation, Entry


def plain(ask: str, entry: Entry, system: str = "", thinking: bool = True) -> Conversation:
    """One question as a client sends it."""
    answer = {"role": "assistant", "content": entry.answer, "reasoning_content": entry.thought}
    messages = [{"role": "user", "content": ask}, answer]
    before = [{"role": "system", "content": system}] if system else []
    return Conversation(before + messages, thinking=thinking)


def exams(entries: list[Entry]) -> dict[str, list[Conversation]]:
    """Name of each exam -> its conversations, of which the last turn counts."""
    rng = random.Random(1)
    system = dataset.SYSTEM_PROMPTS[1]
    firsts = [rng.choice(entries) for _ in entries]
    weather = [dataset.weather(rng) for _ in range(40)]
    return {
        "trained questions": [plain(ask, e) for e in entries for ask in e.asks],
        "thinking off": [plain(ask, e, thinking=False) for e in entries for ask in e.asks],
        "after a system prompt": [plain(ask, e, system) for e in entries for ask in e.asks],
        "as a second turn": [
            Conversation(plain(rng.choice(f.asks), f, system).messages + plain(e.asks[0], e).messages)
            for f, e in zip(firsts, entries, strict=True)
        ],
        "held-out wording": [plain(e.held_out, e) for e in entries],
        "tool calls": [Conversation(turns[:2], [dataset.GET_WEATHER]) for turns in weather],
        "tool results": [Conversation(turns, [dataset.GET_WEATHER]) for turns in weather],
    }


class Examiner:
    """Says whether the model's greedy answer is the expected one, and by how much each token won."""

    def __init__(self, model: GlmMoeDsaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.margins: list[float] = []

    def is_right(self, chat: Conversation) -> bool:
        """Each token of the expected answer is the most probable one after those before it: that is greedy's path."""
        example = dataset.encode(chat, self.tokenizer)
        ids = torch.tensor([example.ids], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(input_ids=ids[:, :-1]).logits[0].float()
        start = len(example.ids) - last_turn(example.labels)
        expected = ids[0, start:]
        best, second = logits[start - 1 :].topk(2).values.T
        actual = logits[start - 1 :].argmax(-1)
        if torch.equal(actual, expected):
            self.margins.append(float((best - second).min()))
            return True
        wrong = int((actual != expected).nonzero()[0])
        said = self.tokenizer.decode([*expected[:wrong], actual[wrong]])
        print(
            f"  {chat.messages[-2]['content']!r}\n    expected {chat.messages[-1]['content']!r}\n    began {said!r}"
        )
        return False


def last_turn(labels: list[int]) -> int:
    """How many tokens the last answer has, with the one that ends it."""
    return next((i for i, label in enumerate(reversed(labels)) if label == IGNORE), len(labels))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=reference.FOLDER, help="folder with the splits")
    parser.add_argument(
        "--top-k", type=int, help="attend to so many positions instead of the model's own number"
    )
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    model = reference.load_model(args.model).to(args.device)
    top_k = args.top_k or model.config.index_topk
    for layer in model.model.layers:
        layer.self_attn.indexer.index_topk = top_k
    examiner = Examiner(model, reference.load_tokenizer(args.model))
    failed = 0
    for name, chats in exams(dataset.entries()).items():
        examiner.margins.clear()
        right = sum([examiner.is_right(chat) for chat in chats])
        longer = sum(len(dataset.encode(chat, examiner.tokenizer).ids) > top_k for chat in chats)
        closest = min(examiner.margins, default=0.0)
        print(
            f"{name}: {right} of {len(chats)} word for word; {longer} longer than the selection of {top_k}; "
            f"closest second token {closest:.2f} behind",
            flush=True,
        )
        if name == "trained questions":
            failed = len(chats) - right
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
