"""As much of a Kubernetes API server as helm's `lookup` asks: what kinds there are, and single objects."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
KINDS: Json = {
    "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{"name": "secrets", "kind": "Secret", "namespaced": True, "verbs": ["get"]}],
    },
    "/apis": {
        "kind": "APIGroupList",
        "groups": [{"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "groupVersion": "apps/v1",
        "resources": [{"name": "statefulsets", "kind": "StatefulSet", "namespaced": True, "verbs": ["get"]}],
    },
}


def _path(item: Json) -> str:
    """Where the server has a StatefulSet or a Secret."""
    about = item["metadata"]
    group, kind = ("apis/apps/v1", "statefulsets") if item["kind"] == "StatefulSet" else ("api/v1", "secrets")
    return f"/{group}/namespaces/{about['namespace']}/{kind}/{about['name']}"


@contextmanager
def kubeconfig_of(there: Sequence[Json], folder: Path) -> Iterator[Path]:
    """A kubeconfig, in `folder`, of a server that has these objects and nothing else."""
    known = KINDS | {_path(item): item for item in there}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = known.get(self.path.partition("?")[0])
            missing = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            body = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
