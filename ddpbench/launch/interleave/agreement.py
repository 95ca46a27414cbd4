"""Match the cases of both sides before anything starts, and refuse sides whose cases cannot be matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpbench.errors import RequestError, SideError
from ddpbench.launch.interleave.sides import Placed, SideSpec, is_same_program
from ddpbench.naming import Namer
from ddpbench.records.plan import checked_case, planned_json
from ddpbench.spec import Case, PlannedCase
from ddpbench.spec.matching import Matching, fields_apart, keys_apart, match
from ddpbench.units import series_of

AGREES = "DDPBENCH_AGREES"
"""The environment variable of a side's process that is to describe its plan, and to wait for the order of its cases."""
BEGIN = "begin "
"""Beginning of the line that lets a side start, before the order of its cases as JSON; null for its own order."""
_MOST = 8
"""Most cases to name in an error message; further ones are only counted."""
_BUDGET_OF_BOTH = ("seed", "rounds_min", "rounds_max", "total")


@dataclass(frozen=True, kw_only=True, slots=True)
class SidePlan:
    """The plan of one side: its cases in order, each with the reason if it will not run, and the budget's settings."""

    cases: tuple[Case, ...]
    skipped: tuple[str | None, ...]
    budget: Mapping[str, Any]


def plan_message(cases: Sequence[PlannedCase], budget: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the message in which a side's process describes its plan."""
    own = {name: value for name, value in budget.items() if name not in _BUDGET_OF_BOTH}
    return {"cases": [planned_json(entry) for entry in cases], "budget": own}


def read_plan_message(message: Mapping[str, Any]) -> SidePlan | None:
    """Read a side's plan; None if it is of a version whose cases mean something else."""
    entries, budget = message.get("cases"), message.get("budget")
    if not isinstance(entries, list) or not isinstance(budget, dict):
        return None
    try:
        cases = tuple(checked_case(entry) for entry in entries)
    except (TypeError, ValueError, KeyError):
        return None
    skipped = tuple(entry.get("skip_reason") for entry in entries)
    return SidePlan(cases=cases, skipped=skipped, budget=budget)


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """The order in which each side takes its cases, so that both sides measure a pair of cases at the same time.

    `base` and `new` have indices into the sides' planned cases. `notes` are sentences on cases that only one side has.
    """

    base: list[int]
    new: list[int]
    notes: list[str]


def agree(sides: tuple[Placed, Placed], plans: tuple[SidePlan, SidePlan]) -> Agreement:
    """Match the cases of both sides, by all settings but those in which the sides are meant to differ.

    Raises:
        RequestError: the settings of a side leave it with a case that has no partner.
        SideError: the sides are the same, or they have different code and no case in common. The new side could be
            measured alone.
    """
    specs = (sides[0].spec, sides[1].spec)
    apart = fields_apart(specs[0].overrides, specs[1].overrides)
    found = match(plans[0].cases, plans[1].cases, apart)
    _check_apart(specs, plans, found)
    together = _Together(specs, plans, found, keys_apart(specs[0].overrides, specs[1].overrides))
    problems = [*together.unclear(), *together.alone(), *together.skipped()]
    measured = any(plans[0].skipped[a] is None and plans[1].skipped[b] is None for a, b in found.pairs)
    if problems and apart:
        raise RequestError(together.refusal(problems))
    if not measured:
        raise SideError("base", together.refusal(problems))
    lone = [
        [index for group in found.unclear for index in group[side]] + found.alone[side] for side in (0, 1)
    ]
    return Agreement(
        base=[*(a for a, _ in found.pairs), *sorted(lone[0])],
        new=[*(b for _, b in found.pairs), *sorted(lone[1])],
        notes=[f"not compared: {problem}" for problem in problems],
    )


def _check_apart(specs: tuple[SideSpec, SideSpec], plans: tuple[SidePlan, SidePlan], found: Matching) -> None:
    """Check that two sides of the same code have different cases or budgets.

    Raises:
        SideError: the sides are the same.
    """
    base, new = (replace(spec, overrides=()) for spec in specs)
    given = [text for spec in specs for text in spec.overrides]
    same = all(plans[0].cases[a].case_id == plans[1].cases[b].case_id for a, b in found.pairs)
    every = len(found.pairs) == len(plans[0].cases) == len(plans[1].cases)
    if given and same and every and plans[0].budget == plans[1].budget and is_same_program(base, new):
        settings = series_of([f"set={text}" for text in dict.fromkeys(given)])
        raise SideError(
            "base",
            f"both sides are the same: with {settings}, they have equal cases. Give one side another value",
        )


@dataclass(frozen=True, slots=True)
class _Together:
    """Both sides' cases, with sentences on those that cannot be compared."""

    specs: tuple[SideSpec, SideSpec]
    plans: tuple[SidePlan, SidePlan]
    found: Matching
    keys: Sequence[str]

    def _named(self, side: int, indices: Iterable[int]) -> str:
        names = Namer([*self.plans[0].cases, *self.plans[1].cases])
        return series_of([names.full(self.plans[side].cases[index]) for index in indices])

    def unclear(self) -> Iterator[str]:
        for mine, others in self.found.unclear:
            yield (
                f"{self._named(0, mine)} in base, and {self._named(1, others)} in new: which is compared with which "
                "is not known"
            )

    def alone(self) -> Iterator[str]:
        from ddpbench.analysis.regression.near import why_alone

        apart = fields_apart(self.specs[0].overrides, self.specs[1].overrides)
        for side, other in ((0, 1), (1, 0)):
            cases = self.plans[side].cases
            free = [self.plans[other].cases[index] for index in self.found.alone[other]]
            for index in self.found.alone[side]:
                if self.plans[side].skipped[index] is None:
                    why = why_alone(cases[index], free, self.specs[side].name, apart)
                    yield f"{self._named(side, [index])}: {why}"

    def skipped(self) -> Iterator[str]:
        for pair in self.found.pairs:
            reasons = [plan.skipped[index] for plan, index in zip(self.plans, pair, strict=True)]
            if sum(reason is not None for reason in reasons) == 1:
                side = next(side for side, reason in enumerate(reasons) if reason is not None)
                yield f"{self._named(side, [pair[side]])}: {self.specs[side].name} cannot run it: {reasons[side]}"

    def refusal(self, problems: Sequence[str]) -> str:
        """Return an error message with these problems, and what to do."""
        base, new = (spec.words for spec in self.specs)
        but = f", apart from {series_of(list(self.keys))}" if self.keys else ""
        lines = [f"  {problem}" for problem in problems[:_MOST]]
        if len(problems) > _MOST:
            lines.append(f"  and {len(problems) - _MOST} more")
        advice = "give an axis one value with --set, or leave cases out with [[exclude]]"
        return "\n".join(
            [f"{base} and {new} must have the same cases{but}. Nothing was started:", *lines, f"  {advice}"]
        )
