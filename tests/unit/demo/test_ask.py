"""Asking through the openai SDK, against a scripted server."""

from __future__ import annotations

import pytest

from glm5_service.demo.ask import Answer, Asker
from glm5_service.errors import EngineError, ExitCode
from tests.support.fake_openai import WORDS, FakeOpenAI, serving
from tests.support.serving import free_port


def test_plain_answer_has_text_and_counts() -> None:
    """A plain answer is the server's text with its token count; asked greedily of the model that the server lists."""
    with serving() as server:
        answer = Asker(server.url).ask("What is it?")
    assert (answer.text, answer.tokens, answer.first_seconds) == ("It is a list.", 4, None)
    (request,) = server.requests
    assert (request["model"], request["temperature"]) == ("glm-5", 0)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]


def test_stream_gives_pieces_and_then_the_answer() -> None:
    """A streamed answer comes piece by piece, and ends with the whole text, its tokens and its first token's time."""
    with serving() as server:
        *pieces, answer = Asker(server.url).stream("What is it?")
    assert pieces == WORDS
    assert isinstance(answer, Answer)
    assert (answer.text, answer.tokens) == ("It is a list.", 4)
    assert answer.first_seconds is not None
    assert 0 < answer.first_seconds <= answer.seconds


def test_questions_are_one_conversation() -> None:
    """The second question is sent with the first one and its answer before it."""
    with serving() as server:
        asker = Asker(server.url)
        asker.ask("One?")
        list(asker.stream("Two?"))
    said = [(m["role"], m["content"]) for m in server.requests[1]["messages"][1:]]
    assert said == [("user", "One?"), ("assistant", "It is a list."), ("user", "Two?")]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(Answer("x", 10, 2.0), 5.0, id="plain-over-the-whole-time"),
        pytest.param(Answer("x", 11, 3.0, 1.0), 5.0, id="streamed-after-the-first-token"),
        pytest.param(Answer("x", 0, 1.0, 1.0), 0.0, id="nothing-came"),
    ],
)
def test_tokens_per_second(answer: Answer, expected: float) -> None:
    """Speed is tokens over the time in which they came."""
    assert expected == answer.tokens_per_second


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("none-listed", "the server serves no model: {url}; expected one in its list of models"),
        ("refuse", "the server refused the question: {url}: Error code: 400 - too long; expected an answer"),
    ],
)
def test_a_refusal_is_one_sentence(fault: str, message: str) -> None:
    """What the server refuses is an EngineError with its address and its reason."""
    with serving(fault) as server, pytest.raises(EngineError) as error:
        Asker(server.url).ask("What is it?")
    assert message.format(url=server.url) in str(error.value)
    assert error.value.exit_code == ExitCode.ENGINE


def test_no_server_is_one_sentence() -> None:
    """A port nobody listens on is an EngineError that names it and says what to do."""
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(
        EngineError, match=f"no server answers: {url}; expected an OpenAI API. Start one with"
    ):
        Asker(url).ask("What is it?")


def test_a_broken_stream_is_one_sentence() -> None:
    """A stream that ends in the middle is an EngineError after the pieces that came."""
    with serving("break") as server:
        stream = Asker(server.url).stream("What is it?")
        assert next(stream) == "It "
        with pytest.raises(EngineError, match="expected"):
            list(stream)


@pytest.mark.parametrize(
    ("fault", "expected"), [("", True), ("silent", False), ("refuse", False), ("none-listed", False)]
)
def test_answers_means_a_generated_token(fault: str, expected: bool) -> None:
    """A server answers only if it generates a token; a list of models or an empty completion is not enough."""
    with serving(fault) as server:
        assert Asker(server.url).answers() == expected


def test_answers_is_false_without_a_server() -> None:
    """Asking before anybody listens is no error."""
    assert not Asker(f"http://127.0.0.1:{free_port()}/v1").answers()


def test_a_key_is_sent() -> None:
    """A key given is the bearer token."""
    server = FakeOpenAI()
    assert Asker(server.url, "secret")._client.auth_headers == {"Authorization": "Bearer secret"}
    server.server_close()
