"""Control a fabric (emulated network): start the process that makes it, place ranks in it, and measure its links."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

from ddpbench.errors import FabricError
from ddpbench.fabric.proof import FabricProof, LinkProof, held, measured
from ddpbench.fabric.topology import STORE_PORT, draw, phases
from ddpbench.fabric.wiring import FRAME_BYTES, FlowPhase
from ddpbench.guard import is_stopped
from ddpbench.helper_process import child_environment
from ddpbench.records.files import open_to_append
from ddpbench.spec.fabric import Links

MAKE_TIMEOUT_S = 60.0
SETTLE_S = 0.4
"""Time for which traffic runs before bytes are counted (s). Connections start slowly, and full token buckets pass the
first bytes at once.
"""
WINDOW_S = 0.5
WINDOW_FRAMES = 100
"""Number of frames that the slowest link must be able to carry in a window, so that one frame is 1 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """A rank's place in a fabric. The rank enters it by `entering.enter(place.net_ns, place.user_ns)`."""

    node: int
    interface: str
    address: str
    net_ns: str
    """Path of the rank's network namespace; valid as long as the fabric exists."""
    user_ns: str
    """Path of the fabric's user namespace; empty if the fabric was made with privilege."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoragePlace:
    """Addresses of the server of input data; `ddpbench.fabric.store` defines the server's protocol."""

    shared: str
    """Address that nodes reach over the link that also carries gradients."""
    own: str
    """Address that nodes reach over a second link, for storage only; empty if nodes have one link."""
    port: int


class Fabric:
    """An emulated network. As a context manager, it leaves no namespace, link or process behind.

    It also ends with the thread that made it.

    Args:
        links: the links to make; with time dilation, their rates must already be slowed.
        nodes: number of nodes, divided evenly among the links' racks.
        ranks_per_node: number of `places` on each node.
        log: file to which the output of the holding process is appended.

    Raises:
        FabricError: the fabric cannot be made here; the message says what is missing, and what to do.
    """

    def __init__(self, links: Links, *, nodes: int, ranks_per_node: int, log: Path) -> None:
        if sys.platform != "linux":
            raise FabricError(
                f"an emulated network needs the network namespaces of Linux; this is {sys.platform}"
            )
        self._topology = draw(links, nodes=nodes, ranks_per_node=ranks_per_node)
        self._log = log
        output = open_to_append(log)
        ours, theirs = socket.socketpair()
        self._connection = ours
        self._received = b""
        try:
            with theirs, output:
                # Its own session: Ctrl-C reaches only the controlling side, which ends all in order.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "ddpbench.fabric", str(theirs.fileno()), str(os.getpid())],
                    env=child_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise FabricError(f"the process of the emulated network could not be started: {error}") from None
        try:
            made = self._ask(
                MAKE_TIMEOUT_S, do="make", wiring=self._topology.wiring.to_json(), store_port=STORE_PORT
            )
        except BaseException:
            self.close()
            raise
        descriptors, user = made["net"], made["user"]
        self.privileged: bool = made["privileged"]
        holder = f"/proc/{self._process.pid}/fd"
        places: list[RankPlace] = []
        for node, members in enumerate(self._topology.members):
            for local_rank in range(ranks_per_node):
                space = members[local_rank % len(members)]
                places.append(
                    RankPlace(
                        node=node,
                        interface="eth0",
                        address=self._topology.address(space),
                        net_ns=f"{holder}/{descriptors[space]}",
                        user_ns=f"{holder}/{user}" if user is not None else "",
                    )
                )
        self.places = tuple(places)
        self.storage = (
            StoragePlace(
                shared=self._topology.store_address(),
                own=self._topology.store_address(1) if self._topology.networks > 1 else "",
                port=STORE_PORT,
            )
            if self._topology.wiring.store is not None
            else None
        )

    @property
    def pid(self) -> int:
        """Return the id of the process that holds the fabric."""
        return self._process.pid

    def prove(self, *, shared_cores: bool = False) -> FabricProof:
        """Load all links with traffic, phase by phase, and return the rates that the kernel's counters show.

        A phase takes about a second, on busy cores up to half a minute (some seconds with `shared_cores`). Latency and
        loss are off meanwhile.

        Raises:
            FabricError: a link's rate is wrong by more than 5 % (with `shared_cores`, too low by more than a third);
                the message says which rate this machine reaches, and what to do.
        """
        links: list[LinkProof] = []
        slowest = min((cable.rate for cable in self._topology.wiring.cables if cable.rate), default=math.inf)
        window_s = max(WINDOW_S, WINDOW_FRAMES * FRAME_BYTES * 8 / slowest)
        for phase in phases(self._topology):

            def carry(windows: int, phase: FlowPhase = phase) -> tuple[LinkProof, ...]:
                answer = self._ask(
                    MAKE_TIMEOUT_S,
                    do="carry",
                    flows=[dataclasses.asdict(flow) for flow in phase.flows],
                    settle_s=SETTLE_S,
                    window_s=window_s,
                    windows=windows,
                )
                counts = [
                    {(space, name): (sent, dropped, at) for space, name, sent, dropped, at in window}
                    for window in answer["windows"]
                ]
                return measured(self._topology.wiring, phase, counts)

            links += held(carry, shared_cores=shared_cores)
        dropped = {(link.label, link.side): link.dropped for link in links}
        return FabricProof(links=tuple(links), dropped=sum(dropped.values()))

    def _ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise self._gone() from None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not wait([self._connection], left):
                was = "was stopped, by SIGSTOP or a debugger" if is_stopped(self.pid) else "did not answer"
                raise FabricError(
                    f"the process of the emulated network {was}; run the command again, or see {self._log}"
                )
            try:
                data = self._connection.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                raise self._gone()
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if answer["event"] == "refused":
            raise FabricError(answer["reason"])
        return answer

    @property
    def ended(self) -> str:
        """Return a phrase that says how the process that holds the fabric ended; `""` while it runs."""
        code = self._process.poll()
        return "" if code is None else f"its process ended with exit code {code}; see {self._log}"

    def _gone(self) -> FabricError:
        try:
            end = f"ended with exit code {self._process.wait(timeout=5)}"
        except subprocess.TimeoutExpired:
            end = "closed its connection without ending"
        return FabricError(f"the process of the emulated network {end}; see {self._log}")

    def close(self) -> None:
        """End the process that holds the fabric. All namespaces and links that no rank still uses vanish with it."""
        self._connection.close()
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Fabric:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
