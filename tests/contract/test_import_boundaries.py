"""What may import what: light commands stay light, and the two distributions stay apart."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DYNAMIC_IMPORTS = ("import_module", "__import__", "find_spec", "run_module")
HEAVY = ("torch", "triton", "vllm", "gguf", "numpy", "transformers")

LIGHT_MODULES = [
    "glm5_vllm",
    "glm5_vllm.register",
    "glm5_vllm.attest",
    "glm5_vllm.gguf.file.header",
    "glm5_vllm.gguf.file.splits",
    "glm5_vllm.gguf.plan.planner",
    "glm5_vllm.gguf.inspect",
    "glm5_service.cli",
    "glm5_service.settings",
]


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_modules_import_nothing_heavy(module: str) -> None:
    """Modules that run in the slim image, or before the engine, import no tensor library."""
    program = f"import {module}, sys; print([m for m in {HEAVY} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-500:]


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("service", ("glm5_vllm", "vllm")),
        ("backend_plugin", ("glm5_service",)),
        ("demo_model", ("glm5_vllm", "glm5_service", "vllm")),
        ("charts", ("glm5_vllm", "glm5_service", "vllm")),
        ("backend_plugin/glm5_vllm/attention/kernels", ("vllm",)),
    ],
)
def test_packages_do_not_import_each_other(folder: str, forbidden: tuple[str, ...]) -> None:
    """Service and plugin never import each other, and what stands beside them imports neither; the kernels never vLLM."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in imported_modules(path)
        if name.split(".")[0] in forbidden
    ]

    assert found == []


# each room of gguf/ may import those before it; loader, inspect and the command stand above all of them
GGUF_ROOMS = ("printable", "errors", "file", "model", "plan", "values", "huggingface")


def test_rooms_of_gguf_import_downwards_only() -> None:
    """A room of gguf/ imports itself and the rooms below it, never one above."""
    gguf = ROOT / "backend_plugin/glm5_vllm/gguf"
    found = [
        f"{path.relative_to(gguf)}: {name}"
        for level, room in enumerate(GGUF_ROOMS)
        for path in sorted((gguf / room).rglob("*.py"))
        for name in imported_modules(path)
        if name.startswith("glm5_vllm.gguf.") and name.split(".")[2] not in GGUF_ROOMS[: level + 1]
    ]

    assert found == []
    assert {path.name for path in gguf.iterdir() if path.is_dir() and path.name != "__pycache__"} <= set(
        GGUF_ROOMS
    )


def imported_modules(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module or "")
        elif isinstance(node, ast.Call) and node.args and _name(node.func) in DYNAMIC_IMPORTS:
            names += [str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return names


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


# refuses what the service's image does not have, and then imports a module
IN_THE_IMAGE = """
import importlib, importlib.metadata as metadata, sys
pinned = set(sys.argv[2].split(","))
owners = metadata.packages_distributions()

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        named = {owner.lower().replace("_", "-") for owner in owners.get(top, ())}
        if named and not named & pinned:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize(
    "module",
    [
        "glm5_service.cluster.client",
        "glm5_service.cluster.events",
        "glm5_service.sidecar.server",
        "glm5_service.staging.command",
        "glm5_service.supervise.health_server",
    ],
)
def test_the_service_image_has_what_its_parts_import(module: str) -> None:
    """With the packages of docker/service.lock alone, each part that runs in the service's image can be imported."""
    lock = (ROOT / "docker/service.lock").read_text().splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lock if "==" in line}
    ours = {"glm5-service", "glm5-vllm"}
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_IMAGE, module, ",".join(pinned | ours)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
