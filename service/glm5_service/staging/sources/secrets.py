"""Reads secrets from where the settings point. A secret leaves this module only as a header for one origin."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from glm5_service.errors import SettingsError
from glm5_service.foreign import parse_json
from glm5_service.redact import MASK, register
from glm5_service.settings.secret import clean_secret
from glm5_service.settings.staging import Secret

AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class _Login(BaseModel):
    """What is used of one registry's entry."""

    auth: str | None = None
    username: str = ""
    password: str = ""


class _DockerConfig(BaseModel):
    """What is used of a Docker config.json."""

    auths: dict[str, _Login] = {}


def read_secret(secret: Secret) -> str | None:
    """The secret, read anew each time because mounted secrets rotate; None if there is none.

    Raises SettingsError, without the secret, for one that cannot be sent.
    """
    if secret.file is not None:
        return _clean(_read(secret.file), secret.file)
    return secret.value.get_secret_value() if secret.value is not None else None


def bearer(secret: Secret) -> dict[str, str]:
    """The Authorization header of a bearer token, empty without one."""
    token = read_secret(secret)
    return {"Authorization": f"Bearer {token}"} if token else {}


def registry_login(auth_file: Path | None, host: str) -> str | None:
    """The `Basic` credentials that a Docker config.json holds for `host`; None if it has none."""
    if auth_file is None:
        return None
    try:
        logins = _DockerConfig.model_validate(parse_json(_read(auth_file))).auths
    except ValueError:
        # the exception of a parser holds the text
        raise SettingsError("registry credentials", auth_file, expected="a Docker config.json") from None
    names = (host, f"https://{host}", f"https://{host}/v1/", f"http://{host}")
    entry = next((logins[name] for name in names if name in logins), None)
    if entry is None:
        return None
    if entry.auth is not None:
        return _clean(entry.auth, auth_file)
    password = _clean(entry.password, auth_file)
    login = base64.b64encode(f"{entry.username}:{password}".encode()).decode()
    register(login)
    return login


def environment_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """The AWS keys of the environment as arguments of a boto3 session; without any, boto3 looks elsewhere.

    Raises SettingsError, without the key, for one that cannot be sent.
    """
    return {name.lower(): _clean(environ[name], name) for name in AWS_KEYS if environ.get(name) is not None}


def _clean(text: str, origin: object) -> str:
    try:
        return clean_secret(text)
    except ValueError as error:
        raise SettingsError("secret", f"{MASK} from {origin}", expected=str(error)) from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        # the exception of a decoder holds what it read
        raise SettingsError("cannot read secret file", path, expected="a readable text file") from None
