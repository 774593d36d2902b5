"""Real stores on this machine, loaded with a split set: S3 by moto, an OCI registry by Debian, a Hub-compatible API."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.serving import free_port
from tests.support.staging.fault_server import FaultServer, running
from tests.support.staging.hub_server import CdnServer, HubServer
from tests.support.staging.large_gguf import SplitSet
from tests.support.staging.nginx import nginx, stopped_at_end, wait_port

# no ordinary words: what is known as a secret is masked in every text of the process
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAFAULTS",
    "AWS_SECRET_ACCESS_KEY": "faults-key-of-a-store",
    "AWS_EC2_METADATA_DISABLED": "true",
}
REGISTRY = """
version: 0.1
log: {{level: error}}
storage:
  filesystem: {{rootdirectory: {data}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@dataclass(frozen=True)
class Store:
    """Where the set lies: its address, and the settings it takes to reach it."""

    uri: str
    settings: dict[str, Any] = field(default_factory=dict)


@contextmanager
def range_server(model: SplitSet, work: Path) -> Iterator[Store]:
    with nginx(model.folder, work) as base:
        yield Store(f"{base}/")


@contextmanager
def plain_server(model: SplitSet, work: Path) -> Iterator[Store]:
    """A server without ranges."""
    with running(FaultServer(model.folder, ranges=False)) as server:
        yield Store(f"{server.url}/")


@contextmanager
def s3(model: SplitSet, work: Path) -> Iterator[Store]:
    """moto's server with the set uploaded in parts, so that ETags are of that kind."""
    import boto3
    from boto3.s3.transfer import TransferConfig

    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with stopped_at_end(process), mock.patch.dict(os.environ, KEYS):
        wait_port(port, process)
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="models")
        parts = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=1)
        for path in sorted(model.folder.iterdir()):
            if path.name != "SHA256SUMS":
                client.upload_file(str(path), "models", f"glm-5/{path.name}", Config=parts)
        yield Store("s3://models/glm-5", {"s3": {"endpoint": endpoint}})


@contextmanager
def oci(model: SplitSet, work: Path) -> Iterator[Store]:
    """Debian's docker-registry with the set pushed by the oras client."""
    import oras.client

    port = free_port()
    work.mkdir(parents=True, exist_ok=True)
    config = work / "registry.yml"
    config.write_text(REGISTRY.format(data=work / "registry", port=port))
    process = subprocess.Popen(
        ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with stopped_at_end(process):
        wait_port(port, process)
        name = f"127.0.0.1:{port}/models/glm-5:v1"
        files = [str(path) for path in sorted(model.folder.iterdir()) if path.name != "SHA256SUMS"]
        client = oras.client.OrasClient(insecure=True)
        client.push(target=name, files=files, disable_path_validation=True)
        yield Store(f"oci://{name}", {"oci": {"plain_http": True}})


@contextmanager
def hub(model: SplitSet, work: Path) -> Iterator[Store]:
    """A Hub-compatible API that wants a token, with its files on a CDN of another origin."""
    with ExitStack() as stack:
        cdn = stack.enter_context(running(CdnServer(model.folder)))
        server = stack.enter_context(running(HubServer(model.folder, cdn)))
        yield Store("hf://org/model", {"hub": {"endpoint": server.url, "token": {"value": "hf_secret"}}})


@contextmanager
def folder(model: SplitSet, work: Path) -> Iterator[Store]:
    yield Store(f"file://{model.folder}")


STORES = {
    "range server (nginx)": range_server,
    "server without ranges": plain_server,
    "S3 (moto)": s3,
    "OCI registry (docker-registry)": oci,
    "Hub-compatible API": hub,
    "folder": folder,
}
