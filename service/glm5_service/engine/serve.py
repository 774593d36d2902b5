"""`glm5 serve` in the order it runs: check, build the command, supervise."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import UTC, datetime

from glm5_service import termination
from glm5_service.engine import caches
from glm5_service.engine.backend import expected_backend
from glm5_service.engine.command import engine_command
from glm5_service.engine.ports import local_url
from glm5_service.engine.profile import versions
from glm5_service.engine.supervisor import Launch, Supervisor
from glm5_service.errors import ExitCode, Glm5Error
from glm5_service.preflight.check import Cleared, clear
from glm5_service.rundir import EngineState, MemoryState, RunDir, write_text
from glm5_service.settings import Settings

log = logging.getLogger("glm5")


def serve(settings: Settings) -> ExitCode:
    """Serve until told to stop; raises a Glm5Error if the engine should not be started, or ended by itself."""
    try:
        return _serve(settings)
    except Glm5Error as error:
        termination.tell(settings.drain.termination_log, str(error))
        raise


def _serve(settings: Settings) -> ExitCode:
    logging.basicConfig(
        level=settings.log.level.upper(),
        format="glm5 %(levelname)s %(asctime)s %(message)s",
        datefmt="%m-%d %H:%M:%S",  # as vLLM writes it
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    report, cleared = clear(settings)
    for finding in report.findings:
        if finding.outcome == "warn":
            log.warning("preflight rule=%s %s. %s", finding.rule, finding.found, finding.remedy)
    return asyncio.run(_supervise(prepare(settings, cleared), settings))


async def _supervise(launch: Launch, settings: Settings) -> ExitCode:
    return await Supervisor(launch, settings).run()


def prepare(settings: Settings, cleared: Cleared) -> Launch:
    """The command and the constant part of the state; leaves the token in the run directory."""
    token = secrets.token_urlsafe(32)
    folders = caches.prepare(settings.cache_dir, settings.engine.image)
    command = engine_command(settings, cleared.model, cleared.profile, token, folders)
    write_text(RunDir(settings.run_dir).token, token, mode=0o600)
    fit, architecture = cleared.fit, cleared.model.architecture
    identity = EngineState(
        phase="starting",
        since=datetime.now(UTC),
        reason="",
        argv=list(command.argv),
        model=settings.engine.served_model_name,
        architecture=architecture,
        expected_backend=expected_backend(settings.health.expected_backend, cleared.profile, architecture),
        ranks=settings.engine.tensor_parallel_size,
        versions=versions(),
        memory=MemoryState(
            weights_estimated_bytes=fit.demand.weights if fit else None,
            kv_estimated_tokens=fit.kv_tokens if fit else None,
        ),
    )
    return Launch(command, local_url(settings.engine.host, settings.engine.port), token, identity)
