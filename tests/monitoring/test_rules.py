"""The rules as Prometheus reads them: form, and for each alert when it fires and when it stays silent."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.alert_stories import FIRING, SILENT
from tests.monitoring.stories import Story, Values
from tests.support.chart import objects, render
from tests.support.rules import RUNBOOKS, alerts, promtool, rendered, write_rules

pytestmark = [
    pytest.mark.chart,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (apt.txt)"),
]


def _text(values: Values) -> str:
    return " ".join(
        "_" if value is None else f"{float(value):g}" if value < 1e6 else f"{value:.0f}" for value in values
    )


def _outcome(story: Story, samples: list[dict[str, Any]], folder: Path) -> str:
    """What promtool says when those alerts, and no others, are expected to have fired by the end of the story."""
    write_rules(rendered(), folder / "rules.yaml")
    fired = "count by (alertname, severity, slo, namespace, release, pod, rank, backend, reason, statefulset)"
    query = (
        f'{fired} (count_over_time(ALERTS{{alertstate="firing"}}[{story.values * story.every}m])) > bool 0'
    )
    test = {
        "interval": f"{story.every}m",
        "input_series": [
            {"series": name, "values": _text(values)} for name, values in story.series().items()
        ],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{(story.values - 1) * story.every}m", "exp_samples": samples}
        ],
    }
    # records before the alerts on them: in long stories the last value is too old already
    order = [group["name"] for group in rendered()]
    every = f"{story.every}m"
    content = {
        "rule_files": ["rules.yaml"], "evaluation_interval": every, "group_eval_order": order, "tests": [test],
    }  # fmt: skip
    (folder / "story.yaml").write_text(yaml.safe_dump(content, width=10**6))
    done = promtool("test", "rules", "story.yaml", cwd=folder)
    return done.stdout + done.stderr


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    """Every file is valid PromQL with valid templates, and no rule is there twice."""
    write_rules(rendered(), tmp_path / "rules.yaml")
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("story", FIRING, ids=lambda story: story.title)
def test_fires(story: Story, tmp_path: Path) -> None:
    """What goes wrong raises the alerts that name it, with their labels, and no others."""
    samples = [
        {
            "labels": "{" + ",".join(f'{k}="{v}"' for k, v in {"alertname": name, **labels}.items()) + "}",
            "value": 1,
        }
        for name, labels in story.alerts.items()
    ]
    assert "SUCCESS" in (said := _outcome(story, samples, tmp_path)), said


@pytest.mark.parametrize("story", SILENT, ids=lambda story: story.title)
def test_stays_silent(story: Story, tmp_path: Path) -> None:
    """What is planned, short or harmless raises nothing."""
    assert "SUCCESS" in (said := _outcome(story, [], tmp_path)), said


def test_every_alert_has_a_story() -> None:
    """No alert is without a case in which it fires."""
    assert {name for story in FIRING for name in story.alerts} == set(alerts(rendered()))


def test_every_alert_says_what_to_do() -> None:
    """Summary, description, severity, and a link to a chapter that the runbooks have; no chapter without an alert."""
    chapters = {line[3:] for line in RUNBOOKS.read_text().splitlines() if line.startswith("## GLM5")}
    for name, rules in alerts(rendered(runbooks="https://git.example.com/runbooks.md")).items():
        for rule in rules:
            assert rule["labels"]["severity"] in {"critical", "warning"}
            assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
            assert rule["annotations"]["runbook_url"] == f"https://git.example.com/runbooks.md#{name.lower()}"
    assert chapters == set(alerts(rendered()))


@pytest.mark.parametrize(
    ("values", "left_out"),
    [
        ({"prometheusRule": {"kubeStateMetrics": False}}, {"GLM5PodMissing", "GLM5StagingJobFailed"}),
        ({"prometheusRule": {"gpuExporter": False}}, {"GLM5HighUtilNoTokens", "GLM5GPUMetricsMissing"}),
    ],
    ids=["no kube-state-metrics", "no dcgm-exporter"],
)
def test_rules_that_need_an_exporter_can_be_left_out(
    values: dict[str, dict[str, bool]], left_out: set[str]
) -> None:
    """Without the exporter's value its alerts are not there, and all others are."""
    assert set(alerts(rendered())) - set(alerts(rendered(**values["prometheusRule"]))) == left_out


def test_gpu_rules_need_gpus() -> None:
    """The cpu profile has no GPU rules."""
    names = {item["metadata"]["name"] for item in objects("cpu-demo", {"prometheusRule": {"enabled": True}})}
    assert "glm5-serving" in names
    assert "glm5-gpu" not in names


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [
        ({"notReadyFor": "3m"}, "for: 3m"),
        ({"queuedRequests": 7}, "> 7"),
        ({"startupShare": 0.5}, "> 0.5 * "),
        ({"kvCacheUsage": 0.91}, "> 0.91"),
        ({"gpuPowerWatts": 123}, "< 123"),
    ],
)
def test_thresholds_come_from_values(thresholds: dict[str, Any], expected: str) -> None:
    """A threshold of the values stands in the rule."""
    values = {"prometheusRule": {"enabled": True, "thresholds": thresholds}}
    assert expected in render(values=values).stdout


@pytest.mark.parametrize(
    "values",
    [{"slo": {"ttftSeconds": 3}}, {"slo": {"objective": 0.9}}, {"thresholds": {"notReadyFor": "soon"}}],
    ids=["no boundary of the histogram", "a burn rate that cannot be reached", "no duration"],
)
def test_refused(values: dict[str, Any]) -> None:
    """A threshold with which an alert could never fire is refused."""
    assert render(values={"prometheusRule": values}).returncode != 0


def test_start_up_budget_is_the_probes() -> None:
    """The rules' start-up budget is what the kubelet waits."""
    items = objects(values={"prometheusRule": {"enabled": True}, "startup": {"budgetSeconds": 7777}})
    text = yaml.safe_dump(next(item for item in items if item["metadata"]["name"] == "glm5-startup"))
    assert re.search(r"vector\(7777\)", text)


@pytest.mark.parametrize("name", ["glm5", "n" * 60])
def test_staging_job_is_known_by_its_name(name: str) -> None:
    """What is said about a staging Job and its pods is said about the one that is rendered."""
    shared = {"volume": {"type": "existingClaim", "existingClaim": "c"}}
    values = {"model": shared, "staging": {"mode": "job"}, "prometheusRule": {"enabled": True}}
    items = objects(values=values | {"fullnameOverride": name})
    rules = alerts([g for i in items if i["kind"] == "PrometheusRule" for g in i["spec"]["groups"]])
    expr = rules["GLM5StagingJobFailed"][0]["expr"]
    job = next(item["metadata"]["name"] for item in items if item["kind"] == "Job")

    for label, value in (("job_name", job), ("pod", f"{job}-x7x7x")):
        patterns = re.findall(rf'\b{label}=~"([^"]*)"', expr)
        assert [bool(re.fullmatch(pattern, value)) for pattern in patterns] == [True]


@pytest.mark.parametrize(("budget", "window"), [(2100, "120m"), (6000, "300m")])
def test_restarts_are_counted_over_three_starts(budget: int, window: str) -> None:
    """Starts that use up their budget one after the other are counted together; short ones over two hours."""
    items = objects(values={"prometheusRule": {"enabled": True}, "startup": {"budgetSeconds": budget}})
    rules = alerts([g for i in items if i["kind"] == "PrometheusRule" for g in i["spec"]["groups"]])
    assert f"[{window}:30s]" in rules["GLM5EngineRestarting"][0]["expr"]


def test_metrics_that_start_after_staging_are_missed_later() -> None:
    """Without native sidecars silence during staging is no failure."""
    values = {"prometheusRule": {"enabled": True}, "model": {"sizeGB": 402}, "staging": {"networkGBps": 0.2}}
    old = alerts(
        [
            g
            for i in objects(values=values, kube="1.25.0")
            if i["kind"] == "PrometheusRule"
            for g in i["spec"]["groups"]
        ]
    )
    assert (old["GLM5SidecarDown"][0]["for"], alerts(rendered())["GLM5SidecarDown"][0]["for"]) == (
        "4320s",
        "5m",
    )
