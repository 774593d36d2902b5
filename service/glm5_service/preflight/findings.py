"""What preflight found: one finding a rule, as text for people and as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from glm5_service.errors import ExitCode


class Finding(BaseModel):
    """Outcome of one rule."""

    model_config = ConfigDict(frozen=True)

    rule: str = ""
    outcome: Literal["pass", "warn", "fail"]
    found: str
    remedy: str = ""
    exit_code: int = 0


class Report(BaseModel):
    """All findings, in the order in which the rules ran."""

    model_config = ConfigDict(frozen=True)

    findings: list[Finding]

    @property
    def failure(self) -> Finding | None:
        """The first finding that forbids the start."""
        return next((finding for finding in self.findings if finding.outcome == "fail"), None)

    def text(self) -> str:
        """A line a rule, the remedy below it."""
        width = max(len(finding.rule) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.outcome:4}  {finding.rule:<{width}}  {finding.found}")
            if finding.remedy:
                lines.append(f"{'':{width + 8}}{finding.remedy}")
        return "\n".join(lines)


def passed(found: str) -> Finding:
    """A rule that is content."""
    return Finding(outcome="pass", found=found)


def warned(found: str, remedy: str) -> Finding:
    """A rule that does not forbid the start."""
    return Finding(outcome="warn", found=found, remedy=remedy)


def failed(found: str, remedy: str, *, code: int = ExitCode.FIT) -> Finding:
    """A rule that forbids the start, and the exit code it means."""
    return Finding(outcome="fail", found=found, remedy=remedy, exit_code=code)
