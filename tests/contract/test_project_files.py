"""Files about the project itself: one version, pins that the update robot finds, commands that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
VERSIONED = (
    "VERSION",
    "CHANGELOG.md",
    "release/package",
    "release/version",
    "service/pyproject.toml",
    "service/glm5_service/__init__.py",
    "backend_plugin/pyproject.toml",
    "charts/glm5/Chart.yaml",
)


def run(*argv: str | Path, cwd: Path = ROOT, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in argv], cwd=cwd, input=stdin, capture_output=True, text=True, check=False
    )


def test_one_version() -> None:
    """Wheels, images and chart have the version of the file VERSION."""
    done = run("release/version")

    assert (done.returncode, done.stdout) == (0, "")
    assert f"\nversion: {VERSION}\nappVersion: {VERSION}\n" in (ROOT / "charts/glm5/Chart.yaml").read_text()
    assert "version=$(cat VERSION)" in (ROOT / "docker/build").read_text()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that hold the version, in a folder of their own."""
    for name in VERSIONED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_new_version_reaches_every_place(copy: Path) -> None:
    """Setting a version changes each file that has it, and dates the changelog's section."""
    assert run("release/version", "987.6.5", cwd=copy).returncode == 0

    assert run("release/version", cwd=copy).returncode == 0
    for name in VERSIONED:
        if not name.startswith("release/"):
            assert "987.6.5" in (copy / name).read_text(), name
    log = (copy / "CHANGELOG.md").read_text()
    assert re.search(r"## \[Unreleased\]\n\n## \[987\.6\.5\] - \d{4}-\d\d-\d\d\n", log)


def test_a_place_that_differs_is_named(copy: Path) -> None:
    """A version changed by hand in one place only is found, with the place and what to run."""
    chart = copy / "charts/glm5/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"\nversion: {VERSION}", "\nversion: 3.2.1"))

    done = run("release/version", cwd=copy)

    assert done.returncode == 1
    assert "charts/glm5/Chart.yaml" in done.stdout
    assert f"3.2.1; expected {VERSION}" in done.stdout


def test_a_version_that_is_none_changes_nothing(copy: Path) -> None:
    """A version that is not MAJOR.MINOR.PATCH is refused before anything is written."""
    done = run("release/version", "v1", cwd=copy)

    assert done.returncode == 1
    assert "'v1': expected MAJOR.MINOR.PATCH" in done.stderr
    assert all((copy / name).read_text() == (ROOT / name).read_text() for name in VERSIONED)


def test_a_release_refuses_what_is_not_ready(copy: Path) -> None:
    """Changes, a version without a dated section, and a tag of another commit are each refused; nothing is built."""

    def git(*argv: str) -> None:
        run("git", "-c", "user.name=x", "-c", "user.email=x@example.com", *argv, cwd=copy)

    def refusal() -> str:
        done = run("release/package", "--tag", cwd=copy)
        assert done.returncode == 1
        assert not (copy / "dist").exists()
        return done.stderr

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    (copy / "more").touch()
    assert "changes that are not committed" in refusal()
    (copy / "more").unlink()
    assert f"no section [{VERSION}] with a date" in refusal()
    run("release/version", "987.6.5", cwd=copy)
    git("commit", "-qam", "two")
    git("tag", "v987.6.5", "HEAD~1")
    assert "v987.6.5 is another commit" in refusal()


def test_update_robot_finds_every_pin() -> None:
    """Each pin of the images has a source that renovate.json's patterns read."""
    pins = (ROOT / "docker/pins.env").read_text()
    managers = json.loads((ROOT / "renovate.json").read_text())["customManagers"]
    found = {
        match["currentValue"]
        for manager in managers
        for pattern in manager["matchStrings"]
        for match in re.finditer(pattern.replace("(?<", "(?P<"), pins)
    }

    values = dict(line.split("=", 1) for line in pins.splitlines() if line and not line.startswith("#"))
    values.pop("USER_ID")  # no version
    assert found == {value.split("@")[0].rsplit(":", 1)[-1] for value in values.values()}


def test_sbom_tool_is_pinned_once() -> None:
    """Images and releases list their contents with the same version of the tool."""
    pins = (ROOT / "docker/pins.env").read_text()
    version = pins.split("CYCLONEDX_BOM=")[1].split()[0]

    assert f"\ncyclonedx-bom=={version}\n" in (ROOT / "requirements/release.txt").read_text()


@pytest.mark.parametrize(
    ("subject", "accepted"),
    [
        ("[docs] a changelog", True),
        ("[kernel] " + "x" * 63, True),
        ("[kernel] " + "x" * 64, False),
        ("a changelog", False),
        ("[misc] a changelog", False),
        ("[docs]a changelog", False),
        ("Merge branch 'main' into a branch whose name is long enough to pass seventy-two", True),
    ],
)
def test_commit_subject(subject: str, accepted: bool, tmp_path: Path) -> None:
    """A subject is `[area] what changed` in at most 72 characters; merges keep git's own words."""
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nbody of any length\n")

    assert (run(".ci/commit-subject", message).returncode == 0) == accepted
    assert (run(".ci/commit-subject", "-", stdin=f"{subject}\n").returncode == 0) == accepted


def test_workflow_runs_what_a_developer_runs() -> None:
    """The workflow's last step is .ci/run, and actions of others are pinned by commit."""
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    steps = yaml.safe_load(text)["jobs"]["ci"]["steps"]

    assert steps[-1] == {"run": ".ci/run"}
    uses = re.findall(r"uses: (\S+)", text)
    assert uses
    assert [action for action in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem
)
def test_issue_template(path: Path) -> None:
    """A form has a name, a description and fields with labels."""
    form = yaml.safe_load(path.read_text())

    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] and field["id"] for field in fields)


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_help_lists_every_target() -> None:
    """`make help` shows each target once, in a group, on a line that fits a terminal."""
    lines = run("make", "-s", "help").stdout.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]

    assert sorted(listed) == sorted(targets())
    assert max(map(len, lines)) <= 122
    assert sum(1 for line in lines if line and not line.startswith(" ")) >= 5


def test_switches_are_in_one_table() -> None:
    """Each variable that tests, lab or build scripts read from outside is in docs/testing.md, and no other is."""
    table = set(re.findall(r"^\| `([A-Z0-9_]+)` \|", (ROOT / "docs/testing.md").read_text(), re.MULTILINE))
    read = set()
    for path in (ROOT / "tests").rglob("*.py"):
        read |= set(re.findall(r'os\.environ\.get\(\s*"([A-Z0-9_]+)"', path.read_text()))
    for path in [*(ROOT / "tests/e2e/lab").iterdir(), ROOT / "requirements/install"]:
        if path.is_file():
            read |= set(re.findall(r"\$\{([A-Z][A-Z0-9_]+):-", path.read_text()))

    assert table == (read | READ_BY_ENGINE) - OWN
    assert {"RECORD_RESULTS", "GLM5_RECORD", "GLM5_E2E_KEEP"} <= table


# oneDNN and the plugin read it in the engine's processes; nothing in the tests does
READ_BY_ENGINE = {"ONEDNN_MAX_CPU_ISA"}
# set by a test for what it starts, or common to every program
OWN = {
    "FAKE_BACKEND",
    "FAKE_ENGINE",
    "GLM5_RUN_DIR",
    "HOME",
    "KUBECTL",
    "OUT",
    "SOURCE_DATE_EPOCH",
    "STORAGE_DRIVER",
    "TMPDIR",
}


def test_every_result_says_what_writes_it() -> None:
    """Each recorded file is in the table of results of docs/testing.md, and the table names no other."""
    section = (ROOT / "docs/testing.md").read_text().split("## Results\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    patterns = [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]
    results = {path.name for path in (ROOT / "tests/results").iterdir()}

    assert {name for name in results if not any(fnmatch(name, pattern) for pattern in patterns)} == set()
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in results)] == []
