"""Collect facts about a machine: its identity, which must be equal for runs to be comparable, and other context."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpbench.command_line import command_line
from ddpbench.errors import IdentityError
from ddpbench.host_names import own_name
from ddpbench.machine.hardware import Hardware
from ddpbench.machine.mpi import mpi_version
from ddpbench.machine.setup import read_setup
from ddpbench.own_code import code_digest
from ddpbench.records import SCHEMA_VERSION
from ddpbench.records.machine import DIGESTS, setups_of
from ddpbench.spec import Case, PlannedCase
from ddpbench.text_safety import on_one_line
from ddpbench.units import utc_now
from ddpbench.user_files import is_import_path as is_own
from ddpbench.version import VERSION
from ddpbench.workloads import is_import_path
from ddpbench.workloads.profile import profile_digest
from ddpbench.workloads.shipped import PREFIX, profile_path

_CONSEQUENCE = "old and new results would not be comparable: give another --out"

IDENTITY = (
    *("cpu", "cores", "cpu_quota", "gpus", "driver", "kernel", "torch", "cuda", "nccl", "mpi"),
    *("cpu_capability", "python", "experiment_digest", "workload_digest", "rank_code_digest"),
)
"""Names of the facts that identify a machine and an experiment, in the order of machine.json."""


def known_identity(hardware: Hardware, experiment_toml: str, cases: Sequence[PlannedCase]) -> dict[str, Any]:
    """Return the facts of a machine's identity that are known before a rank has imported torch."""
    return {
        "cpu": hardware.cpu_model,
        "cores": list(hardware.cores),
        "cpu_quota": hardware.quota,
        "driver": driver_version(),
        "kernel": platform.release(),
        **({"mpi": version} if (version := mpi_of(cases)) else {}),
        "python": platform.python_version(),
        "experiment_digest": text_digest(experiment_toml),
        "workload_digest": sources_digest(sources_named(entry.case for entry in cases)),
        "rank_code_digest": code_digest(),
    }


def machine_record(
    hardware: Hardware, probe: dict[str, Any], experiment_toml: str, cases: Sequence[PlannedCase]
) -> dict[str, Any]:
    """Return the content of `machine.json`.

    A run can be resumed only if its `identity` is equal; its `context` may differ. `probe` has the facts that a rank
    with torch found (`ddpbench.worker.probe.describe`).
    """
    known = known_identity(hardware, experiment_toml, cases) | {
        "gpus": [gpu["name"] for gpu in probe["gpus"]],
        **{name: probe[name] for name in ("torch", "cuda", "nccl", "cpu_capability", "python")},
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "identity": {name: known[name] for name in IDENTITY if name in known},
        "context": {
            "host": own_name(),
            "started_utc": utc_now(),
            "command": command_line(),
            "ddpbench_version": VERSION,
            "git_commit": git_commit(),
            "load_1min": round(os.getloadavg()[0], 2),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "setup": read_setup(),
        },
    }


def mpi_of(cases: Iterable[PlannedCase]) -> str | None:
    """Return the version of the MPI library that cases use here; None if no case uses MPI.

    Raises:
        MachineError: a case uses MPI, but no MPI library here is usable.
    """
    uses = any(entry.case.backend == "mpi" and entry.skip_reason is None for entry in cases)
    return mpi_version() if uses else None


def planned_record(nodes: Sequence[str], ranks_per_node: int, port: int) -> dict[str, Any]:
    """Return the `machine.json` of a run planned on these nodes.

    The run's first process adds facts about the nodes later.
    """
    planned = {
        "host": ", ".join(dict.fromkeys(nodes)),
        "planned_nodes": list(nodes),
        "planned_ranks_per_node": ranks_per_node,
        "planned_port": port,
    }
    return _to_be_filled_in(planned)


def submitted_record(nodes: int, ranks_per_node: int) -> dict[str, Any]:
    """Return the `machine.json` of a run whose nodes Slurm will choose."""
    return _to_be_filled_in({"submitted_nodes": nodes, "submitted_ranks_per_node": ranks_per_node})


def _to_be_filled_in(planned: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "identity": {},
        "context": {
            **planned,
            "planned_on": own_name(),
            "started_utc": utc_now(),
            "command": command_line(),
            "ddpbench_version": VERSION,
            "git_commit": git_commit(),
        },
    }


def nodes_record(
    nodes: Sequence[tuple[str, int, dict[str, Any]]],
    digests: dict[str, str],
    planned: dict[str, Any],
    setups: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Return the `machine.json` of several nodes, each given as (host, number of slots, facts).

    Facts that are equal on all nodes, also in `setups` (by host), appear once; others are listed by node. The order of
    `nodes` does not matter, because a launcher may renumber them at each start.
    """
    nodes = sorted(nodes, key=lambda node: (json.dumps(node[2], sort_keys=True), node[1], node[0]))
    names = _numbered([host for host, _, _ in nodes])
    identity: dict[str, Any] = {}
    for key in nodes[0][2]:
        identity[key] = _once(names, [facts[key] for _, _, facts in nodes])
    identity |= {"slots": [slots for _, slots, _ in nodes], **digests}
    context = {
        **planned.get("context", {}),
        "host": ", ".join(dict.fromkeys(host for host, _, _ in nodes)),
        "nodes": [f"{host} ({slots} slot{'s' if slots != 1 else ''})" for host, slots, _ in nodes],
        "started_utc": utc_now(),
    }
    if setups:
        context["setup"] = _once(sorted(setups), [setups[host] for host in sorted(setups)])
    return {"schema_version": SCHEMA_VERSION, "identity": identity, "context": context}


def setup_of(contexts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the setup facts of several runs' machines: one dict if all are equal, else one for each host and run."""
    by_name: dict[str, Any] = {}
    known = [setups_of(context) for context in contexts]
    for number, by_host in enumerate(known, start=1):
        for host, own in by_host.items():
            where = f"{host}, run {number} of {len(contexts)}"
            names = itertools.chain((host, where), (f"{where} ({again})" for again in itertools.count(2)))
            by_name[next(name for name in names if by_name.get(name, own) == own)] = own
    everyones = all(known) and not any(context.get("merged_from") for context in contexts)
    return dict(_once(list(by_name), list(by_name.values()))) if everyones else by_name


def _once(names: Sequence[str], values: Sequence[Any]) -> Any:
    """Return the value if all are equal, otherwise the values by name; types become JSON's."""
    values = [json.loads(json.dumps(value)) for value in values]
    return values[0] if all(value == values[0] for value in values) else dict(zip(names, values, strict=True))


def _numbered(hosts: Sequence[str]) -> list[str]:
    """Name each node by its host, with a number if several are on one host."""
    count = Counter(hosts)
    seen: Counter[str] = Counter()
    names: list[str] = []
    for host in hosts:
        seen[host] += 1
        names.append(f"{host}, node {seen[host]} of {count[host]} there" if count[host] > 1 else host)
    return names


def check_identity(
    recorded: dict[str, Any], found: dict[str, Any], path: Path, apart: Mapping[str, str] | None = None
) -> None:
    """Check that two `machine.json` objects have equal identities.

    `apart` maps the name of a digest to a phrase that says which of the digest's inputs differ.

    Raises:
        IdentityError: the identities differ; the message names every difference.
    """
    before, now = recorded.get("identity", {}), found["identity"]
    differences = [
        _difference(key, before, now, (apart or {}).get(key, ""))
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]
    if differences:
        listed = "\n".join(f"  {line}" for line in differences)
        raise IdentityError(f"{path} was measured under different conditions; {_CONSEQUENCE}\n{listed}")


def _difference(key: str, before: Mapping[str, Any], now: Mapping[str, Any], apart: str) -> str:
    if key in DIGESTS and key in before and key in now:
        return f"{key}: {DIGESTS[key]} changed{f': {apart}' if apart else ''}"
    return f"{on_one_line(key)}: {before.get(key)!r} before, {now.get(key)!r} now"


def sources_named(cases: Iterable[Case]) -> list[str]:
    """Return the names to pass to `sources_digest`: the cases' workloads, and users' own strategies and algorithms."""
    cases = list(cases)
    own = (name for case in cases for name in (case.strategy, case.algorithm) if is_own(name))
    return list(dict.fromkeys([*(case.workload for case in cases), *own]))


def sources_of(names: Iterable[str]) -> str:
    """Return a list, in words, of the users' files and the profiles that `sources_digest` covers for these names."""
    return " or ".join(
        sorted(
            {name.rpartition(":")[0] if is_import_path(name) else name for name in names if _has_source(name)}
        )
    )


def _has_source(name: str) -> bool:
    return is_import_path(name) or name.startswith(PREFIX)


def text_digest(text: str) -> str:
    """Return the first 16 hex digits of a text's SHA-256 digest."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sources_digest(names: Iterable[str]) -> str:
    """Return a digest (16 hex digits) of these names and of the users' files and profiles that they refer to."""
    digest = hashlib.sha256()
    for name in sorted(set(names)):
        digest.update(name.encode())
        if name.startswith(PREFIX):
            digest.update(profile_digest(profile_path(name.removeprefix(PREFIX))).encode())
        elif is_import_path(name):
            path = _source(name.rpartition(":")[0])
            digest.update(path.read_bytes() if path is not None and path.is_file() else b"")
    return digest.hexdigest()[:16]


def _source(module: str) -> Path | None:
    """Return a module's file without importing it; only parent packages are imported."""
    if module.endswith(".py"):
        return Path(module)
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(found.origin) if found is not None and found.origin else None


GIT = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "safe.bareRepository=explicit"),
)
"""Git's command, with options that disable what an untrusted repository may bring: hooks and a file-watching program.

`safe.bareRepository` is for folders such as /tmp, where anybody can create files such as HEAD and config. Git would
otherwise take the folder for a bare repository.
"""
_NO_TRANSPORT = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
_OF_A_REPOSITORY = frozenset(
    {
        *(
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_COMMON_DIR",
            "GIT_INDEX_FILE",
            "GIT_PREFIX",
            "GIT_IMPLICIT_WORK_TREE",
        ),
        *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE"),
        *("GIT_REPLACE_REF_BASE", "GIT_INTERNAL_SUPER_PREFIX"),
    }
)
"""Environment variables that git sets for hooks, and that would make git use the hook's repository in every folder.

They are the variables of `git rev-parse --local-env-vars` except for settings, because a setting such as safe.directory
applies to all folders.
"""


def git_environment(**more: str) -> dict[str, str]:
    """Return an environment for git, with the variables `more`, in which git never fetches anything.

    Fetching is disabled because a repository's settings may name a program for it.
    """
    own = {name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}
    return {**own, **_NO_TRANSPORT, **more}


def git_commit() -> str | None:
    """Return the working directory's commit, with `+` if tracked files have changed; None outside a repository.

    As in `git describe --dirty`, new files don't count as changes. For the sides of a comparison, new files do count;
    see `interleave/sides.py`.
    """
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = [*GIT, *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=True,
        timeout=10,
        env=git_environment(),
    )
    return done.stdout.strip()


def driver_version() -> str | None:
    """Return the NVIDIA driver's version; None if there is no driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    words = text.split()
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), None)
