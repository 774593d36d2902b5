"""What a machine can check of the pages: links, paths, commands, hosts."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("build", "dist", "node_modules")
# folders whose paths a page may name
TOP = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in GENERATED)
NAMED = re.compile(
    rf"(?<![\w/.:$-])((?:{'|'.join(re.escape(name) for name in TOP if name[0] != '.')}|\.ci|\.github)/[\w./*-]+)"
)
# a Service called glm5, as kubectl names it
KUBECTL_NAMES = {"service/glm5"}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# roots of absolute paths that exist in a container, on a node or in an address of the API; no developer's machine
ROOTS = (
    *("/dev", "/etc", "/mnt", "/models", "/opt", "/proc", "/run", "/spec", "/tmp", "/usr", "/var"),
    *("/health", "/healthz", "/livez", "/metrics", "/readyz", "/startupz", "/status", "/v1", "/version"),
)
HOSTS = {
    "huggingface.co",
    "keepachangelog.com",
    "semver.org",
    "www.contributor-covenant.org",
    "github.com",
    "openai.com",
}


def pages() -> list[Path]:
    """Every Markdown page of the tree."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(
            part in GENERATED or (part[0] == "." and part != ".github")
            for part in path.relative_to(ROOT).parts
        )
    )


each_page = pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))


def without_code(text: str) -> str:
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as Git servers make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        slug = base = plain.strip().replace(" ", "-")
        count = 0
        while slug in found:
            count += 1
            slug = f"{base}-{count}"
        found.add(slug)
    return found


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(without_code(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


@each_page
def test_links_resolve(page: Path) -> None:
    """A link leads to a file or folder that exists, and its anchor to a heading."""
    assert broken_links(page) == []


@each_page
def test_paths_exist(page: Path) -> None:
    """A path into one of the project's folders exists, from the root or beside the page; a pattern matches something."""
    missing = []
    for name in NAMED.findall(page.read_text()):
        path = name.rstrip(".")
        if path not in KUBECTL_NAMES and not any(
            any(folder.glob(path.rstrip("/"))) for folder in (ROOT, page.parent, page.parent.parent)
        ):
            missing.append(path)

    assert missing == []


@each_page
def test_commands_exist(page: Path) -> None:
    """`make TARGET` names a target of the Makefile."""
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join(
        a or b for a, b in re.findall(r"`([^`\n]+)`|^ {4}(make .*)$", page.read_text(), re.MULTILINE)
    )
    named = {
        word
        for words in re.findall(r"^make ((?:[a-z][a-z0-9-]*(?: |$))+)", code, re.MULTILINE)
        for word in words.split()
    }

    assert named <= targets


@each_page
def test_no_path_of_somebodys_machine(page: Path) -> None:
    """An absolute path is one of a container, a node or an API, never one of a workplace."""
    text = re.sub(r"\w+://\S+", "", page.read_text())
    paths = re.findall(r"(?<![\w.})>*/=\]\[\"'$-])(/[a-z][\w.-]*)(?=/|`|\s)", text)

    assert [path for path in paths if path.rstrip(".") not in ROOTS] == []


@each_page
def test_hosts_are_public_or_examples(page: Path) -> None:
    """An address is an example, the machine itself, a name inside a cluster, or a site that readers may need."""
    hosts = re.findall(r"https?://([\w.-]+\.[a-z]{2,})", page.read_text())

    assert [host for host in hosts if host not in HOSTS and not is_example(host)] == []


def is_example(host: str) -> bool:
    return "example" in host or host.endswith((".llm", ".monitoring", ".svc"))


@each_page
def test_tables_have_plain_heads(page: Path) -> None:
    """A table of folders says folder or module, not an idiom of its authors."""
    heads = re.findall(r"^(\|.*)\n\|-", page.read_text(), re.MULTILINE)

    assert [head for head in heads if re.search(r"\brooms?\b", head)] == []


@pytest.mark.parametrize(
    ("heading", "package"),
    [
        ("Packages of the service", "service/glm5_service"),
        ("Packages of the plugin", "backend_plugin/glm5_vllm"),
    ],
)
def test_architecture_lists_every_package(heading: str, package: str) -> None:
    """The page's table has each folder of the package, and no other."""
    listed = listed_packages(heading)

    assert sorted(listed) == sorted(
        path.parent.name for path in (ROOT / package).glob("*/__init__.py") if path.parent.name[0] != "_"
    )


def test_architecture_lists_packages_in_import_order() -> None:
    """A package of the service imports itself and those below it in the page's table."""
    order = listed_packages("Packages of the service")
    found = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for level, name in enumerate(order)
        for path in sorted((ROOT / "service/glm5_service" / name).rglob("*.py"))
        for imported in re.findall(r"^\s*(?:from|import) glm5_service\.(\w+)", path.read_text(), re.MULTILINE)
        if imported in order[:level] and not {name, imported} <= SAME_LEVEL
    ]

    assert found == []


# written on one line of the table
SAME_LEVEL = {"model", "host"}


def listed_packages(heading: str) -> list[str]:
    section = (ROOT / "docs/architecture.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
