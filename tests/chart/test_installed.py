"""What the chart makes of a release that is in the cluster already."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import objects, objects_of, one, render_beside

pytestmark = pytest.mark.chart

AUTOSCALING = {"autoscaling": {"enabled": True}}
KEDA = {"keda": {"enabled": True, "prometheus": "http://p"}}


def there(replicas: int = 1, size: str = "900Gi") -> dict[str, Any]:
    """The StatefulSet of the release as the server has it."""
    claim = {"spec": {"resources": {"requests": {"storage": size}}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "glm5", "namespace": "llm"},
        "spec": {"replicas": replicas, "volumeClaimTemplates": [claim]},
    }


@pytest.mark.parametrize(
    ("live", "values", "wanted"),
    [
        (4, AUTOSCALING, 4),
        (4, KEDA, 4),
        (0, AUTOSCALING, 1),
        (0, {"autoscaling": {"enabled": True, "minReplicas": 2}}, 2),
        (1, {"autoscaling": {"enabled": True, "minReplicas": 2}}, 1),
        (4, {"replicas": 3}, 3),
    ],
)
def test_scaler_takes_over_the_replicas_that_run(live: int, values: dict[str, Any], wanted: int) -> None:
    """Under a scaler an upgrade keeps the number of replicas, but for 0, where scalers are off; else it is the value."""
    items = objects_of(render_beside(there(replicas=live), values))

    assert one(items, "StatefulSet")["spec"]["replicas"] == wanted


@pytest.mark.parametrize("values", [AUTOSCALING, KEDA], ids=["autoscaling", "keda"])
def test_render_without_a_cluster_leaves_the_number_to_the_scaler(values: dict[str, Any]) -> None:
    """A render that cannot ask the cluster says no number, or each time it is applied it would undo the scaler."""
    assert "replicas" not in one(objects(values=values), "StatefulSet")["spec"]


# what the server holds and the value; the server writes an amount its own way
SAME = [
    ("900Gi", "900Gi"), ("1Ti", "1024Gi"), ("1536Gi", "1.5Ti"), ("1T", "1000G"), ("1500M", "1.5G"), ("2P", "2000T"),
    ("1Pi", "1024Ti"), ("943718400Ki", "900Gi"), ("966367641600", "900Gi"), ("966367641600k", "900000Gi"),
    ("2148020518912m", "2.0005Gi"), ("1e12", "1T"),
]  # fmt: skip
OTHER = [("1Ti", "1025Gi"), ("900G", "900Gi"), ("1Ti", "1T"), ("1Pi", "1Ti"), ("900Mi", "900Gi")]


@pytest.mark.parametrize(("stored", "value"), SAME)
def test_claim_of_the_same_size_is_no_change(stored: str, value: str) -> None:
    """A size is compared as an amount, so an upgrade that does not change it is not refused."""
    output = render_beside(there(size=stored), {"model": {"volume": {"size": value}}}, "cpu-demo")

    assert output.stderr == ""


@pytest.mark.parametrize(("stored", "value"), OTHER)
def test_claim_of_another_size_is_refused(stored: str, value: str) -> None:
    """Another amount is refused in words that name both and the commands that enlarge a claim."""
    output = render_beside(there(size=stored), {"model": {"volume": {"size": value}}}, "cpu-demo")

    assert f"model.volume.size is {value} while the claims have {stored}" in output.stderr
    assert "patch pvc model-glm5-0" in output.stderr
