"""`ddpbench allocation RUN_DIR`: write the numbers and text that an HPC centre requests in a proposal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ddpbench.cli import flags
from ddpbench.cli.lines import show


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "allocation",
        help="write a run up for an allocation proposal: Markdown, LaTeX, PNG",
        description="Write allocation.md, .tex and .png for a proposal: job sizes with wall times, core- or GPU-hours, "
        "speed-up and efficiency, the job size to ask for and why, and the method. The Markdown is also printed.",
    )
    flags.run_dir(parser)
    parser.add_argument("--strategy", help="strategy to ask for (default: ddp if it was measured)")
    parser.add_argument("--workload", help="workload to ask for (default: the one with most cases)")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting that selects one of several curves, such as local_batch=32 or an option",
    )
    parser.add_argument(
        "--efficiency-cut",
        type=flags.number("--efficiency-cut", "EFFICIENCY"),
        default=0.7,
        metavar="FRACTION",
        help="least efficiency of the recommended job size, such as 70%% (default: 0.7)",
    )
    parser.add_argument(
        "--samples-per-epoch",
        type=flags.number("--samples-per-epoch", "JOB_LENGTH"),
        metavar="N",
        help="samples per epoch (default: the recorded dataset's)",
    )
    parser.add_argument(
        "--epochs",
        type=flags.number("--epochs", "JOB_LENGTH"),
        metavar="N",
        help="length of the job in epochs",
    )
    parser.add_argument(
        "--steps",
        type=flags.number("--steps", "JOB_LENGTH"),
        metavar="N",
        help="length of the job in steps",
    )
    parser.add_argument(
        "--queue-wait",
        action=flags.Joined,
        metavar="RANKS=TIME,...",
        help='queue waits to add to run times, such as "1=5min,8=2h"',
    )
    parser.add_argument(
        "--mtbf",
        type=flags.number("--mtbf", "MTBF_S"),
        metavar="TIME",
        help='mean time between failures, such as "12h", for the best period between snapshots',
    )
    parser.add_argument(
        "--recovery",
        type=Path,
        metavar="RUN_DIR",
        help="for --mtbf: run in which recovery was measured (default: RUN_DIR, or its checkpoint times)",
    )
    flags.out(parser, "directory of the files (default: RUN_DIR)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import sys

    from ddpbench.features.allocation.analysis.allocation import allocation_of
    from ddpbench.features.allocation.analysis.choice import AllocationRequest
    from ddpbench.features.allocation.report import write_allocation
    from ddpbench.features.allocation.report.markdown_page import markdown
    from ddpbench.records.submission_dir import run_at

    request = AllocationRequest(
        strategy=_resolved("strategy", arguments.strategy),
        workload=_resolved("workload", arguments.workload),
        where={
            name: (_resolved(name, value) or value) if name == "algorithm" else value
            for name, value in _where(arguments.where).items()
        },
        efficiency_cut=arguments.efficiency_cut,
        samples_per_epoch=arguments.samples_per_epoch,
        epochs=arguments.epochs,
        steps=arguments.steps,
        waits_s=_waits(arguments.queue_wait) if arguments.queue_wait is not None else {},
        mtbf_s=arguments.mtbf,
        recovery=run_at(arguments.recovery) if arguments.recovery is not None else None,
    )
    run = run_at(arguments.run_dir)
    if arguments.out is not None:
        allocation = allocation_of(run, request)
        paths = write_allocation(allocation, arguments.out)
    else:
        with run.held() as own:
            allocation = allocation_of(run, request)
            paths = [run.path / path.name for path in write_allocation(allocation, own.path)]
    show(markdown(allocation), end="")
    show("\n".join(map(str, paths)), file=sys.stderr)
    if allocation.elsewhere:
        show(allocation.elsewhere, file=sys.stderr)
    return 0


def _resolved(kind: str, name: str | None) -> str | None:
    """Return the name by which runs record an object that a package registers.

    Raises:
        RequestError: several packages register it, or the registered object is not a class.
    """
    from ddpbench.errors import RequestError
    from ddpbench.launch.own_workloads import resolved
    from ddpbench.text_safety import command

    try:
        return resolved(kind, name) if name is not None else None
    except ValueError as error:
        flags = ("--where", f"algorithm={name}") if kind == "algorithm" else (f"--{kind}", name)
        raise RequestError(f"{command(*flags)}: {error}") from None


def _where(given: list[str]) -> dict[str, str]:
    """Parse texts such as `local_batch=32`.

    Raises:
        RequestError: a text is not of that form, or a name is repeated.
    """
    from ddpbench.errors import RequestError

    values: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or not value:
            raise RequestError(f"--where {text!r}: give NAME=VALUE, such as local_batch=32")
        if name in values:
            raise RequestError(f"--where: {name} is given twice")
        values[name] = value
    return values


def _waits(text: str) -> dict[int, float]:
    """Parse queue waits such as `1=5min,8=2h` to seconds by world size.

    Raises:
        RequestError: the text is not of that form, or has no wait.
    """
    from ddpbench.errors import RequestError
    from ddpbench.text_safety import shortened
    from ddpbench.units import counted

    waits: dict[int, float] = {}
    given = [part.strip() for part in text.split(",") if part.strip()]
    for part in given or [text]:
        ranks, equals, time = part.partition("=")
        if not equals or not ranks.strip().isdecimal() or not time.strip():
            raise RequestError(f"--queue-wait: {shortened(part)} is not RANKS=TIME, such as 8=2h")
        count = flags.number("--queue-wait", "RANKS")(ranks)
        if count in waits:
            raise RequestError(
                f"--queue-wait: {counted(count, 'rank')} {'is' if count == 1 else 'are'} given twice"
            )
        waits[count] = flags.number("--queue-wait", "WAIT_S")(time)
    return waits
