"""`ddpbench history RUNS`: find since when a case is slower, and by how much."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.cli import exit_codes, flags
from ddpbench.cli.lines import aligned, columns_here, say, show
from ddpbench.text_safety import JOINT, on_one_line

if TYPE_CHECKING:
    from ddpbench.features.history.analysis import History


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "history",
        help="find since when cases are slower or faster, over many runs",
        description="Match the cases of many runs, in the order of measurement, and print where each case's step time "
        "changed and by how much. If nothing changed, the chance of a reported change is 5 % at most. At "
        "least 8 runs are needed to show a change, more with several cases.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run directories, pytest-benchmark files, saved baselines, or folders of these",
    )
    parser.add_argument(
        "--case",
        default="",
        metavar="TEXT",
        help="only cases whose label contains this, such as ddp",
    )
    parser.add_argument(
        "--as-given",
        action="store_true",
        help="order runs as given, not by the time of measurement",
    )
    parser.add_argument(
        "--across", action="store_true", help="include runs although machines or torch differ"
    )
    flags.output_file(parser, "--markdown", "also write the table as Markdown; - prints it instead")
    flags.output_file(parser, "--html", "also write a page with a figure per case")
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.features.history.analysis import history_of, read_sides
    from ddpbench.features.history.analysis.wording import markdown, to_json
    from ddpbench.records.outputs import write_output

    printed = flags.check_outputs(arguments, "markdown", "html")
    sides = read_sides(
        arguments.runs,
        as_given=arguments.as_given,
        across=arguments.across,
        on_skip=_say_skipped,
    )
    history = history_of(sides, only=arguments.case)
    if arguments.json:
        show(json.dumps(to_json(history), indent=1))
    elif not printed:
        _print(history)
    with exit_codes.after_printing():
        if arguments.markdown is not None:
            write_output(arguments.markdown, markdown(history))
        if arguments.html is not None:
            from ddpbench.features.history.report import write_history

            write_history(history, arguments.html)
    return 0


def _say_skipped(folder: Path, why: str) -> None:
    without = f"skipped {on_one_line(str(folder))}, which holds no run: plan.json is missing"
    say(f"skipped: {on_one_line(why)}" if why else without, sys.stderr)


def _print(history: History) -> None:
    from ddpbench.features.history.analysis.wording import HEADS, headline, place_words, places, remarks, rows

    say(headline(history))
    show("")
    table = [[*cells, verdict.replace("; ", JOINT)] for *cells, verdict in rows(history)]
    show(*aligned([HEADS, *table], columns_here(), left=(0, 4), breakable=(0, 4)))
    show("")
    for place in places(history):
        say(place_words(place))
    for sentence in remarks(history):
        say(sentence)
