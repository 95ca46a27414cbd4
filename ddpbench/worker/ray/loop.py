"""The function that Ray Train calls in each worker (`train_loop_per_worker`), which turns the worker into a rank."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import process
from pathlib import Path
from typing import Any

from ddpbench.records import RunDir
from ddpbench.records.heartbeat import note_end, shared_page
from ddpbench.spec import environment


class RankFailedError(RuntimeError):
    """A rank has failed. Its records say why."""


def train(config: dict[str, Any]) -> None:
    """Run the rank to its end in the thread in which Ray calls this function.

    Raises:
        RankFailedError: the rank has failed, or Ray has not set the case's environment variables.
    """
    os.environ["DDPBENCH_BEGAN_NS"] = str(time.perf_counter_ns())
    import ray.train

    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.starting import asked, launched, live

    context = ray.train.get_context()
    os.environ |= {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
    }
    table = launched(time.perf_counter_ns())
    place = JobPlace.from_environment(os.environ)
    run_dir, case_id, what = config["words"]
    directory, request = asked(RunDir(Path(run_dir).absolute()), case_id, what)
    lacking = [
        environment.words(name, value)
        for name, value in request.case.env.items()
        if os.environ.get(name, environment.UNSET) != value
    ]
    if lacking:
        raise RankFailedError(f"Ray did not keep the requested {', '.join(lacking)}")
    # Python's multiprocessing, which loader workers use, makes its sockets in this folder. Its path is short even if
    # TMPDIR's is long.
    current: Any = process.current_process()
    current._config["tempdir"] = os.environ["DDPBENCH_SOCKETS"]
    _pin_all(place.cores)
    code = live(directory, place, request, table)
    if table is not None:  # Ray ends this process from here on, which is not a failure
        note_end(shared_page(Path(table["page"])), place.rank, code)
    if code:
        raise RankFailedError(f"rank {place.rank} did not exit cleanly: see {directory.log(place.rank)}")


def _pin_all(cores: Iterable[int]) -> None:
    """Pin this process's threads to the rank's cores, including gloo threads that Ray has started."""
    if not cores:
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            os.sched_setaffinity(int(thread.name), cores)
