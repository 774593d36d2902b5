"""Each condition in the templates, once with and once without what it asks for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, containers, objects, one, pod_of

pytestmark = pytest.mark.chart


def kinds(values: dict[str, Any], base: str = "rtx-pro-6000", kube: str = "1.31.0") -> set[str]:
    """What is rendered, as Kind/name."""
    return {f"{item['kind']}/{item['metadata']['name']}" for item in objects(base, values, kube=kube)}


APPS = {"networkPolicy": {"apiFrom": [{"namespaceSelector": {"matchLabels": {"team": "apps"}}}]}}

# values -> the objects they add to (or, with a minus, take from) the render of the base
OBJECTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "api key value": (
        {"api": {"key": {"value": "k", "existingSecret": ""}}},
        {"Secret/glm5-api-key-value"},
    ),
    "source token": ({"staging": {"credentials": {"token": "t"}}}, {"Secret/glm5-source"}),
    "events": ({"events": {"enabled": True}}, {"Role/glm5-events", "RoleBinding/glm5-events"}),
    "no service account": ({"serviceAccount": {"create": False}}, {"-ServiceAccount/glm5"}),
    "no policy": ({"networkPolicy": {"enabled": False}}, {"-NetworkPolicy/glm5", "-NetworkPolicy/glm5-test"}),
    "ingress": (APPS | {"ingress": {"enabled": True, "hosts": ["a"]}}, {"Ingress/glm5"}),
    "route": (APPS | {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}}, {"HTTPRoute/glm5"}),
    "pool": (APPS | {"inferencePool": {"enabled": True, "endpointPicker": "e"}}, {"InferencePool/glm5"}),
    "pod monitor": ({"podMonitor": {"enabled": True}}, {"PodMonitor/glm5"}),
    "service monitor": ({"serviceMonitor": {"enabled": True}}, {"ServiceMonitor/glm5"}),
    "budget": ({"podDisruptionBudget": {"enabled": True}}, {"PodDisruptionBudget/glm5"}),
    "autoscaler": ({"autoscaling": {"enabled": True}}, {"HorizontalPodAutoscaler/glm5"}),
    "keda": ({"keda": {"enabled": True, "prometheus": "http://p"}}, {"ScaledObject/glm5"}),
    "router": (
        {"replicas": 2, "router": {"enabled": True}},
        {"Deployment/glm5-router", "NetworkPolicy/glm5-router", "Service/glm5-direct"},
    ),
    "no tool parser": ({"settings": {"engine": {"tool_call_parser": None}}}, {"-Pod/glm5-test-tool-call"}),
    "no reasoning parser": (
        {"settings": {"engine": {"reasoning_parser": None}}},
        {"-Pod/glm5-test-reasoning"},
    ),
    "open api": (
        {"api": {"key": {"disabled": True, "existingSecret": ""}}},
        {"-Pod/glm5-test-wrong-key"},
    ),
    "no metrics": ({"metrics": {"enabled": False}}, {"-Pod/glm5-test-backend"}),
}


@pytest.mark.parametrize(("values", "change"), OBJECTS.values(), ids=OBJECTS)
def test_a_value_adds_or_removes_its_objects(values: dict[str, Any], change: set[str]) -> None:
    """A value adds or removes exactly the objects that belong to it."""
    before, after = kinds({}), kinds(values)

    assert change == (after - before) | {f"-{name}" for name in before - after}


# path into the StatefulSet's pod and the value that is there; None means that nothing is
POD: dict[str, tuple[dict[str, Any], str, Any]] = {
    "gpus follow ranks": (
        {"engine": {"tensorParallelSize": 4}},
        "engine.resources.limits.nvidia.com/gpu",
        "4",
    ),
    "gpus are text": ({}, "engine.resources.requests.nvidia.com/gpu", "8"),
    "own gpu resource": (
        {"gpu": {"resourceName": "amd.com/gpu"}},
        "engine.resources.limits.amd.com/gpu",
        "8",
    ),
    "limit counts shm": ({"engine": {"memory": "100Gi"}}, "engine.resources.limits.memory", "119808Mi"),
    "shm by rule": ({"engine": {"tensorParallelSize": 2}}, "volumes.shm.emptyDir.sizeLimit", "5120Mi"),
    "shm given": ({"engine": {"shmSize": "64Gi"}}, "volumes.shm.emptyDir.sizeLimit", "65536Mi"),
    "budget by rule": ({}, "engine.startupProbe.failureThreshold", 201),
    "budget given": ({"startup": {"budgetSeconds": 7200}}, "engine.startupProbe.failureThreshold", 720),
    "grace follows drain": ({"drainSeconds": 600}, "terminationGracePeriodSeconds", 650),
    "no drain is zero": ({"drainSeconds": 0}, "terminationGracePeriodSeconds", 50),
    "no root": ({}, "securityContext.runAsNonRoot", True),
    "root file system": ({}, "engine.securityContext.readOnlyRootFilesystem", True),
    "writable root file system": (
        {"security": {"readOnlyRootFilesystem": False}},
        "engine.securityContext.readOnlyRootFilesystem",
        False,
    ),
    "no token": ({}, "automountServiceAccountToken", False),
    "no token with events either": ({"events": {"enabled": True}}, "automountServiceAccountToken", False),
    "staging off": ({"staging": {"enabled": False}}, "stage", None),
    "warm": ({"staging": {"warm": True, "memory": "380Gi"}}, "stage.args", ["stage", "--warm"]),
    "waits for what the job stages": (
        {"staging": {"mode": "job"}, "model": {"volume": {"type": "existingClaim", "existingClaim": "c"}}},
        "wait-for-model.args",
        ["stage", "--wait"],
    ),
    "runtime class": ({"gpu": {"runtimeClass": "nvidia"}}, "runtimeClassName", "nvidia"),
    "no tolerations": ({"tolerations": []}, "tolerations", None),
    "any product": ({"gpu": {"products": []}}, "affinity", None),
    "cache beside the model": ({}, "volumes.cache", None),
    "cache of its own": ({"cache": {"persistent": False}}, "volumes.cache.emptyDir", {}),
    "existing claim": (
        {"model": {"volume": {"type": "existingClaim", "existingClaim": "c"}}},
        "volumes.model.persistentVolumeClaim.claimName",
        "c",
    ),
    "host path": (
        {"model": {"volume": {"type": "hostPath", "hostPath": "/m"}}},
        "volumes.model.hostPath.path",
        "/m",
    ),
    "digest wins": (
        {"images": {"engine": {"digest": "sha256:" + "a" * 64, "tag": "x"}}},
        "engine.image",
        "registry.example.com/llm/glm5-engine@sha256:" + "a" * 64,
    ),
    "tag": ({"images": {"engine": {"tag": "x"}}}, "engine.image", "registry.example.com/llm/glm5-engine:x"),
}


@pytest.mark.parametrize(("values", "path", "wanted"), POD.values(), ids=POD)
def test_pod_has(values: dict[str, Any], path: str, wanted: Any) -> None:
    """A value arrives where the kubelet or the scheduler reads it."""
    pod = pod_of(objects(values=values))
    node: Any = pod | containers(pod) | {"volumes": {volume["name"]: volume for volume in pod["volumes"]}}
    rest = path
    while rest and node is not None:
        key = next((key for key in node if rest == key or rest.startswith(f"{key}.")), None)
        node, rest = (node[key], rest[len(key) + 1 :]) if key else (None, "")

    assert wanted == node


# values -> path in the settings file
SETTINGS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "drain": ({"drainSeconds": 7}, "drain.limit_seconds", 7),
    "context": ({"settings": {"engine": {"max_model_len": 4096}}}, "engine.max_model_len", 4096),
    "model's own context": ({"settings": {"engine": {"max_model_len": None}}}, "engine.max_model_len", None),
    "eager": ({"settings": {"engine": {"enforce_eager": False}}}, "engine.enforce_eager", False),
    "dcp": (
        {"engine": {"decodeContextParallelSize": 8}},
        "engine.extra_args",
        ["--decode-context-parallel-size", "8"],
    ),
    "mtp": (
        {"engine": {"mtpTokens": 2}},
        "engine.extra_args",
        ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}'],
    ),
    "pass-through": (
        {"settings": {"engine": {"extra_args": ["--seed", "1"]}}},
        "engine.extra_args",
        ["--seed", "1"],
    ),
    "any setting": ({"settings": {"log": {"level": "debug"}}}, "log.level", "debug"),
    "setting wins": ({"settings": {"health": {"stall_seconds": 5}}}, "health.stall_seconds", 5),
    "hub token": (
        {"staging": {"credentials": {"existingSecret": "s"}}},
        "staging.hub.token.file",
        "/etc/glm5-source/token",
    ),
    "web token": (
        {"model": {"source": "https://h/f/"}, "staging": {"credentials": {"existingSecret": "s"}}},
        "staging.http.token.file",
        "/etc/glm5-source/token",
    ),
    "registry login": (
        {"model": {"source": "oci://h/r:t"}, "staging": {"credentials": {"existingSecret": "s"}}},
        "staging.oci.auth_file",
        "/etc/glm5-source/.dockerconfigjson",
    ),
    "staging off": ({"staging": {"enabled": False}}, "staging", None),
    "chat template": (
        {"model": {"chatTemplate": "x"}},
        "model.chat_template",
        "/etc/glm5/chat_template.jinja",
    ),
    "tokenizer": (
        {"settings": {"staging": {"tokenizer_source": "hf://a/b"}}},
        "model.hf_folder",
        "/models/glm-5/current",
    ),
}


@pytest.mark.parametrize(("values", "path", "wanted"), SETTINGS.values(), ids=SETTINGS)
def test_settings_have(values: dict[str, Any], path: str, wanted: Any) -> None:
    """A value arrives in the settings file of the service."""
    node = yaml.safe_load(one(objects(values=values), "ConfigMap")["data"]["glm5.yaml"])
    for key in path.split("."):
        node = node.get(key) if node else None

    assert wanted == node


@pytest.mark.parametrize(
    ("kube", "group", "kind"),
    [
        ("1.20.2", "policy/v1beta1", "PodDisruptionBudget"),
        ("1.31.0", "policy/v1", "PodDisruptionBudget"),
        ("1.20.2", "autoscaling/v2beta2", "HorizontalPodAutoscaler"),
        ("1.31.0", "autoscaling/v2", "HorizontalPodAutoscaler"),
    ],
)
def test_api_version_is_one_that_the_server_has(kube: str, group: str, kind: str) -> None:
    """Objects whose API moved are rendered for the server at hand."""
    items = objects(
        values={"podDisruptionBudget": {"enabled": True}, "autoscaling": {"enabled": True}}, kube=kube
    )

    assert group == one(items, kind)["apiVersion"]


def test_sidecar_is_native_where_the_server_has_it() -> None:
    """From 1.29 on metrics are a native sidecar that sees staging; before, a container that outlives the drain."""
    new, old = pod_of(objects(kube="1.31.0")), pod_of(objects(kube="1.20.2"))

    assert [(item["name"], item.get("restartPolicy")) for item in new["initContainers"]] == [
        ("metrics", "Always"),
        ("stage", None),
    ]
    assert [item["name"] for item in old["containers"]] == ["engine", "metrics"]
    assert "340" in containers(old)["metrics"]["lifecycle"]["preStop"]["exec"]["command"][2]


@pytest.mark.parametrize(
    ("phase", "pauses"), [("", 0), ("stopped", 0), ("failed", 0), ("draining", 1)], ids=str
)
def test_helper_ends_after_the_engine(phase: str, pauses: int, tmp_path: Path) -> None:
    """Without native sidecars a helper waits while the engine drains, and for no engine that ended or never started."""
    helper = containers(pod_of(objects(kube="1.25.0")))["metrics"]
    state, script = tmp_path / "engine.json", helper["lifecycle"]["preStop"]["exec"]["command"][-1]
    if phase:
        state.write_text(json.dumps({"phase": phase}))
    # in place of a second's sleep the engine stops
    pause = f"""sleep() {{ echo pause; echo '{{"phase": "stopped"}}' > {state}; }}; """
    done = subprocess.run(
        ["sh", "-c", pause + script.replace("/run/glm5/engine.json", str(state))],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip

    assert done.stdout.count("pause") == pauses


def test_every_container_is_guaranteed_and_unprivileged() -> None:
    """Requests equal limits in every container, which makes the pod Guaranteed, and none may gain privileges."""
    pod = pod_of(objects(values={"events": {"enabled": True}}))
    for item in containers(pod).values():
        assert item["resources"]["requests"] == item["resources"]["limits"]
        assert item["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert item["securityContext"]["allowPrivilegeEscalation"] is False


def test_only_events_gets_a_token() -> None:
    """With events, that container alone mounts a token of the service account."""
    pod = pod_of(objects(values={"events": {"enabled": True}}))

    assert [name for name, item in containers(pod).items() if "token" in str(item.get("volumeMounts"))] == [
        "events"
    ]


def test_source_secret_reaches_the_stager_alone() -> None:
    """What the source asks for is mounted into the stager and nowhere else; for S3 it is environment."""
    pod = pod_of(objects(values={"staging": {"credentials": {"existingSecret": "s"}}}))
    s3 = containers(pod_of(objects("air-gapped")))

    assert [name for name, item in containers(pod).items() if "source-secret" in str(item)] == ["stage"]
    assert [name for name, item in s3.items() if "AWS_ACCESS_KEY_ID" in str(item)] == ["stage"]


def test_serving_pod_knows_no_source_when_a_job_stages() -> None:
    """In job mode the Secret and the certificates of the source are volumes of the Job alone."""
    source = {"credentials": {"existingSecret": "s"}, "caConfigMap": "c"}
    shared = {"model": {"volume": {"type": "existingClaim", "existingClaim": "c"}}}
    items = objects(values=shared | {"staging": source | {"mode": "job"}})
    job = next(item for item in items if item["kind"] == "Job")["spec"]["template"]["spec"]

    def names(spec: dict[str, Any]) -> list[str]:
        return [volume["name"] for volume in spec["volumes"] if volume["name"].startswith("source-")]

    assert names(job) == ["source-secret", "source-ca"]
    assert names(pod_of(items)) == []
    assert "source-" not in str(containers(pod_of(items)))


def test_engine_has_no_egress_when_a_job_stages() -> None:
    """In job mode the serving pod has no way out; in init mode it has that of staging."""
    shared = {"model": {"volume": {"type": "existingClaim", "existingClaim": "c"}}}
    job = one(objects(values=shared | {"staging": {"mode": "job"}}), "NetworkPolicy")["spec"]
    init = one(objects(values=shared), "NetworkPolicy")["spec"]

    assert job["egress"] == []
    assert [port["port"] for rule in init["egress"] for port in rule["ports"]] == [53, 53, 443]


CLAIM = {"volume": {"type": "existingClaim", "existingClaim": "c"}}
BY_JOB: dict[str, Any] = {"model": CLAIM, "staging": {"mode": "job"}}
# values that the Job has nothing to do with, and values that it has
NOT_OF_THE_JOB: list[dict[str, Any]] = [
    {"drainSeconds": 1},
    {"replicas": 0},
    {"engine": {"cpus": 8}},
    {"images": {"engine": {"tag": "x"}}},
    {"settings": {"health": {"stall_seconds": 5}}},
    {"podLabels": {"team": "llm"}},
]
OF_THE_JOB: list[dict[str, Any]] = [
    {"settings": {"staging": {"quantisation": "Q8_0"}}},
    {"model": {"volume": {"type": "existingClaim", "existingClaim": "d"}}},
    {"model": {"volume": {"type": "hostPath", "hostPath": "/m"}}},
    {"settings": {"staging": {"connections": 4}}},
    {"staging": {"mode": "job", "memory": "1Gi"}},
    {"staging": {"mode": "job", "warm": True, "memory": "380Gi"}},
    {"staging": {"mode": "job", "credentials": {"existingSecret": "s"}}},
    {"staging": {"mode": "job", "credentials": {"token": "t"}}},
    {"settings": {"staging": {"lock_wait_seconds": 5}}},
    {"images": {"service": {"tag": "x"}}},
    {"images": {"pullSecrets": ["login"]}},
    {"security": {"runAsUser": 5}},
    {"nodeSelector": {"pool": "gpu"}},
    {"tolerations": []},
    {"gpu": {"products": []}},
    {"serviceAccount": {"name": "other"}},
    {"commonLabels": {"owner": "platform"}},
    {"nameOverride": "glm"},
]


def job(values: dict[str, Any], **how: Any) -> dict[str, Any]:
    """The staging Job of a release whose model comes by one."""
    return next(item for item in objects(values=BY_JOB | values, **how) if item["kind"] == "Job")


def test_jobs_of_one_name_are_the_same() -> None:
    """Jobs of one name have one spec: a Job cannot be changed, and an upgrade that tries to ends half applied."""
    specs: dict[str, Any] = {}
    for values in [{}, *NOT_OF_THE_JOB, *OF_THE_JOB]:
        found = job(values)
        assert specs.setdefault(found["metadata"]["name"], found["spec"]) == found["spec"], values

    assert len(specs) == 1 + len(OF_THE_JOB)


def test_new_chart_of_the_same_images_is_the_same_job(tmp_path: Path) -> None:
    """A chart with a new version and the images it had stages nothing again."""
    newer = tmp_path / "glm5"
    shutil.copytree(CHART, newer)
    about = newer / "Chart.yaml"
    about.write_text(about.read_text().replace("\nversion: ", "\nversion: 9"))
    before, after = job({}), job({}, chart=newer)

    assert before["metadata"]["labels"] != after["metadata"]["labels"]
    assert (before["metadata"]["name"], before["spec"]) == (after["metadata"]["name"], after["spec"])


def test_name_of_the_job_fits_into_a_label() -> None:
    """The Job's name has at most 63 characters, which its pods bear as a label."""
    assert len(job({"fullnameOverride": "n" * 60})["metadata"]["name"]) <= 63


def test_stager_of_a_job_has_time_to_end() -> None:
    """The Job's pod has as long as the stager may take to put half a minute of bytes on disk, more than the default."""
    assert job({})["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 60


def test_release_beside_stages_what_an_upgrade_asks_for() -> None:
    """A release that only stages, onto the claim of one that serves, brings the model that this one is upgraded to."""
    new = {"source": "hf://org/repo@new/folder"}
    tokenizer = {"tokenizer_source": "hf://org/tokenizer"}
    claim = {"volume": {"type": "existingClaim", "existingClaim": "model-glm5-0"}}
    beside = {
        "model": new | claim,
        "staging": {"mode": "job"},
        "settings": {"staging": tokenizer | {"keep": 2}},
        "replicas": 0,
    }

    def staged(values: dict[str, Any], release: str) -> dict[str, Any]:
        items = objects(values=values, release=release)
        settings: dict[str, Any] = yaml.safe_load(one(items, "ConfigMap", release)["data"]["glm5.yaml"])[
            "staging"
        ]
        return settings

    upgraded = {"model": new, "settings": {"staging": tokenizer}}
    assert staged(beside, "glm5-next") == staged(upgraded, "glm5") | {"keep": 2}


def test_pod_restarts_for_settings_and_not_for_chart_versions() -> None:
    """A changed setting changes the pod template; the chart's version is not in it."""
    before, after = (
        one(objects(values=v), "StatefulSet")["spec"]["template"] for v in ({}, {"drainSeconds": 1})
    )

    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]
    assert "0.1.0" not in str(before["metadata"]["labels"])


@pytest.mark.parametrize("base", ["several-replicas", "everything"])
def test_labels_of_pods_know_no_version(base: str) -> None:
    """No pod of the release is replaced for the chart's version alone."""
    templates = [item["spec"]["template"] for item in objects(base) if "template" in item.get("spec", {})]

    assert len(templates) == 2
    assert [t["metadata"]["labels"] for t in templates if "0.1.0" in str(t["metadata"]["labels"])] == []


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, 0),
        ({"replicas": 3}, 1),
        ({"replicas": 3, "autoscaling": {"enabled": True}}, 0),
        ({"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 4}}, 1),
        ({"keda": {"enabled": True, "minReplicas": 2, "prometheus": "http://p"}}, 1),
    ],
)
def test_drain_waits_for_the_only_replica(values: dict[str, Any], wanted: int) -> None:
    """A drain may take one replica if there are always two or more, by the value or by the scaler if there is one."""
    items = objects(values=values | {"podDisruptionBudget": {"enabled": True}})

    assert one(items, "PodDisruptionBudget")["spec"]["maxUnavailable"] == wanted


def test_router_waits_for_the_first_replica() -> None:
    """The router has twice the staging, the start-up and 300 s until a replica is there; before that nothing kills it."""
    values = {"startup": {"budgetSeconds": 4001}, "staging": {"networkGBps": 1}}
    spec = one(objects("several-replicas", values), "Deployment", "glm5-router")["spec"]
    router = spec["template"]["spec"]["containers"][0]
    seconds = 2 * 402 + 4001 + 300

    assert f"--worker-startup-timeout-secs={seconds}" in router["args"]
    assert spec["progressDeadlineSeconds"] == seconds
    # it listens when the first replica is healthy, and not before
    assert router["startupProbe"]["tcpSocket"] == {"port": "http"}
    assert (
        seconds
        <= router["startupProbe"]["periodSeconds"] * router["startupProbe"]["failureThreshold"]
        < seconds + 10
    )


def test_router_knows_every_replica_by_name() -> None:
    """The router's workers are the StatefulSet's own names."""
    router = one(objects("several-replicas"), "Deployment", "glm5-router")["spec"]["template"]["spec"]

    assert [f"http://glm5-{n}.glm5-pods.llm.svc:8000" for n in range(3)] == router["containers"][0]["args"][
        -3:
    ]


def test_devices_by_claim_replace_the_resource() -> None:
    """With dynamic allocation the pod has a claim for as many devices and no device-plugin resource."""
    items = objects(values={"gpu": {"dra": {"enabled": True}}}, kube="1.37.0")
    engine = containers(pod_of(items))["engine"]["resources"]
    claim = one(items, "ResourceClaimTemplate", "glm5-gpus")["spec"]["spec"]["devices"]["requests"][0]

    assert engine["claims"] == [{"name": "gpus"}]
    assert "nvidia.com/gpu" not in engine["limits"]
    assert claim["exactly"]["count"] == 8


def test_ranks_of_several_nodes_find_their_leader() -> None:
    """Workers run the leader's command with --headless, and only the leader answers readiness."""
    group = one(objects("several-nodes"), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[f"{role}Template"]["spec"]["containers"][0] for role in ("leader", "worker"))

    assert [*leader["args"], "--headless"] == worker["args"]
    assert ("readinessProbe" in leader, "readinessProbe" in worker) == (True, False)


def test_leader_has_a_name_that_no_service_of_the_chart_takes() -> None:
    """Each replica of several nodes has a headless Service of its own; a shared one would take the API Service's name."""
    items = objects("several-nodes")
    group = one(items, "LeaderWorkerSet")

    assert one(items, "Service")["metadata"]["name"] == group["metadata"]["name"]
    assert group["spec"]["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}
    assert [
        item for item in items if item["kind"] == "Service" and item["metadata"]["name"].endswith("-0")
    ] == []


def test_claims_are_kept_unless_told_otherwise() -> None:
    """The staged model outlives the release by default; keep=false gives it up on servers that can."""
    kept, given_up = (
        one(objects(values={"model": {"volume": {"keep": keep}}}), "StatefulSet")["spec"]
        for keep in (True, False)
    )

    assert kept["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert given_up["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Delete",
        "whenScaled": "Delete",
    }


def test_names_follow_the_release() -> None:
    """fullnameOverride names every object but those of extraObjects."""
    names = [item["metadata"]["name"] for item in objects(values={"fullnameOverride": "other"})]

    assert [name for name in names if not name.startswith("other")] == []
