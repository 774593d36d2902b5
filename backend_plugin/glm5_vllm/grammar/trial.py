"""The API server's side of the grammar helper: asks it about each grammar once, and says no in time.

Nothing here waits in a thread, and the engine has no request whose grammar has not passed: its step counters and the
supervisor's canary go on meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from prometheus_client import Counter, Gauge

from glm5_vllm.grammar.messages import Job, Kind, Outcome, Setup, read, write

# compilations at a time, and requests that may wait for one
AT_ONCE, WAITING = 2, 64
MEMORY_BYTES = 4 * 1024**3
# vLLM parses a grammar once more in the API server's loop
MAX_PARSE_SECONDS = 1.0
_KNOWN = 1024
# starting a compilation, and a busy machine
_SLACK_SECONDS = 10.0
_LINE_BYTES = 64 * 1024

_results = Counter(
    "glm5_grammar_compilations", "Grammars tried before the engine had them, by result.", ["result"]
)
_seconds = Counter("glm5_grammar_compile_seconds", "Time spent on trying grammars.")
_waiting = Gauge("glm5_grammar_waiting_requests", "Requests that wait until their grammar is tried.")


class GrammarError(ValueError):
    """The grammar is refused; the text is for the client."""


class GrammarTrials:
    """Grammars that passed, and a helper for the others; it starts with the first use, and again after its end."""

    def __init__(self, setup: Callable[[], Setup], seconds: float) -> None:
        self._setup, self._seconds = setup, seconds
        self._passed: OrderedDict[bytes, None] = OrderedDict()
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._starting = asyncio.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Outcome]] = {}
        self._helper: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._count = 0

    async def check(self, kind: Kind, spec: str) -> None:
        """Raise GrammarError unless the grammar compiles within the limits."""
        key = hashlib.sha256(f"{kind}\0{spec}".encode()).digest()
        if key in self._passed:
            self._passed.move_to_end(key)
            return
        if self._count >= WAITING:
            raise GrammarError(f"{WAITING} requests wait for their grammars already; try again")
        self._count += 1
        _waiting.set(self._count)
        try:
            async with self._turn:
                outcome = await self._ask(kind, spec)
        finally:
            self._count -= 1
            _waiting.set(self._count)
        self._judge(outcome)
        self._passed[key] = None
        while len(self._passed) > _KNOWN:
            self._passed.popitem(last=False)

    def _judge(self, outcome: Outcome) -> None:
        is_heavy = outcome.result == "passed" and outcome.parse_seconds > MAX_PARSE_SECONDS
        _results.labels("slow" if is_heavy else outcome.result).inc()
        _seconds.inc(outcome.seconds)
        if outcome.result == "slow" or is_heavy:
            raise GrammarError(
                f"compiling the grammar of the structured output took longer than {self._seconds:g} s; "
                "use a smaller schema, fewer optional properties, or shorter repetitions"
            )
        if outcome.result == "crashed":
            raise GrammarError("compiling the grammar of the structured output failed; use a smaller schema")
        if outcome.result == "refused":
            raise GrammarError(f"the structured output is not one that can be compiled: {outcome.error}")

    async def start(self) -> asyncio.subprocess.Process:
        """The helper, started unless it runs."""
        async with self._starting:
            if self._helper is None or self._helper.returncode is not None:
                setup = await asyncio.to_thread(self._setup)
                self._helper = helper = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "glm5_vllm.grammar.helper",
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL, limit=_LINE_BYTES,
                )  # fmt: skip
                assert helper.stdin is not None
                helper.stdin.write(write(setup))
                self._reader = asyncio.create_task(self._read(helper))
            return self._helper

    async def close(self) -> None:
        """End the helper."""
        if self._helper is not None:
            with suppress(ProcessLookupError):
                self._helper.kill()
            await self._helper.wait()
        if self._reader is not None:
            await self._reader

    async def _ask(self, kind: Kind, spec: str) -> Outcome:
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            helper = await self.start()
            assert helper.stdin is not None
            helper.stdin.write(write(Job(number, kind, spec)))
            await helper.stdin.drain()
            async with asyncio.timeout(self._seconds + _SLACK_SECONDS):
                return await answer
        except (TimeoutError, OSError):
            with suppress(ProcessLookupError):
                helper.kill()
            return Outcome(number, "crashed", seconds=self._seconds)
        finally:
            self._asked.pop(number, None)

    async def _read(self, helper: asyncio.subprocess.Process) -> None:
        assert helper.stdout is not None
        while line := await helper.stdout.readline():
            outcome = read(Outcome, line)
            answer = self._asked.get(outcome.number)
            if answer is not None and not answer.done():
                answer.set_result(outcome)
        await helper.wait()
        for number, answer in self._asked.items():
            if not answer.done():
                answer.set_result(Outcome(number, "crashed"))
