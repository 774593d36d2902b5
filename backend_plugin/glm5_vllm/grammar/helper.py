"""`python -m glm5_vllm.grammar.helper`: compiles each grammar from stdin in a process of its own, with limits.

xgrammar compiles in C++ and can't be interrupted, so the kernel ends a compilation that takes too long. The helper has
xgrammar and the vocabulary loaded; each job is a fork of it, and costs milliseconds to start.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from glm5_vllm.grammar.messages import Job, Outcome, Setup, read, write

_MAX_ERROR = 500


def main() -> None:
    """Read the setup, then jobs until stdin ends."""
    import xgrammar

    setup = read(Setup, sys.stdin.buffer.readline())
    info = xgrammar.TokenizerInfo.deserialize_json(setup.tokenizer_info)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.buffer.readline():
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(read(Job, line), setup, info)
            os._exit(0)


def _run(job: Job, setup: Setup, info: Any) -> None:
    """Compile in one more process, and say what came of it."""
    reading, writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _limit(setup)
            os.write(writing, write(_compile(job, setup, info)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        line = answer.read()
    status = os.waitpid(child, 0)[1]
    if not line:
        is_slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        line = write(Outcome(job.number, "slow" if is_slow else "crashed", "", time.monotonic() - started))
    os.write(1, line)  # one write of less than a page is whole


def _limit(setup: Setup) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + setup.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, setup.seconds)


def _compile(job: Job, setup: Setup, info: Any) -> Outcome:
    import xgrammar

    started = time.monotonic()
    try:
        grammar = _parse(job, setup)
        parsed = time.monotonic()
        compiled = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False).compile_grammar(grammar)
        # one that allows no first token would end its request as an internal error of the engine
        allowed = xgrammar.allocate_token_bitmask(1, info.vocab_size)
        xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(allowed)
        if not allowed.any():
            raise ValueError("no text satisfies it")
    except Exception as error:
        return Outcome(job.number, "refused", str(error)[:_MAX_ERROR], time.monotonic() - started)
    return Outcome(job.number, "passed", "", time.monotonic() - started, parsed - started)


def _parse(job: Job, setup: Setup) -> Any:
    """As vLLM's XgrammarBackend.compile_grammar reads each kind."""
    from xgrammar import Grammar, StructuralTagItem

    separators = None if setup.any_whitespace else (",", ":")
    if job.kind in ("json", "json_object"):
        schema = job.spec if job.kind == "json" else '{"type": "object"}'
        return Grammar.from_json_schema(schema, any_whitespace=setup.any_whitespace, separators=separators)
    if job.kind == "regex":
        return Grammar.from_regex(job.spec)
    if job.kind == "lark":
        return Grammar.from_lark(job.spec)
    if job.kind == "grammar":
        return Grammar.from_ebnf(job.spec)
    tag = json.loads(job.spec)
    if "structures" not in tag:
        return Grammar.from_structural_tag(job.spec)
    items = [
        StructuralTagItem(begin=each["begin"], schema=json.dumps(each["schema"]), end=each["end"])
        for each in tag["structures"]
    ]
    return Grammar.from_structural_tag(items, tag["triggers"])


if __name__ == "__main__":
    main()
