"""`glm5 serve` in the order it runs: hold the revision, check, build the command, supervise."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from glm5_service.contracts.engine import EngineState, MemoryState, PhaseSpan
from glm5_service.contracts.environment import HeldWeights
from glm5_service.contracts.termination import TerminationMessage
from glm5_service.engine import caches
from glm5_service.engine.command_line import KEY_VARIABLE, engine_command
from glm5_service.errors import ExitCode, Glm5Error, SettingsError
from glm5_service.host.ports import local_url
from glm5_service.host.vllm_build import versions
from glm5_service.preflight.check import Cleared, clear
from glm5_service.redact import configure_logging, redact
from glm5_service.rundir import RunDir, read, try_write, write_text
from glm5_service.settings import Settings
from glm5_service.supervise.revision import held
from glm5_service.supervise.supervisor import Launch, Supervisor
from glm5_service.watch.backend import expected_backend

log = logging.getLogger("glm5")
# where prometheus_client's processes share their counters
COUNTERS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def serve(settings: Settings) -> ExitCode:
    """Serve until told to stop. Raises a Glm5Error if a check fails or the engine ends by itself."""
    try:
        return _serve(settings)
    except Glm5Error as error:
        TerminationMessage(sentence=str(error)).leave(settings.drain.termination_log)
        raise


def _serve(settings: Settings) -> ExitCode:
    configure_logging(settings.log.level)
    with held(settings) as settled:
        return run(settled)


def run(settings: Settings) -> ExitCode:
    """Check, prepare, supervise. engine.json describes this start from its first moment, even if the start fails."""
    engine_file = RunDir(settings.run_dir).engine
    state = EngineState(
        phase="preflight",
        since=datetime.now(UTC),
        reason="the host and the model are checked",
        remedy="Every rule passes.",
        model=settings.engine.served_model_name,
    )
    try:
        try_write(engine_file, state)
        report, cleared = clear(settings)
        for finding in report.findings:
            if finding.outcome == "warn":
                log.warning("preflight rule=%s %s. %s", finding.rule, finding.found, finding.remedy)
        return asyncio.run(_supervise(prepare(settings, cleared, state), settings))
    except BaseException as error:  # a signal as well: nobody writes after us
        written = read(engine_file, EngineState)
        # the supervisor's own last state, if it came to one, says more
        if written is None or written.since <= state.since:
            try_write(engine_file, _over(state, error))
        raise


def _over(state: EngineState, error: BaseException) -> EngineState:
    """Return the last state of a start that ended before the engine existed."""
    # python 3.11 wraps what a signal raises while a class is made
    was_told = any(isinstance(each, (SystemExit, KeyboardInterrupt)) for each in (error, error.__cause__))
    why = str(error) if isinstance(error, Glm5Error) else redact(f"internal error: {error!r}")
    return state.model_copy(
        update={
            "phase": "stopped" if was_told else "failed",
            "condition": "stopped" if was_told else "not_started",
            "since": datetime.now(UTC),
            "reason": "told to stop before the engine was started" if was_told else why,
            "remedy": "" if was_told else "Correct what it names.",
            "live": False,
            "phases": [_span(state)],
        }
    )


def _span(state: EngineState) -> PhaseSpan:
    return PhaseSpan(phase=state.phase, seconds=(datetime.now(UTC) - state.since).total_seconds())


async def _supervise(launch: Launch, settings: Settings) -> ExitCode:
    return await Supervisor(launch, settings).run()


def _refuse_foreign_key(settings: Settings, environ: Mapping[str, str]) -> None:
    """A key that only vLLM knows would refuse the canary, and an empty one would open the API."""
    if settings.engine.api_key is None and KEY_VARIABLE in environ:
        raise SettingsError(
            "the API key is given to vLLM alone",
            KEY_VARIABLE,
            expected="the key in engine.api_key",
            remedy="Set GLM5_ENGINE__API_KEY instead, and unset it.",
        )


def _settled(settings: Settings, weights: HeldWeights) -> Settings:
    """The settings with what preflight chose where they leave it open."""
    engine = settings.engine.model_copy(update={"weights": weights})
    return settings.model_copy(update={"engine": engine})


def own_counters(run_dir: RunDir, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable of a folder of our own, where the environment names one for prometheus_client's processes.

    In a folder that is not there vLLM ends, and it serves what an earlier process left as live counters.
    """
    if COUNTERS_VARIABLE not in environ:
        return {}
    run_dir.prometheus.mkdir(parents=True, exist_ok=True)
    for left in run_dir.prometheus.iterdir():
        left.unlink()
    return {COUNTERS_VARIABLE: str(run_dir.prometheus)}


def prepare(settings: Settings, cleared: Cleared, before: EngineState) -> Launch:
    """Return the command and the constant part of the state. Writes the token to the run directory."""
    token = secrets.token_urlsafe(32)
    folders = caches.prepare(settings.cache_dir, settings.engine.image)
    fit, architecture = cleared.fit, cleared.model.architecture
    backend = expected_backend(settings.health.expected_backend, cleared.profile, architecture)
    _refuse_foreign_key(settings, os.environ)
    settings = _settled(settings, cleared.weights)
    command = engine_command(settings, cleared.model, cleared.profile, backend, token, folders)
    run_dir = RunDir(settings.run_dir)
    own = own_counters(run_dir, os.environ)
    command = replace(command, environment={**command.environment, **own})
    write_text(run_dir.token, token, mode=0o600)
    identity = EngineState(
        phase="starting",
        since=datetime.now(UTC),
        reason="",
        argv=list(command.argv),
        model=settings.engine.served_model_name,
        architecture=architecture,
        expected_backend=backend,
        ranks=settings.engine.tensor_parallel_size,
        versions=versions(),
        phases=[_span(before)],
        memory=MemoryState(
            weights_estimated_bytes=fit.demand.weights if fit else None,
            kv_estimated_tokens=fit.kv_tokens if fit else None,
        ),
    )
    return Launch(command, local_url(settings.engine.host, settings.engine.port), token, identity)
