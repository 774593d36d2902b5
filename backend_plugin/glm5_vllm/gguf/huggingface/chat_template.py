"""Whether a chat template is one that chats can be written with: compiled and tried as transformers does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from glm5_vllm.gguf.errors import GGUFError

if TYPE_CHECKING:
    from jinja2 import Environment

DEFAULT = "default"
_QUESTION = "Which way is up?"
_REMEDY = "Give another template (model.chat_template, --chat-template)"


def check_templates(templates: Mapping[str, str]) -> None:
    """Check the templates of a model by name.

    Raises:
        GGUFError: no default one, one that does not compile, or a default one that does not write a user's message.
    """
    if DEFAULT not in templates:
        found = f"only named ones, {', '.join(templates)}" if templates else "missing"
        raise GGUFError(
            "metadata key tokenizer.chat_template", found, expected="a default template", remedy=_REMEDY
        )
    for name, source in templates.items():
        check_template(source, f"chat template {name}", is_tried=name == DEFAULT)


def check_template(source: str, what: str, *, is_tried: bool = True) -> None:
    """Compile one template, and write a chat of one question with it.

    Raises:
        GGUFError: it does not compile, fails, or leaves the question out.
    """
    # not at the top: most commands need no templates
    from jinja2 import TemplateSyntaxError

    try:
        template = _environment().from_string(source)
    except TemplateSyntaxError as error:
        raise GGUFError(
            f"{what} does not compile", f"line {error.lineno}, {error.message}", remedy=_REMEDY
        ) from error
    if not is_tried:
        return
    messages = [{"role": "user", "content": _QUESTION}]
    try:
        prompt = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=True)
    # whatever a template raises, it raises in every chat
    except Exception as error:
        raise GGUFError(f"{what} fails on a chat of one question", error, remedy=_REMEDY) from error
    if _QUESTION not in prompt:
        raise GGUFError(f"{what} leaves the user's message out", prompt, remedy=_REMEDY)


def _environment() -> Environment:
    """What transformers' templates are compiled in (utils/chat_template_utils.py): its tags, filters and globals."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the model wrote, for training; it changes no text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, **{"ensure_ascii": False, **options}
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
