"""Rank, world size, cores and rendezvous of a process, read from the environment variables that launchers set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpbench.host_names import own_name, why_no_host
from ddpbench.text_safety import clean, shortened

_HOW = (
    "ranks are started by a launcher that sets all of them, such as "
    "PYTHONSAFEPATH=1 torchrun --nproc-per-node N -m ddpbench.worker RUN_DIR "
    "(ddpbench plan prints that line for your nodes); "
    "on one machine ddpbench sweep needs none"
)
_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")


def host_name() -> str:
    """Return this host's name for the records, which is DDPBENCH_HOST if set, otherwise the system's name."""
    return clean(os.environ.get("DDPBENCH_HOST", "")) or own_name()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlace:
    """Rank, world size, cores and host of one process of a launch.

    `processes` is the launcher's WORLD_SIZE, which is 1 for a case that trains in one process.
    """

    rank: int
    processes: int
    local_rank: int
    attempt: int
    cores: tuple[int, ...]
    loader_cores: tuple[int, ...]
    host: str = field(default_factory=host_name)
    """The host's name. Ranks with the same host name share a clock."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> JobPlace:
        """Read RANK, WORLD_SIZE, LOCAL_RANK and ddpbench's own variables from `env`.

        Raises:
            ValueError: a variable is missing, out of range, or not a number; the message names it.
        """
        meets_here = "DDPBENCH_RENDEZVOUS" in env or env.get("WORLD_SIZE") == "1"
        values = _variables(env, _RANK if meets_here else (*_RANK, *_MASTER))
        return cls(
            rank=values["RANK"],
            processes=values["WORLD_SIZE"],
            local_rank=values["LOCAL_RANK"],
            attempt=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
            cores=parse_cores(env.get("DDPBENCH_CORES", "")),
            loader_cores=parse_cores(env.get("DDPBENCH_LOADER_CORES", "")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotPlace:
    """Rank, node and store address of a slot, a process that runs one rank of each launch of a plan.

    `node` is the launcher's name for the node, or empty. If `agent_store`, torchrun serves the store at
    `master_addr`:`master_port`; otherwise slot 0 does.
    """

    rank: int
    slots: int
    local_rank: int
    node: str
    master_addr: str
    master_port: int
    agent_store: bool
    prefix: str
    """Prefix of this job's keys in the store. It names the restart, because torchrun's store survives restarts."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> SlotPlace:
        """Read RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT from `env`.

        Raises:
            ValueError: a variable is missing, out of range, or not a number; the message names it.
        """
        values = _variables(env, (*_RANK, *_MASTER))
        attempt = f"{env.get('TORCHELASTIC_RUN_ID', 'none')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        return cls(
            rank=values["RANK"],
            slots=values["WORLD_SIZE"],
            local_rank=values["LOCAL_RANK"],
            node=env.get("GROUP_RANK") or env.get("NODE_RANK") or "",
            master_addr=env["MASTER_ADDR"],
            master_port=values["MASTER_PORT"],
            agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            prefix=f"ddpbench/{attempt}",
        )


def _variables(env: Mapping[str, str], names: Sequence[str]) -> dict[str, int]:
    """Return the values of the variables `names` as numbers; MASTER_ADDR is only checked.

    Raises:
        ValueError: a variable is missing, not a number, or out of range, or MASTER_ADDR can be no host's name.
    """
    missing = [name for name in names if not env.get(name)]
    if missing:
        given = [name for name in (*_RANK, *_MASTER) if env.get(name)]
        here = f", where {_listed(given)} {'is' if len(given) == 1 else 'are'} set" if given else ""
        verb = "is" if len(missing) == 1 else "are"
        raise ValueError(f"{_listed(missing)} {verb} missing in the environment{here}: {_HOW}")
    values: dict[str, int] = {}
    for name in names:
        if name == "MASTER_ADDR":
            if why := why_no_host(env[name]):
                raise ValueError(
                    f"MASTER_ADDR={shortened(env[name])} in the environment is not a host name: {why}"
                )
            continue
        if not env[name].isdecimal():
            raise ValueError(f"{name}={env[name]!r} in the environment is not a number: {_HOW}")
        values[name] = int(env[name])
    if values["RANK"] >= values["WORLD_SIZE"]:
        ranks = f"RANK={values['RANK']} and WORLD_SIZE={values['WORLD_SIZE']} in the environment"
        raise ValueError(f"{ranks}: RANK must be from 0 to WORLD_SIZE - 1")
    if not 0 < values.get("MASTER_PORT", 1) < 65536:
        raise ValueError(
            f"MASTER_PORT={values['MASTER_PORT']} in the environment is not a port: give 1 to 65535"
        )
    return values


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def parse_cores(text: str) -> tuple[int, ...]:
    """Return the core numbers in a text such as `"0,2"`, or an empty tuple for an empty text."""
    return tuple(int(part) for part in text.split(",") if part)
