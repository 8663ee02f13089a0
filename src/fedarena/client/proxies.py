"""The proxy that a device has to take, as its environment says: ``https_proxy`` and ``no_proxy``.

The proxy is asked for a tunnel (CONNECT). What goes through it is encrypted from end to end.
"""

from __future__ import annotations

import base64
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from fedarena.core.errors import BadInputError

_USUAL_PORT = 80


class Proxy(NamedTuple):
    """Where it is, and what it wants to be told: a password, perhaps."""

    host: str
    port: int
    headers: dict[str, str]


def proxy_for(host: str) -> Proxy | None:
    """The one through which a host is reached; None: there is no need for one."""
    text = getproxies().get("https")
    if not text or proxy_bypass(host):
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port or _USUAL_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "http" or not parts.hostname:
        raise BadInputError("https_proxy must name a proxy as http://host:port, whose tunnel is used for HTTPS")
    if parts.username is None:
        return Proxy(parts.hostname, port, {})
    account = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(parts.hostname, port, {"Proxy-Authorization": f"Basic {base64.b64encode(account).decode('ascii')}"})
