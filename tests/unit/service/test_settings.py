"""Settings: precedence, origins, and refusal of what is unknown or wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_service.errors import SettingsError
from glm5_service.settings import Given, load
from glm5_service.settings.table import shown


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return path


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    """The highest layer that names a setting decides its value and its origin."""
    config = _file(tmp_path, "engine: {port: 1, host: file, dtype: float16}")
    environ = {"GLM5_ENGINE__PORT": "2", "GLM5_ENGINE__HOST": "env"}
    loaded = load({"engine.port": Given("3", "flag --port")}, config=config, environ=environ)
    engine = loaded.settings.engine
    assert (engine.port, engine.host, engine.dtype, engine.max_num_seqs) == (3, "env", "float16", 16)
    assert {path: loaded.origins[f"engine.{path}"] for path in ("port", "host", "dtype", "max_num_seqs")} == {
        "port": "flag --port",
        "host": "env GLM5_ENGINE__HOST",
        "dtype": f"file {config}",
        "max_num_seqs": "default",
    }


def test_config_file_is_named_by_environment(tmp_path: Path) -> None:
    """GLM5_CONFIG names the file where no --config does."""
    config = _file(tmp_path, "engine: {port: 9}")
    assert load(environ={"GLM5_CONFIG": str(config)}).settings.engine.port == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engine: {prot: 1}", ["unknown key", "engine.prot", "Did you mean engine.port?"]),
        ("engin: {port: 1}", ["unknown key", "engin", "Did you mean engine?"]),
        ("engine: 5", ["section engine", "int", "a map of settings"]),
        ("engine: {port: [}", ["not YAML"]),
        ("engine: {port: 1, port: 2}", ["key given twice: port"]),
        ("[1, 2]", ["a map of sections, not a list"]),
        ("engine: {port: 99999}", ["setting engine.port (file", "99999", "less than or equal to 65535"]),
        ("engine: {dtype: fp4}", ["engine.dtype", "'fp4'", "'auto', 'float16', 'bfloat16' or 'float32'"]),
        ("engine: {max_num_seqs: 0, port: 0}", ["1 more settings are wrong"]),
    ],
)
def test_wrong_files_are_refused_with_a_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    """A wrong file names the file or setting, the value and what was expected."""
    with pytest.raises(SettingsError) as caught:
        load(config=_file(tmp_path, text), environ={})
    assert [word for word in words if word not in str(caught.value)] == []


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A settings file that was named but is not there is an error, not an empty layer."""
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        load(config=tmp_path / "none.yaml", environ={})


def test_unknown_variable_is_refused() -> None:
    """A GLM5_ variable that names no setting is an error that suggests the nearest one."""
    with pytest.raises(SettingsError, match=r"GLM5_ENGINE__PROT.*Did you mean GLM5_ENGINE__PORT"):
        load(environ={"GLM5_ENGINE__PROT": "1"})


@pytest.mark.parametrize(
    "name",
    [
        "GLM5_SERVICE_HOST",
        "GLM5_SERVICE_PORT_API",
        "GLM5_PORT",
        "GLM5_PORT_8000_TCP_ADDR",
        "GLM5_STAGE_PORT_80_TCP",
    ],
)
def test_kubernetes_service_links_are_no_settings(name: str) -> None:
    """Variables that Kubernetes adds for Services named glm5* do not stop the start."""
    assert load(environ={name: "tcp://10.0.0.1:80"}).settings.engine.port == 8000


@pytest.mark.parametrize("text", ['["--a", "b c"]', "--a 'b c'"])
def test_lists_are_given_as_json_or_words(text: str) -> None:
    """A list in the environment is a JSON list or shell words."""
    loaded = load(environ={"GLM5_ENGINE__EXTRA_ARGS": text})
    assert loaded.settings.engine.extra_args == ["--a", "b c"]


def test_secrets_are_masked() -> None:
    """Neither the list of settings nor an error shows a secret."""
    loaded = load(environ={"GLM5_ENGINE__API_KEY": "hunter2"})
    row = next(row for row in shown(loaded) if row.name == "engine.api_key")
    assert (row.value, row.origin) == ("**********", "env GLM5_ENGINE__API_KEY")
    with pytest.raises(SettingsError) as caught:
        load({"engine.api_key": Given(["hunter2"], "flag --set")}, environ={})
    assert "hunter2" not in str(caught.value)


def test_every_setting_says_what_it_is() -> None:
    """Each setting carries a sentence, which is what `glm5 config --json` and the reference show."""
    assert [row.name for row in shown(load(environ={})) if not row.about.endswith(".")] == []
