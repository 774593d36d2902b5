"""The health server on 8081: answers probes from the last verdict, in a thread of its own. Computes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Literal

import uvicorn
from fastapi import FastAPI, Response
from pydantic import AwareDatetime, BaseModel, Field

from glm5_service import __version__
from glm5_service.errors import EngineError
from glm5_service.rundir import EngineState, Phase


@dataclass
class Board:
    """The last verdict and when it was made; the supervisor replaces it, the server reads it."""

    state: EngineState
    stale_seconds: float
    assessed_at: float

    def post(self, state: EngineState) -> None:
        """Put a new verdict up."""
        self.state, self.assessed_at = state, time.monotonic()

    @property
    def stale_for(self) -> float | None:
        """Seconds since the last verdict, if the supervisor itself stands still."""
        age = time.monotonic() - self.assessed_at
        return age if age > self.stale_seconds else None


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
        state, stale = board.state, board.stale_for
        response.status_code = 200 if getattr(state, question) and stale is None else 503
        reason = state.reason if stale is None else f"the supervisor has not looked for {stale:.0f} s"
        return Probe(
            ok=response.status_code == 200,
            phase=state.phase,
            since=state.since,
            reason=reason,
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
        return board.state

    return app


class HealthServer:
    """Serves a board from a thread of its own, so that no look at the engine delays a probe."""

    def __init__(self, board: Board, host: str, port: int) -> None:
        config = uvicorn.Config(
            application(board), host=host, port=port, log_level="warning", access_log=False, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="health", daemon=True)

    def start(self) -> None:
        """Begin to answer; raises EngineError if it cannot listen."""
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                address = f"{self._server.config.host}:{self._server.config.port}"
                raise EngineError("the health server cannot listen", address, expected="a free port")
            time.sleep(0.01)

    def _serve(self) -> None:
        with contextlib.suppress(SystemExit):  # uvicorn's answer to a port it cannot have
            asyncio.run(self._server.serve())

    def stop(self) -> None:
        """Stop answering."""
        self._server.should_exit = True
        self._thread.join(timeout=3)
