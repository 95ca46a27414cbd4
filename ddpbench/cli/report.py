"""`ddpbench report RUN_DIR`: regenerates the table, the page and the figures from a run's records."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ddpbench.cli import flags
from ddpbench.cli.lines import say


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("report", help="regenerate a run directory's table and report")
    flags.run_dir(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import ddpbench

    page, summary = ddpbench.report_on(arguments.run_dir)
    print(page)  # noqa: T201
    if summary.checks.line:
        say(summary.checks.line, sys.stderr)
    return 0
