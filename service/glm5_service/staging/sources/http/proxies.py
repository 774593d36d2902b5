"""Chooses the proxy of a request. One rule holds for every request of every source.

The setting http.proxy wins. Otherwise HTTP_PROXY, HTTPS_PROXY and NO_PROXY hold. They are read by the functions of the
standard library that botocore uses, so an S3 listing goes the same way as the transfer.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.util import make_headers

from glm5_service.errors import SettingsError


def proxy_for(url: str, setting: str | None) -> str | None:
    """The proxy for a request to `url`, None for none."""
    if setting is not None:
        return setting
    parts = urlsplit(url)
    found = getproxies().get(parts.scheme)
    if not found or proxy_bypass(parts.netloc):
        return None
    return found if "://" in found else f"http://{found}"


def manager(proxy: str | None, **options: object) -> urllib3.PoolManager:
    """Connections through `proxy`, or straight. Raises SettingsError for a proxy that cannot be spoken to."""
    if proxy is None:
        return urllib3.PoolManager(**options)  # type: ignore[arg-type]
    try:
        parts = urlsplit(proxy)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        # not the value: it may hold a password
        raise SettingsError("proxy", "of another kind or without a host", expected="http://host:port")
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    headers = make_headers(proxy_basic_auth=login) if parts.username else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **options)  # type: ignore[arg-type]
