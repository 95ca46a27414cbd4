"""`ddpbench bisect EXPERIMENT GOOD BAD`: find the commit that made training slower."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags
from ddpbench.cli.lines import say, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddpbench.analysis.regression import Change


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bisect",
        help="find the commit that made training slower",
        description="Search the commits of this repository for the one that made training slower. Each step measures "
        "a commit, interleaved with the good one, until it is decided or skipped. The answer is right with 95 % "
        "confidence. Your checkout is not changed.",
    )
    parser.add_argument(
        "experiment", metavar="EXPERIMENT", help="a name or a TOML file, best with a single case"
    )
    parser.add_argument("good", metavar="GOOD", help="a fast commit")
    parser.add_argument("bad", metavar="BAD", help="a later, slow commit")
    parser.add_argument(
        "--total",
        type=flags.number("--total", "DECIDING_S"),
        metavar="TIME",
        default=300.0,
        help="time limit of each step (default: '5 min')",
    )
    flags.turns(parser)
    flags.overrides(parser, "--set base.local_batch=4, on all commits")
    flags.workload(parser)
    flags.out(parser, "directory of the measurements (default: reports/bisect-NAME-TIME)")
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from contextlib import nullcontext
    from datetime import UTC, datetime

    from ddpbench.errors import RequestError
    from ddpbench.launch.experiments import find_experiment
    from ddpbench.launch.interleave.bisect import commits_between, found_words, search
    from ddpbench.launch.interleave.compare import ComparisonRequest, check_empty, interleave
    from ddpbench.launch.interleave.sides import SideSpec, check_common
    from ddpbench.machine.claim import claimed
    from ddpbench.machine.disturbance import own_environment_allows_sharing
    from ddpbench.machine.hardware import read_hardware
    from ddpbench.records.rundir import default_path
    from ddpbench.units import counted

    check_common(arguments.overrides, fewest="--total")
    experiment = find_experiment(arguments.experiment)
    commits = commits_between(Path.cwd(), arguments.good, arguments.bad)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    out = arguments.out or default_path(f"bisect-{experiment.stem}-{stamp}")
    check_empty(out)
    say(f"{counted(len(commits), 'commit')}, into {out}", sys.stderr)
    chosen: list[str] = []

    def measure(good: str, other: str, limit: float | None, alpha: float) -> Change:
        changes = interleave(
            ComparisonRequest(
                experiment=experiment,
                base=SideSpec(name="base", ref=good),
                new=SideSpec(name="new", ref=other),
                overrides=tuple(arguments.overrides),
                out=out / other[:12],
                total_s=arguments.total,
                fewest=5,
                limit=limit,
                rare=False,  # the change was found in typical rounds
                alpha=alpha,
                turns=arguments.turns or "blocks",
            ),
            _Quiet(),
        )
        worst = _worst([one for one in changes.changes if not chosen or one.case.case_id == chosen[0]])
        if worst is None:
            raise RequestError(f"{other} lacks the case that became slower")
        if not chosen:
            chosen.append(worst.case.case_id)
        return worst

    claim = nullcontext() if own_environment_allows_sharing() else claimed(read_hardware().cores)
    with _removed_if_refused(out), claim:
        result = search(arguments.good, commits, measure, event=lambda text: say(text, sys.stderr))
    if arguments.json:
        show(json.dumps(asdict(result), indent=1))
    else:
        say(found_words(result))
    return 0 if len(result.commits) == 1 else 1


@contextmanager
def _removed_if_refused(out: Path) -> Iterator[None]:
    """Remove `out` on a RequestError, unless it existed before or is not empty."""
    from ddpbench.errors import RequestError

    made_here = not out.exists()
    try:
        yield
    except RequestError:
        if made_here:
            with suppress(OSError):
                out.rmdir()
        raise


def _worst(changes: Sequence[Change]) -> Change | None:
    return max(
        changes,
        key=lambda one: (one.verdict == "slower", (one.ratio and one.ratio.low) or 0.0),
        default=None,
    )


class _Quiet:
    def begun(self, out: Path) -> None:
        """Do nothing."""

    def event(self, text: str) -> None:
        say(text, sys.stderr)

    def round_made(self, number: int, left_s: float) -> None:
        """Do nothing."""
