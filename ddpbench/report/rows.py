"""The table of cases as typed rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from ddpbench.analysis.case_summary import CaseSummary
from ddpbench.analysis.invariants.checked import IMPOSSIBLE
from ddpbench.analysis.results import LaunchResult
from ddpbench.analysis.summary import RunSummary
from ddpbench.naming import Namer, layout_of, on_nodes, on_nodes_of
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import SCALE, VARIANT, GroupKey, cap_words, is_virtual, virtual_words
from ddpbench.strategies.traits import traits_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Row(CaseSummary):
    """A case's results, and its names and words for figures and tables. Fields that were not measured are None."""

    case: Case
    numbers: str = ""
    """The type of the parameters, and the autocast type."""
    names: Namer = field(default=Namer(()), repr=False, compare=False)
    """Names of all cases of the page; empty in processes that only draw."""
    strategy_name: str = ""
    """The strategy as figures name it."""
    name: str = ""
    """Strategy and ranks, and what distinguishes the case from others of the same strategy."""
    workload_name: str = ""
    """The workload's name. A user's workload has the name of its class, unless another workload has that name."""
    layout: str = ""
    """`2 x 2` (nodes x ranks) or `on 2 nodes`, if the strategy ran the same number of ranks in several layouts.
    Otherwise empty.
    """

    @property
    def ok(self) -> bool:
        """Return whether the case's numbers may be shown."""
        return self.status == "ok"

    @property
    def emulated(self) -> bool:
        """Return whether links were emulated, or computation was replayed, dilated or shrunk.

        Figures show such cases with hollow markers.
        """
        return is_virtual(self.case)

    @property
    def needs_no_link(self) -> bool:
        """Return whether the case has no emulated links and needs none.

        It has one rank, or its ranks exchange nothing.
        """
        return not self.case.fabric and (self.case.world_size == 1 or not traits_of(self.case).exchanges)

    @property
    def same_buckets(self) -> str:
        """Return the other caps that make the same buckets as this case's, for example `1 MiB, 2 MiB`."""
        return ", ".join(f"{cap} MiB" for cap in self.same_caps)

    @property
    def bucket_name(self) -> str:
        """Return the bucket cap in words; empty for a strategy without buckets."""
        return cap_words(self.case.bucket_cap_mb)

    @property
    def badges(self) -> str:
        """Return the remarks on emulation and on flaws that must accompany the case's numbers."""
        return "; ".join(word for word in (*virtual_words(self.case), self.flaws) if word)

    @property
    def flaws(self) -> str:
        """Return the remarks on flaws that must accompany the case's numbers, separated by semicolons."""
        return "; ".join(self.flaw_words)

    @property
    def flaw_words(self) -> tuple[str, ...]:
        """Return the remarks on flaws that must accompany the case's numbers, for example "oversubscribed"."""
        words = [] if self.ok else [self.status]
        if self.ok and self.unproved:
            words.append("unproved")
        if traits_of(self.case).engine != "torch":
            words.append("other kernels, no speed-up over torch")
        if not traits_of(self.case).exact:
            known = traits_of(self.case).promise is not None
            words.append("another path of training" if known else "strategy not known here")
        if self.ok and self.samples_per_s is not None and not self.samples_per_s.has_ends:
            words.append("too few rounds for an interval")
        if self.oversubscribed:
            words.append("oversubscribed")
        if self.noise_flag:
            words.append(self.noise_flag)
        if self.ok and self.ci_reached is False:
            words.append("target width not reached")
        return tuple(words)

    @property
    def panel(self) -> GroupKey:
        """Return a grouping key. Cases with the same key may be compared in one plot."""
        return grouping.panel(self.case)

    @property
    def variant(self) -> GroupKey:
        """Return a grouping key that distinguishes the series of one panel. The key ignores the bucket cap."""
        return (*grouping.variant(self.case), self.layout)


def rows_of(summary: RunSummary) -> list[Row]:
    """Return the cases of a run as typed rows, in the summary's order.

    A case with a wrong throughput has the status `IMPOSSIBLE`. The `_OVER_BASE` fields are None if case and base case
    use different frameworks.
    """
    withheld = summary.conclusions.checks.withheld
    cases = [summary.planned[one.case_id] for one in summary.by_case]
    names = Namer(cases)
    machine = summary.about.machine
    return _with_layouts(
        [
            _row(
                replace(one, status=IMPOSSIBLE) if one.status == "ok" and one.case_id in withheld else one,
                case,
                names,
                machine,
            )
            for one, case in zip(summary.by_case, cases, strict=True)
        ]
    )


def _row(summary: CaseSummary, case: Case, names: Namer, machine: Mapping[str, object]) -> Row:
    found = {one.name: getattr(summary, one.name) for one in fields(summary)}
    if traits_of(case).engine != "torch":
        found |= dict.fromkeys(_OVER_BASE)
    return Row(
        **found,
        case=case,
        numbers=grouping.number_words(case, machine),
        names=names,
        strategy_name=names.strategy(case),
        name=names.short(case, (*VARIANT, *SCALE)),
        workload_name=names.workload(case),
    )


_OVER_BASE = ("speedup", "efficiency", "speedup_to_loss")
"""Fields that are ratios of a case's results to the results of its base case."""


def _with_layouts(rows: Sequence[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.panel, row.variant), []).append(row)
    layouts: dict[str, str] = {}
    for members in groups.values():
        shapes = {(row.case.world_size, row.case.nodes) for row in members}
        sizes = {size for size, _ in shapes}
        if len(shapes) > len(sizes):
            # series of equal nodes, or of equal ranks per node, depending on which are fewer and so longer
            by_nodes = len({row.case.nodes for row in members}) <= len(
                {row.case.ranks_per_node for row in members}
            )
            for row in members:
                several = on_nodes(row.case) if by_nodes else on_nodes_of(row.case)
                layouts[row.case_id] = layout_of(row.case) if len(sizes) == 1 else several
    return [replace(row, layout=layouts.get(row.case_id, "")) for row in rows]


def raw_launches(
    launches: Iterable[LaunchResult], of: Literal["step_time_s", "samples_per_s"] = "step_time_s"
) -> dict[str, list[float]]:
    """Return, by case id, the step times (s) or the samples/s of the successful launches, in the order of rounds."""
    values: dict[str, list[float]] = {}
    for one in sorted(launches, key=lambda one: (one.case_id, one.round)):
        value = one.step_time_s if of == "step_time_s" else one.samples_per_s
        if one.status == "ok" and value is not None:
            values.setdefault(one.case_id, []).append(value)
    return values
