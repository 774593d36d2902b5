"""Ways to bound the JSON of a request, on hostile and honest bodies: python -m tests.bench.json_bounds FILE.

ijson (C backend, in parts of 64 KiB as they arrive, ended at a limit of events), orjson (builds the value), the standard
library's json (the same), and the gate's count of tokens. Each in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.hostile_clients import conditions

LIMIT = 100_000
BODIES: dict[str, Callable[[], bytes]] = {
    "3 million {}, 9 MB": lambda: b'{"messages":[' + b"{}," * 3_000_000 + b"{}]}",
    "700,000 choices, 7.6 MB": lambda: b'{"choice":[' + b'"abcdefg",' * 700_000 + b"1]}",
    "16 MB of opening brackets": lambda: b"[" * 16_000_000,
    "a prompt of 16 MB of escapes": lambda: b'{"prompt":"' + b"\\n" * 8_000_000 + b'"}',
    "a prompt of 16 MB of letters": lambda: b'{"prompt":"' + b"a" * 16_000_000 + b'"}',
    "1 million token ids": lambda: b'{"prompt":[' + b"151000," * 1_000_000 + b"1]}",
}


def _ijson(body: bytes) -> None:
    import ijson

    events = ijson.sendable_list()
    parser = ijson.get_backend("yajl2_c").basic_parse_coro(events, use_float=True)
    seen = 0
    for start in range(0, len(body), 65536):
        parser.send(body[start : start + 65536])
        seen += len(events)
        del events[:]
        if seen > LIMIT:
            return


def _orjson(body: bytes) -> None:
    import orjson

    orjson.loads(body)


def _gate(body: bytes) -> None:
    from glm5_service.api.body import parse
    from glm5_service.api.policy import BodyLimits

    parse(body, BodyLimits(max_elements=LIMIT))


READERS: dict[str, Callable[[bytes], object]] = {
    "ijson": _ijson,
    "orjson": _orjson,
    "json": json.loads,
    "gate": _gate,
}


def _measure(reader: str, body: str) -> dict[str, Any]:
    """In this process: seconds, and how far the peak of memory rose."""
    content, read = BODIES[body](), READERS[reader]
    with_imports = b'{"a":[1]}'
    read(with_imports)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, outcome = time.perf_counter(), "read"
    try:
        read(content)
    except (ValueError, RecursionError) as error:
        outcome = f"refused: {type(error).__name__}"
    seconds = time.perf_counter() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "reader": reader,
        "seconds": round(seconds, 4),
        "memory_mib": round(grown / 1024, 1),
        "outcome": outcome,
    }


def main(path: Path) -> None:
    """Every reader on every body, one process each."""
    rows = []
    for body in BODIES:
        for reader in READERS:
            argv = [sys.executable, "-m", "tests.bench.json_bounds", reader, body]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(
                    f"{reader}: {done.stderr.strip().splitlines()[-1]}; expected ijson and orjson installed"
                )
            rows.append({"body": body, **json.loads(done.stdout)})
    path.write_text(json.dumps({**conditions(), "limit": LIMIT, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(_measure(sys.argv[1], sys.argv[2])))
    else:
        main(Path(sys.argv[1]))
