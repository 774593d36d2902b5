"""Secrets: empty ones are refused, line ends are taken off, and no output of any command ever holds one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from glm5_service import cli, redact
from glm5_service.cluster.events import Watcher
from glm5_service.contracts.engine import EngineState
from glm5_service.contracts.termination import TerminationMessage
from glm5_service.engine.child import EngineProcess
from glm5_service.engine.command_line import engine_command
from glm5_service.errors import ExitCode, SettingsError, SourceError
from glm5_service.model.inspection import ModelFacts
from glm5_service.rundir import write
from glm5_service.settings import load
from glm5_service.settings.schema import leaves
from glm5_service.settings.secret import clean_secret
from glm5_service.settings.staging import Secret
from glm5_service.staging.sources.secrets import environment_keys, read_secret, registry_login
from glm5_service.supervise.health_process import HealthServer

SECRET = "sk-Geheim7c2f91"
KEY = "GLM5_ENGINE__API_KEY"
# what a secret looks like that was pasted or mounted wrongly
WRONG = {
    "two lines": f"{SECRET}\n{SECRET}",
    "byte order mark": f"\ufeff{SECRET}",
    "zero width space": f"{SECRET}\u200b",
    "letter": f"{SECRET}é",
    "blank": f"{SECRET} {SECRET}",
    "tab": f"\t{SECRET}",
}


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_forms", set())


class Command:
    """`glm5` in this process, with everything that it leaves behind."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.out, self._patch, self._capfd = folder / "out", monkeypatch, capfd
        self.out.mkdir()
        (self.out / "termination").touch()
        for name in [name for name in os.environ if name.startswith(("GLM5_", "AWS_"))]:
            monkeypatch.delenv(name)
        for path, value in {
            "run_dir": self.out / "run",
            "cache_dir": folder / "cache",
            "drain.termination_log": self.out / "termination",
            "staging.termination_log": self.out / "termination",
            "staging.target": self.out / "model",
            "staging.retries": 0,
            "staging.connect_seconds": 1,
            "staging.backoff_seconds": 0.01,
        }.items():
            monkeypatch.setenv(leaves()[path].env, str(value))

    def __call__(self, *argv: object, **environ: str) -> tuple[int, str]:
        """Exit code; and stdout, stderr and every file, such as engine.json and the termination message, in one text."""
        for name, value in environ.items():
            self._patch.setenv(name, value)
        code = cli.run([str(word) for word in argv])
        shown = self._capfd.readouterr()
        files = [path.read_text(errors="replace") for path in sorted(self.out.rglob("*")) if path.is_file()]
        return code, "".join([shown.out, shown.err, *files])


@pytest.fixture
def glm5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command, with a run directory and a termination message of its own."""
    return Command(tmp_path, monkeypatch, capfd)


def is_clean(text: str) -> bool:
    """Whether no half of the secret is in a text."""
    return SECRET not in text and SECRET[3:] not in text


@pytest.mark.parametrize("traceback", ["", "1"], ids=["plain", "traceback"])
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(
    "variable",
    [KEY, "GLM5_STAGING__HUB__TOKEN__VALUE", "GLM5_STAGING__HTTP__TOKEN__VALUE"],
)
def test_wrong_secret_of_the_environment(glm5: Command, variable: str, kind: str, traceback: str) -> None:
    """A secret that no header can carry ends every command as a wrong setting, which is named, and is not shown."""
    code, shown = glm5("config", GLM5_TRACEBACK=traceback, **{variable: WRONG[kind]})
    assert code == ExitCode.USAGE
    assert variable in shown
    assert is_clean(shown)


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_secret_of_a_file(glm5: Command, tmp_path: Path, kind: str) -> None:
    """A token's file that no header can carry ends staging with a sentence that names the file, everywhere it is told."""
    file = tmp_path / "token"
    file.write_text(WRONG[kind], encoding="utf-8")
    environ = {
        "GLM5_STAGING__HUB__TOKEN__FILE": str(file),
        "GLM5_STAGING__HUB__ENDPOINT": "http://127.0.0.1:9",
    }
    code, shown = glm5("stage", "hf://org/repo", GLM5_TRACEBACK="1", **environ)
    assert code == ExitCode.USAGE
    assert str(file) in shown
    assert is_clean(shown)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_aws_keys(name: str) -> None:
    """AWS keys lose their line end as all secrets do, and wrong ones are refused without being shown."""
    assert environment_keys({name: f"{SECRET}\n"}) == {name.lower(): SECRET}
    assert environment_keys({}) == {}
    for text in (*WRONG.values(), "", "\n"):
        with pytest.raises(SettingsError) as caught:
            environment_keys({name: text})
        assert name in str(caught.value)
        assert is_clean(str(caught.value))


YAML = {
    "not YAML": "engine: {{api_key: {secret}",
    "no colon": "engine:\n  api_key {secret}\n  port: 1",
    "unknown alias": "engine: {{api_key: *{secret}}}",
    "escape": 'engine: {{api_key: "\\q{secret}"}}',
    "section is text": "engine: {secret}",
    "token is text": "staging: {{hub: {{token: {secret}}}}}",
    "token is a key": "staging: {{hub: {{token: {{{secret}: }}}}}}",
    "key is a list": "engine: {{api_key: [{secret}]}}",
    "key twice": "staging: {{hub: {{token: {{{secret}: 1, {secret}: 2}}}}}}",
    "source with a login": "staging: {{source: 'https://user:{secret}@host/m.gguf'}}",
    "source with a token": "staging: {{source: 'https://{secret}@host/m.gguf'}}",
    "password with a slash": "staging: {{source: 'https://user:a/{secret}@host/m.gguf'}}",
    "proxy without host": "staging: {{http: {{proxy: 'http://user:{secret}@'}}}}",
    "endpoint of another scheme": "staging: {{hub: {{endpoint: 'ftp://user:{secret}@host'}}}}",
    "flag": "engine: {{extra_args: [--api-key, {secret}]}}",
    "flag joined": "engine: {{extra_args: '--api_key={secret}'}}",
    "flag of a wrong list": "engine: {{extra_args: [--api-key, {secret}, 5]}}",
}  # fmt: skip


@pytest.mark.parametrize("traceback", ["", "1"], ids=["plain", "traceback"])
@pytest.mark.parametrize("kind", YAML)
@pytest.mark.parametrize("command", ["config", "serve"])
def test_secret_in_a_wrong_settings_file(
    glm5: Command, tmp_path: Path, command: str, kind: str, traceback: str
) -> None:
    """No error about the settings file shows a line of it, or a value that may be a secret."""
    file = tmp_path / "glm5.yaml"
    file.write_text(YAML[kind].format(secret=SECRET))
    code, shown = glm5(command, "--config", file, GLM5_TRACEBACK=traceback)
    assert (code, is_clean(shown)) == (ExitCode.USAGE, True), shown


@pytest.mark.parametrize(
    "argv",
    [
        ["config", "--set", f"engine.api_key:{SECRET}"],
        ["config", "--set", f"engine.api_key=a {SECRET}"],
        ["serve", "/nowhere", "--", "--api-key", SECRET],
        ["serve", "/nowhere", "--", f"--api-key={SECRET}"],
        ["serve", "/nowhere", "--", "--hf_token", SECRET],
        ["serve", "/nowhere", "--set", f"engine.api_key={SECRET}"],
        ["preflight", f"/nowhere/{SECRET}/m", "--set", f"engine.api_key={SECRET}"],
        ["stage", f"https://user:{SECRET}@127.0.0.1:9/m.gguf"],
        [
            "stage",
            "http://127.0.0.1:9/m.gguf",
            "--set",
            f"staging.http.proxy=http://user:{SECRET}@127.0.0.1:9",
        ],
        ["stage", "http://127.0.0.1:9/m.gguf", "--set", f"staging.http.token.value={SECRET}"],
        ["gguf", "inspect", f"https://user:{SECRET}@host/m.gguf"],
    ],
    ids=" ".join,
)
def test_secret_of_the_command_line(glm5: Command, argv: list[str]) -> None:
    """No error repeats a secret of the command line: on stdout, stderr, in engine.json, staging.json or the message."""
    for traceback in ("", "1"):
        code, shown = glm5(*argv, GLM5_TRACEBACK=traceback)
        assert (code != 0, is_clean(shown)) == (True, True), shown


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_config_masks(glm5: Command, form: list[str]) -> None:
    """`glm5 config` masks secrets and the passwords of proxies, and shows the rest of them."""
    argv = [
        "--set",
        f"staging.http.proxy=http://user:{SECRET}@proxy:3128",
        "--set",
        f"engine.api_key={SECRET}",
    ]
    code, shown = glm5("config", *form, *argv)
    assert (code, is_clean(shown)) == (0, True)
    assert "http://**********@proxy:3128" in shown


def test_state_logs_and_messages_are_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A registered secret does not pass into engine.json, the termination message, /status, errors or the log."""
    import httpx

    from tests.support.serving import free_port

    clean_secret(SECRET)
    state = EngineState(
        phase="failed",
        since="2026-01-01T00:00:00Z",
        reason=f"it said {SECRET}",
        argv=["--x", SECRET],  # type: ignore[arg-type]
    )
    write(tmp_path / "engine.json", state)
    log = tmp_path / "termination"
    log.touch()
    TerminationMessage(sentence=f"it said {SECRET}").leave(log)
    shown = (tmp_path / "engine.json").read_text() + log.read_text()
    port = free_port()
    server = HealthServer(state, "127.0.0.1", port, 30)
    try:
        server.wait_until_listening()
        shown += httpx.get(f"http://127.0.0.1:{port}/status").text
    finally:
        server.stop()
    shown += str(list(Watcher(tmp_path).changes()))
    shown += str(SourceError("source refused", f"token {SECRET}", remedy=f"Change {SECRET}."))
    handler = logging.StreamHandler()
    handler.setFormatter(redact.RedactingFormatter("%(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError(f"bad header {SECRET!r}")
    except ValueError:
        logger.exception("it failed: %s", SECRET)
    shown += capsys.readouterr().err
    assert shown.count(redact.MASK) >= 9
    assert is_clean(shown)


def test_the_log_of_the_engine_is_masked(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A secret that vLLM itself logs is masked on its way to the container's log; all other bytes stay as they are."""
    clean_secret(SECRET)
    program = f"import sys; sys.stdout.buffer.write(b'args {SECRET} \\xff\\n')"
    lines: list[str] = []
    child = EngineProcess([sys.executable, "-c", program], {}, lines.append)
    assert asyncio.run(child.wait()) == 0
    child.sweep()
    assert capfdbinary.readouterr().out == b"args ********** \xff\n"
    assert len(lines) == 1


@pytest.mark.parametrize("text", ["", "\n", "\r\n", " "])
def test_empty_secrets_are_refused(tmp_path: Path, text: str) -> None:
    """An empty key would serve without one: it is refused from every place, and no secret at all is none."""
    for name in (KEY, "GLM5_STAGING__HUB__TOKEN__VALUE"):
        with pytest.raises(SettingsError, match="a secret that is not empty"):
            load(environ={name: text})
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(SettingsError, match="a secret that is not empty"):
        read_secret(Secret(file=file))
    assert load(environ={}).settings.engine.api_key is None
    assert read_secret(Secret()) is None


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n"])
def test_line_ends_are_taken_off(tmp_path: Path, ending: str) -> None:
    """`kubectl create secret --from-file` leaves a line end; it is no part of any secret."""
    settings = load(
        environ={KEY: SECRET + ending, "GLM5_STAGING__HTTP__TOKEN__VALUE": SECRET + ending}
    ).settings
    assert settings.engine.api_key is not None
    assert settings.engine.api_key.get_secret_value() == SECRET
    assert read_secret(settings.staging.http.token) == SECRET
    command = engine_command(settings, ModelFacts(path=Path("/m")), "cpu", None, "token", {})
    assert command.secrets["VLLM_API_KEY"] == SECRET
    assert is_clean(" ".join([*command.argv, *command.environment.values()]))
    file = tmp_path / "token"
    file.write_bytes((SECRET + ending).encode())
    assert read_secret(Secret(file=file)) == SECRET
    file.write_text(json.dumps({"auths": {"reg": {"username": "u", "password": SECRET + ending}}}))
    assert registry_login(file, "reg") == "dTpzay1HZWhlaW03YzJmOTE="


@pytest.mark.parametrize("value", ["", SECRET])
def test_key_that_only_vllm_knows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """VLLM_API_KEY beside no engine.api_key would lock the canary out, or open the API when it is empty."""
    from glm5_service.supervise.start import _refuse_foreign_key

    settings = load(environ={}).settings
    with pytest.raises(SettingsError, match="VLLM_API_KEY") as caught:
        _refuse_foreign_key(settings, {"VLLM_API_KEY": value})
    assert is_clean(str(caught.value))
    _refuse_foreign_key(load(environ={KEY: SECRET}).settings, {"VLLM_API_KEY": value})
    _refuse_foreign_key(settings, {})


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://user:pw@host/a", "https://**********@host/a"),
        ("https://token@host/a", "https://**********@host/a"),
        ("see https://u:p/w@host/a and more", "see https://**********@host/a and more"),
        ("hf://org/repo@main/x", "hf://org/repo@main/x"),
        ("oci://reg:5000/repo@sha256:00", "oci://reg:5000/repo@sha256:00"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("mail a@b", "mail a@b"),
    ],
)
def test_credentials_of_addresses(text: str, masked: str) -> None:
    """User and password of an address are masked; ports, revisions and digests stay."""
    assert redact.redact(text) == masked


def test_a_secret_is_found_in_every_form() -> None:
    """A registered secret is masked as it is, as repr, as JSON and as part of an address, whole or a line of it."""
    secret = 'se"cret/ü1234'
    redact.register(f"{secret}\n{secret}")
    forms: list[Any] = [secret, repr(secret), ascii(secret), json.dumps(secret), "se%22cret%2F%C3%BC1234"]
    assert [form for form in forms if "cret" in redact.redact(form)] == []
    assert os.environ.get("HOME", "x") == redact.redact(os.environ.get("HOME", "x"))
