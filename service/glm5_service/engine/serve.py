"""`glm5 serve` in the order it runs: check settings, inspect the model, build the command, supervise."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from glm5_service.engine.command import engine_command
from glm5_service.engine.inspect import inspect_model, require_plugin
from glm5_service.engine.profile import resolve_profile, versions
from glm5_service.engine.supervisor import Supervisor
from glm5_service.errors import ExitCode, SettingsError
from glm5_service.settings import Settings


def serve(settings: Settings) -> ExitCode:
    """Serve until told to stop; raises a Glm5Error before the engine starts if the model cannot be served."""
    logging.basicConfig(level=settings.log.level.upper(), format="glm5 %(levelname)s %(message)s")
    if settings.model.path is None:
        raise SettingsError(
            "no model given", expected="a path", remedy="Name it: `glm5 serve MODEL`, or set model.path."
        )
    require_plugin()
    require_free_port(settings.engine.host, settings.engine.port)
    model = inspect_model(settings.model.path)
    command = engine_command(settings, model, resolve_profile(settings.engine.profile))
    supervisor = Supervisor(
        command, settings.run_dir, versions=versions(), stop_seconds=settings.engine.stop_timeout_seconds
    )
    return asyncio.run(supervisor.run())


def require_free_port(host: str, port: int) -> None:
    """Raise SettingsError if nobody could listen on host:port now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(
            "unknown address (engine.host)", host, expected="an address of this host"
        ) from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                remedy = "Stop what listens there, or set engine.port."
                raise SettingsError(
                    "port is in use", f"{host}:{port}", expected="a free port", remedy=remedy
                ) from error
            raise SettingsError(
                "cannot listen",
                f"{host}:{port}",
                expected="an address of this host",
                remedy=f"{error.strerror}.",
            ) from error
