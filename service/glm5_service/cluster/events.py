"""Tells phase and staging changes of this pod as Kubernetes Events. Runs in the pod, beside the engine.

Reads the run directory only; a cluster that refuses an Event is logged once and does not matter.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Pod

from glm5_service.errors import SettingsError

POLL_SECONDS = 2.0
FAULTS = frozenset({"failed", "stalled"})
log = logging.getLogger("glm5.events")


@dataclass(frozen=True)
class Change:
    """One thing worth an Event."""

    reason: str
    message: str
    is_warning: bool


class Watcher:
    """Compares what the run directory says with what it said before."""

    def __init__(self, run_dir: Path) -> None:
        self._files = {"staging": run_dir / "staging.json", "engine": run_dir / "engine.json"}
        self._seen: dict[str, object] = {}

    def changes(self) -> Iterator[Change]:
        """What changed since the last call."""
        for part, path in self._files.items():
            state = _read(path)
            phase = state.get("phase")
            if phase is None or phase == self._seen.get(part):
                continue
            self._seen[part] = phase
            yield Change(
                f"{part.capitalize()}{str(phase).capitalize()}", _sentence(part, state), phase in FAULTS
            )


def _sentence(part: str, state: dict[str, Any]) -> str:
    if part == "staging":
        total = state.get("total_bytes", 0) / 1e9
        return str(state.get("message") or f"{state['phase']}, {total:.2f} GB of {state.get('source', '')}")
    remedy = state.get("remedy")
    return str(state.get("reason", "")) + (f"; next: {remedy}" if remedy else "")


def run(run_dir: Path) -> None:
    """Watch until told to stop; raises SettingsError outside of a pod."""
    name, namespace = os.environ.get("POD_NAME"), os.environ.get("POD_NAMESPACE")
    if not name or not namespace:
        raise SettingsError(
            "not in a pod",
            "POD_NAME and POD_NAMESPACE",
            expected="both set",
            remedy="The chart's events.enabled does.",
        )
    client = Client(namespace=namespace)
    watcher, reference = Watcher(run_dir), _reference(client, name)
    while True:
        for change in watcher.changes():
            _tell(client, reference, change)
        time.sleep(POLL_SECONDS)


def _reference(client: Client, name: str) -> ObjectReference:
    """This pod as Events name it; asks until the API server answers, and never ends the pod for it."""
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


def _tell(client: Client, pod: ObjectReference, change: Change) -> None:
    now = datetime.now(UTC)
    event = Event(
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
    try:
        client.create(event)
    except (ApiError, httpx2.HTTPError) as error:
        log.warning("event was not taken reason=%s error=%s", change.reason, error)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
