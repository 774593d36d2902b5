"""The scripts that run engines on a card: what they say when a run goes wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glm5_vllm.gguf.file.splits import open_model
from glm5_vllm.gguf.plan.checks import check_parallel
from glm5_vllm.gguf.plan.planner import plan_load
from tests.gpu import engine_check, serve_check
from tests.gpu.engine_run import EngineRun
from tests.gpu.engine_runs import COMPARED, GROUPS, MODELS, OURS
from tests.gpu.engine_summary import APART, compare, merge, origin, summarize
from tests.gpu.process import process_group
from tests.support.tiny_gguf import write_tiny

ROOT = Path(__file__).parents[3]
ATTESTED = {
    "device": "NVIDIA H200",
    "versions": {"torch": "2.14.0", "triton": "3.8.0", "vllm": "0.33.0", "glm5-vllm": "0.1.0"},
    "kernel_seconds": {"1": 1e-5},
    "layers": 3,
    "backend": OURS,
}


def answer(tokens: list[int], *steps: dict[str, float]) -> dict[str, Any]:
    return {"prompt_tokens": 7, "tokens": tokens, "logprobs": list(steps)}


def result(run: EngineRun, *outputs: dict[str, Any]) -> dict[str, Any]:
    told = {"backend": run.backend, "heads": run.heads, "model": "/there", "tokenizer": "", "memory": 0.28}
    ranks = [ATTESTED] * run.tensor_parallel
    return {"run": told, "start_seconds": 1.0, "outputs": list(outputs), "attestation": ranks}


LIKELY = answer([1, 2], {"1": -0.1, "3": -1.0}, {"2": -0.1})


def executed(codes: dict[str, int]) -> Callable[..., int]:
    """`execute` without an engine: exit codes by name, and an answer unless it is 1."""

    def execute(name: str, run: EngineRun, folder: Path, cards: str) -> int:
        code = codes.get(name, 0)
        if code != 1:
            (folder / f"{name}.json").write_text(json.dumps(result(run, LIKELY)))
        return code

    return execute


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards, models that need no writing, and an answer of transformers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(engine_check, "write_gguf", lambda folder, spec: (folder, folder))
    monkeypatch.setattr(
        engine_check, "against_transformers", lambda outputs, reference: [{"of": len(outputs)}]
    )


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize("failing", ["ours-gguf-wide", "ours-gguf-tp2-dcp2"])
def test_a_failed_run_fails_the_check(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one run fails the exit code says so, an answer of before is gone, and the summary has the others."""
    (tmp_path / f"{failing}.json").write_text(json.dumps(result(EngineRun(OURS, 8), LIKELY)))
    monkeypatch.setattr(engine_check, "execute", executed({failing: 1}))

    assert engine_check.main("gguf-parallel", tmp_path, ["0", "1"]) != 0

    summary = json.loads((tmp_path / "summary-gguf-parallel.json").read_text())
    assert summary["failed"] == {failing: 1}
    assert summary["runs"].keys() == GROUPS["gguf-parallel"].keys() - {failing}


@pytest.mark.usefixtures("cards")
def test_a_whole_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every run ends well so does the check, and its summary says where it comes from."""
    monkeypatch.setattr(engine_check, "execute", executed({}))

    assert engine_check.main("gguf-parallel", tmp_path, ["0", "1"]) == 0

    summary = json.loads((tmp_path / "summary-gguf-parallel.json").read_text())
    assert summary["hardware"] == "2 x NVIDIA H200"
    assert summary["versions"]["vllm"] == "0.33.0"
    assert summary["command"].endswith("engine_check gguf-parallel FOLDER 0 1")
    assert summary["with_float32_transformers"] == {n: [{"of": 1}] for n in GROUPS["gguf-parallel"]}
    assert "ours-gguf-tp2-dcp2 with ours-gguf-wide" in summary["comparisons"]
    assert summary["failed"] == {}


@pytest.mark.usefixtures("cards")
def test_the_summary_outlives_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engines said is written before transformers is asked, on the cards that the engines had."""

    def out_of_memory(*_: object) -> None:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        raise MemoryError

    monkeypatch.setattr(engine_check, "execute", executed({}))
    monkeypatch.setattr(engine_check, "against_transformers", out_of_memory)

    with pytest.raises(MemoryError):
        engine_check.main("gguf-iq", tmp_path, ["1"])

    assert "ours-gguf-iq" in json.loads((tmp_path / "summary-gguf-iq.json").read_text())["runs"]


@pytest.mark.parametrize(("group", "named", "there"), [("gguf-parallel", ["0"], 1), ("gguf", ["0", "1"], 1)])
def test_missing_cards(
    group: str, named: list[str], there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too few cards the check ends before it writes anything, with one sentence."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)

    with pytest.raises(
        SystemExit, match=rf"^group {group} wants 2 cards and 1 of those named \(0.*\) are there: "
    ):
        engine_check.main(group, tmp_path / "new", named)

    assert not (tmp_path / "new").exists()


def script(path: Path, lines: str) -> str:
    """An executable that stands for Python."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


HANGS = "sleep 300 &\necho $!\nwait"


def wait_until(true: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def gone(log: Path) -> bool:
    """Whether the process whose id stands in the log has ended; a killed one may take a moment."""
    state = Path(f"/proc/{int(log.read_text())}/stat")

    def ended() -> bool:
        try:
            # a dead child that nobody waits for is a Z
            return state.read_text().split()[2] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    return wait_until(ended)


def test_a_hanging_run_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run past its time is ended with its children and has failed."""
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", HANGS))

    assert engine_check.execute("hangs", EngineRun(OURS, 8), tmp_path, "0", seconds=3) != 0

    assert gone(tmp_path / "hangs.log")


def test_a_runs_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's exit code is handed on, and a child that it left behind is ended."""
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", "sleep 300 &\necho $!\nexit 3"))

    assert engine_check.execute("fails", EngineRun(OURS, 8), tmp_path, "0") == 3

    assert gone(tmp_path / "fails.log")


def test_termination_ends_the_runs(tmp_path: Path) -> None:
    """A check that is told to end takes its engines with it."""
    log = tmp_path / "log"
    code = (
        "import os, pathlib, tests.gpu.process as p\n"
        "p.end_groups_on_termination()\n"
        f"command, log = ['sh', '-c', {HANGS!r}], pathlib.Path({str(log)!r})\n"
        "with p.process_group(command, log, dict(os.environ)) as process:\n"
        "    print('started', flush=True)\n"
        "    process.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as check:
        assert check.stdout is not None
        assert check.stdout.readline() == "started\n"
        wait_until(lambda: log.read_text().endswith("\n"))
        check.terminate()

        assert check.wait(30) == 128 + signal.SIGTERM

    assert gone(log)


def test_answers_with_nothing_in_common() -> None:
    """Answers without a shared top token are as far apart as can be, and the comparison is there and is JSON."""
    other = answer([9, 2], {"9": -0.1, "8": -1.0}, {"2": -0.1})

    compared = compare({"outputs": [LIKELY]}, {"outputs": [other]})

    assert not compared["tokens_equal"]
    assert compared["largest_logprob_difference"] == APART
    json.dumps(compared, allow_nan=False)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_answers_that_are_no_numbers(value: float) -> None:
    """A log probability that is no number is as far apart as can be, wherever it stands."""
    for steps in ([{"1": value, "3": -1.0}, {"2": -0.1}], [{"1": -0.1, "3": -1.0}, {"2": value}]):
        compared = compare({"outputs": [answer([1, 2], *steps)]}, {"outputs": [LIKELY]})

        assert compared["largest_logprob_difference"] == APART
        json.dumps(compared, allow_nan=False)


def test_a_step_with_nothing_in_common() -> None:
    """A step whose top tokens are all others counts, whatever the steps before it share."""
    other = answer([1, 9], {"1": -0.1, "3": -1.0}, {"9": -0.1})

    assert compare({"outputs": [LIKELY]}, {"outputs": [other]})["largest_logprob_difference"] == APART


def test_equal_and_near_answers() -> None:
    """Of equal tokens the largest difference is given, and of another token stock's margin there."""
    near = answer([1, 4], {"1": -0.15, "3": -1.0}, {"4": -0.25, "2": -0.125})
    stock = answer([1, 2], {"1": -0.1, "3": -1.0}, {"2": -0.125, "4": -0.25})

    (entry,) = compare({"outputs": [near]}, {"outputs": [stock]})["prompts"]

    assert entry["equal_tokens"] == 1
    assert entry["largest_logprob_difference"] == 0.05
    assert entry["margin_there"] == 0.125


def test_every_run_has_its_own_name() -> None:
    """No two groups name a run alike, and a run is compared with one that loads the same model."""
    groups = {name: group for group, runs in GROUPS.items() for name in runs}

    assert len(groups) == sum(len(runs) for runs in GROUPS.values())
    for name, other in COMPARED.items():
        assert MODELS.get(groups[name]) == MODELS.get(groups[other]), name
        assert GROUPS[groups[name]][name].heads == GROUPS[groups[other]][other].heads, name


@pytest.mark.parametrize("group", MODELS)
def test_the_ranks_can_share_a_groups_model(group: str, tmp_path: Path) -> None:
    """A group's GGUF can be cut for the ranks of each of its runs: whole blocks of columns, whole heads."""
    model = write_tiny(tmp_path, MODELS[group])
    planned = plan_load(open_model(model.path)).tensors

    for run in GROUPS[group].values():
        check_parallel(
            planned, SimpleNamespace(tensor_parallel_size=run.tensor_parallel, enable_expert_parallel=False)
        )
        assert run.heads == MODELS[group].heads
        assert run.heads % run.tensor_parallel == 0
        assert run.tensor_parallel % run.context_parallel == 0


def recorded() -> dict[str, Any]:
    old = {"run": {"heads": 8}, "start_seconds": 9.0}
    return {
        **origin([ATTESTED], "python -m tests.gpu.engine_check gguf FOLDER"),
        "runs": {"ours-gguf": old},
        "comparisons": {"ours-gguf with stock-gguf": {"tokens_equal": True}},
        "with_float32_transformers": {"ours-gguf": [1]},
    }


@pytest.mark.usefixtures("cards")
def test_merge_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary adds its runs that ended well to the recorded file, in which what was there stays."""
    (tmp_path / "ours-gguf.json").write_text(json.dumps(result(EngineRun(OURS, 8), LIKELY)))
    monkeypatch.setattr(engine_check, "execute", executed({"ours-gguf-tp2-dcp2": -9}))
    engine_check.main("gguf-parallel", tmp_path, ["0", "1"])
    summary = json.loads((tmp_path / "summary-gguf-parallel.json").read_text())

    merged = merge(recorded(), summary)

    assert merged["runs"]["ours-gguf"]["start_seconds"] == 9.0
    assert list(merged["runs"]) == ["ours-gguf", "ours-gguf-tp2", "ours-gguf-wide"]
    assert list(merged["comparisons"]) == ["ours-gguf with stock-gguf", "ours-gguf-tp2 with ours-gguf-wide"]
    told = merged["with_float32_transformers"]
    assert told == {"ours-gguf": [1], "ours-gguf-tp2": [{"of": 1}], "ours-gguf-wide": [{"of": 1}]}
    assert merged["hardware"] == "2 x NVIDIA H200"
    assert merged["command"].count("engine_check") == 2
    assert merged["runs"]["ours-gguf-tp2"] == {
        "run": {"backend": OURS, "heads": 8}, "start_seconds": 1.0, "kernel_seconds": {"1": 1e-5}, "layers": 3,
    }  # fmt: skip
    assert merge(merged, summary) == merged


def test_merge_refuses_another_setting(tmp_path: Path) -> None:
    """A summary of another card or other versions, or of no run at all, is refused with both values."""
    (tmp_path / "ours-8.json").write_text(json.dumps(result(EngineRun(OURS, 8), LIKELY)))
    summary = {**summarize(tmp_path, "command"), "failed": {}}

    with pytest.raises(
        SystemExit, match="card of the summary is NVIDIA B200, of the recorded file NVIDIA H200"
    ):
        merge(recorded(), {**summary, "hardware": "NVIDIA B200"})
    with pytest.raises(SystemExit, match=r"vllm of the summary is 0\.34\.0, of the recorded file 0\.33\.0"):
        merge(recorded(), {**summary, "versions": {**summary["versions"], "vllm": "0.34.0"}})
    with pytest.raises(SystemExit, match="card of the summary is unknown"):
        merge(recorded(), {**summarize(tmp_path / "none", "command"), "failed": {}})


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], int]:
    """serve_check with a script in place of each server; what a healthy one attests is there when it answers."""
    monkeypatch.setattr(serve_check, "START_SECONDS", 3)
    monkeypatch.setattr(serve_check, "END_SECONDS", 0.5)
    monkeypatch.setattr(serve_check, "write_model", lambda folder, heads: None)
    monkeypatch.setattr(serve_check, "write_tokenizer", lambda folder: None)
    monkeypatch.setattr(
        serve_check, "wait_healthy", lambda process, port: wait_until((tmp_path / "served/ready").exists)
    )
    monkeypatch.setattr(serve_check, "ask", lambda port: {"usage": {"completion_tokens": 16}})
    attest = f"mkdir -p $GLM5_RUN_DIR/attention; echo '{json.dumps(ATTESTED)}' > $GLM5_RUN_DIR/attention/rank-0.json"

    def check(refused: str, healthy: str) -> int:
        healthy = healthy.replace("ATTEST", attest).replace("READY", "touch $GLM5_RUN_DIR/ready")
        lines = f"case $GLM5_RUN_DIR in *refused)\n{refused}\n;; *)\n{healthy}\n;; esac"
        monkeypatch.setattr(sys, "executable", script(tmp_path / "python", lines))
        return serve_check.main(tmp_path)

    return check


REFUSES = 'echo "ValueError: Selected backend X is not valid"; exit 1'


def test_a_server_that_takes_long_to_end(served: Callable[[str, str], int], tmp_path: Path) -> None:
    """The answer is kept though the server does not end when told to, says where it comes from, and can be got again."""
    for _ in range(2):
        assert served(REFUSES, "trap '' TERM\nATTEST\nsleep 300 &\necho $!\nREADY\nwait") == 0

        found = json.loads((tmp_path / "serve.json").read_text())
        assert found["hardware"] == "NVIDIA H200"
        assert found["versions"] == ATTESTED["versions"]
        assert found["command"]
        assert found["refused_exit_code"] == 1
        assert found["refused_reason"] == "Selected backend X is not valid"
        assert gone(tmp_path / "served.log")


def test_a_refusal_that_hangs(served: Callable[[str, str], int], tmp_path: Path) -> None:
    """A server that neither runs nor ends is ended and told of; the other one is still asked."""
    assert served(HANGS, "ATTEST\nREADY\nsleep 300") != 0

    found = json.loads((tmp_path / "serve.json").read_text())
    assert found["refused_exit_code"] is None
    assert found["completion_tokens"] == 16
    assert gone(tmp_path / "refused.log")


def test_no_attestation_of_before(served: Callable[[str, str], int], tmp_path: Path) -> None:
    """A server that attests nothing does not pass with what an earlier one attested."""
    served(REFUSES, "ATTEST\nREADY\nsleep 300")

    with pytest.raises(FileNotFoundError):
        served(REFUSES, "READY\nsleep 300")

    assert not (tmp_path / "serve.json").exists()


def test_a_process_group_is_over_after_an_error(tmp_path: Path) -> None:
    """An error between start and end leaves nothing behind."""
    log = tmp_path / "log"

    def fail() -> None:
        with process_group(["sh", "-c", HANGS], log, dict(os.environ)):
            wait_until(lambda: log.read_text().endswith("\n"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert gone(log)
