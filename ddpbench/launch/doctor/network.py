"""Checks of the network: its interfaces, the interfaces that backends choose, the host's name, InfiniBand."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from ddpbench.launch.doctor.finding import CheckResult, note, ok, problem
from ddpbench.launch.doctor.host import Host
from ddpbench.machine.interfaces import LOOPBACK, Interface, faster_than, owner_of
from ddpbench.machine.interfaces import gloo_choice as gloo_choice_of

SHOWN = 8
"""The largest number of interfaces to describe. A host that runs containers has dozens of interfaces."""


def interfaces(host: Host) -> Iterator[CheckResult]:
    """Report the network interfaces with an address, and whether ranks here can connect to each other."""
    found = host.interfaces()
    if not any(each.name == LOOPBACK and each.up and each.addresses for each in found):
        yield problem(
            LOOPBACK,
            "the loopback interface is down or has no address, and ranks on this host connect over it",
            "bring it up: sudo ip link set lo up (in a new network namespace it starts down)",
            blocks=True,
        )
    useful = [each for each in found if each.addresses]
    for each in useful[:SHOWN]:
        yield ok(each.name, _described(each))
    rest = len(found) - len(useful[:SHOWN])
    if rest:
        without = "without an address" if len(useful) <= SHOWN else "not shown"
        yield ok("others", f"{rest} interface{'s' if rest != 1 else ''} {without}")


def _described(interface: Interface) -> str:
    speed = interface.speed_mbps
    rate = "" if not speed else f", {speed / 1000:g} Gbit/s" if speed >= 1000 else f", {speed} Mbit/s"
    return f"{'up' if interface.up else 'down'}, {', '.join(interface.addresses)}{rate}"


def host_name(host: Host) -> Iterator[CheckResult]:
    """Report whether other nodes could reach this host by its name's address."""
    name = host.host_name
    outward = next(
        (
            address
            for each in host.interfaces()
            if each.up and each.name != LOOPBACK
            for address in each.addresses
            if ":" not in address
        ),
        "this node's address",
    )

    def remedy(wrong: str = "a 127 address") -> str:
        return (
            f"on one machine this does not matter; for several nodes replace {wrong} by '{outward} "
            f"{name}' in /etc/hosts, or set GLOO_SOCKET_IFNAME to the interface between them"
        )

    try:
        addresses = host.resolve(name)
    except TimeoutError as error:
        yield note(
            "host name",
            f"{name}: name servers answer {error}, and every gloo rank asks them when it starts",
            f"put '{outward} {name}' into /etc/hosts, or fix /etc/resolv.conf",
        )
        return
    if not addresses:
        yield note("host name", f"{name} has no address: gloo falls back to loopback", remedy())
    elif ipaddress.ip_address(addresses[0]).is_loopback:
        yield note(
            "host name",
            f"{name} is {addresses[0]}, which only this machine can reach, but gloo would give it to "
            "other nodes",
            remedy(),
        )
    elif owner_of(addresses[0], host.interfaces()) is None:
        yield note(
            "host name",
            f"{name} is {addresses[0]}, which is not the address of any interface here",
            remedy(addresses[0]),
        )
    else:
        yield ok("host name", f"{name} is {addresses[0]}")


def gloo_choice(host: Host) -> tuple[list[Interface], str]:
    """Return the interfaces that gloo would use here (none if it would fail), and the reason."""
    return gloo_choice_of(host.interfaces(), lambda: host.resolve(host.host_name), host.env)


def gloo(host: Host) -> Iterator[CheckResult]:
    """Report the interface that gloo would choose, and whether a faster one exists."""
    chosen, why = gloo_choice(host)
    names = ", ".join(each.name for each in chosen)
    given = host.env.get("GLOO_SOCKET_IFNAME", "")
    if not chosen:
        there = ", ".join(each.name for each in host.interfaces() if each.addresses) or "none"
        yield problem(
            "gloo picks",
            f"GLOO_SOCKET_IFNAME={given} names an interface that does not exist here or has no address: "
            "every gloo group fails, except in ddpbench's local launches, which use lo",
            f"unset it, or set it to one of: {there}",
        )
    elif all(each.name == LOOPBACK for each in chosen):
        yield ok("gloo picks", f"{names}, as it should be for ranks on this host ({why})")
    elif faster := faster_than(chosen, host.interfaces(), host.env):
        yield note(
            "gloo picks",
            f"{chosen[0].words}, {why}; {faster} is faster. Local launches of ddpbench use lo",
            "if the faster interface connects your nodes, set GLOO_SOCKET_IFNAME to its name there",
        )
    else:
        yield ok("gloo picks", f"{names} ({why}); local launches of ddpbench use lo")


def nccl_choice(host: Host) -> list[Interface]:
    """Return the interfaces that nccl would use for its sockets, chosen as in nccl's src/misc/socket.cc.

    Only running interfaces with an address count. NCCL_SOCKET_IFNAME of two or more characters lists prefixes (`=`:
    exact names, `^`: excluded). Without it, nccl tries names beginning with ib, then any except docker, lo and virbr,
    then docker, then lo.
    """
    running = [each for each in host.interfaces() if each.up and each.addresses]
    given = host.env.get("NCCL_SOCKET_IFNAME", "")
    if len(given) > 1:
        return _matching(running, given)
    for pattern in ("ib", "^docker,lo,virbr", "docker", "lo"):
        if found := _matching(running, pattern):
            return found
    return []


def _matching(found: Sequence[Interface], pattern: str) -> list[Interface]:
    without, pattern = pattern.startswith("^"), pattern.removeprefix("^")
    exact, pattern = pattern.startswith("="), pattern.removeprefix("=")
    names = [name.partition(":")[0] for name in pattern.split(",") if name]

    def matches(name: str) -> bool:
        return any(name == each if exact else name.startswith(each) for each in names)

    return [each for each in found if matches(each.name) != without]


def nccl(host: Host) -> Iterator[CheckResult]:
    """Report the interface that nccl would choose for its sockets, and whether InfiniBand carries the data."""
    if not host.hardware().may_have_gpus:
        return
    chosen = nccl_choice(host)
    given = host.env.get("NCCL_SOCKET_IFNAME", "")
    names = ", ".join(each.name for each in chosen)
    if not chosen:
        yield problem(
            "nccl picks",
            f"no running interface matches NCCL_SOCKET_IFNAME={given}",
            f"unset it, or name one of: {', '.join(each.name for each in host.interfaces() if each.up)}",
        )
        return
    why = f"NCCL_SOCKET_IFNAME={given}" if given else "its default order: ib first, docker and lo last"
    over = ""
    if _active(host) and host.env.get("NCCL_IB_DISABLE", "0") != "1":
        over = "; data between nodes over InfiniBand"
    yield ok("nccl picks", f"{names} ({why}){over}; within this host GPUs use their own links")


def _ports(host: Host) -> list[tuple[str, str, str, str]]:
    """Return the InfiniBand ports as (device/port, state, rate, link layer), in the system's notation."""
    root = host.sys_root / "class/infiniband"
    return [
        (
            f"{device}/{port}",
            host.read(root / device / "ports" / port / "state").partition(":")[2].strip() or "state not told",
            host.read(root / device / "ports" / port / "rate"),
            host.read(root / device / "ports" / port / "link_layer"),
        )
        for device in host.names(root)
        for port in host.names(root / device / "ports")
    ]


def _active(host: Host) -> bool:
    return any(state == "ACTIVE" for _, state, _, _ in _ports(host))


def infiniband(host: Host) -> Iterator[CheckResult]:
    """Report the InfiniBand and RoCE ports."""
    ports = _ports(host)
    if not ports:
        yield ok("infiniband", "none")
    for name, state, rate, layer in ports:
        found = ", ".join(part for part in (state, rate, layer) if part)
        if state == "ACTIVE":
            yield ok(name, found)
        else:
            yield note(
                name,
                f"{found}: nccl leaves it out",
                "if it has a cable, check ibstat, the subnet manager and the driver; otherwise this "
                "does not matter",
            )
