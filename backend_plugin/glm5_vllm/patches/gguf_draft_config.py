"""Let multi-token prediction start from the same GGUF as the model.

Symptom: --speculative-config '{"method": "mtp", ...}' ends with "Unrecognized model in FOLDER".
Cause: vLLM reads the draft model's config from the target's weights, here the GGUF. vllm-gguf-plugin redirects only the
target's config.
Change: the draft model's config comes from the same place as the target's. Its weights come from the GGUF.
Does not apply: a draft model that is named, or a target that is not a GGUF.
Remove when: vllm-gguf-plugin redirects the draft model's config.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def apply() -> None:
    from vllm.config import SpeculativeConfig

    from glm5_vllm.patches import replace_attribute

    replace_attribute(SpeculativeConfig, "__post_init__", _with_the_targets_config)


def _with_the_targets_config(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def post_init(self: Any) -> None:
        target = self.target_model_config
        weights = getattr(target, "model_weights", None)
        is_ours = self.method == "mtp" and self.model is None and str(weights).endswith(".gguf")
        if is_ours:
            self.model = target.model
            self.quantization = self.quantization or target.quantization
        original(self)
        if is_ours:
            self.draft_model_config.model_weights = weights

    return post_init
