"""A server that answers with exactly the bytes it is given, however wrong they are."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator

Answer = Callable[[str], bytes]
"""The raw answer to a request for a path."""


@contextlib.contextmanager
def raw_server(answer: Answer, drip_seconds: float = 0) -> Iterator[str]:
    """Its address. With `drip_seconds` it sends a byte at a time, that many seconds apart, until the client hangs up."""
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline(65536).decode("latin-1").split(" ")
            while self.rfile.readline(65536).strip():
                pass
            data = answer(line[1])
            with contextlib.suppress(OSError):
                if not drip_seconds:
                    self.wfile.write(data)
                    return
                for byte in data:
                    if ended.wait(drip_seconds):
                        return
                    self.wfile.write(bytes([byte]))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Clients that hang up are the point."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
