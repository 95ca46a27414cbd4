"""Where a rank stands, from the environment any launcher gives: rank, world, cores, rendezvous."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A rank's place in its job. `processes` is WORLD_SIZE: a case of one process has 1 at any world size."""

    rank: int
    processes: int
    local_rank: int
    attempt: int
    cores: tuple[int, ...]
    loader_cores: tuple[int, ...]

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Place:
        """The place that RANK, WORLD_SIZE and LOCAL_RANK tell; DDPBENCH_CORES pins, if it is there.

        Raises:
            ValueError: only some of the variables are there, or one is no number.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        missing = [name for name in names if name not in env]
        if missing:
            raise ValueError(f"{', '.join(missing)} missing in the environment: start ranks with a launcher")
        return cls(
            rank=int(env["RANK"]),
            processes=int(env["WORLD_SIZE"]),
            local_rank=int(env["LOCAL_RANK"]),
            attempt=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
            cores=parse_cores(env.get("DDPBENCH_CORES", "")),
            loader_cores=parse_cores(env.get("DDPBENCH_LOADER_CORES", "")),
        )


def parse_cores(text: str) -> tuple[int, ...]:
    """Core numbers from `"0,2"`; empty text gives none."""
    return tuple(int(part) for part in text.split(",") if part)


def host_name() -> str:
    """This host's name, as the records give it."""
    return socket.gethostname()
