"""Functions that a process calls to become a rank, if the fork server did not fork it."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import mmap
import os
import pkgutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.errors import RequestError, nearest
from ddpbench.records import LaunchDir, LaunchRequest, RunDir
from ddpbench.records.files import open_to_append
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat, note_pid, shared_page
from ddpbench.spec import Case

if TYPE_CHECKING:
    from ddpbench.worker.place import JobPlace

_ERRORS = 2
"""File descriptor for stack traces, because the process that started this one may have replaced `sys.stderr`."""


def table_of(path: str) -> dict[str, Any] | None:
    """Read the JSON file in which the sweep describes a launch's ranks. Return None if `path` is empty."""
    if not path:
        return None
    table: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return table


def launched(entered_ns: int) -> dict[str, Any] | None:
    """Set this rank's environment variables from the file that the sweep wrote for the launch, and return its content.

    Return None if no sweep started the rank. `entered_ns` is the moment this process entered ddpbench's code.

    Raises:
        ValueError: RANK is not the number of one of the launch's ranks.
    """
    table = table_of(os.environ.get("DDPBENCH_RANKS", ""))
    if table is None:
        return None
    number = os.environ.get("RANK", "")
    if not number.isdecimal() or int(number) >= len(table["ranks"]):
        raise ValueError(f"RANK={number!r}: the launch has {len(table['ranks'])} ranks")
    own = table["ranks"][int(number)]
    os.environ |= {name: value for name, value in own.items() if value}
    for name in [name for name, value in own.items() if not value]:
        os.environ.pop(name, None)
    os.environ["DDPBENCH_ENTERED_NS"] = os.environ.get("DDPBENCH_BEGAN_NS", str(entered_ns))
    return table


def asked(run: RunDir, case_id: str, what: str) -> tuple[LaunchDir, LaunchRequest]:
    """Return a launch's directory and request. `what` is a round's number or `proof`.

    The request is read from the directory if it is there, and otherwise made from the run's plan.

    Raises:
        RequestError: the launch does not exist.
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


RANKS_NEED = (
    "torch",
    "torch._dynamo",  # DDP and optimizers import it on first use, for over a second
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data.distributed",
    "numpy.random",  # which NumPy imports on first use, such as seeding
    "ddpbench.worker.rank.rank",
)
"""Modules that ranks of all cases import."""


def import_for(case: Case) -> None:
    """Import all modules that a rank of this case needs, before times are measured.

    Failures are ignored, because the strategy reports them better later.
    """
    from ddpbench.strategies import TABLE, early_imports, load_strategy

    own: list[str] = []
    if case.strategy in TABLE:
        package = sys.modules[type(load_strategy(case.strategy)).__module__].__package__ or ""
        if package.startswith("ddpbench.strategies."):
            modules = pkgutil.iter_modules(sys.modules[package].__path__, f"{package}.")
            own = [module.name for module in modules]
    for name in (*RANKS_NEED, *early_imports(case), *own):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def live(directory: LaunchDir, place: JobPlace, request: LaunchRequest, table: dict[str, Any] | None) -> int:
    """Run the rank to its end and return its exit code. `table` is the return value of `launched`."""
    page: bytearray | mmap.mmap
    page, slot = bytearray(PAGE_BYTES), 0  # a private page, because no watchdog reads this rank's steps
    if table is not None:
        page = shared_page(Path(table["page"]))
        slot = place.rank
        note_pid(page, slot)
        with open_to_append(directory.log(place.rank, place.attempt)) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        faulthandler.enable(_ERRORS)
        faulthandler.register(signal.SIGUSR1, _ERRORS, all_threads=True)
    import_for(request.case)
    from ddpbench.worker.rank.rank import Rank

    return Rank(directory, place, Heartbeat(page, slot), request).run()
