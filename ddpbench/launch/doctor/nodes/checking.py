"""`ddpbench doctor --nodes`: run this node's part of the check of all nodes, whose findings the first node gets."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpbench.errors import LaunchError, RequestError
from ddpbench.host_names import resolve
from ddpbench.launch.doctor.finding import CheckResult, ok, problem
from ddpbench.launch.doctor.host import Host
from ddpbench.launch.doctor.network import gloo_choice
from ddpbench.launch.doctor.nodes.gathering import Node, take_part
from ddpbench.launch.doctor.nodes.judging import judged
from ddpbench.launch.layout import check_names
from ddpbench.machine.interfaces import Interface, faster_than
from ddpbench.text_safety import shortened
from ddpbench.version import VERSION

SLURM = "slurm"
"""The value of `--nodes` that means the nodes of the surrounding Slurm job."""
PORT = 29_501
_TOPIC = "Nodes"
_ASK_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSeat:
    """A node's place among the nodes: its number from 0, the number of nodes (`count`), the first node's address."""

    number: int
    count: int
    first: str
    spare: bool = False
    """False for the first process on a node. Further processes are spare and take no part in the check."""


def seat_of(names: str, host: Host, env: Mapping[str, str] = os.environ) -> NodeSeat:
    """Return this node's place among the nodes, from a launcher's variables, or else from its position in `names`.

    Raises:
        RequestError: `names` has fewer than two names, or a name that no host can have, or this node's number cannot be
            determined.
        LaunchError: Slurm does not report the job's nodes.
    """
    if names == SLURM and "SLURM_JOB_NODELIST" not in env:
        raise RequestError("--nodes slurm: this is not a Slurm job; give names, such as --nodes hostA,hostB")
    listed = _slurm_addresses(env) if names == SLURM else [name.strip() for name in names.split(",")]
    if len(listed) < 2 or not all(listed):
        raise RequestError(
            f"--nodes {shortened(names)}: give two host names or more, such as --nodes hostA,hostB"
        )
    if names != SLURM:
        check_names(listed)
    for number, local in (
        ("GROUP_RANK", "LOCAL_RANK"),  # torchrun's number of a node
        ("RANK", "LOCAL_RANK"),
        ("SLURM_NODEID", "SLURM_LOCALID"),
    ):
        if not env.get(number, "").isdecimal():
            continue
        if number == "SLURM_NODEID" and env.get("SLURM_NTASKS", "1") == "1":
            continue  # the shell of the batch script
        if int(env[number]) >= len(listed):
            raise RequestError(
                f"--nodes names {len(listed)} nodes, but {number} says that this node is number {env[number]}"
            )
        return NodeSeat(
            number=int(env[number]), count=len(listed), first=listed[0], spare=env.get(local, "0") != "0"
        )
    own = {host.host_name, host.host_name.partition(".")[0]}
    own |= {address for each in host.interfaces() for address in each.addresses if each.name != "lo"}
    seats = [number for number, name in enumerate(listed) if name in own or own & set(_addresses_of(name))]
    if len(seats) != 1:
        raise RequestError(
            f"--nodes {shortened(names)}: this node, {host.host_name}, matches {'several' if seats else 'none'} "
            "of these names. Run the same command on each node, under srun, or with RANK set to the node's "
            "number, from 0"
        )
    return NodeSeat(number=seats[0], count=len(listed), first=listed[0])


def _addresses_of(name: str) -> list[str]:
    try:
        return [str(address[0]) for _, address in resolve(name)]
    except OSError:
        return []


def _slurm_addresses(env: Mapping[str, str]) -> list[str]:
    """Return Slurm's addresses for the nodes, whose names may not resolve.

    Raises:
        LaunchError: Slurm does not report the nodes.
    """

    def asked(*words: str) -> str:
        try:
            done = subprocess.run(
                ["scontrol", *words],
                capture_output=True,
                text=True,
                errors="surrogateescape",
                timeout=_ASK_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(f"scontrol cannot say which nodes the job has: {error}") from None
        return done.stdout

    listed = env.get("SLURM_STEP_NODELIST") or env["SLURM_JOB_NODELIST"]  # nodes are numbered within the step
    names = asked("show", "hostnames", listed).split()
    listing = asked("-o", "show", "node", ",".join(names))
    known = {}
    for line in listing.splitlines():
        fields = dict(part.partition("=")[::2] for part in line.split())
        known[fields.get("NodeName", "")] = fields.get("NodeAddr", "")
    return [known.get(name) or name for name in names]


def own_node(seat: NodeSeat, host: Host) -> Node:
    """Return a description of this node for the other nodes.

    Raises:
        LaunchError: gloo cannot use any interface of this node.
    """
    chosen, why = gloo_choice(host)
    there = [each for each in host.interfaces() if each.up and each.addresses and each.name != "lo"]
    if not chosen:
        names = ", ".join(each.name for each in there) or "none"
        raise LaunchError(
            f"GLOO_SOCKET_IFNAME={host.env.get('GLOO_SOCKET_IFNAME', '')} names an interface that is not on "
            f"{host.host_name} or has no address; there are: {names}"
        )
    one = chosen[0]
    address = _address(one, why)
    return Node(
        number=seat.number,
        host=host.host_name,
        interface=one.name,
        why=why,
        address=address,
        others=tuple(f"{each.name} {each.addresses[0]}" for each in there if each.name != one.name),
        speed_mbps=max(one.speed_mbps, 0),
        faster=faster_than(chosen, host.interfaces(), host.env),
        versions=(
            f"Python {platform.python_version()}",
            f"torch {_version('torch')}",
            f"ddpbench {VERSION}",
        ),
    )


def _address(interface: Interface, why: str) -> str:
    """Return gloo's address: the one that ends `why`, gloo's reason, or else the interface's first."""
    return next((one for one in interface.addresses if why.endswith(f" {one}")), interface.addresses[0])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def check_nodes(
    names: str,
    port: int = PORT,
    *,
    host: Host | None = None,
    waiting: Callable[[str], None] = lambda _: None,
) -> Sequence[CheckResult] | None:
    """Return findings about the nodes and their links, with the verdict last.

    Only the first node gets the findings; the other nodes get None.

    Raises:
        RequestError: see `seat_of`.
        LaunchError: gloo cannot use any interface of this node, or the nodes do not reach each other in time.
    """
    host = host or Host()
    seat = seat_of(names, host)
    if seat.spare:
        return None
    if seat.number:
        waiting(f"waiting for node 0, {seat.first}")
    nodes, pairs = take_part(own_node(seat, host), seat.count, (seat.first, port), waiting=waiting)
    if seat.number:
        return None
    findings = [replace(finding, topic=_TOPIC) for finding in judged(nodes, pairs)]
    bad = sum(finding.level == "problem" for finding in findings)
    if bad:
        verdict = problem(
            "verdict", f"{bad} problem{'s' if bad != 1 else ''} between these nodes", "fix the problems above"
        )
    else:
        verdict = ok("verdict", f"these {len(nodes)} nodes can train together")
    return [*findings, replace(verdict, topic="Verdict")]
