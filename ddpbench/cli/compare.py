"""`ddpbench compare BASE NEW`: compare how fast two sides train, or measure both now with `--interleave`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.cli import exit_codes, flags
from ddpbench.cli.lines import aligned, columns_here, say, show

if TYPE_CHECKING:
    from ddpbench.analysis.regression import Changes


TOTAL_S = 600.0
FEWEST_ROUNDS = 5


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="compare two runs case by case: faster, slower, equivalent, or cannot tell",
        description="Match the cases of two sides, and say of each case whether its step became slower, by how much, "
        "and in which part. All verdicts together are right with 95 % confidence. With --interleave, "
        "measure both sides of an experiment alternately until each case is decided, so that a noisy machine "
        "can detect 3 %.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="BASE and NEW, each a run directory, a pytest-benchmark file or a saved baseline; or one experiment with "
        "--interleave",
    )
    parser.add_argument(
        "--interleave",
        action="store_true",
        help="measure the sides --base and --new now, alternately",
    )
    parser.add_argument(
        "--base",
        dest="base_side",
        action="append",
        default=[],
        metavar="SIDE",
        help="ref=COMMIT, path=FOLDER, python=INTERPRETER, set=KEY=VALUE or env=NAME=VALUE; repeatable",
    )
    parser.add_argument(
        "--new",
        dest="new_side",
        action="append",
        default=[],
        metavar="SIDE",
        help="the same for the other side; a side that is not given is the code in the working directory",
    )
    parser.add_argument(
        "--total",
        type=flags.number("--total", "DECIDING_S"),
        metavar="TIME",
        help="time limit of --interleave (default: '10 min')",
    )
    parser.add_argument(
        "--rounds",
        type=flags.number("--rounds", "AA_ROUNDS"),
        help=f"fewest rounds of --interleave (default: {FEWEST_ROUNDS})",
    )
    flags.turns(parser)
    flags.overrides(parser, "--set base.local_batch=4, on both sides")
    flags.workload(parser)
    flags.out(parser, "directory of --interleave (default: reports/compare-NAME-TIME)")
    parser.add_argument(
        "--fail-on",
        type=flags.share,
        metavar="PERCENT",
        help="exit with 1 if a case fails, or its whole interval shows a slow-down of more than this, such as 3%%",
    )
    parser.add_argument("--across", action="store_true", help="compare although machines or torch differ")
    parser.add_argument(
        "--drift",
        type=flags.share,
        metavar="PERCENT",
        help="standard deviation of step times between sessions (default: 4%%, or more if launches scatter more)",
    )
    flags.output_file(parser, "--markdown", "also write the table as Markdown; - prints it instead")
    flags.output_file(parser, "--html", "also write a page with both sides' launches")
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.errors import RequestError
    from ddpbench.launch.interleave.turns import FILE
    from ddpbench.text_safety import shortened

    one = len(arguments.runs) == 1
    flags.check_outputs(arguments, "markdown", "html")
    if arguments.interleave:
        if not one:
            raise RequestError("--interleave takes one experiment: give only its name or its TOML file")
        _refuse_drift(arguments)
        return _publish(_interleaved(arguments), arguments)
    how = ("base_side", "new_side", "overrides", "rounds", "total", "out", "turns")
    if any(getattr(arguments, name) not in (None, []) for name in how):
        raise RequestError(
            "--base, --new, --set, --workload, --rounds, --total, --turns and --out need --interleave"
        )
    if one and (Path(arguments.runs[0]) / FILE).is_file():
        from ddpbench.launch.interleave.compare import changes_in

        _refuse_drift(arguments)
        return _publish(changes_in(Path(arguments.runs[0])), arguments)
    if len(arguments.runs) != 2:
        gone = one and not Path(arguments.runs[0]).exists()
        which = f"{shortened(arguments.runs[0])} does not exist; " if gone else ""
        raise RequestError(
            f"{which}give two runs, BASE and NEW, or a directory that --interleave has written"
        )
    return _publish(_of_two(arguments), arguments)


def _refuse_drift(arguments: argparse.Namespace) -> None:
    """Refuse flags for sides measured at different times.

    Raises:
        RequestError: such a flag was given.
    """
    from ddpbench.errors import RequestError

    if arguments.drift is not None or arguments.across:
        raise RequestError(
            "--drift and --across apply to two runs: leave them out with --interleave, which measures both sides "
            "alternately on this machine"
        )


def _of_two(arguments: argparse.Namespace) -> Changes:
    """Compare two sides that are already measured.

    Raises:
        RequestError: the sides are the same run or copies of one, or an argument names no side.
        IdentityError: the sides were measured under different conditions, and `--across` is not given.
    """
    from ddpbench.analysis.regression import changes_of, unlike
    from ddpbench.analysis.regression.baselines import find_side, side_of
    from ddpbench.analysis.regression.copies import check_no_copies
    from ddpbench.analysis.regression.sides import fields_between
    from ddpbench.errors import IdentityError, RequestError

    first, second = arguments.runs
    if find_side(first).resolve() == find_side(second).resolve():
        raise RequestError(f"{first} is given as both sides: give two different runs")
    base, new = side_of(first), side_of(second)
    check_no_copies((base, new))
    differing = unlike(base, new)
    if differing and not arguments.across:
        listed = "\n".join(f"  {line}" for line in differing)
        raise IdentityError(
            "the runs were measured under different conditions, so a difference may have another "
            f"cause than the program. To compare them anyway, add --across\n{listed}"
        )
    apart = fields_between(base, new)
    return changes_of(base, new, drift=arguments.drift, differing=apart, unlike=differing)


def _interleaved(arguments: argparse.Namespace) -> Changes:
    """Measure two sides interleaved, and compare them.

    Raises:
        RequestError: an argument names no side, or a side cannot start.
        LaunchError: a side cannot continue.
    """
    from contextlib import nullcontext

    from ddpbench.launch.experiments import find_experiment
    from ddpbench.launch.interleave.compare import ComparisonRequest, interleave
    from ddpbench.launch.interleave.sides import check_apart, check_common, check_there, parse_side
    from ddpbench.machine.claim import claimed
    from ddpbench.machine.disturbance import own_environment_allows_sharing
    from ddpbench.machine.hardware import read_hardware
    from ddpbench.text_safety import command

    base, new = parse_side("base", arguments.base_side), parse_side("new", arguments.new_side)
    check_apart(base, new)
    check_common(arguments.overrides, (base, new))
    for side in (base, new):  # before waiting for cores
        check_there(side)
    asked = ComparisonRequest(
        experiment=find_experiment(arguments.runs[0]),
        base=base,
        new=new,
        overrides=tuple(arguments.overrides),
        out=arguments.out,
        total_s=TOTAL_S if arguments.total is None else arguments.total,
        fewest=arguments.rounds or FEWEST_ROUNDS,
        limit=arguments.fail_on,
        turns=arguments.turns or "blocks",
    )
    free = own_environment_allows_sharing()
    lines = _Lines()
    with nullcontext() if free else claimed(read_hardware().cores):
        try:
            return interleave(asked, lines)
        except KeyboardInterrupt:
            measured = (
                f"to compare what was measured: {command('ddpbench', 'compare', lines.out)}"
                if lines.rounds
                else ""
            )
            say(f"interrupted; {measured or 'no round was finished'}", sys.stderr)
            raise


class _Lines:
    def __init__(self) -> None:
        self.out: Path | str = ""
        self.rounds = 0

    def begun(self, out: Path) -> None:
        self.out = out
        say(f"interleaving both sides, into {out}", sys.stderr)

    def event(self, text: str) -> None:
        say(text, sys.stderr)

    def round_made(self, number: int, left_s: float) -> None:
        from ddpbench.units import format_seconds

        self.rounds = number
        say(f"round {number} of both sides; {format_seconds(max(0.0, round(left_s)))} left", sys.stderr)


def _publish(changes: Changes, arguments: argparse.Namespace) -> int:
    """Return 1 if `--fail-on` applies or no case can be judged, else 0."""
    from dataclasses import replace

    from ddpbench.analysis.regression.wording import failing, judged_any, markdown, to_json, why_failing
    from ddpbench.records.outputs import STANDARD_OUTPUT, write_output

    if arguments.fail_on:
        changes = replace(changes, wanted=arguments.fail_on)
    if arguments.json:
        show(json.dumps(to_json(changes), indent=1))
    elif STANDARD_OUTPUT not in (arguments.markdown, arguments.html):
        print_changes(changes)
    with exit_codes.after_printing():
        if arguments.markdown is not None:
            write_output(arguments.markdown, markdown(changes))
        if arguments.html is not None:
            from ddpbench.report.comparison import write_comparison

            write_comparison(changes, arguments.html)
    if arguments.fail_on is None:
        return 0
    failed = failing(changes, arguments.fail_on)
    for change in failed:
        say(f"{change.label}: {why_failing(change, arguments.fail_on)}", sys.stderr)
    if not judged_any(changes):
        say("no case could be judged, so the gate was not passed", sys.stderr)
        return 1
    if not failed:
        undecided = changes.counts().get("cannot tell", 0)
        more = f"; {undecided} of {len(changes.changes)} undecided" if undecided else ""
        say(f"no case is shown to be slower by more than {100 * arguments.fail_on:g} %{more}", sys.stderr)
    return int(bool(failed))


def print_changes(changes: Changes) -> None:
    """Print the table of changes, its summary, and its limits."""
    from ddpbench.analysis.regression.wording import HEADS, headline, remarks, rows, settings_sentence

    lines = aligned([HEADS, *rows(changes)], columns_here(), left=(0, 5, 6), breakable=(0, 6))
    show(*lines)
    show("")
    say(headline(changes))
    if apart := settings_sentence(changes):
        say(apart)
    for sentence in remarks(changes):
        say(sentence)
