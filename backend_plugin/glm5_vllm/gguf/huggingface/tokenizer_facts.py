"""What a server would tokenise and write chats with, and why it could not: found without starting one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glm5_vllm.gguf.errors import GGUFError, unreadable
from glm5_vllm.gguf.file.splits import Model
from glm5_vllm.gguf.huggingface.chat_template import check_template, check_templates
from glm5_vllm.gguf.huggingface.folder import has_folder, vocabulary_of
from glm5_vllm.gguf.huggingface.tokenizer import tokenizer_json
from glm5_vllm.gguf.model.hyperparameters import Hyperparameters

OF_FILE, OF_FOLDER = "file", "folder"


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The tokenizer of the file's metadata, unless a Hugging Face folder takes its place; `error` stops a load."""

    source: str
    tokens: int = 0
    merges: int = 0
    chat_templates: tuple[str, ...] = ()
    error: str | None = None


def examine_tokenizer(
    model: Model, h: Hyperparameters, hf_folder: Path | None = None, chat_template: Path | None = None
) -> TokenizerFacts:
    """Build and check what a server would be given.

    Args:
        model: the file.
        h: its hyperparameters.
        hf_folder: serves config and tokenizer instead of the file's metadata.
        chat_template: serves instead of the file's templates.
    """
    try:
        if chat_template is not None:
            check_template(_read(chat_template), f"chat template {chat_template}")
        if hf_folder is not None or has_folder(model.header.path):
            return TokenizerFacts(OF_FOLDER)
        vocabulary = vocabulary_of(model, h)
        tokenizer_json(vocabulary)
        if chat_template is None:
            check_templates(vocabulary.chat_templates)
    except GGUFError as error:
        return TokenizerFacts(OF_FILE, error=str(error))
    names = tuple(vocabulary.chat_templates)
    return TokenizerFacts(OF_FILE, len(vocabulary.tokens), len(vocabulary.merges), names)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
