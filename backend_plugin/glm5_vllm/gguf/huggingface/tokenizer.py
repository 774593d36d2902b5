"""The Hugging Face tokenizer files of a vocabulary, as JSON values. Next: folder.py."""

from __future__ import annotations

from typing import Any

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.huggingface.chat_template import DEFAULT
from glm5_vllm.gguf.huggingface.vocabulary import OWN_TOKENIZER, Kind, Vocabulary

# how text is cut before merging, from tokenizer.json of zai-org's GLM-4 family, which GLM-5 keeps; llama.cpp's
# LLAMA_VOCAB_PRE_TYPE_CHATGLM4 (src/llama-vocab.cpp) is the same expression without the inline flag
GLM4_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"glm4": GLM4_PATTERN, "chatglm-bpe": GLM4_PATTERN}


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """tokenizer.json of the fast tokenizer.

    Raises:
        GGUFError: the file names a pre-tokenizer that is not GLM's.
    """
    pattern = PATTERNS.get(vocabulary.pre)
    if pattern is None:
        raise GGUFError(
            "metadata key tokenizer.ggml.pre",
            vocabulary.pre,
            expected=" or ".join(PATTERNS),
            remedy=OWN_TOKENIZER,
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **_added_token(vocabulary, i)} for i in _added_ids(vocabulary)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # the publisher's tokenizer takes a piece that is a token as it is, even where no merges lead to it
            "ignore_merges": True,
            # added tokens are listed as well: the library numbers those it does not find by itself
            "vocab": {
                token: i
                for i, token in enumerate(vocabulary.tokens)
                if vocabulary.kinds[i] is not Kind.UNUSED
            },
            "merges": [list(merge) for merge in vocabulary.merges],
        },
    }


def tokenizer_config(vocabulary: Vocabulary, context_length: int) -> dict[str, Any]:
    """tokenizer_config.json, with the chat template."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(i): _added_token(vocabulary, i) for i in _added_ids(vocabulary)},
        "eos_token": vocabulary.eos,
        # GLM pads with the token that ends a text, whatever the file's own padding id says
        "pad_token": vocabulary.eos,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
    }
    if list(vocabulary.chat_templates) == [DEFAULT]:
        config["chat_template"] = vocabulary.chat_templates[DEFAULT]
    elif vocabulary.chat_templates:
        templates = vocabulary.chat_templates.items()
        config["chat_template"] = [{"name": name, "template": source} for name, source in templates]
    return config


def _added_ids(vocabulary: Vocabulary) -> list[int]:
    return [i for i, kind in enumerate(vocabulary.kinds) if kind in (Kind.CONTROL, Kind.USER_DEFINED)]


def _added_token(vocabulary: Vocabulary, token_id: int) -> dict[str, Any]:
    """A token that text is searched for before it is cut; control tokens are hidden from readers."""
    return {
        "content": vocabulary.tokens[token_id],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": vocabulary.kinds[token_id] is Kind.CONTROL,
    }
