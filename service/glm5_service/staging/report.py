"""What `glm5 stage` prints: the plan, the result, and the termination message."""

from __future__ import annotations

from pathlib import Path

from glm5_service.contracts.manifest import Manifest
from glm5_service.contracts.termination import TerminationMessage
from glm5_service.staging.plan import Plan
from glm5_service.staging.progress import Progress, duration_text, size_text
from glm5_service.staging.reasons import StagingError

EXAMPLE_RATES = (100_000_000, 1_000_000_000)


def show_plan(plan: Plan, rate_limit: int, progress: Progress) -> None:
    """The plan with sizes and an estimate."""
    progress.say(
        f"model {plan.listing.source}, revision {plan.revision}, {size_text(plan.listing.total_bytes)}"
    )
    for step in plan.steps:
        have = f", {size_text(step.have_bytes)} here" if step.have_bytes else ""
        digest = step.file.digest.kind if step.file.digest else "no digest"
        progress.say(f"  {step.action:<14} {step.file.name}  {size_text(step.file.size)}{have}, {digest}")
    rates = [rate_limit] if rate_limit else EXAMPLE_RATES
    times = ", ".join(f"{duration_text(plan.missing_bytes / rate)} at {size_text(rate)}/s" for rate in rates)
    progress.say(f"to fetch {size_text(plan.missing_bytes)} ({times}); free {size_text(plan.free_bytes)}")


def show_result(manifest: Manifest, folder: Path, progress: Progress) -> None:
    """What is published now."""
    gguf = manifest.gguf
    progress.say(
        f"published {folder}: {gguf.architecture}, {len(manifest.files)} files, {size_text(manifest.total_bytes)}, "
        f"{gguf.tensors} tensors in {gguf.splits} splits; fetched {size_text(progress.fetched_bytes)}, "
        f"{progress.retries} retries, {progress.restarts} files started again"
    )


def write_termination(path: Path, error: StagingError) -> None:
    """`Reason: sentence` where Kubernetes shows it to people."""
    TerminationMessage(reason=error.reason, sentence=str(error)).leave(path)
