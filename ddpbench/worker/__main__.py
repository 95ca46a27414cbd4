"""`python -m ddpbench.worker`, under any launcher: a slot of a plan, one rank of one launch, or the fork server."""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.errors import DdpbenchError, RequestError, nearest
from ddpbench.guard import die_with_parent, end_if_stopped, supervised
from ddpbench.last_words import flush
from ddpbench.machine.placement import applied
from ddpbench.records import LaunchDir, LaunchRequest, RunDir
from ddpbench.records.files import open_to_append
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat, note_end, note_pid, shared_page
from ddpbench.spec import environment

if TYPE_CHECKING:
    from ddpbench.worker.place import Place

ENTERED_NS = time.perf_counter_ns()
"""When this process began to be ddpbench's."""


def main() -> None:
    """Parses the command line and becomes what it says."""
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
        "--retry-failed", action="store_true", help="as a slot: do launches that failed earlier again"
    )
    parser.add_argument(
        "--serve", nargs=4, metavar=("SOCKET", "PAGE", "PARENT", "FOLDER"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.serve:
        from ddpbench.worker import server

        connection, page, parent, folder = arguments.serve
        server.main(int(connection), int(page), int(parent), Path(folder))
        return
    if arguments.run_dir is None:
        parser.error("give RUN_DIR, or RUN_DIR CASE_ID ROUND")
    if arguments.case_id is None:
        end_if_stopped(
            "ddpbench: a slot was stopped (by SIGSTOP or a debugger), did not go on and was ended; run the same lines "
            "again to resume"
        )
        from ddpbench.worker.slot import entry

        # A job that Slurm has started again did its failed launches again the first time.
        retry = arguments.retry_failed and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
        code = entry.run(arguments.run_dir, retry_failed=retry)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the store's threads may abort an orderly interpreter exit
    if arguments.round is None:
        parser.error("give CASE_ID and ROUND, or neither")
    from ddpbench.worker.place import Place

    try:
        table = _launched()
        place = Place.from_environment(os.environ)
        run = RunDir(arguments.run_dir)
        run.check()
        directory, request = _asked(run, arguments.case_id, arguments.round)
        directory.path.mkdir(parents=True, exist_ok=True)
        if table is not None and table.get("gangs"):
            place = _started_again(place, directory, Path(table["gangs"]))
    except (ValueError, DdpbenchError, OSError) as error:
        parser.exit(2, f"ddpbench: {error}\n")
    wanted = request.case.env
    if any(os.environ.get(name, environment.UNSET) != value for name, value in wanted.items()):
        # Started anew with them: what reads a variable may do so before this line.
        os.execve(sys.executable, sys.orig_argv, applied(os.environ, wanted))

    def rank() -> int:
        page: bytearray | mmap.mmap
        page, slot = bytearray(PAGE_BYTES), 0  # without a watchdog it counts its steps for nobody
        if table is not None:
            page = shared_page(Path(table["page"]))
            slot = place.rank
            note_pid(page, slot)
            with open_to_append(directory.log(place.rank, place.attempt)) as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        from ddpbench.worker.rank.rank import Rank

        return Rank(directory, place, Heartbeat(page, slot), request).run()

    if table is None:
        supervised(run.path, rank)
    if not table.get("gangs"):
        supervised(run.path, rank, partial(note_end, shared_page(Path(table["page"])), place.rank))

    # Its agent must see how it ends, and end it, as it does with people's own scripts: nobody stands between them.
    die_with_parent(os.getppid())
    code = rank()
    flush()
    os._exit(code)


def _launched() -> dict[str, Any] | None:
    """Return what a sweep that had another launcher start this rank says of the launch; applies the rank's own part.

    Raises:
        ValueError: there is no such rank.
    """
    path = os.environ.get("DDPBENCH_RANKS")
    if not path:
        return None
    table: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    number = os.environ.get("RANK", "")
    if not number.isdecimal() or int(number) >= len(table["ranks"]):
        raise ValueError(f"RANK={number!r}: the launch has {len(table['ranks'])} ranks")
    own = table["ranks"][int(number)]
    os.environ |= {name: value for name, value in own.items() if value}
    for name in [name for name, value in own.items() if not value]:
        os.environ.pop(name, None)
    os.environ["DDPBENCH_ENTERED_NS"] = os.environ.get("DDPBENCH_BEGAN_NS", str(ENTERED_NS))
    return table


def _started_again(place: Place, directory: LaunchDir, gangs: Path) -> Place:
    """Return the place with the number of this start of the rank, which agents do not know of one another's ranks.

    Raises:
        ValueError: the ranks before ended before there was anything to go on from.
    """
    attempt = 0
    while directory.records(place.rank, attempt).exists():
        attempt += 1
    if attempt and not (gangs / "plan.json").is_file():
        raise ValueError("the ranks before failed while they measured: there is nothing to go on from")
    return replace(place, attempt=attempt)


def _asked(run: RunDir, case_id: str, what: str) -> tuple[LaunchDir, LaunchRequest]:
    """Return one launch of a run: as the controlling side has asked for it, or else as the plan has it.

    Raises:
        RequestError: there is no such launch.
    """
    if what != "proof" and not what.isdecimal():
        raise RequestError(f"{what!r} is not a round: give its number, from 0, or 'proof'")
    directory = run.launch(case_id, "proof") if what == "proof" else run.launch(case_id, "measure", int(what))
    if directory.request.is_file():
        return directory, LaunchRequest.read(directory.request)
    from ddpbench.records.plan import read_plan

    plan = read_plan(run)
    entry = plan.case(case_id)
    if entry is None:
        known = [one.case.case_id for one in plan.cases]
        raise RequestError(f"{run.path} has no case {case_id!r}; {nearest(case_id, known)}")
    if what == "proof":
        return directory, plan.request(entry.case, "proof", 0)
    return directory, plan.request(entry.case, "measure", int(what))


if __name__ == "__main__":
    main()
