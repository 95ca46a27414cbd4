"""`ddpbench compare BASE NEW`: did training become slower, where, and by how much?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.cli.lines import aligned, columns_here, say, show

if TYPE_CHECKING:
    from ddpbench.analysis.regression import Changes


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="compare two runs case by case: faster, slower, equivalent, or cannot tell",
        description="Match the cases of two run directories by what they specify, and say of each whether its step "
        "became slower, by how much with what interval, and in which part of the step. All verdicts together are right "
        "with 95 % confidence.",
    )
    parser.add_argument("base", type=Path, metavar="BASE", help="the run directory that is held against")
    parser.add_argument("new", type=Path, metavar="NEW", help="the run directory that may have changed")
    parser.add_argument(
        "--fail-on",
        type=_fraction,
        metavar="PERCENT",
        help="exit with 1 when a case is slower by more than this, all of its interval, or fails; such as 3%%",
    )
    parser.add_argument(
        "--across", action="store_true", help="compare although machines or torch differ; they are listed"
    )
    parser.add_argument(
        "--drift",
        type=_fraction,
        metavar="PERCENT",
        help="standard deviation of step times between sessions on this machine (default: 4%%)",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.set_defaults(run=_run)


def _fraction(text: str) -> float:
    """Return a fraction from `3%` or `0.03`.

    Raises:
        ArgumentTypeError: it is none, or not between 0 and 1.
    """
    number, percent = (text[:-1], True) if text.endswith("%") else (text, False)
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a share such as 3% or 0.03, below 100%")
    return value


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.analysis.regression import changes_of, read_side, unlike
    from ddpbench.analysis.regression.changes import DRIFT
    from ddpbench.analysis.regression.told import failing, markdown, to_json
    from ddpbench.errors import IdentityError, OutputError, RequestError
    from ddpbench.records import RunDir
    from ddpbench.records.files import write_anew
    from ddpbench.records.rundir import explain_os_error

    if arguments.base.resolve() == arguments.new.resolve():
        raise RequestError(f"{arguments.base} is both sides: give two run directories")
    base, new = (read_side(RunDir(path)) for path in (arguments.base, arguments.new))
    differing = unlike(base, new)
    if differing and not arguments.across:
        listed = "\n".join(f"  {line}" for line in differing)
        raise IdentityError(
            "the runs were measured under other conditions: a difference would not be the program's. Compare them all "
            f"the same with --across\n{listed}"
        )
    drift = DRIFT if arguments.drift is None else arguments.drift
    changes = changes_of(base, new, drift=drift, unlike=differing)
    if arguments.markdown is not None:
        try:
            write_anew(arguments.markdown, markdown(changes))
        except OSError as error:
            raise OutputError(f"{arguments.markdown} cannot be written: {explain_os_error(error)}") from None
    if arguments.json:
        show(json.dumps(to_json(changes), indent=1))
    else:
        print_changes(changes)
    if arguments.fail_on is None:
        return 0
    failed = failing(changes, arguments.fail_on)
    for change in failed:
        why = change.reason if change.broken else f"slower by more than {100 * arguments.fail_on:g} %"
        say(f"{change.label}: {why}", sys.stderr)
    if not failed:
        say(f"no case is shown to be slower by more than {100 * arguments.fail_on:g} %", sys.stderr)
    return int(bool(failed))


def print_changes(changes: Changes) -> None:
    """Print the table, what it came to, and what limits it."""
    from ddpbench.analysis.regression.told import HEADS, headline, remarks, rows

    lines = aligned([HEADS, *rows(changes)], columns_here(), left=(0, 5, 6), breakable=(0, 6))
    show(*lines)
    show("")
    say(headline(changes))
    for sentence in remarks(changes):
        say(sentence)
