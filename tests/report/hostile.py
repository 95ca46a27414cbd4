"""A run in which every free text tries to act in the page that shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pytest

from ddpbench.analysis.sentences import Sentence
from ddpbench.analysis.summary import RunSummary
from ddpbench.report import page
from ddpbench.report.draw.marks import describe
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.parts import Picture, Section, Table
from tests.report.handmade import bucket_comparisons, changed, fields_of, handmade_summary

ATTACK = (
    "</script></style></title></textarea>--><script>window.acted = 1</script>"
    '<img src=x onerror="window.acted = 1"><svg onload="window.acted = 1">'
    '<a href="javascript:window.acted = 1">go</a><iframe src="https://example.org"></iframe>'
    '<meta http-equiv="refresh" content="0;url=https://example.org">'
    """ " onmouseover="window.acted = 1" ' onfocus='window.acted = 1' autofocus """
    r"javascript:window.acted=1 {{ 7 * 7 }} {% raw %} $\frac{$ \input{x}"
)
_FREE_COLUMNS = {"experiment", "workload", "error", "compared", "note", "noise_flag"}


def hostile_summary() -> RunSummary:
    """Return the handmade run with such texts; only names that the plan's checks restrict stay."""
    summary = handmade_summary(comparisons=bucket_comparisons())
    planned = {
        key: dataclasses.replace(case, workload=f"{ATTACK}:Evil") for key, case in summary.planned.items()
    }
    changes: dict[str, Any] = {
        name: _attacked(value)
        for name, value in fields_of(summary).items()
        if name not in ("planned", "counts")
    }
    findings = tuple(
        dataclasses.replace(one, text=Sentence(one.text + ATTACK), tags=(ATTACK,), evidence=ATTACK)
        for one in summary.conclusions.findings
    )
    failures = tuple(
        dataclasses.replace(one, label=ATTACK, phase=ATTACK, reason=ATTACK, last_log_line=ATTACK)
        for one in summary.course.failures
    )
    changes |= {"findings": findings, "answer": findings[:1], "failures": failures, "warnings": (ATTACK,)}
    return changed(summary, planned=planned, **{**changes, "merged_from": ()})


def paint_attack(sheet: Sheet) -> None:
    """Write the attack into each kind of text in a figure."""
    from matplotlib.lines import Line2D

    axes = sheet.axes(0.5, 0.5, 3.0, 1.0)
    axes.set_title(ATTACK)
    axes.set_xticks([0, 1], [ATTACK, f"]]>{ATTACK}"])
    axes.set_xlabel(ATTACK)
    axes.annotate(ATTACK, (0.5, 0.5))
    for series in (ATTACK, f"]]>{ATTACK}"):
        (line,) = axes.plot([0, 1], [0, 1], "o", label=ATTACK)
        describe(line, series, ATTACK, f"]]>{ATTACK}")
    sheet.legend([Line2D([], [], label=ATTACK)], columns=2)
    sheet.text(0.1, 0.1, ATTACK, rotation=90)


@contextmanager
def hostile_figure() -> Iterator[None]:
    """Add a section with a figure of such texts to pages that are made in this context."""
    picture = Picture(
        file_name="attack",
        heading=ATTACK,
        caption=ATTACK,
        alt=ATTACK,
        table=Table(caption=ATTACK, columns=(), rows=()),
        width_in=4.0,
        height_in=2.0,
        paint=paint_attack,
        missing={},
        narrow=paint_attack,
        narrow_in=(3.6, 2.0),
    )
    section = Section(anchor="attack", title=ATTACK, question=ATTACK, pictures=(picture,), notes=(ATTACK,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "FIGURES", {**page.FIGURES, "attack": lambda *_: section})
        yield


def _attacked(value: Any) -> Any:
    if isinstance(value, str):
        return value + ATTACK
    if isinstance(value, pd.DataFrame):
        frame = value.copy()
        for name in _FREE_COLUMNS & set(frame.columns):
            frame[name] = [f"{value}{ATTACK}" if isinstance(value, str) else value for value in frame[name]]
        return frame
    if isinstance(value, Mapping):
        return {
            _attacked(key) if key not in ("identity", "context") else key: _attacked(one)
            for key, one in value.items()
        }
    if isinstance(value, tuple) and all(isinstance(one, str) for one in value):
        return tuple(map(_attacked, value))
    if isinstance(value, tuple) and all(map(dataclasses.is_dataclass, value)):
        return tuple(map(_attacked_result, value))
    return value


def _attacked_result(value: Any) -> Any:
    named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    texts = {name: text for name, text in named.items() if name in _FREE_COLUMNS and isinstance(text, str)}
    return dataclasses.replace(value, **{name: f"{text}{ATTACK}" for name, text in texts.items()})
