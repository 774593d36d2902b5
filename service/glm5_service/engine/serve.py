"""`glm5 serve` in the order it runs: check settings, inspect the model, build the command, supervise."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import socket
from datetime import UTC, datetime

from glm5_service.engine.backend import expected_backend
from glm5_service.engine.command import engine_command
from glm5_service.engine.inspect import inspect_model, require_plugin
from glm5_service.engine.profile import resolve_profile, versions
from glm5_service.engine.supervisor import Launch, Supervisor
from glm5_service.errors import ExitCode, SettingsError
from glm5_service.rundir import EngineState, RunDir, write_text
from glm5_service.settings import Settings


def serve(settings: Settings) -> ExitCode:
    """Serve until told to stop; raises a Glm5Error before the engine starts if the model cannot be served."""
    logging.basicConfig(level=settings.log.level.upper(), format="glm5 %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return asyncio.run(_supervise(prepare(settings), settings))


async def _supervise(launch: Launch, settings: Settings) -> ExitCode:
    return await Supervisor(launch, settings).run()


def prepare(settings: Settings) -> Launch:
    """Everything that can be decided, and refused, before the engine starts."""
    if settings.model.path is None:
        raise SettingsError(
            "no model given", expected="a path", remedy="Name it: `glm5 serve MODEL`, or set model.path."
        )
    require_plugin()
    require_free_port("engine", settings.engine.host, settings.engine.port)
    require_free_port("health", settings.health.host, settings.health.port)
    model = inspect_model(settings.model.path)
    profile = resolve_profile(settings.engine.profile)
    token = secrets.token_urlsafe(32)
    command = engine_command(settings, model, profile, token)
    write_text(RunDir(settings.run_dir).token, token, mode=0o600)
    identity = EngineState(
        phase="starting",
        since=datetime.now(UTC),
        reason="",
        argv=list(command.argv),
        model=settings.engine.served_model_name,
        architecture=model.architecture,
        expected_backend=expected_backend(settings.health.expected_backend, profile, model.architecture),
        ranks=settings.engine.tensor_parallel_size,
        versions=versions(),
    )
    return Launch(command, local_url(settings.engine.host, settings.engine.port), token, identity)


def local_url(host: str, port: int) -> str:
    """Where this host reaches what listens on host:port."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def require_free_port(section: str, host: str, port: int) -> None:
    """Raise SettingsError if nobody could listen on host:port now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(
            f"unknown address ({section}.host)", host, expected="an address of this host"
        ) from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                remedy = f"Stop what listens there, or set {section}.port."
                raise SettingsError(
                    "port is in use", f"{host}:{port}", expected="a free port", remedy=remedy
                ) from error
            raise SettingsError(
                "cannot listen",
                f"{host}:{port}",
                expected="an address of this host",
                remedy=f"{error.strerror}.",
            ) from error
