"""The grammar helper: compiles what is sane, ends what is not, and goes on after it."""

from __future__ import annotations

import asyncio
import itertools
import json
import string
from collections.abc import Callable
from typing import Any

import pytest

from glm5_vllm.grammar.messages import Setup
from glm5_vllm.grammar.trial import GrammarError, GrammarTrials
from tests.support.glm5_command import PATIENCE_SECONDS

xgrammar = pytest.importorskip("xgrammar")
# optional properties in any order: minutes with this vocabulary
SLOW = json.dumps({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(5000)}})


def _setup(seconds: float, memory_bytes: int = 4 * 1024**3) -> Callable[[], Setup]:
    words = ["".join(letters) for letters in itertools.product(string.ascii_lowercase + '{}":, ', repeat=3)]
    vocabulary = [chr(n) for n in range(256)] + words

    def make() -> Setup:
        info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[0])
        return Setup(info.serialize_json(), seconds, memory_bytes, any_whitespace=True)

    return make


def trial(*grammars: tuple[str, str], seconds: float = 60.0, memory_bytes: int = 4 * 1024**3) -> list[str]:
    """What each of these is told, in order."""

    async def ask() -> list[str]:
        trials = GrammarTrials(_setup(seconds, memory_bytes), seconds)
        said = []
        for kind, spec in grammars:
            try:
                await asyncio.wait_for(trials.check(kind, spec), PATIENCE_SECONDS)  # type: ignore[arg-type]
                said.append("")
            except GrammarError as error:
                said.append(str(error))
        await trials.close()
        return said

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("json_object", ""),
        ("json", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
        ("regex", "[a-z]{3}(x|y)+"),
        ("grammar", 'root ::= "a" | "b" root'),
        ("lark", 'start: "a" | "b"'),
        ("structural_tag", '{"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}'),
    ],
)  # fmt: skip
def test_each_kind_of_grammar_passes(kind: str, spec: str) -> None:
    """Whatever vLLM hands to xgrammar can be tried."""
    assert trial((kind, spec)) == [""]


def test_a_grammar_that_takes_too_long_is_ended_and_the_next_one_passes() -> None:
    """The time limit frees what compiled: the helper answers the next one."""
    slow, next_one = trial(("json", SLOW), ("json_object", ""), seconds=1.0)
    assert "took longer than 1 s" in slow
    assert next_one == ""


@pytest.mark.parametrize(
    ("kind", "spec"), [("json", '{"type": "nothing"}'), ("regex", "("), ("grammar", "root ::=")]
)
def test_a_grammar_that_is_none_is_refused_with_the_reason(kind: str, spec: str) -> None:
    """The client learns what is wrong with it."""
    said, next_one = trial((kind, spec), ("json_object", ""))
    assert "not one that can be compiled" in said
    assert next_one == ""


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("json", '{"anyOf": [{"$ref": "#"}]}'),
        ("json", '{"allOf": [{"$ref": "#"}]}'),
        ("grammar", "root ::= root"),
    ],
)
def test_a_grammar_without_any_text_is_refused(kind: str, spec: str) -> None:
    """No answer could satisfy it; in the engine its request would end with 500."""
    assert "no text satisfies it" in trial((kind, spec))[0]


def test_a_grammar_without_memory_ends_alone() -> None:
    """A compilation beyond its memory ends; the helper does not."""

    async def ask() -> None:
        trials = GrammarTrials(_setup(60.0, memory_bytes=1024), 60.0)
        helper = await trials.start()
        with pytest.raises(GrammarError):
            await trials.check("json", json.dumps({"enum": [str(n) for n in range(1000)]}))
        assert await trials.start() is helper
        await trials.close()

    asyncio.run(ask())


def test_what_passed_is_not_tried_again() -> None:
    """A grammar that passed costs nothing the second time, even where no helper could start."""

    async def ask() -> None:
        trials = GrammarTrials(_setup(60.0), 60.0)
        await trials.check("json_object", "")
        helper = await trials.start()
        helper.kill()
        await helper.wait()

        async def never(kind: Any, spec: Any) -> Any:
            raise AssertionError("asked")

        trials._ask = never  # type: ignore[method-assign]
        await trials.check("json_object", "")
        await trials.close()

    asyncio.run(ask())


def test_a_helper_that_ends_is_started_again() -> None:
    """Who waited for it is told, and the next request has a new one."""

    async def ask() -> None:
        trials = GrammarTrials(_setup(60.0), 60.0)
        helper = await trials.start()
        waiting = asyncio.create_task(trials.check("json", SLOW))
        while not trials._asked:
            await asyncio.sleep(0.01)
        helper.kill()
        with pytest.raises(GrammarError, match="failed"):
            await waiting
        await helper.wait()
        await trials.check("json_object", "")
        await trials.close()

    asyncio.run(ask())
