"""A small OpenAI-compatible server that answers from a script; `python -m tests.support.fake_openai PORT [FAULT]` serves.

Faults: none-listed (no model), refuse (HTTP 400), break (a stream that ends in the middle), silent (no token).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.support.records import attestation

WORDS = ["It ", "is ", "a ", "list."]
ATTESTATION = attestation(0, "TORCH_MLA_SPARSE", backend_class="a.B").model_dump(by_alias=True)


class FakeOpenAI(ThreadingHTTPServer):
    """Keeps the bodies it was sent in `requests`."""

    daemon_threads = True

    def __init__(self, port: int = 0, fault: str = "") -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.fault = fault
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: FakeOpenAI

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        models = [] if self.server.fault == "none-listed" else [{"id": "glm-5", "object": "model"}]
        self._json({"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        if self.server.fault == "refuse":
            self._json({"error": {"message": "too long", "type": "x", "code": 400}}, 400)
        elif self.path.endswith("/chat/completions") and body.get("stream"):
            self._stream()
        elif self.path.endswith("/chat/completions"):
            message = {"role": "assistant", "content": "".join(WORDS)}
            self._json(_completion([{"index": 0, "message": message, "finish_reason": "stop"}], len(WORDS)))
        else:
            tokens = 0 if self.server.fault == "silent" else body["max_tokens"]
            self._json(_completion([{"index": 0, "text": "a", "finish_reason": "length"}], tokens))

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        # a length never reached makes the end a broken connection instead of an end
        self.send_header("Content-Length" if self.server.fault == "break" else "X-End", "1000000")
        self.end_headers()
        for word in WORDS:
            self._event(_completion([{"index": 0, "delta": {"content": word}}]))
            if self.server.fault == "break":
                return
        self._event(_completion([], len(WORDS)))
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _json(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _completion(choices: list[dict[str, Any]], tokens: int | None = None) -> dict[str, Any]:
    usage = (
        tokens
        if tokens is None
        else {"completion_tokens": tokens, "prompt_tokens": 1, "total_tokens": tokens + 1}
    )
    return {"id": "1", "object": "x", "created": 1, "model": "glm-5", "choices": choices, "usage": usage}


@contextmanager
def serving(fault: str = "") -> Iterator[FakeOpenAI]:
    """A fake server in a thread of this process."""
    server = FakeOpenAI(fault=fault)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fake_argv(model: Path, host: str, port: int, run_dir: Path) -> list[str]:
    """Instead of `glm5 serve`: the fake server, which has attested its backend."""
    (run_dir / "attention").mkdir(parents=True)
    (run_dir / "attention" / "rank-0.json").write_text(json.dumps(ATTESTATION))
    return [sys.executable, "-m", "tests.support.fake_openai", str(port)]


if __name__ == "__main__":
    FakeOpenAI(int(sys.argv[1]), *sys.argv[2:]).serve_forever()
