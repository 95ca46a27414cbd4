"""Set, in every process that imports a user's code, the environment variables that torchrun sets for its ranks.

A script that finds RANK may form its process group at once, so the process gets an address and a port at which only the
ranks of its launch meet.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Any

from ddpbench.host_names import connect
from ddpbench.machine.ports import free_port
from ddpbench.spec import Case
from ddpbench.worker.place import JobPlace
from ddpbench.workloads import is_import_path

STORE_AT = "DDPBENCH_STORE_AT"
"""Variable with the address of the slots' store, set if MASTER_ADDR and MASTER_PORT are one launch's rendezvous."""
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_LOOPBACK = "127.0.0.1"
_BACKLOG = 2048
_USER_MEETS = "the user's code meets at"


def complete(env: MutableMapping[str, str], place: JobPlace, case: Case) -> None:
    """Add the variables of torchrun that this rank's launcher has not set, if the case runs a user's code."""
    if not (is_import_path(case.workload) or is_import_path(case.strategy)):
        return
    per_node = int(env.get("LOCAL_WORLD_SIZE") or min(case.ranks_per_node, place.processes))
    nodes = -(-place.processes // per_node)
    for name, value in _torchruns(place, per_node, nodes).items():
        env.setdefault(name, value)
    if env.get("DDPBENCH_STORE") and place.processes > 1:
        _meet_elsewhere(env, place)
    elif any(name not in env for name in _MASTER):
        env["MASTER_ADDR"] = _LOOPBACK
        env["MASTER_PORT"] = str(free_port())
    here = place.processes == 1 or env.get("DDPBENCH_RENDEZVOUS")
    if here and place.rank == 0 and env["MASTER_ADDR"] == _LOOPBACK:
        _serve_on_loopback(int(env["MASTER_PORT"]))


def complete_alone(env: MutableMapping[str, str]) -> None:
    """Set in `env` all variables that torchrun sets, for a process that is the only rank."""
    alone = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
    port = free_port()
    env.update(_torchruns(alone, 1, 1), MASTER_ADDR=_LOOPBACK, MASTER_PORT=str(port))
    _serve_on_loopback(port)


_served: list[Any] = []
"""The stores that this process serves, which end with it."""


def _serve_on_loopback(port: int) -> None:
    """Serve torch's store at a port of the loopback interface, for a group that the user's code forms as rank 0.

    torch would serve the store on all interfaces, where any host could connect to it. It uses a store that this process
    serves already (`multi_tenant`). If the port has just been taken, do nothing: torch will report it.
    """
    from torch._C._distributed_c10d import TCPStore

    with contextlib.suppress(OSError):
        listener = socket.create_server((_LOOPBACK, port), backlog=_BACKLOG)
        store = TCPStore(
            _LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listener.detach(),
        )
        _served.append(store)


def _torchruns(place: JobPlace, per_node: int, nodes: int) -> dict[str, str]:
    rank, processes = str(place.rank), str(place.processes)
    return {
        "RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(place.rank // per_node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": processes,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "ddpbench",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store
    }


def _meet_elsewhere(env: MutableMapping[str, str], place: JobPlace) -> None:
    """Point MASTER_ADDR and MASTER_PORT to a rendezvous for this launch only.

    A user's code must not form its group in the slots' store, which serves all launches.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    address, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, wait_for_workers=False)
    own = PrefixStore(env["DDPBENCH_STORE"], store)
    if place.rank == 0:
        own.set(_USER_MEETS, f"{_own_address(address, port)} {free_port()}")
    meeting, _, number = own.get(_USER_MEETS).decode().partition(" ")
    env.update({STORE_AT: f"{address} {port}", "MASTER_ADDR": meeting, "MASTER_PORT": number})
    env["TORCHELASTIC_USE_AGENT_STORE"] = "False"


def _own_address(address: str, port: int) -> str:
    """Return this host's address on the interface that reaches `address`."""
    with connect(address, port) as probe:
        own: str = probe.getsockname()[0]
        return own


def slots_store(env: MutableMapping[str, str] = os.environ) -> tuple[str, int]:
    """Return the address and port of the store that all slots share."""
    address, port = env.get(STORE_AT, "").split() or (env["MASTER_ADDR"], env["MASTER_PORT"])
    return address, int(port)
