"""`ddpbench baseline save|list|remove`: save runs by name, to compare later runs with them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ddpbench.cli.lines import aligned, columns_here, say, show


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "baseline",
        help="save a run by a name, to compare later ones with: ddpbench compare NAME RUN",
        description="Save, list or remove runs by name in .benchmarks/, as pytest-benchmark does. `ddpbench compare` "
        "and pytest's --ddpbench-baseline take such a name.",
    )
    parser.add_argument(
        "action", choices=["save", "list", "remove"], metavar="ACTION", help="save, list or remove"
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="name such as main, for its latest run; or 0001_main or 0001, as listed, for one run",
    )
    parser.add_argument("run_dir", nargs="?", type=Path, metavar="RUN_DIR", help="run to save")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.errors import RequestError

    act, words = {
        "save": (_save, "NAME RUN_DIR"),
        "list": (_list, ""),
        "remove": (_remove, "NAME"),
    }[arguments.action]
    given = [one for one in (arguments.name, arguments.run_dir) if one is not None]
    if len(given) != len(words.split()):
        raise RequestError(f"give: ddpbench baseline {arguments.action} {words}".rstrip())
    return act(arguments)


def _save(arguments: argparse.Namespace) -> int:
    from ddpbench.analysis.export import exported
    from ddpbench.analysis.read.cases import read_cases
    from ddpbench.analysis.regression.baselines import Baselines
    from ddpbench.errors import RequestError
    from ddpbench.naming import Namer
    from ddpbench.records.plan import read_plan
    from ddpbench.records.submission_dir import run_at
    from ddpbench.units import counted

    run = run_at(arguments.run_dir)
    cases = read_cases(run, read_plan(run))
    without = [case for case in cases if not case.timings]
    if len(without) == len(cases):
        raise RequestError(f"{run.path} has no measured case, so there is nothing to save")
    path = Baselines().save(arguments.name, exported(run, "pytest-benchmark"))
    say(f"{path}: {counted(len(cases) - len(without), 'case')}", sys.stderr)
    names = Namer(case.case for case in cases)
    for case in without:
        say(
            f"left out: {names.full(case.case)} ({case.status}{f': {case.error}' if case.error else ''})",
            sys.stderr,
        )
    return 0


def _list(_: argparse.Namespace) -> int:
    from ddpbench.analysis.regression.baselines import Baselines, machine_folder
    from ddpbench.analysis.regression.saved import read_saved
    from ddpbench.errors import DdpbenchError

    baselines = Baselines()
    rows = [("name", "cases", "commit")]
    for path in baselines.entries():
        try:
            side = read_saved(path)
        except DdpbenchError:
            rows.append((path.stem, "", "none of ddpbench's"))
            continue
        rows.append((path.stem, str(len(side.cases)), side.commit))
    if len(rows) == 1:
        say(f"nothing is saved in {baselines.storage / machine_folder()}", sys.stderr)
        return 0
    show(*aligned(rows, columns_here(), left=(0, 2), breakable=(2,)))
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    from ddpbench.analysis.regression.baselines import Baselines
    from ddpbench.errors import OutputError
    from ddpbench.records.rundir import explain_os_error

    path = Baselines().find(arguments.name)
    try:
        path.unlink()
    except OSError as error:
        raise OutputError(f"{path} cannot be removed: {explain_os_error(error)}") from None
    say(f"removed {path}", sys.stderr)
    return 0
