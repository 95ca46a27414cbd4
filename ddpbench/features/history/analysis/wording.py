"""Write a history as a sentence, a table, lines about changes, Markdown, and a JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddpbench.analysis.regression import Side, unlike
from ddpbench.analysis.regression.wording import ends
from ddpbench.analysis.statistics.estimands import GEOMETRIC_MEANS, MEDIAN
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.escaping import escape_markdown, markdown_row
from ddpbench.features.history.analysis.reading import started_utc
from ddpbench.features.history.analysis.series import ABSENT, CaseHistory, ChangePoint, History, SeriesPoint
from ddpbench.records.machine import DIGESTS
from ddpbench.spec.differences import SEED, settings_apart
from ddpbench.text_safety import command
from ddpbench.units import counted, decimals_borne, format_end, format_number, series_of, utc_of

HEADS = ("case", "runs", "latest, ms", "95 %, launches", "change-points")
_MOST_CASES = 4
"""Number of cases that are named per change, the largest changes first; the rest are counted."""
_MOST_GAPS = 3
"""Number of runs without numbers that are named per case; the rest are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePlace:
    """Two consecutive runs between which cases changed, with these changes and the runs' other differences."""

    before: Side
    after: Side
    changes: tuple[tuple[CaseHistory, ChangePoint], ...]
    differing: tuple[str, ...]


def ratio_words(ratio: Interval, joint: str = " ") -> str:
    """Return a ratio and its interval as text, such as `1.12 [1.08, 1.17]`; `joint` is the text between the two."""
    decimals = max(2, decimals_borne(ratio.value, ratio.low, ratio.high, nulls=(1.0,)))
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.{decimals}f}"
    low, high = (format_end(end, decimals, (1.0,)) for end in (ratio.low, ratio.high))
    return f"{ratio.value:.{decimals}f}{joint}[{low}, {high}]"


def change_words(change: ChangePoint, joint: str = " ") -> str:
    """Return a phrase for the direction and ratio of a change, such as `slower 1.12 [1.08, 1.17]`."""
    return f"{'slower' if change.slower else 'faster'} {ratio_words(change.ratio, joint)}"


def between_words(history: History, change: ChangePoint) -> str:
    """Return a phrase that names the runs around a change, such as `between run-a and run-b (2026-11-02)`."""
    before, after = history.sides[change.before], history.sides[change.after]
    return f"between {before.name} and {_dated(after)}"


def since_words(history: History, change: ChangePoint) -> str:
    """Return a phrase for a change and the first run after it: `slower 1.12 [1.08, 1.17] since run-b (2026-11-02)`."""
    return f"{change_words(change)} since {_dated(history.sides[change.after])}"


def _dated(side: Side) -> str:
    day = day_of(side)
    has_day = any(
        one in side.name for one in (day, day.replace("-", ""))
    )  # if the day is unknown, this is "", which every name contains
    return side.name if has_day else f"{side.name} ({day})"


def day_of(side: Side) -> str:
    """Return the day on which a run started, UTC; empty if unknown."""
    started = utc_of(started_utc(side))
    return "" if started is None else f"{started:%Y-%m-%d}"


def verdict_words(history: History, case: CaseHistory) -> str:
    """Describe each of a case's changes with the run after it; a single change also with the run before."""
    if not case.enough:
        return f"not enough runs to tell: {len(case.measured)} of {history.fewest} at least"
    if not case.changes:
        return "no change shown"
    if len(case.changes) == 1:
        return f"{change_words(case.changes[0])} {between_words(history, case.changes[0])}"
    return "; ".join(since_words(history, one) for one in case.changes)


def rows(history: History) -> list[tuple[str, ...]]:
    """Return a row of the table of changes for each case, with the columns `HEADS`."""
    return [
        (case.label, runs_words(case), *latest_words(case), verdict_words(history, case))
        for case in history.cases
    ]


def runs_words(case: CaseHistory) -> str:
    """Return a text for the number of runs in which a case was measured: `18`, or `16 of 18` if some lack it."""
    measured = len(case.measured)
    return f"{measured}" if not case.gaps else f"{measured} of {len(case.points)}"


def latest_words(case: CaseHistory) -> tuple[str, str]:
    """Return two texts: a case's step time (ms) in its latest run, and its interval over that run's launches."""
    if not case.measured or case.measured[-1].step is None:
        return "", ""
    step = case.measured[-1].step.scaled(1e3)
    if step.low is None or step.high is None:
        return format_number(step.value), ""
    return format_number(step.value), f"{format_number(step.low)} to {format_number(step.high)}"


def headline(history: History) -> str:
    """Return a sentence that states the result of a comparison of many runs."""
    cases, changed = history.cases, history.changed
    tested = [case for case in cases if case.enough]
    if not tested:
        most = max(len(case.measured) for case in cases)
        return (
            f"Not enough runs to tell whether a step time changed: {history.fewest} at least are needed, "
            f"and there {'is' if most == 1 else 'are'} {most}."
        )
    over = f"over {counted(len(history.sides), 'run')}{_days(history)}"
    if not changed:
        which = f"{counted(len(tested), 'case')}" if len(tested) > 1 else tested[0].label
        more = f"; {len(cases) - len(tested)} more have too few runs" if len(tested) < len(cases) else ""
        return f"No change is shown in {which} {over}{more}."
    first = changed[0]
    assert first.largest is not None
    text = f"{change_words(first.largest)} {between_words(history, first.largest)}"
    if len(cases) == 1:
        further = len(first.changes) - 1
        others = f", and {counted(further, 'more change')}" if further else ""
        return f"{first.label} changed {over}: {text}{others}."
    return f"{len(changed)} of {len(cases)} cases changed {over}; the largest change: {first.label}, {text}."


def _days(history: History) -> str:
    first, last = day_of(history.sides[0]), day_of(history.sides[-1])
    if not first or not last:
        return ""
    return f" on {first}" if first == last else f" from {first} to {last}"


def places(history: History) -> list[ChangePlace]:
    """Return each pair of runs between which cases changed, in the order of runs."""
    by_place: dict[tuple[int, int], list[tuple[CaseHistory, ChangePoint]]] = {}
    for case in history.cases:
        for change in case.changes:
            by_place.setdefault((change.before, change.after), []).append((case, change))
    return [
        ChangePlace(
            before=history.sides[before],
            after=history.sides[after],
            changes=tuple(changes),
            differing=tuple(_differing(history.sides[before], history.sides[after])),
        )
        for (before, after), changes in sorted(by_place.items())
    ]


def _differing(before: Side, after: Side) -> Iterator[str]:
    versions = [side.machine.get("context", {}).get("ddpbench_version") for side in (before, after)]
    for name, (old, new) in (("commit", (before.commit, after.commit)), ("ddpbench", versions)):
        if old != new and old and new:
            yield f"{name} {old} before, {new} after"
    for digest, words in DIGESTS.items():
        old, new = before.identity.get(digest), after.identity.get(digest)
        if old == new or not old or not new:
            continue
        if digest != "experiment_digest":
            yield f"{words} differs"
        elif apart := settings_apart(
            before.experiment, after.experiment, words=("before", "after"), ignored={SEED}
        ):
            yield f"{words} differs in {apart}"
    yield from unlike(before, after)


def place_words(place: ChangePlace) -> str:
    """Return sentences that say which cases changed between two runs, and how else the runs differ."""
    largest = sorted(place.changes, key=lambda each: each[1].size, reverse=True)
    named = [f"{case.label} ({change_words(change)})" for case, change in largest[:_MOST_CASES]]
    more = len(largest) - len(named)
    cases = series_of([*named, *([counted(more, "more case")] if more else [])])
    differing = "; ".join(place.differing)
    also = f"Also different: {differing}." if differing else "The records show no other difference."
    return f"Between {_dated(place.before)} and {_dated(place.after)}: {cases}. {also}"


def remarks(history: History) -> list[str]:
    """Return sentences about the limits of a comparison of many runs."""
    chance = f"one is reported for any case with a chance of {100 * ALPHA:g} % at most"
    found = [
        "Each run counts once. A ratio's interval is over runs and includes the machine's drift between them.",
        "A step time's interval is over one run's launches, without the drift between runs.",
        (
            f"Step times are {GEOMETRIC_MEANS}, so that their ratios equal the reported ones; a report has the "
            f"{MEDIAN}."
        ),
        f"In a history without changes, {chance}, if runs drift independently.",
        (
            "Where neighbouring runs drift alike, only a larger change is shown; one drift over many runs is a "
            "change."
        ),
    ]
    short = [case for case in history.cases if not case.enough]
    if short:
        found.append(
            f"{counted(len(short), 'case')} of {len(history.cases)} "
            f"{'has' if len(short) == 1 else 'have'} too few runs: at least {history.fewest} are needed for "
            f"{counted(len(history.cases), 'case')}. "
            f"Two runs are compared with: {command('ddpbench', 'compare', 'BASE', 'NEW')}"
        )
    found += [sentence for case in history.cases if (sentence := gap_words(history, case))]
    if history.alone:
        is_one = history.alone == 1
        found.append(
            f"{counted(history.alone, 'case')} {'is' if is_one else 'are'} in only one run and left out."
        )
    if history.unlike:
        found.append(f"Runs differ in more than the program: {'; '.join(history.unlike)}.")
    return found


def gap_words(history: History, case: CaseHistory) -> str:
    """Name the runs in which a case has no step time; empty if there are none."""
    gaps = case.gaps
    if not gaps:
        return ""
    named = [
        f"{status} in {_named(history, [point for point in gaps if point.status == status])}"
        for status in dict.fromkeys(point.status for point in gaps)
    ]
    return f"{case.label} has no numbers of {counted(len(gaps), 'run')}: {'; '.join(named)}."


def _named(history: History, points: Sequence[SeriesPoint]) -> str:
    return series_of([history.sides[point.run].name for point in points], most=_MOST_GAPS)


def markdown(history: History) -> str:
    """Return a comparison of many runs as Markdown."""
    lines = [
        f"**ddpbench**: {escape_markdown(headline(history))}",
        "",
        markdown_row(HEADS),
        "|---|--:|--:|--:|---|",
        *map(markdown_row, rows(history)),
        "",
        *(
            f"- {escape_markdown(sentence)}"
            for sentence in [*map(place_words, places(history)), *remarks(history)]
        ),
    ]
    return "\n".join(lines) + "\n"


def to_json(history: History) -> dict[str, Any]:
    """Return a comparison of many runs as a JSON object.

    Times are in seconds, ratios are the level after a change divided by the level before, and runs count from 0.
    """
    return {
        "runs": [
            {
                "name": side.name,
                "path": str(side.path),
                "started_utc": started_utc(side) or None,
                "git_commit": side.commit or None,
                "ddpbench_version": side.machine.get("context", {}).get("ddpbench_version"),
                "torch": side.identity.get("torch"),
            }
            for side in history.sides
        ],
        "alpha": ALPHA,
        "fewest_runs": history.fewest,
        "cases_left_out": history.alone,
        "unlike": list(history.unlike),
        "cases": [_case(history, case) for case in history.cases],
    }


def _case(history: History, case: CaseHistory) -> dict[str, Any]:
    return {
        "label": case.key,
        "case_id": case.case.case_id,
        "runs": len(case.measured),
        "verdict": "changed" if case.changes else "no change shown" if case.enough else "not enough runs",
        "points": [
            {
                "run": point.run,
                "status": "absent" if point.status == ABSENT else point.status,
                "step_time_s": ends(point.step),
                "launches": point.launches,
                "reason": point.reason,
            }
            for point in case.points
        ],
        "levels": [
            {"first_run": one.first, "last_run": one.last, "runs": one.runs, "step_time_s": one.step_s}
            for one in case.levels
        ],
        "changes": [
            {
                "verdict": "slower" if one.slower else "faster",
                "before_run": one.before,
                "after_run": one.after,
                "ratio": ends(one.ratio),
                "differing": list(_differing(history.sides[one.before], history.sides[one.after])),
            }
            for one in case.changes
        ],
    }
