"""Curves of cases over world sizes, the laws fitted to the curves, and findings on these laws.

A curve's cases differ only in their number of ranks. On several nodes, a curve fills each node before the next: nodes
of eight ranks continue the curve of one to eight ranks on one node, and nodes of four form a separate curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.groups import grouped, panels
from ddpbench.analysis.findings.wording import conditions, key_of, name_of
from ddpbench.analysis.judging import speedup_over
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.scaling.fits import Fit
from ddpbench.analysis.scaling.laws import Laws, ToFit, fit_all
from ddpbench.analysis.scaling.model import LAW_NAMES
from ddpbench.analysis.scaling.speedups import SpeedupCurve
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.judgement import plain
from ddpbench.helper_process import Helper
from ddpbench.naming import Namer, on_nodes, on_nodes_of, workload_of
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import FACETS, PANEL, batch_words, cap_order, is_virtual
from ddpbench.strategies.traits import traits_of


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseCurve:
    """The successful cases of one configuration at several world sizes.

    `runs` are the cases with separate cores or GPUs for each rank, and `crowded` the oversubscribed ones. `base` is the
    base case, or None. `panel` is the index of the panel, and `variant` that of the curve among the panel's with the
    same strategy and algorithm. Both count from 0.
    """

    name: str
    key: str
    """Name of the curve in data."""
    shared: tuple[str, ...]
    """Words for the settings that the cases of the curve have in common, the workload first."""
    panel: int
    variant: int
    base: CaseRun | None
    runs: tuple[CaseRun, ...]
    crowded: tuple[CaseRun, ...]

    @property
    def setting(self) -> str:
        """Describe the settings that the curve's cases have in common, in one line."""
        return ", ".join(self.shared)

    @property
    def first(self) -> CaseRun:
        """Return a case that shows the common settings, if possible one with several ranks."""
        return (self.runs or self.crowded)[-1]

    @property
    def emulated(self) -> bool:
        """Return whether any case used shaped links, or replayed, dilated or shrunk computation."""
        return any(is_virtual(run.case) for run in (*self.runs, *self.crowded))


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveLaws:
    """A curve's name, the ids of its cases, and the laws fitted to it."""

    name: str
    key: str
    """Name of the curve in data."""
    shared: tuple[str, ...]
    """Words for the settings that the cases of the curve have in common, the workload first."""
    panel: int
    variant: int
    case: Case
    """A case that shows the settings that all cases of the curve have in common."""
    case_ids: Mapping[int, str]
    """Ids of the cases with separate cores for each rank, by world size."""
    laws: Laws

    @property
    def setting(self) -> str:
        """Describe the settings that the curve's cases have in common, in one line."""
        return ", ".join(self.shared)


def curves_of(cases: Sequence[CaseRun]) -> list[CaseCurve]:
    """Return every curve of a run, the curves of the largest panel first.

    Each strategy has one bucket cap: the default, or the smallest that was run.
    """
    able = [run for run in cases if run.status == "ok" and run.timings]
    by_id = {run.case_id: run for run in able}
    found: list[CaseCurve] = []
    seen: set[tuple[str, ...]] = set()  # a curve that uses no link is in the group of every fabric
    for number, members in enumerate(sorted(panels(able), key=lambda members: -len(members))):
        own = [run for run in members if traits_of(run.case).role != "base"]
        variants: dict[tuple[str, str], int] = {}
        for key, group in grouped(own, lambda run: grouping.variant(run.case)).items():
            strategy = group[0].case.strategy
            kind = (strategy, group[0].case.algorithm)
            variant = variants[kind] = variants.get(kind, -1) + 1
            cap = min((run.case.bucket_cap_mb for run in group), key=cap_order)
            caps = {run.case.bucket_cap_mb for run in group}
            at_cap = [run for run in group if run.case.bucket_cap_mb == cap]
            others = [
                run for run in own if run.case.strategy == strategy and grouping.variant(run.case) != key
            ]
            for runs, nodes in _ladders(at_cap):
                ids = tuple(run.case_id for run in runs)
                if ids in seen:
                    continue
                seen.add(ids)
                alike = [run for run in others if run.case.nodes == runs[0].case.nodes] or others
                other = alike[0] if alike else None
                alongside = [run for run in own if run.case.strategy != strategy]
                more = [f"with {FACETS['bucket_cap_mb'].word(runs[-1].case)}"] if len(caps) > 1 else []
                more += [nodes] if nodes else []
                found.append(
                    CaseCurve(
                        name=" ".join([name_of(runs[-1], other, [*others, *alongside]), *more]),
                        key=" ".join([key_of(runs[-1], other, alongside), *more]),
                        shared=_shared(runs[-1].case),
                        panel=number,
                        variant=variant,
                        base=by_id.get(runs[0].baseline_id),
                        runs=tuple(run for run in runs if not run.oversubscribed),
                        crowded=tuple(run for run in runs if run.oversubscribed),
                    )
                )
    return _with_apart(found)


def _with_apart(curves: Sequence[CaseCurve]) -> list[CaseCurve]:
    groups = {(curve.shared, curve.panel) for curve in curves}
    if len({shared for shared, _ in groups}) == len(groups):
        return list(curves)
    names = Namer(curve.first.case for curve in curves)
    return [
        replace(curve, shared=tuple(dict.fromkeys([*curve.shared, *_apart(names, curve.first.case)])))
        for curve in curves
    ]


def _apart(names: Namer, case: Case) -> list[str]:
    words = names.apart(case, [name for name in PANEL if name not in _IN_SHARED])
    return [word for word in words if word != names.workload(case)]


def _ladders(runs: Sequence[CaseRun]) -> Iterable[tuple[list[CaseRun], str]]:
    """Yield groups in which no world size occurs twice, each with a phrase on nodes if their shapes differ."""
    ordered = sorted(runs, key=lambda run: run.case.world_size)
    one = [run for run in ordered if run.case.nodes == 1]
    several = grouped([run for run in ordered if run.case.nodes > 1], lambda run: (run.case.ranks_per_node,))
    alone = not several or any(run.case.world_size > max(several)[0] for run in one)
    if alone:
        yield one, on_nodes(one[0].case) if one and several else ""
    for (per_node,), beyond in several.items():
        words = on_nodes_of(beyond[0].case) if len(several) + alone > 1 else ""
        yield [run for run in one if run.case.world_size <= per_node] + beyond, words


_IN_SHARED = ("scaling", "local_batch", "global_batch", "fabric")
"""Fields, besides the workload, for which `_shared` always has words."""


def _shared(case: Case) -> tuple[str, ...]:
    scaling = f"{FACETS['scaling'].word(case)} with a {batch_words(case)}"
    return (workload_of(case), scaling, *grouping.qualifiers(case))


WORTH_SHARING = 20
"""Smallest number of curves that are fitted in a second process."""


class LawsOf:
    """The laws of each curve that has its base case and a larger world size with separate cores for each rank.

    A second process, if there is one, fits many curves while the caller continues. `found` waits for the result.
    """

    def __init__(
        self, cases: Sequence[CaseRun], machine: Mapping[str, object], helper: Helper | None = None
    ) -> None:
        """Start fitting.

        Args:
            cases: a run's cases.
            machine: its `machine.json`, which has the number of devices.
            helper: the second process; it gets no other request until `found`.
        """
        pairs = [(curve, curve.base) for curve in curves_of(cases)]
        fitted = [
            (curve, base)
            for curve, base in pairs
            if base is not None
            and any(run.case.world_size > 1 for run in curve.runs)
            and traits_of(curve.first.case).engine == traits_of(base.case).engine
        ]
        self._curves = [curve for curve, _ in fitted]
        self._asked = [
            ToFit(
                curve=_numbers(curve, base),
                devices=_devices(curve, machine),
                batch=curve.first.case.global_batch if curve.first.case.scaling == "strong" else None,
            )
            for curve, base in fitted
        ]
        self._helper = helper if len(fitted) >= WORTH_SHARING else None
        if self._helper is not None:
            self._helper.ask(fit_all, self._asked)

    def found(self) -> tuple[CurveLaws, ...]:
        """Return the laws of the curves. Curves that the second process cannot fit are fitted in this process."""
        answer: list[Laws] | None = None if self._helper is None else self._helper.answer()
        return tuple(
            CurveLaws(
                name=curve.name,
                key=curve.key,
                shared=curve.shared,
                panel=curve.panel,
                variant=curve.variant,
                case=curve.first.case,
                case_ids={run.case.world_size: run.case_id for run in curve.runs},
                laws=laws,
            )
            for curve, laws in zip(
                self._curves, fit_all(self._asked) if answer is None else answer, strict=True
            )
        )


def judged_laws(laws: Sequence[CurveLaws], cases: Sequence[CaseRun]) -> tuple[CurveLaws, ...]:
    """Return the laws. If a claim compares a point's case with its base case, the point gets the claim's speed-up."""
    by_id = {run.case_id: run for run in cases}

    def judged(curve: CurveLaws) -> CurveLaws:
        points = []
        for point in curve.laws.points:
            run = by_id[curve.case_ids[point.world_size]]
            base = by_id.get(run.baseline_id)
            if base is not None and base.case_id in run.claimed and (found := speedup_over(run, base)):
                point = replace(point, speedup=found[0])
            points.append(point)
        return replace(curve, laws=replace(curve.laws, points=tuple(points)))

    return tuple(judged(curve) if curve.laws.points else curve for curve in laws)


def _numbers(curve: CaseCurve, base: CaseRun) -> SpeedupCurve:
    return SpeedupCurve(
        scaling=curve.first.case.scaling,
        base=tuple(base.timings),
        sizes={run.case.world_size: tuple(run.timings) for run in curve.runs if run.case.world_size > 1},
    )


def _devices(curve: CaseCurve, machine: Mapping[str, object]) -> int | None:
    """Return how many ranks get a separate device here; None for several nodes and for replays."""
    identity = machine.get("identity")
    case = curve.first.case
    found = identity.get("gpus" if case.device == "cuda" else "cores") if isinstance(identity, dict) else None
    several = any(run.case.nodes > 1 for run in curve.runs)
    if not isinstance(found, list) or several or case.compute != "real":  # a replay needs no cores
        return None
    return len(found) if case.device == "cuda" else len(found) // case.threads_per_rank


def law_findings(laws: Sequence[CurveLaws], cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return a finding on the scaling law that a curve follows, and on its knee.

    The curve is the first one with fitted laws whose strategy aggregates gradients. Empty if the run lacks such a
    curve.
    """
    for curve in laws:
        if not traits_of(curve.case).exchanges or not curve.laws.fits:
            continue
        sizes = [1, *(point.world_size for point in curve.laws.points)]
        fits = sorted(
            curve.laws.fits, key=lambda fit: _TELLING.index("beyond error" if fit.rejected else fit.goodness)
        )
        fit = fits[0]
        workload, *setting = curve.shared
        missed = [other for other in fits[1:] if fit.rejected and other.judged == fit.judged]
        text = (
            f": {LAW_NAMES[fit.law]}"
            f"{f' with {parameter_words(fit)}' if not fit.rejected else ''} {fit.judged}"
        )
        runs = [run for run in cases if run.case_id in curve.case_ids.values()]
        finding = Finding(
            kind="law",
            text=sentence(f"{curve.name} from 1 to {sizes[-1]} ranks", [workload], text),
            tags=(
                fit.detail,
                *(f"nor does {LAW_NAMES[other.law]}" for other in missed),
                *((curve.laws.knee_words.clause,) if curve.laws.knee_words else ()),
                *setting,
                *(words for words in conditions(runs) if words not in setting),
            ),
            evidence="laws",
            verdict="note",
            cases=tuple(curve.case_ids.values()),
        )
        return (finding,)
    return ()


_TELLING = ("within error", "beyond error", "undetermined")
_WORDS = {"s": "a serial fraction of", "alpha": "a contention of", "beta": "a coherency cost of"}


def parameter_words(fit: Fit) -> str:
    """Describe a fit's parameters without gamma: `a serial fraction of 0.052 [0.048, 0.056]`."""
    words = [f"{_WORDS[name]} {plain(value)}" for name, value in fit.parameters.items() if name in _WORDS]
    return " and ".join(words)
