"""`python -m ddpbench.worker`: one rank of one launch, under any launcher; or the local fork server."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ddpbench.records import RunDir
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat


def main() -> None:
    """Parses the command line and becomes what it says."""
    parser = argparse.ArgumentParser(prog="python -m ddpbench.worker", description=__doc__)
    parser.add_argument("run_dir", type=Path, nargs="?", help="a sweep's run directory")
    parser.add_argument("case_id", nargs="?", help="a case of its plan")
    parser.add_argument("round", nargs="?", help="a round's number, or 'proof'")
    parser.add_argument(
        "--serve", nargs=3, type=int, metavar=("SOCKET", "PAGE", "PARENT"), help="fork server"
    )
    arguments = parser.parse_args()
    if arguments.serve:
        from ddpbench.worker import server

        server.main(*arguments.serve)
        return
    if arguments.round is None:
        parser.error("give RUN_DIR, CASE_ID and ROUND")
    from ddpbench.worker.place import Place
    from ddpbench.worker.rank import Rank, exit_now

    run = RunDir(arguments.run_dir)
    if arguments.round == "proof":
        directory = run.launch(arguments.case_id, "proof")
    else:
        directory = run.launch(arguments.case_id, "measure", int(arguments.round))
    try:
        place = Place.from_environment(os.environ)
    except ValueError as error:
        parser.error(str(error))
    # Without a watchdog beside it, a rank counts its steps for nobody.
    exit_now(Rank(directory, place, Heartbeat(bytearray(PAGE_BYTES), 0)).run())


if __name__ == "__main__":
    main()
