"""Choose which of a run's curves a proposal shows: the user's request, and the curve that it selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.scaling.curves import CaseCurve, curves_of
from ddpbench.errors import RequestError, nearest
from ddpbench.records import RunDir
from ddpbench.spec import Case, grouping, limits
from ddpbench.spec.grouping import (
    FACETS,
    OPTIONS,
    PANEL,
    VARIANT,
    VIRTUAL,
    cap_order,
    option_axis,
    virtual_words,
)
from ddpbench.spec.spoken import setting_meant
from ddpbench.strategies.traits import traits_of
from ddpbench.text_safety import command

EFFICIENCY_CUT = 0.7
"""The lowest efficiency at which a job size is worth requesting, unless the request sets a different cut."""

MOST_NAMED = 4
"""Largest number of a run's other curves that are listed, with the flags that choose them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationRequest:
    """The user's request for a proposal.

    `where` selects among the curves of one strategy and workload, by names of options or of `Case`'s fields. `waits_s`
    has the given queue waits (seconds) by world size. Without `samples_per_epoch`, the recorded dataset's length is
    used.
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
    """The run in which failures were measured; None means the run itself."""


def check(request: AllocationRequest) -> None:
    """Refuse a request that is invalid for every run.

    Raises:
        RequestError: a value is invalid, or values contradict each other.
    """
    if request.epochs is not None and request.steps is not None:
        raise RequestError("--epochs and --steps both set the length of the job: give only one of them")
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
            "--queue-wait needs the length of the job: give --steps, or --epochs with --samples-per-epoch"
        )


def choose(cases: Sequence[CaseRun], request: AllocationRequest, run: RunDir) -> tuple[CaseCurve, str]:
    """Return the curve that the request selects, by default DDP's, and a sentence about the run's other curves.

    Raises:
        RequestError: the run has no such curve; the message lists the existing curves.
    """
    at_cap = _at_cap(cases, request, run)
    curves = _of_a_base_case(at_cap)
    real = [curve for curve in curves if not curve.emulated]
    if not curves and (early := _unfinished(at_cap)):
        raise RequestError(f"{run.path} does not have a complete curve for an allocation yet: {early}")
    if not real:
        labels = ", ".join(virtual_words(curves[0].first.case)) if curves else ""
        why = (
            f"all of its curves are emulated, replayed or dilated ({labels}), but an allocation needs "
            "measurements on real links"
            if curves
            else "no strategy has ok launches with a core or GPU per rank, and also a base case"
        )
        raise RequestError(f"{run.path} has no curve for an allocation: {why}")
    for flag, asked, names in (
        ("--strategy", request.strategy, {curve.first.case.strategy for curve in real}),
        ("--workload", request.workload, {curve.first.case.workload for curve in real}),
    ):
        if asked is not None and asked not in names:
            early = _unfinished([one for one in at_cap if asked in (one.case.strategy, one.case.workload)])
            why = f"no such curve in {run.path}{' yet' if early else ''}; {early or nearest(asked, names)}"
            raise RequestError(f"{command(flag, asked)}: {why}")
    found = [curve for curve in real if _is_of(curve, request)]
    if not found:
        raise RequestError(f"{run.path} has no curve of {request.strategy} on {request.workload}")
    curve = _first_of(_where(found, request, run))
    others = _Others(cases, curve)
    rest = [f"{one.name}, {one.setting}{others.flags(one)}" for one in real if one is not curve]
    rest += [f"{cap} buckets{others.flags(one)}" for cap, one in others.at_other_caps()]
    curve = others.with_cap(curve)
    if not rest:
        return curve, ""
    more = f" and {len(rest) - MOST_NAMED} more" if len(rest) > MOST_NAMED else ""
    return curve, f"also in this run: {'; '.join(rest[:MOST_NAMED])}{more}"


def _of_a_base_case(cases: Sequence[CaseRun]) -> list[CaseCurve]:
    return [curve for curve in curves_of(cases) if curve.runs and curve.base is not None]


def _is_of(curve: CaseCurve, request: AllocationRequest) -> bool:
    case = curve.first.case
    return request.strategy in (None, case.strategy) and request.workload in (None, case.workload)


def _first_of(curves: Sequence[CaseCurve]) -> CaseCurve:
    """Return DDP's longest curve, or else the longest of the first strategy that exchanges gradients."""
    ddp = [curve for curve in curves if traits_of(curve.first.case).role == "reference"]
    able = [curve for curve in curves if traits_of(curve.first.case).exchanges]
    strategy = (ddp or able or curves)[0].first.case.strategy
    same = [curve for curve in curves if curve.first.case.strategy == strategy]
    return max(same, key=lambda curve: len(curve.runs))


_APART = ("strategy", "workload")
"""Fields that have their own flag."""
_UNASKED = (*_APART, *OPTIONS, *VIRTUAL)
_FIELDS = tuple(name for name in (*PANEL, *VARIANT, "bucket_cap_mb") if name not in _UNASKED)
_LAYOUT = ("nodes", "ranks_per_node")
"""Further names that `--where` accepts, in addition to `_FIELDS`, options and environment variables."""
_CASE_FIELDS = frozenset(each.name for each in fields(Case))
_ABSENT = "none"
"""The value in `--where` that selects curves without an option or variable that other curves have."""


@dataclass(frozen=True, slots=True)
class _Option:
    owner: str
    """The field of `Case` with the option: the strategy's options, the workload's, or the environment."""
    name: str
    axis: str
    """The option's name as an axis of an experiment."""
    value: str


def _options(case: Case) -> list[_Option]:
    every: list[_Option] = []
    for owner in ("options_json", "workload_options_json", "env_json"):
        for name, value in OPTIONS[owner](case).items():
            every.append(_Option(owner, name, option_axis(owner, name, case), _as_word(value)))
    return every


def _value(curve: CaseCurve, name: str) -> str | None:
    case = curve.first.case
    if name == ("global_batch" if case.scaling == "weak" else "local_batch"):
        return None  # it varies with the ranks
    if name == "ranks_per_node" and case.nodes == 1:
        return None
    if name == "nodes" and any(run.case.nodes > 1 for run in curve.runs):
        return None
    if name in (*_APART, *_FIELDS, *_LAYOUT):
        return _as_word(getattr(case, name))
    return next((one.value for one in _options(case) if name in (one.name, one.axis)), None)


def _as_word(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value).strip() or '""'


def _option_names(curves: Sequence[CaseCurve]) -> list[str]:
    """Return the curves' option names; names of two owners become full axis names."""
    every = [one for curve in curves for one in _options(curve.first.case)]
    owners: dict[str, set[str]] = {name: {""} for name in (*_APART, *_FIELDS, *_LAYOUT)}
    for one in every:
        owners.setdefault(one.name, set()).add(one.owner)
    return list(dict.fromkeys(one.axis if len(owners[one.name]) > 1 else one.name for one in every))


def _names(curves: Sequence[CaseCurve]) -> list[str]:
    return [*_FIELDS, *_LAYOUT, *_option_names(curves)]


def _has(curve: CaseCurve, name: str, asked: str) -> bool:
    """Return whether a curve's value is `asked`; `none` stands for an option that it lacks."""
    value = _value(curve, name)
    lacks = value is None and name not in (*_FIELDS, *_LAYOUT)
    return asked == (_ABSENT if lacks else value)


class _Others:
    """The curves that the request did not choose, and the flags that would choose each."""

    def __init__(self, cases: Sequence[CaseRun], chosen: CaseCurve) -> None:
        self._cases, self._chosen = cases, chosen
        self._at: dict[str | None, list[CaseCurve]] = {}

    def flags(self, curve: CaseCurve) -> str:
        flags: dict[str, str] = {}
        rival: CaseCurve | None = self._chosen
        while rival is not None and (_ids(rival) != _ids(curve) or not flags):
            name = self._difference(curve, rival, flags)
            if not name:
                return ""
            flags[name] = _value(curve, name) or _ABSENT
            rival = self._selected(flags)
        if rival is None:
            return ""
        words = [
            command(f"--{name}", value) if name in _APART else command("--where", f"{name}={value}")
            for name, value in flags.items()
        ]
        return f" ({' '.join(words)})"

    def _difference(self, curve: CaseCurve, rival: CaseCurve, flags: Mapping[str, str]) -> str:
        options = _option_names(self._real_at(None))
        for name in (*_APART, *_FIELDS, *_LAYOUT, *options):
            value = _value(curve, name)
            named = value is not None or name in options
            if name not in flags and named and value != _value(rival, name):
                return name
        return ""

    def _selected(self, flags: Mapping[str, str]) -> CaseCurve | None:
        found = self._real_at(flags.get("bucket_cap_mb"))
        found = [one for one in found if all(_has(one, name, value) for name, value in flags.items())]
        return _first_of(found) if found else None

    def _real_at(self, cap: str | None) -> list[CaseCurve]:
        """Return the curves on real links that `choose` would consider for this bucket cap."""
        if cap not in self._at:
            of_cap = [one for one in self._cases if cap in (None, _cap_of(one)) or _cap_of(one) == "none"]
            self._at[cap] = [curve for curve in _of_a_base_case(of_cap) if not curve.emulated]
        return self._at[cap]

    def at_other_caps(self) -> list[tuple[str, CaseCurve]]:
        found: list[tuple[str, CaseCurve]] = []
        for cap in map(_as_word, _other_caps(self._cases, self._chosen)):
            alike = [one for one in self._real_at(cap) if _alike(one.first.case, self._chosen.first.case)]
            alike.sort(
                key=lambda one: any(_value(one, name) != _value(self._chosen, name) for name in _LAYOUT)
            )
            found += [(cap, one) for one in alike[:1]]
        return found

    def with_cap(self, curve: CaseCurve) -> CaseCurve:
        words = f"with {FACETS['bucket_cap_mb'].word(curve.first.case)}"
        if words in curve.name or not _other_caps(self._cases, curve):
            return curve
        return replace(curve, name=f"{curve.name} {words}")


def _ids(curve: CaseCurve) -> list[str]:
    return [run.case_id for run in curve.runs]


def _alike(case: Case, other: Case) -> bool:
    return (grouping.panel(case), grouping.variant(case)) == (grouping.panel(other), grouping.variant(other))


def _unfinished(cases: Sequence[CaseRun]) -> str:
    early = [one for one in cases if one.status == "unfinished" and not one.planned.oversubscribed]
    if not early:
        return ""
    count = f"{len(early)} of {len(cases)} cases" if len(cases) > 1 else "its case"
    return f"{count} {'is' if len(early) == 1 else 'are'} unfinished, the first {early[0].error}"


def _at_cap(cases: Sequence[CaseRun], request: AllocationRequest, run: RunDir) -> Sequence[CaseRun]:
    """Return the cases with the requested bucket cap or without buckets.

    Raises:
        RequestError: no case has this cap.
    """
    cap = request.where.get("bucket_cap_mb")
    if cap is None:
        return cases
    caps = {_cap_of(one) for one in cases} - {"none"}
    if cap not in caps:
        known = ", ".join(sorted(caps)) or "none"
        raise RequestError(
            f"{command('--where', f'bucket_cap_mb={cap}')}: no such bucket cap in {run.path}; there is {known}"
        )
    return [one for one in cases if _cap_of(one) in (cap, "none")]


def _cap_of(run: CaseRun) -> str:
    """Return the bucket cap as on a command line; `none` without buckets."""
    return _as_word(run.case.bucket_cap_mb)


def _where(curves: Sequence[CaseCurve], request: AllocationRequest, run: RunDir) -> list[CaseCurve]:
    """Return the curves with all requested values.

    Raises:
        RequestError: no curve has them; the message lists the existing values.
    """
    left = list(curves)
    for name, asked in request.where.items():
        values = list(dict.fromkeys(value for one in left if (value := _value(one, name)) is not None))
        if values and (found := [one for one in left if _has(one, name, asked)]):
            left = found
            continue
        if values:
            known = f"{name} is {' or '.join(values)}"
        else:
            apart = [key for key in _names(left) if len({_value(one, key) for one in left}) > 1]
            choices = f"they differ in {', '.join(apart)}" if apart else "there is only one curve to choose"
            near = setting_meant(name, {*_names(left), *_CASE_FIELDS}) if name not in _names(left) else ""
            if name not in {*_names(left), *_CASE_FIELDS}:
                raise RequestError(
                    f"{command('--where', f'{name}={asked}')}: {name} is not a setting of a case in {run.path}; "
                    f"{near}{choices}"
                )
            known = f"{near}no curve has one {name} for all its ranks; {choices}"
        raise RequestError(f"{command('--where', f'{name}={asked}')}: no such curve in {run.path}; {known}")
    return left


def _other_caps(cases: Sequence[CaseRun], curve: CaseCurve) -> list[float | str]:
    one = curve.first
    caps = {
        run.case.bucket_cap_mb
        for run in cases
        if run.status == "ok"
        and _alike(run.case, one.case)
        and run.case.bucket_cap_mb != one.case.bucket_cap_mb
    }
    return [cap for cap in sorted(caps, key=cap_order) if cap is not None]
