"""`glm5 serve` and the revisions of a staged model: one start is about one of them, and nobody prunes it."""

from __future__ import annotations

import io
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_service.contracts.manifest import ModelSummary
from glm5_service.settings import Settings
from glm5_service.settings.staging import StagingSettings
from glm5_service.settings.tree import ModelSettings
from glm5_service.staging.command import run
from glm5_service.supervise.revision import held
from tests.support.glm5_command import PATIENCE_SECONDS, wait_for_json
from tests.support.serving import start_serving

SUMMARY = ModelSummary(
    architecture="glm-dsa", name="m", tensors=1, tensor_bytes=4, context_length=None, splits=1, types={},
    first_file="m.gguf",
)  # fmt: skip
Stage = Callable[[str], Path]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "glm-5"


@pytest.fixture
def stage(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Publishes a model with the given config.json, keeps no other revision, and gives the folder of the new one."""
    monkeypatch.setattr("glm5_service.staging.store.publish.check_structure", lambda *_: SUMMARY)
    monkeypatch.setattr("glm5_service.staging.store.inuse.BEAT_SECONDS", 0.02)
    source = tmp_path / "source"
    source.mkdir()
    (source / "m.gguf").write_text("good".ljust(4096))  # smaller ones are no GGUF

    def publish(config: str) -> Path:
        (source / "new").write_text(config)
        (source / "new").replace(source / "config.json")
        settings = StagingSettings(
            source=f"file://{source}", target=target, headroom_bytes=0, refresh=True, keep=1
        )
        run(settings, run_dir=tmp_path / "staging", out=io.StringIO())
        return (target / "current").resolve()

    return publish


def settings(path: Path, **others: Path) -> Settings:
    return Settings(model=ModelSettings(path=path, **others))


def test_engine_gets_one_revision_that_is_held_until_it_ends(
    stage: Stage, target: Path, tmp_path: Path
) -> None:
    """Model and tokenizer of the command lie in one revision, not behind a link that may be switched; it has a lease."""
    revision, current, run_dir = stage("{}"), target / "current", tmp_path / "run"
    pairs = ("engine.profile=cpu", "preflight.enabled=false", f"model.hf_folder={current}")
    serving = start_serving(current, run_dir, *pairs, fake=True, FAKE_ENGINE="obey")
    try:
        argv = wait_for_json(run_dir / "started.json", serving.process)["argv"]
        leases = [path.name.partition("~")[0] for path in (target / "in-use").glob("*.json")]
        serving.until(lambda: serving.engine_json()["phase"] != "preflight")
        serving.process.send_signal(signal.SIGTERM)
        code = serving.process.wait(PATIENCE_SECONDS)
    finally:
        serving.stop()

    assert (argv[0], argv[argv.index("--tokenizer") + 1]) == (str(revision / "m.gguf"), str(revision))
    assert str(current) not in " ".join(argv)
    assert leases == [revision.name]
    assert (code, list((target / "in-use").iterdir())) == (0, [])


def test_served_revision_outlives_a_new_one(stage: Stage, target: Path) -> None:
    """With `keep` 1 a new revision leaves the served one alone, until it is served no more."""
    served = stage("{}")
    with held(settings(target / "current")):
        assert stage("{ }") != served
        assert (served / "m.gguf").is_file()
    stage("{  }")

    assert not served.exists()


def test_every_path_of_the_model_is_of_the_held_revision(stage: Stage, target: Path) -> None:
    """A file below the link and a template beside it follow the revision; the same link is held once."""
    revision, current = stage("{}"), target / "current"
    given = settings(current / "m.gguf", hf_folder=current, chat_template=current / "chat_template.jinja")
    with held(given) as found:
        assert found.model == ModelSettings(
            path=revision / "m.gguf", hf_folder=revision, chat_template=revision / "chat_template.jinja"
        )
        assert len(list((target / "in-use").iterdir())) == 1


def test_volume_that_takes_no_lease_is_served_with_a_warning(
    stage: Stage, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a reader cannot write, the revision is served by its own path, and the log says that nothing keeps it."""
    revision = stage("{}")
    (target / "in-use").rmdir()
    (target / "in-use").touch()
    with caplog.at_level(logging.WARNING, "glm5"), held(settings(target / "current")) as found:
        assert found.model.path == revision

    assert f"revision {revision.name} is not held" in caplog.text


def test_what_was_not_staged_is_served_as_it_is_named(tmp_path: Path) -> None:
    """A file, a folder, a link called current without revisions, and one that leads nowhere stay as they are."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "current").symlink_to("plain")
    (tmp_path / "lost" / "revisions").mkdir(parents=True)
    (tmp_path / "lost" / "current").symlink_to("revisions/gone")
    for name in ("plain", "plain/m.gguf", "current", "current/m.gguf", "lost/current", "none"):
        with held(settings(tmp_path / name)) as found:
            assert found.model.path == tmp_path / name
