"""Let the service choose the class that speaks HTTP in the API server.

Symptom: 32 MB of header lines on one connection take 1.2 GB of the API server, and 1,000 half-sent heads stay open.
Cause: uvicorn's fast parser limits neither size, count nor time of heads. vLLM's `--h11-max-...` flags are for the slow
parser and limit no time. With httptools installed, the slow parser is not used. vLLM has no flag for uvicorn's `http`.
Change: `GLM5_HTTP_PROTOCOL` goes to uvicorn as `http`.
Does not apply: without that variable.
Remove when: vLLM has a flag for `http`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def apply() -> None:
    from vllm.entrypoints.launchers.api_server import entry

    from glm5_vllm.patches import replace_attribute

    replace_attribute(entry, "serve_http", _with_protocol)


def _with_protocol(original: Callable[..., Any]) -> Callable[..., Any]:
    from glm5_vllm import envs

    @functools.wraps(original)
    async def serve_http(*args: Any, **kwargs: Any) -> Any:
        protocol = envs.http_protocol()
        # we have no websocket routes, and their library would read heads without these limits
        chosen = {} if protocol is None else {"http": protocol, "ws": "none"}
        return await original(*args, **kwargs, **chosen)

    return serve_http
