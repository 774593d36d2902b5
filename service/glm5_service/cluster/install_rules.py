"""Named rules that compare what a release needs with what a cluster has. Pure. Next hop: `screen`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from glm5_service.cluster.facts import ClusterFacts
from glm5_service.cluster.nodes import amount_text, why_never, why_not
from glm5_service.cluster.wanted import Wanted

Level = Literal["pass", "warn", "fail"]
OLDEST = (1, 20)
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major")
# CUDA 13, which the engine image is built for, needs this driver or a newer one
LEAST_DRIVER = 580


@dataclass(frozen=True)
class Finding:
    """The outcome of one rule."""

    rule: str
    level: Level
    sentence: str
    remedy: str = ""


Rule = Callable[[Wanted, ClusterFacts], Finding]


def findings(wanted: Wanted, facts: ClusterFacts) -> Iterator[Finding]:
    """Return one finding for each rule."""
    for rule in RULES:
        yield rule(wanted, facts)


def version(_: Wanted, facts: ClusterFacts) -> Finding:
    text = f"Kubernetes {facts.version[0]}.{facts.version[1]}"
    if facts.version < OLDEST:
        return Finding("version", "fail", f"{text}; expected 1.20 or newer", "Upgrade the cluster.")
    if facts.version < (1, 29):
        return Finding("version", "warn", f"{text}: no native sidecars, so no metrics while staging")
    return Finding("version", "pass", text)


def namespace(_: Wanted, facts: ClusterFacts) -> Finding:
    if facts.namespace_exists:
        return Finding("namespace", "pass", facts.namespace)
    return Finding("namespace", "warn", f"no namespace {facts.namespace}", "Install with --create-namespace.")


def nodes(wanted: Wanted, facts: ClusterFacts) -> Finding:
    reasons = {node.name: why_not(node, wanted.pod) for node in facts.nodes}
    fit = [name for name, found in reasons.items() if not found]
    if len(fit) >= wanted.replicas:
        return Finding("nodes", "pass", f"{len(fit)} of {len(reasons)} nodes take a pod: {', '.join(fit)}")
    lines = "".join(f"\n{name}: {'; '.join(found)}" for name, found in reasons.items() if found)
    sentence = f"{len(fit)} nodes take a pod, {wanted.replicas} needed{lines}"
    return Finding("nodes", "fail", sentence, "Free or add a node, or lower what the values ask for.")


def driver(wanted: Wanted, facts: ClusterFacts) -> Finding:
    if wanted.pod.gpu is None:
        return Finding("driver", "pass", "no GPU asked for")
    known = {
        node.name: next((node.labels[label] for label in DRIVER_LABELS if label in node.labels), None)
        for node in facts.nodes
        if node.allocatable.get(wanted.pod.gpu) and not why_never(node, wanted.pod)
    }
    old = {name: value for name, value in known.items() if value and int(value) < LEAST_DRIVER}
    if old:
        text = ", ".join(f"{name} has {value}" for name, value in old.items())
        return Finding(
            "driver", "fail", f"{text}; expected {LEAST_DRIVER} or newer", "Upgrade the GPU driver."
        )
    if not known:
        return Finding("driver", "warn", "no node with GPUs that a pod may go to", "See the rule nodes.")
    if silent := [name for name, value in known.items() if value is None]:
        text = f"no label of {', '.join(silent)} says its driver version"
        return Finding("driver", "warn", text, "Run GPU feature discovery to have it checked.")
    return Finding("driver", "pass", ", ".join(f"{name}: {value}" for name, value in known.items()))


def storage(wanted: Wanted, facts: ClusterFacts) -> Finding:
    if missing := wanted.existing_claims - facts.claims:
        return Finding(
            "storage", "fail", f"no claim {', '.join(sorted(missing))}", "Create it, or correct its name."
        )
    for claim in wanted.claims:
        is_made = all(f"{claim.name}-{name}-0" in facts.claims for name in wanted.names)
        if is_made:
            return Finding("storage", "pass", "the claim is there from an earlier release")
        if claim.storage_class is None and facts.default_class is None:
            return Finding(
                "storage",
                "fail",
                "no default storage class",
                "Set model.volume.storageClass, or make one the default.",
            )
        if claim.storage_class is not None and claim.storage_class not in facts.storage_classes:
            known = ", ".join(sorted(facts.storage_classes)) or "none"
            return Finding(
                "storage",
                "warn",
                f"no storage class {claim.storage_class}; there are: {known}",
                "Correct model.volume.storageClass, unless a volume waits for it.",
            )
        name = claim.storage_class or facts.default_class
        return Finding("storage", "pass", f"{amount_text('memory', claim.size)} of class {name}")
    return Finding("storage", "pass", "a folder of the node" if wanted.host_path else "an existing claim")


def definitions(wanted: Wanted, facts: ClusterFacts) -> Finding:
    unknown = wanted.kinds - facts.kinds
    unsure = {kind for kind in unknown if kind.partition("/")[0] in facts.silent_groups}
    if missing := unknown - unsure:
        text = ", ".join(sorted(missing))
        return Finding(
            "definitions", "fail", f"the server does not know {text}", "Install its operator, or turn it off."
        )
    if unsure:
        text = ", ".join(sorted(unsure))
        return Finding(
            "definitions",
            "warn",
            f"no answer about {text}",
            "See AVAILABLE in `kubectl get apiservices`, then check again.",
        )
    return Finding("definitions", "pass", "the server knows every kind of object")


def secrets(wanted: Wanted, facts: ClusterFacts) -> Finding:
    if missing := sorted(wanted.secrets - facts.secrets):
        return Finding(
            "secrets", "fail", f"no Secret {', '.join(missing)} in {facts.namespace}", "Create it first."
        )
    return Finding("secrets", "pass", ", ".join(sorted(wanted.secrets)) or "none asked for")


def pod_security(wanted: Wanted, facts: ClusterFacts) -> Finding:
    level = facts.namespace_labels.get("pod-security.kubernetes.io/enforce", "privileged")
    if wanted.host_path and level != "privileged":
        return Finding(
            "pod security",
            "fail",
            f"namespace enforces {level}, which forbids hostPath volumes",
            "Use a claim, or label the namespace pod-security.kubernetes.io/enforce=privileged.",
        )
    return Finding("pod security", "pass", f"namespace enforces {level}")


def quota(wanted: Wanted, facts: ClusterFacts) -> Finding:
    short = []
    for name, amount in wanted.pod.requests.items():
        for key in (name, f"requests.{name}", f"limits.{name}"):
            left = facts.quota_left.get(key)
            if left is not None and left < amount * wanted.replicas:
                asked = amount_text(name, amount * wanted.replicas)
                short.append(f"{key}: {amount_text(name, left)} left, {asked} needed")
    if short:
        return Finding("quota", "fail", "; ".join(short), "Have the namespace's quota raised.")
    return Finding("quota", "pass", "enough, or none set")


RULES: tuple[Rule, ...] = (
    version,
    namespace,
    nodes,
    driver,
    storage,
    definitions,
    secrets,
    pod_security,
    quota,
)
