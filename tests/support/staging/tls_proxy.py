"""A proxy that is spoken to over TLS and tunnels (CONNECT) to any server of this machine."""

from __future__ import annotations

import contextlib
import select
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
            _relay(self.connection, there)
        self.close_connection = True


def _relay(client: ssl.SSLSocket, there: socket.socket) -> None:
    """Copy both ways until an end is done. One thread: a TLS connection must not be read and written at once."""
    with contextlib.suppress(OSError):
        while True:
            # what is decrypted already does not make its socket readable
            ready = [client] if client.pending() else select.select([client, there], [], [])[0]
            for source in ready:
                data = source.recv(CHUNK)
                if not data:
                    return
                (there if source is client else client).sendall(data)


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
