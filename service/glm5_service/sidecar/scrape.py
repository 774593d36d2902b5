"""Reads the sidecar's targets for one page: run directory, supervisor, vLLM. One that fails is a fact, no error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
from pydantic import ValidationError

from glm5_service.api.policy import INTERNAL_HEADER
from glm5_service.contracts.attestation import Attestation
from glm5_service.contracts.engine import DrainOutcome, EngineState
from glm5_service.contracts.staging import StagingState
from glm5_service.rundir import RunDir, read
from glm5_service.sidecar.collect import Point


@dataclass(frozen=True)
class Scraped:
    """What could be read, and the points about the reading itself."""

    state: EngineState | None
    attested: list[Attestation]
    staging: StagingState | None
    drain: DrainOutcome | None
    engine_page: str
    points: list[Point]


class Scraper:
    """Reads all targets at once."""

    def __init__(self, run_dir: RunDir, supervisor_url: str, engine_url: str, timeout: float) -> None:
        self._run_dir, self._supervisor, self._engine = run_dir, supervisor_url, engine_url
        self._client = httpx.AsyncClient(timeout=timeout, trust_env=False)

    async def scrape(self) -> Scraped:
        """One reading. Without the supervisor, the state is the one that was last written, neither ready nor alive."""
        points: list[Point] = []
        answer, page = await asyncio.gather(
            self._timed("supervisor", points, lambda: self._get(f"{self._supervisor}/status")),
            self._timed("engine", points, lambda: self._get(f"{self._engine}/metrics", self._token())),
        )
        state = None
        if answer is not None:
            try:
                state = EngineState.model_validate_json(answer)
            except ValidationError:
                points.append(Point("glm5_sidecar_scrape_success", 0, ("supervisor",)))
        state = state or _unconfirmed(read(self._run_dir.engine, EngineState))
        is_there = self._run_dir.path.is_dir()
        points.append(Point("glm5_sidecar_scrape_success", is_there, ("run_directory",)))
        return Scraped(
            state=state,
            attested=self._run_dir.attestations(),
            staging=read(self._run_dir.staging, StagingState),
            drain=read(self._run_dir.drain, DrainOutcome),
            engine_page=page or "",
            points=points,
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    def _token(self) -> str:
        try:
            return self._run_dir.token.read_text(encoding="utf-8")
        except OSError:
            return ""

    async def _get(self, url: str, token: str = "") -> str:
        answer = await self._client.get(url, headers={INTERNAL_HEADER: token} if token else {})
        answer.raise_for_status()
        return answer.text

    @staticmethod
    async def _timed(
        target: str, points: list[Point], read_target: Callable[[], Awaitable[str]]
    ) -> str | None:
        started = time.perf_counter()
        text = None
        try:
            text = await read_target()
        except (httpx.HTTPError, httpx.InvalidURL):
            text = None
        points.append(Point("glm5_sidecar_scrape_success", text is not None, (target,)))
        seconds = time.perf_counter() - started
        points.append(Point("glm5_sidecar_scrape_duration_seconds", seconds, (target,)))
        return text


def _unconfirmed(state: EngineState | None) -> EngineState | None:
    """A written state that no supervisor stands for: nothing is ready, and alive is at most what is still checked."""
    if state is None:
        return None
    return state.model_copy(update={"ready": False, "live": state.live and state.phase == "preflight"})
