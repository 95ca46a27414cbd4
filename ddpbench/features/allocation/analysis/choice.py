"""The choice of the curve for an allocation: what a request may contain, and the one curve that it selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.scaling.curves import CaseCurve, curves_of
from ddpbench.errors import RequestError, meant, nearest
from ddpbench.records import RunDir
from ddpbench.spec import grouping, limits
from ddpbench.spec.grouping import cap_order, virtual_words
from ddpbench.strategies.traits import traits_of
from ddpbench.texts import command

EFFICIENCY_CUT = 0.7
"""The efficiency from which a job size is worth requesting, unless another cut is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationRequest:
    """The request. `waits_s` are queue waits by world size, seconds; given, not measured.

    `where` selects among curves of one strategy and workload: names of `Case`'s fields or of options, and values.
    `samples_per_epoch` None: the dataset's length as recorded by the proof, if it was.
    """

    strategy: str | None = None
    workload: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    efficiency_cut: float = EFFICIENCY_CUT
    samples_per_epoch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    waits_s: Mapping[int, float] = field(default_factory=dict)
    mtbf_s: float | None = None
    """Mean time between failures of the job, seconds; given, not measured."""
    recovery: RunDir | None = None
    """The run in which failures were measured; None: this run."""


def check(request: AllocationRequest) -> None:
    """Refuse a request that is invalid in itself.

    Raises:
        RequestError: a value of it is invalid.
    """
    if request.epochs is not None and request.steps is not None:
        raise RequestError("--epochs and --steps both say how long the run is; give one of them")
    for flag, limit, value in (
        ("--efficiency-cut", limits.EFFICIENCY, request.efficiency_cut),
        ("--epochs", limits.JOB_LENGTH, request.epochs),
        ("--steps", limits.JOB_LENGTH, request.steps),
        ("--samples-per-epoch", limits.JOB_LENGTH, request.samples_per_epoch),
    ):
        if value is not None:
            limit.check_flag(flag, value)
    if request.waits_s and request.epochs is None and request.steps is None:
        raise RequestError(
            "--queue-wait: time to finish needs the length of the run as well; give --steps, or --epochs with "
            "--samples-per-epoch"
        )


def choose(cases: Sequence[CaseRun], request: AllocationRequest, run: RunDir) -> tuple[CaseCurve, str]:
    """Return the curve that the request selects, DDP's if it names no strategy, and a sentence on the others."""
    at_cap = _at_cap(cases, request, run)
    curves = [curve for curve in curves_of(at_cap) if curve.runs and curve.base is not None]
    real = [curve for curve in curves if not curve.emulated]
    if not curves and (early := _unfinished(at_cap)):
        raise RequestError(f"{run.path} has no curve to base an allocation on yet: {early}")
    if not real:
        labels = ", ".join(virtual_words(curves[0].first.case)) if curves else ""
        why = (
            f"all of its curves are emulated, replayed or dilated ({labels}), and an allocation is asked for on what "
            "was measured on real links"
            if curves
            else "no strategy has ok launches with a core or GPU per rank, and also a base case"
        )
        raise RequestError(f"{run.path} has nothing to base an allocation on: {why}")
    for flag, asked, names in (
        ("--strategy", request.strategy, {curve.first.case.strategy for curve in real}),
        ("--workload", request.workload, {curve.first.case.workload for curve in real}),
    ):
        if asked is not None and asked not in names:
            early = _unfinished([one for one in at_cap if asked in (one.case.strategy, one.case.workload)])
            why = f"no such curve in {run.path}{' yet' if early else ''}; {early or nearest(asked, names)}"
            raise RequestError(f"{command(flag, asked)}: {why}")
    found = [
        curve
        for curve in real
        if request.strategy in (None, curve.first.case.strategy)
        and request.workload in (None, curve.first.case.workload)
    ]
    if not found:
        raise RequestError(f"{run.path} has no curve of {request.strategy} on {request.workload}")
    found = _where(found, request, run)
    ddp = [curve for curve in found if traits_of(curve.first.case).role == "reference"]
    able = [curve for curve in found if traits_of(curve.first.case).exchanges]
    curve = (ddp or able or found)[0]
    # among equal names, the one with more world sizes: two batches of one strategy are two curves
    same = [one for one in found if one.first.case.strategy == curve.first.case.strategy]
    curve = max(same, key=lambda one: len(one.runs))
    rest = [f"{one.name}, {one.setting} ({_flags(one, curve)})" for one in real if one is not curve]
    rest += [
        f"{_as_word(cap)} buckets ({command('--where', f'bucket_cap_mb={_as_word(cap)}')})"
        for cap in _other_caps(cases, curve)
    ]
    if not rest:
        return curve, ""
    more = f" and {len(rest) - 4} more" if len(rest) > 4 else ""
    return curve, f"also in this run: {'; '.join(rest[:4])}{more}"


_FIELDS = (
    *(
        "local_batch",
        "global_batch",
        "bucket_cap_mb",
        "scaling",
        "precision",
        "dtype",
        "data",
        "loader_workers",
    ),
    *("backend", "algorithm", "schedule", "device", "threads_per_rank", "ranks_per_node", "launcher"),
    *("evaluation", "checkpoint", "seed", "replicate"),
)
"""The fields of a case that can select a curve and that all of its cases share."""


def _value(curve: CaseCurve, name: str) -> str | None:
    """Return a field or option that a curve's cases share; None if they have none of that name."""
    case = curve.first.case
    if name == ("global_batch" if case.scaling == "weak" else "local_batch"):
        return None  # it varies with the ranks
    if name == "ranks_per_node" and case.nodes == 1:
        return None
    if name in _FIELDS:
        return _as_word(getattr(case, name))
    options = {**case.workload_options, **case.options}
    return _as_word(options[name]) if name in options else None


def _as_word(value: object) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _names(curves: Sequence[CaseCurve]) -> list[str]:
    options = [name for one in curves for name in (*one.first.case.options, *one.first.case.workload_options)]
    return list(dict.fromkeys([*_FIELDS, *options]))


def _unfinished(cases: Sequence[CaseRun]) -> str:
    """Return what to do about the first case with too few rounds; empty if there is none."""
    early = [one for one in cases if one.status == "unfinished" and not one.planned.oversubscribed]
    if not early:
        return ""
    count = f"{len(early)} of {len(cases)} cases" if len(cases) > 1 else "its case"
    return f"{count} {'is' if len(early) == 1 else 'are'} unfinished, the first {early[0].error}"


def _at_cap(cases: Sequence[CaseRun], request: AllocationRequest, run: RunDir) -> Sequence[CaseRun]:
    """Return the cases with the requested bucket cap, and those without any cap."""
    cap = request.where.get("bucket_cap_mb")
    if cap is None:
        return cases
    caps = {_as_word(one.case.bucket_cap_mb) for one in cases} - {"none"}
    if cap not in caps:
        known = ", ".join(sorted(caps)) or "none"
        raise RequestError(
            f"{command('--where', f'bucket_cap_mb={cap}')}: no such bucket cap in {run.path}; there is {known}"
        )
    return [one for one in cases if _as_word(one.case.bucket_cap_mb) in (cap, "none")]


def _where(curves: Sequence[CaseCurve], request: AllocationRequest, run: RunDir) -> list[CaseCurve]:
    """Return the curves with all requested values.

    Raises:
        RequestError: there is none; the message lists the existing values.
    """
    left = list(curves)
    for name, asked in request.where.items():
        values = list(dict.fromkeys(value for one in left if (value := _value(one, name)) is not None))
        if asked in values:
            left = [one for one in left if _value(one, name) == asked]
            continue
        if values:
            known = f"{name} is {' or '.join(values)}"
        else:
            apart = [key for key in _names(left) if len({_value(one, key) for one in left}) > 1]
            choices = f"they differ in {', '.join(apart)}" if apart else "there is one curve, and no choice"
            near = meant(name, _names(left)) if name not in _names(left) else ""
            known = f"{near}no curve has one {name} for all its ranks; {choices}"
        raise RequestError(f"{command('--where', f'{name}={asked}')}: no such curve in {run.path}; {known}")
    return left


def _flags(curve: CaseCurve, chosen: CaseCurve) -> str:
    """Return the flags that choose a curve in place of the chosen one."""
    mine, theirs = curve.first.case, chosen.first.case
    words = [
        command(f"--{name}", getattr(mine, name))
        for name in ("strategy", "workload")
        if getattr(mine, name) != getattr(theirs, name)
    ]
    if mine.strategy == theirs.strategy and mine.workload == theirs.workload:
        words += [
            command("--where", f"{name}={value}")
            for name in _names([curve])
            if (value := _value(curve, name)) is not None and value != _value(chosen, name)
        ]
    return " ".join(words)


def _other_caps(cases: Sequence[CaseRun], curve: CaseCurve) -> list[float | str]:
    """Return the other bucket caps at which the curve's configuration was run."""
    one = curve.first
    caps = {
        run.case.bucket_cap_mb
        for run in cases
        if run.status == "ok"
        and (grouping.panel(run.case), grouping.variant(run.case))
        == (grouping.panel(one.case), grouping.variant(one.case))
        and run.case.bucket_cap_mb != one.case.bucket_cap_mb
    }
    return [cap for cap in sorted(caps, key=cap_order) if cap is not None]
