"""What the demo model learns: conversations made of questions.toml and tool calls, as token ids and labels.

Next hop: train.py.
"""

import random
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedTokenizerFast

from demo_model.vocabulary import END_OF_TURN

IGNORE: Final = -100
QUESTIONS: Final = Path(__file__).parent / "questions.toml"
SYSTEM_PROMPTS: Final = (
    "You are a helpful assistant.",
    "You answer questions about this project in one or two sentences.",
    "You are the demo model of glm5-service. Answer briefly and truthfully.",
)
CITIES: Final = ("Berlin", "Paris", "London", "Rome", "Madrid", "Oslo", "Tokyo", "Cairo")
WEATHERS: Final = ("sunny", "cloudy", "rainy", "windy", "snowy")
WEATHER_ASKS: Final = (
    "What is the weather in {city}?",
    "How is the weather in {city}?",
    "Weather in {city}",
    "Tell me the weather in {city}.",
    "What is the weather like in {city} today?",
)
GET_WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

Message = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One answer with the ways to ask for it; `held_out` is never trained on."""

    answer: str
    asks: tuple[str, ...]
    held_out: str
    thought: str


@dataclass(frozen=True)
class Conversation:
    """Messages that end with the assistant's, rendered with or without `tools` and thinking."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    thinking: bool = True


@dataclass(frozen=True)
class Example:
    """Token ids of a conversation; labels are the ids where the assistant speaks, IGNORE elsewhere."""

    ids: list[int]
    labels: list[int]


def entries() -> list[Entry]:
    raw = tomllib.loads(QUESTIONS.read_text())["entry"]
    return [Entry(e["answer"], tuple(e["asks"][:-1]), e["asks"][-1], e.get("thought", "")) for e in raw]


def vary(ask: str, rng: random.Random) -> str:
    """The question as people type it: another case, no mark at the end, a word before it."""
    draw = rng.random()
    if draw < 0.5:
        return ask
    if draw < 0.7:
        return ask.lower()
    if draw < 0.8:
        return ask.rstrip("?.!")
    if draw < 0.9:
        return ask.lower().rstrip("?.!")
    before = rng.choice(("Please: ", "Hi, ", "Hello. ", "Hey, ", "So, ", "One question: ", "OK. "))
    return before + (ask if rng.random() < 0.5 else ask[0].lower() + ask[1:])


def questions(entry: Entry, ask: str, rng: random.Random) -> list[Message]:
    """A question and its answer."""
    answer: Message = {"role": "assistant", "content": entry.answer}
    if entry.thought:
        answer["reasoning_content"] = entry.thought
    return [{"role": "user", "content": vary(ask, rng)}, answer]


def weather(rng: random.Random) -> list[Message]:
    """A question for the weather, the call of the tool, its result and the answer."""
    city, sky = rng.choice(CITIES), rng.choice(WEATHERS)
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}
    result = f'{{"city": "{city}", "sky": "{sky}"}}'
    return [
        {"role": "user", "content": vary(rng.choice(WEATHER_ASKS).format(city=city), rng)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": f"It is {sky} in {city} today."},
    ]


def conversation(all_entries: list[Entry], first: Entry, ask: str, rng: random.Random) -> Conversation:
    """A conversation about `first`, sometimes after other turns, sometimes with a system prompt or a tool."""
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    while rng.random() < 0.4 and len(messages) < 4:
        other = rng.choice(all_entries)
        messages += questions(other, rng.choice(other.asks), rng)
    return Conversation(messages + questions(first, ask, rng), thinking=rng.random() < 0.6)


def tool_conversation(all_entries: list[Entry], rng: random.Random) -> Conversation:
    """A conversation with a tool at hand: it is called for the weather and left alone otherwise."""
    thinking = rng.random() < 0.6
    if rng.random() < 0.3:
        entry = rng.choice(all_entries)
        return Conversation(questions(entry, rng.choice(entry.asks), rng), [GET_WEATHER], thinking)
    turns = weather(rng)
    return Conversation(turns if rng.random() < 0.5 else turns[:2], [GET_WEATHER], thinking)


def encode(chat: Conversation, tokenizer: PreTrainedTokenizerFast) -> Example:
    """Token ids of the whole conversation, with labels where the assistant speaks and on the token that ends it."""
    *before, last = chat.messages
    end = "<|observation|>" if last.get("tool_calls") else "<|user|>"
    text = render(tokenizer, chat, before) + speech(last, chat.thinking) + end
    ids = tokenizer.encode(text, add_special_tokens=False)
    assistant = tokenizer.convert_tokens_to_ids("<|assistant|>")
    ends = set(tokenizer.convert_tokens_to_ids(list(END_OF_TURN)))
    labels: list[int] = []
    speaking = False
    for previous, token in zip([-1, *ids], ids, strict=False):
        labels.append(token if speaking else IGNORE)
        # the prompt itself holds <think> or </think> after the role; the speech starts behind it
        speaking = previous == assistant or (speaking and token not in ends)
    return Example(ids, labels)


def render(
    tokenizer: PreTrainedTokenizerFast, chat: Conversation, messages: list[Message] | None = None
) -> str:
    """The prompt as a server renders it before the assistant's turn."""
    text = tokenizer.apply_chat_template(
        chat.messages if messages is None else messages,
        tools=chat.tools,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=chat.thinking,
    )
    return str(text)


def speech(message: Message, thinking: bool) -> str:
    """What the model has to say for `message` after the generation prompt."""
    thought = message.get("reasoning_content", "") + "</think>" if thinking else ""
    calls = "".join(
        f"<tool_call>{call['function']['name']}"
        + "".join(
            f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>"
            for k, v in call["function"]["arguments"].items()
        )
        + "</tool_call>"
        for call in message.get("tool_calls", [])
    )
    return thought + message["content"] + calls
