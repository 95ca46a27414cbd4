"""`ddpbench sweep`: run an experiment and show its progress."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags
from ddpbench.cli.lines import PassingLine, aligned, columns_here, say, show
from ddpbench.text_safety import JOINT, clean, command, on_one_line
from ddpbench.units import counted, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from ddpbench.analysis.summary import RunSummary
    from ddpbench.errors import LaunchError
    from ddpbench.launch.sweep.preparation import Prepared, SweepRequest
    from ddpbench.launch.sweep.progress import SweepResult
    from ddpbench.records import RunDir


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "sweep",
        help="run an experiment's launches and report on them",
        description="Measure every case of an experiment, round after round, and write a table and a report. A run "
        "directory in place of the experiment resumes that run.",
    )
    flags.experiment(parser, default="quick")
    flags.overrides(parser, "--set base.local_batch=16 --set 'axes.world_size=[1,2]'")
    flags.workload(parser)
    parser.add_argument(
        "--fabric",
        metavar="'NODES x RATE'",
        help="emulated network, such as '8 x 1gbit', or '2 x 4 x 10gbit' with ranks per node",
    )
    parser.add_argument(
        "--total",
        type=flags.number("--total", "TOTAL_S"),
        metavar="TIME",
        help="time limit, such as '4 min'",
    )
    parser.add_argument(
        "--resolve",
        type=flags.resolved,
        metavar="PERCENT",
        help="stop once every speed-up has this half-width, such as 3%%; raises rounds_max as far as the time allows",
    )
    flags.out(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print cases, launches and times, and run nothing",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="with --dry-run: each launch in order and each rank's command",
    )
    parser.add_argument("--retry-failed", action="store_true", help="when resuming: rerun failed launches")
    flags.quiet(parser)
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.errors import RequestError
    from ddpbench.launch.experiments import find_experiment
    from ddpbench.launch.sweep.preparation import SweepRequest
    from ddpbench.spec.fabric import fabric_overrides

    if arguments.verbose and not arguments.dry_run:
        raise RequestError("--verbose shows each launch of a plan: give it with --dry-run")
    if arguments.quiet and arguments.dry_run:
        raise RequestError(
            "--quiet prints the answer, and a dry run gives no answer: leave out --quiet or --dry-run"
        )
    fabric = fabric_overrides(arguments.fabric) if arguments.fabric is not None else []
    request = SweepRequest(
        experiment=find_experiment(arguments.experiment),
        overrides=[*fabric, *_budget(arguments), *arguments.overrides],
        out=arguments.out,
        retry_failed=arguments.retry_failed,
        fills_time=arguments.resolve is not None,
    )
    if arguments.dry_run:
        return _dry_run(request, as_json=arguments.json, verbose=arguments.verbose)
    return _sweep(request, as_json=arguments.json, quiet=arguments.quiet)


def _budget(arguments: argparse.Namespace) -> list[str]:
    """Return the settings of the budget that `--total` and `--resolve` give."""
    given = {"total": arguments.total, "target_half_width": arguments.resolve}
    return [f"budget.{name}={value}" for name, value in given.items() if value is not None]


def _dry_run(request: SweepRequest, *, as_json: bool, verbose: bool) -> int:
    from ddpbench.cli.dry_run import launches, table
    from ddpbench.launch.catalog import TableCatalog
    from ddpbench.launch.sweep.identification import check_resumable
    from ddpbench.launch.sweep.preparation import prepare

    prepared = prepare(request)
    check_resumable(prepared)
    if not as_json and _finished_for(prepared):
        show(_nothing_left(prepared))
        return 0
    if as_json:
        show(prepared.plan.dumps(), end="")
        return 0
    show(*table(prepared, columns_here()))
    if verbose:
        show("", *launches(prepared, TableCatalog()))
    return 0


def _finished_for(prepared: Prepared) -> str:
    from ddpbench.launch.listener import Listener
    from ddpbench.launch.sweep.identification import check_resumable
    from ddpbench.launch.sweep.progress import Progress

    if not prepared.resumes or prepared.retry_failed or not prepared.run.cases.is_dir():
        return ""  # a packed run would have to be unpacked
    check_resumable(prepared)
    return Progress(prepared, Listener(), time.monotonic, shared=True).finished_for()


def _nothing_left(prepared: Prepared) -> str:
    return clean(f"{prepared.run.path}: finished; no launch is left")


def _describe(prepared: Prepared) -> None:
    plan, experiment = prepared.plan, prepared.experiment
    say(f"{experiment.name}: {experiment.question}".rstrip(": "), sys.stderr)
    say(f"{counted(len(plan.runnable), 'case')} to run, into {prepared.run.path}", sys.stderr)
    for note in prepared.notes:
        say(note, sys.stderr)
    names, rows = plan.names, []
    for entry in plan.cases:
        marks = [
            "base case of the speed-ups" if entry.added_as_baseline else "",
            "oversubscribed: more ranks than cores" if entry.oversubscribed else "",
            f"skipped: {entry.skip_reason}" if entry.skip_reason else "",
        ]
        shown = "; ".join(mark for mark in marks if mark)
        name = JOINT.join([names.full(entry.case), *([f"({shown})"] if shown else [])])
        rows.append((f"  {entry.case.case_id}", name))
    width = columns_here(sys.stderr) if sys.stderr.isatty() else sys.maxsize
    show(*aligned(rows, width, left=(0, 1), breakable=(1,)), file=sys.stderr)


def _sweep(request: SweepRequest, *, as_json: bool, quiet: bool) -> int:
    from ddpbench.cli.console import Progressive
    from ddpbench.launch.sweep.preparation import prepare

    console = Progressive(None if sys.stderr.isatty() else 120)
    prepared = prepare(request)
    start = time.monotonic()
    if reason := _finished_for(prepared):
        result, page, summary = _report_again(prepared, reason, quiet=quiet)
    else:
        result, page, summary = _carry_out(prepared, console, quiet=quiet)
    from ddpbench.cli import results  # loads pandas, as the report already has

    if as_json:
        show(
            results.as_json(
                summary,
                result.run,
                report=str(page),
                stop_reason=result.stop_reason,
                measured_share=result.measured_share,
            )
        )
    else:
        results.print_results(summary, quiet=quiet)
        _print_end(result, page, None if quiet else start)
    results.say_outdated(summary)
    return results.exit_code(summary)


def _report_again(prepared: Prepared, reason: str, *, quiet: bool) -> tuple[SweepResult, Path, RunSummary]:
    """Write the report of a finished run, without claiming cores or starting processes."""
    import ddpbench
    from ddpbench.launch.sweep.progress import SweepResult

    if not quiet:
        say(_nothing_left(prepared), sys.stderr)
    with nullcontext() if quiet else PassingLine() as progress:
        page, summary = ddpbench.report_on(prepared.run.path, on_progress=progress)
    return SweepResult(prepared.run, stop_reason=reason), page, summary


def _carry_out(prepared: Prepared, console: Console, *, quiet: bool) -> tuple[SweepResult, Path, RunSummary]:
    """Measure and report; if interrupted, print how to resume."""
    import ddpbench
    from ddpbench.cli.progress import listening, only_warnings
    from ddpbench.errors import LaunchError, OutputError
    from ddpbench.launch.sweep.progress import SweepResult
    from ddpbench.launch.sweep.sweep import Sweep
    from ddpbench.runtime.estimate import report_s

    run = prepared.run
    result = SweepResult(run)
    said = False

    def interrupted() -> None:
        nonlocal said
        said = True
        again = _resuming(run) if run.plan.exists() else "nothing was measured"
        console.print(clean(f"interrupted; {again}"), markup=False, soft_wrap=True)

    try:
        if not quiet:
            _describe(prepared)
        drawn_s = report_s(len(prepared.plan.cases))
        with only_warnings(console) if quiet else listening(console, after_s=drawn_s) as listener:
            work = Sweep(prepared, listener)
            result = work.result
            ddpbench.carry_out(work, interrupted)
        if not quiet:
            say(f"making the report: about {format_seconds(round(drawn_s))}", sys.stderr)
        with nullcontext() if quiet else PassingLine() as progress:
            page, summary = ddpbench.report_on(run.path, on_progress=progress)
    except KeyboardInterrupt:
        if not said:  # interrupted while the report was being written
            interrupted()
        raise
    except OutputError as error:  # after the first launch the request was valid
        raise (LaunchError(f"{error}; {_resuming(run)}") if result.launches else error) from None
    except (LaunchError, OSError) as error:
        if not run.plan.exists() or not (reason := _reason(error, run)):
            raise
        raise LaunchError(f"{reason}; {_resuming(run)}") from None
    return result, page, summary


def _resuming(run: RunDir) -> str:
    return f"resume with: {command('ddpbench', 'sweep', run.path)}"


def _reason(error: LaunchError | OSError, run: RunDir) -> str:
    """Describe the error that ended a sweep; empty for errors that `cli.run` reports for every command."""
    from ddpbench.records import explain_os_error, explain_unreadable

    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, BrokenPipeError) or explain_unreadable(error):
        return ""
    return f"{on_one_line(str(error.filename or run.path))}: {explain_os_error(error)}"


def _print_end(result: SweepResult, page: Path, start: float | None) -> None:
    share = result.measured_share
    if start is not None and share is not None and result.launches:
        seconds = time.monotonic() - start
        show(f"{share:.0%} of {seconds:.0f} s went into warm-up and measured steps")
    show(f"report: {page}")
