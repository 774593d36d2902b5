"""Says why a pod cannot run on a node. Pure. Used before an installation and for a pending pod."""

from __future__ import annotations

from decimal import Decimal

from glm5_service.cluster.facts import NodeFacts, Taint
from glm5_service.cluster.wanted import PodNeed

_BYTES = frozenset({"memory", "ephemeral-storage"})


def why_not(node: NodeFacts, need: PodNeed) -> list[str]:
    """Return every reason why the pod does not fit now, each as a clause."""
    reasons = [] if node.ready else ["it is not ready"]
    reasons += why_never(node, need)
    for name, amount in need.requests.items():
        if node.free(name) < amount:
            reasons.append(_short_of(node, name, amount))
    return reasons


def why_never(node: NodeFacts, need: PodNeed) -> list[str]:
    """Return the reasons that waiting does not remove: labels and taints."""
    reasons = []
    for key, value in need.selector.items():
        if node.labels.get(key) != value:
            reasons.append(f"label {key} is {_shown(node.labels.get(key))}, expected {value}")
    for key, values in need.label_values:
        if node.labels.get(key) not in values:
            reasons.append(f"label {key} is {_shown(node.labels.get(key))}, expected {' or '.join(values)}")
    reasons += [f"taint {taint.key} is not tolerated" for taint in node.taints if not _tolerated(taint, need)]
    return reasons


def _short_of(node: NodeFacts, name: str, amount: Decimal) -> str:
    has, free = node.allocatable.get(name, Decimal(0)), node.free(name)
    clause = f"{amount_text(name, free)} of {amount_text(name, has)} {name} free, {amount_text(name, amount)} needed"
    if name.endswith("/gpu") and has >= amount and node.gpu_holders:
        clause += f", held by {', '.join(sorted(set(node.gpu_holders)))}"
    return clause


def amount_text(name: str, amount: Decimal) -> str:
    """Format an amount: GiB for memory, a number for anything else."""
    if name in _BYTES or name.startswith("hugepages"):
        return f"{amount / 2**30:.1f} GiB"
    return f"{amount.normalize():f}"


def _shown(value: str | None) -> str:
    return "missing" if value is None else value


def _tolerated(taint: Taint, need: PodNeed) -> bool:
    if taint.effect == "PreferNoSchedule":
        return True
    for toleration in need.tolerations:
        key_matches = toleration.get("key") in (None, "", taint.key)
        is_any = toleration.get("operator", "Equal") == "Exists"
        effect_matches = toleration.get("effect") in (None, "", taint.effect)
        if key_matches and effect_matches and (is_any or toleration.get("value", "") == taint.value):
            return True
    return False
