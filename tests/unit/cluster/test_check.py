"""Rules of `glm5 cluster check`, each with a cluster that breaks it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from lightkube.resources.core_v1 import ResourceQuota

from glm5_service.cluster.facts import ClusterFacts, NodeFacts, Taint, quota_left
from glm5_service.cluster.install_rules import DRIVER_LABELS, Finding, findings
from glm5_service.cluster.nodes import why_not
from glm5_service.cluster.screen import check_text
from glm5_service.cluster.wanted import Claim, PodNeed, Wanted

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
OLD = {DRIVER_LABELS[0]: "470"}
NODE = NodeFacts(
    name="gpu-1",
    labels={PRODUCT: "RTX", "nvidia.com/cuda.driver-version.major": "580"},
    taints=(Taint(GPU, "", "NoSchedule"),),
    ready=True,
    allocatable={"cpu": Decimal(64), "memory": Decimal(512 * 2**30), GPU: Decimal(8)},
    used={},
)
NEED = PodNeed(
    requests={"cpu": Decimal(32), "memory": Decimal(177 * 2**30), GPU: Decimal(8)},
    label_values=((PRODUCT, ("RTX",)),),
    tolerations=({"key": GPU, "operator": "Exists", "effect": "NoSchedule"},),
)
WANTED = Wanted(
    pod=NEED,
    replicas=1,
    claims=(Claim("model", "nvme", Decimal(900 * 2**30)),),
    existing_claims=frozenset(),
    secrets=frozenset({"key"}),
    kinds=frozenset({"apps/StatefulSet", "monitoring.coreos.com/PodMonitor"}),
    host_path=False,
    names=frozenset({"glm5"}),
)
FACTS = ClusterFacts(
    silent_groups=frozenset({"metrics.k8s.io"}),
    namespace="llm",
    version=(1, 31),
    nodes=(NODE,),
    storage_classes=frozenset({"nvme"}),
    default_class=None,
    kinds=frozenset({"apps/StatefulSet", "monitoring.coreos.com/PodMonitor"}),
    namespace_labels={},
    namespace_exists=True,
    secrets=frozenset({"key"}),
    claims=frozenset(),
    quota_left={},
)


def outcome(rule: str, wanted: Wanted = WANTED, facts: ClusterFacts = FACTS) -> Finding:
    return next(finding for finding in findings(wanted, facts) if finding.rule == rule)


def test_a_cluster_that_has_everything_passes() -> None:
    """No rule finds fault with a cluster that has what is wanted."""
    assert {finding.level for finding in findings(WANTED, FACTS)} == {"pass"}


@pytest.mark.parametrize(
    ("rule", "level", "facts", "words"),
    [
        ("version", "fail", {"version": (1, 19)}, "Kubernetes 1.19; expected 1.20 or newer"),
        ("version", "warn", {"version": (1, 28)}, "no native sidecars"),
        ("namespace", "warn", {"namespace_exists": False}, "no namespace llm"),
        ("nodes", "fail", {"nodes": ()}, "0 nodes take a pod, 1 needed"),
        (
            "driver",
            "fail",
            {"nodes": (replace(NODE, labels={PRODUCT: "RTX", "nvidia.com/cuda.driver.major": "570"}),)},
            "gpu-1 has 570",
        ),
        (
            "driver",
            "warn",
            {"nodes": (NODE, replace(NODE, name="gpu-2", labels={PRODUCT: "RTX"}))},
            "no label of gpu-2 says its driver version",
        ),
        ("driver", "warn", {"nodes": ()}, "no node with GPUs that a pod may go to"),
        (
            "storage",
            "warn",
            {"storage_classes": frozenset({"slow"})},
            "no storage class nvme; there are: slow",
        ),
        (
            "definitions",
            "fail",
            {"kinds": frozenset(), "silent_groups": frozenset({"monitoring.coreos.com"})},
            "the server does not know apps/StatefulSet",
        ),
        (
            "definitions",
            "warn",
            {"kinds": frozenset({"apps/StatefulSet"}), "silent_groups": frozenset({"monitoring.coreos.com"})},
            "no answer about monitoring.coreos.com/PodMonitor",
        ),
        (
            "definitions",
            "fail",
            {"kinds": frozenset({"apps/StatefulSet"})},
            "monitoring.coreos.com/PodMonitor",
        ),
        ("secrets", "fail", {"secrets": frozenset()}, "no Secret key in llm"),
        (
            "quota",
            "fail",
            {"quota_left": {f"requests.{GPU}": Decimal(4)}},
            f"requests.{GPU}: 4 left, 8 needed",
        ),
    ],
)
def test_rule_finds(rule: str, level: str, facts: dict[str, object], words: str) -> None:
    """Each rule fails, or warns, with the value it met."""
    found = outcome(rule, facts=replace(FACTS, **facts))  # type: ignore[arg-type]

    assert found.level == level
    assert words in found.sentence


def test_default_class_is_needed_only_without_a_named_one() -> None:
    """A claim without a class fails where no class is the default, and passes where its claim is there already."""
    wanted = replace(WANTED, claims=(Claim("model", None, Decimal(1)),))

    assert outcome("storage", wanted).level == "fail"
    assert outcome("storage", wanted, replace(FACTS, claims=frozenset({"model-glm5-0"}))).level == "pass"


def test_existing_claim_must_be_there() -> None:
    """An existing claim that does not exist is named."""
    wanted = replace(WANTED, claims=(), existing_claims=frozenset({"models"}))

    assert outcome("storage", wanted).sentence == "no claim models"


def test_host_path_needs_a_privileged_namespace() -> None:
    """Pod security levels that forbid hostPath fail before the admission controller does."""
    facts = replace(FACTS, namespace_labels={"pod-security.kubernetes.io/enforce": "restricted"})

    assert outcome("pod security", replace(WANTED, host_path=True), facts).level == "fail"
    assert outcome("pod security", WANTED, facts).level == "pass"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ready": False}, "it is not ready"),
        ({"labels": {PRODUCT: "L40S"}}, f"label {PRODUCT} is L40S, expected RTX"),
        ({"labels": {}}, f"label {PRODUCT} is missing, expected RTX"),
        ({"taints": (Taint("maintenance", "", "NoExecute"),)}, "taint maintenance is not tolerated"),
        ({"allocatable": NODE.allocatable | {GPU: Decimal(4)}}, f"4 of 4 {GPU} free, 8 needed"),
        (
            {"used": {GPU: Decimal(8)}, "gpu_holders": ("a/b", "a/b")},
            f"0 of 8 {GPU} free, 8 needed, held by a/b",
        ),
        ({"used": {"memory": Decimal(500 * 2**30)}}, "12.0 GiB of 512.0 GiB memory free, 177.0 GiB needed"),
    ],
)
def test_node_says_why_not(change: dict[str, object], reason: str) -> None:
    """Every reason against a node is a clause with the value that is there and the one needed."""
    assert why_not(replace(NODE, **change), NEED) == [reason]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"labels": OLD | {PRODUCT: "L40S"}}, "pass"),
        ({"labels": OLD}, "pass"),
        ({"labels": OLD | {PRODUCT: "RTX"}, "taints": (Taint("maintenance", "", "NoSchedule"),)}, "pass"),
        ({"labels": OLD | {PRODUCT: "RTX"}}, "fail"),
        ({"labels": OLD | {PRODUCT: "RTX"}, "ready": False}, "fail"),
        ({"labels": OLD | {PRODUCT: "RTX"}, "used": {GPU: Decimal(8)}}, "fail"),
    ],
)
def test_old_driver_matters_where_a_pod_may_go(change: dict[str, object], level: str) -> None:
    """A node that labels or taints exclude may have an old driver; one that is full or not ready for now may not."""
    second = replace(NODE, name="gpu-2", **change)  # type: ignore[arg-type]

    assert outcome("driver", facts=replace(FACTS, nodes=(NODE, second))).level == level


def quota(hard: dict[str, str], used: dict[str, str]) -> ResourceQuota:
    return ResourceQuota.from_dict({"status": {"hard": hard, "used": used}})


def test_quota_that_the_release_uses_itself_is_free_to_it() -> None:
    """What its own pods use comes back, as request and as limit; what others use does not; no more than all."""
    own = {GPU: Decimal(8), "cpu": Decimal(32)}
    whole = {f"requests.{GPU}": "8", "cpu": "40", "limits.cpu": "40"}
    mine = {f"requests.{GPU}": "8", "cpu": "36", "limits.cpu": "32"}
    left = quota_left([quota(whole, mine)], own)

    assert left == {f"requests.{GPU}": 8, "cpu": 36, "limits.cpu": 40}
    assert quota_left([quota(whole, mine)], {}) == {f"requests.{GPU}": 0, "cpu": 4, "limits.cpu": 8}
    assert quota_left([quota({"cpu": "40"}, {"cpu": "0"}), quota({"cpu": "50"}, {})], own) == {"cpu": 40}
    assert outcome("quota", facts=replace(FACTS, quota_left=left)).level == "pass"


def test_preferred_taints_keep_nothing_away() -> None:
    """A PreferNoSchedule taint is no reason against a node."""
    assert why_not(replace(NODE, taints=(Taint("x", "", "PreferNoSchedule"),)), NEED) == []


def test_text_shows_the_remedy_of_what_failed() -> None:
    """One line a rule, and what to do under those that failed."""
    text = check_text(
        [Finding("a", "pass", "fine", "unused"), Finding("b", "fail", "broken\nn1: so", "mend it")]
    )

    assert text.splitlines() == [
        "ok    a             fine",
        "FAIL  b             broken",
        f"{'':20}n1: so",
        f"{'':20}mend it",
    ]
