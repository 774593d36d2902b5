"""Asks an OpenAI-compatible server through the openai SDK and times the answer. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from glm5_service.errors import EngineError, SettingsError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

SYSTEM_PROMPT = "You answer questions about this project in one or two sentences."
MAX_TOKENS = 200
TIMEOUT_SECONDS = 120.0
PROBE_TIMEOUT_SECONDS = 30.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Answer:
    """An answer and how long it took; `first_seconds` is None where the answer came in one piece."""

    text: str
    tokens: int
    seconds: float
    first_seconds: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of a streamed answer after its first token, else over the whole time."""
        if self.first_seconds is None:
            return self.tokens / self.seconds
        return max(self.tokens - 1, 0) / max(self.seconds - self.first_seconds, 1e-9)


class Asker:
    """One conversation with the server at `url`: each question is the next turn."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            import openai
        except ImportError as error:
            raise SettingsError(
                "the demo needs the openai package",
                expected="openai 3",
                remedy="Install it: `pip install 'glm5-service[demo]'`.",
            ) from error
        self.url = url.rstrip("/")
        self._openai = openai
        self._client = openai.OpenAI(
            base_url=self.url,
            api_key=api_key or "none",
            timeout=TIMEOUT_SECONDS,
            max_retries=0,
            # a proxy of the environment does not reach this host's own ports
            http_client=openai.DefaultHttpxClient(trust_env=urlsplit(self.url).hostname not in LOOPBACK),
        )
        self._messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": SYSTEM_PROMPT}]

    @cached_property
    def model(self) -> str:
        """Name of the first model that the server lists."""
        with self._explained():
            names = [m.id for m in self._client.models.list()]
        if not names:
            raise EngineError("the server serves no model", self.url, expected="one in its list of models")
        return names[0]

    def answers(self) -> bool:
        """Whether the server generates a token now."""
        client = self._client.with_options(timeout=PROBE_TIMEOUT_SECONDS)
        try:
            name = next(iter(client.models.list())).id
            one = client.completions.create(model=name, prompt="Hello", max_tokens=1, temperature=0)
        except (self._openai.OpenAIError, StopIteration):
            return False
        return one.usage is not None and one.usage.completion_tokens == 1

    def ask(self, question: str) -> Answer:
        """The whole answer at once."""
        self._messages.append({"role": "user", "content": question})
        model, start = self.model, time.monotonic()
        with self._explained():
            reply = self._client.chat.completions.create(
                model=model, messages=self._messages, max_tokens=MAX_TOKENS, temperature=0
            )
        seconds = time.monotonic() - start
        text = reply.choices[0].message.content or ""
        self._messages.append({"role": "assistant", "content": text})
        return Answer(text, reply.usage.completion_tokens if reply.usage else 0, seconds)

    def stream(self, question: str) -> Iterator[str | Answer]:
        """Pieces of the answer as they come, and at the end the Answer."""
        self._messages.append({"role": "user", "content": question})
        model, start = self.model, time.monotonic()
        pieces: list[str] = []
        first, tokens = None, 0
        with self._explained():
            chunks = self._client.chat.completions.create(
                model=model,
                messages=self._messages,
                max_tokens=MAX_TOKENS,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            for chunk in chunks:
                tokens = chunk.usage.completion_tokens if chunk.usage else tokens
                piece = chunk.choices[0].delta.content if chunk.choices else None
                if piece:
                    first = first or time.monotonic() - start
                    pieces.append(piece)
                    yield piece
        seconds = time.monotonic() - start
        self._messages.append({"role": "assistant", "content": "".join(pieces)})
        yield Answer("".join(pieces), tokens, seconds, seconds if first is None else first)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns the SDK's errors into one sentence each."""
        remedy = "Start one with `glm5 serve MODEL`, or name another with --url."
        try:
            yield
        except self._openai.APITimeoutError as error:
            raise EngineError(
                "the server does not answer in time", self.url, expected=f"an answer in {TIMEOUT_SECONDS:g} s"
            ) from error
        except self._openai.APIConnectionError as error:
            raise EngineError(
                "no server answers", self.url, expected="an OpenAI API", remedy=remedy
            ) from error
        except self._openai.APIStatusError as error:
            raise EngineError(
                "the server refused the question",
                f"{self.url}: {error.message}",
                expected="an answer",
                remedy="Its log and /status say why.",
            ) from error
        except (self._openai.OpenAIError, httpx.HTTPError) as error:
            raise EngineError(
                "the answer broke off",
                f"{self.url}: {error}",
                expected="a whole answer",
                remedy="Its log says why.",
            ) from error
