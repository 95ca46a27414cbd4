"""Check whether a text is a valid host name, and resolve host names.

Python's IDNA encoding would raise UnicodeError for empty or long parts of a name. Here, as in torch and gloo, the C
library gets the name unchanged.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from typing import Any

from ddpbench.text_safety import clean

_LONGEST_PART, _LONGEST = 63, 253
_INTERFACE = re.compile(r"[A-Za-z0-9._-]{1,15}")
"""Pattern of an interface's name in an address such as `fe80::1%eth0`; Linux allows 15 characters."""


def own_name() -> str:
    """Return this host's name for records; its bytes may be any, and those that are not UTF-8 are replaced."""
    return clean(socket.gethostname())


def why_no_host(text: str) -> str:
    """Return why no host can have this name or address; empty if a host can have it."""
    _, scoped, interface = text.partition("%")
    if scoped:
        fits = _is_address(text) and _INTERFACE.fullmatch(interface)
        return (
            ""
            if fits
            else "only an IPv6 address has a %, and then an interface's name of up to 15 characters"
        )
    if _is_address(text):
        return ""
    try:
        name = text.encode().removesuffix(b".")
    except UnicodeEncodeError:
        return "it has characters that no name has"
    if b"\0" in name:
        return "it has characters that no name has"
    if len(name) > _LONGEST or not all(0 < len(part) <= _LONGEST_PART for part in name.split(b".")):
        return f"a name has {_LONGEST} characters at most, and each part between dots 1 to {_LONGEST_PART}"
    return ""


def checked_address(text: str) -> str:
    """Check that `text`, which another host sent, is an IP address, and return it unchanged.

    Raises:
        ValueError: it is not an IP address, or no interface can have the name that follows its `%`.
    """
    ipaddress.ip_address(text)
    if why := why_no_host(text):
        raise ValueError(why)
    return text


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def resolve(
    name: str, port: int | None = None, family: int = socket.AF_UNSPEC
) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Return the family and socket address of each address of a host, in the order in which they are tried.

    Raises:
        OSError: the name has no address, or no host can have it.
    """
    try:
        found = socket.getaddrinfo(os.fsencode(name), port, family, socket.SOCK_STREAM)
    except ValueError:  # NUL, or half of a surrogate pair
        raise _unknown() from None
    return [(entry[0], entry[4]) for entry in found]


def connect(
    host: str, port: int, timeout_s: float | None = None, source: tuple[str, int] | None = None
) -> socket.socket:
    """Return a TCP connection to a host. If `timeout_s` is given, wait at most that many seconds for each address.

    `source` is the address and port to connect from.

    Raises:
        OSError: the name has no address, no host can have it, or the host is not reached.
    """
    try:
        name = os.fsencode(host)
        return socket.create_connection((name, port), timeout_s, source)  # type: ignore[arg-type]  # takes bytes too
    except ValueError:
        raise _unknown() from None


def _unknown() -> socket.gaierror:
    return socket.gaierror(socket.EAI_NONAME, "Name or service not known")
