"""The request for a sweep, and its validation, which finds as many problems as possible before anything is started."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddpbench.errors import IdentityError, MachineError, OutputError, RequestError
from ddpbench.launch.answerable import unanswerable
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.devices import (
    check_devices,
    usable_devices,
    within_gpus,
    within_precision,
    within_programs,
)
from ddpbench.launch.fabrics import check_drawable
from ddpbench.launch.memory import memory_limit, within_memory
from ddpbench.launch.merge.merge import refuse_merged
from ddpbench.launch.own_batches import batch_notes, own_names, stated_batches, stored_batches
from ddpbench.launch.own_workloads import cast_notes, hidden_in, with_located
from ddpbench.launch.plan import Plan, make_plan, skip_reasons
from ddpbench.machine.hardware import Hardware, read_hardware
from ddpbench.records import RunDir
from ddpbench.records.files import damaged
from ddpbench.records.machine import read_machine
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.records.rundir import check_checkpoint_dir, checked_name, default_path
from ddpbench.runtime.equal_caps import as_stored, replayed_gradients, sentences, without_equal
from ddpbench.spec import (
    Devices,
    Experiment,
    PlannedCase,
    crossed_words,
    expand,
    left_out,
    load_experiment,
    resolve,
)
from ddpbench.spec.limits import MAX_LAUNCHES
from ddpbench.spec.overrides import sure_keys
from ddpbench.spec.settings import MOST_ROUNDS
from ddpbench.text_safety import command


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """The request to measure an experiment. `experiment` is a TOML file, or a run directory to resume."""

    experiment: Path
    overrides: Sequence[str] = ()
    out: Path | None = None
    retry_failed: bool = False
    fills_time: bool = False
    """If true, `rounds_max` is raised, unless overridden, so far that `budget.total` limits the rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A validated request for a sweep. Nothing has been started yet."""

    experiment: Experiment
    plan: Plan
    hardware: Hardware
    devices: Devices
    run: RunDir
    resumes: bool
    draws_seed: bool
    """True if the seed of the launches' order was drawn at random, so that a new run gets a different one."""
    retry_failed: bool
    notes: tuple[str, ...] = ()
    """Sentences on what is not run as requested, with reasons, and other remarks."""


def _places(request: SweepRequest) -> tuple[Path, Path | None]:
    """Return the experiment's file, and the run directory (None for a new directory with a default name).

    Raises:
        RequestError: a file does not exist, or the run cannot be resumed.
        IdentityError: the given directory is not a run directory.
    """
    source, out = request.experiment, request.out
    if source.is_dir():
        out, source = out or source, RunDir(source).experiment
    elif source.name == "experiment.toml" and (source.parent / "plan.json").is_file() and out is None:
        out = source.parent
    if (source.parent / "plan.json").exists() and source.is_file() and not source.stat().st_size:
        raise damaged(source, "it is empty")  # else it would mean an experiment with all defaults
    for directory in {request.experiment, out} if request.experiment.is_dir() else {out}:
        if directory is not None:
            RunDir(checked_name(directory)).check()
    if out == request.experiment:
        RunDir(out).check_begun()
    if out is not None:
        RunDir(out).check_resumable()
        refuse_merged(RunDir(out))
    return source, out


def prepare(request: SweepRequest) -> Prepared:
    """Read, validate and plan a request. The only processes started are probes of the GPUs and of users' classes.

    Raises:
        RequestError: the request cannot be met; the message says why.
    """
    source, out = _places(request)
    catalog = TableCatalog(source.parent)
    notes: list[str] = []
    experiment = load_experiment(source, catalog, request.overrides, on_note=notes.append)
    experiment = with_located(experiment, source.parent)
    _check_launcher(experiment, request.experiment)
    if importlib.util.find_spec("torch") is None:
        raise MachineError("torch is not installed in this environment; run: pip install torch")
    hardware = read_hardware()
    devices = usable_devices(hardware)
    check_devices(experiment, devices)
    notes.append(left_out(experiment))
    experiment = resolve(experiment, devices)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    run = RunDir(out if out is not None else default_path(f"{experiment.name}-{stamp}"))
    resumes = run.plan.exists()
    stored = None
    with suppress(IdentityError):  # a damaged plan is refused later, once the run is locked
        stored = read_plan(run) if resumes else None
    batches = stored_batches(stored) if resumes else stated_batches(own_names(experiment))
    notes += batch_notes(experiment, {} if resumes else batches)
    planned = as_stored(expand(experiment, TableCatalog(source.parent, batches), devices), stored)
    notes.append(crossed_words(experiment, [(entry.case.world_size, entry.case.nodes) for entry in planned]))
    memory = memory_limit()
    cases = [
        within_memory(within_precision(within_gpus(entry, devices), devices), memory)
        for entry in within_programs(planned)
    ]
    if not resumes:
        cases = without_equal(cases, replayed_gradients)
    notes += [*sentences(cases), *cast_notes(cases), *hidden_in(experiment)]
    if all(entry.skip_reason is not None for entry in cases):
        raise RequestError(f"{source}: no case of this experiment can run here\n{skip_reasons(cases)}")
    notes.append(unanswerable(experiment, cases, devices))
    _check_checkpoint_dirs(cases)
    check_drawable(entry.case for entry in cases if entry.skip_reason is None)
    seeded = experiment.budget.seed is not None
    if not resumes:
        run.check_free()
    if request.fills_time and not any("budget.rounds_max" in sure_keys(one) for one in request.overrides):
        experiment = _filling_time(experiment, cases, stored)
    plan = make_plan(experiment, cases, stored)
    return Prepared(
        experiment=plan.experiment,
        plan=plan,
        hardware=hardware,
        devices=devices,
        run=run,
        resumes=resumes,
        draws_seed=not seeded and not resumes,
        retry_failed=request.retry_failed,
        notes=tuple(filter(None, notes)),
    )


def _filling_time(
    experiment: Experiment, cases: Sequence[PlannedCase], stored: StoredPlan | None
) -> Experiment:
    """Return the experiment with at least as many rounds as take all its time with timed steps alone.

    So `budget.total` ends the sweep before `rounds_max` does, within the limits of a plan. A resumed run keeps the
    rounds of its `stored` plan.

    Raises:
        RequestError: the experiment has claims.
    """
    if experiment.claims:
        raise RequestError(
            "claims need a number of rounds that is fixed in advance, and --resolve does not fix it; leave the claims "
            "out: --set 'claims=[]'"
        )
    budget, count = experiment.budget, sum(entry.skip_reason is None for entry in cases)
    fitting = min(int(budget.total / (count * budget.measured_s)), MOST_ROUNDS, MAX_LAUNCHES // count)
    most = max(budget.rounds_max, fitting if stored is None else stored.budget.rounds_max)
    return experiment.model_copy(update={"budget": budget.model_copy(update={"rounds_max": most})})


def _check_checkpoint_dirs(cases: Sequence[PlannedCase]) -> None:
    """Check the directories for checkpoints of these cases.

    Raises:
        OutputError: a directory is missing or cannot be written, or other users can replace what is in it.
    """
    for name in dict.fromkeys(entry.case.checkpoint_dir for entry in cases):
        if name and not (Path(name).is_dir() and os.access(name, os.W_OK | os.X_OK)):
            what = "is not writable" if Path(name).is_dir() else "is not a directory"
            raise OutputError(
                f"base.checkpoint_dir = {name!r} {what}: make the directory, name another, or leave the "
                "setting out to write checkpoints into the run directory"
            )
        if name:
            check_checkpoint_dir(name)


def _check_launcher(experiment: Experiment, source: Path) -> None:
    """Check that a sweep can start the ranks of an experiment itself.

    Raises:
        RequestError: Slurm must start the ranks, or the user must start them on several nodes.
    """
    launchers = experiment.axes.get("launcher", [experiment.base.launcher])
    if "slurm" in launchers:
        sizes = () if source.is_dir() else ("--nodes", "1,2,4", "--ranks-per-node", "N")
        again = command("ddpbench", "submit", source.parent if source.is_dir() else source, *sizes)
        raise RequestError(
            f'{source}: launcher = "slurm" starts ranks in Slurm jobs, not in a sweep; run: {again}'
        )
    several = [
        n for n in experiment.axes.get("nodes", [experiment.base.nodes]) if isinstance(n, int) and n > 1
    ]
    if several and "torchrun" in launchers and not experiment.emulates:
        nodes = () if source.is_dir() else ("--nodes", "hostA,hostB", "--ranks-per-node", "N")
        line = command("ddpbench", "plan", source, *nodes)
        raise RequestError(
            f"{source}: a sweep starts ranks only on this machine; for several nodes, {line} prints the "
            "lines to run"
        )
    run = RunDir(source)
    if "torchrun" in launchers and run.machine.is_file() and "planned_nodes" in read_machine(run)["context"]:
        raise RequestError(
            f"{source} was planned for several nodes, on which you start the ranks yourself. To print the "
            f"commands, run {command('ddpbench', 'plan', source)}"
        )
