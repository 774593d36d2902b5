"""Every query of boards and rules against a real Prometheus over one life of a real pod (CPU profile); alerts arrive."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support import board_run
from tests.support.board_run import Pod
from tests.support.boards import BOARDS, Target, filled, targets
from tests.support.prometheus import Series, until
from tests.support.promql import selectors_in
from tests.support.results import record
from tests.support.rules import alerts, filled_in

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        shutil.which("prometheus-alertmanager") is None, reason="no Alertmanager here (apt.txt)"
    ),
]

STEP_SECONDS = 1
INTERVAL = "15s"
# what this run cannot show, and why; everything else must return data
NO_DATA = {
    r"vllm:spec_decode_": "the demo model proposes no tokens; names are checked on a page of vLLM's own making",
    r"kube_job_|kube_pod_": "the run stages without a Job",
}
# alerts whose condition the run causes; the others are proven by the stories of tests/monitoring
CAUSED = {
    "GLM5StagingFailed",
    "GLM5EngineStalled",
    "GLM5NotReady",
    "GLM5CanaryFailing",
    "GLM5EngineMetricsMissing",
    "GLM5WrongBackend",
    "GLM5EngineFailed",
    "GLM5DrainAborted",
    "GLM5SidecarDown",
}
# with waiting times of two seconds these may fire as well: a slow machine, a pause in staging, a page that is late
ALLOWED = {
    "GLM5GPUMetricsMissing",
    "GLM5LatencySLOFast",
    "GLM5LatencySLOSlow",
    "GLM5PodMissing",
    "GLM5StagingStalled",
    "GLM5SupervisorSilent",
}


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """A pod whose life is over; Prometheus still answers for it."""
    pod = board_run.begin(tmp_path_factory.mktemp("pod"))
    try:
        for step in (board_run.stage, board_run.serve, board_run.load, board_run.hurt, board_run.end):
            started = time.monotonic()
            step(pod)
            pod.seconds[step.__name__] = round(time.monotonic() - started)
        yield pod
    finally:
        pod.stop()


def _series(pod: Pod, expr: str) -> list[Series]:
    choice = {"namespace": "llm", "release": "glm5", "pod": "glm5-0"}
    return pod.prometheus.range(
        filled(expr, interval=INTERVAL, **choice), pod.began, pod.ended + 5, STEP_SECONDS
    )


@cache
def _reason(expr: str) -> str:
    return next((reason for name, reason in NO_DATA.items() if re.search(name, expr)), "")


@pytest.mark.parametrize("target", targets(), ids=str)
def test_panel_has_data(pod: Pod, target: Target) -> None:
    """A panel's query returns numbers, unless there is a reason."""
    assert bool(_series(pod, target.expr)) != bool(_reason(target.expr))


@pytest.mark.parametrize("board", list(BOARDS))
def test_variables_and_annotations_have_data(pod: Pod, board: str) -> None:
    """The variables offer the pod, and its restart is marked."""
    for variable in BOARDS[board]["templating"]["list"]:
        if variable["type"] == "query":
            expr, _, label = (
                variable["query"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            )
            assert {labels[label] for labels, _ in _series(pod, expr)} == {board_run.TARGET[label]}
    for annotation in BOARDS[board]["annotations"]["list"]:
        assert _series(pod, annotation["expr"])


RULES = [
    (rule.get("alert") or rule["record"], rule["expr"]) for group in filled_in() for rule in group["rules"]
]


@pytest.mark.parametrize(("name", "expr"), RULES, ids=[name for name, _ in RULES])
def test_rule_speaks_of_series_that_are_there(pod: Pod, name: str, expr: str) -> None:
    """A rule's query runs, and each of its selectors matched something in the run, unless there is a reason."""
    _series(pod, expr)
    empty = [selector for selector in selectors_in(expr) if not _series(pod, selector)]
    assert [selector for selector in empty if not _reason(selector)] == []


def test_alerts_fired(pod: Pod) -> None:
    """What was caused fired, and nothing fired that was not."""
    fired = {labels["alertname"] for labels, _ in _series(pod, 'ALERTS{alertstate="firing"}')}
    assert set(alerts(filled_in())) >= fired >= CAUSED
    assert fired - CAUSED <= ALLOWED


def test_alert_reaches_the_webhook(pod: Pod) -> None:
    """Alertmanager delivers an alert with its texts filled in, and its end."""
    name = "GLM5WrongBackend"
    until(lambda: pod.delivered(name, "resolved"), "the end of the alert")
    alert = pod.delivered(name, "firing")[0]
    assert alert["labels"] == {
        "alertname": "GLM5WrongBackend",
        "severity": "critical",
        "namespace": "llm",
        "release": "glm5",
        "pod": "glm5-0",
        "rank": "0",
        "backend": "TRITON_MLA_SPARSE",
    }
    assert alert["annotations"]["summary"] == "rank 0 of glm5-0 runs TRITON_MLA_SPARSE"
    assert alert["annotations"]["runbook_url"] == "charts/glm5/docs/runbooks.md#glm5wrongbackend"
    texts = [text for one in pod.post.alerts for text in one["annotations"].values()]
    assert [text for text in texts if "<" in text or "{{" in text or "no value" in text] == []


def test_run_is_recorded(pod: Pod) -> None:
    """The run's figures can be kept: how many queries it checked, how long each part took, what it cannot show."""
    record(
        "boards",
        {
            "panels_queries": len(targets()),
            "rules": len(RULES),
            "seconds": pod.seconds,
            "without_data": NO_DATA,
        },
    )
