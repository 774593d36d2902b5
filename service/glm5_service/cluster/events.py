"""Reports phase changes of engine and staging as Kubernetes Events. Runs in the pod, beside the engine.

Reads only the run directory. If the API server refuses an Event, this is logged and the Event is dropped. If the API
server does not answer, the Event is sent again. Events keep their order.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx2
from lightkube import ApiError, Client
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Pod
from pydantic import ValidationError

from glm5_service.contracts.engine import EngineState
from glm5_service.contracts.environment import PodEnvironment
from glm5_service.contracts.staging import StagingState
from glm5_service.errors import SettingsError
from glm5_service.rundir import RunDir, read

POLL_SECONDS = 2.0
# after a long outage only the latest Events matter
UNTOLD_KEPT = 100
TOO_MANY_REQUESTS = 429
FAULTS = frozenset({"failed", "stalled"})
log = logging.getLogger("glm5.events")


@dataclass(frozen=True)
class Change:
    """A change of phase to report as an Event."""

    reason: str
    message: str
    is_warning: bool


class Watcher:
    """Compares the run directory with its state at the last look."""

    def __init__(self, run_dir: Path) -> None:
        self._files = RunDir(run_dir)
        self._seen: dict[str, object] = {}

    def changes(self) -> Iterator[Change]:
        """Yield each change since the last call."""
        for part, phase, sentence in self._found():
            if phase == self._seen.get(part):
                continue
            self._seen[part] = phase
            yield Change(f"{part}{phase.capitalize()}", sentence, phase in FAULTS)

    def _found(self) -> Iterator[tuple[str, str, str]]:
        """Yield each part of the pod with its phase and a sentence."""
        if staging := read(self._files.staging, StagingState):
            yield "Staging", staging.phase, _staging_sentence(staging)
        if engine := read(self._files.engine, EngineState):
            yield "Engine", engine.phase, _engine_sentence(engine)


class Teller:
    """Queue of Events for the API server, oldest first. Refused Events are dropped. All others are retried."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._untold: deque[Event] = deque(maxlen=UNTOLD_KEPT)
        self._said = ""

    def add(self, event: Event) -> None:
        """Add an Event to the queue."""
        self._untold.append(event)

    def tell(self) -> None:
        """Send the Events in order. Stop when the API server does not answer."""
        while self._untold:
            event = self._untold[0]
            try:
                self._client.create(event)
            except (ApiError, httpx2.HTTPError) as error:
                is_refused = _is_refusal(error)
                self._say(
                    f"event was {'refused' if is_refused else 'not taken yet'} reason={event.reason} error={error}"
                )
                if not is_refused:
                    return
            self._untold.popleft()

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            log.warning("%s", sentence)


def _is_refusal(error: Exception) -> bool:
    """Whether the API server would give the same answer again."""
    code = error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else 0
    return 400 <= code < 500 and code != TOO_MANY_REQUESTS


def _staging_sentence(state: StagingState) -> str:
    return state.message or f"{state.phase}, {state.total_bytes / 1e9:.2f} GB of {state.source}"


def _engine_sentence(state: EngineState) -> str:
    return state.reason + (f"; next: {state.remedy}" if state.remedy else "")


def run(run_dir: Path) -> None:
    """Watch until told to stop. Raises SettingsError outside of a pod."""
    try:
        pod = PodEnvironment.model_validate(os.environ)
    except ValidationError as error:
        raise SettingsError(
            "not in a pod",
            "POD_NAME and POD_NAMESPACE",
            expected="both set",
            remedy="Set events.enabled in the chart's values.",
        ) from error
    client = Client(namespace=pod.namespace)
    watcher, reference, teller = Watcher(run_dir), _reference(client, pod.name), Teller(client)
    while True:
        for change in watcher.changes():
            teller.add(_event(reference, change))
        teller.tell()
        time.sleep(POLL_SECONDS)


def _reference(client: Client, name: str) -> ObjectReference:
    """Return the reference to this pod for Events. Asks until the API server answers."""
    said = ""
    while True:
        try:
            metadata = client.get(Pod, name).metadata
            break
        except (ApiError, httpx2.HTTPError) as error:
            if said != str(error):
                said = str(error)
                log.warning("this pod cannot be read, asked again until it can error=%s", error)
            time.sleep(POLL_SECONDS)
    assert metadata is not None
    return ObjectReference(
        apiVersion="v1", kind="Pod", name=name, namespace=metadata.namespace, uid=metadata.uid
    )


def _event(pod: ObjectReference, change: Change) -> Event:
    """Return the Event for a change that was seen just now."""
    now = datetime.now(UTC)
    return Event(
        metadata=ObjectMeta(generateName=f"{pod.name}.", namespace=pod.namespace),
        involvedObject=pod,
        reason=change.reason,
        message=change.message[:1024],
        type="Warning" if change.is_warning else "Normal",
        firstTimestamp=now,
        lastTimestamp=now,
        count=1,
        source=EventSource(component="glm5"),
    )
