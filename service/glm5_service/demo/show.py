"""What the user of the demo sees. Decides nothing."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType

from glm5_service.contracts.attestation import Attestation
from glm5_service.demo.ask import Answer

# where output is no terminal, a line this often is enough
SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """One line that tells how long the start has taken and what it is doing; rewritten in place on a terminal."""

    def __init__(self) -> None:
        self._in_place = sys.stdout.isatty()
        self._shown_at = float("-inf")
        self._what = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_place:
            print("\r\033[K", end="", flush=True)

    def update(self, elapsed: float, what: str) -> None:
        """Show `what` at `elapsed` seconds."""
        if self._in_place:
            print(f"\r\033[K{elapsed:4.0f} s  {what}", end="", flush=True)
        elif what != self._what or elapsed - self._shown_at >= SECONDS_BETWEEN_LINES:
            print(f"{elapsed:4.0f} s  {what}", flush=True)
            self._shown_at, self._what = elapsed, what


def show_plain(question: str, answer: Answer) -> None:
    """Question, answer and speed of an answer that came in one piece."""
    print(f"\nQ: {question}\nA: {answer.text}")
    print(
        f"   plain: {answer.tokens} tokens in {answer.seconds:.2f} s, {answer.tokens_per_second:.0f} tokens/s"
    )


def show_streamed(question: str, pieces: Iterable[str | Answer]) -> None:
    """Question and answer as it comes, then its speed."""
    print(f"\nQ: {question}\nA: ", end="", flush=True)
    for piece in pieces:
        if isinstance(piece, Answer):
            print(
                f"\n   streaming: first token after {piece.first_seconds:.2f} s, {piece.tokens} tokens in "
                f"{piece.seconds:.2f} s, {piece.tokens_per_second:.0f} tokens/s"
            )
        else:
            print(piece, end="", flush=True)


def show_backend(attestations: Sequence[Attestation]) -> None:
    """Which attention backend the ranks attest."""
    print()
    if not attestations:
        print(
            "Attention backend: unknown. The server writes it to attention/rank-N.json in its run directory."
        )
    for record in attestations:
        print(f"Attention backend of rank {record.rank}: {record.backend} ({record.backend_class})")


def show_curl(url: str, model: str, question: str) -> None:
    """How to go on asking."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0})
    print("\nServing until Ctrl-C. Ask it:\n")
    print(f"  curl {url}/chat/completions -H 'Content-Type: application/json' \\")
    print(f"    -d {shlex.quote(body)}\n", flush=True)
