"""Compute a scaling curve as HPC centres request it: job sizes with wall times and hours, and a recommended size.

Only measurements with real links, real computation, and a core or GPU per rank count.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpbench.analysis.decided import decide
from ddpbench.analysis.invariants import check_cases
from ddpbench.analysis.judging import speedup_over
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.fabrics import fabrics_of
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.scaling.curves import CaseCurve
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import samples_rate, step_time
from ddpbench.analysis.table.result import case_results
from ddpbench.errors import RequestError
from ddpbench.features.allocation.analysis.choice import AllocationRequest, check, choose
from ddpbench.features.allocation.analysis.saving import Saving, saving_of
from ddpbench.naming import Namer
from ddpbench.records import RunDir
from ddpbench.records.machine import SlurmJob, read_machine
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.spec import Case, grouping


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSize:
    """A row of a proposal's table: a number of ranks with its run time, hours and efficiency.

    Times are in seconds; hours are core-hours, or GPU-hours.
    """

    world_size: int
    base: bool
    nodes: int
    devices: int
    global_batch: int
    step_s: Interval
    speedup: Interval
    efficiency: Interval
    launches: int
    epoch_s: Interval | None = None
    epoch_hours: Interval | None = None
    run_s: Interval | None = None
    run_hours: Interval | None = None
    wait_s: float | None = None

    @property
    def finish_s(self) -> float | None:
        """Queue wait plus run time (s); None if either is unknown."""
        return None if self.wait_s is None or self.run_s is None else self.wait_s + self.run_s.value

    @property
    def surest_efficiency(self) -> float:
        """The lower end of the efficiency's interval, or the efficiency itself if there is no interval."""
        return self.efficiency.value if self.efficiency.low is None else self.efficiency.low


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The numbers of a proposal. `first` is the size that finishes first; None without queue waits."""

    name: str
    case: Case
    """A case of the curve."""
    setting: str
    unit: str
    """`core` or `GPU`."""
    scaling: str
    cut: float
    jobs: tuple[JobSize, ...]
    chosen: JobSize
    first: JobSize | None
    samples_per_epoch: int | None
    samples_recorded: bool
    """True if `samples_per_epoch` is the dataset's recorded length, False if it was given."""
    waits_recorded: int
    """Number of the run's jobs whose queue waits are used; 0 if all waits were given, or none are known."""
    waits_given: tuple[int, ...]
    """World sizes whose queue waits were given."""
    epochs: int | None
    steps: int | None
    base_rate: Interval
    machine: Mapping[str, Any]
    threads_per_rank: int
    loader_workers: int
    dtype: str
    proved: bool
    disturbed: int
    """Number of launches of these cases that were flagged as disturbed."""
    launches: int
    saving: Saving | None
    """The best snapshot period; None if no time between failures is given."""
    left_out: str
    """A sentence on job sizes missing from the table, if any."""
    elsewhere: str
    """A sentence on the run's other curves; not part of the proposal."""


def allocation_of(run: RunDir, request: AllocationRequest) -> Allocation:
    """Return the numbers of a proposal, from one curve of a run.

    Raises:
        RequestError: this run cannot answer the request.
        IdentityError: `run` is not a run directory, or has a different schema.
    """
    check(request)
    plan = read_plan(run)
    machine = read_machine(run)
    cases = read_cases(run, plan)
    if plan.claims:  # so that a pair of cases in a claim has the same interval as in the report
        cases = decide(plan, cases, machine, fabrics_of(run), plan.claims).cases
    curve, elsewhere = choose(cases, request, run)
    base = curve.base
    assert base is not None  # choose returns no curve without a base case
    recorded = request.samples_per_epoch is None
    request = _with_samples(request, [base, *curve.runs])
    case = curve.first.case
    members = [base, *curve.runs]
    _check_possible(plan, members, machine)
    given = tuple(sorted(request.waits_s))  # the user knows waits better than the record
    waited = _waited(_slurm_jobs(machine), [run for run in members if run.case.world_size not in given])
    waits_s = {size: statistics.median(waits.values()) for size, waits in waited.items()}
    request = replace(request, waits_s=waits_s | dict(request.waits_s))
    jobs = _jobs(curve, base, request)
    return Allocation(
        name=curve.name,
        case=case,
        setting=", ".join((curve.first.case.workload, *curve.shared[1:])),  # with the file of a user's class
        unit="GPU" if case.device == "cuda" else "core",
        scaling=case.scaling,
        cut=request.efficiency_cut,
        jobs=tuple(jobs),
        chosen=_largest_worth_it(jobs, request.efficiency_cut),
        first=_first_done(jobs),
        samples_per_epoch=request.samples_per_epoch,
        samples_recorded=recorded,
        waits_recorded=len({job for waits in waited.values() for job, _ in waits}),
        waits_given=given,
        epochs=request.epochs,
        steps=request.steps,
        base_rate=samples_rate(base.timings),
        machine=machine,
        threads_per_rank=case.threads_per_rank,
        loader_workers=case.loader_workers,
        dtype=grouping.number_words(case, machine),
        proved=all(
            one.proof is not None and one.proof.status == "ok" and not one.unproved for one in members
        ),
        disturbed=sum(bool(launch.flags) for one in members for launch in one.good),
        launches=sum(len(one.good) for one in members),
        saving=_saving(cases, case.workload, request),
        left_out=_left_out(curve),
        elsewhere=elsewhere,
    )


def _check_possible(plan: StoredPlan, runs: Sequence[CaseRun], machine: Mapping[str, Any]) -> None:
    """Check a curve's numbers.

    Raises:
        RequestError: a number of the curve is impossible.
    """
    for wrong in check_cases(case_results(runs, plan.target_half_widths(), machine)).withheld.values():
        raise RequestError(f"{wrong.why_withheld}; measure this curve again, on a quiet machine")


def _saving(cases: Sequence[CaseRun], workload: str, request: AllocationRequest) -> Saving | None:
    if request.mtbf_s is None:
        if request.recovery is not None:
            raise RequestError(
                "--recovery needs --mtbf: give the mean time between failures, such as --mtbf 12h"
            )
        return None
    other = request.recovery
    return saving_of(
        cases if other is None else read_cases(other, read_plan(other)), workload, request.mtbf_s
    )


def _slurm_jobs(machine: Mapping[str, Any]) -> list[SlurmJob]:
    return [SlurmJob.model_validate(job) for job in machine.get("context", {}).get("slurm_jobs", [])]


def _waited(jobs: Sequence[SlurmJob], runs: Sequence[CaseRun]) -> dict[int, dict[tuple[str, int], float]]:
    """Return queue waits (s) by world size, then by job and restart. Only the smallest sufficient jobs count."""
    found: dict[int, dict[tuple[str, int], float]] = {}
    able = [job for job in jobs if job.queue_wait_s is not None]
    for case in (run.case for run in runs):
        least = min((job.nodes for job in able if job.nodes >= case.nodes), default=0)
        waits = {
            (job.job_id, job.restarts): job.queue_wait_s
            for job in able
            if job.nodes == least and job.queue_wait_s is not None
        }
        if waits:
            found[case.world_size] = waits
    return found


def _with_samples(request: AllocationRequest, runs: Sequence[CaseRun]) -> AllocationRequest:
    """Fill in the dataset's recorded length if the request has no samples per epoch.

    Raises:
        RequestError: epochs are requested, but neither the request nor a record says how many samples an epoch has.
    """
    if request.samples_per_epoch is None:
        request = replace(request, samples_per_epoch=_recorded_samples(runs))
    if request.epochs is not None and request.samples_per_epoch is None:
        raise RequestError(
            "--epochs needs --samples-per-epoch, because this run has no recorded length of its dataset"
        )
    return request


def _jobs(curve: CaseCurve, base: CaseRun, request: AllocationRequest) -> list[JobSize]:
    """Return the curve's job sizes, the base case first.

    Raises:
        RequestError: a queue wait was given for a size that the curve lacks.
    """
    jobs = [_job(base, base, request, base_case=True)]
    jobs += [_job(one, base, request, base_case=False) for one in curve.runs]
    known = sorted({job.world_size for job in jobs})
    unknown = sorted(set(request.waits_s) - set(known))
    if unknown:
        raise RequestError(
            f"--queue-wait {unknown[0]}=...: no case at {unknown[0]} ranks is in the table; give one of "
            f"{', '.join(map(str, known))}"
        )
    return jobs


def _largest_worth_it(jobs: Sequence[JobSize], cut: float) -> JobSize:
    """Return the largest size whose efficiency is surely at least `cut`, or else the base case."""
    able = [job for job in jobs if not job.base and job.surest_efficiency >= cut]
    return max(able, key=lambda job: job.world_size, default=jobs[0])


def _first_done(jobs: Sequence[JobSize]) -> JobSize | None:
    timed = [job for job in jobs if job.finish_s is not None]
    return min(timed, key=lambda job: job.finish_s or 0.0, default=None)


def _left_out(curve: CaseCurve) -> str:
    if not curve.crowded:
        return ""
    sizes = ", ".join(str(one.case.world_size) for one in curve.crowded)
    return f"Not in the table: {sizes} ranks, which were more than there are cores (oversubscribed)."


def _recorded_samples(runs: Sequence[CaseRun]) -> int | None:
    lengths = {run.proof.dataset_samples if run.proof is not None else None for run in runs}
    return lengths.pop() if len(lengths) == 1 else None


def _job(run: CaseRun, base: CaseRun, request: AllocationRequest, *, base_case: bool) -> JobSize:
    case = run.case
    step = step_time(run.timings)
    found = None if base_case else speedup_over(run, base)
    if found is None and not base_case:
        raise RequestError(
            f"{Namer([case, base.case]).full(case)} shares no rounds with its base case, and so has no speed-up: "
            "resume the sweep"
        )
    speedup = Interval(value=1.0) if found is None else found[0]
    devices = case.world_size * (1 if case.device == "cuda" else case.threads_per_rank + case.loader_workers)
    epoch = run_s = None
    if request.samples_per_epoch is not None:
        epoch = step.scaled(math.ceil(request.samples_per_epoch / case.global_batch))
    if request.epochs is not None and epoch is not None:
        run_s = epoch.scaled(request.epochs)
    elif request.steps is not None:
        run_s = step.scaled(request.steps)
    return JobSize(
        world_size=case.world_size,
        base=base_case,
        nodes=case.nodes,
        devices=devices,
        global_batch=case.global_batch,
        step_s=step,
        speedup=speedup,
        efficiency=speedup.scaled(1 / case.world_size),
        launches=len(run.good),
        epoch_s=epoch,
        epoch_hours=None if epoch is None else epoch.scaled(devices / 3600),
        run_s=run_s,
        run_hours=None if run_s is None else run_s.scaled(devices / 3600),
        wait_s=request.waits_s.get(case.world_size),
    )
