"""Names that the pinned vLLM accepts for parsers and KV cache types.

`python -m charts.reference names WHEEL` reads them out of its wheel.
"""

from __future__ import annotations

import ast
import json
import zipfile
from pathlib import Path
from typing import Any

from charts.reference.schema import Schema, setting

FILE = Path(__file__).with_name("engine-names.json")
SETTINGS = {
    "engine.tool_call_parser": "toolCallParsers",
    "engine.reasoning_parser": "reasoningParsers",
    "engine.kv_cache_dtype": "kvCacheDtypes",
}


def narrow(settings: Schema) -> Schema:
    """The service's schema with the names that this vLLM knows, where the service takes any text."""
    found: Schema = json.loads(json.dumps(settings))
    names = json.loads(FILE.read_text())
    for path, source in SETTINGS.items():
        leaf = setting(found, path)
        for option in leaf.get("anyOf", [leaf]):
            if option["type"] == "string":
                option["enum"] = names[source]
    return found


def read(wheel: Path) -> None:
    """Take the names out of vLLM's source, without importing it."""
    with zipfile.ZipFile(wheel) as archive:
        tools = _keys(archive.read("vllm/tool_parsers/__init__.py"), "_TOOL_PARSERS_TO_REGISTER")
        reasoning = _keys(archive.read("vllm/reasoning/__init__.py"), "_REASONING_PARSERS_TO_REGISTER")
        cache = _keys(archive.read("vllm/config/cache.py"), "CacheDType")
    names = {
        "wheel": wheel.name,
        "toolCallParsers": tools,
        "reasoningParsers": reasoning,
        "kvCacheDtypes": cache,
    }
    FILE.write_text(json.dumps(names, indent=1) + "\n")


def _keys(source: bytes, name: str) -> list[str]:
    """Keys of the module's dict `name`, or the choices of its Literal `name`."""
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            value: Any = node.value  # type: ignore[attr-defined]
            constants: Any = value.keys if isinstance(value, ast.Dict) else value.slice.elts
            return [constant.value for constant in constants]
    raise SystemExit(f"reference: no {name} in the wheel. The engine changed: find where its names are now.")
