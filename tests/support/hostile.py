"""Clients that try to take the service down, each as a function of a port: for benchmarks and the soak. Loopback only.

Each ends by itself, and returns what it was told in a few words.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any

HOST = "127.0.0.1"
PATIENCE_SECONDS = 120.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hello"}
Client = Callable[[int], str]


def post(port: int, path: str, body: bytes, headers: dict[str, str] | None = None) -> str:
    """Status of a request, or how it failed."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"} | (headers or {}))
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def _chat(**fields: Any) -> Client:
    body = json.dumps({"model": "glm-5", "messages": [USER], "max_tokens": 2, **fields}).encode()
    return lambda port: post(port, CHAT, body)


def _raw(body: Callable[[], bytes]) -> Client:
    # made when it is sent: all of them together would take more memory than the server
    return lambda port: post(port, CHAT, body())


def _messages(message: bytes, count: int) -> Client:
    return _raw(lambda: b'{"model":"glm-5","messages":[' + message * count + b"{}]}")


def _schema(schema: Any) -> Client:
    return _chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def _alternatives(depth: int, width: int) -> dict[str, Any]:
    return {"type": "string"} if depth == 0 else {"oneOf": [_alternatives(depth - 1, width)] * width}


def _heads(line: bytes, most: int) -> Client:
    """Header lines without end."""

    def run(port: int) -> str:
        with socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS) as connection:
            sent = 0
            try:
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
                while sent < most:
                    connection.sendall(line)
                    sent += len(line)
                return connection.recv(12).decode() or "closed"
            except OSError:
                return f"closed after {sent} bytes"

    return run


def half_sent_heads(count: int, seconds: float) -> Client:
    """Connections that send a line of a head and wait; how many the server closed within the time."""

    def run(port: int) -> str:
        started, closed = time.monotonic(), 0
        with contextlib.ExitStack() as stack:
            open_ones = []
            for _ in range(count):
                with contextlib.suppress(OSError):
                    one = stack.enter_context(socket.create_connection((HOST, port), timeout=5))
                    one.sendall(b"GET /health HTTP/1.1\r\n")
                    open_ones.append(one)
            for one in open_ones:
                one.settimeout(max(seconds - (time.monotonic() - started), 0.001))
                with contextlib.suppress(OSError):
                    while one.recv(1000):
                        pass
                    closed += 1
        return f"{closed} of {count} closed in {time.monotonic() - started:.0f} s"

    return run


def _slow_body(port: int) -> str:
    """A body of 16 MB that stops a byte before its end."""
    with socket.create_connection((HOST, port), timeout=5) as connection:
        size = 16 * 1024**2
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
        try:
            connection.sendall(head.encode() + b" " * (size - 1))
            connection.recv(1000)
        except OSError:
            return "left"
    return "answered"


def _lengths(value: str) -> Client:
    def run(port: int) -> str:
        with socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS) as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {value}\r\n\r\n"
            connection.sendall(head.encode() + b"{}")
            return connection.recv(12).decode()[9:] or "closed"

    return run


def _structured(**constraint: Any) -> Client:
    return _chat(structured_outputs=constraint)


# those of the issue, then those of the same kinds
INPUTS: dict[str, Client] = {
    "80,000 messages {}, 240 kB": _messages(b"{},", 80_000),
    "3 million messages {}, 9 MB": _messages(b"{},", 3_000_000),
    "400,000 valid messages, 12 MB": _messages(b'{"role":"user","content":"a"},', 400_000),
    "900,000 text parts, 15 MB": _raw(
        lambda: b'{"messages":[{"role":"user","content":[' + b'{"type":"text"},' * 900_000 + b"{}]}]}"
    ),
    "4,000 messages with a wrong part": _chat(
        messages=[{"role": "user", "content": [{"type": "nothing"}]}] * 4000
    ),
    "16 MB of opening brackets": _raw(lambda: b"[" * (16 * 1024**2)),
    "a prompt of 16 MB of escapes": _raw(lambda: b'{"model":"glm-5","prompt":"' + b"\\n" * 8_000_000 + b'"}'),
    "a number of 5,000 digits": _raw(lambda: b'{"model":"glm-5","temperature":' + b"1" * 5000 + b"}"),
    "a body one byte too long": _raw(lambda: b" " * (16 * 1024**2 + 1)),
    "half a surrogate pair in stop": _chat(stop=["\ud800"]),
    "700,000 choices, 7.6 MB": _raw(
        lambda: (
            b'{"model":"glm-5","messages":[{"role":"user","content":"a"}],"structured_outputs":{"choice":['
            + b'"abcdefg",' * 700_000
            + b'"a"]}}'
        )
    ),
    "a schema of 20,000 properties": _schema({"properties": {f"p{n}": {} for n in range(20_000)}}),
    "a schema of 1,000 optional properties": _schema(
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1000)}}
    ),
    "an enum of 90,000": _schema({"enum": [f"value {n}" for n in range(90_000)]}),
    "oneOf 30x30x30": _schema(_alternatives(3, 30)),
    "a schema that is itself": _schema({"$ref": "#"}),
    "strings of up to 20,000 characters": _schema({"type": "string", "maxLength": 20_000}),
    "a regex of 1 MB": _structured(regex="(a|b)" * 200_000),
    "a regex of 250 optional groups": _structured(regex="(a|b|c)?" * 250),
    "a grammar of 1 MB": _structured(grammar='root ::= "a"' + ' | "a"' * 150_000),
    "a grammar of nested repetitions": _structured(grammar='root ::= (("a"{1,1000}){1,1000}){1,1000}'),
    "32 MB of header lines": _heads(b"a: " + b"x" * 60_000 + b"\r\n", 32 * 1024**2),
    "one header of 32 MB": _heads(b"x" * 65536, 32 * 1024**2),
    "1,000 half-sent heads": half_sent_heads(1000, 40.0),
    "Content-Length of 5,000 digits": _lengths("9" * 5000),
    "Content-Length with a sign": _lengths("+2"),
    "two Content-Lengths": _lengths("2\r\ncontent-length: 3"),
}
# these would hold a benchmark up; the soak has them as well
SLOW_INPUTS: dict[str, Client] = {"a body that stops before its end": _slow_body}
