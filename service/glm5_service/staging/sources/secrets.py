"""Reads secrets from where the settings point; a secret leaves this module only as a header for one origin."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from glm5_service.errors import SettingsError
from glm5_service.settings.staging import Secret


def read_secret(secret: Secret) -> str | None:
    """The secret, read anew each time because mounted secrets rotate; None if there is none."""
    if secret.file is not None:
        return _read(secret.file).strip() or None
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
    except (ValueError, AttributeError) as error:
        raise SettingsError("registry credentials", auth_file, expected="a Docker config.json") from error
    names = (host, f"https://{host}", f"https://{host}/v1/", f"http://{host}")
    entry = next((entries[name] for name in names if name in entries), None)
    if entry is None:
        return None
    if "auth" in entry:
        return str(entry["auth"])
    pair = f"{entry.get('username', '')}:{entry.get('password', '')}"
    return base64.b64encode(pair.encode()).decode()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError("cannot read secret file", path, expected="a readable file") from error
