"""The vocabulary in a file's metadata, checked: tokens, their kinds, merges, special ids. Next: tokenizer.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.header import Header, MetadataValue

# the tokens that end a turn in GLM's chat format, as generation_config.json of GLM-5 lists them; a file names at most
# two of them by key
STOP_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
STOP_KEYS = ("eos", "eot", "eom")


class Kind(IntEnum):
    """ggml's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Byte-level BPE as llama.cpp stores it; the position of a token is its id."""

    tokens: tuple[str, ...]
    kinds: tuple[Kind, ...]
    merges: tuple[tuple[str, str], ...]
    pre: str
    chat_template: str | None
    eos_id: int
    stop_ids: tuple[int, ...]

    @property
    def eos(self) -> str:
        return self.tokens[self.eos_id]


def read_vocabulary(header: Header) -> Vocabulary:
    """Read the vocabulary.

    Raises:
        GGUFError: a key is missing, the tokenizer is not byte-level BPE, or its parts contradict each other.
    """
    metadata = header.metadata
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        raise _wrong("tokenizer.ggml.model", metadata.get("tokenizer.ggml.model"), "gpt2, byte-level BPE")
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        raise _wrong("tokenizer.ggml.add_bos_token", True, "false: GLM's chat template writes its own prefix")
    tokens = tuple(str(token) for token in header.read_array("tokenizer.ggml.tokens"))
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise _wrong("tokenizer.ggml.tokens", f"{len(tokens) - len(ids)} doubled", "each token once")
    kinds = header.read_array("tokenizer.ggml.token_type")
    if len(kinds) != len(tokens) or not set(kinds) <= set(Kind):
        raise _wrong(
            "tokenizer.ggml.token_type", f"{len(kinds)} values", f"a type for each of {len(tokens)} tokens"
        )
    stop_ids = [_token_id(metadata, key, len(tokens)) for key in STOP_KEYS]
    if stop_ids[0] is None:
        raise _wrong("tokenizer.ggml.eos_token_id", "missing", "the id of a token")
    stop_ids += [ids.get(token) for token in STOP_TOKENS]
    template = metadata.get("tokenizer.chat_template")
    return Vocabulary(
        tokens,
        tuple(Kind(int(kind)) for kind in kinds),
        tuple(_split_merge(str(merge), ids) for merge in header.read_array("tokenizer.ggml.merges")),
        str(metadata.get("tokenizer.ggml.pre", "missing")),
        template if isinstance(template, str) else None,
        stop_ids[0],
        tuple(dict.fromkeys(each for each in stop_ids if each is not None)),
    )


def _token_id(metadata: Mapping[str, MetadataValue], name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is not None and not (isinstance(value, int) and 0 <= value < count):
        raise _wrong(key, value, f"an id below {count}")
    return value


def _split_merge(merge: str, ids: Mapping[str, int]) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (space and left in ids and right in ids and left + right in ids):
        raise _wrong("tokenizer.ggml.merges", repr(merge), "two tokens that join to a third")
    return left, right


def _wrong(key: str, value: object, expected: str) -> GGUFError:
    remedy = "Give the model's Hugging Face folder as tokenizer, or fetch the file again"
    return GGUFError(f"metadata key {key}", value, expected=expected, remedy=remedy)
