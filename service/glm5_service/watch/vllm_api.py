"""HTTP client of the engine's API server: health, counters, the gate, and one real token. Decides nothing."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import httpx
from pydantic import TypeAdapter, ValidationError

from glm5_service.api.policy import DRAIN_PATH, INTERNAL_HEADER, REQUESTS_PATH
from glm5_service.contracts.gate_counts import GateCounts
from glm5_service.watch.metrics_page import values_of

# series of the engine that move only when the scheduler takes a step. The front end's request counts are not among
# them, because a client that gives up moves them although the engine hangs
STEP_SERIES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
)
_COUNTS = TypeAdapter(GateCounts)
# vLLM closes connections that were idle for 5 s. A request on a connection that closes at that moment fails
LIMITS = httpx.Limits(keepalive_expiry=2)


@dataclass(frozen=True)
class Steps:
    """The engine's step counters, summed over engines."""

    series: tuple[tuple[str, float], ...]

    def total(self, name: str) -> float:
        """Return the value of one series, or 0 if it is absent."""
        return dict(self.series).get(name, 0.0)

    def moved_since(self, before: Steps) -> bool:
        """Whether a series that both have differs; one that is NaN now and then is no step."""
        then = dict(before.series)
        return any(name in then and then[name] != value for name, value in self.series)

    @property
    def pending(self) -> int:
        """Requests that are running or waiting in the engine."""
        return int(self.total("vllm:num_requests_running") + self.total("vllm:num_requests_waiting"))


@dataclass(frozen=True)
class Sample:
    """One look at the API server. A field is None if it could not be read."""

    health_status: int | None
    steps: Steps | None
    gate: GateCounts | None


@dataclass(frozen=True)
class CanaryResult:
    """One request for one token. `error` is None if the token came. `is_wrong` is True if an answer came without it."""

    seconds: float
    error: str | None
    is_wrong: bool = False


def parse_steps(text: str) -> Steps | None:
    """STEP_SERIES out of a metrics page; None if it is unreadable or has none of them, as with --disable-log-stats."""
    try:
        sums = values_of(text, STEP_SERIES)
    except ValueError:
        return None
    return Steps(tuple(sorted(sums.items()))) if sums else None


class VllmApi:
    """Client of one API server. Every call has a time limit. No call raises for an error of the server."""

    def __init__(self, url: str, token: str, *, model: str, api_key: str | None, timeout: float) -> None:
        headers = {INTERNAL_HEADER: token}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        # the environment's proxies are for other hosts
        self._client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=LIMITS, trust_env=False
        )
        self._model = model

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def sample(self) -> Sample:
        """Read health, counters and the gate at the same time."""
        health, metrics, gate = await asyncio.gather(
            self._get("/health"), self._get("/metrics"), self._get(REQUESTS_PATH)
        )
        return Sample(
            health_status=health.status_code if health else None,
            steps=parse_steps(metrics.text) if metrics and metrics.status_code == 200 else None,
            gate=_gate_counts(gate),
        )

    async def drain(self) -> GateCounts | None:
        """Tell the gate to refuse new requests. None if the gate does not answer."""
        try:
            return _gate_counts(await self._client.post(DRAIN_PATH))
        except httpx.HTTPError:
            return None

    async def gate(self) -> GateCounts | None:
        """Return the gate's current counts."""
        return _gate_counts(await self._get(REQUESTS_PATH))

    async def canary(self, timeout: float) -> CanaryResult:
        """Ask for one token. An answer without a token, or with a logprob that is not a number, is a failure."""
        body = {"model": self._model, "prompt": "1", "max_tokens": 1, "temperature": 0, "logprobs": 1}
        loop = asyncio.get_running_loop()
        started = loop.time()
        is_wrong = False
        try:
            async with asyncio.timeout(timeout):
                response = await self._client.post("/v1/completions", json=body, timeout=timeout)
            error = _canary_error(response)
            is_wrong = error is not None
        except (TimeoutError, httpx.TimeoutException):
            error = f"no answer in {timeout:g} s"
        except httpx.HTTPError as problem:
            error = f"{type(problem).__name__}: {problem}".rstrip(": ")
        return CanaryResult(loop.time() - started, error, is_wrong)

    async def _get(self, path: str) -> httpx.Response | None:
        try:
            return await self._client.get(path)
        except httpx.HTTPError:
            return None


def _canary_error(response: httpx.Response) -> str | None:
    if response.status_code != 200:
        return f"status {response.status_code}: {response.text[:200]}"
    try:
        answer = response.json()
        if answer["usage"]["completion_tokens"] != 1:
            return f"{answer['usage']['completion_tokens']} tokens instead of 1"
        logprob = answer["choices"][0]["logprobs"]["token_logprobs"][0]
        return None if math.isfinite(logprob) else f"logprob {logprob}"
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        return f"not a completion ({type(problem).__name__}): {response.text[:200]}"


def _gate_counts(response: httpx.Response | None) -> GateCounts | None:
    if response is None or response.status_code != 200:
        return None
    try:
        return _COUNTS.validate_json(response.content)
    except ValidationError:
        return None
