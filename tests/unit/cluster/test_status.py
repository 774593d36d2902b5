"""Status as text, and changes as Events."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from httpx2.websockets import WebSocketUpgradeError
from lightkube import ApiError, Client
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.types import ExecResponse

from glm5_service.cluster.client import Cluster
from glm5_service.cluster.events import Change, Teller, Watcher, run
from glm5_service.cluster.release_status import Fault, PodStatus, read_status
from glm5_service.cluster.screen import duration_text, status_text
from glm5_service.contracts.engine import EngineState, PhaseSpan
from glm5_service.contracts.staging import StagingState
from glm5_service.errors import SourceError
from glm5_service.rundir import write
from tests.support.staging.states import state

LOGS = "kubectl -n llm logs glm5-0"
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ENDED = datetime(2026, 11, 29, 11, 30, tzinfo=UTC)
STATUS = PodStatus(
    name="glm5-0", is_stager=False, node="n", phase="Running", since=NOW - timedelta(minutes=3), restarts=1, ready=False,
    waiting="", why_pending=(), fault=None, staging=None, engine=None, events=(),
)  # fmt: skip


class FakeCluster:
    """Answers with given pods and no more."""

    namespace = "llm"

    def __init__(self, *pods: Pod, events: tuple[Event, ...] = ()) -> None:
        self._pods, self._events = list(pods), list(events)

    def pods(self, release: str) -> list[Pod]:
        return self._pods

    def events_of(self, pod: Pod) -> list[Event]:
        return self._events

    def nodes(self) -> list[object]:
        return []

    def run_dir(self, pod: str, container: str) -> tuple[StagingState, dict[str, object]]:
        return state(), {}


class NamespacedRole(FakeCluster):
    """Refuses all that is not the pods themselves."""

    def nodes(self) -> list[object]:
        raise SourceError("the cluster refused", "nodes is forbidden")

    def events_of(self, pod: Pod) -> list[Event]:
        raise SourceError("the cluster refused", "events is forbidden")


def pod(**status: object) -> Pod:
    return Pod.from_dict(
        {
            "metadata": {"name": "glm5-0", "namespace": "llm"},
            "spec": {"nodeName": "n", "containers": []},
            "status": status,
        }
    )


def terminated(code: int, message: str, finished: str) -> dict[str, object]:
    return {"terminated": {"exitCode": code, "reason": "Error", "message": message, "finishedAt": finished}}


def test_last_failure_is_the_latest_of_all_containers() -> None:
    """The last container that ended badly is shown, also if it runs again."""
    found = pod(
        initContainerStatuses=[{"name": "stage", "restartCount": 1, "image": "", "imageID": "", "ready": True,
            "state": terminated(0, "", "2026-11-29T11:00:00Z"),
            "lastState": terminated(3, "Unreachable: no route", "2026-11-29T10:00:00Z")}],
        containerStatuses=[{"name": "engine", "restartCount": 2, "image": "", "imageID": "", "ready": False,
            "state": {"running": {}}, "lastState": terminated(6, "engine ended", "2026-11-29T11:30:00Z")}],
    )  # fmt: skip
    status = read_status(FakeCluster(found), "glm5")[0]  # type: ignore[arg-type]

    assert status.fault == Fault("engine", 6, "Error", "engine ended", ENDED, f"{LOGS} -c engine --previous")
    assert status.restarts == 3


@pytest.mark.parametrize(
    ("message", "shown"),
    [("told to stop while failed: no token", True), ("", False)],
)
def test_restart_of_a_hung_engine_is_a_failure(message: str, shown: bool) -> None:
    """A run before this one that ended with 0 is shown if it says why; the kubelet stops a hung engine like that."""
    found = pod(
        containerStatuses=[{"name": "engine", "restartCount": 1, "image": "", "imageID": "", "ready": False,
            "state": {"running": {}}, "lastState": terminated(0, message, "2026-11-29T11:30:00Z")}],
    )  # fmt: skip
    status = read_status(FakeCluster(found), "glm5")[0]  # type: ignore[arg-type]

    fault = Fault("engine", 0, "Error", message, ENDED, f"{LOGS} -c engine --previous")

    assert status.fault == (fault if shown else None)


@pytest.mark.parametrize(
    ("reason", "message", "shown"),
    [
        ("OOMKilled", "a line\nINFO 200 OK", "OOMKilled: INFO 200 OK"),
        ("OOMKilled", "", "OOMKilled"),
        ("Error", "engine ended", "engine ended"),
        ("Error", "", "Error"),
        ("Completed", "told to stop", "told to stop"),
    ],
)
def test_cause_of_a_failure_is_never_hidden_by_its_log(reason: str, message: str, shown: str) -> None:
    """The end of a killed container's log does not say why it was killed; Kubernetes' reason does, where it is one."""
    fault = Fault("engine", 137, reason, message, ENDED, LOGS)
    text = status_text([PodStatus(**{**vars(STATUS), "fault": fault})], NOW)

    assert f"last failure  engine ended with 137, 30 min 00 s ago: {shown}\n" in text


@pytest.mark.parametrize(
    ("phase", "engine_runs", "shown"),
    [("ready", True, True), ("ready", False, False), ("loading", False, False), ("failed", False, True),
     ("stopped", False, True)],
)  # fmt: skip
def test_engine_that_does_not_run_has_no_phase_of_a_running_one(
    monkeypatch: pytest.MonkeyPatch, phase: str, engine_runs: bool, shown: bool
) -> None:
    """What an engine wrote before it was killed is not shown as if it were so; how it ended is."""
    running, waiting = {"running": {}}, {"waiting": {"reason": "CrashLoopBackOff"}}
    states = {"metrics": running, "engine": running if engine_runs else waiting}
    found = pod(
        containerStatuses=[
            {"name": name, "restartCount": 0, "image": "", "imageID": "", "ready": False, "state": state}
            for name, state in states.items()
        ]
    )
    engine = EngineState(phase=phase, since=NOW, reason="")
    monkeypatch.setattr(FakeCluster, "run_dir", lambda *_: (None, engine))

    assert read_status(FakeCluster(found), "glm5")[0].engine == (engine if shown else None)  # type: ignore[arg-type]


def test_what_a_role_may_not_read_takes_nothing_else_away() -> None:
    """Without a right to nodes and events a waiting pod still has the scheduler's words, and says what is missing."""
    refusal = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    found = pod(conditions=[refusal])
    found.spec.nodeName = None  # type: ignore[union-attr]
    status = read_status(NamespacedRole(found), "glm5")[0]  # type: ignore[arg-type]

    assert status.why_pending == (
        "the scheduler says: 0/3 nodes are available",
        "nodes cannot be looked at: the cluster refused: nodes is forbidden",
    )
    assert status.events == ("cannot be read: the cluster refused: events is forbidden",)


def test_release_without_pods_is_an_error() -> None:
    """A release that has no pod is named, with where to look."""
    with pytest.raises(SourceError, match="no pod of the release: glm5 in namespace llm"):
        read_status(FakeCluster(), "glm5")  # type: ignore[arg-type]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    """A connection to namespace llm of no cluster."""
    config = {"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
              "users": [{"name": "u", "user": {"token": "t"}}],
              "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return Cluster(None, "llm")


def test_container_that_cannot_be_entered_has_nothing_to_say(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that just ended refuses the command that reads its state, and the rest of the status is shown."""

    def refuse(*_: object, **__: object) -> None:
        raise WebSocketUpgradeError(httpx2.Response(500))

    monkeypatch.setattr(Client, "exec", refuse)

    assert cluster.run_dir("glm5-0", "stage") == (None, None)


def test_busy_node_is_given_time_to_enter_a_container(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that takes half a minute, to begin or to answer, is waited for and not taken for an empty answer."""

    # dashes in an address do not end the file
    done = state(phase="done", source="s3://models/a---b")
    engine = EngineState(phase="ready", since=NOW, reason="")

    begun: dict[Client, float] = {}

    class Noted(Client):
        def __init__(self, *arguments: Any, timeout: httpx2.Timeout, **more: Any) -> None:
            super().__init__(*arguments, timeout=timeout, **more)
            begun[self] = timeout.read or 0

    monkeypatch.setattr("glm5_service.cluster.client.Client", Noted)

    def slow(client: Client, *_: object, timeout: float, **__: object) -> ExecResponse:
        begun_within = begun[client]
        if min(timeout, begun_within) < 30:
            raise httpx2.ReadTimeout("no answer")
        return ExecResponse(stdout=f"{done.model_dump_json()}\n---\n{engine.model_dump_json()}", exit_code=0)

    monkeypatch.setattr(Client, "exec", slow)

    assert cluster.run_dir("glm5-0", "metrics") == (done, engine)


@pytest.mark.parametrize(("namespace", "free"), [("llm", 8), ("other", 4)])
def test_what_the_release_itself_holds_is_free_to_its_upgrade(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, namespace: str, free: int
) -> None:
    """Before an upgrade the pods that it replaces take nothing from the nodes; those of a namesake do."""
    labels, gpus = {"app.kubernetes.io/instance": "glm5"}, {"nvidia.com/gpu": "4"}
    spec = {"nodeName": "n", "containers": [{"name": "engine", "resources": {"requests": gpus}}]}
    metadata = {"name": "glm5-0", "namespace": namespace, "labels": labels}
    held = Pod.from_dict({"metadata": metadata, "spec": spec})
    node = Node.from_dict({"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    monkeypatch.setattr(Client, "list", lambda _, kind, **__: [held] if kind is Pod else [node])

    assert [item.free("nvidia.com/gpu") for item in cluster.nodes(labels)] == [free]


def test_own_use_is_of_pods_that_are_not_over(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own pods that run or wait use a quota, those that ended do not; without labels none is the release's own."""
    spec = {"containers": [{"name": "engine", "resources": {"requests": {"nvidia.com/gpu": "4"}}}]}
    found = [
        Pod.from_dict({"metadata": {"name": "p"}, "spec": spec, "status": {"phase": phase}})
        for phase in ("Running", "Pending", "Succeeded", "Failed")
    ]
    asked = {"namespace": "llm", "labels": {"a": "b"}}
    monkeypatch.setattr(Client, "list", lambda _, kind, **how: found if (kind, how) == (Pod, asked) else [])

    assert cluster.own_use({"a": "b"}) == {"nvidia.com/gpu": 8}
    assert cluster.own_use({}) == {}


def test_part_of_the_api_that_is_down_leaves_the_rest(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API group whose server is down, slow or gone is named; the kinds of all others are known."""
    groups = {"metrics.k8s.io": 503, "left.io": 404, "apps": 200, "slow.io": 0}
    index = [{"name": name, "preferredVersion": {"groupVersion": f"{name}/v1"}} for name in groups]

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/apis":
            return httpx2.Response(200, json={"groups": index})
        status = groups[request.url.path.split("/")[2]]
        if status == 0:
            raise httpx2.ReadTimeout("no answer")
        return httpx2.Response(status, json={"resources": [{"kind": "StatefulSet"}]})

    http = httpx2.Client(transport=httpx2.MockTransport(answer), base_url="https://cluster")
    monkeypatch.setattr(cluster, "_raw", http)

    assert cluster._kinds() == ({"apps/StatefulSet"}, {"metrics.k8s.io", "left.io", "slow.io"})


def test_events_that_say_the_same_are_one_line() -> None:
    """Repeated events, each an object of its own or not, are told once, with their number and last time."""
    same = {"reason": "FailedScheduling", "message": "0/1 nodes are available."}
    told = (
        same | {"lastTimestamp": "2026-11-29T12:00:00Z", "count": 2},
        {"reason": "Pulled", "message": "Image is there.", "lastTimestamp": "2026-11-29T12:00:01Z"},
        same | {"series": {"count": 3, "lastObservedTime": "2026-11-29T12:00:05.000000Z"}},
    )
    events = tuple(Event.from_dict({"metadata": {}, "involvedObject": {}, **event}) for event in told)
    status = read_status(FakeCluster(pod(), events=events), "glm5")[0]  # type: ignore[arg-type]

    assert status.events == (
        "12:00:01 Pulled: Image is there.",
        "12:00:05 FailedScheduling (x5): 0/1 nodes are available.",
    )


@pytest.mark.parametrize(("phase", "text"), [("Running", "stages"), ("Succeeded", "has staged")])
def test_pod_of_a_staging_job_is_ready_when_it_has_staged(phase: str, text: str) -> None:
    """The kubelet counts a Job's pod as ready while it works; the screen says whether the model is there."""
    stager = pod(phase=phase, conditions=[{"type": "Ready", "status": "True"}])
    stager.metadata.labels = {"app.kubernetes.io/component": "staging"}  # type: ignore[union-attr]
    status = read_status(FakeCluster(stager), "glm5")[0]  # type: ignore[arg-type]

    assert status.ready == (phase == "Succeeded")
    assert f"{phase} on n, {text}, 0 restarts" in status_text([status], NOW)


def test_screen_tells_staging_with_its_end() -> None:
    """While staging the screen has share, rate and time left."""
    staging = state(
        present_bytes=100_500_000_000,
        total_bytes=402_000_000_000,
        bytes_per_second=1_200_000_000,
        eta_seconds=251,
    )
    text = status_text([PodStatus(**{**vars(STATUS), "staging": staging})], NOW)

    assert "staging       fetching, 25% of 402.00 GB, 1200.0 MB/s, about 4 min 11 s left" in text


def test_screen_tells_that_a_pod_waits_for_the_job() -> None:
    """A pod that waits for a staging Job has no progress of its own and says what it waits for."""
    text = status_text([PodStatus(**{**vars(STATUS), "staging": state(phase="waiting", total_bytes=0)})], NOW)

    assert "staging       waiting for another stager to publish the model" in text


def test_screen_tells_phase_backend_and_failure() -> None:
    """The engine's phase, its backends by rank, what is expected, and the last failure are on the screen."""
    engine = EngineState(
        phase="warming", since=NOW - timedelta(seconds=5), reason="the first token is awaited",
        remedy="One token comes.", phases=[PhaseSpan(phase="loading", seconds=61)],
        attested_backends=["A", "B"], expected_backend="A",
    )  # fmt: skip
    fault = Fault("engine", 6, "Error", "line one\nthe engine ended", ENDED, f"{LOGS} -c engine --previous")
    text = status_text([PodStatus(**{**vars(STATUS), "engine": engine, "fault": fault})], NOW)

    assert "phase         warming for 5 s: the first token is awaited" in text
    assert "so far        loading 1 min 01 s" in text
    assert "backend       rank 0 A, rank 1 B (expected A)" in text
    assert "last failure  engine ended with 6, 30 min 00 s ago: the engine ended" in text
    assert "its log: kubectl -n llm logs glm5-0 -c engine --previous" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.6, "1 min 00 s"), (3725, "1 h 02 min"), (-1, "0 s")]
)
def test_durations(seconds: float, text: str) -> None:
    """Durations have at most two units."""
    assert duration_text(seconds) == text


def test_event_tells_what_comes_next_as_such(tmp_path: Path) -> None:
    """What would change a phase is not told as if it had happened."""
    state = EngineState(
        phase="starting", since=NOW, reason="the engine is starting", remedy="The API answers."
    )
    write(tmp_path / "engine.json", state)

    assert list(Watcher(tmp_path).changes()) == [
        Change("EngineStarting", "the engine is starting; next: The API answers.", False)
    ]


def test_watcher_tells_each_change_once(tmp_path: Path) -> None:
    """A phase is told when it begins, a failure as a warning, and a half-written file not at all."""
    watcher = Watcher(tmp_path)
    staging = tmp_path / "staging.json"
    told: list[list[Change]] = [list(watcher.changes())]
    for told_state in (state(), state(source=""), state(phase="failed", message="OutOfSpace: 3 GB missing")):
        staging.write_text(told_state.model_dump_json())
        told.append(list(watcher.changes()))
    staging.write_text("{")
    told.append(list(watcher.changes()))

    assert told == [
        [],
        [Change("StagingFetching", "fetching, 4.00 GB of hf://a/b", False)],
        [],
        [Change("StagingFailed", "OutOfSpace: 3 GB missing", True)],
        [],
    ]


def test_events_outlive_an_api_server_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a serving engine nothing ends because the cluster does not answer: it is asked again, and told by then."""
    write(tmp_path / "engine.json", EngineState(phase="ready", since=NOW, reason="it answers"))
    refused = httpx2.ConnectError("connection refused")
    answers: list[object] = [refused, refused, Pod.from_dict({"metadata": {"namespace": "llm", "uid": "u"}})]
    told: list[Event] = []

    class Server:
        def __init__(self, namespace: str) -> None:
            pass

        def get(self, kind: type[Pod], name: str) -> object:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        def create(self, event: Event) -> None:
            told.append(event)
            raise SystemExit

    monkeypatch.setenv("POD_NAME", "glm5-0")
    monkeypatch.setenv("POD_NAMESPACE", "llm")
    monkeypatch.setattr("glm5_service.cluster.events.Client", Server)
    monkeypatch.setattr("glm5_service.cluster.events.POLL_SECONDS", 0)
    with pytest.raises(SystemExit):
        run(tmp_path)

    assert [(event.reason, event.involvedObject.uid) for event in told] == [("EngineReady", "u")]
    assert caplog.text.count("connection refused") == 1


class EventServer:
    """Takes Events; fails as it is told to, in order, before it takes one."""

    def __init__(self, *failures: Exception) -> None:
        self.taken: list[str] = []
        self._failures = list(failures)

    def create(self, event: Event) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.taken.append(str(event.reason))


def answered(code: int) -> ApiError:
    request = httpx2.Request("POST", "https://cluster/api/v1/namespaces/llm/events")
    return ApiError(
        request=request, response=httpx2.Response(code, json={"message": f"no: {code}"}, request=request)
    )


def told(teller: Teller, *reasons: str) -> Teller:
    for reason in reasons:
        teller.add(Event.from_dict({"metadata": {}, "involvedObject": {}, "reason": reason}))
    teller.tell()
    return teller


@pytest.mark.parametrize("failure", [httpx2.ReadTimeout("no answer"), answered(500), answered(429)])
def test_event_that_was_not_taken_is_told_again(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """An API server that has no answer for a moment loses no Event, nor their order; it is said once."""
    server = EventServer(failure, failure)
    teller = told(Teller(server), "EngineWarming")  # type: ignore[arg-type]
    told(teller, "EngineReady")
    before = list(server.taken)
    teller.tell()

    assert before == []
    assert server.taken == ["EngineWarming", "EngineReady"]
    assert len(caplog.records) == 1


def test_event_that_is_refused_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    """An Event that the cluster forbids is given up, and the next one is told."""
    server = EventServer(answered(403))
    told(Teller(server), "EngineWarming", "EngineReady").tell()  # type: ignore[arg-type]

    assert server.taken == ["EngineReady"]
    assert "refused reason=EngineWarming error=no: 403" in caplog.text
