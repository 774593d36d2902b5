"""What a GGUF model is and what a load would do with it, for people and for the service. Reads headers only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glm5_vllm.envs import Weights
from glm5_vllm.gguf.file.header import TensorInfo
from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.huggingface.tokenizer_facts import OF_FOLDER, TokenizerFacts, examine_tokenizer
from glm5_vllm.gguf.plan.footprint import footprint
from glm5_vllm.gguf.plan.held import held_targets
from glm5_vllm.gguf.plan.planned import LoadPlan, Role
from glm5_vllm.gguf.plan.planner import examine, refuse
from glm5_vllm.gguf.printable import NAME_LIMIT, printable

SCHEMA = 1
# refused tensors that the report lists, and the lines that people read of them
MOST_REFUSED, _MOST_LINES = 200, 20
# what the main model does not load, and why it is there
_ASIDE = {
    Role.MTP: "multi-token prediction, for the draft model",
    Role.MTP_COPY: "its own embedding and head, which it shares with the main model",
    Role.SHARED_INDEXER: "indexers nobody runs",
}


@dataclass(frozen=True, slots=True)
class Inspection:
    """A planned model, refusals included, and its tokenizer."""

    plan: LoadPlan
    tokenizer: TokenizerFacts

    @property
    def error(self) -> str | None:
        """Why the model cannot be served, if so: all that is known of it."""
        refused = [str(refuse(self.plan))] if self.plan.refusals else []
        return ". ".join([*refused, *filter(None, [self.tokenizer.error])]) or None


def inspect(
    path: Path,
    hf_folder: Path | None = None,
    chat_template: Path | None = None,
    release: str | None = None,
) -> Inspection:
    """Open the model at `path`, plan its load and check its tokenizer.

    Args:
        path: a file, any split of a set, or a folder with one model.
        hf_folder: serves config and tokenizer instead of the file's metadata.
        chat_template: a Jinja file that serves instead of the file's templates.
        release: which GLM-5 it is, where its statements disagree.

    Raises:
        GGUFError: the file is broken or its hyperparameters are, so that nothing can be said of its tensors.
    """
    plan = examine(open_model(path), release)
    return Inspection(plan, examine_tokenizer(plan.model, plan.hyperparameters, hf_folder, chat_template))


def report(inspection: Inspection) -> dict[str, Any]:
    """The machine-readable report, schema 1; keys may be added, never changed."""
    plan = inspection.plan
    model = plan.model
    return {
        "schema": SCHEMA,
        "path": str(model.path),
        "files": [{"path": str(header.path), "bytes": header.file_size} for header in model.files],
        "architecture": model.architecture,
        "name": model.name,
        "release": {"name": plan.release.name, "evidence": list(plan.release.evidence)},
        "context_length": plan.hyperparameters.context_length,
        "hyperparameters": asdict(plan.hyperparameters),
        "indexer_layers": sum(kind == "full" for kind in plan.indexer_types),
        **_count(model.tensors.values()),
        "types": _by_type(model.tensors.values()),
        "load": _of_role(plan, Role.MAIN),
        "weights": _footprint(plan, Role.MAIN, Weights.MEMORY),
        "draft_weights": _footprint(plan, Role.MTP, Weights.MEMORY),
        "speed_weights": _footprint(plan, Role.MAIN, Weights.SPEED),
        "speed_draft_weights": _footprint(plan, Role.MTP, Weights.SPEED),
        "set_aside": {role.value: _of_role(plan, role) for role in _ASIDE},
        "missing_mtp": list(plan.missing_mtp),
        "refused": [{"name": each.name, "reason": each.reason} for each in plan.refusals[:MOST_REFUSED]],
        "refused_total": len(plan.refusals),
        "tokenizer": asdict(inspection.tokenizer),
        "error": inspection.error,
    }


def _footprint(plan: LoadPlan, role: Role, weights: Weights) -> dict[str, int]:
    tensors = plan.of(role)
    held = held_targets(tensors) if weights is Weights.SPEED else frozenset()
    return asdict(footprint(tensors, plan.hyperparameters, held))


def text(inspection: Inspection) -> str:
    """The report for people."""
    plan = inspection.plan
    facts, h = report(inspection), plan.hyperparameters
    shared = sum(kind != "full" for kind in plan.indexer_types)
    lines = [
        f"{facts['name']} ({facts['architecture']})",
        f"  release       {plan.release.name}",
        *(f"                  {each}" for each in plan.release.evidence),
        f"  files         {len(facts['files'])}, {_size(sum(file['bytes'] for file in facts['files']))}",
        f"  tensors       {facts['tensors']}, {_size(facts['bytes'])}",
        f"  layers        {h.layers}, of them {h.dense_layers} dense and {shared} with a shared indexer",
        f"  experts       {h.experts}, {h.experts_used} a token, {h.shared_experts} shared",
        f"  context       {h.context_length} tokens",
        f"  tokenizer     {_tokenizer(inspection.tokenizer)}",
        "  types",
    ]
    lines += [
        f"    {name:<11} {count['tensors']:>5} tensors  {_size(count['bytes'])}"
        for name, count in facts["types"].items()
    ]
    lines.append(f"  would load    {facts['load']['tensors']} tensors, {_size(facts['load']['bytes'])}")
    for role, count in facts["set_aside"].items():
        if count["tensors"]:
            note = _ASIDE[Role(role)]
            lines.append(f"  sets aside    {count['tensors']} tensors, {_size(count['bytes'])} ({note})")
    if plan.missing_mtp:
        lines.append(f"  no draft      {len(plan.missing_mtp)} tensors of its block are missing")
    lines += [f"  refuses       {refusal.name}: {refusal.reason}" for refusal in plan.refusals[:_MOST_LINES]]
    if len(plan.refusals) > _MOST_LINES:
        lines.append(f"  refuses       {len(plan.refusals) - _MOST_LINES} more")
    return "\n".join(lines)


def _tokenizer(facts: TokenizerFacts) -> str:
    if facts.error is not None:
        return f"refused: {facts.error}"
    if facts.source == OF_FOLDER:
        return "of the Hugging Face folder"
    templates = ", ".join(printable(name, NAME_LIMIT) for name in facts.chat_templates) or "none"
    return f"{facts.tokens} tokens, {facts.merges} merges, chat templates: {templates}"


def _of_role(plan: LoadPlan, role: Role) -> dict[str, int]:
    return _count(source for planned in plan.of(role) for source in planned.sources)


def _count(tensors: Iterable[TensorInfo]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.name] += tensor.nbytes
    return {"tensors": len(sizes), "bytes": sizes.total()}


def _by_type(tensors: Iterable[TensorInfo]) -> dict[str, dict[str, int]]:
    """Counts by quant type, the one with the most bytes first."""
    numbers: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        numbers[tensor.quant.name] += 1
        sizes[tensor.quant.name] += tensor.nbytes
    return {name: {"tensors": numbers[name], "bytes": size} for name, size in sizes.most_common()}


def _size(nbytes: int) -> str:
    """Bytes for people, in the units that disks are sold in."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes} bytes"
