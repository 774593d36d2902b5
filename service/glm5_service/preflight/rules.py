"""The rules by name, in the order in which they run: cheap ones and those that others build on first."""

from __future__ import annotations

from collections.abc import Callable

from glm5_service.errors import Glm5Error
from glm5_service.preflight import host_rules, model_rules
from glm5_service.preflight.findings import Finding, failed
from glm5_service.preflight.subject import Subject

Rule = Callable[[Subject], Finding]

RULES: dict[str, Rule] = {
    "versions": model_rules.versions,
    "ports": model_rules.ports,
    "manifest": model_rules.manifest,
    "model": model_rules.model,
    "arguments": model_rules.extra_arguments,
    "cpu": host_rules.cpu,
    "gpus": host_rules.gpus,
    "driver": host_rules.driver,
    "memory": model_rules.memory,
    "shared-memory": host_rules.shared_memory,
    "limits": host_rules.limits,
    "folders": host_rules.folders,
    "all-reduce": host_rules.all_reduce,
}


def find(name: str, subject: Subject) -> Finding:
    """The finding of one rule; an expected error is a failure with its sentence and exit code."""
    try:
        return RULES[name](subject)
    except Glm5Error as error:
        return failed(str(error), "", code=error.exit_code)
