"""Read `machine.json`, which describes a run's machine, and `merged.json`, which lists the sources of a merged run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, JsonValue

from ddpbench.records.checked import check, read_checked
from ddpbench.records.files import MOST_NOTES
from ddpbench.records.rundir import RunDir

DIGESTS = {
    "experiment_digest": "the experiment file",
    "workload_digest": "a workload or strategy, or its source",
    "rank_code_digest": "ddpbench's code in ranks",
}
"""Words for what each digest in a run's identity is computed from."""
_Text = str | None
_Device = Annotated[int, Field(ge=0, strict=True)]
_Cores = list[_Device] | None
_Gpus = list[str] | None


class _Identity(BaseModel, extra="allow", strict=True):
    """The fields of a machine's identity that code calculates with. Others are only compared and shown."""

    cpu: _Text | dict[str, _Text] = None
    cores: _Cores | dict[str, _Cores] = None
    gpus: _Gpus | dict[str, _Gpus] = None
    slots: list[Annotated[int, Field(gt=0)]] = []
    torch: _Text | dict[str, _Text] = None
    __pydantic_extra__: dict[str, JsonValue]


class SlurmJob(BaseModel, extra="allow", strict=True):
    """A Slurm job that ran part of a run, with its allocation and its waiting time in the queue."""

    job_id: str
    restarts: Annotated[int, Field(ge=0)] = 0
    nodes: Annotated[int, Field(gt=0)]
    slots: Annotated[int, Field(gt=0)]
    queue_wait_s: Annotated[float, Field(ge=0, lt=1e9)] | None = None


class _Context(BaseModel, extra="allow", strict=True):
    host: _Text = None
    started_utc: _Text = None
    command: _Text = None
    git_commit: _Text = None
    ddpbench_version: _Text = None
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    merged_from: list[str] = []
    planned_nodes: list[str] = []
    planned_ranks_per_node: int = 1
    planned_port: int = 1
    slurm_jobs: list[SlurmJob] = []
    setup: dict[str, str] | dict[str, dict[str, str]] = {}
    __pydantic_extra__: dict[str, JsonValue]


class _Machine(BaseModel, extra="allow", strict=True):
    identity: _Identity = _Identity()
    context: _Context = _Context()


class _Origin(BaseModel, extra="allow", strict=True):
    path: str
    fingerprint: str
    host: _Text = None
    started_utc: _Text = None
    git_commit: _Text = None
    cores: int = 0
    gpus: int = 0


class _Merged(BaseModel, extra="allow", strict=True):
    sources: list[_Origin]
    left_out: list[str] = []


def read_machine(run: RunDir) -> dict[str, Any]:
    """Read a run's machine.json, and check the types of its known fields.

    Raises:
        IdentityError: the file is missing, damaged, or has a different schema.
    """
    data = run.read_json(run.machine)
    check(_Machine, run.machine, data)
    return data


def is_dirty(commit: str) -> bool:
    """Return whether the code had uncommitted changes, from the `git_commit` in machine.json.

    A merged run has several commits, separated by commas.
    """
    return any(one.strip().endswith("+") for one in commit.split(","))


def setups_of(context: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the setup of each host of a run, by host name, from the `context` in machine.json."""
    setup = context.get("setup") or {}
    by_host = all(isinstance(own, Mapping) for own in setup.values())
    return {
        host: dict(own) for host, own in (setup if by_host else {str(context.get("host")): setup}).items()
    }


def read_merged(run: RunDir) -> dict[str, Any]:
    """Read the merged.json of a merged run; empty if the run is not merged.

    Raises:
        IdentityError: the file is damaged, or has a different schema.
    """
    if not run.merged.exists():
        return {}
    return read_checked(_Merged, run.merged, MOST_NOTES).model_dump()
