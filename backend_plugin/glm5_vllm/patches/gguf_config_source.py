"""Serve a GGUF without other files: build config and tokenizer from its own metadata.

Symptom: `vllm serve model.gguf` ends because there is no config.json, or asks a hub for one.
Cause: vllm-gguf-plugin takes config and tokenizer from --hf-config-path, --tokenizer or the file's folder, never from
the file.
Change: for a glm-dsa file without these, the source is a folder that is built from the metadata.
Does not apply: another architecture, a given --hf-config-path or --tokenizer, a folder that already has both.
Remove when: the plugin builds both from metadata, including the flags GGUF does not carry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path


def apply() -> None:
    from vllm_gguf_plugin import plugin

    from glm5_vllm.patches import replace_attribute

    replace_attribute(plugin, "_get_gguf_config_source", _building_from_metadata)


def _building_from_metadata(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def config_source(model: str, tokenizer: str | None, hf_config_path: str | None) -> str:
        if hf_config_path is None and tokenizer is None:
            from glm5_vllm.gguf.huggingface.folder import hf_folder_for

            built = hf_folder_for(Path(model))
            if built is not None:
                return str(built)
        return original(model, tokenizer, hf_config_path)

    return config_source
