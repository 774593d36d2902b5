"""Imports go one way: at every level of the tree, the parts of a package form a graph without cycles."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# package -> the folder that holds it
ROOTS = {
    "glm5_service": "service",
    "glm5_vllm": "backend_plugin",
    "demo_model": ".",
    "charts": ".",
    "tests": ".",
}

Graph = dict[str, set[str]]


def modules(package: str) -> dict[str, Path]:
    """Module name -> file, of everything in a package; a folder's `__init__` is a module of that folder."""
    base = ROOT / ROOTS[package]
    found = sorted((base / package).rglob("*.py"))
    return {".".join(path.relative_to(base).with_suffix("").parts): path for path in found}


def imports(package: str) -> set[tuple[str, str]]:
    """Every (importer, imported) between modules of a package, also inside functions and for types alone."""
    known = modules(package)
    return {
        (name, target)
        for name, path in known.items()
        for wanted in _wanted(ast.parse(path.read_text()))
        if (target := _resolve(wanted, known)) and target != name
    }


def _wanted(tree: ast.Module) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _resolve(wanted: str, known: dict[str, Path]) -> str | None:
    """The module behind `package.module.name`, `package.module` or `package.name`."""
    for name in (wanted, wanted.rpartition(".")[0]):
        for candidate in (name, f"{name}.__init__"):
            if candidate in known:
                return candidate
    return None


def levels(edges: set[tuple[str, str]]) -> dict[str, Graph]:
    """Folder -> graph of what lies in it; an import between two of its parts is an arrow there."""
    found: dict[str, Graph] = {}
    for importer, imported in edges:
        a, b = importer.split("."), imported.split(".")
        common = next(n for n in range(len(a)) if a[: n + 1] != b[: n + 1])
        found.setdefault(".".join(a[:common]), {}).setdefault(a[common], set()).add(b[common])
    return found


def cycles(edges: set[tuple[str, str]]) -> list[str]:
    """One cycle of each folder that has any."""
    found = []
    for folder, graph in sorted(levels(edges).items()):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append(f"{folder}: {' <- '.join(error.args[1])}")
    return found


@pytest.mark.parametrize("package", ROOTS)
def test_imports_go_one_way(package: str) -> None:
    """No two parts of a folder need each other, directly or through others."""
    assert cycles(imports(package)) == []


def test_a_cycle_is_noticed() -> None:
    """The check sees a cycle between folders, however deep the two modules lie."""
    edges = imports("glm5_service")
    assert ("glm5_service.supervise.start", "glm5_service.preflight.check") in edges
    edges.add(("glm5_service.preflight.fit", "glm5_service.supervise.state"))
    assert [cycle.partition(":")[0] for cycle in cycles(edges)] == ["glm5_service"]
