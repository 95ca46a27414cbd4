"""Entry point `python -m ddpbench.worker`: a slot of a plan, a rank of one launch, or the server that forks ranks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ddpbench.errors import DdpbenchError
from ddpbench.exit_messages import flush
from ddpbench.guard import die_with_parent, end_if_stopped, supervised
from ddpbench.inherited_signals import accept_signals
from ddpbench.machine.placement import applied
from ddpbench.records import LaunchDir, RunDir
from ddpbench.records.heartbeat import note_end, shared_page
from ddpbench.records.job_key import SECRET_VARIABLE, launch_secret
from ddpbench.runtime.launched import SAFE_PATH
from ddpbench.spec import environment
from ddpbench.worker.starting import asked, launched, live

if TYPE_CHECKING:
    from ddpbench.worker.place import JobPlace

ENTERED_NS = time.perf_counter_ns()
"""The moment this process entered ddpbench's code."""


def main() -> None:
    """Parse the command line, then run as a slot, a rank or the fork server, as the arguments say."""
    parser = argparse.ArgumentParser(
        prog="python -m ddpbench.worker",
        description="With RUN_DIR alone: a slot of torchrun, srun or another launcher, which carries out the "
        "directory's plan together with the others (ddpbench plan prints the lines). With CASE_ID and ROUND: "
        "one rank of one launch.",
    )
    parser.add_argument("run_dir", type=Path, nargs="?", metavar="RUN_DIR", help="a run directory")
    parser.add_argument("case_id", nargs="?", metavar="CASE_ID", help="a case of its plan")
    parser.add_argument("round", nargs="?", metavar="ROUND", help="a round's number, or 'proof'")
    parser.add_argument(
        "--retry-failed", action="store_true", help="as a slot: repeat launches that failed earlier"
    )
    parser.add_argument(
        "--serve", nargs=4, metavar=("SOCKET", "PAGE", "PARENT", "FOLDER"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    del sys.argv[1:]  # a user's code that parses a command line must not see this process's arguments
    if arguments.serve:
        from ddpbench.worker import server

        connection, page, parent, folder = arguments.serve
        server.main(int(connection), int(page), int(parent), Path(folder))
        return
    if arguments.run_dir is None:
        parser.error("give RUN_DIR, or RUN_DIR CASE_ID ROUND")
    if arguments.case_id is None:
        _be_slot(arguments.run_dir, retry_failed=arguments.retry_failed)
    if arguments.round is None:
        parser.error("give CASE_ID and ROUND, or neither")
    _be_rank(parser, arguments)


def _be_slot(run_dir: Path, *, retry_failed: bool) -> NoReturn:
    accept_signals()
    end_if_stopped(
        "ddpbench: a slot was stopped (by SIGSTOP or a debugger), did not continue and was ended; run the same "
        "commands again to resume"
    )
    from ddpbench.worker.slot import entry

    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's line sets SAFE_PATH for this process alone
        os.environ.pop(SAFE_PATH, None)
    # A job that Slurm has restarted already reran its failed launches the first time.
    retry = retry_failed and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    code = entry.run(run_dir, retry_failed=retry)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the store's threads may abort an orderly interpreter exit


def _be_rank(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> NoReturn:
    from ddpbench.worker.place import JobPlace

    try:
        table = launched(ENTERED_NS)
        place = JobPlace.from_environment(os.environ)
        run = RunDir(arguments.run_dir.absolute())  # a user's code may change directory
        run.check()
        directory, request = asked(run, arguments.case_id, arguments.round)
        directory.path.mkdir(parents=True, exist_ok=True)
        if table is not None and table.get("gangs"):
            place = _started_again(place, directory, Path(table["gangs"]))
        if request.purpose == "proof" and not os.environ.get(SECRET_VARIABLE):
            os.environ[SECRET_VARIABLE] = launch_secret(run, os.environ, arguments.case_id)
    except (ValueError, DdpbenchError, OSError) as error:
        parser.exit(2, f"ddpbench: {error}\n")
    wanted = request.case.env
    if any(os.environ.get(name, environment.UNSET) != value for name, value in wanted.items()):
        # Restart with these variables, since something may have read one before this line.
        os.execve(sys.executable, sys.orig_argv, applied(os.environ, wanted))

    if table is not None and not table.get("safe_path"):
        os.environ.pop(
            SAFE_PATH, None
        )  # meant for this process only; processes that the user's code starts get the user's own variables

    def rank() -> int:
        return live(directory, place, request, table)

    if table is None:
        supervised(run.path, rank)
    if not table.get("gangs"):
        supervised(run.path, rank, partial(note_end, shared_page(Path(table["page"])), place.rank))

    # The agent must see this rank exit and be able to end it, as with users' own scripts. So this rank is the
    # agent's direct child, without a supervising process between them.
    die_with_parent(os.getppid())
    code = rank()
    flush()
    os._exit(code)


def _started_again(place: JobPlace, directory: LaunchDir, gangs: Path) -> JobPlace:
    """Return `place` with `attempt` set to the number of earlier starts of this rank.

    Files are counted, because torchrun's agents do not share how often they restarted.

    Raises:
        ValueError: the earlier ranks ended before they had saved a state to continue from.
    """
    attempt = 0
    while directory.records(place.rank, attempt).exists():
        attempt += 1
    if attempt and not (gangs / "plan.json").is_file():
        raise ValueError("the earlier ranks failed while they measured, and left no state to continue from")
    return replace(place, attempt=attempt)


if __name__ == "__main__":
    main()
