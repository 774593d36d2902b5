"""What the chart refuses, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.support.chart import render

pytestmark = pytest.mark.chart

# values over the base, and words of the sentence that must appear; one row a rule of _checks.tpl
CROSS_FIELD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no registry": ("rtx-pro-6000", {"images": {"registry": ""}}, "images.registry is empty"),
    "no key": ("rtx-pro-6000", {"api": {"key": {"existingSecret": ""}}}, "api.key: 0 of existingSecret"),
    "two keys": ("rtx-pro-6000", {"api": {"key": {"disabled": True}}}, "api.key: 2 of existingSecret"),
    "no source": ("rtx-pro-6000", {"model": {"source": ""}}, "model.source is empty while staging.enabled"),
    "no claim name": (
        "rtx-pro-6000",
        {"model": {"volume": {"type": "existingClaim"}}},
        "existingClaim is empty",
    ),
    "no path": ("rtx-pro-6000", {"model": {"volume": {"type": "hostPath"}}}, "hostPath is empty"),
    "small claim": ("rtx-pro-6000", {"model": {"volume": {"size": "5Mi"}}}, "model.volume.size is 5Mi"),
    "claim too small for two": (
        "rtx-pro-6000",
        {"settings": {"staging": {"keep": 3}}},
        "expected at least 1207 GB for 3",
    ),
    "job on own claim": ("rtx-pro-6000", {"staging": {"mode": "job"}}, "staging.mode is job while"),
    "refresh by a job": (
        "air-gapped",
        {
            "staging": {"mode": "job"},
            "settings": {"staging": {"refresh": True}},
            "model": {"volume": {"type": "existingClaim", "existingClaim": "models"}},
        },
        "settings.staging.refresh is true while staging.mode is job",
    ),
    "aside for its own pods": (
        "rtx-pro-6000",
        {"settings": {"staging": {"aside": True}}},
        "settings.staging.aside is true for a release that serves",
    ),
    "monitors of a release aside": (
        "several-replicas",
        {
            "replicas": 0,
            "router": {"enabled": False},
            "staging": {"mode": "job"},
            "settings": {"staging": {"aside": True}},
            "model": {"volume": {"type": "existingClaim", "existingClaim": "model-glm5-0"}},
        },
        "podMonitor.enabled is true while settings.staging.aside is true",
    ),
    "page cache beyond memory": (
        "rtx-pro-6000",
        {"staging": {"warm": True, "memory": "376Gi"}},
        "staging.memory is 376Gi while staging.warm is true; expected at least 377Gi",
    ),
    "two credentials": (
        "air-gapped",
        {"staging": {"credentials": {"token": "x"}}},
        "existingSecret and token are both set",
    ),
    "token for s3": (
        "air-gapped",
        {"staging": {"credentials": {"token": "x", "existingSecret": ""}}},
        "needs more than a token",
    ),
    "ranks on cpu": (
        "cpu-demo",
        {"engine": {"tensorParallelSize": 2}},
        "tensorParallelSize is 2 on profile cpu",
    ),
    "uneven ranks": (
        "rtx-pro-6000",
        {"engine": {"tensorParallelSize": 4, "decodeContextParallelSize": 8}},
        "expected a divisor of tensorParallelSize, 4",
    ),
    "two backends": (
        "rtx-pro-6000",
        {
            "settings": {
                "engine": {"attention_backend": "TRITON_MLA_SPARSE"},
                "health": {"expected_backend": "FLASHMLA_SPARSE"},
            }
        },
        "expected_backend is FLASHMLA_SPARSE; expected auto, TRITON_MLA_SPARSE or none",
    ),
    "a backend that attests nothing": (
        "h200",
        {"settings": {"engine": {"attention_backend": "FLASHMLA_SPARSE"}}},
        "attention_backend asks for FLASHMLA_SPARSE, which writes no attestation; expected none",
    ),
    "small shm": ("rtx-pro-6000", {"engine": {"shmSize": "64Mi"}}, "expected at least 17Gi"),
    "cache beyond memory": (
        "cpu-demo",
        {"settings": {"engine": {"cpu_kv_cache_gib": 6}}},
        "expected more than settings.engine.cpu_kv_cache_gib",
    ),
    "flag with a value": (
        "rtx-pro-6000",
        {"settings": {"engine": {"extra_args": ["--max-model-len=4096"]}}},
        "expected the value settings.engine.max_model_len",
    ),
    "short start-up": ("rtx-pro-6000", {"startup": {"budgetSeconds": 600}}, "startup.budgetSeconds is 600"),
    "ingress without host": ("rtx-pro-6000", {"ingress": {"enabled": True}}, "ingress.hosts is empty"),
    "route without gateway": ("rtx-pro-6000", {"httpRoute": {"enabled": True}}, "parentRefs is empty"),
    "ingress that may not come in": (
        "rtx-pro-6000",
        {"ingress": {"enabled": True, "hosts": ["a"]}},
        "networkPolicy.apiFrom is empty with ingress",
    ),
    "route that may not come in": (
        "rtx-pro-6000",
        {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}},
        "networkPolicy.apiFrom is empty with httpRoute",
    ),
    "pool that may not come in": (
        "rtx-pro-6000",
        {"inferencePool": {"enabled": True, "endpointPicker": "e"}},
        "networkPolicy.apiFrom is empty with inferencePool",
    ),
    "balancer that may not come in": (
        "several-replicas",
        {"service": {"type": "LoadBalancer"}},
        "networkPolicy.apiFrom is empty with service.type LoadBalancer",
    ),
    "node port that may not come in": (
        "rtx-pro-6000",
        {"service": {"type": "NodePort"}},
        "networkPolicy.apiFrom is empty with service.type NodePort",
    ),
    "pool without picker": ("rtx-pro-6000", {"inferencePool": {"enabled": True}}, "endpointPicker is empty"),
    "two monitors": (
        "rtx-pro-6000",
        {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}},
        "are both enabled",
    ),
    "monitor of nothing": (
        "rtx-pro-6000",
        {"podMonitor": {"enabled": True}, "metrics": {"enabled": False}},
        "there is nothing to scrape",
    ),
    "router of one": ("rtx-pro-6000", {"router": {"enabled": True}}, "router.enabled with 1 replicas"),
    "router and scaler": ("several-replicas", {"autoscaling": {"enabled": True}}, "would not see new ones"),
    "two scalers": (
        "rtx-pro-6000",
        {"autoscaling": {"enabled": True}, "keda": {"enabled": True, "prometheus": "http://p"}},
        "would undo each other",
    ),
    "scaler upside down": (
        "rtx-pro-6000",
        {"autoscaling": {"enabled": True, "minReplicas": 5}},
        "autoscaling.minReplicas is 5",
    ),
    "keda without source": ("rtx-pro-6000", {"keda": {"enabled": True}}, "keda.prometheus is empty"),
    "nodes on one claim": ("rtx-pro-6000", {"multiNode": {"enabled": True}}, "every node of a replica reads"),
    "nodes and router": (
        "several-nodes",
        {"router": {"enabled": True}, "replicas": 2},
        "multiNode and router",
    ),
    "nodes that draft": (
        "several-nodes",
        {"engine": {"mtpTokens": 1}},
        "engine.mtpTokens is 1 with multiNode; expected 0",
    ),
    "nodes on cpu": ("cpu-demo", {"multiNode": {"enabled": True}}, "multiNode on profile cpu"),
    "claims on old server": (
        "rtx-pro-6000",
        {"model": {"volume": {"keep": False}}},
        "expected 1.27 or newer",
    ),
    "devices on old server": ("rtx-pro-6000", {"gpu": {"dra": {"enabled": True}}}, "expected 1.34 or newer"),
}


@pytest.mark.parametrize(("base", "values", "sentence"), CROSS_FIELD.values(), ids=CROSS_FIELD)
def test_values_that_do_not_fit_together(base: str, values: dict[str, Any], sentence: str) -> None:
    """Each rule over several values has its sentence, and the YAML that it says to paste cures it."""
    output = render(base, values, kube="1.25.0")

    assert output.returncode != 0
    assert sentence in output.stderr
    cure = output.stderr.split(sentence, 1)[1].split("Paste:\n", 1)[1].split("\n\n", 1)[0]
    cured = render(base, merged(values, yaml.safe_load(cure)), kube="1.25.0")
    assert sentence not in cured.stderr


def merged(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Maps merged, everything else replaced."""
    both = {
        key: merged(low[key], high[key]) for key in low.keys() & high.keys() if isinstance(low[key], dict)
    }
    return low | high | both


def test_all_at_once() -> None:
    """Everything that is wrong is said in one go."""
    output = render(
        values={
            "images": {"registry": ""},
            "podMonitor": {"enabled": True},
            "serviceMonitor": {"enabled": True},
        }
        | {"router": {"enabled": True}}
    )

    assert "3 values do not fit together" in output.stderr


def test_doors_are_let_in_together() -> None:
    """Every way from outside is named in one sentence, and what to paste lets all of them in, and the namespace still."""
    values = {
        "ingress": {"enabled": True, "hosts": ["a"]},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "g", "namespace": "edge"}]},
        "service": {"type": "LoadBalancer"},
    }
    text = render(values=values).stderr
    cure = yaml.safe_load(text.split("Paste:\n", 1)[1].split("\n\n", 1)[0])

    assert "apiFrom is empty with ingress and httpRoute and service.type LoadBalancer" in text
    assert cure["networkPolicy"]["apiFrom"] == [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "edge"}}},
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
    ]
    assert render(values=values | {"networkPolicy": {"enabled": False}}).returncode == 0


@pytest.mark.parametrize(
    ("parents", "namespaces"),
    [
        ([{"name": "public"}], ["llm"]),
        ([{"name": "public", "namespace": "edge"}], ["edge"]),
        ([{"name": "public", "namespace": "edge"}, {"name": "own"}, {"name": "inner"}], ["edge", "llm"]),
    ],
)
def test_gateway_without_a_namespace_is_in_the_routes(
    parents: list[dict[str, str]], namespaces: list[str]
) -> None:
    """To paste for a route: the namespace of each of its gateways, the release's where none is named, and a caution."""
    text = render(values={"httpRoute": {"enabled": True, "parentRefs": parents}}).stderr
    cure = text.split("Paste:\n", 1)[1].split("\n\n", 1)[0]
    peers = yaml.safe_load(cure)["networkPolicy"]["apiFrom"]

    assert [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in peers[1:]
    ] == namespaces
    assert "# namespace of the gateway's pods, which may be its controller's" in cure


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"modle": {}}, "modle"),
        ({"engine": {"tensorParalelSize": 8}}, "tensorParalelSize"),
        ({"engine": {"tensorParallelSize": "eight"}}, "tensorParallelSize"),
        ({"engine": {"tensorParallelSize": 16}}, "tensorParallelSize"),
        ({"settings": {"engine": {"tool_call_parser": "glm46"}}}, "tool_call_parser"),
        ({"settings": {"engine": {"reasoning_parser": "glm4"}}}, "reasoning_parser"),
        ({"settings": {"engine": {"kv_cache_dtype": "fp7"}}}, "kv_cache_dtype"),
        ({"settings": {"engine": {"modle": "x"}}}, "modle"),
        ({"settings": {"engin": {}}}, "engin"),
        ({"settings": {"health": {"stall_seconds": 0}}}, "stall_seconds"),
        ({"images": {"registry": "https://registry.example.com"}}, "registry"),
        ({"images": {"registry": "registry.example.com/llm/"}}, "registry"),
        ({"images": {"registry": "Registry.example.com"}}, "registry"),
        ({"engine": None}, "engine"),
        ({"images": {"engine": {"digest": "latest"}}}, "digest"),
        ({"model": {"source": "ftp://host/file"}}, "source"),
        ({"model": {"volume": {"size": "402 GB"}}}, "size"),
        ({"profile": "rocm"}, "profile"),
        ({"drainSeconds": -1}, "drainSeconds"),
        ({"security": {"runAsUser": 0}}, "runAsUser"),
        ({"keda": {"minReplicas": 0}}, "minReplicas"),
        ({"autoscaling": {"minReplicas": 0}}, "minReplicas"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("name", ["helm3", "helm4"])
def test_schema_refuses(values: dict[str, Any], named: str, name: str) -> None:
    """A misspelt key, a wrong type and a value that cannot be are refused by name, by both helms."""
    output = render(values=values, name=name)

    assert output.returncode != 0
    assert named in output.stderr
