"""Renders the chart with the pinned helms and gives its objects back. Fetches the tools on first use."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.kube_api import kubeconfig_of

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "glm5"
EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
VALUES = EXAMPLES | {path.stem: path for path in sorted((ROOT / "tests" / "chart" / "values").glob("*.yaml"))}
KUBERNETES = ("1.25.0", "1.31.0", "1.37.0")
Manifest = dict[str, Any]


@cache
def tool(name: str) -> Path:
    """A pinned tool of charts/fetch-tools: helm3, helm4 or kubectl."""
    path = ROOT / ".cache" / "tools" / name
    if not path.exists():
        subprocess.run([sys.executable, str(ROOT / "charts" / "fetch-tools")], check=True)
    return path


def helm(*argv: str, name: str = "helm4", stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm; never raises for its exit code."""
    return subprocess.run([str(tool(name)), *argv], capture_output=True, text=True, check=False, input=stdin)


def render(
    base: str = "rtx-pro-6000",
    values: Manifest | None = None,
    *,
    kube: str = "1.31.0",
    name: str = "helm4",
    release: str = "glm5",
    chart: Path = CHART,
) -> subprocess.CompletedProcess[str]:
    """`helm template` of a value file with further values laid over it."""
    argv = [
        "template",
        release,
        str(chart),
        "--namespace",
        "llm",
        "--kube-version",
        kube,
        "-f",
        str(VALUES[base]),
    ]
    return helm(*argv, "-f", "-", name=name, stdin=json.dumps(values or {}))


def render_beside(
    values: Manifest, *there: Manifest, base: str = "rtx-pro-6000"
) -> subprocess.CompletedProcess[str]:
    """`helm template` that looks up the objects that are there, as an upgrade does; Helm 4 would ask for more."""
    with tempfile.TemporaryDirectory() as folder, kubeconfig_of(there, Path(folder)) as config:
        argv = ["template", "glm5", str(CHART), "-n", "llm", "-f", str(VALUES[base]), "-f", "-"]
        argv += ["--dry-run=server", "--kubeconfig", str(config)]
        return helm(*argv, name="helm3", stdin=json.dumps(values))


def objects(base: str = "rtx-pro-6000", values: Manifest | None = None, **how: Any) -> list[Manifest]:
    """Rendered objects in order of kind and name; `how` is that of `render`."""
    return objects_of(render(base, values, **how))


def objects_of(output: subprocess.CompletedProcess[str]) -> list[Manifest]:
    """Objects that helm wrote, in order of kind and name."""
    assert output.returncode == 0, output.stderr
    found = [document for document in yaml.safe_load_all(output.stdout) if document]
    return sorted(found, key=lambda item: (item["kind"], item["metadata"]["name"]))


def one(items: list[Manifest], kind: str, name: str = "glm5") -> Manifest:
    """The object of that kind and name."""
    return next(item for item in items if item["kind"] == kind and item["metadata"]["name"] == name)


def pod_of(items: list[Manifest]) -> Manifest:
    """Pod spec of the StatefulSet."""
    spec: Manifest = one(items, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def containers(pod: Manifest) -> dict[str, Manifest]:
    """Every container of a pod by name, init containers too."""
    return {item["name"]: item for item in [*pod.get("initContainers", []), *pod["containers"]]}
