"""Measured figures in prose: which are claimed, what the claims' data are, and which figures no claim covers.

`reports/claims.toml` has every sentence of the README with measured figures, as a template, and the runs whose printed
table it shows. Filled in with the data of the runs that they name, they must be in the README, word for word.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpbench.analysis.table.frame import read_csv
from ddpbench.cli.lines import WIDEST
from ddpbench.cli.results import table
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec.claims import JudgedAgain, PlannedClaim
from ddpbench.spec.shipped import with_known_history
from tests.kept import KEPT, REPORTS, ROOT, summary_of

_UNIT = r"(?:%|ns|µs|ms|s|min|minutes?|hours?|seconds?|samples/s|times|[kMGT]i?B)"
FIGURE = re.compile(rf"(?<![\w.])(?:\d[\d,]*\.\d+(?:\s?{_UNIT}(?!\w))?|\d[\d,]*\s?{_UNIT}(?!\w))")
"""A number with decimals, or with a unit that is measured. Rates of links are settings, so their unit is not one."""
_NO_PROSE = re.compile(r"```.*?```|`[^`\n]*`|(?<=\])\([^)\s]*\)", re.DOTALL)
_FIELD = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A sentence, or a part of one: `{name:format}` stands for each figure."""

    run: str
    says: str
    figures: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """Figures that a command prints; reports/README.md has them all, `texts` repeat some next to the command."""

    command: str
    about: str
    """The setting, and what is counted."""
    prints: Mapping[str, str]
    """Figures by what they count, as the command names it."""
    texts: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTable:
    """A table whose figures were measured by commands, without records: `command` and a row's last cell make each."""

    head: str
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """The content of `claims.toml`."""

    claims: Sequence[Claim] = ()
    printed: Sequence[str] = ()
    """Runs whose printed table is shown."""
    stated: Sequence[str] = field(default=())
    """Texts whose figures are not measured: definitions, bounds, settings, versions."""
    simulated: Sequence[Simulated] = ()
    measured: Sequence[MeasuredTable] = ()

    @property
    def runs(self) -> set[str]:
        """Return the names of the runs."""
        return {one.run for one in self.claims} | set(self.printed)


def read_claims(path: Path = REPORTS / "claims.toml") -> Claims:
    """Read the claims from the file."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return Claims(
        claims=[
            Claim(run=one.pop("run"), says=one.pop("says"), figures=one.pop("figures"), **one)
            for one in data.get("claims", [])
        ],
        printed=data.get("printed", []),
        stated=data.get("stated", {}).get("texts", []),
        simulated=[Simulated(**one) for one in data.get("simulated", [])],
        measured=[MeasuredTable(**one) for one in data.get("measured", [])],
    )


def filled_in(claim: Claim, cases: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """Return the claim's text with the figures from the data.

    A figure is `column` of the one case that `where` selects, or of each of several cases with the same value; divided
    by that of `over`'s case, if given, and multiplied by `scale`. `table` takes it from another table of the report's
    data than `cases`. Or it is what `finding`, a pattern with one group, matches in the report's findings.
    """
    assert not FIGURE.search(_FIELD.sub("#", claim.says)), f"a figure that comes from no data: {claim.says!r}"
    values = {name: list(_values(figure, cases, summary)) for name, figure in claim.figures.items()}
    texts = set()
    for index in range(max(map(len, values.values()))):
        row = {name: found[index] if len(found) > 1 else found[0] for name, found in values.items()}
        texts.add(claim.says.format(**row))
    assert len(texts) == 1, f"cases differ: {sorted(texts)}"
    return texts.pop()


def _values(
    figure: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> Iterator[float]:
    known = {"column", "where", "over", "scale", "table", "finding"}
    assert set(figure) <= known, f"unknown key: {set(figure) - known}"
    scale = figure.get("scale", 1)
    if "finding" in figure:
        found = [hit for one in summary["findings"] if (hit := re.search(figure["finding"], one["text"]))]
        assert len(found) == 1, f"{len(found)} findings have {figure['finding']!r}"
        yield float(found[0][1]) * scale
        return
    rows = {str(row["case_id"]): row for row in _table(figure.get("table", "cases"), cases, summary)}
    ids = _selected(figure["where"], cases)
    base = 1.0
    if "over" in figure:
        (base_id,) = _selected(figure["over"], cases)
        base = float(rows[base_id][figure["column"]])
    for case_id in ids:
        yield float(rows[case_id][figure["column"]]) / base * scale


def _table(
    name: str, cases: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    if name == "cases":
        return cases
    return [dict(zip(summary[name]["columns"], row, strict=True)) for row in summary[name]["data"]]


def _selected(where: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [
        str(case["case_id"])
        for case in cases
        if all(str(case[name]) == str(value) for name, value in where.items())
    ]
    assert found, f"no case has {dict(where)}"
    return found


def cases_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of a kept run's table, with empty texts for empty cells."""
    frame = read_csv(REPORTS / name / "cases.csv")
    return [
        {key: "" if value is None or value != value or str(value) == "<NA>" else value for key, value in row}
        for row in (record.items() for record in frame.to_dict("records"))
    ]


def printed(name: str) -> str:
    """Return the table that a sweep prints, for a kept run."""
    planned = {entry.case.case_id: entry.case for entry in read_plan(RunDir(REPORTS / name)).cases}
    return "\n".join(table(read_csv(REPORTS / name / "cases.csv"), planned, WIDEST))


def spans_of(text: str, prose: str) -> list[tuple[int, int]]:
    """Return the places of a text, with any line breaks."""
    pattern = r"\s+".join(map(re.escape, text.split()))
    return [(found.start(), found.end()) for found in re.finditer(pattern, prose)]


def table_spans(head: str, prose: str) -> list[tuple[int, int]]:
    """Return the places of tables with this head, with all their rows."""
    pattern = re.escape(head) + r"\n(?:\|.*(?:\n|$))+"
    return [(found.start(), found.end()) for found in re.finditer(pattern, prose)]


def unclaimed(prose: str, covered: Sequence[tuple[int, int]]) -> list[str]:
    """Return the figures outside code and outside what is covered, each with its line."""
    blank = _NO_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), prose)
    return [
        f"line {prose[: hit.start()].count(chr(10)) + 1}: {hit[0]!r}"
        for hit in FIGURE.finditer(blank)
        if not any(start <= hit.start() and hit.end() <= end for start, end in covered)
    ]


def verdicts_of(name: str) -> list[str]:
    """Return the rows of a kept run's claims in the page of claims: verdicts with their numbers, and earlier
    verdicts."""
    summary = summary_of(name)
    run_id = read_plan(RunDir(REPORTS / name)).run_id
    rows = []
    for one in summary.get("claims", ()):
        (text,) = (found["text"] for found in summary["findings"] if f": {one['says']}" in found["text"])
        detail = text.partition(f": {one['says']}")[2].removeprefix("; ").removesuffix(".")
        verdict = f"{one['verdict']}{': ' if detail else ''}{detail}"
        past = _earlier_verdicts(one, run_id)
        rows.append(f"| [{name}](reports/{name}/report.html) | {one['says']} | {verdict} | {past} |")
    return rows


def _earlier_verdicts(claim: Mapping[str, Any], run_id: str) -> str:
    """Return the earlier verdicts, oldest first, each with its commit, and with its wording if that was different.

    Args:
        claim: as in the summary of a page.
        run_id: the page's run.
    """
    parts, wording = [], claim["says"]
    for entry in claim["history"]:
        quoted = f"*{entry['says']}* " if entry["says"] != wording else ""
        changed = entry["says"] == claim["says"] and entry["number"] != claim["number"]
        note = (
            " (other settings)"
            if changed
            else " (this run, by earlier rules)"
            if entry["run"] == run_id
            else ""
        )
        parts.append(f"`{entry['commit']}`: {quoted}{entry['verdict']}{note}")
        wording = entry["says"]
    return "; ".join(parts)


def _known_claims(name: str) -> tuple[PlannedClaim, ...]:
    """Return a kept run's claims with their numbers and earlier verdicts."""
    plan = read_plan(RunDir(REPORTS / name))
    return with_known_history(plan.claims, plan.experiment, plan.run_id)


def superseded() -> list[str]:
    """Return a row for each run that is in git but not in this tree: its place, and its claims' numbers."""
    rows: dict[tuple[str, str, str, str], set[int]] = {}
    for name in KEPT:
        for claim in _known_claims(name):
            for entry in claim.history:
                if entry.run and not isinstance(entry, JudgedAgain):
                    rows.setdefault((name, entry.date, entry.run, entry.commit), set()).add(entry.number)
    return [
        f"| `{name}` | {series(numbers)} | {date} | `git show {commit}:reports/{name}/report.html` |"
        for (name, date, _, commit), numbers in rows.items()
    ]


def not_measured() -> str:
    """Return the numbers of the experiments' claims that no kept run has decided."""
    parts = []
    for path in sorted((ROOT / "experiments").glob("*.toml")):
        stated = tomllib.loads(path.read_text(encoding="utf-8")).get("claims", [])
        known = {claim.number for claim in _known_claims(path.stem)} if path.stem in KEPT else set()
        if left := {claim["number"] for claim in stated} - known:
            parts.append(f"{series(left)} of `{path.stem}`")
    return f"Not measured yet: claims {', '.join(parts)}." if parts else "All are measured."


def series(numbers: Iterable[int]) -> str:
    """Return numbers as `1, 3 to 5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{one[0]} to {one[-1]}" if len(one) > 2 else ", ".join(map(str, one)) for one in parts)


def main() -> None:
    """Print the data's text for the README and the page of claims, to paste after a run was measured again."""
    found = read_claims()
    for claim in found.claims:
        print(filled_in(claim, cases_of(claim.run), summary_of(claim.run)), end="\n\n")
    for run in found.printed:
        print(printed(run), end="\n\n")
    for row in (row for name in KEPT for row in verdicts_of(name)):
        print(row.replace("](reports/", "](../reports/"))
    print("", *superseded(), "", not_measured(), sep="\n")


if __name__ == "__main__":
    main()
