"""Check and lock the run directory of a sweep that is new or resumed."""

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
    """Check a directory to resume, enter `claim`, lock the directory, and yield a record of what is created in it.

    Raises:
        RequestError: the output cannot be used, or belongs to a different machine or experiment.
    """
    run = prepared.run
    if prepared.resumes:
        # Refuse a damaged or newer run before anything starts; unpack packed records before new ones are written.
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
    """Record what a new sweep's locked directory already contains, so that it is not removed later.

    Raises:
        OutputError: a different sweep has meanwhile used the directory.
    """
    if run.plan.exists():
        raise OutputError(
            f"another sweep has just planned {run.path}: choose another --out, or resume that run with: "
            f"{command('ddpbench', 'sweep', run.path)}"
        )
    made.begin()


@contextmanager
def _writing(prepared: Prepared, made: Made) -> Iterator[None]:
    """If the body raises an OSError before a plan exists, remove what was created and raise an OutputError instead."""
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
