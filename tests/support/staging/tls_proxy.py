"""A proxy that is spoken to over TLS and tunnels (CONNECT) to any server of this machine."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = 1 << 18


class TlsProxy(ThreadingHTTPServer):
    """`tunnels` counts the connections that went through."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tunnels = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up in the middle."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: TlsProxy

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_CONNECT(self) -> None:
        host, _, port = self.path.rpartition(":")
        self.server.tunnels += 1
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_copy, args=(there, self.connection), daemon=True)
            back.start()
            _copy(self.connection, there)
            back.join()
        self.close_connection = True


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tls_proxy(context: ssl.SSLContext) -> Iterator[TlsProxy]:
    """A running proxy with the certificate of `context`."""
    proxy = TlsProxy()
    proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
