"""`ddpbench list`: print the strategies, algorithms, schedules, workloads, launchers and experiments."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags
from ddpbench.cli.lines import columns_here, say, show, wrapped
from ddpbench.text_safety import MOST_TOML_BYTES, why_not_read

if TYPE_CHECKING:
    from ddpbench.registry import Entry


_SCHEDULES = {
    "overlapped": "each bucket is sent as soon as its gradients are ready, during backward",
    "after_backward": "all buckets are sent after backward",
}
_LAUNCHERS = {
    "local": "a fork server that has imported torch forks the ranks, on this machine or its emulated nodes",
    "spawn": "torch.multiprocessing.spawn starts the ranks of each launch, on this machine",
    "torchrun": "torchrun starts the ranks on this machine; for several nodes, use the lines of ddpbench plan",
    "srun": "srun starts the ranks, within a job on one node",
    "mpiexec": "mpiexec starts the ranks, on this machine",
    "ray": (
        "Ray Train's TorchTrainer starts the ranks, in a local Ray that each launch starts; ray_train always "
        "uses it"
    ),
    "slurm": "Slurm jobs start the ranks, one job for each number of nodes (ddpbench submit)",
}


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "list", help="list strategies, algorithms, schedules, workloads, launchers and experiments"
    )
    flags.as_json(parser)
    parser.set_defaults(run=_run, commands=commands.choices)


def _run(arguments: argparse.Namespace) -> int:
    sections = _sections()
    for sentence in _hidden(arguments.commands):
        say(sentence, sys.stderr)
    if arguments.json:
        show(json.dumps(sections, indent=2))
        return 0
    width = columns_here()
    folded = {title: _folded(section) for title, section in sections.items()}
    names = max(len(name) for section in folded.values() for name in section)
    for title, section in folded.items():
        show(title)
        for name, summary in section.items():
            first, *rest = wrapped(summary, width - names - 4)
            show(f"  {name:<{names}}  {first}".rstrip())
            for line in rest:
                show(f"{'':{names + 4}}{line}")
    return 0


def _sections() -> dict[str, dict[str, str]]:
    from ddpbench.collectives import NAMES as ALGORITHMS
    from ddpbench.collectives import TABLE as COLLECTIVES
    from ddpbench.installed import listed
    from ddpbench.strategies import TABLE
    from ddpbench.workloads import TABLE as WORKLOADS
    from ddpbench.workloads import summaries

    return {
        "strategies": _summaries(TABLE) | listed("strategy", TABLE),
        "algorithms": {"all_reduce": "the backend's own", **_summaries(COLLECTIVES)}
        | listed("algorithm", ALGORITHMS),
        "schedules": _SCHEDULES,
        "workloads": summaries() | listed("workload", WORKLOADS),
        "launchers": _LAUNCHERS,
        "experiments": _experiments(),
    }


def _hidden(commands: Iterable[str]) -> list[str]:
    """Name packages' entries that cannot be used, because ddpbench has the same names."""
    from ddpbench.installed import hidden
    from ddpbench.launch.shipped_names import hidden_names

    return [*hidden_names(), *hidden("command", commands).values()]


def _summaries(table: Mapping[str, Entry]) -> dict[str, str]:
    return {name: entry.summary for name, entry in table.items()}


def _folded(section: Mapping[str, str]) -> dict[str, str]:
    sizes: dict[tuple[str, str], list[str]] = {}
    for name, summary in section.items():
        head, _, size = name.partition(":")
        sizes.setdefault((head, summary), []).append(size)
    lines: dict[str, str] = {}
    for (head, summary), several in sizes.items():
        if len(several) > 1:
            lines[f"{head}:SIZE"] = f"{summary}; SIZE is {', '.join(several[:-1])} or {several[-1]}"
        else:
            lines[f"{head}:{several[0]}".rstrip(":")] = summary
    return lines


def _experiments() -> dict[str, str]:
    import tomllib

    from ddpbench.launch.experiments import known_experiments

    experiments: dict[str, str] = {}
    for name, path in known_experiments().items():
        try:
            with path.open("rb") as file:
                text = file.read(MOST_TOML_BYTES + 1).decode()
            if why := why_not_read(text):  # `spec.documents` would import more than this command needs
                raise ValueError(f"it {why}")
            experiments[name] = str(tomllib.loads(text).get("question", ""))
        except (OSError, ValueError, RecursionError) as error:
            experiments[name] = f"(cannot be read: {error})"
    return experiments
