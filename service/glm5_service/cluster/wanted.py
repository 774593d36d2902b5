"""Reads from rendered manifests what a release needs of a cluster. Pure. Next hop: `install_rules`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import yaml
from lightkube.utils.quantity import parse_quantity

from glm5_service.errors import SettingsError

Document = Mapping[str, Any]


@dataclass(frozen=True)
class PodNeed:
    """What a pod needs of its node."""

    requests: Mapping[str, Decimal]
    selector: Mapping[str, str] = field(default_factory=dict)
    label_values: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tolerations: tuple[Mapping[str, str], ...] = ()

    @property
    def gpu(self) -> str | None:
        """The name of the GPU resource, or None if no GPU is requested."""
        return next((name for name in self.requests if name.endswith("/gpu")), None)


@dataclass(frozen=True)
class Claim:
    """A volume claim of a StatefulSet. The size is in bytes. Without a class the default class applies."""

    name: str
    storage_class: str | None
    size: Decimal


@dataclass(frozen=True)
class Wanted:
    """What a release needs of a cluster. `own_labels` select the pods that an upgrade would replace."""

    pod: PodNeed
    replicas: int
    claims: tuple[Claim, ...]
    existing_claims: frozenset[str]
    secrets: frozenset[str]
    kinds: frozenset[str]
    host_path: bool
    names: frozenset[str] = frozenset()
    own_labels: Mapping[str, str] = field(default_factory=dict)


def read(text: str) -> Wanted:
    """Read the output of `helm template`. Raises SettingsError if it has no serving workload."""
    try:
        documents = [item for item in yaml.safe_load_all(text) if isinstance(item, dict)]
    except yaml.YAMLError as error:
        raise SettingsError(
            "manifests are not YAML",
            " ".join(str(error).split())[:120],
            remedy="Pipe `helm template` into this.",
        ) from error
    workload = next((d for d in documents if d.get("kind") in ("StatefulSet", "LeaderWorkerSet")), None)
    if workload is None:
        raise SettingsError(
            "no workload among the manifests",
            f"{len(documents)} objects",
            expected="the StatefulSet of the chart",
            remedy="Pipe `helm template RELEASE CHART -f VALUES` into this.",
        )
    spec = workload["spec"]
    template = spec.get("template") or spec["leaderWorkerTemplate"]["leaderTemplate"]
    pod = template["spec"]
    pods = [pod, *(d["spec"]["template"]["spec"] for d in documents if d.get("kind") == "Job")]
    made = {str(d["metadata"]["name"]) for d in documents if d.get("kind") == "Secret"}
    return Wanted(
        pod=pod_need(pod),
        replicas=int(spec.get("replicas", 1)) * int(spec.get("leaderWorkerTemplate", {}).get("size", 1)),
        claims=tuple(_claim(item) for item in spec.get("volumeClaimTemplates", [])),
        existing_claims=frozenset(
            str(volume["persistentVolumeClaim"]["claimName"])
            for volume in (pod.get("volumes") or [])
            if "persistentVolumeClaim" in volume
        ),
        secrets=frozenset(name for each in pods for name in _secret_names(each)) - made,
        kinds=frozenset(
            f"{d['apiVersion'].partition('/')[0]}/{d['kind']}" for d in documents if "/" in d["apiVersion"]
        ),
        host_path=any("hostPath" in volume for volume in (pod.get("volumes") or [])),
        names=frozenset({str(workload["metadata"]["name"])}),
        own_labels=_own_labels(workload),
    )


def _own_labels(workload: Document) -> Mapping[str, str]:
    """Return the labels that select the pods of a workload. A LeaderWorkerSet has no selector but sets a label."""
    if workload["kind"] == "LeaderWorkerSet":
        return {"leaderworkerset.sigs.k8s.io/name": str(workload["metadata"]["name"])}
    return (workload["spec"].get("selector") or {}).get("matchLabels") or {}


def pod_need(pod: Document) -> PodNeed:
    """Return the need of a pod as the scheduler counts it: the containers' sum, or an init container if it needs more."""
    total: dict[str, Decimal] = {}
    for container in pod["containers"]:
        add_amounts(total, _requests(container))
    single: dict[str, Decimal] = {}
    for container in pod.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            add_amounts(total, _requests(container))
        else:
            for name, amount in _requests(container).items():
                single[name] = max(single.get(name, Decimal(0)), amount)
    required = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = required.get("nodeSelectorTerms") or []
    expressions = terms[0].get("matchExpressions", []) if len(terms) == 1 else []
    return PodNeed(
        requests={
            name: max(total.get(name, Decimal(0)), single.get(name, Decimal(0))) for name in total | single
        },
        selector=pod.get("nodeSelector") or {},
        label_values=tuple((e["key"], tuple(e["values"])) for e in expressions if e.get("operator") == "In"),
        tolerations=tuple(pod.get("tolerations") or ()),
    )


def add_amounts(total: dict[str, Decimal], amounts: Mapping[str, Decimal]) -> None:
    """Add amounts to `total`, by resource name."""
    for name, amount in amounts.items():
        total[name] = total.get(name, Decimal(0)) + amount


def _requests(container: Document) -> dict[str, Decimal]:
    texts = ((container.get("resources") or {}).get("requests")) or {}
    return {name: parse_quantity(str(text)) or Decimal(0) for name, text in texts.items()}


def _claim(template: Document) -> Claim:
    spec = template["spec"]
    size = parse_quantity(spec["resources"]["requests"]["storage"]) or Decimal(0)
    return Claim(template["metadata"]["name"], spec.get("storageClassName"), size)


def _secret_names(pod: Document) -> Iterable[str]:
    yield from (str(item["name"]) for item in pod.get("imagePullSecrets") or [])
    for volume in pod.get("volumes") or []:
        if "secret" in volume:
            yield str(volume["secret"]["secretName"])
    for container in [*pod["containers"], *(pod.get("initContainers") or [])]:
        for variable in container.get("env") or []:
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
            if reference and not reference.get("optional"):
                yield str(reference["name"])
