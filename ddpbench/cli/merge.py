"""`ddpbench merge RUN_DIR... --out DIR`: merge runs from several allocations into one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ddpbench.cli import flags
from ddpbench.cli.lines import PassingLine, say, show


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "merge",
        help="merge runs measured on the same type of machine",
        description="Copy the finished launches of several runs into a new run, so that their world sizes form one "
        "curve. Machine type and program must match; numbers of cores, GPUs and ranks may differ. Ratios "
        "are taken only within a round of one run. Exit with 1 if a case is not ok.",
    )
    parser.add_argument(
        "run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="two or more run directories"
    )
    flags.out(parser, "new run directory", required=True)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import ddpbench
    from ddpbench.cli.results import failed
    from ddpbench.errors import RequestError
    from ddpbench.launch.merge.merge import merging
    from ddpbench.text_safety import command

    with merging(arguments.run_dirs, arguments.out) as merged:
        for sentence in merged.left_out:
            say(f"left out: {sentence}", sys.stderr)
        try:
            with PassingLine() as progress:
                page, summary = ddpbench.report_on(merged.run.path, on_progress=progress)
        except RequestError:  # no report was made, so keep no merged run either
            merged.remove()
            raise
        except KeyboardInterrupt:
            page_of = command("ddpbench", "report", arguments.out)
            say(
                f"interrupted; the launches are merged, but the report is not written. To write it, run: {page_of}",
                sys.stderr,
            )
            raise
    count = len(arguments.run_dirs)
    show(f"{merged.launches} launches of {count} runs in {merged.run.path}", file=sys.stderr)
    for sentence in summary.conclusions.left_out:
        say(sentence, sys.stderr)
    show(page)
    bad = failed(summary)
    for sentence in bad:
        say(sentence, sys.stderr)
    return 1 if bad else 0
