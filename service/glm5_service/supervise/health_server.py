"""The health server on 8081: answers probes from the last verdict. Computes nothing.

A process of its own, because a thread beside the supervisor's work answers late when every core is busy: measured with
three busy loops on two cores, p99 was 230 ms as a thread and 32 ms as a process. `health_process` starts it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import uvicorn
from fastapi import FastAPI, Response
from pydantic import AwareDatetime, BaseModel, Field

from glm5_service import __version__
from glm5_service.api.connections import limited
from glm5_service.api.policy import SMALL_SERVER
from glm5_service.contracts.command_lines import HealthServerArguments
from glm5_service.contracts.engine import EngineState, Phase

LISTENING = "listening"
MAX_STATE_BYTES = 128 * 1024


@dataclass
class Board:
    """The last verdict and its time. The supervisor replaces it; the probes read it."""

    state: EngineState
    stale_seconds: float
    assessed_at: float
    clock: Callable[[], float] = time.monotonic

    def post(self, state: EngineState) -> None:
        """Replace the verdict."""
        self.state, self.assessed_at = state, self.clock()

    @property
    def stale_for(self) -> float | None:
        """Seconds since the last verdict if the supervisor no longer looks, else None."""
        age = self.clock() - self.assessed_at
        return age if age > self.stale_seconds else None

    @property
    def shown(self) -> EngineState:
        """The last verdict. If the supervisor no longer looks, it is neither ready nor live."""
        stale = self.stale_for
        if stale is None:
            return self.state
        reason = f"the supervisor has not looked for {stale:.0f} s"
        return self.state.model_copy(
            update={"ready": False, "live": False, "reason": reason, "remedy": "Restart the container."}
        )


class Probe(BaseModel):
    """What a probe says."""

    ok: bool = Field(description="Whether the probe passes; the status is 200 if so, else 503.")
    phase: Phase
    since: AwareDatetime = Field(description="When this phase began.")
    reason: str = Field(description="Why.")
    remedy: str = Field(description="What would change it.")


def application(board: Board) -> FastAPI:
    """The four routes, with their OpenAPI at /openapi.json."""
    app = FastAPI(
        title="glm5 supervisor",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        summary="Health of the engine.",
    )
    refused: dict[int | str, dict[str, object]] = {503: {"model": Probe, "description": "The probe fails."}}

    def answer(response: Response, question: Literal["started", "ready", "live"]) -> Probe:
        state = board.shown
        response.status_code = 200 if getattr(state, question) and board.stale_for is None else 503
        return Probe(
            ok=response.status_code == 200,
            phase=state.phase,
            since=state.since,
            reason=state.reason,
            remedy=state.remedy,
        )

    @app.get("/startupz", responses=refused, summary="200 once the engine has ever been ready.")
    async def startupz(response: Response) -> Probe:
        return answer(response, "started")

    @app.get("/readyz", responses=refused, summary="200 while the engine serves.")
    async def readyz(response: Response) -> Probe:
        return answer(response, "ready")

    @app.get("/livez", responses=refused, summary="503 only if a restart would help.")
    async def livez(response: Response) -> Probe:
        return answer(response, "live")

    @app.get("/status", summary="Everything that is known of the engine.")
    async def status() -> EngineState:
        return board.shown

    return app


class _Server(uvicorn.Server):
    """Says on stdout when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(LISTENING, flush=True)


def _follow(board: Board, states: socket.socket) -> None:
    """Show every state that the supervisor sends. Exit when the supervisor ends."""
    while message := states.recv(MAX_STATE_BYTES):
        board.post(EngineState.model_validate_json(message))
    os._exit(0)


def main(arguments: HealthServerArguments) -> None:
    """The process: states come over a socket, probes over HTTP."""
    states = socket.socket(fileno=arguments.descriptor)
    first = EngineState.model_validate_json(states.recv(MAX_STATE_BYTES))
    board = Board(first, arguments.stale_seconds, time.monotonic())
    threading.Thread(target=_follow, args=(board, states), name="states", daemon=True).start()
    config = uvicorn.Config(
        application(board),
        host=arguments.host,
        port=arguments.port,
        http=limited(SMALL_SERVER),
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
    )
    _Server(config).run()


if __name__ == "__main__":
    main(HealthServerArguments.of(sys.argv[1:]))
