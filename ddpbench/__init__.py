"""ddpbench: what happens to training when ranks, buckets, backend or strategy change, and why.

    run_dir = ddpbench.sweep("quick")
    frame = ddpbench.load(run_dir)

Importing this package imports neither torch nor pandas.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpbench.version import VERSION

if TYPE_CHECKING:
    import pandas as pd

    from ddpbench.analysis.summary import RunSummary
    from ddpbench.launch.listener import Listener
    from ddpbench.launch.sweep.sweep import Sweep
    from ddpbench.picture_formats import PictureFormats
    from ddpbench.progress import OnProgress

__version__ = VERSION
__all__ = ["__version__", "load", "load_steps", "load_transfers", "sweep", "write_report"]


def sweep(
    experiment: str | Path,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    retry_failed: bool = False,
    listener: Listener | None = None,
) -> Path:
    """Run an experiment's launches and write its table and report; return the run directory.

    Args:
        experiment: a TOML file, the name of a file under `experiments/`, or a run directory to resume.
        overrides: settings such as `"base.local_batch=16"`, applied before validation.
        out: the run directory; by default `reports/<experiment>-<utc time>`. An existing run is resumed.
        retry_failed: whether to repeat launches that failed in an earlier session.
        listener: receives the progress.

    Raises:
        ddpbench.errors.RequestError: the request cannot be met; nothing was started.
        ddpbench.errors.LaunchError: ranks cannot be started, or their records cannot be written.
        KeyboardInterrupt: the sweep was interrupted; finished results are in the table, and the rest can be resumed.
    """
    from ddpbench.launch.experiments import find_experiment
    from ddpbench.launch.listener import Listener
    from ddpbench.launch.sweep.preparation import SweepRequest, prepare
    from ddpbench.launch.sweep.sweep import Sweep

    request = SweepRequest(
        experiment=find_experiment(str(experiment)),
        overrides=overrides,
        out=Path(out) if out is not None else None,
        retry_failed=retry_failed,
    )
    work = Sweep(prepare(request), listener or Listener())
    carry_out(work)
    write_report(work.result.run.path)
    return work.result.run.path


def carry_out(work: Sweep, interrupted: Callable[[], None] = lambda: None) -> None:
    """Run a prepared sweep's launches.

    If interrupted, call `interrupted` and write the table of finished results.

    Raises:
        ddpbench.errors.LaunchError: ranks cannot be started, or their records cannot be written.
        KeyboardInterrupt: the sweep was interrupted; the rest can be resumed.
    """
    from ddpbench.errors import DdpbenchError

    try:
        work.run()
    except KeyboardInterrupt:
        interrupted()
        if work.result.launches:
            with contextlib.suppress(
                DdpbenchError, OSError
            ):  # the records are written; the interrupt is the event to report
                load(work.result.run.path, write=True)
        raise


def load(run_dir: str | Path, *, write: bool = False) -> pd.DataFrame:
    """Return a run directory's table, regenerated from its records, with a row per case.

    With `write`, also write the table to the run directory's `cases.csv`.

    Raises:
        ddpbench.errors.IdentityError: `run_dir` is not a run directory, or was written with a different schema.
    """
    from ddpbench.analysis import load as load_frame
    from ddpbench.analysis import write_csv
    from ddpbench.records.submission_dir import run_at

    run = run_at(Path(run_dir))
    with run.held() if write else contextlib.nullcontext(run) as own:
        frame = load_frame(run)
        if write:
            write_csv(frame, own)
    return frame


def load_steps(run_dir: str | Path) -> pd.DataFrame:
    """Return a table of the steps in successful launches, with a row for each rank and step.

    Timed, instrumented and evaluation steps are included. The columns are `ddpbench.analysis.export.STEP_COLUMNS`;
    times are seconds.

    Raises:
        ddpbench.errors.IdentityError: `run_dir` is not a run directory, or was written with a different schema.
    """
    from ddpbench.analysis.export import load_steps as load_frame
    from ddpbench.records.submission_dir import run_at

    return load_frame(run_at(Path(run_dir)))


def load_transfers(run_dir: str | Path) -> pd.DataFrame:
    """Return a table of the transfers in successful launches, with a row for each rank's part in a transfer.

    Only transfers of instrumented steps are included. The columns are `ddpbench.analysis.export.TRANSFER_COLUMNS`;
    times are seconds, sizes bytes.

    Raises:
        ddpbench.errors.IdentityError: `run_dir` is not a run directory, or was written with a different schema.
    """
    from ddpbench.analysis.export import load_transfers as load_frame
    from ddpbench.records.submission_dir import run_at

    return load_frame(run_at(Path(run_dir)))


def write_report(run_dir: str | Path) -> Path:
    """Write a run directory's `cases.csv`, `report.html` and figures; return the path of `report.html`.

    Raises:
        ddpbench.errors.IdentityError: `run_dir` is not a run directory, or was written with a different schema.
        ddpbench.errors.RequestError: only the run's report is left; its records are gone.
    """
    return report_on(run_dir)[0]


def report_on(
    run_dir: str | Path, wanted: PictureFormats | None = None, on_progress: OnProgress | None = None
) -> tuple[Path, RunSummary]:
    """Like `write_report`, but also return the summary from which the page was made.

    `wanted` has the additional file formats in which to write the pictures. `on_progress` is called with the progress.

    Raises:
        ddpbench.errors.IdentityError: `run_dir` is not a run directory, or was written with a different schema.
        ddpbench.errors.RequestError: only the run's report is left; its records are gone.
    """
    from ddpbench.helper_process import for_report
    from ddpbench.records.plan import count_cases
    from ddpbench.records.submission_dir import run_at

    run = run_at(Path(run_dir))
    run.check_records()
    others = for_report(count_cases(run))
    collected = gc.isenabled()
    gc.disable()  # saves a tenth of the time: nothing that is read becomes garbage before the page is written
    try:
        with run.held() as own, others:
            from ddpbench import report
            from ddpbench.analysis import summarize, write_csv
            from ddpbench.picture_formats import ONLY_PNG
            from ddpbench.progress import ignore_progress
            from ddpbench.report.draw.painter import Painter

            progress = on_progress or ignore_progress
            summary = summarize(run, others, progress)
            write_csv(summary.cases, own)
            report.write_report(summary, own, Painter(others, progress), wanted or ONLY_PNG)
            return run.report, summary
    finally:
        if collected:
            gc.enable()
