"""A further `--middleware` of vLLM that makes /metrics slow or gone, as `metrics-fault` in the run directory says."""

import asyncio
import os
from pathlib import Path

from starlette.responses import Response


class FaultyMetrics:
    """slow: an answer after a minute; gone: 500."""

    def __init__(self, app):
        self.app = app
        self.path = Path(os.environ["GLM5_RUN_DIR"]) / "metrics-fault"

    async def __call__(self, scope, receive, send):
        if scope.get("path") == "/metrics" and (fault := self._fault()):
            if fault == "slow":
                await asyncio.sleep(60)
            await Response(status_code=500)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _fault(self):
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return ""
