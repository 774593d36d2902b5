"""Reads secrets from where the settings point. A secret leaves this module only as a header for one origin."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from glm5_service.errors import SettingsError
from glm5_service.redact import MASK, register
from glm5_service.settings.secret import clean_secret
from glm5_service.settings.staging import Secret

AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


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
        entries = json.loads(_read(auth_file)).get("auths", {})
    except (ValueError, AttributeError):
        # the exception of a parser holds the text
        raise SettingsError("registry credentials", auth_file, expected="a Docker config.json") from None
    names = (host, f"https://{host}", f"https://{host}/v1/", f"http://{host}")
    entry = next((entries[name] for name in names if name in entries), None)
    if entry is None:
        return None
    if "auth" in entry:
        return _clean(str(entry["auth"]), auth_file)
    password = _clean(str(entry.get("password", "")), auth_file)
    login = base64.b64encode(f"{entry.get('username', '')}:{password}".encode()).decode()
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
