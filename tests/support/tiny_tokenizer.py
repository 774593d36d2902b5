"""A small byte-level BPE vocabulary as GGUF stores it: every byte, a few merges, GLM's special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product

SPECIAL = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>",
    "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
)  # fmt: skip
# tokens the model writes and a client reads: not hidden when decoding
VISIBLE = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MERGES = ("t h", "th e", "i n", "a n", "Ġ the", "Ġ a")
TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|></think>{% endif %}"
)
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


@dataclass(frozen=True)
class TinyTokenizer:
    """Token strings with their ggml types, and the merges, as in a GGUF's `tokenizer.ggml.*` arrays."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    pre: str = "glm4"
    template: str = TEMPLATE

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for the bytes in GPT-2's byte-level BPE, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


def tiny_tokenizer(vocab: int = 320) -> TinyTokenizer:
    """A tokenizer of exactly `vocab` tokens: merged letters, then at most 63 unused tokens, fill it."""
    letters = byte_alphabet()
    merges = list(MERGES)
    words = letters + [merge.replace(" ", "") for merge in merges]
    fixed = len(SPECIAL) + len(VISIBLE)
    room = vocab - len(words) - fixed
    assert room >= 0, f"vocab {vocab} is smaller than {len(words) + fixed}"
    known = set(words)
    pairs = ((a, b) for a, b in product(letters, letters) if a + b not in known)
    for left, right in islice(pairs, room // 64 * 64):
        words.append(left + right)
        merges.append(f"{left} {right}")
    tokens = [*words, *SPECIAL, *VISIBLE]
    types = [NORMAL] * len(words) + [CONTROL] * len(SPECIAL) + [USER_DEFINED] * len(VISIBLE)
    padding = [f"[PAD{i}]" for i in range(len(tokens), vocab)]
    return TinyTokenizer((*tokens, *padding), (*types, *[UNUSED] * len(padding)), tuple(merges))
