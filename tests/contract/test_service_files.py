"""What one process of the service really writes is what another reads: no key unknown, none missing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft7Validator
from pydantic import BaseModel, TypeAdapter

from glm5_service.api.gate import Gate
from glm5_service.api.policy import DRAIN_PATH, INTERNAL_HEADER, REQUESTS_PATH, GatePolicy
from glm5_service.cli import cli
from glm5_service.contracts import generate
from glm5_service.contracts.command_lines import HealthServerArguments
from glm5_service.contracts.engine import DrainOutcome, EngineState
from glm5_service.contracts.environment import PodEnvironment
from glm5_service.contracts.gate_counts import GateCounts
from glm5_service.contracts.staging import StagingState
from glm5_service.contracts.termination import TerminationMessage
from glm5_service.rundir import RunDir, write
from glm5_service.settings.operation import DrainSettings
from glm5_service.settings.schema import leaves
from glm5_service.staging.reasons import Reason, StagingError
from glm5_service.staging.report import write_termination
from glm5_service.supervise import drain
from glm5_service.supervise.state import Report
from glm5_service.variables import CONFIG
from glm5_service.watch.health import Facts, Limits, assess
from glm5_service.watch.logwatch import LogFacts
from glm5_service.watch.observe import Observer
from tests.support.staging.states import FETCHING

GOLDEN = sorted((Path(__file__).parents[1] / "chart" / "golden").glob("*.yaml"))
# set in the chart's containers for libraries, not for the service
FOREIGN = ("AWS_", "HF_", "HOME", "NCCL_", "VLLM_", "XDG_", "NO_PROXY", "HTTP")


def exactly(text: bytes, model: type[BaseModel]) -> Any:
    """The document, valid by its schema: every key is there and no other."""
    name = next(name for name, (each, _) in generate.SCHEMAS.items() if each is model)
    document = json.loads(text)
    Draft7Validator(json.loads((generate.FOLDER / f"{name}.json").read_text())).validate(document)
    assert json.loads(model.model_validate(document).model_dump_json(by_alias=True)) == document
    return document


def test_engine_json(tmp_path: Path) -> None:
    """The supervisor's state is whole from the first moment."""
    limits = Limits(120, 600, 3)
    identity = EngineState(phase="starting", since=datetime.now(UTC), reason="")
    facts = Facts(1.0)
    state = Report(identity).state(
        assess(facts, limits), Observer(facts, limits), LogFacts(), 1, datetime.now(UTC)
    )
    write(RunDir(tmp_path).engine, state)
    assert exactly(RunDir(tmp_path).engine.read_bytes(), EngineState)["phase"] == "starting"


def test_staging_json(tmp_path: Path) -> None:
    """The stager's state is valid by its schema; test_staging_files runs the stager itself."""
    write(RunDir(tmp_path).staging, FETCHING)
    exactly(RunDir(tmp_path).staging.read_bytes(), StagingState)


def test_drain_json_and_its_message(tmp_path: Path) -> None:
    """A drain leaves its outcome for the sidecar and a sentence for Kubernetes."""
    log = tmp_path / "termination-log"
    log.touch()
    outcome = DrainOutcome(finished=2, aborted=1, refused=0, seconds=1.5, reason="the limit was reached")
    drain.record(outcome, RunDir(tmp_path), DrainSettings(termination_log=log))
    exactly(RunDir(tmp_path).drain.read_bytes(), DrainOutcome)
    told = TerminationMessage.of(log.read_text())
    assert (told.reason, told.sentence) == (
        None,
        "drained: 2 finished, 1 aborted in 1.5 s; the limit was reached",
    )


@pytest.mark.parametrize("reason", Reason)
def test_termination_message_of_a_stager(tmp_path: Path, reason: Reason) -> None:
    """The reason can be read back from a failed stager's message, whatever its sentence holds."""
    log = tmp_path / "termination-log"
    log.touch()
    error = StagingError(reason, "source refused", "https://host/a: 403")
    write_termination(log, error)
    assert TerminationMessage.of(log.read_text()) == TerminationMessage(reason=reason, sentence=str(error))


def test_gate_counts() -> None:
    """The gate answers the supervisor with the counts that it reads, when asked and when told to drain."""
    gate = Gate(_nobody, GatePolicy("token"))
    for method, path, draining in [("GET", REQUESTS_PATH, False), ("POST", DRAIN_PATH, True)]:
        body = asyncio.run(_ask(gate, method, path))
        assert set(json.loads(body)) == {field.name for field in fields(GateCounts)}
        assert TypeAdapter(GateCounts).validate_json(body).draining == draining


def test_gate_policy() -> None:
    """The policy reaches the API server's process whole, and one with an unknown key is refused."""
    policy = GatePolicy("token", ("GET:/v1/x",), 5, 6)
    assert GatePolicy.from_json(policy.to_json()) == policy
    with pytest.raises(TypeError):
        GatePolicy.from_json(json.dumps({**json.loads(policy.to_json()), "token_": ""}))


def test_health_server_arguments() -> None:
    """What the supervisor starts the health server with is what that reads; one word more or less is refused."""
    arguments = HealthServerArguments(descriptor=7, host="::", port=8081, stale_seconds=30.5)
    assert HealthServerArguments.of(arguments.argv()) == arguments
    for wrong in (arguments.argv()[1:], [*arguments.argv(), "1"]):
        with pytest.raises(ValueError, match="zip"):
            HealthServerArguments.of(wrong)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_chart_speaks_to_the_service(path: Path) -> None:
    """Every container of ours is started with a command line that the service parses and variables that it knows."""
    settings = {leaf.env for leaf in leaves().values()}
    known = settings | {CONFIG} | {str(field.alias) for field in PodEnvironment.model_fields.values()}
    found = 0
    for container in _containers(list(yaml.safe_load_all(path.read_text()))):
        # the chart's test runs a script of its own on our image
        if "/glm5-" not in container["image"] or "router" in container["image"] or "command" in container:
            continue
        names = {variable["name"] for variable in container.get("env", [])}
        assert {name for name in names - known if not name.startswith(FOREIGN)} == set()
        found += 1
        _parse(cli, container["args"])
    assert found


def _containers(node: Any) -> list[dict[str, Any]]:
    """Every container in a tree of objects."""
    if isinstance(node, list):
        return [found for item in node for found in _containers(item)]
    if not isinstance(node, dict):
        return []
    own = [*node.get("containers", []), *(node.get("initContainers") or [])] if "containers" in node else []
    return own + [found for value in node.values() for found in _containers(value)]


def _parse(command: click.Command, words: list[str]) -> None:
    """Raise click.UsageError unless the words are a command line of `command`; runs nothing."""
    context = command.make_context("glm5", list(words))
    if isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context.protected_args, *context.args])
        assert found is not None, name
        _parse(found, rest)


async def _nobody(*_: Any) -> None:
    raise AssertionError


async def _ask(gate: Gate, method: str, path: str) -> bytes:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    headers = [(INTERNAL_HEADER.encode(), b"token")]
    await gate({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    return bytes(sent[-1]["body"])
