"""Runs the rules in their order and keeps what they found out. Next hop: the supervisor, or the report."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_service.contracts.environment import HeldWeights
from glm5_service.errors import ExitCode, Glm5Error, SettingsError
from glm5_service.host import hardware
from glm5_service.host.vllm_build import Profile
from glm5_service.model.inspection import ModelFacts
from glm5_service.preflight.findings import Finding, Report
from glm5_service.preflight.fit import Fit
from glm5_service.preflight.rules import RULES, find
from glm5_service.preflight.subject import Subject
from glm5_service.settings import Settings

# without these there is nothing to start; they cannot be skipped
NEEDED = ("versions", "ports", "manifest", "model")


class PreflightError(Glm5Error):
    """A rule failed. The exit code is that of the rule."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(
            finding.found.rstrip(".") if finding.remedy else finding.found, remedy=finding.remedy
        )
        self.exit_code = ExitCode(finding.exit_code)


@dataclass(frozen=True)
class Cleared:
    """What the checks found out on the way, for the start."""

    model: ModelFacts
    profile: Profile
    fit: Fit | None
    weights: HeldWeights


def check(settings: Settings) -> tuple[Report, Subject]:
    """Run every rule that is not skipped; rules after a failure of a needed one are left out."""
    unknown = [name for name in settings.preflight.skip if name not in RULES or name in NEEDED]
    if unknown:
        free = ", ".join(name for name in RULES if name not in NEEDED)
        raise SettingsError(
            "preflight.skip names a rule that cannot be skipped", unknown[0], expected=f"one of {free}"
        )
    subject = Subject(settings, hardware.look())
    findings = []
    for name in RULES:
        if name in settings.preflight.skip or (not settings.preflight.enabled and name not in NEEDED):
            continue
        findings.append(find(name, subject).model_copy(update={"rule": name}))
        if findings[-1].outcome == "fail" and name in NEEDED:
            break
    return Report(findings=findings), subject


def clear(settings: Settings) -> tuple[Report, Cleared]:
    """The checks before a start; raises PreflightError on the first failure."""
    report, subject = check(settings)
    if report.failure:
        raise PreflightError(report.failure)
    assert subject.model is not None
    assert subject.profile is not None
    return report, Cleared(subject.model, subject.profile, subject.fit, subject.weights)
