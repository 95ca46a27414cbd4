"""`ddpbench sweep`: run an experiment and show its progress."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags
from ddpbench.cli.lines import PassingLine, aligned, columns_here, say, show
from ddpbench.text_safety import JOINT, clean, command, on_one_line
from ddpbench.units import counted

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
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.errors import RequestError
    from ddpbench.launch.experiments import find_experiment
    from ddpbench.launch.sweep.preparation import SweepRequest
    from ddpbench.spec.fabric import fabric_overrides

    if arguments.verbose and not arguments.dry_run:
        raise RequestError("--verbose shows each launch of a plan: give it with --dry-run")
    fabric = fabric_overrides(arguments.fabric) if arguments.fabric is not None else []
    request = SweepRequest(
        experiment=find_experiment(arguments.experiment),
        overrides=[*fabric, *arguments.overrides],
        out=arguments.out,
        retry_failed=arguments.retry_failed,
    )
    if arguments.dry_run:
        return _dry_run(request, as_json=arguments.json, verbose=arguments.verbose)
    return _sweep(request, arguments.json)


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
    """Return why a run has nothing left to launch; empty if it has launches left."""
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
    """Print on standard error which cases are about to run."""
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


def _sweep(request: SweepRequest, as_json: bool) -> int:
    from ddpbench.cli.console import Progressive
    from ddpbench.launch.sweep.preparation import prepare

    console = Progressive(None if sys.stderr.isatty() else 120)
    prepared = prepare(request)
    start = time.monotonic()
    if reason := _finished_for(prepared):
        result, page, summary = _report_again(prepared, reason)
    else:
        result, page, summary = _carry_out(prepared, console)
    if as_json:
        _print_json(result, page, summary)
    else:
        _print_report(result, page, summary, start)
    from ddpbench.cli.results import say_outdated  # loads pandas, as the report already has

    say_outdated(summary)
    statuses = {one.status for one in summary.by_case}
    return 0 if statuses <= {"ok", "skipped"} and "ok" in statuses else 1


def _report_again(prepared: Prepared, reason: str) -> tuple[SweepResult, Path, RunSummary]:
    """Write the report of a finished run, without claiming cores or starting processes."""
    import ddpbench
    from ddpbench.launch.sweep.progress import SweepResult

    say(_nothing_left(prepared), sys.stderr)
    with PassingLine() as progress:
        page, summary = ddpbench.report_on(prepared.run.path, on_progress=progress)
    return SweepResult(prepared.run, stop_reason=reason), page, summary


def _carry_out(prepared: Prepared, console: Console) -> tuple[SweepResult, Path, RunSummary]:
    """Print what is about to run, measure, and write the report; if interrupted, print how to resume."""
    import ddpbench
    from ddpbench.cli.progress import listening
    from ddpbench.errors import LaunchError, OutputError
    from ddpbench.launch.sweep.progress import SweepResult
    from ddpbench.launch.sweep.sweep import Sweep

    run = prepared.run
    result = SweepResult(run)
    said = False

    def interrupted() -> None:
        nonlocal said
        said = True
        again = _resuming(run) if run.plan.exists() else "nothing was measured"
        console.print(clean(f"interrupted; {again}"), markup=False, soft_wrap=True)

    try:
        _describe(prepared)
        with listening(console) as listener:
            work = Sweep(prepared, listener)
            result = work.result
            ddpbench.carry_out(work, interrupted)
        with PassingLine() as progress:
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
    """Return words for the error that ended a sweep.

    They are empty for a closed pipe or an unreadable file, which `cli.run` reports for every command.
    """
    from ddpbench.records import explain_os_error, explain_unreadable

    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, BrokenPipeError) or explain_unreadable(error):
        return ""
    return f"{on_one_line(str(error.filename or run.path))}: {explain_os_error(error)}"


def _print_json(result: SweepResult, page: Path, summary: RunSummary) -> None:
    result_json = {
        "run_dir": str(result.run.path),
        "report": str(page),
        "stop_reason": result.stop_reason,
        "measured_share": result.measured_share,
        "findings": [finding.line for finding in summary.conclusions.findings],
        "answer": [one.line for one in summary.conclusions.answer],
        "claims": [asdict(one) for one in summary.conclusions.claims],
        "violations": [violation.to_json() for violation in summary.conclusions.checks.violations],
        "cases": json.loads(summary.cases.to_json(orient="records")),
    }
    show(json.dumps(result_json, indent=1))


def _print_report(result: SweepResult, page: Path, summary: RunSummary, start: float) -> None:
    """Print the table, sentences on the results, the share of time spent measuring, and the page's path.

    The share is of the time since `start`.
    """
    from ddpbench.cli.results import sentences, table

    show(*table(summary.cases, summary.planned, columns_here()))
    for sentence in sentences(summary):
        say(sentence)
    share = result.measured_share
    if share is not None and result.launches:
        seconds = time.monotonic() - start
        show(f"{share:.0%} of {seconds:.0f} s went into warm-up and measured steps")
    show(f"report: {page}")
