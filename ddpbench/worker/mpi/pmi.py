"""Answers the requests of an MPI library to its process manager, in PMI-1's simple wire protocol.

The fork server and torchrun have no process manager, so each rank answers its own MPI library, from torch's store.
MPICH and its derivatives (Intel MPI, MVAPICH) speak the protocol: lines `cmd=NAME key=value ...` over the descriptor
PMI_FD (MPICH, src/pmi/src/pmi_v1.c).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Protocol

_MAPPING = "PMI_process_mapping"
_KEY_MAX, _VALUE_MAX = 256, 1024


class Store(Protocol):
    """The methods of torch's stores that this module uses. Other threads can run while a call waits."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...


def mapping(nodes: Sequence[str]) -> str:
    """Describe which ranks are on which nodes, as MPICH's list of blocks (first node, number of nodes, ranks per node).

    `nodes` names each rank's node. Ranks of one node may exchange data through shared memory.
    """
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    runs = [(numbers[node], len([*ranks])) for node, ranks in groupby(nodes)]
    blocks: list[list[int]] = []
    for number, ranks in runs:
        last = blocks[-1] if blocks else None
        if last is not None and number == last[0] + last[1] and ranks == last[2]:
            last[1] += 1
        else:
            blocks.append([number, 1, ranks])
    return f"(vector,{','.join(f'({first},{count},{ranks})' for first, count, ranks in blocks)})"


class Answers:
    """Answers the requests of one rank's MPI library, line by line."""

    def __init__(self, store: Store, *, size: int, world: str, nodes: Callable[[], Sequence[str]]) -> None:
        """Prepare answers for a world of `size` ranks.

        `world` is a unique name. `nodes` returns each rank's node, perhaps after a wait for all ranks' answers.
        """
        self._store, self._size, self._world, self._nodes = store, size, world, nodes
        self._barriers = 0

    def to(self, line: str) -> str:
        """Return the answer to a request. Request and answer are lines without line ends."""
        asked = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = asked.get("cmd", "")
        match command:
            case "put":
                self._store.set(f"pmi/key/{asked['key']}", asked["value"])
            case "get":
                return self._got(asked["key"])
            case "barrier_in":
                self._wait_for_all()
        answers = {
            "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": f"maxes kvsname_max=256 keylen_max={_KEY_MAX} vallen_max={_VALUE_MAX} rc=0",
            "get_appnum": "appnum appnum=0 rc=0",
            "get_my_kvsname": f"my_kvsname kvsname={self._world} rc=0",
            "get_universe_size": f"universe_size size={self._size} rc=0",
            "put": "put_result rc=0 msg=success",
            "barrier_in": "barrier_out rc=0",
            "finalize": "finalize_ack rc=0",
        }
        return f"cmd={answers.get(command, f'{command} rc=-1 msg=unknown_command')}"

    def _got(self, key: str) -> str:
        if key == _MAPPING:
            return f"cmd=get_result rc=0 msg=success value={mapping(self._nodes())}"
        name = f"pmi/key/{key}"
        if not self._store.check([name]):
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={self._store.get(name).decode()}"

    def _wait_for_all(self) -> None:
        self._barriers += 1
        opened = f"pmi/open/{self._barriers}"
        if self._store.add(f"pmi/arrived/{self._barriers}", 1) == self._size:
            self._store.set(opened, "yes")
        self._store.get(opened)  # waits until it is set


def environment(descriptor: int, *, rank: int, size: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables `given`, changed so that an MPI library sends its requests to `descriptor`.

    mpiexec's and srun's variables for other groups of ranks are left out.
    """
    others = {name: value for name, value in given.items() if not name.startswith(("PMI_", "PMIX_", "PMI2_"))}
    return {**others, "PMI_FD": str(descriptor), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}


def serve(
    store: Store, *, rank: int, size: int, world: str, nodes: Callable[[], Sequence[str]]
) -> socket.socket:
    """Start a thread that answers this process's MPI, set the variables for it, and return its socket.

    The socket must stay open.
    """
    ours, theirs = socket.socketpair()
    answers = Answers(store, size=size, world=world, nodes=nodes)

    def answer() -> None:
        with ours, ours.makefile("r", encoding="ascii") as lines:
            for line in lines:
                ours.sendall(f"{answers.to(line)}\n".encode("ascii"))

    wanted = environment(theirs.fileno(), rank=rank, size=size, given=os.environ)
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    threading.Thread(target=answer, name="pmi", daemon=True).start()
    return theirs
