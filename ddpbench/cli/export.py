"""`ddpbench export RUN_DIR --format ...`: write a run's numbers for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ddpbench.cli import flags


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "export",
        help="write a run's numbers in a format that other programs read",
        description="Write a run's cases as pytest-benchmark's JSON, OpenMetrics or a table, or its single steps and "
        "transfers as tables.",
    )
    flags.run_dir(parser)
    parser.add_argument(
        "--format",
        required=True,
        choices=["csv", "openmetrics", "parquet", "pytest-benchmark"],
        dest="kind",
        help="output format; steps and transfers need csv or parquet",
    )
    parser.add_argument(
        "--table",
        choices=["cases", "steps", "transfers"],
        default="cases",
        help="rows of a table: cases, steps of ranks, or transfers of ranks (default: cases)",
    )
    flags.output_file(parser, "--out", "output file (default: -, standard output)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.analysis.export import exported
    from ddpbench.errors import RequestError
    from ddpbench.records.outputs import STANDARD_OUTPUT, write_output
    from ddpbench.records.submission_dir import run_at

    path: Path = arguments.out or STANDARD_OUTPUT
    flags.check_outputs(arguments, "out")
    if path == STANDARD_OUTPUT and arguments.kind == "parquet" and sys.stdout.isatty():
        raise RequestError("--format parquet is binary: name a file with --out")
    run = run_at(arguments.run_dir)
    run.check_records()
    write_output(path, exported(run, arguments.kind, arguments.table))
    return 0
