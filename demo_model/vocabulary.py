"""The demo model's tokenizer: byte-level BPE with GLM's special tokens and GLM's pre-tokenizer.

Owns token ids and their GGUF types. Next hop: dataset.py encodes with it, export.py writes it into the file.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE: Final = (Path(__file__).parent / "chat_template.jinja").read_text()
# vLLM and the kernels like a vocabulary of whole 64s
SIZE: Final = 1024

# the pattern that llama.cpp applies for tokenizer.ggml.pre "glm4"
PRE_TOKENIZER: Final = "glm4"
PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# hidden from the text that a client sees
CONTROL: Final = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
)
# seen in the text: what a server's tool parser reads
VISIBLE: Final = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
END_OF_TEXT: Final = "<|endoftext|>"
# a turn ends where the next role begins
END_OF_TURN: Final = ("<|endoftext|>", "<|user|>", "<|observation|>")


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of SIZE tokens learnt from `texts`."""
    tokenizer = with_pattern(models.BPE())
    ordinary = SIZE - len(CONTROL) - len(VISIBLE)
    trainer = trainers.BpeTrainer(
        vocab_size=ordinary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != ordinary:
        raise ValueError(f"the text gives {tokenizer.get_vocab_size()} tokens; expected {ordinary}")
    return with_special_tokens(tokenizer)


def with_pattern(model: models.BPE) -> Tokenizer:
    """A tokenizer around `model` that cuts text as GLM's does."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with GLM's special tokens, whose ids follow those of the ordinary ones."""
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in VISIBLE])
    return tokenizer


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers and vLLM use it, with the chat template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tokens_and_types(tokenizer: Tokenizer) -> tuple[list[str], list[TokenType]]:
    """All tokens in the order of their ids, and the GGUF type of each."""
    tokens = [str(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]
    types = [
        TokenType.CONTROL if t in CONTROL else TokenType.USER_DEFINED if t in VISIBLE else TokenType.NORMAL
        for t in tokens
    ]
    return tokens, types


def merges(tokenizer: Tokenizer) -> list[str]:
    """Merge rules as GGUF holds them: the two parts with a blank between."""
    return [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
