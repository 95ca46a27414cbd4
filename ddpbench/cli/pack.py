"""`ddpbench pack RUN_DIR`: pack a run's records into one small file that git can keep."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ddpbench.cli import flags
from ddpbench.cli.lines import show


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "pack",
        help="pack a run's records into one file, to keep the run in git",
        description="Write a run's raw records to records.tar.xz, without logs, and regenerate the report from it. "
        "Other commands read the file if cases/ is missing.",
    )
    flags.run_dir(parser)
    parser.add_argument(
        "--dirty",
        action="store_true",
        help="also pack a run of uncommitted code, which nobody can measure again",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import ddpbench
    from ddpbench.errors import RequestError
    from ddpbench.records import pack
    from ddpbench.records.archive import unpackable
    from ddpbench.records.machine import is_dirty, read_machine, read_merged
    from ddpbench.records.plan import read_plan
    from ddpbench.records.sessions import read_sessions
    from ddpbench.records.submission_dir import run_at
    from ddpbench.text_safety import on_one_line, shortened
    from ddpbench.units import format_bytes

    run = run_at(arguments.run_dir)
    with run.held() as own:
        for read in (read_plan, read_machine, read_merged, read_sessions):
            read(run)  # reads all records, or refuses them, before anything is written
        commit = str((read_machine(run).get("context") or {}).get("git_commit") or "")
        if is_dirty(commit) and not arguments.dirty:
            raise RequestError(
                f"{run.path} was measured with uncommitted changes (commit {on_one_line(commit)}), so "
                "nobody can measure the same code again. Commit them and measure again, or give --dirty"
            )
        with own.locked("ddpbench pack"):
            size, left = pack(own).stat().st_size, unpackable(own)
    show(f"packed {format_bytes(size)} of records", file=sys.stderr)
    if left:
        files = "1 file is" if len(left) == 1 else f"{len(left):,} files are"
        said = f"{files} left out, because no record has such a name: {shortened(left[0])}"
        show(f"{said}{' and others' if len(left) > 1 else ''}", file=sys.stderr)
    ddpbench.write_report(run.path)
    show("to keep it in git, add its folder to the exceptions in .gitignore", file=sys.stderr)
    show(run.packed)
    return 0
