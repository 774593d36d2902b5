"""Reading manifests, and the scheduler's arithmetic."""

from __future__ import annotations

from decimal import Decimal

import pytest
import yaml

from glm5_service.cluster.wanted import pod_need, read
from glm5_service.errors import SettingsError


def container(cpu: str, **more: object) -> dict[str, object]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}} | more


def test_containers_add_up_and_init_containers_count_where_they_need_more() -> None:
    """Requests are the sum of containers and native sidecars, or the largest plain init container."""
    sidecar = container("500m", restartPolicy="Always")
    small = pod_need(
        {"containers": [container("2"), container("1")], "initContainers": [sidecar, container("1")]}
    )
    large = pod_need({"containers": [container("2")], "initContainers": [container("8"), container("4")]})

    assert small.requests["cpu"] == Decimal("3.5")
    assert large.requests["cpu"] == Decimal(8)


def test_manifests_tell_what_they_need_beside_nodes() -> None:
    """Secrets that the manifests do not make themselves, claims, kinds and host paths are found."""
    pod = {
        "containers": [
            container("1", env=[
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "k"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "theirs", "key": "k"}}},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "maybe", "key": "k", "optional": True}}},
            ])
        ],
        "imagePullSecrets": [{"name": "login"}],
        "volumes": [{"name": "m", "hostPath": {"path": "/m"}}],
    }  # fmt: skip
    claim = {"metadata": {"name": "model"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    stager = {"containers": [], "volumes": [{"name": "s", "secret": {"secretName": "source"}}]}
    documents = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "glm5"},
         "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {"spec": pod},
                  "volumeClaimTemplates": [claim]}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "glm5-stage"},
         "spec": {"template": {"spec": stager}}},
    ]  # fmt: skip
    wanted = read(yaml.safe_dump_all(documents))

    assert wanted.secrets == {"theirs", "login", "source"}
    assert wanted.kinds == {"apps/StatefulSet", "batch/Job"}
    assert wanted.own_labels == {"a": "b"}
    assert (wanted.replicas, wanted.host_path, wanted.claims[0].size) == (2, True, Decimal(2**30))


def test_pods_of_several_nodes_are_told_by_their_sets_own_label() -> None:
    """A LeaderWorkerSet has no selector; its pods, leaders and workers, have its name as a label."""
    template = {"spec": {"containers": [container("1")]}}
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "leaderTemplate": template}}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    wanted = read(yaml.safe_dump(kind | {"metadata": {"name": "glm5"}, "spec": spec}))

    assert wanted.own_labels == {"leaderworkerset.sigs.k8s.io/name": "glm5"}
    assert wanted.replicas == 6


@pytest.mark.parametrize("text", ["", "kind: Service\nmetadata: {name: a}\n", "a: [b"])
def test_other_input_is_refused(text: str) -> None:
    """Input that is not a rendered chart is refused with what to pipe in."""
    with pytest.raises(SettingsError, match="helm template"):
        read(text)
