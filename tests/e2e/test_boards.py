"""The boards on a real cluster: what the API server keeps is what the files hold. Starts no pod."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e import release as r
from tests.support.boards import FILES
from tests.support.chart import CHART, tool

pytestmark = pytest.mark.cluster

NAMESPACE = f"{r.NAMESPACE}-boards"
# the chart writes the release into both
ANY_RELEASE = {"title": "", "uid": ""}


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace of its own, gone afterwards."""
    kubectl = str(tool("kubectl"))
    r.run(kubectl, "create", "namespace", NAMESPACE)
    yield NAMESPACE
    r.run(kubectl, "delete", "namespace", NAMESPACE, "--wait=false")


def test_config_maps_carry_what_the_files_hold(namespace: str) -> None:
    """Installed by helm with no replica, each board is read back as its file, but for title and uid, with the label."""
    values = {"replicas": 0, "images": {"registry": r.REGISTRY}, "dashboards": {"enabled": True}}
    example = str(CHART / "examples" / "cpu-demo.yaml")
    r.run(
        str(tool(r.HELM)), "-n", namespace, "install", "glm5", str(CHART), "-f", example, "-f", "-",
        stdin=yaml.safe_dump(values),
    )  # fmt: skip
    text = r.run(
        str(tool("kubectl")), "-n", namespace, "get", "configmaps", "-l", "grafana_dashboard=1", "-o", "json"
    )
    kept = {name: data for item in json.loads(text)["items"] for name, data in item["data"].items()}
    kept_boards = {name: json.loads(data) | ANY_RELEASE for name, data in kept.items()}
    assert kept_boards == {
        f"{namespace}-glm5-{path.name}": json.loads(path.read_text()) | ANY_RELEASE for path in FILES
    }
    assert all("{{pod}}" in data for data in kept.values())
