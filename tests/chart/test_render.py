"""What the chart renders: lint, schemas of Kubernetes, goldens, and files that follow from values.yaml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from glm5_service.settings import load
from tests.support.chart import CHART, EXAMPLES, KUBERNETES, ROOT, VALUES, helm, objects, one

pytestmark = pytest.mark.chart

GOLDEN = Path(__file__).parent / "golden"
# kinds of other projects' definitions, which Kubernetes' own schemas do not have
FOREIGN = {
    "PodMonitor",
    "ServiceMonitor",
    "PrometheusRule",
    "HTTPRoute",
    "InferencePool",
    "ScaledObject",
    "LeaderWorkerSet",
}


@pytest.mark.parametrize("name", ["helm3", "helm4"])
def test_lint_finds_nothing(name: str) -> None:
    """Both helms' strict lint passes for the bare chart."""
    output = helm("lint", "--strict", str(CHART), name=name)

    assert output.returncode == 0, output.stdout


@pytest.mark.parametrize("kube", KUBERNETES)
@pytest.mark.parametrize("base", VALUES)
def test_objects_fit_the_schemas_of_kubernetes(base: str, kube: str) -> None:
    """Every rendered object of a Kubernetes kind is valid, with no unknown field, for old, middle and new servers."""
    for item in objects(base, kube=kube):
        if item["kind"] not in FOREIGN:
            kubernetes_validate.validate(item, kube.rpartition(".")[0], strict=True)


@pytest.mark.parametrize("base", VALUES)
def test_both_helms_render_the_same(base: str) -> None:
    """Helm 3 and Helm 4 give equal objects."""
    assert objects(base, name="helm3") == objects(base, name="helm4")


@pytest.mark.parametrize("kube", ["1.20.2", "1.37.0"])
@pytest.mark.parametrize("base", VALUES)
def test_golden(base: str, kube: str) -> None:
    """A render is the recorded one; `make chart-docs` records a change that was meant."""
    path = GOLDEN / f"{base}-{kube.rpartition('.')[0]}.yaml"
    # the script of the tests and the boards are files of their own; copies in every golden would only hide what changed
    items = [
        item
        for item in objects(base, kube=kube)
        if item["metadata"]["name"] != "glm5-tests" and "-dashboard-" not in item["metadata"]["name"]
    ]
    text = yaml.safe_dump_all(items, sort_keys=True, width=120)
    if os.environ.get("GLM5_RECORD") == "1":
        path.write_text(text)

    assert path.read_text() == text


def test_generated_files_are_current() -> None:
    """Schema, tables and docs/values.md are what values.yaml says, and every value has a comment."""
    output = subprocess.run(
        [sys.executable, "-m", "charts.reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert output.stderr == ""


@pytest.mark.parametrize("base", VALUES)
def test_service_takes_the_settings(base: str, tmp_path: Path) -> None:
    """The settings file in the ConfigMap has only settings that the service knows, of the right type."""
    file = tmp_path / "glm5.yaml"
    file.write_text(one(objects(base), "ConfigMap")["data"]["glm5.yaml"])

    assert load(config=file, environ={}).settings.run_dir == Path("/run/glm5")


@pytest.mark.parametrize("base", EXAMPLES)
def test_example_says_only_what_differs(base: str) -> None:
    """An example repeats no default of values.yaml."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    def repeated(values: dict[str, object], reference: dict[str, object], prefix: str) -> list[str]:
        found: list[str] = []
        for key, value in values.items():
            if isinstance(value, dict) and isinstance(reference.get(key), dict):
                found += repeated(value, reference[key], f"{prefix}{key}.")  # type: ignore[arg-type]
            elif value == reference.get(key):
                found.append(prefix + key)
        return found

    assert repeated(yaml.safe_load(EXAMPLES[base].read_text()), defaults, "") == []
