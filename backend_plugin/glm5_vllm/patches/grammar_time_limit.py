"""Refuse a grammar that does not compile within a time limit, before it reaches the engine or the API server's loop.

Symptom: one schema of 700,000 choices, or 5,000 optional properties, compiles for minutes after its client has left. Each
trivial structured output then waits for it. While the schema is parsed, the API server answers nobody.
Cause: vLLM parses the grammar in the API server's event loop (validate_xgrammar_grammar), and compiles it in a thread of
the engine core (StructuredOutputManager). xgrammar can't be interrupted. Only regular expressions have a limit, and their
thread goes on after it. Backend `auto` makes it worse, because one request can choose the backend of all.
Change: before a request is added, a separate process compiles its grammar. The process is killed at the limit, and the
request is refused with 400. Grammars that passed are remembered. The supervisor fixes the backend to xgrammar.
Does not apply: without GLM5_GRAMMAR_SECONDS, or with other backends.
Remove when: vLLM compiles with a limit that ends the compilation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from glm5_vllm import envs

if TYPE_CHECKING:
    from glm5_vllm.grammar.messages import Kind, Setup


def apply() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    from glm5_vllm.patches import replace_attribute

    if envs.grammar_seconds() is not None:
        replace_attribute(AsyncLLM, "add_request", _after_a_trial)


def _after_a_trial(original: Callable[..., Any]) -> Callable[..., Any]:
    from vllm.exceptions import VLLMValidationError

    from glm5_vllm.grammar.trial import GrammarError, GrammarTrials

    @functools.wraps(original)
    async def add_request(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        trials = vars(self).get("glm5_grammar_trials")
        if trials is None:
            seconds = envs.grammar_seconds()
            assert seconds is not None
            trials = self.glm5_grammar_trials = GrammarTrials(
                functools.partial(_setup, self.vllm_config, seconds), seconds
            )
        # the first request is the canary, so no user waits until the helper has started
        await trials.start()
        grammar = (
            _grammar(params) if self.vllm_config.structured_outputs_config.backend == "xgrammar" else None
        )
        if grammar is not None:
            try:
                await trials.check(*grammar)
            except GrammarError as error:
                raise VLLMValidationError(str(error)) from None
        return await original(self, request_id, prompt, params, *args, **kwargs)

    return add_request


def _setup(config: Any, seconds: float) -> Setup:
    import xgrammar
    from vllm.tokenizers import cached_tokenizer_from_config

    from glm5_vllm.grammar.messages import Setup
    from glm5_vllm.grammar.trial import MEMORY_BYTES

    tokenizer = cached_tokenizer_from_config(model_config=config.model_config)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=config.model_config.get_vocab_size())
    any_whitespace = not config.structured_outputs_config.disable_any_whitespace
    return Setup(info.serialize_json(), seconds, MEMORY_BYTES, any_whitespace)


def _grammar(params: Any) -> tuple[Kind, str] | None:
    """Return kind and text of the constraint on the answer, as vLLM passes them to xgrammar. None if there is none."""
    from vllm.v1.structured_output.request import get_structured_output_key
    from vllm.v1.structured_output.utils import choice_as_grammar, grammar_is_likely_lark

    constraint = getattr(params, "structured_outputs", None)
    if constraint is None or constraint.all_constraints_none():
        return None
    if constraint.choice:
        return "grammar", choice_as_grammar(constraint.choice)
    option, spec = get_structured_output_key(constraint)
    kind: Kind = option.name.lower()
    if kind == "grammar" and grammar_is_likely_lark(spec):
        return "lark", spec
    return kind, spec
