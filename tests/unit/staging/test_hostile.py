"""Numbers and texts from servers, listings and files on the volume that no honest one sends: refused with a sentence."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from urllib3 import HTTPHeaderDict

from glm5_service.contracts.manifest import MANIFEST_NAME
from glm5_service.errors import Glm5Error, ModelError, SettingsError
from glm5_service.foreign import clean, parse_json, plain, whole
from glm5_service.model.inspection import inspect_model, locate
from glm5_service.settings.load import load
from glm5_service.settings.sources import Given
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.clock import Clock
from glm5_service.staging.progress import Progress
from glm5_service.staging.reasons import Reason, StagingError, Transient
from glm5_service.staging.records import RemoteFile
from glm5_service.staging.sources import open_source
from glm5_service.staging.sources.http.answers import content_range, retry_after
from glm5_service.staging.sources.http.client import Http, Target
from glm5_service.staging.sources.hub import HubSource
from glm5_service.staging.sources.listing import make_offer
from glm5_service.staging.sources.oci import OciSource
from glm5_service.staging.sources.secrets import registry_login
from glm5_service.staging.store.lease import boot_id, read_lease
from glm5_service.staging.transfer.journal import Coverage, Journal, read_journal
from tests.support.staging.raw_server import raw_server
from tests.unit.staging.test_run import Runner, headers_are_fine, source, stage

__all__ = ["headers_are_fine", "source", "stage"]

LONG = "9" * 5000
DEEP = "[" * 100_000
NO_NUMBERS = ["abc", "²", "٣", LONG, "-1", "1e3", "1.0", "0x10", "1_000", "", " ", "99999999999999999999"]
ESCAPES = "\x1b[2J\x1b[31mred\x07\x9b1m\u202eevil\u200b\ud800\n"


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_of_bytes(text: str) -> None:
    """Only decimal digits of a size that a file can have are one."""
    assert whole(text) is None


@pytest.mark.parametrize("value", [True, 1.0, float("inf"), -1, 1 << 63, None, [], "7,7"])
def test_what_is_no_whole_number(value: object) -> None:
    """Neither in JSON."""
    assert whole(value) is None
    assert (whole(7), whole(" 7\t"), whole((1 << 63) - 1)) == (7, 7, (1 << 63) - 1)


@pytest.mark.parametrize("text", [DEEP, LONG, '{"a": NaN}', "{", "\ud800"])
def test_what_is_no_json(text: str) -> None:
    """A document that no honest server sends is a ValueError, whatever makes it one."""
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


@pytest.mark.parametrize("length", NO_NUMBERS[:6])
def test_content_length(length: str) -> None:
    """A length that is none ends as a refusal, in the listing and in the transfer."""
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()
    with raw_server(lambda _: head) as url:
        settings = StagingSettings(source=f"{url}/m.gguf", stall_seconds=2)
        file = RemoteFile("m.gguf", 1000, f"{url}/m.gguf")
        with pytest.raises(StagingError, match="size of m") as caught:
            open_source(f"{url}/m.gguf", settings).complete(file)
        assert caught.value.reason is Reason.REFUSED
        with pytest.raises(Transient, match="Content-Length for m") as fault:
            Http(settings).open_range(lambda _: Target(file.key), file, 0, 1000)
        assert fault.value.reason is Reason.REFUSED


@pytest.mark.parametrize("number", [*NO_NUMBERS[:6], "7"])
def test_content_range(number: str) -> None:
    """A range that is none, or ends before it begins, is no usable answer."""
    assert content_range({"Content-Range": f"bytes {number}-9/abc"}) is None
    head = f"HTTP/1.1 206 OK\r\nContent-Range: bytes {number}-5/1000\r\n\r\n".encode()
    with raw_server(lambda _: head) as url:
        file = RemoteFile("m.gguf", 1000, f"{url}/m.gguf")
        with pytest.raises(Transient) as fault:
            Http(StagingSettings()).open_range(lambda _: Target(file.key), file, 7, 1000)
        assert fault.value.reason is Reason.REFUSED


@pytest.mark.parametrize("text", [*NO_NUMBERS, "Fri, 32 Dec 99999 99:99:99 GMT", "Thu, 01 Jan 1970 00:00:00"])
def test_retry_after(text: str) -> None:
    """What says no time asks for none."""
    assert retry_after({"Retry-After": text, "Date": "Thu, 01 Jan 1970 00:00:00 GMT"}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RateLimit", '"api";r=0;t=290'),
        ("RateLimit", "limit=100, remaining=0, reset=290"),
        ("ratelimit-reset", "290"),
        ("Retry-After", "290"),
    ],
)
def test_rate_limit(name: str, value: str) -> None:
    """The Hub's 429 states only when its quota is full again; that is obeyed like Retry-After."""
    assert retry_after(HTTPHeaderDict({name: value})) == 290


LOCATIONS = [
    "http://h:99999/",
    "http://h:abc/",
    "http://[",
    "http://[::1",
    "ftp://h/",
    "javascript:x",
    "http://h:-1/",
]


@pytest.mark.parametrize("location", LOCATIONS)
def test_redirect_to_no_address(location: str) -> None:
    """A redirect that leads nowhere is the server's fault, and said so."""
    head = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    with raw_server(lambda _: head) as url, pytest.raises(StagingError, match="address that cannot be asked"):
        Http(StagingSettings()).send("GET", Target(f"{url}/m.gguf"))


@pytest.mark.parametrize(
    "source",
    [
        "https://h:99999/m.gguf",
        "https://h:abc/m.gguf",
        "https://[/m.gguf",
        "oci://h:99999/r:t",
        "oci://h:x/r:t",
        "https://h/m\x1b[2J.gguf",
        "s3://bucket/a\nb",
        "https://h/m.gguf#part",
        "file://host/models",
    ],
)
def test_source_that_is_no_address(source: str) -> None:
    """Refused as a setting, before anything is contacted."""
    with pytest.raises(SettingsError, match=r"staging\.source"):
        load({"staging.source": Given(source, "--set")})


SIZES = ["1e400", "-1", "true", "1.5", "null", LONG, "9" * 30, DEEP]


@pytest.mark.parametrize("size", SIZES)
def test_sizes_in_listings(size: str) -> None:
    """A size that is none refuses the listing: of a Hub, and of a registry."""
    sha, digest = "0" * 40, "sha256:" + "0" * 64
    hub = f'{{"sha": "{sha}", "siblings": [{{"rfilename": "m.gguf", "size": {size}}}]}}'
    layer = f'{{"digest": "{digest}", "size": {size}, "annotations": {{"org.opencontainers.image.title": "m.gguf"}}}}'
    with raw_server(lambda _: _json(hub)) as url:
        settings = StagingSettings.model_validate({"source": "hf://o/r", "hub": {"endpoint": url}})
        with pytest.raises(StagingError) as caught:
            HubSource("hf://o/r", settings).entries()
        assert caught.value.reason is Reason.REFUSED
    with raw_server(lambda _: _json(f'{{"layers": [{layer}]}}')) as url:
        settings = StagingSettings.model_validate({"oci": {"plain_http": True}})
        with pytest.raises(StagingError) as caught:
            OciSource(f"oci://{url.removeprefix('http://')}/r:t", settings).entries()
        assert caught.value.reason is Reason.REFUSED


@pytest.mark.parametrize("digest", ["abc", "0" * 63, "g" * 64, "\\ud800", "sha512:" + "0" * 128])
def test_digests_in_listings(digest: str) -> None:
    """A digest that no bytes can match is refused before 402 GB are fetched."""
    hub = {"sha": "0" * 40, "siblings": [{"rfilename": "m.gguf", "lfs": {"size": 7, "sha256": digest}}]}
    with raw_server(lambda _: _json(json.dumps(hub))) as url:
        settings = StagingSettings.model_validate({"source": "hf://o/r", "hub": {"endpoint": url}})
        with pytest.raises(StagingError, match="answer of the Hub API"):
            HubSource("hf://o/r", settings).entries()


def _json(text: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(text.encode())}\r\n\r\n{text}".encode()


@pytest.mark.parametrize(
    "name", ["\ud800.gguf", "a\x1b[2J.gguf", "\u202e.gguf", "n" * 250 + ".gguf", "\x7f.gguf", "\x9b.gguf"]
)
def test_names_in_listings(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that cannot be stored or printed as it is is refused, and the message is fit for a terminal."""
    entry = RemoteFile(name, 1000, str(tmp_path / "m"))
    monkeypatch.setattr("glm5_service.staging.sources.local.LocalSource.entries", lambda _: [entry])
    with pytest.raises(StagingError, match="file name at the source") as caught:
        make_offer(StagingSettings(source=f"file://{tmp_path}"))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "lines",
    ["w 0 999999999", "w 5 1", "w 0 101", f"w 0 {LONG}\nw 0 999", "s 5\nw 50 200"],
)
def test_journal_beyond_its_file(tmp_path: Path, lines: str) -> None:
    """Ranges are checked against the size; a damaged journal says nothing, so its file is fetched again."""
    path, file = tmp_path / "m.journal", RemoteFile("m.gguf", 100, "", etag="1")
    header = {"name": "m.gguf", "size": 100, "version": "1", "etag": "1", "boot": boot_id()}
    path.write_text(json.dumps(header) + f"\n{lines}\n")
    assert read_journal(path, boot_id()) is None
    path.write_text(json.dumps(header) + f"\nw 0 100\ns {LONG}\ns 1\n")
    found = read_journal(path, "another boot")
    assert found is not None
    assert found.is_about(file)
    assert found.coverage.total == 100


@pytest.mark.parametrize(
    "header", [DEEP, "7", "[]", '{"boot": 1}', '{"boot": 1, "size": 1e400}', f'{{"size": {LONG}}}']
)
def test_journal_header(tmp_path: Path, header: str) -> None:
    """A header that says nothing useful costs the file and no more."""
    path = tmp_path / "m.journal"
    path.write_text(f"{header}\nw 0 10\n")
    assert read_journal(path, boot_id()) is None


def test_a_damaged_journal_costs_its_file(stage: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run plans no negative bytes, fetches the file again and publishes."""
    monkeypatch.setattr("glm5_service.staging.plan._same_volume", lambda *_: False)
    file = open_source(f"file://{stage.source}", StagingSettings()).entries()
    model = next(entry for entry in file if entry.name == "m.gguf")
    partials = stage.target / ".staging/partial"
    partials.mkdir(parents=True)
    (partials / "m.gguf.dead.partial").write_bytes(b"")
    Journal(partials / "m.gguf.dead.journal", model, Coverage(), boot_id()).close()
    with (partials / "m.gguf.dead.journal").open("a") as journal:
        journal.write("w 0 999999999\n")
    assert stage() is not None
    assert "its journal is missing or damaged" in stage.log.getvalue()
    assert stage.state["fetched_bytes"] == stage.state["total_bytes"]


@pytest.mark.parametrize("path", ["size", "mtime_ns", "inode"])
@pytest.mark.parametrize("value", ["1e400", LONG, '"x"', "null", DEEP])
def test_numbers_in_a_manifest(stage: Runner, path: str, value: str) -> None:
    """A manifest with such numbers is no manifest: the run stages anew and ends well."""
    stage()
    manifest = stage.target / "current" / MANIFEST_NAME
    document = json.loads(manifest.read_text())
    document["files"][0][path] = "@"
    manifest.write_text(json.dumps(document).replace('"@"', value))
    assert stage() is not None


@pytest.mark.parametrize("name", ["../m.gguf", "/etc/passwd", "", "..", "a/b", "\\u0000"])
def test_names_in_a_manifest(stage: Runner, name: str) -> None:
    """A manifest that names files outside of its folder is no manifest."""
    stage()
    manifest = stage.target / "current" / MANIFEST_NAME
    manifest.write_text(manifest.read_text().replace('"config.json"', f'"{name}"'))
    assert stage() is not None
    assert len(stage.revisions) >= 1


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "{",
        '{"owner": {}, "beat": 1e400, "held": true}',
        f'{{"owner": {{}}, "beat": {LONG}, "held": 1}}',
    ],
)
def test_numbers_in_a_lock(tmp_path: Path, text: str) -> None:
    """A lease that says nothing is none."""
    path = tmp_path / "00000001.json"
    path.write_text(text)
    assert read_lease(path) is None


@pytest.mark.parametrize("name", ["²²²²²²²².json", f"{'9' * 240}.json", "٣٣٣٣٣٣٣٣.json"])
def test_names_in_the_lock_folder(stage: Runner, name: str) -> None:
    """What no stager named is no lock."""
    folder = stage.target / ".staging/lock"
    folder.mkdir(parents=True)
    (folder / name).write_text("")
    assert stage() is not None


def test_messages_are_fit_for_a_terminal() -> None:
    """Whoever wrote it, an error and a log line show no raw escape codes, and are short."""
    error = StagingError(Reason.REFUSED, f"size of {ESCAPES}", ESCAPES * 100_000, expected=ESCAPES)
    assert str(error).isprintable()
    assert len(str(error)) < 5000
    assert str(ModelError(ESCAPES)).isprintable()
    out = io.StringIO()
    Progress(out, None, Clock()).say(ESCAPES * 100_000)
    assert out.getvalue().rstrip("\n").isprintable()
    assert len(out.getvalue()) < 10_000
    assert clean("a" * 1000, 100) == f"{'a' * 50}...(900 more characters)...{'a' * 50}"
    assert plain(ESCAPES) is None


@pytest.mark.parametrize("status", [403, 404, 429, 503, 400])
def test_a_servers_own_words(status: int) -> None:
    """What a server says in a header is shown without its escape codes, and shortened."""
    head = (
        f"HTTP/1.1 {status} x\r\nX-Error-Message: \x1b[2J{'a' * 5000}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    with raw_server(lambda _: head) as url, pytest.raises((StagingError, Transient)) as caught:
        Http(StagingSettings()).send("GET", Target(f"{url}/m.gguf"))
    text = str(caught.value)
    assert "aaa" in text
    assert text.isprintable()
    assert len(text) < 1000


@pytest.mark.parametrize("target", ["n" * 5000, "a/" * 3000])
def test_paths_that_no_file_system_takes(stage: Runner, target: str) -> None:
    """A target that cannot exist is the volume's refusal."""
    with pytest.raises(Glm5Error) as caught:
        stage(target=stage.target / target)
    assert not isinstance(caught.value, StagingError) or caught.value.reason is not Reason.INTERNAL


@pytest.mark.parametrize("path", ["n" * 5000, "n/" * 3000, "a\0b"])
def test_a_model_path_that_no_file_system_takes(path: str) -> None:
    """`glm5 gguf inspect`, preflight and serve say so, whatever the path."""
    with pytest.raises(SettingsError, match="model"):
        locate(Path("/tmp") / path)


@pytest.mark.parametrize("path", ["n" * 5000, "n/" * 3000])
def test_a_source_path_that_no_file_system_takes(stage: Runner, path: str) -> None:
    """Nor is a source an internal error."""
    with pytest.raises(StagingError, match=r"cannot list|no such file") as caught:
        stage(source=f"file:///tmp/{path}")
    assert caught.value.reason is not Reason.INTERNAL
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("text", [DEEP, LONG, "[]", '{"model_type": NaN}'])
def test_a_model_configuration_that_is_none(tmp_path: Path, text: str) -> None:
    """A config.json is foreign as well."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="not a model configuration"):
        inspect_model(tmp_path)


@pytest.mark.parametrize(
    "text", [DEEP, LONG, "[]", '{"auths": []}', '{"auths": {"h": 7}}', '{"auths": {"h": {"auth": 7}}}']
)
def test_registry_credentials_that_are_none(tmp_path: Path, text: str) -> None:
    """A Docker config.json is foreign as well."""
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match="registry credentials"):
        registry_login(path, "h")
