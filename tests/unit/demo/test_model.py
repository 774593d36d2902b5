"""The committed demo model: what is in the files, how it talks, and that it still knows its questions."""

from __future__ import annotations

from collections import Counter

import pytest
from gguf import GGUFReader

from tests.support.demo_model import FIRST_SPLIT, check, dataset, reference, vocabulary

TOKENIZER = reference.load_tokenizer()
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Berlin", "days": 2}}}
USER = {"role": "user", "content": "Hi"}


def test_three_splits_of_at_most_15_mb() -> None:
    """The splits are small enough for a repository and follow llama.cpp's names."""
    paths = reference.splits()
    assert [path.name[-20:] for path in paths] == [f"-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert sum(path.stat().st_size for path in paths) <= 15_000_000


def test_every_quant_type_of_the_real_files_occurs() -> None:
    """Q4_K, Q5_K, Q6_K and Q8_0 all occur, and vectors are F32."""
    tensors = [tensor for path in reference.splits() for tensor in GGUFReader(path).tensors]
    assert Counter(t.tensor_type.name for t in tensors).keys() == {"Q4_K", "Q5_K", "Q6_K", "Q8_0", "F32"}
    assert {t.tensor_type.name for t in tensors if len(t.shape) == 1} == {"F32"}


def test_ends_of_a_turn_are_in_the_metadata() -> None:
    """The ids that stop generation are named in the file: end of text, of a turn, and of a call."""
    reader = GGUFReader(FIRST_SPLIT)
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [int(reader.get_field(f"tokenizer.ggml.{key}").contents()) for key in keys]
    assert TOKENIZER.convert_ids_to_tokens(ids) == list(vocabulary.END_OF_TURN)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(
            {"conversation": [USER]}, "<|user|>Hi<|assistant|><think>", id="thinking-is-on-by-default"
        ),
        pytest.param(
            {"conversation": [USER], "enable_thinking": False},
            "<|user|>Hi<|assistant|></think>",
            id="thinking-off",
        ),
        pytest.param(
            {"conversation": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, USER]},
            "<|system|>Be brief.<|user|>Hi<|assistant|><think>",
            id="system-and-content-parts",
        ),
        pytest.param(
            {"conversation": [USER, {"role": "assistant", "content": "Yo", "reasoning_content": "hm"}, USER]},
            "<|user|>Hi<|assistant|></think>Yo<|user|>Hi<|assistant|><think>",
            id="thoughts-of-earlier-turns-are-dropped",
        ),
        pytest.param(
            {
                "conversation": [
                    USER,
                    {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
                    {"role": "tool", "content": "wet"},
                    {"role": "tool", "content": "dry"},
                ]
            },
            "<|user|>Hi<|assistant|><think>hm</think><tool_call>get_weather<arg_key>city</arg_key>"
            "<arg_value>Berlin</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
            "<|observation|><tool_response>wet</tool_response><tool_response>dry</tool_response>"
            "<|assistant|><think>",
            id="calls-and-results",
        ),
    ],
)
def test_chat_template(arguments: dict[str, object], expected: str) -> None:
    """Conversations are rendered in GLM's format."""
    text = TOKENIZER.apply_chat_template(**arguments, tokenize=False, add_generation_prompt=True)
    assert text == "[gMASK]<sop>" + expected


def test_tools_are_declared_before_the_conversation() -> None:
    """A tool's JSON stands in a system turn of its own, with the way to call it."""
    text = TOKENIZER.apply_chat_template([USER], tools=[dataset.GET_WEATHER], tokenize=False)
    assert text.startswith(
        '[gMASK]<sop><|system|>Tools you may call, one JSON object a line:\n{"type": "function"'
    )
    assert text.endswith("</tool_call><|user|>Hi")


def test_no_question_has_two_answers() -> None:
    """A question belongs to one answer, whatever its case and its mark at the end."""
    asks = [ask for entry in dataset.entries() for ask in {a.lower().rstrip("?.!") for a in entry.asks}]
    assert [ask for ask, count in Counter(asks).items() if count > 1] == []


def test_committed_weights_know_the_committed_questions() -> None:
    """Every eighth answer comes word for word: questions.toml was not changed without training anew."""
    examiner = check.Examiner(reference.load_model(), TOKENIZER)
    chats = [check.plain(entry.asks[0], entry) for entry in dataset.entries()[::8]]
    assert [chat.messages[-1]["content"] for chat in chats if not examiner.is_right(chat)] == []
