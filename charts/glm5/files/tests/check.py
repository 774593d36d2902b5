"""One claim about a served model, checked the way a client meets it: `check.py CLAIM`. Standard library only."""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request

API, MODEL = os.environ["API_URL"], os.environ["MODEL"]
TIMEOUT_SECONDS = float(os.environ["TIMEOUT_SECONDS"])
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Berlin", "Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def send(
    path: str, body: object = None, key: str = os.environ.get("API_KEY", "")
) -> http.client.HTTPResponse:
    """The answer, whatever its status."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(API + path, data, headers)
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        return error  # type: ignore[return-value]


def ask(**more: object) -> dict:
    """One chat completion; its only choice."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": os.environ["QUESTION"]}],
        "max_tokens": int(os.environ["MAX_TOKENS"]),
        "temperature": 0,
    } | more
    answer = send("/v1/chat/completions", body)
    text = answer.read().decode()
    print(text)
    expect(200, answer.status, "status of a chat completion")
    return json.loads(text)["choices"][0]


def expect(wanted: object, found: object, what: str) -> None:
    if wanted != found:
        sys.exit(f"{what}: {found!r}; expected {wanted!r}")


def models() -> None:
    names = [model["id"] for model in json.load(send("/v1/models"))["data"]]
    expect(True, MODEL in names, f"{MODEL} among {names}")


def chat() -> None:
    message = ask()["message"]
    said = (message.get("content") or "") + (
        message.get("reasoning") or message.get("reasoning_content") or ""
    )
    expect(True, bool(said.strip()), "the answer has text")


def stream() -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": os.environ["QUESTION"]}],
        "max_tokens": 16,
        "stream": True,
    }
    lines = [line.decode().strip() for line in send("/v1/chat/completions", body)]
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    print("\n".join(events))
    expect("[DONE]", events[-1], "last event")
    expect(True, len(events) > 3, f"{len(events)} events arrive piece by piece")


def tool_call() -> None:
    """The named tool is called with arguments of its schema, and the parser hands them over apart from the text."""
    choice = ask(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "get_weather"}})
    call = choice["message"]["tool_calls"][0]["function"]
    expect("get_weather", call["name"], "name of the tool")
    expect(True, json.loads(call["arguments"])["city"] in ("Berlin", "Paris"), f"city in {call['arguments']}")


def reasoning() -> None:
    message = ask()["message"]
    content = message.get("content") or ""
    expect(False, "<think>" in content or "</think>" in content, "reasoning marks in the answer")
    expect(
        True, "reasoning" in message or "reasoning_content" in message, "the answer has a place for reasoning"
    )


def wrong_key() -> None:
    for key in ("", "wrong-" + os.environ["API_KEY"]):
        expect(401, send("/v1/models", key=key).status, f"status with key {key[:6]!r}")


def closed_routes() -> None:
    for path in ("/metrics", "/version", "/docs", "/openapi.json", "/v1/embeddings"):
        status = send(path).status
        # the router answers 405 by itself where it knows the path for another method
        if status not in (404, 405):
            sys.exit(f"status of {path}: {status}; expected 404 or 405")


def backend() -> None:
    with urllib.request.urlopen(os.environ["METRICS_URL"], timeout=TIMEOUT_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("glm5_attention_backend_")]
    print("\n".join(found))
    matches = [line.rpartition(" ")[2] for line in found if line.startswith("glm5_attention_backend_match{")]
    expect(
        True,
        any(line.startswith("glm5_attention_backend_info{") for line in found),
        "a rank names its backend",
    )
    expect(
        [],
        [value for value in matches if float(value) != 1],
        "ranks that run another backend than is expected",
    )


CLAIMS = {
    "models": models,
    "chat": chat,
    "stream": stream,
    "tool-call": tool_call,
    "reasoning": reasoning,
    "wrong-key": wrong_key,
    "closed-routes": closed_routes,
    "backend": backend,
}

if __name__ == "__main__":
    CLAIMS[sys.argv[1]]()
    print(f"{sys.argv[1]}: holds")
