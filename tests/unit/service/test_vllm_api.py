"""How the engine's API server is asked."""

from __future__ import annotations

import asyncio
import time

import pytest

from glm5_service.watch.vllm_api import VllmApi

# vLLM's is 5, and a connection that is about to be closed is as bad as a closed one
IDLE_SECONDS = 3
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_a_connection_that_the_server_may_be_closing_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM closes a connection that was idle for 5 s; a canary on it at that moment would fail without a fault."""
    connections = 0
    clock = time.monotonic

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readline() not in (b"\r\n", b""):
            pass
        writer.write(ANSWER)
        # it stays open, and a second request on it is never answered
        await reader.read()
        writer.close()

    async def ask_twice() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        api = VllmApi(f"http://127.0.0.1:{port}", "token", model="m", api_key=None, timeout=30)
        async with server:
            await api.gate()
            monkeypatch.setattr(time, "monotonic", lambda: clock() + IDLE_SECONDS)
            await api.gate()
            await api.close()

    asyncio.run(ask_twice())
    assert connections == 2
