"""What engine.extra_args says to vLLM about memory: flags and their numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from glm5_service.errors import SettingsError

PIPELINE = "--pipeline-parallel-size"
CONTEXT_RANKS = "--decode-context-parallel-size"
STEP_TOKENS = "--max-num-batched-tokens"
SPECULATIVE = "--speculative-config"
_LONG = {
    "-ac": "--attention-config",
    "-dcp": CONTEXT_RANKS,
    "-pp": PIPELINE,
    "-sc": SPECULATIVE,
    "-tp": "--tensor-parallel-size",
}
# flags that decide the cache in the place of a setting: with one of them the estimate is of something else
ELSEWHERE = {
    "--attention-backend",
    "--attention-config",
    "--gpu-memory-utilization",
    "--kv-cache-dtype",
    "--kv-cache-memory-bytes",
    "--max-model-len",
    "--tensor-parallel-size",
}
# vLLM's short forms of large numbers
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}


def flags(words: Sequence[str]) -> dict[str, str]:
    """Each flag by its long name with its value; the last one counts, as for vLLM."""
    found = {}
    for word, following in pairwise([*words, ""]):
        name, is_joined, value = word.partition("=")
        if name.startswith("-"):
            # vLLM takes --a_b for --a-b, and --a.b for a key of --a
            name = name.replace("_", "-").partition(".")[0]
            found[_LONG.get(name, name)] = value if is_joined else following
    return found


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
