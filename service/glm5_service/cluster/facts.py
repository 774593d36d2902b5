"""Facts about a cluster and its nodes as frozen data. `client` makes them, `install_rules` and `nodes` judge them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from lightkube.resources.core_v1 import Node, ResourceQuota
from lightkube.utils.quantity import parse_quantity


@dataclass(frozen=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class NodeFacts:
    """A node. Amounts are in the unit of the resource (cores, bytes, pieces)."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    ready: bool
    allocatable: Mapping[str, Decimal]
    used: Mapping[str, Decimal]
    gpu_holders: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, node: Node, used: Mapping[str, Mapping[str, Decimal]], holders: Mapping[str, Sequence[str]]
    ) -> NodeFacts:
        """Return the facts of an API object. `used` and `holders` are by node name."""
        assert node.metadata is not None
        assert node.metadata.name is not None
        spec, status, name = node.spec, node.status, node.metadata.name
        conditions = (status.conditions if status else None) or []
        taints = [Taint(t.key, t.value or "", t.effect) for t in (spec.taints if spec else None) or []]
        amounts = (status.allocatable if status else None) or {}
        return cls(
            name=name,
            labels=node.metadata.labels or {},
            taints=tuple(taints),
            ready=any(c.type == "Ready" and c.status == "True" for c in conditions),
            allocatable={key: parse_quantity(text) or Decimal(0) for key, text in amounts.items()},
            used=used.get(name, {}),
            gpu_holders=tuple(holders.get(name, ())),
        )

    def free(self, resource: str) -> Decimal:
        """Return what is left of a resource, or zero if the node has none."""
        return self.allocatable.get(resource, Decimal(0)) - self.used.get(resource, Decimal(0))


def quota_left(quotas: Iterable[ResourceQuota], own: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """Return what is left of each limited resource: the least of several quotas. `own` counts as free."""
    left: dict[str, Decimal] = {}
    for quota in quotas:
        hard = (quota.status.hard if quota.status else None) or {}
        used = (quota.status.used if quota.status else None) or {}
        for name, text in hard.items():
            resource = name.removeprefix("requests.").removeprefix("limits.")
            others = (parse_quantity(used.get(name, "0")) or Decimal(0)) - own.get(resource, Decimal(0))
            # a quota for some pods only may not have counted our own pods
            rest = (parse_quantity(text) or Decimal(0)) - max(others, Decimal(0))
            left[name] = min(rest, left.get(name, rest))
    return left


@dataclass(frozen=True)
class ClusterFacts:
    """All facts about a cluster that the checks need."""

    namespace: str
    version: tuple[int, int]
    nodes: tuple[NodeFacts, ...]
    storage_classes: frozenset[str]
    default_class: str | None
    kinds: frozenset[str]
    silent_groups: frozenset[str]
    namespace_labels: Mapping[str, str]
    namespace_exists: bool
    secrets: frozenset[str]
    claims: frozenset[str]
    quota_left: Mapping[str, Decimal]
