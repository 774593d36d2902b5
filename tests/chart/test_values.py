"""Text, null and numbers in every value: each ends as one scalar of its type, or is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from charts.reference.comments import entries, flat

from tests.chart.test_render import FOREIGN
from tests.support.chart import CHART, VALUES, objects, one, pod_of, render

pytestmark = pytest.mark.chart

ENTRIES = list(flat(entries((CHART / "values.yaml").read_text())))
LEAVES = [entry for entry in ENTRIES if not entry.children and "settings" not in entry.extra]
# everything that a text can be in, with Ingress, several nodes and their like beside each other
BASES = ("everything", "several-nodes")
TEXTS = ["123456", "1e5", "20161216", "true", "null", "y", "0x1f", "1_000", "~", "- a", "x\nhostNetwork: true",
         "say \"hi\" and 'ho'", "a: b # c", "{{ .Release.Name }}", "$(HOME)", "\\n"]  # fmt: skip
# in place of what the chart makes Secrets of
OF_ONES_OWN = {"api": {"key": {"value": ""}}, "staging": {"credentials": {"token": ""}}}
NAMES = ["123456", "1e5", "20161216", "true", "null", "y", "0x1f"]


class GoLoader(yaml.SafeLoader):
    """Reads scalars as Kubernetes does: Go's YAML takes `1e5`, `1_000` and `y` for no text either."""


_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")
GoLoader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
GoLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))


def nested(path: str, value: Any) -> dict[str, Any]:
    """Values with one of them given."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def leaf(node: Any, path: str) -> Any:
    """What is at a dotted path; None if nothing is."""
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def merged(low: Any, high: Any) -> Any:
    """Maps merged, everything else replaced."""
    if not (isinstance(low, dict) and isinstance(high, dict)):
        return high
    return low | {key: merged(low.get(key), item) for key, item in high.items()}


def with_all(found: list[str], text: str) -> dict[str, Any]:
    """Values with each of these set to the same text; a list, whose path ends in [], gets it as its only item."""
    values: dict[str, Any] = {}
    for path in found:
        values = merged(values, nested(path.removesuffix("[]"), [text] if path.endswith("[]") else text))
    return values


def free_texts() -> list[str]:
    """Values that take any text."""
    return [
        entry.path
        for entry in LEAVES
        if isinstance(entry.default, str) and not entry.extra.keys() - {"minLength"}
    ]


def object_names() -> list[str]:
    """Values that take the name of an object; lists of names end in []."""
    found = [entry.path for entry in LEAVES if entry.extra.get("is") == "objectName"]
    lists = [entry for entry in LEAVES if entry.extra.get("items", {}).get("is") in ("objectName", "host")]
    return [*found, *(f"{entry.path}[]" for entry in lists)]


def open_maps() -> list[str]:
    """Maps of labels and annotations, each with one key."""
    return [
        f"{entry.path}.x" for entry in LEAVES if entry.extra.get("additionalProperties") == {"type": "string"}
    ]


def shape(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and type of every leaf."""
    if isinstance(node, dict):
        for key, item in node.items():
            yield from shape(item, f"{path}.{key}")
    elif isinstance(node, list):
        for number, item in enumerate(node):
            yield from shape(item, f"{path}[{number}]")
    else:
        yield path, type(node).__name__


def read(output: Any) -> list[dict[str, Any]]:
    """Objects that helm wrote, read as Kubernetes reads them."""
    assert output.returncode == 0, output.stderr
    return [item for item in yaml.load_all(output.stdout, GoLoader) if item]


def leaves_with(items: list[dict[str, Any]], text: str) -> set[str]:
    """Kind and path of each leaf that holds a text."""

    def walk(node: Any, path: str) -> Iterator[str]:
        if isinstance(node, dict):
            for key, item in node.items():
                yield from walk(item, f"{path}.{key}")
        elif isinstance(node, list):
            for number, item in enumerate(node):
                yield from walk(item, f"{path}[{number}]")
        elif isinstance(node, str) and text in node.replace("$$", "$"):
            yield path

    return {path for item in items for path in walk(item, item["kind"])}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("base", BASES)
def test_free_text_stays_one_text(base: str, text: str) -> None:
    """Numbers, booleans, lines and quotes in a text stay that text: no object gains a field or changes a type."""
    # a key of one's own, in a Secret, stands in the other bases
    paths = [
        path for path in [*free_texts(), *open_maps()] if base == "everything" or path != "api.key.value"
    ]
    plain, odd = (read(render(base, with_all(paths, each), kube="1.37.0")) for each in ("plain-text", text))

    for before, after in zip(plain, odd, strict=True):
        assert sorted(shape(before)) == sorted(shape(after))
        if after["kind"] not in FOREIGN:
            kubernetes_validate.validate(after, "1.37", strict=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("base", BASES)
def test_names_stay_text(base: str, name: str) -> None:
    """A name that looks like a number or a boolean arrives as text, wherever a name goes."""
    given = (merged(OF_ONES_OWN, with_all(object_names(), each)) for each in ("plain", name))
    plain, odd = (read(render(base, values, kube="1.37.0")) for values in given)

    assert leaves_with(plain, "plain") <= leaves_with(odd, name)
    for before, after in zip(plain, odd, strict=True):
        assert sorted(shape(before)) == sorted(shape(after))
        if after["kind"] not in FOREIGN:
            kubernetes_validate.validate(after, "1.37", strict=True)


@pytest.mark.parametrize(
    "text", ["Upper", "under_score", "a b", "x\nhostNetwork: true", "-a", "a-", '"', "a" * 254]
)
def test_what_no_object_can_be_named_is_refused(text: str) -> None:
    """A name that Kubernetes would refuse, or that breaks out of its line, is refused by the name of its value."""
    output = render("rtx-pro-6000", with_all(object_names(), text))

    assert output.returncode != 0
    for path in object_names():
        assert f"'/{path.removesuffix('[]').replace('.', '/')}" in output.stderr


@pytest.mark.parametrize("release", ["1e5", "123456", "20161216", "my.release"])
def test_release_that_no_service_can_be_named_after(release: str) -> None:
    """A release whose objects could not be named is refused with a name that can be pasted; labels then hold its text."""
    output = render("several-replicas", release=release)
    cure = yaml.safe_load(output.stderr.split("Paste:\n", 1)[1].split("\n\n", 1)[0])

    assert f'objects of release "{release}" would be named' in output.stderr
    for item in read(render("several-replicas", cure, release=release, kube="1.37.0")):
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == release
        if item["kind"] not in FOREIGN:
            kubernetes_validate.validate(item, "1.37", strict=True)


@pytest.mark.parametrize("value", ["nameOverride", "fullnameOverride"])
@pytest.mark.parametrize("text", ["GLM5_prod", "glm5.prod", "glm5 prod", "a\nb", "-glm5"])
def test_override_is_a_dns_label(value: str, text: str) -> None:
    """Overrides that would make an invalid name of a Service are refused."""
    output = render(values={value: text})

    assert output.returncode != 0
    assert value in output.stderr


@pytest.mark.parametrize("name", ["true", "y", "n", "null", "on"])
def test_full_name_that_looks_like_a_boolean(name: str) -> None:
    """Every object is named by text, whatever the text says."""
    items = read(render("several-replicas", {"fullnameOverride": name}, kube="1.37.0"))

    assert [item["metadata"]["name"] for item in items if not isinstance(item["metadata"]["name"], str)] == []
    for item in items:
        if item["kind"] not in FOREIGN:
            kubernetes_validate.validate(item, "1.37", strict=True)


@pytest.mark.parametrize("name", ["helm3", "helm4"])
@pytest.mark.parametrize("of", ["sections", "values"])
def test_null_is_refused_by_name(of: str, name: str) -> None:
    """null for what must be something is refused, for each value and section, and never renders as 0 or <nil>."""
    refused = [
        entry for entry in ENTRIES if not entry.is_nullable and bool(entry.children) == (of == "sections")
    ]
    paths = [entry.path for entry in refused if not (of == "sections" and "." in entry.path)]
    values: dict[str, Any] = {}
    for path in paths:
        values = merged(values, nested(path, None))
    output = render("cpu-demo", values, name=name)

    assert output.returncode != 0
    assert len(paths) > 20
    for path in paths:
        assert re.search(rf"\b{path.rpartition('.')[2]}\b", output.stderr), path


@pytest.mark.parametrize(
    "path", ["model.volume", "api.key", "images.engine", "gpu.dra", "prometheusRule.slo"]
)
def test_null_for_an_inner_section_is_refused_by_name(path: str) -> None:
    """A section within a section may not be null either."""
    assert path.rpartition(".")[2] in render(values=nested(path, None)).stderr


@pytest.mark.parametrize("base", BASES)
def test_null_is_empty(base: str) -> None:
    """null for text, lists and maps is the same as empty text, an empty list or an empty map."""
    given = yaml.safe_load(VALUES[base].read_text())
    null: dict[str, Any] = {}
    empty: dict[str, Any] = {}
    for entry in LEAVES:
        is_given = leaf(given, entry.path) is not None
        if entry.is_nullable and not is_given and entry.path not in ("replicas", "startup.budgetSeconds"):
            # a map cannot be emptied by an empty one, since helm merges maps
            nothing = (
                dict.fromkeys(entry.default) if isinstance(entry.default, dict) else type(entry.default)()
            )
            null = merged(null, nested(entry.path, None))
            empty = merged(empty, nested(entry.path, nothing))
    rendered = [render(base, values) for values in (null, empty)]

    assert "nil" not in rendered[0].stdout
    assert rendered[0].stderr == ""
    assert rendered[0].stdout == rendered[1].stdout


@pytest.mark.parametrize(
    ("base", "kind"), [("rtx-pro-6000", "StatefulSet"), ("several-nodes", "LeaderWorkerSet")]
)
def test_replicas_are_left_to_somebody_else(base: str, kind: str) -> None:
    """replicas: null leaves the field out, which hands it over to whoever scales."""
    assert "replicas" not in one(objects(base, {"replicas": None}), kind)["spec"]
    assert one(objects(base, {"replicas": 0}), kind)["spec"]["replicas"] == 0


NUMBERS = [
    entry for entry in LEAVES
    if isinstance(entry.default, int | float) and not isinstance(entry.default, bool)
]  # fmt: skip


@pytest.mark.parametrize("base", ["everything", "several-nodes", "cpu-demo"])
def test_numbers_as_text_are_numbers(base: str) -> None:
    """Every number renders the same when helm was given it as text, as --set does with 2.5."""
    given = yaml.safe_load(VALUES[base].read_text())
    values: dict[str, Any] = {}
    for entry in NUMBERS:
        now = leaf(given, entry.path)
        values = merged(values, nested(entry.path, f"{entry.default if now is None else now}"))
    settings = {
        "engine": {"gpu_memory_utilization": "0.9", "max_num_seqs": "8"},
        "health": {"stall_seconds": "2.5"},
    }
    numbers = {"engine": {"gpu_memory_utilization": 0.9, "max_num_seqs": 8}, "health": {"stall_seconds": 2.5}}

    assert objects(base, values | {"settings": settings}) == objects(base, {"settings": numbers})


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("startup.storageGBps", "0", "storageGBps"),
        ("replicas", "-1", "replicas is -1; expected at least 0"),
        ("security.runAsUser", "0", "security.runAsUser is 0; expected at least 1"),
        (
            "settings.engine.gpu_memory_utilization",
            "1.5",
            "gpu_memory_utilization is 1.5; expected at most 1",
        ),
        ("startup.storageGBps", "fast", "storageGBps"),
        ("replicas", "2.5", "replicas"),
    ],
)
def test_numbers_as_text_have_ranges(path: str, text: str, said: str) -> None:
    """Text for a number is held to the number's range, and text that is none is refused."""
    output = render(values=nested(path, text))

    assert output.returncode != 0
    assert said in output.stderr


def test_every_name_of_the_chart_is_refused_in_extra_env() -> None:
    """Each variable that the engine container has already is refused by name, whatever else it is set by."""
    pod = pod_of(objects("everything", {"model": {"volume": {"type": "claim"}}, "staging": {"mode": "init"}}))
    own = [item["name"] for item in pod["containers"][0]["env"] if item["name"] != "NCCL_DEBUG"]

    assert own
    for name in [*own, "GLM5_HEALTH__PORT", "VLLM_API_KEY"]:
        output = render(values={"engine": {"extraEnv": [{"name": name, "valueFrom": {}}]}})
        assert f"engine.extraEnv sets {name}" in output.stderr


@pytest.mark.parametrize(
    ("value", "said"), [(1, "1"), (True, "true"), (None, "null"), (["a"], '["a"]')], ids=str
)
def test_environment_is_text(value: Any, said: str) -> None:
    """A value of extra environment that is no text is refused by the variable's name, with the text to paste."""
    output = render(values={"engine": {"extraEnv": [{"name": "NCCL_BUFFSIZE", "value": value}]}})

    assert f"engine.extraEnv sets NCCL_BUFFSIZE to {said} without quotes" in output.stderr


def test_environment_is_set_once() -> None:
    """A variable that is given twice is refused, since a server-side apply would."""
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]

    assert "engine.extraEnv sets A twice" in render(values={"engine": {"extraEnv": env}}).stderr


MONITORING = ("podMonitor", "serviceMonitor", "prometheusRule", "dashboards")
LABELS = ["commonLabels", "podLabels", *(f"{name}.labels" for name in MONITORING)]


@pytest.mark.parametrize("path", LABELS)
def test_labels_of_the_chart_are_its_own(path: str) -> None:
    """No value may repeat a label that the chart sets."""
    own = one(objects(), "StatefulSet")["metadata"]["labels"]
    for name in own:
        assert f"{path} sets {name}" in render(values=nested(path, {name: "x"})).stderr


def test_annotations_of_the_chart_are_its_own() -> None:
    """podAnnotations may not repeat an annotation that the chart sets."""
    pod = one(objects("everything"), "StatefulSet")["spec"]["template"]["metadata"]
    for name in pod["annotations"].keys() - {"note"}:
        assert f"podAnnotations sets {name}" in render(values={"podAnnotations": {name: "x"}}).stderr


class StrictLoader(GoLoader):
    """Refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), node.start_mark
        return super().construct_mapping(node, deep=deep)


def test_no_key_is_rendered_twice() -> None:
    """Labels that two values set are rendered once; those of the object win over those of all objects."""
    labels = {path.partition(".")[0]: {"labels": {"team": path}} for path in LABELS if "." in path}
    values = labels | {"commonLabels": {"team": "all"}, "podLabels": {"team": "pods"}}
    items = list(yaml.load_all(render("everything", values).stdout, StrictLoader))

    assert (
        next(i for i in items if i and i["kind"] == "PodMonitor")["metadata"]["labels"]["team"]
        == "podMonitor.labels"
    )


@pytest.mark.parametrize("text", ["$(HOME)", "a $(API_KEY) b", "$$(HOME)", "$", "100$", "$$$(X)"])
def test_no_variable_is_expanded_in_text(text: str) -> None:
    """Text that Kubernetes would take for a variable arrives as it was written, in env and in args."""

    def expanded(value: str) -> str:
        """As the kubelet does it: $$ is $, and $(NAME) a variable."""
        return re.sub(r"\$\$|\$\((\w+)\)", lambda found: "$" if found[0] == "$$" else "EXPANDED", value)

    items = objects("several-nodes", {"model": {"name": text}, "tests": {"question": text},
                                      "settings": {"engine": {"extra_args": ["--seed", text]}}})  # fmt: skip
    asker = one(items, "Pod", "glm5-test-chat")["spec"]["containers"][0]
    env = {item["name"]: item.get("value") for item in asker["env"]}
    group = one(items, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    args = group["leaderTemplate"]["spec"]["containers"][0]["args"]

    assert [expanded(env["MODEL"]), expanded(env["QUESTION"])] == [text, text]
    assert expanded(args[args.index("--seed") + 1]) == text
    assert "$(LWS_WORKER_INDEX)" in args
