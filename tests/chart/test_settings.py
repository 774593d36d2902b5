"""Settings of the service that go through the chart: names, owners, flags, secrets, and names of before."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.reference.comments import entries, flat
from pydantic import TypeAdapter, ValidationError

from glm5_service.settings.flags import ALIASES
from glm5_service.settings.schema import leaves
from tests.support.chart import CHART, VALUES, helm, objects_of, render

pytestmark = pytest.mark.chart

BEFORE = Path(__file__).parent / "before"
TABLES = CHART / "files" / "values"
OWNED = yaml.safe_load((TABLES / "owned-settings.yaml").read_text())
FLAGS = yaml.safe_load((TABLES / "owned-flags.yaml").read_text())
RENAMED = yaml.safe_load((TABLES / "renamed.yaml").read_text())


def refusal(values: dict[str, Any], base: str = "rtx-pro-6000") -> str:
    """What helm says of values that it refuses."""
    output = render(base, values)
    assert output.returncode != 0
    return output.stderr


def setting(path: str, value: Any) -> dict[str, Any]:
    """Values with one setting."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return {"settings": value}


LEFT_OUT = "expected to be left out. The chart sets it itself, because"
REFUSED = {
    "unknown": ("engine.modle", "x", "modle"),
    "drain": (
        "drain.limit_seconds",
        900,
        f"is 900; {LEFT_OUT} the grace period follows from it. Set drainSeconds",
    ),
    "port": (
        "health.port",
        9999,
        f"settings.health.port is 9999; {LEFT_OUT} the probes and the policies name it.",
    ),
    "type": ("engine.max_model_len", "long", "max_model_len"),
}


@pytest.mark.parametrize(("path", "value", "said"), REFUSED.values(), ids=REFUSED)
def test_a_setting_that_cannot_be_is_refused_before_the_pod_goes(path: str, value: Any, said: str) -> None:
    """A misspelt setting, and one that probes or the grace period are built on, never reach a cluster."""
    assert said in refusal(setting(path, value))


@pytest.mark.parametrize("path", OWNED)
def test_owned_setting_names_what_sets_it(path: str) -> None:
    """Each setting that the chart computes is refused with the value that sets it, or with the reason."""
    kind = leaves()[path].field.annotation
    value: Any = next((sample for sample in (7000, "text", "cpu") if _fits(path, sample)), None)
    assert value is not None, kind
    said = refusal(setting(path, value))

    assert f"settings.{path} is" in said
    assert OWNED[path]["value"] in said
    assert OWNED[path].get("because", "") in said


def _fits(path: str, value: Any) -> bool:
    field = leaves()[path].field
    try:
        TypeAdapter(field.annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def test_values_that_set_a_setting_exist() -> None:
    """Whatever a refusal names is a value of the chart or a setting."""
    known = {entry.path for entry in flat(entries((CHART / "values.yaml").read_text()))}
    known |= {f"settings.{path}" for path in leaves()}
    named = (
        {item["value"] for item in OWNED.values()}
        | set(FLAGS.values())
        | {f"settings.{p}" for p in RENAMED.values()}
    )

    assert named - known - {""} == set()


def test_every_secret_of_the_service_is_owned() -> None:
    """No setting that holds a secret can be given in the clear."""
    secrets = {path for path, leaf in leaves().items() if "Secret" in str(leaf.field.annotation)}

    assert secrets
    assert secrets - OWNED.keys() == set()


SPELLINGS = [
    *(f"{flag}=1" for flag in FLAGS),
    *(f"{leaf.flag}=1" for leaf in leaves().values() if leaf.flag),
    *(alias for alias, flag in ALIASES.items() if flag in {*FLAGS, *(leaf.flag for leaf in leaves().values())}),
    "--api_key", "--max_model_len", "--tensor_parallel_size=8", "-dcp=8", "--speculative-config.method",
    "--no-enforce-eager", "--max-model-len 4096", "-tp 8", "-sc.method=mtp",
]  # fmt: skip


@pytest.mark.parametrize("word", SPELLINGS)
def test_flag_that_a_setting_is_for_is_refused(word: str) -> None:
    """A flag of a setting or value is refused in every spelling, and vLLM's value for it is not repeated."""
    said = refusal(setting("engine.extra_args", ["--seed", "1", word]))

    assert "settings.engine.extra_args has -" in said
    assert "expected the value" in said


def test_flag_and_value_are_two_items() -> None:
    """A flag with its value in one item would be one unknown flag to vLLM."""
    assert "--seed and its value in one item" in refusal(setting("engine.extra_args", ["--seed 1"]))


HIDDEN = "s3cr3t-t3xt"
CREDENTIALS: dict[str, dict[str, Any]] = {
    "api key": setting("engine.api_key", HIDDEN),
    "hub token": setting("staging.hub.token.value", HIDDEN),
    "web token": setting("staging.http.token.value", HIDDEN),
    "key as argument": setting("engine.extra_args", [f"--api-key={HIDDEN}"]),
    "hub token as argument": setting("engine.extra_args", ["--hf-token", HIDDEN]),
    "user of a source": {"model": {"source": f"https://user:{HIDDEN}@host/folder/"}},
    "token of a source": {"model": {"source": f"https://{HIDDEN}@host/folder/"}},
    "signed source": {"model": {"source": f"https://host/folder/?a=b&X-Amz-Signature={HIDDEN}"}},
    "token in a query": {"model": {"source": f"https://host/folder/?token={HIDDEN}"}},
    "bucket": {"model": {"source": f"s3://key:{HIDDEN}@bucket/prefix"}},
    "proxy": setting("staging.http.proxy", f"http://user:{HIDDEN}@proxy:3128"),
    "old proxy": {"staging": {"proxy": f"http://user:{HIDDEN}@proxy:3128"}},
    "hub": setting("staging.hub.endpoint", f"https://user:{HIDDEN}@hub"),
    "bucket's host": setting("staging.s3.endpoint", f"https://user:{HIDDEN}@s3:9000"),
    "tokenizer": setting("staging.tokenizer_source", f"https://host/x/?sig={HIDDEN}"),
    "environment": {"engine": {"extraEnv": [{"name": "HF_TOKEN", "value": HIDDEN}]}},
    "key in environment": {"engine": {"extraEnv": [{"name": "VLLM_API_KEY", "value": HIDDEN}]}},
}  # fmt: skip


@pytest.mark.parametrize("values", CREDENTIALS.values(), ids=CREDENTIALS)
def test_secret_is_refused_and_not_repeated(values: dict[str, Any]) -> None:
    """A secret that would end in a ConfigMap or a pod is refused, in a sentence that does not show it."""
    said = refusal(values)

    assert "expected" in said
    assert HIDDEN not in said


ADDRESSES = [
    "hf://org/repo@main/a@b",
    "oci://host/repo@sha256:0",
    "https://host/a@b/?x=1",
    "s3://bucket/a:b@c",
]


@pytest.mark.parametrize("source", ADDRESSES)
def test_address_without_credentials_is_none(source: str) -> None:
    """A revision, a digest and an @ in a path are no credentials."""
    assert render(values={"model": {"source": source}}).stderr == ""


def test_no_text_of_a_secret_is_hashed() -> None:
    """No annotation is a digest of a key or token that somebody could guess."""
    values = {"api": {"key": {"value": "k1"}}, "staging": {"credentials": {"token": "t1"}}}
    other = {"api": {"key": {"value": "k2"}}, "staging": {"credentials": {"token": "t2"}}}
    one, two = (objects_of(render("everything", each)) for each in (values, other))

    assert [a for a, b in zip(one, two, strict=True) if a != b and a["kind"] != "Secret"] == []


@pytest.mark.parametrize("path", sorted(BEFORE.glob("*.yaml")), ids=lambda path: path.stem)
def test_values_of_before_give_the_same_objects(path: Path) -> None:
    """A values file with the names of before renders what the file of now does."""
    kube = ["--kube-version", "1.31.0"]
    before, now = (
        helm("template", "glm5", str(CHART), "-n", "llm", "-f", str(file), *kube)
        for file in (path, VALUES[path.stem])
    )

    assert objects_of(before) == objects_of(now)


# for each old name a value that is no default; a number where it is not here
OLD: dict[str, Any] = {
    "model.tokenizerSource": "hf://a/b", "model.quantisation": "Q8_0", "model.architecture": "glm",
    "staging.refresh": True, "staging.aside": False, "staging.keep": 2, "staging.requireDigest": False,
    "staging.hubEndpoint": "https://mirror", "staging.s3Endpoint": "https://s3", "staging.s3Region": "eu",
    "staging.s3Anonymous": True, "staging.ociPlainHttp": True, "staging.proxy": "http://proxy:1",
    "engine.dtype": "float16", "engine.kvCacheDtype": "fp8", "engine.attentionBackend": "TRITON_MLA_SPARSE",
    "engine.expectedBackend": "none", "engine.toolCallParser": "hermes", "engine.reasoningParser": "qwen3",
    "engine.gpuMemoryUtilization": 0.5, "engine.enforceEager": True, "engine.extraArgs": ["--seed", "1"],
    "api.extraRoutes": ["POST:/v1/responses"],
}  # fmt: skip


@pytest.mark.parametrize("name", RENAMED)
def test_old_name_is_the_setting(name: str) -> None:
    """Each old name sets what its new name sets, alone, beside a default, and as empty."""
    value: Any = OLD.get(name, 7)
    old: Any = value
    for part in reversed(name.split(".")):
        old = {part: old}
    render_old, render_new = render(values=old), render(values=setting(RENAMED[name], value))

    assert render_old.stderr == ""
    assert render_old.stdout == render_new.stdout
    assert render_old.stdout != render().stdout or value is False


def test_new_name_wins() -> None:
    """Where a release has both names, the setting counts, as it did before."""
    both = {"engine": {"maxRequests": 3}} | setting("engine.max_num_seqs", 5)

    assert render(values=both).stdout == render(values=setting("engine.max_num_seqs", 5)).stdout


@pytest.mark.parametrize("empty", ["", None])
def test_empty_old_name_takes_the_default_away(empty: Any) -> None:
    """Empty and null under an old name meant that the setting is not given."""
    old = {"engine": {"contextLength": empty, "toolCallParser": empty}}
    new = {"settings": {"engine": {"max_model_len": None, "tool_call_parser": None}}}

    assert render(values=old).stdout == render(values=new).stdout


def test_notes_say_the_new_names() -> None:
    """Who installs with an old name is told the new one, for each; who does not is told nothing."""
    argv = ["install", "glm5", str(CHART), "-n", "llm", "--dry-run=client", "-f"]
    before, now = (helm(*argv, str(file)).stdout for file in (BEFORE / "cpu-demo.yaml", VALUES["cpu-demo"]))

    assert (
        "RENAMED: engine.maxRequests is now settings.engine.max_num_seqs. The old name works in this release only."
        in before
    )
    assert before.count("RENAMED") == 5
    assert "RENAMED" not in now


def test_notes_ask_what_was_given() -> None:
    """The command in the notes sends model and question as they are, quotes included."""
    question = """What's "sparse"?"""
    argv = [
        "install",
        "glm5",
        str(CHART),
        "-n",
        "llm",
        "--dry-run=client",
        "-f",
        str(VALUES["rtx-pro-6000"]),
        "-f",
        "-",
    ]
    notes = helm(*argv, stdin=json.dumps({"model": {"name": "it's"}, "tests": {"question": question}})).stdout
    body = notes[notes.index("-d '") :].partition("\n")[0]
    shown = subprocess.run(
        ["sh", "-c", f'show() {{ printf %s "$2"; }}; show {body}'], capture_output=True, text=True, check=True
    )

    assert json.loads(shown.stdout)["messages"][0]["content"] == question
    assert json.loads(shown.stdout)["model"] == "it's"
