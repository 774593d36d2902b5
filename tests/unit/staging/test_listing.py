"""What is taken from a source, and what is refused before a byte is fetched."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, CredentialRetrievalError, ProfileNotFound
from pydantic import ValidationError

from glm5_service.errors import SettingsError
from glm5_service.settings.staging import StagingSettings
from glm5_service.staging.reasons import Reason, StagingError, Transient
from glm5_service.staging.records import Digest, Listing, RemoteFile
from glm5_service.staging.sources.checksums import parse_sums
from glm5_service.staging.sources.hub import HubAddress, parse_address
from glm5_service.staging.sources.listing import make_offer
from glm5_service.staging.sources.local import LocalSource
from glm5_service.staging.sources.oci import OciSource
from glm5_service.staging.sources.s3 import S3Source


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF" + bytes(1000))
    return folder


def names_of(source: str, **settings: object) -> list[str]:
    offer = make_offer(StagingSettings.model_validate({"source": source, **settings}))
    return [file.name for file in offer.listing.files]


def refusal(source: str, **settings: object) -> StagingError:
    with pytest.raises(StagingError) as caught:
        names_of(source, **settings)
    return caught.value


def split(number: int, count: int = 2, stem: str = "m-Q4_K") -> str:
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def test_takes_splits_tokenizer_and_config(tmp_path: Path) -> None:
    """A model is its splits and the files that describe it, and nothing else that lies around."""
    fill(
        tmp_path,
        f"Q4/{split(1)}",
        f"Q4/{split(2)}",
        "config.json",
        "tokenizer.json",
        "README.md",
        "a.safetensors",
    )
    assert names_of(f"file://{tmp_path}") == ["config.json", split(1), split(2), "tokenizer.json"]


def test_companions_beside_the_splits_win(tmp_path: Path) -> None:
    """A config in the quantisation's own folder is the one that belongs to it."""
    fill(tmp_path, "Q4/m.gguf", "Q4/config.json", "config.json")
    offer = make_offer(StagingSettings(source=f"file://{tmp_path}"))
    assert [file.key for file in offer.listing.files if file.name == "config.json"] == [
        f"{tmp_path}/Q4/config.json"
    ]


def test_quantisation_chooses_among_several(tmp_path: Path) -> None:
    """Of several quantisations the one asked for is taken, whatever the case of its letters."""
    fill(tmp_path, f"Q4/{split(1)}", f"Q4/{split(2)}", "Q8/m-Q8_0.gguf")
    assert names_of(f"file://{tmp_path}", quantisation="q8_0") == ["m-Q8_0.gguf"]


def test_one_split_stands_for_its_set(tmp_path: Path) -> None:
    """Naming any split means the whole set, and not another one beside it."""
    fill(tmp_path, split(1), split(2), "m-Q8_0.gguf")
    assert names_of(f"file://{tmp_path}/{split(2)}") == [split(1), split(2)]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["config.json"], Reason.NOT_FOUND),
        ([split(1)], Reason.INCOMPLETE),
        ([split(1), split(2), "other.gguf"], Reason.AMBIGUOUS),
    ],
    ids=["none", "missing split", "two models"],
)
def test_refuses_what_is_not_one_whole_model(tmp_path: Path, names: list[str], reason: Reason) -> None:
    """No model, half a model and two models are refused while listing."""
    assert refusal(f"file://{fill(tmp_path, *names)}").reason is reason


def test_refuses_a_pointer_file(tmp_path: Path) -> None:
    """A GGUF of 130 bytes is a pointer to one."""
    (tmp_path / "m.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert refusal(f"file://{tmp_path}").reason is Reason.NOT_A_MODEL


def test_second_source_brings_the_tokenizer(tmp_path: Path) -> None:
    """Tokenizer and config of a second source replace those of the first; its models stay there."""
    first, second = (
        fill(tmp_path / "a", "m.gguf", "config.json"),
        fill(tmp_path / "b", "config.json", "vocab.json", "x.gguf"),
    )
    offer = make_offer(StagingSettings(source=f"file://{first}", tokenizer_source=f"file://{second}"))
    assert {file.name: Path(file.key).parent.name for file in offer.listing.files} == {
        "config.json": "b",
        "m.gguf": "a",
        "vocab.json": "b",
    }


def test_second_source_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """A second source that brings nothing is a wrong address, also where its files lie one folder deeper."""
    first, second = fill(tmp_path / "a", "m.gguf"), fill(tmp_path / "b", "deeper/tokenizer.json", "x.gguf")
    error = refusal(f"file://{first}", tokenizer_source=f"file://{second}")
    assert error.reason is Reason.NOT_FOUND
    assert str(second) in str(error)


def test_list_that_ends_early_is_no_list(tmp_path: Path) -> None:
    """A short list that ends early is not taken for a whole one."""
    fill(tmp_path, "m.gguf")
    source = LocalSource(f"file://{tmp_path}")
    (file,) = source.entries()
    with pytest.raises(Transient, match="ended after 1004 of 2000 bytes"):
        source.read_small(replace(file, size=2000))


@pytest.mark.parametrize(
    ("number", "where", "reason"),
    [
        (errno.EIO, "Q4", Reason.VOLUME_FAULT),
        (errno.EACCES, ".", Reason.UNAUTHORIZED),
        (errno.EACCES, "lost+found", None),
    ],
    ids=["fault below", "closed", "closed below"],
)
def test_folder_that_cannot_be_listed_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: str, reason: Reason | None
) -> None:
    """A local source offers all it has or an error; only a folder within that is closed to us is not offered."""
    fill(tmp_path, "m.gguf", "Q4/config.json", "lost+found/other.gguf")
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path) == tmp_path / where:
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    if reason is None:
        assert names_of(f"file://{tmp_path}") == ["m.gguf"]
    else:
        assert refusal(f"file://{tmp_path}").reason is reason


@pytest.mark.parametrize(
    ("error", "met"),
    [
        (CredentialRetrievalError(provider="pod", error_msg="no route"), Transient),
        (ProfileNotFound(profile="none"), StagingError),
    ],
    ids=["for a moment", "for good"],
)
def test_s3_keys_are_looked_for_with_the_first_question(
    monkeypatch: pytest.MonkeyPatch, error: BotoCoreError, met: type[Exception]
) -> None:
    """Who only names an S3 asks nobody; keys that cannot be had are a fault like that of any other question."""

    def refuse() -> None:
        raise error

    monkeypatch.setattr("boto3.session.Session", refuse)
    source = S3Source("s3://models/glm-5", StagingSettings())
    with pytest.raises(met, match=type(error).__name__):
        source.entries()
    with pytest.raises(met, match=type(error).__name__):
        source.open(RemoteFile("m.gguf", 1000, "m.gguf"), 0, 1000)


@pytest.mark.parametrize(
    ("encryption", "digest"),
    [
        ({}, Digest("md5", "0" * 32)),
        ({"ServerSideEncryption": "AES256"}, Digest("md5", "0" * 32)),
        ({"ServerSideEncryption": "aws:kms"}, None),
        ({"ServerSideEncryption": "aws:kms:dsse"}, None),
        ({"SSECustomerAlgorithm": "AES256"}, None),
    ],
    ids=["none", "S3's key", "KMS", "KMS twice", "own key"],
)
def test_etag_of_an_encrypted_object_is_no_digest(encryption: dict[str, str], digest: Digest | None) -> None:
    """With a key of KMS or of one's own the ETag is not the MD5 of the bytes."""
    source, file = S3Source("s3://models/glm-5", StagingSettings()), RemoteFile("m.gguf", 1000, "m.gguf")
    assert source._etag_digest(file, {"ETag": f'"{"0" * 32}"', **encryption}) == digest


@pytest.mark.parametrize("value", ["minio:9000", "http://", "https://host:port", "ftp://host", ""])
@pytest.mark.parametrize("name", ["s3.endpoint", "hub.endpoint", "http.proxy"])
def test_servers_are_named_by_whole_addresses(name: str, value: str) -> None:
    """What no client could use is refused as a setting, before anything is asked."""
    section, _, key = name.partition(".")
    with pytest.raises(ValidationError, match="expected https://host or http://host:port"):
        StagingSettings.model_validate({section: {key: value}})


def test_sums_beside_local_files_are_used(tmp_path: Path) -> None:
    """A SHA256SUMS file states digests for any source that has none of its own."""
    fill(tmp_path, "m.gguf")
    (tmp_path / "SHA256SUMS").write_text(f"{'a' * 64}  m.gguf\n")
    offer = make_offer(StagingSettings(source=f"file://{tmp_path}"))
    assert offer.listing.files[0].digest == Digest("sha256", "a" * 64)


def test_sums_are_read_as_sha256sum_writes_them() -> None:
    """Text and binary marks, and paths that start with ./ mean the same."""
    text = f"{'A' * 64} *./a.gguf\n\n{'b' * 64}  b c.gguf\n".encode()
    assert parse_sums(text, "here") == {"a.gguf": "a" * 64, "b c.gguf": "b" * 64}


def test_broken_sums_name_the_line() -> None:
    """A line that is no checksum is shown with its number."""
    with pytest.raises(StagingError, match="line 1 of SHA256SUMS in here: <html>"):
        parse_sums(b"<html>\n", "here")


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("hf://org/repo", HubAddress("org/repo", "main", "")),
        ("hf://org/repo@v1/UD-Q4_K_XL", HubAddress("org/repo", "v1", "UD-Q4_K_XL")),
        ("hf://org/repo@refs%2Fpr%2F1/a/*.gguf", HubAddress("org/repo", "refs%2Fpr%2F1", "a/*.gguf")),
    ],
)
def test_hub_address(uri: str, address: HubAddress) -> None:
    """Repository, revision and path of an hf:// address."""
    assert parse_address(uri) == address


@pytest.mark.parametrize("uri", ["hf://org", "hf:///repo"])
def test_hub_address_without_repository(uri: str) -> None:
    """An address without organisation and repository is refused with an example."""
    with pytest.raises(SettingsError, match="expected hf://org/repo"):
        parse_address(uri)


@pytest.mark.parametrize("uri", ["oci://host", "oci://host/Repo:tag", "oci://host/repo@md5:1"])
def test_oci_address(uri: str) -> None:
    """An address that names no artifact is refused with an example."""
    with pytest.raises(SettingsError, match=r"expected oci://host/repository\[:tag\]"):
        OciSource(uri, StagingSettings())


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("ftp://host/a", "expected one of hf, https"),
        ("/models/a", "expected one of hf, https"),
        ("https://user:pass@host/a", "the address holds credentials"),
    ],
)
def test_settings_refuse_the_address(uri: str, message: str) -> None:
    """Unknown schemes, and secrets in an address, are refused as settings."""
    with pytest.raises(ValidationError, match=message) as caught:
        StagingSettings(source=uri)
    assert "pass" not in caught.value.errors(include_input=False)[0]["msg"]


def test_revision_names_the_content() -> None:
    """Order and place do not change a revision; a digest does."""
    one, two = RemoteFile("a", 1, "x", Digest("sha256", "1")), RemoteFile("b", 2, "y", Digest("sha256", "2"))
    moved = RemoteFile("a", 1, "elsewhere", Digest("sha256", "1"), '"etag"')
    changed = RemoteFile("a", 1, "x", Digest("sha256", "3"))
    assert Listing("s", (one, two)).revision == Listing("t", (two, moved)).revision
    assert Listing("s", (one, two)).revision != Listing("s", (changed, two)).revision


class Bucket:
    """A stand-in for the S3 client: lists these keys by prefix."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def get_paginator(self, _: str) -> Bucket:
        return self

    def paginate(self, *, Bucket: str, Prefix: str, Delimiter: str = "") -> list[dict[str, Any]]:
        found = [key for key in self.keys if key.startswith(Prefix)]
        if Delimiter:
            found = [key for key in found if Delimiter not in key.removeprefix(Prefix)]
        return [{"Contents": [{"Key": key, "Size": 1000} for key in found]}]


@pytest.mark.parametrize("mark", ["#rc1", "?rc1", "%20rc1", " rc1", ";v=1"])
def test_an_s3_prefix_is_taken_as_written(mark: str) -> None:
    """No character of a key cuts it off: another model is never taken for the one that was named."""
    source = S3Source(f"s3://models/glm-5.1{mark}", StagingSettings())
    source._client = Bucket(f"glm-5.1{mark}/m.gguf", "glm-5.1/old.gguf", "glm-5.1-old/m.gguf")
    assert [(file.name, file.key) for file in source.entries()] == [("m.gguf", f"glm-5.1{mark}/m.gguf")]
    source = S3Source(f"s3://models/glm-5.1{mark}/m.gguf", StagingSettings())
    source._client = Bucket(f"glm-5.1{mark}/m.gguf", "glm-5.1")
    assert [file.key for file in source.entries()] == [f"glm-5.1{mark}/m.gguf"]


def test_an_s3_prefix_is_no_other_folder() -> None:
    """A folder whose name only begins like the prefix is not taken."""
    source = S3Source("s3://models/glm-5", StagingSettings())
    source._client = Bucket("glm-5.1/m.gguf", "glm-5.1/n.gguf")
    assert source.entries() == []
    source = S3Source("s3://models/a/glm-Q4", StagingSettings())
    source._client = Bucket("a/glm-Q4-1.gguf", "a/glm-Q4.1/n.gguf")
    assert [file.name for file in source.entries()] == ["glm-Q4-1.gguf"]


@pytest.mark.parametrize("mark", ["#rc1", "?rc1", " rc1", ";v=1"])
def test_a_path_is_taken_as_written(tmp_path: Path, mark: str) -> None:
    """Nor is a path cut off."""
    fill(tmp_path / "glm", "old.gguf")
    fill(tmp_path / f"glm{mark}", "m.gguf")
    assert names_of(f"file://{tmp_path}/glm{mark}") == ["m.gguf"]
    assert names_of(f"file://localhost{tmp_path}/glm{mark}/m.gguf") == ["m.gguf"]


@pytest.mark.parametrize("is_relative", [True, False])
def test_a_hub_cache_is_read_through_its_links(tmp_path: Path, is_relative: bool) -> None:
    """The files of a snapshot are links to blobs; the blob is what is listed, linked to and read."""
    blob = fill(tmp_path / "models--o--r", "blobs/abc") / "blobs/abc"
    snapshot = tmp_path / "models--o--r/snapshots/1"
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").symlink_to("../../blobs/abc" if is_relative else blob)
    file = make_offer(StagingSettings(source=f"file://{snapshot}")).listing.files[0]
    assert (file.name, file.key, file.size) == ("m.gguf", str(blob), 1004)


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("Q2_K", "m-Q2_K.gguf"),
        ("q2_k", "m-Q2_K.gguf"),
        ("Q2_K_L", "m-Q2_K_L.gguf"),
        ("UD-Q2_K_XL", "m-UD-Q2_K_XL.gguf"),
        ("Q2_K_XL", "m-UD-Q2_K_XL.gguf"),
        ("UD-Q2_K", "m-UD-Q2_K.gguf"),
        ("Q8", "m-Q8_0.gguf"),
        ("XL", "m-UD-Q2_K_XL.gguf"),
    ],
)
def test_quantisation_is_a_label_not_a_part_of_one(tmp_path: Path, asked: str, taken: str) -> None:
    """Q2_K is there beside Q2_K_L, UD-Q2_K and UD-Q2_K_XL; a part of a label serves where it is the only one."""
    fill(tmp_path, *(f"m-{label}.gguf" for label in ("Q2_K", "Q2_K_L", "UD-Q2_K", "UD-Q2_K_XL", "Q8_0")))
    assert names_of(f"file://{tmp_path}", quantisation=asked) == [taken]
