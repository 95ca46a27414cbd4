"""Make the namespaces and links of a wiring through netlink, without any name on the host (Linux only).

Every rate is enforced at the sending interface by tbf, the kernel's token bucket filter. tbf counts a large TCP segment
with the headers of all its frames, and splits one that is larger than the bucket.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import resource
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_tbf

from ddpbench.errors import FabricError
from ddpbench.fabric.entering import CLONE_NEWNET, CLONE_NEWUSER, setns, stay_readable, unshare
from ddpbench.fabric.wiring import PREFIX, SWITCH, Cable, Port, Wiring

QUEUE_BYTES = 256 << 20
"""Number of bytes that may queue at a link. The senders' windows never exceed it, so no frame is lost even if all nodes
send to the same node.
"""
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_PERMANENT = 0x80  # NUD_PERMANENT
_NO_PREFIX_ROUTE = 0x200  # IFA_F_NOPREFIXROUTE
_DELAYED_PACKETS = 1_000_000


class _Tbf:
    """pyroute2's tbf, for rates from 2^32 bytes/s and a bucket size in bytes."""

    parent = sched_tbf.parent

    class options(sched_tbf.options):  # type: ignore[misc]  # noqa: N801
        nla_map = (
            ("TCA_TBF_UNSPEC", "none"),
            ("TCA_TBF_PARMS", "tbf_parms"),
            ("TCA_TBF_RTAB", "hex"),
            ("TCA_TBF_PTAB", "hex"),
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )

    @staticmethod
    def fix_request(request: dict[str, Any]) -> None:
        request.pop("rate", None)

    @staticmethod
    def get_parameters(given: dict[str, Any]) -> dict[str, Any]:
        """Return netlink's options for `rate` (bytes/s), `burst` and `limit` (bytes)."""
        rate, burst = int(given["rate"]), int(given["burst"])
        ethernet = 1  # TC_LINKLAYER_ETHERNET: else the kernel guesses it from a table of times
        parms = {
            "rate": min(rate, 2**32 - 1),
            "rate___reserved": ethernet,
            "limit": given["limit"],
            "buffer": 0,
            "mtu": 0,
        }
        attributes = [["TCA_TBF_PARMS", parms], ["TCA_TBF_BURST", burst]]
        if rate >= 2**32:
            attributes.append(["TCA_TBF_RATE64", rate])
        return {"attrs": attributes}


plugins["tbf"] = _Tbf


@dataclass(frozen=True, slots=True)
class Spaces:
    """File descriptors that keep namespaces open; `user` is None if no user namespace was made."""

    net: tuple[int, ...]
    user: int | None


def privileged() -> bool:
    """Return whether this process may make network namespaces, and links in them, without a user namespace."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            return bool(held >> _CAP_NET_ADMIN & 1 and held >> _CAP_SYS_ADMIN & 1)
    return False


def make_spaces(count: int) -> Spaces:
    """Make `count` network namespaces without names; without privilege, make them in a new user namespace.

    Afterwards this process is in the last network namespace, and in the user namespace.

    Raises:
        FabricError: the kernel does not allow this; the message says what to do.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    user = None if privileged() else enter_user_namespace()
    found: list[int] = []
    for _ in range(count):
        try:
            unshare(CLONE_NEWNET)
        except OSError as error:
            raise FabricError(_why_not(error, "net")) from None
        found.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    return Spaces(tuple(found), user)


def enter_user_namespace() -> int:
    """Move this process into a new user namespace, where it has all rights; return the namespace's file descriptor.

    Raises:
        FabricError: the kernel does not allow this; the message says what to do.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWUSER)
    except OSError as error:
        raise FabricError(_why_not(error, "user")) from None
    stay_readable()
    # Users keep their own ids, so that files belong to them. Root without CAP_SETFCAP may not be mapped:
    # it continues as nobody with all rights inside, which is enough.
    with contextlib.suppress(PermissionError):
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="utf-8")
    return os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _why_not(error: OSError, kind: str) -> str:
    """Say why namespaces of this kind (`user` or `net`) cannot be made here, and what to do."""
    lacks = "a fabric needs network namespaces, and this process is not permitted to make them"
    root = "run as root, in a container with --cap-add SYS_ADMIN --cap-add NET_ADMIN"
    if error.errno in (errno.ENOSPC, errno.EUSERS):
        name = f"user.max_{kind}_namespaces"
        limit = _setting(name.replace(".", "/")) or "too low"
        return f"{lacks}: {name} is {limit}; {root}, or sudo sysctl {name}=10000"
    if error.errno in (errno.EINVAL, errno.ENOSYS):
        return (
            f"{lacks}: the kernel is built without them (CONFIG_NET_NS, CONFIG_USER_NS); use another kernel"
        )
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            f"{lacks}: AppArmor blocks unprivileged user namespaces; {root}, or allow them with "
            "`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return (
            f"{lacks}: the kernel blocks unprivileged user namespaces; {root}, or allow them with "
            "`sudo sysctl kernel.unprivileged_userns_clone=1`"
        )
    return (
        f"{lacks} ({os.strerror(error.errno or 0)}): a container's filter of system calls forbids it; {root}, "
        "or start the container with --security-opt seccomp=unconfined"
    )


@contextlib.contextmanager
def inside(spaces: Spaces, space: int) -> Iterator[IPRoute]:
    """Yield a netlink connection to namespace number `space`; this process stays in the namespace afterwards."""
    setns(spaces.net[space], CLONE_NEWNET)
    with IPRoute() as netlink:
        yield netlink


@contextlib.contextmanager
def _needing(what: str, module: str, consequence: str) -> Iterator[None]:
    """Name `module` if the kernel lacks it and so refuses to make `what`.

    Raises:
        FabricError: the kernel refuses.
    """
    try:
        yield
    except NetlinkError as error:
        if error.code in (errno.EOPNOTSUPP, errno.ENOENT):
            raise FabricError(
                f"the kernel has no {what}: {consequence}. Load {module} (sudo modprobe {module}), or use a "
                "kernel that has it"
            ) from None
        if error.code in (errno.EPERM, errno.EACCES):
            raise FabricError(_why_not(OSError(error.code, ""), "net")) from None
        raise FabricError(f"the kernel refused a {what}: {os.strerror(error.code)}") from None


_NO_FABRIC = "no link can be emulated here"
_NO_NETEM = (
    "the kernel has no netem (sch_netem): latency and loss cannot be emulated here; leave fabric.latency and "
    "fabric.loss out, or use a kernel with CONFIG_NET_SCH_NETEM"
)


def add_bridge(netlink: IPRoute, name: str) -> int:
    """Add a bridge that forwards at once, never forgets addresses and ignores multicast; return its interface index."""
    with _needing("bridge", "bridge", _NO_FABRIC):
        netlink.link(
            "add",
            kind="bridge",
            ifname=name,
            br_stp_state=0,
            br_forward_delay=0,
            br_mcast_snooping=0,
            br_ageing_time=100_000_000,
        )
    index: int = netlink.link_lookup(ifname=name)[0]
    _quiet(netlink, index)
    netlink.link("set", index=index, state="up")
    return index


def add_pair(netlink: IPRoute, name: str, peer: dict[str, Any]) -> None:
    """Add a veth pair; `peer` has `ifname` and, unless the peer stays in this namespace, `net_ns_fd`."""
    with _needing("veth", "veth", _NO_FABRIC):
        netlink.link("add", kind="veth", ifname=name, peer=peer)


def shape(netlink: IPRoute, index: int, rate: float, burst: int) -> None:
    """Limit an interface's sending to `rate` (bit/s), with bursts of up to `burst` bytes after a pause."""
    with _needing("tbf", "sch_tbf", _NO_FABRIC):
        netlink.tc(
            "add",
            "tbf",
            index=index,
            handle=0x10000,
            rate=rate / 8,
            burst=burst,
            limit=QUEUE_BYTES,
        )


def delay(netlink: IPRoute, index: int, latency_s: float, loss: float) -> None:
    """Add latency (s) and loss (a fraction) in front of a rate-limited interface's token bucket.

    Raises:
        FabricError: the kernel has no netem, or refuses it.
    """
    try:
        netlink.tc(
            "replace",
            "netem",
            index=index,
            parent=0x10001,
            handle=0x20000,
            delay=round(1e6 * latency_s),
            loss=100 * loss,
            limit=_DELAYED_PACKETS,
        )
    except NetlinkError as error:
        if error.code in (errno.EOPNOTSUPP, errno.ENOENT):
            raise FabricError(_NO_NETEM) from None
        raise FabricError(f"the kernel refused netem: {os.strerror(error.code)}") from None


def prompt(netlink: IPRoute, index: int) -> None:
    """Remove an interface's latency and loss, because TCP over a lossy link would not reach the link's rate."""
    netlink.tc("replace", "pfifo", index=index, parent=0x10001, handle=0x30000, limit=_DELAYED_PACKETS)


def _quiet(netlink: IPRoute, index: int) -> None:
    """Disable the automatic IPv6 address, so that the link carries only data sent on purpose."""
    if Path("/proc/sys/net/ipv6").exists():
        no_address = {"attrs": [["AF_INET6", {"attrs": [["IFLA_INET6_ADDR_GEN_MODE", 1]]}]]}
        netlink.link("set", index=index, IFLA_AF_SPEC=no_address)


def make(wiring: Wiring, spaces: Spaces) -> None:
    """Make the bridges, cables, rates and addresses of a wiring in these namespaces, and bring all interfaces up.

    Raises:
        FabricError: the kernel lacks a module, or refuses to make a part; the message names the module or part.
    """
    delayed = wiring.latency_s > 0 or wiring.loss > 0
    with inside(spaces, SWITCH) as netlink:
        if delayed:
            _refuse_without_netem(netlink)
        bridges = {name: add_bridge(netlink, name) for name in wiring.bridges}
        for cable in wiring.cables:
            peer: dict[str, Any] = {"ifname": cable.near.name}
            if cable.near.space != SWITCH:
                peer["net_ns_fd"] = spaces.net[cable.near.space]
            if cable.near.segments is not None:
                peer["gso_max_segs"] = cable.near.segments
            add_pair(netlink, cable.far.name, peer)
    hosts: dict[str, list[str]] = {}
    for cable in wiring.cables:
        if cable.near.address:
            hosts.setdefault(_network(cable.near.address), []).append(cable.near.address)
    with inside(spaces, SWITCH) as netlink:
        _finish(netlink, SWITCH, wiring, bridges, hosts)
    for space in range(SWITCH + 1, wiring.spaces):
        with inside(spaces, space) as netlink:
            _finish(netlink, space, wiring, {}, hosts)


def _refuse_without_netem(netlink: IPRoute) -> None:
    """Try netem on the loopback before anything else is made.

    Raises:
        FabricError: the kernel has no netem.
    """
    shape(netlink, 1, 1e9, 65536)
    delay(netlink, 1, 1e-3, 0.0)
    netlink.tc("del", index=1, parent=0xFFFFFFFF)


def ends(wiring: Wiring, space: int) -> list[tuple[Cable, Port]]:
    """Return each interface in the namespace `space`, with the cable that the interface belongs to."""
    return [
        (cable, port) for cable in wiring.cables for port in (cable.near, cable.far) if port.space == space
    ]


def _finish(
    netlink: IPRoute, space: int, wiring: Wiring, bridges: dict[str, int], hosts: dict[str, list[str]]
) -> None:
    indexes = {link.get("ifname"): link["index"] for link in netlink.get_links()}
    netlink.link("set", index=indexes["lo"], state="up")
    for cable, port in ends(wiring, space):
        index = indexes[port.name]
        _quiet(netlink, index)
        if cable.rate is not None:
            shape(netlink, index, cable.rate, cable.burst)
            if cable.delayed and (wiring.latency_s or wiring.loss):
                delay(netlink, index, wiring.latency_s, wiring.loss)
        if port.bridge:
            netlink.link("set", index=index, master=bridges[port.bridge], state="up")
            continue
        netlink.link("set", index=index, address=_hardware(port.address), state="up")
        netlink.addr("add", index=index, address=port.address, prefixlen=PREFIX, IFA_FLAGS=_NO_PREFIX_ROUTE)
        _add_routes(netlink, index, port, lossy=wiring.loss > 0)
        _add_neighbours(index, [host for host in hosts[_network(port.address)] if host != port.address])


def _add_routes(netlink: IPRoute, index: int, port: Port, *, lossy: bool) -> None:
    """Add a port's routes, each with a congestion control, because the host's default may be unsuitable.

    Lossy links get cubic, the default of most hosts. Others get reno, which keeps its window at the receiver's limit:
    cubic would stop growing at the first delay, and bbr would leave links idle now and then.
    """
    available = _setting("net/ipv4/tcp_available_congestion_control").split()
    common = {"cc_algo": "cubic" if lossy and "cubic" in available else "reno"}
    for route in port.routes:
        metrics = common if route.window is None else {**common, "window": route.window}
        netlink.route("add", dst=route.to, oif=index, prefsrc=port.address, scope=253, metrics=metrics)


def _network(address: str) -> str:
    return str(ipaddress.ip_network(f"{address}/{PREFIX}", strict=False).network_address)


def _hardware(address: str) -> str:
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def _add_neighbours(index: int, addresses: Sequence[str]) -> None:
    """Add other hosts' link-layer addresses to the kernel's table, so that no ARP request is sent.

    An ARP reply would come too late when many nodes send to one, and the kernel keeps at most 1,024 replies.

    Raises:
        FabricError: the kernel refuses an address.
    """
    flags = 0x1 | 0x400  # NLM_F_REQUEST | NLM_F_CREATE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.bind((0, 0))
        for start in range(0, len(addresses), 256):
            some = addresses[start : start + 256]
            packed = bytearray()
            for number, address in enumerate(some):
                protocol = socket.inet_aton(address)
                body = struct.pack("=BxHiHBB", socket.AF_INET, 0, index, _PERMANENT, 0, 0)
                body += struct.pack("=HH4s", 8, 1, protocol)  # NDA_DST
                body += struct.pack("=HH2s4s2x", 10, 2, b"\x02\x00", protocol)  # NDA_LLADDR
                acknowledged = 0x4 if number == len(some) - 1 else 0  # NLM_F_ACK
                new_neighbour = 28
                packed += struct.pack(
                    "=IHHII", 16 + len(body), new_neighbour, flags | acknowledged, number, 0
                )
                packed += body
            netlink.send(packed)
            reply = netlink.recv(65536)
            (code,) = struct.unpack_from("=i", reply, 16)
            if code:
                raise FabricError(f"the kernel refused neighbours: {os.strerror(-code)}")
