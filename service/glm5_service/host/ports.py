"""Addresses of this host: whether a port is free, and how the host reaches what listens on it."""

from __future__ import annotations

import errno
import socket

from glm5_service.errors import SettingsError


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
