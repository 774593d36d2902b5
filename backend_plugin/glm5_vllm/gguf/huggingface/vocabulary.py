"""The vocabulary in a file's metadata, checked: tokens, their kinds, merges, special ids. Next: tokenizer.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.header import ArrayValue, Header, MetadataValue
from glm5_vllm.gguf.huggingface.chat_template import DEFAULT

# the tokens that end a turn in GLM's chat format, as generation_config.json of GLM-5 lists them; a file names at most
# two of them by key
STOP_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
# what helps against a tokenizer that cannot be built
OWN_TOKENIZER = (
    "Stage the publisher's tokenizer too (--tokenizer-source), or name its folder (model.hf_folder)"
)
STOP_KEYS = ("eos", "eot", "eom")
_TOKEN_ID = re.compile(r"tokenizer\.ggml\.(\w+)_token_id")
# the template of every chat; those for one purpose have a name behind it
_TEMPLATE = "tokenizer.chat_template"


class Kind(IntEnum):
    """ggml's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_KINDS: dict[object, Kind] = {kind.value: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Byte-level BPE as llama.cpp stores it; the position of a token is its id."""

    tokens: tuple[str, ...]
    kinds: tuple[Kind, ...]
    merges: tuple[tuple[str, str], ...]
    pre: str
    chat_templates: Mapping[str, str]
    """By name; the one of every chat is "default"."""
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
        found = metadata.get("tokenizer.ggml.model", "missing")
        raise _wrong("tokenizer.ggml.model", found, "gpt2, byte-level BPE")
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        raise _wrong("tokenizer.ggml.add_bos_token", True, "false: GLM's chat template writes its own prefix")
    tokens = _strings(header, "tokenizer.ggml.tokens")
    if doubled := len(tokens) - len(set(tokens)):
        raise _wrong("tokenizer.ggml.tokens", f"{doubled} doubled", "each token once")
    kinds = _read_kinds(header, len(tokens))
    ids = {token: i for i, token in enumerate(tokens) if kinds[i] is not Kind.UNUSED}
    merges = _split_merges(_strings(header, "tokenizer.ggml.merges"), ids)
    if letters := [letter for letter in BYTE_LETTERS if letter not in ids]:
        found = f"{len(letters)} of 256 bytes have none, such as {letters[0]}"
        raise _wrong("tokenizer.ggml.tokens", found, "a token for each byte, so that no text is lost")
    special = _special_ids(metadata, kinds)
    if "eos" not in special:
        raise _wrong("tokenizer.ggml.eos_token_id", "missing", "the id of a token")
    stop_ids = [*(special.get(key) for key in STOP_KEYS), *(ids.get(token) for token in STOP_TOKENS)]
    return Vocabulary(
        tokens,
        kinds,
        merges,
        str(metadata.get("tokenizer.ggml.pre", "missing")),
        _read_templates(metadata),
        special["eos"],
        tuple(dict.fromkeys(each for each in stop_ids if each is not None)),
    )


def _strings(header: Header, key: str) -> tuple[str, ...]:
    value = header.metadata.get(key)
    if not isinstance(value, ArrayValue) or not value.is_text or not value.count:
        found = (
            "missing"
            if value is None
            else "empty"
            if isinstance(value, ArrayValue) and not value.count
            else value
        )
        raise _wrong(key, found, "an array of strings")
    return tuple(str(each) for each in header.read_array(key))


def _read_kinds(header: Header, count: int) -> tuple[Kind, ...]:
    key = "tokenizer.ggml.token_type"
    value = header.metadata.get(key)
    numbers = header.read_array(key) if isinstance(value, ArrayValue) else []
    kinds = tuple(_KINDS.get(number) for number in numbers)
    if len(kinds) != count or None in kinds:
        raise _wrong(key, f"{len(kinds)} values", f"a type for each of {count} tokens")
    return kinds  # type: ignore[return-value]


def _special_ids(metadata: Mapping[str, MetadataValue], kinds: Sequence[Kind]) -> dict[str, int]:
    """The tokens that the file names by key, each of them checked."""
    found = {}
    for key, value in metadata.items():
        if match := _TOKEN_ID.fullmatch(key):
            if type(value) is not int or not 0 <= value < len(kinds):
                raise _wrong(key, value, f"an id below {len(kinds)}")
            if match[1] in STOP_KEYS and kinds[value] is Kind.UNUSED:
                raise _wrong(key, value, "a token that is in use")
            found[match[1]] = value
    return found


def _split_merges(merges: Iterable[str], ids: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (space and left in ids and right in ids and left + right in ids):
            raise _wrong("tokenizer.ggml.merges", repr(merge), "two tokens that join to a third")
        pairs.append((left, right))
    return tuple(pairs)


def _read_templates(metadata: Mapping[str, MetadataValue]) -> dict[str, str]:
    templates = {}
    for key, value in metadata.items():
        name = DEFAULT if key == _TEMPLATE else key.removeprefix(f"{_TEMPLATE}.")
        if name != key and isinstance(value, str):
            templates[name] = value
    return templates


def _byte_letters() -> tuple[str, ...]:
    """The characters that stand for the bytes in byte-level BPE, as GPT-2's bytes_to_unicode assigns them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return tuple(chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256))


BYTE_LETTERS = _byte_letters()


def _wrong(key: str, value: object, expected: str) -> GGUFError:
    remedy = f"{OWN_TOKENIZER}, or use another file"
    return GGUFError(f"metadata key {key}", value, expected=expected, remedy=remedy)
