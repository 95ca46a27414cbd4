"""The run directory of a sweep while the sweep holds it: new or checked for a resume, and locked."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ddpbench.causes import environments_part
from ddpbench.errors import OutputError
from ddpbench.launch.sweep.identification import check_resumable
from ddpbench.launch.sweep.preparation import Prepared
from ddpbench.records import RunDir
from ddpbench.records.rundir import Made, explain_os_error
from ddpbench.text_safety import command


@contextmanager
def own_directory(prepared: Prepared, claim: AbstractContextManager[object]) -> Iterator[Made]:
    """Yield what is made in the directory, once it is locked and `claim` is entered.

    Raises:
        RequestError: the output cannot be used, or belongs to another machine or experiment.
    """
    run = prepared.run
    if prepared.resumes:
        # Refuse a damaged or newer one before anything starts; unpack packed records before new ones are written.
        with _locked(run):
            check_resumable(prepared)
    with claim:
        made = run.create()
        with _writing(prepared, made), _locked(run):
            if not prepared.resumes:
                _begin(run, made)
            yield made


def _locked(run: RunDir) -> AbstractContextManager[None]:
    return run.locked(otherwise="give another --out")


def _begin(run: RunDir, made: Made) -> None:
    """Once the directory is locked, note what in it is not this sweep's.

    Raises:
        OutputError: it has become another sweep's.
    """
    if run.plan.exists():
        raise OutputError(
            f"another sweep has just planned {run.path}: choose another --out, or resume that one with: "
            f"{command('ddpbench', 'sweep', run.path)}"
        )
    made.begin()


@contextmanager
def _writing(prepared: Prepared, made: Made) -> Iterator[None]:
    """Turn a failure to write before the plan exists into an invalid request, and remove what was written."""
    run = prepared.run
    try:
        yield
    except OSError as error:
        if prepared.resumes or run.plan.exists():
            raise
        made.remove()
        if error.errno == errno.EAGAIN:  # usually a process that could not be started
            why = f"{error.strerror}{environments_part(error)}"
            raise OutputError(f"{run.path} cannot be measured: {why}") from None
        raise OutputError(f"{run.path} cannot be written: {explain_os_error(error)}") from None
