"""Facts about real fabrics, from inside and outside, as JSON: `python -m tests.fabric.standing SCENE FOLDER [ARG ...]`.

Runs in a separate process, so that the tests can run it with and without privilege.
"""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401  what enters may not be let read it
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddpbench.errors import FabricError
from ddpbench.fabric import Fabric, RankPlace
from ddpbench.fabric.entering import enter
from ddpbench.fabric.store import COUNT
from ddpbench.launch.doctor.nodes.gathering import Node, take_part
from ddpbench.launch.doctor.nodes.judging import judged
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.spec import Links

PORT = 4000
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2


def inside(place: RankPlace, work: Callable[[], Any]) -> Any:
    """Return what a process that enters a place finds there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        found: Any = "it failed"
        try:
            enter(place.net_ns, place.user_ns)
            found = work()
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, json.dumps(found).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = json.load(pipe)
    os.waitpid(pid, 0)
    return found


def refusal(address: str, port: int) -> str:
    """Return how a connection fails, or `connected`."""
    try:
        with socket.create_connection((address, port), timeout=2):
            return "connected"
    except OSError as error:
        return error.strerror or str(error)


class Listening:
    """A server in a place; it accepts one connection and reads it to its end."""

    def __init__(self, place: RankPlace, port: int = PORT) -> None:
        ready_read, ready_write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            enter(place.net_ns, place.user_ns)
            with socket.create_server((place.address, port)) as server:
                os.write(ready_write, b"1")
                connection, _ = server.accept()
                count = 0
                while data := connection.recv(1 << 20):
                    count += len(data)
                connection.sendall(COUNT.pack(count))
                connection.close()
            os._exit(0)
        os.close(ready_write)
        assert os.read(ready_read, 1) == b"1"
        os.close(ready_read)

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)


def send(address: str, count: int, port: int = PORT) -> dict[str, float]:
    """Send `count` bytes to a `Listening`; return what arrived, and the seconds from the first byte to the answer."""
    with socket.create_connection((address, port), timeout=30) as connection:
        began = time.monotonic()
        connection.sendall(bytes(count))
        connection.shutdown(socket.SHUT_WR)
        (arrived,) = COUNT.unpack(connection.recv(8, socket.MSG_WAITALL))
        return {"arrived": arrived, "seconds": time.monotonic() - began}


def between(fabric: Fabric, source: int, target: int, count: int) -> dict[str, float]:
    """Send bytes from one rank to another."""
    with Listening(fabric.places[target]):
        return inside(fabric.places[source], lambda: send(fabric.places[target].address, count))


def fetch(address: str, port: int, counts: list[int]) -> dict[str, Any]:
    """Request bytes from a fabric's store, one count after the other over one connection."""
    with socket.create_connection((address, port), timeout=30) as connection:
        began = time.monotonic()
        arrived = []
        for count in counts:
            connection.sendall(COUNT.pack(count))
            left = count
            while left:
                left -= len(connection.recv(min(left, 1 << 20)))
            arrived.append(count - left)
        connection.settimeout(0.1)
        try:
            more = len(connection.recv(1))
        except TimeoutError:
            more = 0
        return {"arrived": arrived, "more": more, "seconds": time.monotonic() - began - 0.1}


def links_of(fabric: Fabric) -> list[dict[str, Any]]:
    return [asdict(link) for link in fabric.prove(shared_cores=own_environment_allows_sharing()).links]


def isolated(log: Path, text: str) -> dict[str, Any]:
    """Return, for four nodes, what a rank sees, and what this process's network sees of them."""
    rtmgrp_link = 1
    watch = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    watch.bind((0, rtmgrp_link))
    watch.setblocking(False)
    before = socket.if_nameindex()
    with (
        Fabric(Links.parse(text), nodes=4, ranks_per_node=1, log=log) as fabric,
        socket.create_server(("0.0.0.0", 0)) as ours,
    ):
        during = socket.if_nameindex()
        port = ours.getsockname()[1]

        def look() -> dict[str, Any]:
            routes = Path("/proc/net/route").read_text(encoding="utf-8").splitlines()[1:]
            return {
                "interfaces": sorted(name for _, name in socket.if_nameindex()),
                "routes": [line.split()[:3] for line in routes],
                "outward": refusal("192.0.2.1", 80),
                "to_us": refusal("127.0.0.1", port),
                "user": os.getuid(),
            }

        def dies_with_parent() -> int:
            found = ctypes.c_int(0)
            ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(found), 0, 0, 0)
            return found.value

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
        written = log.parent / "written-inside"

        def set_then_enter() -> list[int]:
            written.write_text("by a rank", encoding="utf-8")
            return [written.stat().st_uid, Path("/proc/self/status").stat().st_uid]

        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
            enter(fabric.places[1].net_ns, fabric.places[1].user_ns)
            os.write(write, json.dumps([dies_with_parent(), *set_then_enter()]).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        found = {
            "privileged": fabric.privileged,
            "places": [asdict(place) for place in fabric.places],
            "inside": inside(fabric.places[0], look),
            "signal_and_owners": json.loads(os.read(read, 100)),
            "file_outside": written.stat().st_uid,
            "sent": between(fabric, 0, 3, 100_000),
            "links": links_of(fabric),
        }
    after = socket.if_nameindex()
    try:
        said = len(watch.recv(65536))
    except BlockingIOError:
        said = 0
    return {
        **found,
        "user": os.getuid(),
        "host": [before, during, after],
        "said_on_the_host": said,
        "children": _children(),
    }


def _children() -> int:
    try:
        os.waitpid(-1, os.WNOHANG)
        return 1
    except ChildProcessError:
        return 0


def proved(log: Path, text: str, nodes: str, ranks_per_node: str) -> dict[str, Any]:
    """Return a fabric's links, and the time of a transfer between its first and last rank."""
    with Fabric(Links.parse(text), nodes=int(nodes), ranks_per_node=int(ranks_per_node), log=log) as fabric:
        return {
            "places": [asdict(place) for place in fabric.places],
            "links": links_of(fabric),
            "across": between(fabric, 0, len(fabric.places) - 1, 2_000_000),
            "neighbours": between(fabric, 0, 1, 2_000_000),
        }


def checked(log: Path, text: str, nodes: str) -> dict[str, Any]:
    """Return what `doctor --nodes` finds on a fabric's nodes: each pair's rates, and the findings that are not ok."""
    count = int(nodes)
    with Fabric(Links.parse(text), nodes=count, ranks_per_node=1, log=log) as fabric:
        first = (fabric.places[0].address, PORT)

        def part(number: int) -> Any:
            me = Node(
                number=number,
                host=f"h{number}",
                interface="eth0",
                why="the fabric's",
                address=fabric.places[number].address,
            )
            listed, pairs = take_part(me, count, first)
            bad = [asdict(finding) for finding in judged(listed, pairs) if finding.level != "ok"]
            return {"pairs": [pair.to_json() for pair in pairs], "findings": bad}

        with ThreadPoolExecutor(count) as pool:
            results = pool.map(
                lambda number: inside(fabric.places[number], lambda: part(number)), range(count)
            )
            return next(iter(list(results)))  # type: ignore[no-any-return]


def stored(log: Path, text: str) -> dict[str, Any]:
    """Return what two nodes get from the store, over each of its addresses."""
    with Fabric(Links.parse(text), nodes=2, ranks_per_node=1, log=log) as fabric:
        place = fabric.storage
        assert place is not None
        found: dict[str, Any] = {"place": asdict(place)}
        for name, address in (("shared", place.shared), ("own", place.own)):
            if address:
                port = place.port
                found[name] = inside(
                    fabric.places[1], lambda a=address, p=port: fetch(a, p, [1_000_000, 1, 1_000_000])
                )
        return {**found, "links": links_of(fabric)}


def apart(log: Path) -> dict[str, Any]:
    """Return what is seen of two fabrics with the same addresses, and a server in the second."""
    links = Links.parse("100 Mbit/s")
    with (
        Fabric(links, nodes=2, ranks_per_node=1, log=log) as first,
        Fabric(links, nodes=2, ranks_per_node=1, log=log) as second,
        Listening(second.places[1]),
    ):
        address = second.places[1].address
        assert address == first.places[1].address
        return {
            "from_the_first": inside(first.places[0], lambda: refusal(address, PORT)),
            "from_the_second": inside(second.places[0], lambda: refusal(address, PORT)),
        }


def refused(log: Path, text: str, nodes: str) -> dict[str, Any]:
    """Return why a fabric cannot be made or proved."""
    try:
        with Fabric(Links.parse(text), nodes=int(nodes), ranks_per_node=1, log=log) as fabric:
            fabric.prove(shared_cores=own_environment_allows_sharing())
    except FabricError as error:
        return {"reason": str(error), "children": _children()}
    return {"reason": ""}


def waiting(log: Path) -> dict[str, Any]:
    """Make a fabric with a store, print the ids of its processes, and stay until killed."""
    fabric = Fabric(Links.parse("100 Mbit/s; shared storage"), nodes=4, ranks_per_node=1, log=log)
    children = Path(f"/proc/{fabric.pid}/task/{fabric.pid}/children").read_text(encoding="utf-8").split()
    print(json.dumps({"holder": fabric.pid, "store": [int(pid) for pid in children]}), flush=True)
    sys.stdin.readline()
    fabric.close()
    return {}


if __name__ == "__main__":
    scene, folder, *arguments = sys.argv[1:]
    print(json.dumps(globals()[scene](Path(folder) / "fabric.log", *arguments)), flush=True)
