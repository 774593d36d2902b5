"""A Hub-compatible API: repository info with blobs, and `resolve` that redirects to a CDN on another host.

Built so that the real huggingface_hub client accepts it; the CDN refuses requests that carry a token, as S3 does.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.support.staging.fault_server import FaultServer, _Handler
from tests.support.staging.large_gguf import digest_of


class CdnServer(FaultServer):
    """Serves files by SHA-256; anything with an Authorization header is refused."""

    def allows(self, handler: _Handler) -> bool:
        return "Authorization" not in handler.headers


class HubServer(FaultServer):
    """One repository at one commit; LFS files come from `cdn`, small ones from here."""

    def __init__(
        self, root: Path, cdn: FaultServer, *, repo: str = "org/model", token: str | None = "hf_secret"
    ) -> None:
        super().__init__(root, token=token)
        self.repo, self.cdn, self.commit = repo, cdn, hashlib.sha1(str(root).encode()).hexdigest()

    def siblings(self) -> list[dict[str, object]]:
        """The files as the Hub lists them: LFS with SHA-256, others by git blob."""
        files = []
        for path in sorted(item for item in self.root.rglob("*") if item.is_file()):
            name, size = str(path.relative_to(self.root)), path.stat().st_size
            entry: dict[str, object] = {"rfilename": name, "size": size}
            if name.endswith(".gguf"):
                entry |= {
                    "blobId": "0" * 40,
                    "lfs": {"sha256": digest_of(path), "size": size, "pointerSize": 134},
                }
            else:
                entry["blobId"] = hashlib.sha1(f"blob {size}\0".encode() + path.read_bytes()).hexdigest()
            files.append(entry)
        return files

    def answer_api(self, handler: _Handler, path: str) -> bool:
        if path.startswith("/api/models/"):
            known = [
                f"/api/models/{self.repo}",
                *(f"/api/models/{self.repo}/revision/{r}" for r in ("main", self.commit)),
            ]
            if path not in known:
                error = {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}
                handler.plain(404, error)
                return True
            info = {"id": self.repo, "sha": self.commit, "siblings": self.siblings(), "tags": [], "downloads": 0,
                    "private": False, "gated": False, "likes": 0}  # fmt: skip
            body = json.dumps(info).encode()
            if self.next_fault(path) is not None:
                handler.cut_short(body)
            else:
                handler.plain(200, {"Content-Type": "application/json"}, body)
            return True
        prefix = f"/{self.repo}/resolve/{self.commit}/"
        if path.startswith(prefix) and path.endswith(".gguf"):
            handler.plain(302, {"Location": f"{self.cdn.url}/{path.removeprefix(prefix)}?Signature=sig"})
            return True
        return False

    def plan(self, path: str) -> Path | None:
        return super().plan(path.removeprefix(f"/{self.repo}/resolve/{self.commit}"))
