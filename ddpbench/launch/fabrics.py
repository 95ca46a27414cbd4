"""The emulated networks of a sweep, made and checked before the first launch, and removed at the end."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ddpbench.errors import UnreadableError
from ddpbench.launch.plan import LaunchPlan, PlannedRank
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.records import RunDir, write_atomically
from ddpbench.records.files import MOST_NOTES, parse_json, read_bytes
from ddpbench.spec import Case, Links

if TYPE_CHECKING:
    from ddpbench.fabric import Fabric

MOST_AT_ONCE = 24
"""The largest number of networks at once. To make another one, the least recently used network is removed."""


def made_links(case: Case) -> Links:
    """Return the links to emulate for a case: its nominal links, slowed by its dilation and its shrink factor."""
    return Links.parse(case.fabric).slowed(dilation=case.dilation, shrink=case.shrink)


def check_drawable(cases: Iterable[Case]) -> None:
    """Check that the emulated networks of these cases are possible, before anything is started.

    Raises:
        FabricError: a case's network has too many parts, or its links would be too slow after dilation and shrink.
    """
    from ddpbench.fabric.topology import draw

    for case in cases:
        if case.fabric:
            draw(made_links(case), nodes=case.nodes, ranks_per_node=case.ranks_per_node)


class Fabrics:
    """Makes the emulated networks of cases; a context manager that removes them all at the end."""

    def __init__(self, run: RunDir, preparing: Callable[[str], None]) -> None:
        """`preparing` is called with a phrase that describes the current work."""
        self._run = run
        self._preparing = preparing
        self._standing: dict[tuple[Any, ...], Fabric] = {}
        self._proved: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._stack = ExitStack()

    def make(self, cases: Iterable[Case]) -> None:
        """Make and check the networks of these cases, so that faults show before anything is measured.

        Raises:
            FabricError: a network cannot be made here, or does not carry the requested rate.
        """
        for case in cases:
            if case.fabric:
                self._of(case)

    def placed(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the launch with each rank's network namespace and rendezvous host; unchanged if its links are real.

        Raises:
            FabricError: the network cannot be made here, or does not carry the requested rate.
        """
        case = plan.case
        if not case.fabric:
            return plan
        fabric = self._of(case)
        places = fabric.places
        master = places[0].address
        ranks = tuple(
            PlannedRank(
                env={
                    **rank.env,
                    "MASTER_ADDR": master,
                    "GLOO_SOCKET_IFNAME": place.interface,
                    "DDPBENCH_NET_NS": place.net_ns,
                    "DDPBENCH_USER_NS": place.user_ns,
                    "DDPBENCH_NODE": str(place.node),
                    **self._storage(fabric, case),
                }
            )
            for rank, place in zip(plan.ranks, places, strict=False)  # one process may hold all replicas
        )
        return dataclasses.replace(plan, ranks=ranks)

    def lost(self, case: Case) -> str:
        """Return how a case's emulated network was lost; empty if it exists, or is not needed."""
        if not case.fabric:
            return ""
        ended = self._standing[made_links(case), case.nodes, case.ranks_per_node].ended
        return ended and f"the emulated network no longer exists: {ended}"

    @staticmethod
    def _storage(fabric: Fabric, case: Case) -> dict[str, str]:
        if fabric.storage is None:
            return {}
        own = Links.parse(case.fabric).storage == "own"
        address = fabric.storage.own if own else fabric.storage.shared
        return {"DDPBENCH_STORAGE": f"{address}:{fabric.storage.port}"}

    def _of(self, case: Case) -> Fabric:
        from ddpbench.fabric import Fabric

        links = made_links(case)
        key = (links, case.nodes, case.ranks_per_node)  # `links` has the dilated latency
        if key in self._standing:
            fabric = self._standing.pop(key)
            if _stands(fabric):
                self._standing[key] = fabric  # the last used is the last to be removed
                return fabric
            fabric.close()
        while len(self._standing) >= MOST_AT_ONCE:
            self._standing.pop(next(iter(self._standing))).close()
        nodes = f"{case.nodes} node{'s' if case.nodes != 1 else ''}"
        self._preparing(f"making and testing a fabric of {nodes}, {case.fabric}")
        fabric = self._stack.enter_context(
            Fabric(
                links,
                nodes=case.nodes,
                ranks_per_node=case.ranks_per_node,
                log=self._run.path / "fabric.log",
            )
        )
        self._standing[key] = fabric
        self._proved[key] = self._record(case, fabric)
        records = [*self._earlier(), *self._proved.values()]
        write_atomically(self._run.fabrics, json.dumps(records, indent=1) + "\n")
        return fabric

    def _earlier(self) -> list[Any]:
        """Return the records of earlier sessions' networks that this session has not made again."""
        try:
            recorded = parse_json(read_bytes(self._run.fabrics, MOST_NOTES))
        except (
            OSError,
            ValueError,
            UnreadableError,
        ):  # the file is missing or torn: its content is lost, and the sweep continues
            return []
        proved_again = [_which(record) for record in self._proved.values()]
        entries = recorded if isinstance(recorded, list) else []
        return [entry for entry in entries if isinstance(entry, dict) and _which(entry) not in proved_again]

    @staticmethod
    def _record(case: Case, fabric: Fabric) -> dict[str, Any]:
        proof = fabric.prove(shared_cores=own_environment_allows_sharing())
        return {
            "links": case.fabric,
            "nodes": case.nodes,
            "ranks_per_node": case.ranks_per_node,
            "dilation": case.dilation,
            "shrink": case.shrink,
            "privileged": fabric.privileged,
            "kernel": platform.release(),
            "asked_bit_per_s": [link.asked_bit_per_s for link in proof.links],
            "reached_bit_per_s": [link.reached_bit_per_s for link in proof.links],
            "dropped": proof.dropped,
        }

    def __enter__(self) -> Fabrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _which(record: dict[str, Any]) -> list[Any]:
    """Return the values that distinguish a recorded network from the others of its run."""
    return [record.get(key) for key in ("links", "nodes", "ranks_per_node", "dilation", "shrink")]


def _stands(fabric: Fabric) -> bool:
    return Path(fabric.places[0].net_ns).exists()
