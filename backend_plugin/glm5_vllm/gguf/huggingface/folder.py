"""A Hugging Face folder (config and tokenizer) built from a GGUF's own metadata, for files that come without one.

Contents depend on the file alone and every file appears whole by rename, so any number of processes may build the
same folder at once. Next: vLLM, which reads the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from glm5_vllm import envs
from glm5_vllm.files import write_whole
from glm5_vllm.gguf.errors import FETCH_OR_CONVERT, GGUFError
from glm5_vllm.gguf.file.header import MAGIC
from glm5_vllm.gguf.file.splits import Model, open_model
from glm5_vllm.gguf.huggingface.config import generation_config, hf_config
from glm5_vllm.gguf.huggingface.tokenizer import tokenizer_config, tokenizer_json
from glm5_vllm.gguf.huggingface.vocabulary import Vocabulary, read_vocabulary
from glm5_vllm.gguf.model.hyperparameters import ARCHITECTURE, Hyperparameters
from glm5_vllm.gguf.plan.planner import examine
from glm5_vllm.gguf.printable import NAME_LIMIT

CONFIG, TOKENIZER = "config.json", "tokenizer.json"


def hf_folder_for(path: Path) -> Path | None:
    """Build the folder for the GGUF at `path` in the cache, or return None where it needs none.

    None: no GGUF file, another architecture, or a folder that holds config.json and tokenizer.json already.

    Raises:
        GGUFError: the file is broken, its metadata do not suffice, or the cache cannot be written.
    """
    if not _is_gguf(path) or has_folder(path):
        return None
    model = open_model(path)
    if model.architecture != ARCHITECTURE:
        return None
    contents = _contents(model)
    digest = hashlib.sha256(b"\0".join(contents.values())).hexdigest()[:16]
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", model.name)[:NAME_LIMIT].strip("-.") or "model"
    folder = envs.cache_dir() / "hf" / f"{slug}-{digest}"
    _write(contents, folder)
    return folder


def has_folder(path: Path) -> bool:
    """Whether config and tokenizer lie beside the GGUF at `path`, where vLLM finds them."""
    return all((path.parent / name).is_file() for name in (CONFIG, TOKENIZER))


def vocabulary_of(model: Model, h: Hyperparameters) -> Vocabulary:
    """The vocabulary in the model's metadata.

    Raises:
        GGUFError: it is broken, or larger than the model's embedding.
    """
    vocabulary = read_vocabulary(model.header)
    if len(vocabulary.tokens) > h.vocab:
        raise GGUFError(
            "tokens in the metadata",
            len(vocabulary.tokens),
            expected=f"at most the model's {h.vocab}",
            remedy=FETCH_OR_CONVERT,
        )
    return vocabulary


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _contents(model: Model) -> dict[str, bytes]:
    """Bytes of each file by name; config.json last, so that a folder which has it is complete."""
    plan = examine(model)
    vocabulary = vocabulary_of(model, plan.hyperparameters)
    values = {
        TOKENIZER: tokenizer_json(vocabulary),
        "tokenizer_config.json": tokenizer_config(vocabulary, plan.hyperparameters.context_length),
        "generation_config.json": generation_config(vocabulary.stop_ids, model.metadata),
        CONFIG: hf_config(plan.hyperparameters, plan.release, vocabulary.stop_ids),
    }
    return {name: _json(value, indent=None if name == TOKENIZER else 2) for name, value in values.items()}


def _json(value: dict[str, Any], indent: int | None) -> bytes:
    """The tokenizer's half a million entries go on one line: json indents in Python, at a tenth of the speed."""
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()


def _write(contents: dict[str, bytes], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            target = folder / name
            if target.is_file() and target.read_bytes() == data:
                continue
            write_whole(target, data)
    except OSError as error:
        raise GGUFError(
            f"cannot write the model's config to {folder}",
            error.strerror,
            expected="a writable folder",
            remedy="Set GLM5_CACHE_DIR to one",
        ) from error
