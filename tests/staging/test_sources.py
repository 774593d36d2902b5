"""The same set from every kind of source, over real servers."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from glm5_service.settings.staging import HubSettings, StagingSettings
from glm5_service.staging.sources.listing import make_offer
from tests.staging.conftest import Stager
from tests.staging.test_faults_source import own_certificate
from tests.support.staging.fault_server import FaultServer, running
from tests.support.staging.hub_server import CdnServer, HubServer
from tests.support.staging.large_gguf import SplitSet
from tests.support.staging.stores import KEYS, STORES, Store, oci, s3
from tests.support.staging.tls_proxy import tls_proxy

pytestmark = pytest.mark.staging
Open = Callable[[SplitSet, Path], AbstractContextManager[Store]]


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_equal_digests_from_every_source(
    store: Open, model: SplitSet, stager: Stager, tmp_path: Path
) -> None:
    """What is published is byte for byte the set that was put into the store."""
    with store(model, tmp_path / "store") as place:
        manifest = stager(place.uri, **place.settings)
    assert stager.digests == model.digests()
    assert {record.name: record.sha256 for record in manifest.files} == model.digests()
    assert manifest.gguf.splits == len(model.paths)
    assert manifest.gguf.first_file == model.paths[0].name


def test_proxy_that_is_spoken_to_over_tls(model: SplitSet, stager: Stager, tmp_path: Path) -> None:
    """A source over https through a proxy over https is TLS within TLS: no socket to read from, but the same bytes."""
    context, authority = own_certificate(tmp_path)
    with running(FaultServer(model.folder, tls=context)) as server, tls_proxy(context) as proxy:
        through = {"proxy": f"https://127.0.0.1:{proxy.server_port}", "ca_file": authority}
        stager(f"{server.url}/", http=through)
        assert proxy.tunnels
    assert stager.digests == model.digests()


def test_same_content_has_the_same_revision(model: SplitSet, stager: Stager, tmp_path: Path) -> None:
    """Moving to a mirror that states the same digests fetches nothing: the revision names the content."""
    with oci(model, tmp_path / "store") as place:
        first = stager(place.uri, **place.settings)
    (tmp_path / "store2").mkdir()
    with STORES["range server (nginx)"](model, tmp_path / "store2") as place:
        second = stager(place.uri, **place.settings)
    assert second.revision == first.revision
    assert stager.log.getvalue().count("to fetch") == 1


def test_listing_equals_the_hub_clients(model: SplitSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our reading of the Hub API agrees with the Hub's own client on names, sizes and digests."""
    from huggingface_hub import HfApi

    with running(CdnServer(model.folder)) as cdn, running(HubServer(model.folder, cdn)) as hub:
        info = HfApi(endpoint=hub.url, token="hf_secret").model_info("org/model", files_metadata=True)
        settings = StagingSettings(
            source="hf://org/model",
            hub=HubSettings(endpoint=hub.url, token={"value": "hf_secret"}),  # type: ignore[arg-type]
        )
        ours = {file.name: file for file in make_offer(settings).listing.files}
    assert info.siblings
    theirs = {item.rfilename: item for item in info.siblings if item.rfilename in ours}
    assert {name: file.size for name, file in ours.items()} == {
        name: item.size for name, item in theirs.items()
    }
    for name, item in theirs.items():
        digest = ours[name].digest
        assert digest is not None
        assert digest.hex == (item.lfs.sha256 if item.lfs else item.blob_id)


def test_one_split_stands_for_its_set_in_s3(
    model: SplitSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that is a split brings the others, tokenizer and config, and no model that lies beside it."""
    everything = {path.name for path in model.folder.iterdir()} - {"SHA256SUMS"}
    (model.folder / "another-Q8_0.gguf").write_bytes(model.paths[0].read_bytes())
    monkeypatch.setattr(os, "environ", {**os.environ, **KEYS})
    with s3(model, tmp_path) as place:
        settings = {"source": f"{place.uri}/{model.paths[1].name}", **place.settings}
        offer = make_offer(StagingSettings(**settings))
    assert {file.name for file in offer.listing.files} == everything


def test_s3_digest_is_the_etag_of_the_parts(
    model: SplitSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object uploaded in parts is verified against the MD5 of its parts' MD5s."""
    big = model.folder / model.paths[0].name
    with open(big, "r+b") as file:
        file.truncate(9 << 20)
    monkeypatch.setattr(os, "environ", {**os.environ, **KEYS})
    with s3(model, tmp_path) as place:
        offer = make_offer(StagingSettings(source=place.uri, **place.settings))
    kinds: dict[str, Any] = {
        file.name: file.digest.kind if file.digest else None for file in offer.listing.files
    }
    assert kinds[big.name] == "s3-parts"
    assert kinds[model.paths[1].name] == "md5"
