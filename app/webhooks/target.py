"""Where events may be sent: to public addresses over TLS, unless the configuration trusts the inside, too.

Invariant: the address that was checked is the address that is connected to, so a name that changes in between changes
nothing.
"""

import asyncio
import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from app.errors import FieldError, Invalid

LONGEST_URL: Final = 2_000
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")


class Refused(Exception):
    """Nothing may or can be sent there; `reason` is a stable code."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def checked_url(url: str, *, allow_private: bool) -> str:
    """The URL, if it is one of https (or http, where private targets are allowed) with a host; raises Invalid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    schemes = {"https", "http"} if allow_private else {"https"}
    fault = None
    if not host or not url.isascii() or not url.isprintable() or " " in url or len(url) > LONGEST_URL:
        fault = f"an absolute URL of at most {LONGEST_URL} ASCII characters"
    elif parts.scheme not in schemes:
        fault = f"the scheme must be {' or '.join(sorted(schemes))}"
    elif parts.username is not None or parts.password is not None or parts.fragment:
        fault = "without user, password and fragment"
    elif port == 0:
        fault = "the port cannot be 0"
    if fault is not None:
        raise Invalid(errors=[FieldError("/url", "url", fault)])
    return url


async def resolve(url: str, *, allow_private: bool) -> tuple[str, dict[str, str], str]:
    """The URL with the address in place of the name, the Host header, and the name for TLS.

    Every address of the name must be public, unless private ones are allowed. Raises Refused: `dns`, `private_target`.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Refused("dns") from None
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses:
        raise Refused("dns")
    if not allow_private and not all(is_public(address) for address in addresses):
        raise Refused("private_target")
    address = addresses[0]
    pinned = f"[{address}]" if ":" in address else address
    return urlunsplit(parts._replace(netloc=f"{pinned}:{port}")), {"host": parts.netloc}, host


def is_public(address: str) -> bool:
    """Whether an address is one of the public Internet, also in its IPv6 disguises."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in _NAT64:
            inner = ipaddress.IPv4Address(found.packed[-4:])
        if inner is not None:
            return is_public(str(inner))
        if found.teredo is not None:
            return False
    return found.is_global and not found.is_multicast and found != _BROADCAST
