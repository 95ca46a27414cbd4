"""`ddpbench report RUN_DIR`: regenerate the table, the page and the figures from a run's records."""

from __future__ import annotations

import argparse
import gc
import sys
from typing import Any

from ddpbench.cli import flags
from ddpbench.cli.lines import PassingLine, say, show


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "report",
        help="regenerate a run directory's table and report",
        description="Regenerate cases.csv, report.html and figures/ from a run's records. Print the page's path, the "
        "verdicts on claims, and the reason of each case that is not ok. Exit with 1 if there is such a "
        "case.",
    )
    flags.run_dir(parser)
    parser.add_argument(
        "--figures",
        action=flags.Joined,
        metavar="FORMATS",
        default="png",
        help="formats of the figures in addition to png, such as svg,pdf",
    )
    parser.add_argument(
        "--slides",
        action="store_true",
        help="also write each figure as a slide (16:9, large type) into slides/",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import ddpbench
    from ddpbench.picture_formats import PictureFormats

    formats = _formats(arguments.figures)
    wanted = PictureFormats(figures=formats, slides=formats if arguments.slides else frozenset())
    gc.disable()  # until the process ends: collecting a large report's garbage takes most of a second
    with PassingLine() as progress:
        page, summary = ddpbench.report_on(arguments.run_dir, wanted, progress)
    from ddpbench.cli.results import (  # after `report_on`, which starts other processes first
        failed,
        say_outdated,
    )

    show(page)
    for claim in (one for one in summary.conclusions.findings if one.kind == "claim"):
        say(claim.line, sys.stderr)
    say_outdated(summary)
    for sentence in summary.conclusions.left_out:
        say(sentence, sys.stderr)
    if summary.conclusions.checks.line:
        say(summary.conclusions.checks.line, sys.stderr)
    bad = failed(summary)
    for sentence in bad:
        say(sentence, sys.stderr)
    return 1 if bad else 0


def _formats(text: str) -> frozenset[str]:
    """Return the formats in a list such as `svg,pdf`.

    Raises:
        RequestError: the list is empty, or a format is unknown.
    """
    from ddpbench.errors import RequestError, nearest
    from ddpbench.picture_formats import FORMATS

    given = [part.strip().lower() for part in text.split(",") if part.strip()]
    if not given:
        raise RequestError(
            f"--figures {text!r}: give one or more of {', '.join(FORMATS)}, separated by commas"
        )
    for one in given:
        if one not in FORMATS:
            raise RequestError(f"--figures {text!r}: unknown format {one!r}; {nearest(one, FORMATS)}")
    return frozenset(given)
