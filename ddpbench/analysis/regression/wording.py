"""Present a comparison as a table, as Markdown for a pull request, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ddpbench.analysis.read.measurement import FOREIGN_LIMIT
from ddpbench.analysis.regression.changes import Change, Changes
from ddpbench.analysis.regression.labels import pair_labels
from ddpbench.analysis.regression.sides import Side, settings_between
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.estimands import GEOMETRIC_MEANS, TYPICAL_ROUND
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.resolution import DRIFT
from ddpbench.analysis.statistics.tails import missed_words
from ddpbench.escaping import escape_markdown, escape_markdown_code, markdown_row
from ddpbench.naming import Namer
from ddpbench.spec.differences import in_words
from ddpbench.spec.settings import MOST_INTERLEAVED_ROUNDS
from ddpbench.text_safety import command, shortened
from ddpbench.units import (
    counted,
    decimals_borne,
    format_about,
    format_at_most,
    format_end,
    format_number,
    format_two_digits,
    with_minus,
)

PART_WORDS = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "exposed_comm": "exposed communication",
    "exposed_wait": "waiting for ranks",
    "not_attributed": "not attributed",
}
_OFTEN = "4 times in 5"
"""Words for `POWER`, which is the probability to resolve a resolvable change."""
HEADS = ("case", "base, ms", "new, ms", "change", "95 % interval", "verdict", "where, or why")


def percent(ratio: float, decimals: int = 1) -> str:
    """Return a ratio as a change in per cent: `+3.1 %`, or `0.0 %` without a sign after rounding to 0."""
    text = f"{100 * (ratio - 1):+.{decimals}f} %"
    if not any(digit in text for digit in "123456789"):
        text = text[1:]
    return with_minus(text)


def value_words(ratio: Interval, limit: float = 0.0) -> str:
    """Return a ratio as a change in per cent, with as many decimals as the interval has in `interval_words`."""
    return percent(ratio.value, _decimals(ratio, limit))


def interval_words(ratio: Interval | None, limit: float = 0.0) -> str:
    """Return the interval of a ratio as text, such as `+1.2 % to +3.4 %`; empty without ends.

    An end slightly above 0 (or a gate's `limit`, a fraction) is written as `just above 0 %`.
    """
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    decimals, nulls = _decimals(ratio, limit), (0.0, _in_percent(limit))
    low, high = (_end(end, decimals, nulls) for end in (ratio.low, ratio.high))
    return f"{low} to {high}"


def _end(end: float, decimals: int, nulls: Sequence[float]) -> str:
    text = format_end(_in_percent(end - 1), decimals, nulls)
    return f"{text} %" if text.startswith("just") else percent(end, decimals)


def _decimals(ratio: Interval, limit: float) -> int:
    ends = (None if end is None else _in_percent(end - 1) for end in (ratio.low, ratio.high))
    nulls = (0.0, _in_percent(limit))
    return max(1, decimals_borne(_in_percent(ratio.value - 1), *ends, nulls=nulls, most=1))


def _in_percent(fraction: float) -> float:
    """Convert to per cent, without floating-point residue."""
    return round(100 * fraction, 9)


def where_words(change: Change) -> str:
    """Name the part of a step that explains most of a change, as in `backward +4.1 ms`.

    Empty if no part's difference is resolved.
    """
    part = change.where
    if part is None:
        return ""
    words = PART_WORDS.get(part.name, part.name.replace("_", " "))
    return f"{words} {with_minus(f'{1e3 * part.difference.value:+.2g}')} ms"


def _ms(step: Interval | None) -> str:
    return "" if step is None else format_number(1e3 * step.value)


def seen_words(resolvable: float) -> str:
    """State the smallest change that a comparison would have shown, and how often.

    For example: `a change of 8.1 % or more would have been seen 4 times in 5`.
    """
    return f"a change of {format_at_most(resolvable)} or more would have been seen {_OFTEN}"


def _would_have_seen(change: Change) -> str:
    if change.verdict != "cannot tell" or change.resolvable is None:
        return ""
    return f"would see {format_at_most(change.resolvable)}"


def rows(changes: Changes) -> list[tuple[str, ...]]:
    """Return one row of texts for each case, in the columns `HEADS`."""
    return [
        (
            change.label,
            _ms(change.base_step),
            _ms(change.new_step),
            "" if change.ratio is None else value_words(change.ratio, changes.wanted),
            interval_words(change.ratio, changes.wanted),
            change.verdict,
            where_words(change) or change.reason or _would_have_seen(change),
        )
        for change in changes.changes
    ]


def headline(changes: Changes) -> str:
    """Return the result of a comparison in a single sentence."""
    counts = changes.counts()
    slower = [one for one in changes.changes if one.verdict == "slower"]
    broken = [one for one in changes.changes if one.broken]
    verdicts = [
        f"{counts[verdict]} {words}"
        for verdict, words in (
            ("slower", "slower"),
            ("faster", "faster"),
            ("equivalent", "equivalent"),
            ("cannot tell", "undecided"),
            ("not comparable", "not comparable"),
        )
        if verdict in counts
    ]
    text = f"{counted(len(changes.changes), 'case')}: {', '.join(verdicts) or 'none'}"
    if changes.unresolved and changes.resolvable is not None:
        text += f" ({seen_words(changes.resolvable)})"
    if broken:
        text += f"; {counted(len(broken), 'case')} failed or {'are' if len(broken) > 1 else 'is'} gone"
    if slower:
        worst = max(slower, key=lambda one: one.ratio.value if one.ratio else 0.0)
        assert worst.ratio is not None
        size, ends_of_it = (words(worst.ratio, changes.wanted) for words in (value_words, interval_words))
        text += f"; most: {worst.label}, {size} ({ends_of_it})"
    return f"{text}."


def settings_sentence(changes: Changes) -> str:
    """Return a sentence on the settings in which the sides differ, with both values; empty without any."""
    found = in_words(settings_between(changes.base, changes.new), ("in base", "in new"))
    return f"The sides differ in {found}." if found else ""


def remarks(changes: Changes) -> list[str]:
    """Return sentences on the limits of a comparison."""
    found = []
    if changes.paired:
        whole = changes.turns == "launches"
        how = ", launch by launch" if whole else ""
        found.append(
            f"Both sides were interleaved{how}: rounds are pairs, and intervals hold at every number of rounds."
        )
        disturbed = [share for share in changes.foreign if share > FOREIGN_LIMIT]
        if disturbed:
            who = "one side may be affected more than the other" if whole else "both sides are affected alike"
            found.append(
                f"Other programs used up to {100 * max(disturbed):.0f} % of the cores' time in {len(disturbed)} of "
                f"{counted(len(changes.foreign), 'round')}: {who}, and intervals are the wider for it."
            )
    else:
        found.append(
            f"Measured at different times: what a machine drifts between sessions is in the intervals, "
            f"{_drift_words(changes)} (--drift). To decide smaller differences, interleave both: ddpbench compare "
            "--interleave."
        )
    found += dict.fromkeys(side.lacks for side in (changes.base, changes.new) if side.lacks)
    if any(change.scale != 1 for change in changes.changes):
        found.append(
            "The sides' batches differ: changes are of the time per sample, and the new side's times are given for as "
            "many samples as a step of the base has."
        )
    found += _ranks(changes)
    if changes.unlike:
        found.append(f"They differ in more than the program: {'; '.join(changes.unlike)}.")
    compared = [one.rounds for one in changes.changes if one.ratio is not None and one.rounds]
    if compared:
        words = missed_words(min(compared), "rounds" if changes.paired else "launches")
        found += [estimands(changes), sentence(words)]
    undecided = [one for one in changes.undecided if not one.reason]
    wide = [far for one in undecided if (far := _farthest(one.ratio)) is not None]
    if wide:
        found.append(
            f"Undecided cases: a difference up to {format_at_most(max(wide))} may be there; it has not been shown."
        )
    if changes.unresolved:
        found += _resolution(changes)
    return found


def _ranks(changes: Changes) -> list[str]:
    """State what perfect scaling would be if the sides have different numbers of ranks, in all cases alike."""
    compared = [one for one in changes.changes if one.ratio is not None and one.new_case is not None]
    ratios = {one.case.world_size / one.new_case.world_size for one in compared if one.new_case is not None}
    if len(ratios) != 1 or ratios == {1.0}:
        return []
    (ratio,) = ratios
    times = f"{format_number(1 / ratio)} times the ranks"
    return [
        f"The new side has {times} of the base: with perfect scaling, the change would be {percent(ratio)}."
    ]


def estimands(changes: Changes) -> str:
    """Say in a sentence how a comparison's step times and changes are averaged."""
    if changes.paired:
        return f"Step times are {GEOMETRIC_MEANS}; a change is {TYPICAL_ROUND}, and a verdict needs the mean to agree."
    return f"Step times are {GEOMETRIC_MEANS}, and a change is their quotient."


def _farthest(ratio: Interval | None) -> float | None:
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    return max(ratio.high - 1, 1 - ratio.low)


def _drift_words(changes: Changes) -> str:
    drifts = [each for one in changes.changes for each in one.drifts or ()] or [changes.drift or DRIFT]
    least, most = (format_two_digits(100 * each) for each in (min(drifts), max(drifts)))
    return f"{least} %" if least == most else f"{least} to {most} %"


def _resolution(changes: Changes) -> list[str]:
    found: list[str] = []
    resolved = changes.resolvable
    wanted, needed_s = f"{100 * changes.wanted:g} %", changes.wanted_s
    if resolved is not None and resolved <= changes.wanted:
        return found
    how = "`ddpbench noise` tells beforehand what a time resolves"
    if needed_s is not None:
        flag = command("--total", format_about(needed_s))
        way = flag if changes.paired else f"ddpbench compare --interleave with {flag}"
        found.append(
            f"To resolve {wanted}{_in_all(changes)} ({_OFTEN}), measure "
            f"{'again' if changes.paired else 'interleaved'} for about {format_about(needed_s)}: {way}; {how}."
        )
    elif all(one.in_turn is not None for one in changes.unresolved):
        found.append(
            f"To resolve {wanted} takes more than {MOST_INTERLEAVED_ROUNDS} interleaved rounds, which are the most: "
            f"make launches longer (budget.measured_s); {how}."
        )
    elif any(one.resolvable is not None for one in changes.unresolved if one.in_turn is None):
        found.append(
            f"How long it takes to resolve {wanted} is not known: saved files do not say what a round takes; {how}."
        )
    else:
        found.append(f"Too few rounds to tell how long it takes to resolve {wanted}; {how}.")
    return found


def _in_all(changes: Changes) -> str:
    count = len(changes.unresolved)
    return f" in {'both' if count == 2 else f'all {count}'} undecided cases at once" if count > 1 else ""


def markdown(changes: Changes) -> str:
    """Return a comparison as Markdown for a pull request."""
    apart = settings_sentence(changes)
    lines = [
        f"**ddpbench**: {escape_markdown(headline(changes))}",
        "",
        " ".join(
            filter(None, [f"Base: {_side(changes.base)}. New: {_side(changes.new)}.", escape_markdown(apart)])
        ),
        "",
        markdown_row(HEADS),
        "|---|--:|--:|--:|--:|---|---|",
        *map(markdown_row, rows(changes)),
        "",
        *map(escape_markdown, remarks(changes)),
    ]
    return "\n".join(lines) + "\n"


def _side(side: Side) -> str:
    at = f" at {escape_markdown(side.commit)}" if side.commit else ""
    return f"{escape_markdown_code(side.name)}{at}"


def to_json(changes: Changes) -> dict[str, Any]:
    """Return a comparison as a JSON object. Times are seconds, and ratios are new divided by base."""
    pairs = [(change.case, change.new_case) for change in changes.changes]
    keys = pair_labels(pairs, Namer.key)
    return {
        "base": {"path": str(changes.base.path), "git_commit": changes.base.commit},
        "new": {"path": str(changes.new.path), "git_commit": changes.new.commit},
        "paired": changes.paired,
        "estimands": estimands(changes),
        "turns": changes.turns if changes.paired else None,
        "foreign": list(changes.foreign),
        "drift": None if changes.paired else changes.drift,
        "unlike": list(changes.unlike),
        "settings": {
            name: {"base": _plain(old), "new": _plain(new)}
            for name, (old, new) in settings_between(changes.base, changes.new).items()
        },
        "counts": changes.counts(),
        "resolvable": changes.resolvable,
        "wanted": changes.wanted,
        "wanted_in_turn_s": changes.wanted_s,
        "cases": [
            _case(change, key, changes.wanted) for change, key in zip(changes.changes, keys, strict=True)
        ],
    }


def _plain(value: Any) -> Any:
    """Return a setting's value if JSON can hold it, else a text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return shortened(value)
    return value


def _case(change: Change, label: str, wanted: float) -> dict[str, Any]:
    return {
        "label": label,
        "verdict": change.verdict,
        "reason": change.reason,
        "broken": change.broken,
        "failures": change.failures,
        "rounds": change.rounds,
        "ratio": ends(change.ratio),
        "mean_ratio": change.mean,
        "bound": change.bound,
        "resolvable": change.resolvable,
        "drifts": None if change.drifts is None else dict(zip(("base", "new"), change.drifts, strict=True)),
        "in_turn": _in_turn(change, wanted),
        "base_step_time_s": ends(change.base_step),
        "new_step_time_s": ends(change.new_step),
        "base_launches_s": list(change.base_launches),
        "new_launches_s": list(change.new_launches),
        "new_times_scale": change.scale,
        "parts": [
            {
                "name": part.name,
                "base_s": part.base_s,
                "new_s": part.new_s,
                "difference_s": ends(part.difference),
            }
            for part in change.parts
        ],
        "where": change.where.name if change.where is not None else None,
    }


def _in_turn(change: Change, wanted: float) -> dict[str, float | None] | None:
    rests = change.in_turn
    if rests is None:
        return None
    return {
        "deviation": rests.deviation,
        "round_s": rests.round_s,
        "rounds": rests.rounds_for(wanted),
        "total_s": rests.time_for(wanted),
    }


def ends(interval: Interval | None) -> dict[str, float | None] | None:
    """Return an interval as a JSON object; None for None."""
    return None if interval is None else {"value": interval.value, "low": interval.low, "high": interval.high}


def failing(changes: Changes, limit: float) -> Sequence[Change]:
    """Return the cases that fail a gate at this limit: broken cases, and cases shown to be slower by more."""
    return [one for one in changes.changes if one.beyond(limit) or one.broken]


def judged_any(changes: Changes) -> bool:
    """Return whether at least one case was judged. If no case was, a gate does not pass."""
    return any(one.judged for one in changes.changes)


def why_failing(change: Change, limit: float) -> str:
    """Say why a case fails a gate at this limit."""
    if change.beyond(limit):
        return f"slower by more than {100 * limit:g} %"
    if change.failures and change.new_step is not None:
        return f"{counted(change.failures, 'launch', 'launches')} failed, none before"
    return change.reason
