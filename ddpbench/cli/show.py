"""`ddpbench show RUN_DIR`: print a run's table and answer again."""

from __future__ import annotations

import argparse
from typing import Any

from ddpbench.cli import flags
from ddpbench.cli.lines import PassingLine, show


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "show",
        help="print a run's table and answer again",
        description="Print what `ddpbench sweep` printed at its end, from the run's records. No file is written. Exit "
        "with 1 if some case is not ok.",
    )
    flags.run_dir(parser)
    flags.quiet(parser)
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.analysis import summarize
    from ddpbench.records.submission_dir import run_at

    run = run_at(arguments.run_dir)
    run.check_records("nothing can be shown")
    with PassingLine() as progress:
        summary = summarize(run, progress=progress)
    from ddpbench.cli.results import as_json, exit_code, print_results, say_outdated

    if arguments.json:
        show(as_json(summary, run))
    else:
        print_results(summary, quiet=arguments.quiet)
    say_outdated(summary)
    return exit_code(summary)
