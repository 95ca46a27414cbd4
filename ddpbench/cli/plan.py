"""`ddpbench plan`: plan an experiment for given nodes, and print the command lines that run it there."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags
from ddpbench.cli.lines import show

if TYPE_CHECKING:
    from ddpbench.launch.layout import Lines, Planned
    from ddpbench.records import RunDir


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "plan",
        help="plan an experiment for several nodes and print the commands to start",
        description="Write a run directory for several nodes, and print the commands that start or resume it there "
        "with torchrun, srun or another launcher. Nothing is measured.",
    )
    flags.experiment(parser)
    parser.add_argument(
        "--nodes",
        action=flags.Joined,
        metavar="A,B",
        help="host names; the first is the rendezvous host",
    )
    parser.add_argument(
        "--ranks-per-node",
        type=flags.number("--ranks-per-node", "RANKS_PER_NODE"),
        metavar="N",
        help="ranks on each node (default: 1)",
    )
    parser.add_argument(
        "--port", type=flags.number("--port", "PORT"), help="free port of the first node (default: 29500)"
    )
    flags.overrides(parser, "--set 'axes.nodes=[1,2]'")
    flags.workload(parser)
    flags.out(parser)
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.errors import RequestError
    from ddpbench.launch.experiments import find_experiment
    from ddpbench.launch.layout import Nodes, lines_of, plan_for
    from ddpbench.records import RunDir

    source = find_experiment(arguments.experiment)
    given: dict[str, Any] = {"ranks_per_node": arguments.ranks_per_node, "port": arguments.port}
    if arguments.nodes is not None:
        given["names"] = tuple(name.strip() for name in arguments.nodes.split(","))
    given = {name: value for name, value in given.items() if value is not None}
    if source.is_dir():
        if arguments.overrides or arguments.out:
            raise RequestError(
                f"{source} is already planned: leave out --set and --out, or give the experiment to plan it again"
            )
        run = RunDir(source)
        lines = lines_of(run, **given)
        show(_json(run, lines) if arguments.json else _text(run, lines, head=[]))
        return 0
    if "names" not in given:
        raise RequestError(
            "--nodes is missing: name the nodes that the ranks will run on, such as --nodes hostA,hostB"
        )
    planned = plan_for(source, Nodes(**given), overrides=arguments.overrides, out=arguments.out)
    if arguments.json:
        show(_json(planned.run, planned.lines))
    else:
        show(_text(planned.run, planned.lines, head=_head(planned)))
    return 0


def _head(planned: Planned) -> list[str]:
    from ddpbench.cli.resolution import resolution_words
    from ddpbench.runtime.estimate import about
    from ddpbench.spec.grouping import FACETS
    from ddpbench.units import counted, format_seconds

    plan, nodes, budget = planned.plan, planned.nodes, planned.plan.experiment.budget
    cases = len(plan.runnable)
    seconds = plan.estimate_s(budget.rounds_min)
    shape = f"{len(nodes.names)} x {nodes.ranks_per_node} (nodes x ranks)"
    first = plan.runnable[0].case.device
    took = f"{about(budget)} {format_seconds(round(seconds))} for {counted(budget.rounds_min, 'round')}"
    lines = [f"{planned.run.path}: {counted(cases, 'case')} on up to {shape}, device {first}, {took}"]
    lines += [f"  {note}" for note in planned.notes]
    names = plan.names
    for entry in plan.cases:
        case = entry.case
        layout = FACETS["nodes"].word(case)
        skipped = f"  (skipped: {entry.skip_reason})" if entry.skip_reason else ""
        base = "  (base case of the speed-ups)" if entry.added_as_baseline else ""
        lines.append(f"  {layout:<7} {case.case_id:<36} {names.full(case)}{base}{skipped}")
    if resolves := resolution_words(plan):
        lines += [f"  {resolves}"]
    return [*lines, ""]


def _text(run: RunDir, lines: Lines, head: list[str]) -> str:
    from ddpbench.text_safety import command

    path = run.path
    steps = [
        f"Every node needs {path} at that path: on a shared file system, or as a copy that includes job.key.",
        "Then start one of these. All nodes must have the same versions. The same command again resumes the run.",
        "",
        "torchrun, a separate line for each node:" if len(lines.static) > 1 else "torchrun:",
        *(f"  {line}" for line in lines.static),
        "torchrun, the same line on every node (their order does not matter):",
        f"  {lines.c10d}",
        "Slurm, in an allocation of these nodes:",
        f"  {lines.srun}",
        "",
        f"Afterwards, on the node that has the first node's records: {command('ddpbench', 'report', path)}",
    ]
    return "\n".join([*head, *steps])


def _json(run: RunDir, lines: Lines) -> str:
    return json.dumps({"run_dir": str(run.path), **asdict(lines)}, indent=1)
