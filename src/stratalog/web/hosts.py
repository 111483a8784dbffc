"""Names of hosts: which are this machine's loopback. Pure, and light to import."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

_MAX_HOST_CHARACTERS = 255


def is_loopback(host: str) -> bool:
    """Whether a host, without port, is a name or number of this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str | None:
    """The host of a `Host` header, in lower case, IPv6 without brackets; None if it is no host."""
    if not header or len(header) > _MAX_HOST_CHARACTERS:
        return None
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018  (raises if it is no number)
    except ValueError:
        return None
    if parts.netloc != header or parts.username is not None:
        return None
    return parts.hostname
