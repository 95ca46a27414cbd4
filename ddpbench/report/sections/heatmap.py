"""The heat map of step time by bucket cap and ranks, or by bucket cap and links, which shows the caps that are safe."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN
from ddpbench.analysis.statistics.judgement import AS_GOOD, BEST, CANNOT_TELL, TOO_FEW, Standing, at_most
from ddpbench.report.captions import (
    captioned,
    fullest,
    label_but_links,
    label_of,
    setting_but_links,
    setting_of,
)
from ddpbench.report.draw import style
from ddpbench.report.draw.marks import describe
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.rows import Row
from ddpbench.report.standing import METHOD
from ddpbench.report.words import launches_each, ranks, series_of, signed_percent
from ddpbench.spec import BucketCap
from ddpbench.spec.grouping import cap_order, cap_words
from ddpbench.spec.links import links_of, short_links

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

Across = Literal["ranks", "link"]
_RAMP = ((1.0, 1.0, 1.0), (0x8F / 255, 0xBB / 255, 0xDD / 255))
_NOT_RUN = style.GRID
MOST_ROWS = 10
_CELL_IN = 0.62


def picture(
    panel_name: str,
    rows: Sequence[Row],
    standings: Mapping[str, Standing],
    index: int,
    *,
    across: Across = "ranks",
) -> Picture | None:
    """Return the heat map of one strategy's bucket caps; None unless several rows of the map have several caps.

    Each row is a number of ranks or, with `across="link"`, a fabric (the fastest first) at one world size. `standings`,
    by case id, compare the caps within a row.
    """
    every = sorted({_key(row, across) for row in rows}, key=_order)
    sizes = _drawn_sizes(every, across)
    rows = [row for row in rows if _key(row, across) in sizes]
    shown = [row for row in rows if row.ok and row.step_time_s is not None]
    if not _comparable(shown, across):
        return None
    caps = sorted({row.case.bucket_cap_mb for row in rows}, key=cap_order)
    cells = {(_key(row, across), row.case.bucket_cap_mb): row for row in rows}
    heading = _title(shown, standings, across)
    missing = {row.case_id: f"{row.name} ({row.status})" for row in rows if row not in shown}
    marks = [
        _frame_words(shown, standings),
        *_gap_words([*missing.values()], any((size, cap) not in cells for size in sizes for cap in caps)),
        *_omission_words(len(every), len(sizes), across),
    ]
    if any(row.oversubscribed for row in shown):
        marks.append("Rows of more ranks than cores are marked oversubscribed and count for no headline.")
    return Picture(
        file_name=_file_name(index, across),
        heading=heading,
        caption=_caption(shown, across, marks),
        alt=(
            f"Heat map of step time, ms, by bucket cap ({series_of([cap_words(cap) for cap in caps])}) and {across} "
            f"({series_of([_key_label(size) for size in sizes])}) for {rows[0].strategy_name}. {heading}."
        ),
        table=_table(
            f"{rows[0].strategy_name}{f' ({panel_name})' if panel_name else ''}",
            sizes=sizes,
            caps=caps,
            cells=cells,
            standings=standings,
            across=across,
        ),
        width_in=style.SMALL_WIDTH_IN if len(caps) < 6 else style.FULL_WIDTH_IN,
        height_in=0.62 + _CELL_IN * len(sizes),
        paint=partial(_paint, sizes=sizes, caps=caps, cells=cells, standings=standings),
        narrow=partial(_paint_narrow, sizes=sizes, caps=caps, cells=cells, standings=standings),
        narrow_in=(style.NARROW_WIDTH_IN, len(_blocks(caps)) * _block_in(sizes)),
        label=label_of(shown) if across == "ranks" else label_but_links(shown[0]),
        group=panel_name,
        missing=missing,
    )


def _drawn_sizes(every: Sequence[int | str], across: Across) -> Sequence[int | str]:
    if len(every) <= MOST_ROWS:
        return every
    powers = [key for key in every if isinstance(key, int) and key & (key - 1) == 0]
    return powers[-MOST_ROWS:] if across == "ranks" else every[:MOST_ROWS]


def _comparable(shown: Sequence[Row], across: Across) -> bool:
    caps: dict[int | str, set[BucketCap]] = {}
    for row in shown:
        caps.setdefault(_key(row, across), set()).add(row.case.bucket_cap_mb)
    return sum(len(line_caps) > 1 for line_caps in caps.values()) > 1


def _frame_words(shown: Sequence[Row], standings: Mapping[str, Standing]) -> str:
    stood = {standings[row.case_id].verdict for row in shown if row.case_id in standings} - {TOO_FEW}
    if stood & {BEST, AS_GOOD}:
        return f"Solid frame: best in its row. Dashed frame: as good as best. {METHOD}"
    if stood:
        return f"No frame: no cap is shown to be best or as good in its row. {METHOD}"
    return "No frame: too few rounds to compare caps."


def _gap_words(missing: Sequence[str], empty: bool) -> list[str]:
    words = [f"Crosshatched: {'; '.join(missing)}."] if missing else []
    return [*words, *(["Grey: not run."] if empty else [])]


def _omission_words(every: int, drawn: int, across: Across) -> list[str]:
    if drawn == every:
        return []
    what = "numbers of ranks only powers of two are" if across == "ranks" else "links not all are"
    return [f"Of {every} {what} drawn; the summary table has all."]


def _caption(shown: Sequence[Row], across: Across, marks: Sequence[str]) -> str:
    name, linked = shown[0].strategy_name, across == "link"
    return captioned(
        setting_but_links(shown) if linked else setting_of(fullest(shown)),
        [
            f"In a cell: step time, ms, {MEDIAN} ({launches_each(row.launches for row in shown)}).",
            *marks,
            "Beneath it: how much longer than the lowest of its row, paired within rounds where they can be;",
            "the ground darkens with it. Caps are categories, not a scale.",
        ],
        name=f"{name}, {ranks(shown[0].case.world_size)}" if linked else name,
    )


def _file_name(index: int, across: Across) -> str:
    name = "heatmap" if across == "ranks" else "heatmap-links"
    return name if index == 0 else f"{name}-{index + 1}"


def _key(row: Row, across: Across) -> int | str:
    return row.case.world_size if across == "ranks" else row.case.fabric


def _order(key: int | str) -> float:
    if isinstance(key, int):
        return key
    links = links_of(key)
    return -min(links.bandwidth) if links is not None else 0.0


def _key_label(key: int | str) -> str:
    return str(key) if isinstance(key, int) else short_links(key)


def _title(shown: Sequence[Row], standings: Mapping[str, Standing], across: Across) -> str:
    name = shown[0].strategy_name
    known = {case_id for case_id, one in standings.items() if one.verdict != TOO_FEW}
    fair = [row for row in shown if not row.oversubscribed and row.case_id in known]
    sizes = sorted({_key(row, across) for row in fair}, key=_order)
    where = series_of([_key_label(size) for size in sizes])
    own = [_key(row, across) for row in shown if not row.oversubscribed]
    if len(own) == len(set(own)):
        return "Where several bucket caps were run, ranks shared cores: none is ranked"
    if not sizes:
        few = "too few rounds to call any bucket cap safe"
        return first_short(f"{name}: {few}", capital(few))
    safe = [
        cap
        for cap in sorted({row.case.bucket_cap_mb for row in fair}, key=cap_order)
        if {
            _key(row, across) for row in fair if row.case.bucket_cap_mb == cap and standings[row.case_id].good
        }
        >= set(sizes)
    ]
    at = f"at {where} {'rank' if where == '1' else 'ranks'}" if across == "ranks" else f"over {where}"
    if not safe:
        none = "no bucket cap is shown to be best or as good everywhere"
        return first_short(f"{name}: {none} {at}", f"{name}: {none}", capital(none))
    left = [
        standings[row.case_id]
        for row in fair
        if row.case.bucket_cap_mb in safe and standings[row.case_id].verdict == AS_GOOD
    ]
    end = f" ({at_most(left)})" if left else ""
    caps = series_of([cap_words(cap) for cap in safe], "or")
    good = "is best or as good as best"
    return first_short(
        f"{name} with {caps} buckets {good} {at}{end}",
        f"{name} with {caps} buckets is best or as good {at}",
        f"{name} with {caps} buckets {good} everywhere",
        f"{len(safe)} bucket caps are best or as good as best everywhere",
    )


_Cells = Mapping[tuple[int | str, BucketCap], Row]


def _longer(row: Row, sizes_rows: Sequence[Row], standings: Mapping[str, Standing]) -> float | None:
    times = {
        one.case_id: one.step_time_s.value for one in sizes_rows if one.ok and one.step_time_s is not None
    }
    if row.case_id not in times:
        return None
    lowest = min(times, key=times.__getitem__)
    stand = standings.get(row.case_id)
    if row.case_id != lowest and stand is not None and stand.against == lowest:
        return stand.ratio.value - 1
    return times[row.case_id] / times[lowest] - 1


def _of_size(cells: _Cells, size: int | str) -> list[Row]:
    return [row for (key, _), row in cells.items() if key == size]


def _table(
    name: str,
    *,
    sizes: Sequence[int | str],
    caps: Sequence[BucketCap],
    cells: _Cells,
    standings: Mapping[str, Standing],
    across: Across,
) -> Table:
    lines = []
    for size in sizes:
        line = [Cell.count(size) if isinstance(size, int) else Cell(text=short_links(size))]
        for cap in caps:
            row = cells.get((size, cap))
            if row is None:
                line.append(Cell(text="not run"))
            elif not row.ok or row.step_time_s is None:
                line.append(Cell(text=row.status))
            else:
                estimate = row.step_time_s.scaled(1e3)
                stand = standings.get(row.case_id)
                standing = stand.cell() if stand is not None else ""
                words = ", ".join(word for word in (estimate.brackets, standing) if word)
                line.append(
                    Cell(
                        text=estimate.number,
                        under=words,
                        key=estimate.value,
                        number=True,
                        strong=stand is not None and stand.verdict == BEST,
                    )
                )
        lines.append(tuple(line))
    return Table(
        caption=f"Step time by {across} and bucket cap, ms, {name}",
        columns=(
            Column("Ranks", number=True) if across == "ranks" else Column("Link"),
            *(Column(cap_words(cap), number=True) for cap in caps),
        ),
        rows=tuple(lines),
        sortable=False,
    )


def _paint(
    sheet: Sheet,
    *,
    sizes: Sequence[int | str],
    caps: Sequence[BucketCap],
    cells: _Cells,
    standings: Mapping[str, Standing],
) -> None:
    from ddpbench.report.draw.lines import text_width_in

    names = _names(sizes, cells)
    widest = max(text_width_in(name, style.TICK_PT) for name in names)
    left = max(0.95, 0.25 + widest)
    axes = sheet.axes(left, 0.1, sheet.width_in - left - 0.2, _CELL_IN * len(sizes))
    _paint_map(axes, names, sizes=sizes, caps=caps, cells=cells, standings=standings)


_LEFT_IN, _NARROW_CELL_IN = 0.8, 0.68
"""Width of a row's name, and minimum width of a cell; both on a phone, in inches."""


def _blocks(caps: Sequence[BucketCap]) -> list[Sequence[BucketCap]]:
    most = int((style.NARROW_WIDTH_IN - _LEFT_IN) / _NARROW_CELL_IN)
    each = math.ceil(len(caps) / math.ceil(len(caps) / most))
    return [caps[at : at + each] for at in range(0, len(caps), each)]


def _block_in(sizes: Sequence[int | str]) -> float:
    return 0.62 + _CELL_IN * len(sizes)


def _paint_narrow(
    sheet: Sheet,
    *,
    sizes: Sequence[int | str],
    caps: Sequence[BucketCap],
    cells: _Cells,
    standings: Mapping[str, Standing],
) -> None:
    blocks = _blocks(caps)
    names = _names(sizes, cells, width=11)
    cell = (sheet.width_in - _LEFT_IN - 0.08) / len(blocks[0])
    for place, block in enumerate(blocks):
        bottom = 0.1 + (len(blocks) - 1 - place) * _block_in(sizes)
        axes = sheet.axes(_LEFT_IN, bottom, cell * len(block), _CELL_IN * len(sizes))
        _paint_map(
            axes, names, sizes=sizes, caps=block, cells=cells, standings=standings, points=style.NOTE_PT
        )


def _names(sizes: Sequence[int | str], cells: _Cells, *, width: int = 18) -> list[str]:
    over = [size for size in sizes if any(row.oversubscribed for row in _of_size(cells, size))]
    mark = "oversubscribed" if width > 14 else "over-\nsubscribed"
    return [
        textwrap.fill(ranks(size) if isinstance(size, int) else short_links(size), width)
        + (f"\n{mark}" if size in over else "")
        for size in sizes
    ]


def _paint_map(
    axes: Axes,
    names: Sequence[str],
    *,
    sizes: Sequence[int | str],
    caps: Sequence[BucketCap],
    cells: _Cells,
    standings: Mapping[str, Standing],
    points: float = style.LABEL_PT,
) -> None:
    """Paint the cells of these caps, shaded relative to the slowest cell of all caps."""
    slower = {key: _longer(row, _of_size(cells, key[0]), standings) for key, row in cells.items()}
    worst = max([value for value in slower.values() if value is not None], default=0.0)
    for y, size in enumerate(sizes):
        for x, cap in enumerate(caps):
            row = cells.get((size, cap))
            verdict = standings[row.case_id].verdict if row is not None and row.case_id in standings else ""
            look = _Look(
                slower=slower.get((size, cap)),
                worst=worst,
                verdict=verdict,
                points=points,
                alone=sum(one.ok for one in _of_size(cells, size)) == 1,
            )
            _cell(axes, (x, y), row, look)
    axes.set_xlim(-0.5, len(caps) - 0.5)
    axes.set_ylim(len(sizes) - 0.5, -0.5)
    axes.set_xticks(range(len(caps)), [cap_words(cap) for cap in caps])
    axes.set_yticks(range(len(sizes)), names)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("bucket cap", labelpad=6)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """`slower` is the excess over the row's shortest step as a fraction, `worst` the largest of all cells."""

    slower: float | None
    worst: float
    verdict: str
    points: float
    alone: bool
    """True if no other cap was measured in the same row."""


def _cell(axes: Axes, place: tuple[int, int], row: Row | None, look: _Look) -> None:
    title = ""
    if row is not None:
        what = f"{row.step_time_s.scaled(1e3)} ms" if row.step_time_s is not None else row.status
        title = f"{row.name}: {what}{f', {look.verdict}' if look.verdict else ''}"
    _draw_ground(axes, place, row, look.slower, look.worst, title)
    _write_cell(axes, place, row, look)
    if look.verdict in (BEST, AS_GOOD):
        _draw_frame(axes, place, look.verdict)


def _draw_ground(
    axes: Axes, place: tuple[int, int], row: Row | None, slower: float | None, worst: float, title: str
) -> None:
    """Fill a cell, darker for a slower step, crosshatched without a time, grey if not run."""
    from matplotlib.patches import Rectangle

    share = max(0.0, slower) / worst if slower is not None and worst > 0 else 0.0
    ramp = tuple(low + (high - low) * share for low, high in zip(*_RAMP, strict=True))
    failed = row is not None and slower is None
    ground = axes.add_patch(
        Rectangle(
            (place[0] - 0.5, place[1] - 0.5),
            1,
            1,
            facecolor=_NOT_RUN if row is None else "white" if failed else ramp,
            edgecolor=style.MUTED if failed else style.GRID,
            linewidth=0.8,
            hatch="xxxx" if failed else None,
            zorder=1,
        )
    )
    if title:
        describe(ground, "", title)


def _write_cell(axes: Axes, place: tuple[int, int], row: Row | None, look: _Look) -> None:
    slower, verdict = look.slower, look.verdict
    failed = row is not None and slower is None
    text, weight = "not run", "normal"
    if row is not None and failed:
        text = row.status
    elif row is not None and row.step_time_s is not None and slower is not None:
        extra = signed_percent(slower) if slower else "" if look.alone else "lowest"
        text = "\n".join(filter(None, [row.step_time_s.scaled(1e3).number, extra]))
        text += f"\n{CANNOT_TELL}" if verdict == CANNOT_TELL else ""
        weight = "bold" if verdict == BEST else "normal"
    axes.text(
        *place,
        text,
        ha="center",
        va="center",
        fontsize=look.points,
        fontweight=weight,
        linespacing=1.3,
        bbox={"boxstyle": "square,pad=0.25", "facecolor": "white", "edgecolor": "none"} if failed else None,
        zorder=3,
    )


def _draw_frame(axes: Axes, place: tuple[int, int], verdict: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle(
            (place[0] - 0.45, place[1] - 0.43),
            0.9,
            0.86,
            fill=False,
            edgecolor=style.INK,
            linewidth=1.4,
            linestyle="-" if verdict == BEST else (0, (4, 2)),
            zorder=2,
        )
    )
