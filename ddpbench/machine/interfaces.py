"""Find the system's network interfaces, the interfaces that gloo would use, and whether a faster one exists."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddpbench.host_names import resolve
from ddpbench.text_safety import clean
from ddpbench.units import format_bit_rate

LOOPBACK = "lo"
"""Name of the interface that local ranks use, because `ddpbench.launch.plan` sets GLOO_SOCKET_IFNAME to it."""
RESOLVE_TIMEOUT_S = 2.0
_FASTER = 2
"""An interface is mentioned if its rate is at least this many times the rate of gloo's interface."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. `addresses` has IPv4 addresses first, then IPv6; `speed_mbps` is 0 if unknown."""

    name: str
    up: bool
    addresses: tuple[str, ...] = ()
    speed_mbps: int = 0
    real: bool = True
    """True for a device or a bond of devices, whose reported rate is that of a wire; False for bridges and virtual
    pairs.
    """

    @property
    def words(self) -> str:
        """Return the interface's name and reported rate, such as `eth0 (25 Gbit/s)`."""
        rate = f" ({format_bit_rate(1e6 * self.speed_mbps)})" if self.speed_mbps else ""
        return f"{clean(self.name)}{rate}"


def list_interfaces(root: Path = Path("/")) -> list[Interface]:
    """Return the network interfaces in NCCL's order: as the system lists them, but interfaces with IPv4 first."""
    stats = psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    found: list[Interface] = []
    for name, entries in psutil.net_if_addrs().items():
        addresses = [
            entry.address.partition("%")[0]
            for family in families
            for entry in entries
            if entry.family == family
        ]
        stat = stats.get(name)
        up, speed = (stat.isup, stat.speed) if stat is not None else (False, 0)
        folder = root / "sys/class/net" / name
        real = any((folder / sign).exists() for sign in ("device", "bonding"))
        found.append(Interface(name, up, tuple(addresses), max(0, speed), real))
    return found


def look_up(name: str) -> list[str]:
    """Return the addresses of a host name, in the order in which a backend would try them.

    Raises:
        TimeoutError: name servers did not answer within `RESOLVE_TIMEOUT_S`.
    """
    answers: list[list[str]] = []

    def work() -> None:
        try:
            found = resolve(name)
        except OSError:
            found = []
        answers.append(list(dict.fromkeys(str(address[0]) for _, address in found)))

    # In a thread that need not end, since the look-up itself cannot have a time limit.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(RESOLVE_TIMEOUT_S)
    if not answers:
        raise TimeoutError(f"no answer within {RESOLVE_TIMEOUT_S:.0f} s")
    return answers[0]


def owner_of(address: str, found: Sequence[Interface]) -> Interface | None:
    """Return the interface with this address, or None. All of 127.0.0.0/8 belongs to loopback."""
    for each in found:
        if address in each.addresses:
            return each
    if ipaddress.ip_address(address).is_loopback:
        return next((each for each in found if each.name == LOOPBACK), None)
    return None


def gloo_choice(
    found: Sequence[Interface], resolve: Callable[[], list[str]], env: Mapping[str, str]
) -> tuple[list[Interface], str]:
    """Return the interfaces that gloo would use (none if it would fail), and the reason.

    `resolve` returns the addresses of this host's name. As in torch (ProcessGroupGloo.cpp, Options::create_default and
    createDefaultDevice), GLOO_SOCKET_IFNAME of two or more characters names the interfaces. Otherwise gloo uses the
    first address of the host's name that can be bound, or else 127.0.0.1.
    """
    given = env.get("GLOO_SOCKET_IFNAME", "")
    if len(given) > 1:
        chosen = [
            next((e for e in found if e.name == name and e.addresses), None) for name in given.split(",")
        ]
        return [
            each for each in chosen if each is not None
        ] if None not in chosen else [], "GLOO_SOCKET_IFNAME"
    try:
        addresses = resolve()
    except TimeoutError:
        addresses = []
    for address in addresses:
        owner = owner_of(address, found)
        if owner is not None:
            return [owner], f"the host name's address {address}"
    loopback = owner_of("127.0.0.1", found)
    return ([loopback] if loopback else []), "the host name has no address here"


def faster_than(chosen: Sequence[Interface], found: Sequence[Interface], env: Mapping[str, str]) -> str:
    """Describe the fastest interface, if its rate is at least twice that of gloo's; otherwise `""`.

    Also `""` if the user chose gloo's interface, or if it is loopback or has an unknown rate.
    """
    if len(env.get("GLOO_SOCKET_IFNAME", "")) > 1 or len(chosen) != 1 or chosen[0].name == LOOPBACK:
        return ""
    rate = chosen[0].speed_mbps
    usable = [one for one in found if one.up and one.real and one.name != LOOPBACK and _reachable(one)]
    best = max(usable, key=lambda one: one.speed_mbps, default=None)
    return best.words if best is not None and 0 < _FASTER * rate <= best.speed_mbps else ""


def _reachable(interface: Interface) -> bool:
    """Return whether an address is not link-local, as one is on every running interface."""
    return any(not ipaddress.ip_address(address).is_link_local for address in interface.addresses)


def gloo_interfaces() -> tuple[str, str]:
    """Return two phrases: the interfaces that gloo would use here, and a faster one.

    Both are `""` if the interfaces cannot be determined.
    """
    try:
        found = list_interfaces()
        addresses = look_up(socket.gethostname())
    except (OSError, psutil.Error):  # including name servers that do not answer
        return "", ""
    chosen, _ = gloo_choice(found, lambda: addresses, os.environ)
    return ", ".join(one.words for one in chosen), faster_than(chosen, found, os.environ)
