"""Formats findings and status for one screen. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from glm5_service.cluster.install_rules import Finding
from glm5_service.cluster.release_status import PodStatus
from glm5_service.contracts.engine import EngineState
from glm5_service.contracts.staging import StagingState

WIDTH = 160
# Kubernetes gives these reasons for every end. Other reasons, such as OOMKilled, name the cause
PLAIN_REASONS = frozenset({"", "Error", "Completed"})
MARKS = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}


def check_text(found: Iterable[Finding]) -> str:
    """Return one line for each rule. Below a rule that did not pass is what to do."""
    lines = []
    for finding in found:
        first, *more = finding.sentence.splitlines()
        lines.append(f"{MARKS[finding.level]}  {finding.rule:<13} {first}")
        if finding.level != "pass" and finding.remedy:
            more.append(finding.remedy)
        lines += [f"{'':<20}{line}" for line in more]
    return "\n".join(lines)


def status_text(pods: Iterable[PodStatus], now: datetime) -> str:
    """Return one block of text for each pod."""
    return "\n\n".join("\n".join(_pod_lines(pod, now)) for pod in pods)


def _pod_lines(pod: PodStatus, now: datetime) -> list[str]:
    age = f" for {duration_text((now - pod.since).total_seconds())}" if pod.since else ""
    where = f" on {pod.node}" if pod.node else ""
    does = ("stages", "has staged")[pod.ready] if pod.is_stager else ("not ready", "ready")[pod.ready]
    restarts = f"{pod.restarts} restart{'' if pod.restarts == 1 else 's'}"
    lines = [_line(pod.name, f"{pod.phase}{where}{age}, {does}, {restarts}")]
    lines += [_line("pending" if n == 0 else "", text) for n, text in enumerate(pod.why_pending)]
    if pod.waiting:
        lines.append(_line("waiting", pod.waiting))
    if pod.staging:
        lines.append(_line("staging", _staging_text(pod.staging)))
    if pod.engine:
        lines += _engine_lines(pod.engine, now)
    if pod.fault:
        said = pod.fault.message.splitlines()[-1:]
        # the message of a killed engine is only the end of its log
        cause = [] if said and pod.fault.reason in PLAIN_REASONS else [pod.fault.reason]
        ago = f", {duration_text((now - pod.fault.at).total_seconds())} ago" if pod.fault.at else ""
        text = f"{pod.fault.container} ended with {pod.fault.exit_code}{ago}: {': '.join(cause + said)}"
        lines += [_line("last failure", text), _line("", f"its log: {pod.fault.log}")]
    lines += [_line("events" if n == 0 else "", text) for n, text in enumerate(pod.events)]
    return lines


def _engine_lines(engine: EngineState, now: datetime) -> list[str]:
    age = duration_text((now - engine.since).total_seconds())
    lines = [_line("phase", f"{engine.phase} for {age}: {engine.reason}")]
    if engine.remedy:
        lines.append(_line("", f"next: {engine.remedy}"))
    if spans := ", ".join(f"{span.phase} {duration_text(span.seconds)}" for span in engine.phases):
        lines.append(_line("so far", spans))
    attested = enumerate(engine.attested_backends)
    backends = ", ".join(f"rank {rank} {name}" for rank, name in attested) or "none attested yet"
    lines.append(_line("backend", f"{backends} (expected {engine.expected_backend or 'any'})"))
    return lines


def _staging_text(staging: StagingState) -> str:
    if staging.phase == "waiting":
        return "waiting for another stager to publish the model"
    total, is_over = staging.total_bytes, staging.phase == "done"
    share = f"{staging.present_bytes / total:.0%} of {total / 1e9:.2f} GB" if total else "size not known yet"
    text = f"{staging.phase}, {share}"
    if staging.bytes_per_second and not is_over:
        text += f", {staging.bytes_per_second / 1e6:.1f} MB/s"
    if staging.eta_seconds is not None and not is_over:
        text += f", about {duration_text(staging.eta_seconds)} left"
    if staging.message:
        text += f": {staging.message}"
    return text


def _line(label: str, text: str) -> str:
    line = f"{label:<13} {text}"
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def duration_text(seconds: float) -> str:
    """Format seconds for people, with at most two units."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
