"""Types for checks: a case to be checked, a number with its bounds, a rule, and a violation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ddpbench.analysis.sentences import headline
from ddpbench.units import counted, format_bit_rate, format_seconds

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun
    from ddpbench.analysis.table.result import CaseResult

ViolationUnit = Literal["s", "bytes", "bytes/s", ""]
ROUNDING = 1e-6
"""Relative tolerance for sums of floats and times rounded to nanoseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedCase:
    """A case with timed launches, in the form that checks need.

    `bound` is the corresponding case of independent ranks. `reached` is the largest ratio of a link's measured rate to
    the requested one, at least 1.
    """

    result: CaseResult
    bound: CaseRun | None = None
    reached: float = 1.0

    @property
    def run(self) -> CaseRun:
        """Return the case with its launches."""
        return self.result.run


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounded:
    """A number, and the least and the largest value that it may have. All three have the same `unit`."""

    what: str
    """Name of the number, such as `the sum of its parts`."""
    seen: float
    least: float | None = None
    most: float | None = None
    unit: ViolationUnit = ""
    round: int | None = None
    said: str = ""
    """Sentence that replaces `text` if numbers alone would not explain the violation."""

    @property
    def holds(self) -> bool:
        """Return whether the number is within its bounds; False for NaN."""
        return (self.least is None or self.seen >= self.least) and (
            self.most is None or self.seen <= self.most
        )

    @property
    def excess(self) -> float:
        """Return the distance from the broken bound, as a fraction of it: 0 within bounds, infinite for a bound 0."""
        if self.holds:
            return 0.0
        low = self.least is not None and not self.seen >= self.least
        bound = self.least if low else self.most
        assert bound is not None
        return abs(self.seen - bound) / abs(bound) if bound and self.seen == self.seen else float("inf")

    @property
    def text(self) -> str:
        """Describe a number outside its bounds: `the sum of its parts is 1.2 s; at most 1 s is allowed`."""
        if self.said:
            return self.said
        ends = []
        if self.least is not None and not self.seen >= self.least:
            ends.append(f"at least {in_unit(self.least, self.unit, self.seen)}")
        elif self.most is not None:
            ends.append(f"at most {in_unit(self.most, self.unit, self.seen)}")
        return f"{self.what} is {in_unit(self.seen, self.unit)}; {' '.join(ends)} is allowed"


def in_unit(value: float, unit: ViolationUnit, other: float | None = None) -> str:
    """Return a number with its unit as text, with more digits if it would otherwise look equal to `other`."""
    sign = "\N{MINUS SIGN}" if value < 0 else ""
    size = abs(value)
    if unit == "bytes/s":
        return sign + format_bit_rate(float(f"{8 * size:.4g}"))
    if unit == "s":
        text = format_seconds(size)
        if other is None or text != format_seconds(abs(other)):
            return sign + text
        return f"{sign}{size:.9g} s"
    if unit == "bytes":
        return f"{sign}{size:,.0f} bytes"
    return f"{sign}{size:.4g}"


IMPOSSIBLE = "cannot be right"
"""Status, in figures and tables, of a case whose throughput must be wrong. It is shown like a failed case."""
ViolationKind = Literal["impossible", "doubtful"]
"""Severity of a violation.

`impossible` means that no job can have such a number, so a record or the analysis is wrong. `doubtful` means that the
number may be true, but that readers must know of the violation before they use the number.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Invariant:
    """A rule that every case's numbers must obey."""

    name: str
    statement: str
    """The rule as a sentence without an initial capital and a full stop."""
    meaning: str
    """Sentences that tell the reader what a violation means."""
    kind: ViolationKind
    check: Callable[[CheckedCase], Iterable[Bounded]]
    """Function that returns the numbers to check, with their bounds. Empty if the rule does not apply to the case."""
    unseen: Callable[[CheckedCase], float | None] | None = None
    """Function that returns the largest deviation, as a fraction, that a case's data do not rule out.

    Only rules that are decided by statistics have one.
    """
    by_construction: bool = False
    """True if only an error of the analysis can break the rule. Such a rule is checked, but not counted."""
    withholds: Callable[[CheckedCase, Bounded], bool] = lambda case, number: False
    """Function that returns whether a number outside its bounds forbids any conclusion from the case's throughput."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A case that broke a rule, with the number that is furthest outside its bounds."""

    invariant: str
    statement: str
    meaning: str
    kind: ViolationKind
    case_id: str
    label: str
    broken: Bounded
    count: int = 1
    """Number of the case's numbers outside their bounds."""
    withholds: bool = False
    """True if nothing may be concluded from the case's throughput."""

    @property
    def why_withheld(self) -> str:
        """Say why nothing is concluded from the case, for use in a sentence."""
        return f"{self.wrong}: {self.broken.text}"

    @property
    def wrong(self) -> str:
        """Return a sentence that the case's numbers are wrong, leaving out the number that proves it."""
        return f"the numbers of {self.label} {IMPOSSIBLE}"

    def to_json(self) -> dict[str, Any]:
        """Return the violation as plain values, for `--json` and for the data embedded in an HTML report."""
        return {
            "invariant": self.invariant,
            "statement": headline(self.statement),
            "kind": self.kind,
            "case_id": self.case_id,
            "round": self.broken.round,
            "what": self.broken.what,
            "seen": self.broken.seen,
            "least": self.broken.least,
            "most": self.broken.most,
            "unit": self.broken.unit,
            "count": self.count,
            "text": f"{headline(self.statement)}: not so in {self.label}, where {self.broken.text}. {self.meaning}",
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """An invariant with the results of applying it to a run, such as how many cases and numbers were checked."""

    name: str
    statement: str
    cases: int
    numbers: int
    broken: int
    """Number of cases that break the rule."""
    counted: bool = True
    """False if the rule holds by construction and no case breaks it."""
    unseen: float = 0.0
    """Largest deviation that may have gone unnoticed, as a fraction; 0 for rules that are not decided by statistics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Results of a run's checks."""

    cases: int = 0
    rules: tuple[Rule, ...] = ()
    """All rules in order; a rule that applies to no case has 0 cases."""
    violations: tuple[Violation, ...] = field(default=())

    @property
    def applied(self) -> tuple[Rule, ...]:
        """Return the counted rules (`Rule.counted`) that apply to at least one case."""
        return tuple(rule for rule in self.rules if rule.cases and rule.counted)

    @property
    def impossible(self) -> tuple[Violation, ...]:
        """Return the violations whose numbers no job can have, which show that a record or the analysis is wrong."""
        return tuple(one for one in self.violations if one.kind == "impossible")

    @property
    def withheld(self) -> dict[str, Violation]:
        """Return the worst violation of each case whose throughput must not be used for conclusions, by case id."""
        found: dict[str, Violation] = {}
        for one in sorted(self.violations, key=lambda one: -one.broken.excess):
            if one.withholds:
                found.setdefault(one.case_id, one)
        return found

    def of(self, invariant: str) -> tuple[Violation, ...]:
        """Return the violations of the rule with this name."""
        return tuple(one for one in self.violations if one.invariant == invariant)

    @property
    def outcome(self) -> str:
        """Return a summary, or an empty text if nothing was measured.

        For example: `Checked: 13 invariants over 7 cases, none shown to be broken.`
        """
        if not self.cases:
            return ""
        applied, broken = self.applied, sum(rule.broken > 0 for rule in self.rules)
        cases = f"{self.cases:,} case{'s' if self.cases != 1 else ''}"
        rules = f"{len(applied)} invariant{'s' if len(applied) != 1 else ''}"
        if not broken:
            return f"Checked: {rules} over {cases}, none shown to be broken."
        return f"Checked: {rules} over {cases}; {broken} {'does' if broken == 1 else 'do'} not hold."

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return a text on each broken rule, with the worst case, its number, the meaning and further cases."""
        texts = []
        for rule in self.rules:
            found = sorted(self.of(rule.name), key=lambda one: -one.broken.excess)
            if not found:
                continue
            worst = found[0]
            where = worst.label
            if worst.broken.round is not None:
                where += f" (round {worst.broken.round + 1})"
            others = [one.label for one in found[1:4]]
            more = f" and {len(found) - 4} more" if len(found) > 4 else ""
            also = f" The same in {', '.join(others)}{more}." if others else ""
            start = "Impossible" if worst.kind == "impossible" else "Doubtful"
            rule_words = headline(rule.statement)
            texts.append(
                f"{start}: \N{LEFT DOUBLE QUOTATION MARK}{rule_words}\N{RIGHT DOUBLE QUOTATION MARK} does "
                f"not hold in {counted(len(found), 'case')}. In {where} {worst.broken.text}. {worst.meaning}{also}"
            )
        return tuple(texts)

    @property
    def banner(self) -> str:
        """Return the warning about impossible values for the top of a report; empty if nothing impossible was found."""
        broken = dict.fromkeys(one.statement for one in self.impossible)
        if not broken:
            return ""
        cases = list(dict.fromkeys(one.label for one in self.impossible))
        more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
        rules = "; ".join(list(broken)[:3])
        others = f"; and {len(broken) - 3} more rules" if len(broken) > 3 else ""
        return f"Something impossible was measured: it is not so that {rules}{others} ({', '.join(cases[:3])}{more})."

    @property
    def line(self) -> str:
        """Return one line about broken rules for the terminal; empty if all rules hold."""
        broken = [rule for rule in self.rules if rule.broken]
        if not broken:
            return ""
        many = (
            f"{len(broken)} of {len(self.applied)} invariants {'does' if len(broken) == 1 else 'do'} not hold"
        )
        words = "; ".join(
            f"{rule.statement} (not in {rule.broken} case{'s' if rule.broken != 1 else ''})"
            for rule in broken[:2]
        )
        return f"checks: {many}: {words}{'; ...' if len(broken) > 2 else ''}; see Validity in the report"
