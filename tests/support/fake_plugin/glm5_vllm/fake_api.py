"""An API server with vLLM's routes and series, behind the service's real gate, that fails as `fault` in its folder says.

Faults: hang (nothing is generated), numb (the same, and by the counters nothing is there), dead (/health is 503),
blind (no metrics), lie (answers without a token).
"""

import asyncio
import json
import os
from itertools import pairwise
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from glm5_service.api.gate import Gate

ATTESTED = {
    "schema": 1, "rank": 0, "backend_class": "a.B", "dtype": "float32", "kv_cache_dtype": "auto", "heads_per_rank": 8,
    "top_k": 64, "layers": 3, "device": "cpu", "compute_capability": None, "versions": {}, "kernel_configurations": {},
    "kernel_seconds": {}, "built_at": 1.0,
}  # fmt: skip
SERIES = ("prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total_count")


class Engine:
    """Counts steps and hangs on demand."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.steps, self.running = run_dir, 0, 0

    def fault(self) -> str:
        path = self.run_dir / "fault"
        return path.read_text() if path.exists() else ""

    async def step(self) -> None:
        """One token, once the engine does not hang."""
        while self.fault() in ("hang", "numb"):
            await asyncio.sleep(0.02)
        self.steps += 1
        self._attest()

    def _attest(self) -> None:
        backend = os.environ.get("FAKE_BACKEND", "TORCH_MLA_SPARSE")
        path = self.run_dir / "attention" / "rank-0.json"
        if backend and not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(ATTESTED | {"backend": backend, "first_call_at": 1.0}))


def application(engine: Engine) -> FastAPI:
    app = FastAPI()
    app.add_middleware(Gate)

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=503 if engine.fault() == "dead" else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        if engine.fault() == "blind":
            return Response(status_code=500)
        lines = [f'vllm:{name}{{engine="0",model_name="m"}} {engine.steps}.0' for name in SERIES]
        running = 0 if engine.fault() == "numb" else engine.running
        lines.append(f'vllm:num_requests_running{{engine="0",model_name="m"}} {running}.0')
        return Response("\n".join(lines) + "\n", media_type="text/plain")

    @app.post("/v1/completions")
    async def completions(request: Request) -> dict[str, object]:
        await request.json()
        await engine.step()
        tokens = 0 if engine.fault() == "lie" else 1
        choice = {"text": "1", "logprobs": {"token_logprobs": [-0.5]}}
        return {"choices": [choice], "usage": {"completion_tokens": tokens}}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        body = await request.json()
        count, burst = body["max_tokens"], body.get("burst", 0)

        async def stream():
            engine.running += 1
            try:
                for number in range(count):
                    await engine.step()
                    yield f"data: {number}\n\n"
                    await asyncio.sleep(0.02)
            finally:
                engine.running -= 1
            for _ in range(burst):  # what is sent when the engine has done with it
                yield "x" * 1024**2

        return StreamingResponse(stream(), media_type="text/event-stream")

    return app


def main(argv: list[str], run_dir: Path) -> None:
    flags = dict(pairwise(argv))
    uvicorn.run(
        application(Engine(run_dir)),
        host=flags["--host"],
        port=int(flags["--port"]),
        http=os.environ["GLM5_HTTP_PROTOCOL"],
        log_level="warning",
        timeout_graceful_shutdown=0,
    )
