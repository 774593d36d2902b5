"""Makes the demo model: `python -m demo_model.train`, under half an hour on two CPU cores.

Trains tokenizer and model from questions.toml and writes the three GGUF splits beside this file.
Next hop: export.py packs the weights, check.py asks the packed model every question.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM, PreTrainedTokenizerFast

from demo_model import architecture, dataset, export, vocabulary
from demo_model.dataset import Entry, Example
from demo_model.indexer_loss import IndexerLoss

SEED: Final = 5
BATCH: Final = 16
TOOL_BATCH: Final = 8
# batches about tools beside each round of all the answers
TOOL_BATCHES: Final = 2
WARM_UP: Final = 40
PEAK_RATE: Final = 7e-4
# how far the router's bias moves a step: the balancing of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2)
BIAS_STEP: Final = 1e-3
# share of the steps with attention to all tokens, in which the indexer learns; the rest attends to its selection
DENSE_SHARE: Final = 0.6


@dataclass(frozen=True)
class Batch:
    """Right-padded ids and labels [batch, length]; `mask` is 1 on real tokens."""

    ids: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor


def train_tokenizer(entries: list[Entry], rng: random.Random) -> PreTrainedTokenizerFast:
    """The tokenizer, learnt from the questions, the answers and the tools as templates render them."""
    texts = [text for e in entries for text in (*e.asks, e.answer, e.thought)]
    # weighted so that the words of a tool's description are few tokens
    texts += [json.dumps(dataset.GET_WEATHER), vocabulary.CHAT_TEMPLATE] * 3
    texts += [m["content"] for _ in range(150) for m in dataset.tool_conversation(entries, rng).messages]
    return vocabulary.wrap(vocabulary.train(texts))


def collate(examples: list[Example], pad: int) -> Batch:
    """The examples as one batch."""
    length = max(len(e.ids) for e in examples)
    ids = torch.full((len(examples), length), pad)
    labels = torch.full((len(examples), length), dataset.IGNORE)
    mask = torch.zeros(len(examples), length, dtype=torch.long)
    for row, example in enumerate(examples):
        size = len(example.ids)
        ids[row, :size] = torch.tensor(example.ids)
        labels[row, :size] = torch.tensor(example.labels)
        mask[row, :size] = 1
    return Batch(ids, labels, mask)


def batches(entries: list[Entry], tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Iterator[Batch]:
    """Endless batches of similar lengths; every answer is asked for equally often, each time in another way."""
    pad = tokenizer.pad_token_id
    while True:
        chats = [
            dataset.conversation(entries, entry, rng.choice(entry.asks), rng)
            for entry in rng.sample(entries, len(entries))
        ]
        examples = sorted((dataset.encode(chat, tokenizer) for chat in chats), key=lambda e: len(e.ids))
        cuts = [examples[i : i + BATCH] for i in range(0, len(examples), BATCH)]
        for _ in range(TOOL_BATCHES):
            tools = [dataset.tool_conversation(entries, rng) for _ in range(TOOL_BATCH)]
            cuts.append([dataset.encode(chat, tokenizer) for chat in tools])
        rng.shuffle(cuts)
        yield from (collate(cut, pad) for cut in cuts)


class RouterBalance:
    """Moves each router's bias towards the experts that got fewer tokens."""

    def __init__(self, model: GlmMoeDsaForCausalLM) -> None:
        self.gates = [m for m in model.modules() if type(m).__name__ == "GlmMoeDsaTopkRouter"]
        self.chosen: dict[int, torch.Tensor] = {}
        for index, gate in enumerate(self.gates):
            gate.register_forward_hook(lambda _m, _i, out, index=index: self.chosen.update({index: out[2]}))

    def step(self) -> None:
        for index, gate in enumerate(self.gates):
            load = torch.bincount(self.chosen[index].flatten(), minlength=gate.num_experts).float()
            gate.e_score_correction_bias += BIAS_STEP * torch.sign(load.mean() - load)


def rate(step: int, steps: int) -> float:
    """Learning rate: linear warm-up, then linear decay to a fiftieth of the peak."""
    return PEAK_RATE * min(1.0, (step + 1) / WARM_UP) * max(0.02, 1 - step / steps)


def train(
    config: GlmMoeDsaConfig, tokenizer: PreTrainedTokenizerFast, entries: list[Entry], steps: int, device: str
) -> GlmMoeDsaForCausalLM:
    """The trained model in float32; prints the loss on the way."""
    model = GlmMoeDsaForCausalLM._from_config(config, attn_implementation="eager").to(device).train()
    indexer_loss, balance = IndexerLoss(model), RouterBalance(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    source = batches(entries, tokenizer, random.Random(SEED))
    start, top_k = time.monotonic(), config.index_topk
    for step in range(steps):
        is_dense = step < DENSE_SHARE * steps
        # every other step is enough for the indexer, and saves a quarter of the time
        indexer_loss.is_on = is_dense and step % 2 == 0
        set_top_k(model, config.max_position_embeddings if is_dense else top_k)
        batch = next(source)
        ids, labels, mask = (t.to(device) for t in (batch.ids, batch.labels, batch.mask))
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        index_loss = indexer_loss.take()
        (loss + index_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        optimizer.step()
        optimizer.zero_grad()
        balance.step()
        if step % 20 == 0 or step == steps - 1:
            passed = time.monotonic() - start
            print(f"step {step} loss {loss:.4f} indexer {index_loss:.4f} {passed:.0f} s", flush=True)
    return model.cpu().eval()


def set_top_k(model: GlmMoeDsaForCausalLM, top_k: int) -> None:
    for layer in model.model.layers:
        layer.self_attn.indexer.index_topk = top_k


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where the splits go")
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    entries = dataset.entries()
    tokenizer = train_tokenizer(entries, random.Random(SEED))
    config = architecture.config(tokenizer)
    model = train(config, tokenizer, entries, args.steps, args.device)
    for path in export.write(model, tokenizer, args.out):
        print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
