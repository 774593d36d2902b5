"""Faults of what the source serves: changed, incomplete, not a model, not allowed."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from glm5_service.settings.staging import HubSettings, Secret
from glm5_service.staging.reasons import Reason, StagingError
from tests.staging.conftest import Stager
from tests.staging.test_faults_network import SLACK_BYTES, Serve, published, refused
from tests.support.glm5_command import PATIENCE_SECONDS
from tests.support.staging.fault_server import Fault, running
from tests.support.staging.faults_table import fault
from tests.support.staging.hub_server import CdnServer, HubServer
from tests.support.staging.large_gguf import SMALL, SplitSet, digest_of, write_set, write_sums
from tests.support.staging.s3_server import BUCKET, S3Server
from tests.support.staging.stores import KEYS
from tests.support.tiny_spec import TinySpec

pytestmark = pytest.mark.staging


def replaced(model: SplitSet, path: Path) -> Callable[[], None]:
    """An action that puts other bytes of the same size at `path`; who meets them meets their SHA256SUMS as well."""
    guard = threading.Lock()

    def act() -> None:
        with guard:
            data = bytearray(path.read_bytes())
            data[-1] ^= 0xFF
            fresh = model.folder.with_name(path.name)
            fresh.write_bytes(data)
            write_sums(model.folder, {**model.digests(), path.name: digest_of(fresh)})
            fresh.replace(path)

    return act


@fault(
    "file changed at the source while it is fetched",
    then="lists again, restarts that file at byte 0, and says so",
)
def test_changed_file_starts_again(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """If-Range and ETag keep two versions of a file from being mixed."""
    server, changed = serve(), model.paths[1]
    server.faults = [Fault("change", name=changed.name, skip=1, action=replaced(model, changed))]
    stager(f"{server.url}/")
    published(stager, model)
    assert f"source changed, that file starts again: {changed.name}" in stager.log.getvalue()
    assert server.sent_bytes <= model.total_bytes + changed.stat().st_size + SLACK_BYTES


@fault("file that changes at every request", then="gives up after three listings", ends=Reason.CHANGED)
def test_changes_without_end(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """A source that never holds still cannot be staged from."""
    server, changed = serve(), model.paths[1]
    server.faults = [Fault("change", name=changed.name, times=10_000, action=replaced(model, changed))]
    return refused(stager, server)


@fault("file changed between two runs", then="keeps the other files' bytes and restarts that file at byte 0")
def test_changed_between_runs(serve: Serve, model: SplitSet, stager: Stager) -> None:
    """A partial file is continued only if it is of the version that is listed now."""
    server, changed, last = serve(), model.paths[1], model.paths[4]
    # one connection brings the longest files first, so these two are not whole: one has its first part, one nothing
    server.faults = [Fault("status", name=changed.name, skip=1, status=404)]
    stager.fails(f"{server.url}/", connections=1)
    replaced(model, changed)()
    before = server.sent_bytes
    stager(f"{server.url}/")
    published(stager, model)
    assert re.search(
        rf"{changed.name}\.\w+\.partial is dropped: of another version of the file", stager.log.getvalue()
    )
    assert server.sent_bytes - before <= changed.stat().st_size + last.stat().st_size + 4096


@fault("redirect to another host", then="follows it without the token")
def test_redirect_keeps_the_token_home(model: SplitSet, stager: Stager) -> None:
    """A secret is sent to the host it is for, and to no other."""
    with running(CdnServer(model.folder)) as cdn, running(HubServer(model.folder, cdn)) as hub:
        token = Secret(value="hf_secret")  # type: ignore[arg-type]
        stager("hf://org/model", hub=HubSettings(endpoint=hub.url, token=token))
        published(stager, model)
        assert all("Authorization" not in seen.headers for seen in cdn.seen)
        assert cdn.sent_bytes >= model.total_bytes
    assert "hf_secret" not in stager.log.getvalue()
    assert "Signature" not in stager.log.getvalue()


@fault("redirect from https to http", then="does not follow it", ends=Reason.UNTRUSTED)
def test_redirect_to_plain_http(serve: Serve, tmp_path: Path, stager: Stager) -> StagingError:
    """What was asked for over TLS is not fetched without it."""
    context, authority = own_certificate(tmp_path)
    plain, secure = serve(), serve(tls=context)
    secure.faults = [
        Fault("status", name="", status=302, headers={"Location": f"{plain.url}/x"}, times=10_000)
    ]
    secure.answer_api = lambda handler, path: (
        bool(handler.plain(302, {"Location": f"{plain.url}{path}"})) or True
    )
    return stager.fails(f"{secure.url}/", http={"ca_file": authority})


@fault("certificate of an unknown authority", then="ends at once", ends=Reason.UNTRUSTED)
def test_untrusted_certificate(serve: Serve, tmp_path: Path, stager: Stager) -> StagingError:
    """A certificate is checked before anything is sent."""
    context, _ = own_certificate(tmp_path)
    return stager.fails(f"{serve(tls=context).url}/")


@fault("S3 certificate of an unknown authority", then="ends at once", ends=Reason.UNTRUSTED)
def test_untrusted_s3(
    serve: Serve, tmp_path: Path, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> StagingError:
    """The S3 client's error has the same name as that of any other source."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    context, _ = own_certificate(tmp_path)
    return stager.fails(f"s3://{BUCKET}/", s3={"endpoint": serve(tls=context).url})


@fault(
    "token expired while fetching; the mounted file has a new one",
    then="reads the token file again and continues",
)
def test_rotated_token(serve: Serve, model: SplitSet, stager: Stager, tmp_path: Path) -> None:
    """A refused token is read anew before giving up."""
    secret = tmp_path / "token"
    secret.write_text("first\n")
    server = serve(token="first")

    def rotate() -> None:
        fresh = secret.with_suffix(".new")
        fresh.write_text("second\n")
        with server.guard:
            fresh.replace(secret)
            server.token = "second"

    server.faults = [Fault("rotate", skip=3, action=rotate)]
    stager(f"{server.url}/", http={"token": {"file": secret}})
    published(stager, model)


@pytest.mark.parametrize(("request_kind", "skip"), [("list", 0), ("head", 2), (".gguf", 3)])
@fault(
    "S3 session token expired while listing or fetching; the mounted file has new keys",
    then="reads the credentials file again and continues",
)
def test_expired_s3_token(
    model: SplitSet,
    stager: Stager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_kind: str,
    skip: int,
) -> None:
    """S3 says 400 to a session token that is over, to HEAD without a word why; fresh keys are read before giving up."""
    credentials = tmp_path / "credentials"
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))

    def mount(key: str) -> None:
        credentials.write_text(
            f"[default]\naws_access_key_id={key}\naws_secret_access_key=s\naws_session_token=t\n"
        )

    mount("FIRST")
    with running(S3Server(model.folder, key="FIRST")) as server:

        def rotate() -> None:
            mount("SECOND")
            server.key = "SECOND"

        server.faults = [Fault("rotate", name=request_kind, skip=skip, action=rotate)]
        stager(f"s3://{BUCKET}/", s3={"endpoint": server.url})
    published(stager, model)


@fault(
    "S3 session token expired for good",
    then="reads the credentials once more and ends",
    ends=Reason.UNAUTHORIZED,
)
def test_s3_token_stays_expired(
    model: SplitSet, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> StagingError:
    """Keys that are still the old ones when they are read again are named as the reason."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with running(S3Server(model.folder, key="NEWER")) as server:
        return stager.fails(f"s3://{BUCKET}/", s3={"endpoint": server.url})


@fault(
    "S3 credentials that cannot be fetched for a moment",
    then="asks for them again; a published model needs no credentials",
)
def test_s3_credentials_out_of_reach(
    serve: Serve, model: SplitSet, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent that hands out a pod's keys may restart; who has the model does not even ask it."""
    pod, asked = serve(), count()
    keys = {"AccessKeyId": "KEY", "SecretAccessKey": "s", "Token": "t", "Expiration": "2999-01-01T00:00:00Z"}

    def hand_out(handler: Any, path: str) -> bool:
        # its client asks three times of its own
        is_up = next(asked) >= 4
        handler.plain(200 if is_up else 503, body=json.dumps(keys).encode() if is_up else b"")
        return True

    pod.answer_api = hand_out
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{pod.url}/v1/credentials")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.TIMEOUT_SECONDS", PATIENCE_SECONDS)
    with running(S3Server(model.folder, key="KEY")) as server:
        stager(f"s3://{BUCKET}/", s3={"endpoint": server.url})
    published(stager, model)
    before = len(pod.seen)
    assert before > 4
    stager(f"s3://{BUCKET}/", s3={"endpoint": server.url})
    assert len(pod.seen) == before


@fault("token refused", then="ends without retrying", ends=Reason.UNAUTHORIZED)
def test_refused_token(serve: Serve, stager: Stager, tmp_path: Path) -> StagingError:
    """Credentials do not get better by asking again."""
    server = serve(token="right")
    error = refused(stager, server, http={"token": {"value": "wrong"}})
    assert (
        "wrong" not in f"{error}{stager.log.getvalue()}{(tmp_path / 'volume/run/staging.json').read_text()}"
    )
    assert len(server.seen) <= 4
    return error


@fault("source does not exist", then="ends without retrying", ends=Reason.NOT_FOUND)
def test_not_found(serve: Serve, stager: Stager) -> StagingError:
    """A wrong address is named."""
    return stager.fails(f"{serve().url}/elsewhere/")


@fault("source that states no digests", then="ends before the first byte", ends=Reason.NO_DIGEST)
def test_no_digest(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """What cannot be verified is not staged unless that is asked for."""
    (model.folder / "SHA256SUMS").unlink()
    server = serve()
    error = stager.fails(f"{server.url}/{model.paths[0].name}")
    # a byte a file tells the size
    assert server.sent_bytes <= len(model.paths)
    return error


@fault("Git LFS pointer in place of a split", then="ends before the first byte", ends=Reason.NOT_A_MODEL)
def test_pointer_file(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """A pointer is recognised by its size."""
    model.paths[1].write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n")
    model.write_sums()
    return refused(stager, serve())


@fault("web page in place of a split", then="ends at its first bytes", ends=Reason.NOT_A_MODEL)
def test_web_page(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """A log-in page has a digest and a size too, but no magic."""
    model.paths[0].write_text("<!doctype html>" + "x" * 2_000_000)
    model.write_sums()
    return refused(stager, serve())


@fault("another architecture", then="ends at its first bytes", ends=Reason.WRONG_ARCHITECTURE)
def test_wrong_architecture(serve: Serve, stager: Stager) -> StagingError:
    """The wrong model is seen in the first split's header, not after 402 GB."""
    return refused(stager, serve(), architecture="llama")


@fault("split missing at the source", then="ends before the first byte", ends=Reason.INCOMPLETE)
def test_missing_split(serve: Serve, model: SplitSet, stager: Stager) -> StagingError:
    """Every split of a set must be listed."""
    model.paths[3].unlink()
    model.write_sums()
    server = serve()
    return refused(stager, server)


@fault(
    "split of another model with the right name",
    then="fetches it, then finds the mismatch in the headers",
    ends=Reason.NOT_A_MODEL,
)
def test_foreign_split(serve: Serve, model: SplitSet, stager: Stager, tmp_path: Path) -> StagingError:
    """All splits must be of one model, whatever their names and digests say."""
    other = TinySpec(layers=4, experts=8, name=SMALL.name)
    foreign = write_set(tmp_path / "other", other, len(model.paths) - 1)
    model.paths[1].write_bytes(foreign.paths[0].read_bytes())
    model.write_sums()
    return refused(stager, serve())


@fault("two quantisations in one place", then="ends before the first byte", ends=Reason.AMBIGUOUS)
def test_two_models(model: SplitSet, stager: Stager) -> StagingError:
    """Which model is meant is not guessed."""
    for path in model.paths:
        (model.folder / path.name.replace("small", "small-Q8_0")).write_bytes(path.read_bytes())
    return stager.fails(f"file://{model.folder}")


def own_certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server of this machine needs for TLS, and the authority file for its clients."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
