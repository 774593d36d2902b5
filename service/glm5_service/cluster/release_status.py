"""Reads the state of an installed release, through the cluster's API alone. Next hop: `screen`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from lightkube.models.core_v1 import ContainerStatus
from lightkube.resources.core_v1 import Event, Pod

from glm5_service.cluster.client import Cluster
from glm5_service.cluster.nodes import why_not
from glm5_service.cluster.wanted import pod_need
from glm5_service.contracts.engine import EngineState
from glm5_service.contracts.staging import StagingState
from glm5_service.errors import SourceError

EVENTS_SHOWN = 5
# phases of an engine that does not run
ENDED = frozenset({"failed", "stopped"})


@dataclass(frozen=True)
class Fault:
    """How a container ended last, and the command that shows its log."""

    container: str
    exit_code: int
    reason: str
    message: str
    at: datetime | None
    log: str


@dataclass(frozen=True)
class PodStatus:
    """One pod, as Kubernetes and the pod itself report it. A stager is ready when it has staged."""

    name: str
    is_stager: bool
    node: str | None
    phase: str
    since: datetime | None
    restarts: int
    ready: bool
    waiting: str
    why_pending: tuple[str, ...]
    fault: Fault | None
    staging: StagingState | None
    engine: EngineState | None
    events: tuple[str, ...]


def read_status(cluster: Cluster, release: str) -> list[PodStatus]:
    """Return the status of every pod that serves or stages. Raises SourceError if there is none."""
    pods = cluster.pods(release)
    if not pods:
        raise SourceError(
            "no pod of the release",
            f"{release} in namespace {cluster.namespace}",
            expected="an installed release with at least one replica, or with a staging Job",
            remedy="See `helm list -A`.",
        )
    return [_pod_status(cluster, pod) for pod in pods]


def _pod_status(cluster: Cluster, pod: Pod) -> PodStatus:
    assert pod.metadata is not None
    assert pod.metadata.name is not None
    assert pod.spec is not None
    assert pod.status is not None
    name, status = pod.metadata.name, pod.status
    states = [*(status.initContainerStatuses or []), *(status.containerStatuses or [])]
    running = [state.name for state in states if state.state and state.state.running]
    container = next((c for c in ("metrics", "stage", "wait-for-model", "engine") if c in running), None)
    staging, engine = cluster.run_dir(name, container) if container else (None, None)
    if "engine" not in running and engine and engine.phase not in ENDED:
        engine = None  # engine.json is from an engine that was killed
    is_pending, is_stager = pod.spec.nodeName is None, _is_stager(pod)
    # Kubernetes calls a Job's pod ready while it works, because it has no probes
    answers = any(c.type == "Ready" and c.status == "True" for c in status.conditions or [])
    return PodStatus(
        name=name,
        is_stager=is_stager,
        node=pod.spec.nodeName,
        phase="Terminating" if pod.metadata.deletionTimestamp else status.phase or "Unknown",
        since=status.startTime or pod.metadata.creationTimestamp,
        restarts=sum(state.restartCount for state in states),
        ready=status.phase == "Succeeded" if is_stager else answers,
        waiting=_waiting(states),
        why_pending=tuple(_why_pending(cluster, pod)) if is_pending else (),
        fault=_last_fault(states, f"kubectl -n {pod.metadata.namespace} logs {name}"),
        staging=staging,
        engine=engine,
        events=tuple(_events(cluster, pod)),
    )


def _is_stager(pod: Pod) -> bool:
    """Whether a staging Job made the pod."""
    labels = (pod.metadata.labels if pod.metadata else None) or {}
    return labels.get("app.kubernetes.io/component") == "staging"


def _why_pending(cluster: Cluster, pod: Pod) -> list[str]:
    """Return the scheduler's message, then why the pod does not fit on each node, or why the nodes cannot be read."""
    assert pod.spec is not None
    conditions = (pod.status.conditions if pod.status else None) or []
    said = [c.message for c in conditions if c.type == "PodScheduled" and c.status == "False" and c.message]
    need = pod_need(pod.spec.to_dict())
    try:
        found = [f"{node.name}: {'; '.join(why)}" for node in cluster.nodes() if (why := why_not(node, need))]
    except SourceError as error:  # a role of one namespace may not list them
        found = [f"nodes cannot be looked at: {error}"]
    return [*(f"the scheduler says: {text}" for text in said), *found]


def _waiting(states: list[ContainerStatus]) -> str:
    """Return what the first waiting container waits for. A container that is being created does not count."""
    for state in states:
        waiting = state.state.waiting if state.state else None
        if waiting and waiting.reason not in (None, "PodInitializing", "ContainerCreating"):
            return f"{state.name}: {waiting.reason}" + (f", {waiting.message}" if waiting.message else "")
    return ""


def _last_fault(states: list[ContainerStatus], logs: str) -> Fault | None:
    """Return the latest failed end of a container, in this run or the one before. `logs` shows the pod's log.

    The kubelet stops an engine that hangs. That engine ends with 0, and its termination message says why.
    """
    ended: list[Fault] = []
    for state in states:
        for when, is_over in ((state.state, False), (state.lastState, True)):
            last = when.terminated if when else None
            if last and (last.exitCode or (is_over and last.message)):
                log = f"{logs} -c {state.name}{' --previous' if is_over else ''}"
                said = (last.message or "").strip()
                ended.append(Fault(state.name, last.exitCode, last.reason or "", said, last.finishedAt, log))
    return max(ended, key=lambda fault: fault.at or datetime.min.replace(tzinfo=UTC), default=None)


def _events(cluster: Cluster, pod: Pod) -> list[str]:
    try:
        return _event_texts(cluster.events_of(pod))[-EVENTS_SHOWN:]
    except SourceError as error:
        return [f"cannot be read: {error}"]


def _event_texts(events: list[Event]) -> list[str]:
    """Return one line for equal events, at the place of the last of them. `events` are oldest first."""
    counts: dict[tuple[str, str], int] = {}
    clocks: dict[tuple[str, str], str] = {}
    for event in events:
        key = (event.reason or "", " ".join((event.message or "").split()))
        counts[key] = counts.pop(key, 0) + _times(event)
        clocks[key] = _clock(event)
    return [
        f"{clocks[reason, message]} {reason}{f' (x{count})' if count > 1 else ''}: {message}"
        for (reason, message), count in counts.items()
    ]


def _times(event: Event) -> int:
    """Return how often an event was seen. Newer schedulers count in a series."""
    return (event.series.count if event.series else None) or event.count or 1


def _clock(event: Event) -> str:
    when = (event.series.lastObservedTime if event.series else None) or event.lastTimestamp or event.eventTime
    return when.astimezone(UTC).strftime("%H:%M:%S") if when else "--:--:--"
