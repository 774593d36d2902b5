"""What the runs of engine_check.py say together: engine_summary.py SUMMARY RECORDED

Adds what a summary has and tests/results/engine_h200.json has not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.gpu.engine_run import random_prompts
from tests.gpu.engine_runs import COMPARED, GROUPS

LONGEST_REFERENCE = 3000
# a difference of log probabilities beyond any, where there is none: finite, so that it compares and is JSON
APART = 99.0
# where a run lay and what it measured of its own are no part of what it was
OMITTED = {"model", "tokenizer", "memory"}


def largest(differences: Iterable[float]) -> float:
    """APART for no difference, and for one that is not a number."""
    return max((d if d < APART else APART for d in differences), default=APART)


def compare(actual: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Per prompt: how many leading tokens are equal, and the largest difference of a shared top log probability."""
    prompts = []
    for ours, theirs in zip(actual["outputs"], expected["outputs"], strict=True):
        pairs = list(zip(ours["tokens"], theirs["tokens"], strict=True))
        equal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        # steps after the first different token have different contexts
        steps = list(zip(ours["logprobs"], theirs["logprobs"], strict=True))[: equal + 1]
        per_step = [largest(abs(a[token] - b[token]) for token in a.keys() & b.keys()) for a, b in steps]
        entry = {"prompt_tokens": ours["prompt_tokens"], "equal_tokens": equal, "of": len(pairs)}
        entry["largest_logprob_difference"] = round(largest(per_step), 5)
        if equal < len(pairs):
            a, b = ours["tokens"][equal], theirs["tokens"][equal]
            best = steps[-1][1]
            entry["margin_there"] = round(largest([abs(best.get(str(a), -APART) - best[str(b)])]), 5)
        prompts.append(entry)
    return {
        "tokens_equal": all(entry["equal_tokens"] == entry["of"] for entry in prompts),
        "largest_logprob_difference": max(entry["largest_logprob_difference"] for entry in prompts),
        "prompts": prompts,
    }


def against_transformers(outputs: list[dict[str, Any]], reference: Path) -> list[dict[str, Any]]:
    """The largest difference from float32 transformers on the dequantised tensors, for the shorter prompts."""
    from tests.support.engine import Completion
    from tests.support.hf_model import largest_logprob_difference, load_float32

    pairs = zip(random_prompts(), outputs, strict=True)
    shorter = [(prompt, output) for prompt, output in pairs if len(prompt) <= LONGEST_REFERENCE]
    completions = [
        Completion(output["tokens"], [{int(t): p for t, p in top.items()} for top in output["logprobs"]], 0)
        for _, output in shorter
    ]
    prompts = [prompt for prompt, _ in shorter]
    differences = largest_logprob_difference(load_float32(reference).cuda(), prompts, completions)
    return [
        {"prompt_tokens": len(prompt), "largest_logprob_difference": round(largest([difference]), 5)}
        for prompt, difference in zip(prompts, differences, strict=True)
    ]


def origin(ranks: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """Hardware, versions and command for a measured file, from what each rank attested."""
    if not ranks:
        return {"command": command}
    cards = f"{len(ranks)} x " if len(ranks) > 1 else ""
    first = ranks[0]
    return {"hardware": cards + first["device"], "versions": first["versions"], "command": command}


def summarize(folder: Path, command: str) -> dict[str, Any]:
    """All runs whose output lies in the folder, those of other groups too."""
    paths = {name: folder / f"{name}.json" for runs in GROUPS.values() for name in runs}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    most_ranks: list[dict[str, Any]] = max(
        (result["attestation"] for result in found.values()), key=len, default=[]
    )
    return {
        **origin(most_ranks, command),
        "runs": {
            name: {key: value for key, value in result.items() if key != "outputs"}
            for name, result in found.items()
        },
        "comparisons": {
            f"{name} with {other}": compare(found[name], found[other])
            for name, other in COMPARED.items()
            if name in found and other in found
        },
    }


def merge(recorded: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """The recorded file with the summary's runs that ended well; what it has under a name already stays as it is.

    Raises SystemExit where card or versions are others: one file speaks of one setting.
    """
    for what, ours, theirs in _settings(recorded, summary):
        if ours != theirs:
            raise SystemExit(
                f"{what} of the summary is {theirs}, of the recorded file {ours}: measure on the same, or record all anew"
            )
    failed = set(summary["failed"])
    added = {
        "runs": {name: _short(result) for name, result in summary["runs"].items() if name not in failed},
        "comparisons": {
            pair: c for pair, c in summary["comparisons"].items() if failed.isdisjoint(pair.split(" with "))
        },
        "with_float32_transformers": summary.get("with_float32_transformers", {}),
    }
    if not any(new.keys() - recorded[part].keys() for part, new in added.items()):
        return recorded
    parts = {part: dict(sorted({**new, **recorded[part]}.items())) for part, new in added.items()}
    commands = dict.fromkeys([*recorded["command"].split("; "), summary["command"]])
    # the longer one has the number of cards
    hardware = max(recorded["hardware"], summary["hardware"], key=len)
    return {**recorded, "hardware": hardware, "command": "; ".join(commands), **parts}


def _settings(recorded: dict[str, Any], summary: dict[str, Any]) -> Iterable[tuple[str, object, object]]:
    # a summary without them has no run of ours
    cards = (file.get("hardware", "unknown").split(" x ")[-1] for file in (recorded, summary))
    yield "card", *cards
    for name, version in recorded["versions"].items():
        yield name, version, summary.get("versions", {}).get(name)


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """A run as the recorded file has it: of the attestation only what was measured."""
    run = {key: value for key, value in result["run"].items() if key not in OMITTED}
    rest = {key: value for key, value in result.items() if key not in ("run", "attestation")}
    attested = result["attestation"][:1]
    return {"run": run, **rest, **{key: a[key] for a in attested for key in ("kernel_seconds", "layers")}}


if __name__ == "__main__":
    summary_file, recorded_file = map(Path, sys.argv[1:])
    before = json.loads(recorded_file.read_text())
    merged = merge(before, json.loads(summary_file.read_text()))
    recorded_file.write_text(json.dumps(merged, indent=1))
    print("added:", *sorted(merged["runs"].keys() - before["runs"].keys()))
