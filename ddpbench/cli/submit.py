"""`ddpbench submit EXPERIMENT --nodes 1,2,4`: submit one Slurm job per number of nodes, and make one report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags
from ddpbench.cli.lines import PassingLine, columns_here, say, show

if TYPE_CHECKING:
    from ddpbench.errors import RequestError
    from ddpbench.launch.slurm.follow import Follower
    from ddpbench.launch.slurm.submission import Submission, SubmittedSize
    from ddpbench.records.rundir import Made

_REFUSED = "sbatch refuses "
"""Part of the error message on a job script that Slurm refuses."""
_NAMED = ("partition", "account", "gres", "constraint")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "submit",
        help="measure an experiment in Slurm jobs, one for each number of nodes",
        description="Measure an experiment in Slurm jobs, one per number of nodes, and report on all of them. The "
        "same command shows the progress, resubmits jobs that a time limit or a lost node ended, and may "
        "run on any login node. Ctrl-C leaves the jobs alone.",
    )
    parser.add_argument(
        "experiment", metavar="EXPERIMENT", help="a name, a TOML file or the directory of a submission"
    )
    parser.add_argument(
        "--nodes", action=flags.Joined, metavar="1,2,4", help="numbers of nodes, with one job each"
    )
    parser.add_argument(
        "--ranks-per-node",
        type=flags.number("--ranks-per-node", "RANKS_PER_NODE"),
        metavar="N",
        help="ranks on each node (default: 1)",
    )
    parser.add_argument(
        "--time",
        metavar="LIMIT",
        help="time limit of a job: '45 min', Slurm's 2:30:00, or auto for an estimate (default: auto)",
    )
    for name in _NAMED:
        parser.add_argument(f"--{name}", metavar="VALUE", help="as in sbatch")
    parser.add_argument("--exclusive", action="store_true", help="as in sbatch")
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION[=VALUE]",
        help="any other option of sbatch, such as qos=high; repeatable",
    )
    parser.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="first line of the script, such as 'module load cuda'; repeatable",
    )
    parser.add_argument(
        "--port",
        type=flags.number("--port", "PORT"),
        help="free port of the first node (default: by the job's id)",
    )
    parser.add_argument(
        "--local",
        metavar="DIR",
        help="folder on each node's own disk, if nodes share no directory, such as '/scratch/$USER'",
    )
    parser.add_argument("--detach", action="store_true", help="submit and return at once")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print launches, node hours, GPU hours and scripts, and submit nothing",
    )
    parser.add_argument("--retry-failed", action="store_true", help="rerun failed launches")
    flags.overrides(parser, '--set axes.strategy=\'["ddp","master"]\'')
    flags.workload(parser)
    flags.out(parser, "submission's directory (default: reports/NAME-slurm)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.cli.resolution import resolution_words
    from ddpbench.launch.plan import Plan
    from ddpbench.launch.slurm import control
    from ddpbench.launch.slurm.costs import costs_of, total
    from ddpbench.launch.slurm.submission import plan_of, scripts

    submission = _asked_for(arguments)
    for note in submission.notes:
        say(note, sys.stderr)
    if arguments.dry_run:
        texts = scripts(submission, retry_failed=arguments.retry_failed)
        costs = costs_of(submission)
        for line in (*(one.sentence() for one in costs), *([total(costs)] if len(costs) > 1 else [])):
            show(f"# {line}")
        plans = (plan_of(submission, size) for size in submission.sizes)
        resolve = (resolution_words(plan) for plan in plans if isinstance(plan, Plan))
        for text in dict.fromkeys(filter(None, resolve)):
            show(f"# {text}")
        for size in submission.sizes:
            show(f"# {size.script}", texts[size.shape.nodes])
        return 0
    control.check_here()
    return _submit(submission, detach=arguments.detach, retry_failed=arguments.retry_failed)


def _asked_for(arguments: argparse.Namespace) -> Submission:
    """Return the new or existing submission that the flags describe.

    Raises:
        RequestError: the flags contradict each other, or do not apply.
    """
    from ddpbench.errors import RequestError
    from ddpbench.launch.experiments import find_experiment, is_not_meant
    from ddpbench.launch.slurm.request import Request, options_of, parse_sizes, parse_time
    from ddpbench.launch.slurm.submission import open_submission, plan_submission
    from ddpbench.records.submission_dir import SubmissionDir

    options = options_of(
        [(name, getattr(arguments, name)) for name in _NAMED], arguments.sbatch, exclusive=arguments.exclusive
    )
    given: dict[str, Any] = {"options": options, "setup": tuple(arguments.setup), "port": arguments.port}
    given = {name: value for name, value in given.items() if value}
    if arguments.local:
        given["local"] = arguments.local.rstrip("/") or "/"
    if arguments.time is not None:
        given["time_s"] = parse_time(arguments.time)
    path = Path(arguments.experiment)
    if not is_not_meant(arguments.experiment) and path.is_dir() and SubmissionDir(path).is_there:
        from dataclasses import replace

        if arguments.overrides or arguments.out or arguments.nodes is not None or arguments.ranks_per_node:
            raise RequestError(
                f"{path} is already planned: leave out --nodes, --ranks-per-node, --set and --out, or give the "
                "experiment to plan it again"
            )
        submission = open_submission(path)
        if "options" in given:  # a new option replaces the one of the same name
            named = {option.name for option in options}
            kept = tuple(option for option in submission.request.options if option.name not in named)
            given["options"] = (*kept, *options)
        return replace(submission, request=replace(submission.request, **given))
    source = find_experiment(arguments.experiment)
    if source.is_dir():
        raise RequestError(
            f"{source} is a run directory: give an experiment, or the directory of a submission"
        )
    if arguments.nodes is None:
        raise RequestError(
            "--nodes is missing: give the numbers of nodes to measure on, such as --nodes 1,2,4; each is a "
            "separate job"
        )
    request = Request(
        sizes=parse_sizes(arguments.nodes), ranks_per_node=arguments.ranks_per_node or 1, **given
    )
    return plan_submission(source, request, overrides=arguments.overrides, out=arguments.out)


def _submit(submission: Submission, *, detach: bool, retry_failed: bool) -> int:
    from ddpbench.launch.slurm.submission import current, needs, scripts
    from ddpbench.records import RunDir

    asked = submission.request.value("partition") or os.environ.get("SBATCH_PARTITION")
    room = needs(submission)
    if room and asked:  # before anything is written
        _check_room(room, dict.fromkeys(room, asked))
    scripts(
        submission
    )  # also before that: this refuses unreadable plans, and values that no script can contain
    if retry_failed:
        for size in submission.sizes:
            size.has_failed()
    made = _make(submission.path)
    with RunDir(submission.path).locked("ddpbench submit"):
        submission = current(
            submission
        )  # another process may have recorded jobs since the submission was read
        try:
            follower = _written(submission, room, asked=bool(asked), retry_failed=retry_failed)
        except BaseException as error:  # nothing was submitted, so remove what was written
            if not submission.plans:
                raise
            made.remove()
            raise _without_script(error) from None
        try:
            if detach:
                follower.submit_missing()
            else:
                follower.follow()
        except KeyboardInterrupt:
            _say_left(submission)
            raise
        if detach:
            say(f"to follow the jobs and make the report: {submission.again}")
            if submission.request.local:
                say("until then their records stay on the nodes' own disks")
            return 0
        for sentence in follower.given_up.values():
            say(sentence, sys.stderr)
        if follower.given_up:
            say(f"finished launches are kept; continue with: {submission.again}", sys.stderr)
        code = _report(submission)
        return 1 if follower.given_up else code


def _written(
    submission: Submission, room: Mapping[int, float], *, asked: bool, retry_failed: bool
) -> Follower:
    """Write the submission, check that Slurm would accept it, and return its follower.

    `room` maps numbers of nodes to time limits (seconds); `asked` says whether the user requested a partition.

    Raises:
        RequestError: Slurm refuses a job, or no partition has room for it.
    """
    from ddpbench.errors import RequestError
    from ddpbench.launch.slurm.follow import Follower
    from ddpbench.launch.slurm.submission import scripts, write_submission

    write_submission(submission)
    texts = scripts(submission)
    retrying = scripts(submission, retry_failed=True) if retry_failed else {}
    follower = Follower(submission, texts, _Lines(submission), retrying)
    try:
        chosen = follower.check()
    except RequestError as error:
        if room and not asked:
            _explain(error, room)
        raise
    if room and not asked:
        _check_room(room, chosen)
    return follower


def _without_script(error: BaseException) -> BaseException:
    """Say, if Slurm refused a script, that the script was removed and how to print it."""
    from ddpbench.errors import RequestError

    if isinstance(error, RequestError) and _REFUSED in str(error):
        return error.reworded(f"{error} (the script was removed; to see it, add --dry-run)")
    return error


def _say_left(submission: Submission) -> None:
    from ddpbench.text_safety import command

    jobs = [size.jobs[-1].job_id for size in submission.sizes if size.jobs]
    if not jobs:
        return
    say(f"the jobs continue; follow them again with: {submission.again}", sys.stderr)
    if submission.request.local:
        say("until then their records stay on the nodes' own disks", sys.stderr)
    say(f"or end them with: {command('scancel', *jobs)}", sys.stderr)


def _check_room(room: Mapping[int, float], chosen: Mapping[int, str]) -> None:
    """Check that each job fits its partition, because Slurm also accepts jobs that can never start.

    `room` has seconds, and `chosen` partitions, by number of nodes.
    """
    from ddpbench.launch.slurm import control

    known = control.partitions()
    for nodes, partition in chosen.items():
        control.check_room(known, partition or None, nodes, room[nodes])


def _explain(error: RequestError, room: Mapping[int, float]) -> None:
    """Explain a refusal that is due to the default partition.

    Raises:
        RequestError: the default partition has no room; Slurm's message follows.
    """
    from ddpbench.errors import LaunchError, RequestError

    try:
        _check_room(room, dict.fromkeys(room, ""))
    except LaunchError:  # Slurm did not answer: the caller raises the original refusal
        return
    except RequestError as why:
        raise RequestError(f"{why}\n{error}") from None


def _make(path: Path) -> Made:
    """Create the submission's directory, so that it can be locked; the result can undo this.

    Raises:
        OutputError: the directory cannot be created, holds something else, or could be replaced by another user.
    """
    from ddpbench.errors import OutputError
    from ddpbench.records.rundir import Made, check_own, explain_os_error, make_dir
    from ddpbench.records.submission_dir import SubmissionDir, check_free_for_submission, is_of_submission
    from ddpbench.removal import Identity

    try:
        if SubmissionDir(path).is_there:
            check_own(path)
            return Made(path, is_of_submission, made=Identity.of(path.stat()))
        check_free_for_submission(path)
        made = make_dir(path, is_of_submission)
        made.mark()
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {explain_os_error(error)}") from None
    return made


def _report(submission: Submission) -> int:
    """Report on all numbers of nodes; return 0 if all cases are ok or skipped, else 1."""
    import ddpbench
    from ddpbench.cli.results import say_outdated, sentences, table
    from ddpbench.errors import IdentityError
    from ddpbench.launch.merge.launches import TooLargeError
    from ddpbench.launch.merge.merge import merge
    from ddpbench.records.submission_dir import SubmissionDir
    from ddpbench.removal import remove_tree

    measured = [size.run.path for size in submission.sizes if size.launches()]
    if not measured:
        say("nothing was measured; the jobs' outputs say why:", sys.stderr)
        for size in submission.sizes:
            for job in size.jobs[-1:]:
                say(f"    {size.output(job.job_id)}", sys.stderr)
        return 1
    path = measured[0]
    if len(measured) > 1:
        directory = SubmissionDir(submission.path)
        path, fresh, old = directory.merged.path, directory.merged_next, directory.merged_before
        for left in (fresh, old):  # left by a process that was killed
            remove_tree(left)
        try:
            for sentence in merge(measured, fresh).left_out:
                say(f"left out: {sentence}", sys.stderr)
            if path.exists():
                path.rename(old)
            fresh.rename(path)
            remove_tree(old)
        except (IdentityError, TooLargeError) as error:
            say(f"no report of all: {error}", sys.stderr)
            for own in measured:
                show(f"report: {ddpbench.report_on(own)[0]}")
            return 1
    with PassingLine() as progress:
        page, summary = ddpbench.report_on(path, on_progress=progress)
    show(*table(summary.cases, summary.planned, columns_here()))
    for sentence in sentences(summary):
        say(sentence)
    show(f"report: {page}")
    say_outdated(summary)
    return 0 if all(one.status in ("ok", "skipped") for one in summary.by_case) else 1


class _Lines:
    def __init__(self, submission: Submission) -> None:
        self._planned = {}
        for size in submission.sizes:
            with suppress(OSError):
                from ddpbench.records.plan import read_plan

                plan = submission.plans.get(size.shape.nodes) or read_plan(size.run)
                self._planned[size.shape.nodes] = len(plan.order)
        self._said: dict[int, tuple[str, int]] = {}

    def state(self, size: SubmittedSize, words: str, launches: int) -> None:
        planned = self._planned.get(size.shape.nodes, 0)
        before, then = self._said.get(size.shape.nodes, ("", -1))
        if words == before and launches - then < max(1, planned // 20):
            return
        self._said[size.shape.nodes] = (words, launches)
        say(f"{size.name}: {words}; {launches} of up to {planned} launches", sys.stderr)

    def event(self, sentence: str) -> None:
        say(sentence, sys.stderr)
