"""What engine.extra_args says to vLLM: flags, their numbers and their keys. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from glm5_service.errors import SettingsError
from glm5_service.settings.flags import ALIASES

PIPELINE = "--pipeline-parallel-size"
CONTEXT_RANKS = "--decode-context-parallel-size"
STEP_TOKENS = "--max-num-batched-tokens"
SPECULATIVE = "--speculative-config"
SPECULATIVE_METHOD = "--spec-method"
SPECULATIVE_MODEL = "--spec-model"
ATTENTION = "--attention-config"
STRUCTURED = "--structured-outputs-config"
# flags that decide memory in the place of a setting: with one of them the estimate is of something else
ELSEWHERE = {
    "--attention-backend",
    ATTENTION,
    "--config",
    "--cpu-offload-gb",
    "--data-parallel-size",
    "--dtype",
    "--gpu-memory-utilization",
    "--hf-overrides",
    "--kv-cache-dtype",
    "--kv-cache-memory-bytes",
    "--max-model-len",
    "--no-dcp-q-replicate",
    "--num-gpu-blocks-override",
    "--offload-group-size",
    "--prefill-context-parallel-size",
    "--tensor-parallel-size",
}
# flags that hide the engine from the service, and what is lost
BLINDING = {
    "--api-server-count": "requests are counted and drained in only one of the API servers",
    "--disable-log-stats": "vLLM exports no metrics, so boards and alerts stay empty and engine steps are not seen",
}
# vLLM's short forms of large numbers
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}


def flags(words: Sequence[str]) -> dict[str, str]:
    """Each flag by its long name with its value; the last one counts, as for vLLM."""
    return {name: value for name, _, value in _pairs(words)}


def keys(words: Sequence[str], flag: str) -> dict[str, object]:
    """What is given for `flag`, as JSON or key by key; raises SettingsError if it is no JSON object."""
    given = [(key, value) for name, key, value in _pairs(words) if name == flag]
    # vLLM turns keys into one more JSON that comes last, and so takes the place of one that was given
    alone: dict[str, object] = {key: value for key, value in given if key}
    if alone or not given:
        return alone
    try:
        return dict(json.loads(given[-1][1]).items())
    except (ValueError, AttributeError) as error:
        raise SettingsError(
            f"{flag} in engine.extra_args",
            given[-1][1] or "nothing",
            expected="a JSON object",
            remedy=f'Write it as {{"key": "value"}}, or each key as {flag}.key value.',
        ) from error


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each flag by its long name, the key of it that is given, if it is one, and the value."""
    for word, following in pairwise([*words, ""]):
        name, is_joined, value = word.partition("=")
        if name.startswith("-"):
            # vLLM takes --a_b for --a-b, and --a.b for a key of --a
            name, _, key = name.partition(".")
            name = name.replace("_", "-")
            yield ALIASES.get(name, name), key, value if is_joined else following


def number(found: Mapping[str, str], flag: str, default: int) -> int:
    """The number given for `flag`; raises SettingsError if it is none."""
    if flag not in found:
        return default
    match = re.fullmatch(r"([1-9]\d*)([kmKM]?)", found[flag])
    if not match:
        raise SettingsError(
            f"{flag} in engine.extra_args",
            found[flag] or "nothing",
            expected="a whole number from 1",
            remedy="Write it out, such as 8192.",
        )
    return int(match[1]) * _UNITS[match[2]]
