"""What the chart makes of a release that is in the cluster already."""

from __future__ import annotations

import base64
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
    items = objects_of(render_beside(values, there(replicas=live)))

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
    output = render_beside({"model": {"volume": {"size": value}}}, there(size=stored), base="cpu-demo")

    assert output.stderr == ""


@pytest.mark.parametrize(("stored", "value"), OTHER)
def test_claim_of_another_size_is_refused(stored: str, value: str) -> None:
    """Another amount is refused in words that name both and the commands that enlarge a claim."""
    output = render_beside({"model": {"volume": {"size": value}}}, there(size=stored), base="cpu-demo")

    assert f"model.volume.size is {value} while the claims have {stored}" in output.stderr
    assert "patch pvc model-glm5-0" in output.stderr


KEY = {"api": {"key": {"existingSecret": "", "value": "k2"}}}
JOB = {"mode": "job", "credentials": {"token": "t2"}}
TOKEN = {"staging": JOB, "model": {"volume": {"type": "existingClaim", "existingClaim": "c"}}}


def secret(name: str, key: str, text: str, generation: str = "4", owner: str = "glm5") -> dict[str, Any]:
    """A Secret as Helm left it."""
    about = {"meta.helm.sh/release-name": owner, "glm5/generation": generation}
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    metadata = {"name": name, "namespace": "llm", "annotations": about, "labels": labels}
    data = {key: base64.b64encode(text.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


@pytest.mark.parametrize(("text", "wanted"), [("k2", "4"), ("k1", "5"), (None, "1")], ids=str)
def test_pod_restarts_when_the_key_changes(text: str | None, wanted: str) -> None:
    """A changed key counts one up, in the Secret and in the pod, which restarts; the same key changes nothing."""
    items = objects_of(render_beside(KEY, *([secret("glm5-api-key-value", "api-key", text)] if text else [])))
    pod = one(items, "StatefulSet")["spec"]["template"]["metadata"]["annotations"]

    assert pod["glm5/api-key-generation"] == wanted
    assert one(items, "Secret", "glm5-api-key-value")["metadata"]["annotations"] == {
        "glm5/generation": wanted
    }


def test_new_token_is_a_new_job() -> None:
    """A Job that failed for its token is not started again, so another token makes another Job."""
    names = {
        next(
            item["metadata"]["name"]
            for item in objects_of(render_beside(TOKEN, *there))
            if item["kind"] == "Job"
        )
        for there in (
            [],
            [secret("glm5-source", "token", "t2", "1")],
            [secret("glm5-source", "token", "t1", "1")],
        )
    }

    assert len(names) == 2


@pytest.mark.parametrize(
    "path", ["api.key.existingSecret", "staging.credentials.existingSecret", "staging.proxySecret"]
)
def test_secret_of_the_release_is_no_secret_of_yours(path: str) -> None:
    """A Secret that Helm would delete with its value is refused as an existing one, and one of another owner is not."""
    values: Any = "shared"
    for part in reversed(path.split(".")):
        values = {part: values}
    refused = render_beside(values, secret("shared", "x", "y"))
    others = render_beside(values, secret("shared", "x", "y", owner="other"))
    extra = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shared"}}
    kept = render_beside(values | {"extraObjects": [extra]}, secret("shared", "x", "y"))

    assert f"{path} is shared, a Secret that belongs to this release" in refused.stderr
    assert (others.stderr, kept.stderr) == ("", "")


def test_own_name_of_the_chart_is_no_existing_secret() -> None:
    """The name of the Secret that the chart makes is refused even where the cluster cannot be asked."""
    values = {"api": {"key": {"existingSecret": "glm5-api-key-value"}}}

    assert "a Secret that belongs to this release" in render_beside(values).stderr
