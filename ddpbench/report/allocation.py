"""The allocation page as Markdown, LaTeX and a picture: the same words and numbers in each."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.scaling.allocation import Allocation, Job
from ddpbench.analysis.statistics.stats import Interval
from ddpbench.errors import OutputError
from ddpbench.records import explain_os_error, write_atomically
from ddpbench.report.draw import style
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.words import Estimate, clean, launches_each, ranks
from ddpbench.spec.case import BASE
from ddpbench.units import counted, format_seconds
from ddpbench.version import VERSION

if TYPE_CHECKING:
    from ddpbench.report.draw.canvas import Sheet


def write_allocation(allocation: Allocation, folder: Path) -> list[Path]:
    """Writes `allocation.md`, `allocation.tex` and `allocation.png`; returns their paths.

    Raises:
        OutputError: the folder cannot be written.
    """
    from ddpbench.report.draw.canvas import draw

    paths = [folder / f"allocation.{ending}" for ending in ("md", "tex", "png")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(paths[0], markdown(allocation))
        write_atomically(paths[1], latex(allocation))
        beside = paths[2].with_name(f".{paths[2].name}.new")
        beside.write_bytes(draw(picture(allocation)).png)
        os.replace(beside, paths[2])  # noqa: PTH105 - the pair of write_atomically, for bytes
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {explain_os_error(error)}") from None
    return paths


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    text: Callable[[Job], str]


def _columns(allocation: Allocation) -> list[_Column]:
    """Return the table's columns: times of epochs and runs where their length is known, waits where they are given."""
    head = allocation.unit[:1].upper() + allocation.unit[1:]
    found = [
        _Column("Nodes", lambda job: str(job.nodes)),
        _Column("Ranks", lambda job: f"{job.world_size} (base case)" if job.base else str(job.world_size)),
        _Column(f"{head}s", lambda job: f"{job.devices:,}"),
        _Column("Global batch", lambda job: f"{job.global_batch:,}"),
        _Column("Step, ms", lambda job: str(_estimate(job.step_s).scaled(1e3))),
    ]
    if allocation.samples_per_epoch is not None:
        found.append(_Column("Epoch", lambda job: _time(job.epoch_s)))
        found.append(_Column(f"{head}-hours per epoch", lambda job: _hours(job.epoch_hours)))
    if allocation.epochs is not None or allocation.steps is not None:
        found.append(_Column("Run", lambda job: _time(job.run_s)))
        found.append(_Column(f"{head}-hours per run", lambda job: _hours(job.run_hours)))
    found.append(_Column("Speed-up", lambda job: str(_estimate(job.speedup))))
    found.append(_Column("Efficiency", lambda job: str(_estimate(job.efficiency))))
    if allocation.first is not None:
        found.append(
            _Column("Queue wait", lambda job: "" if job.wait_s is None else format_seconds(job.wait_s))
        )
        found.append(
            _Column(
                "Time to finish", lambda job: "" if job.finish_s is None else format_seconds(job.finish_s)
            )
        )
    return found


def _estimate(interval: Interval) -> Estimate:
    return Estimate(interval.value, interval.low, interval.high)


def _time(interval: Interval | None) -> str:
    return "" if interval is None else format_seconds(interval.value)


def _hours(interval: Interval | None) -> str:
    return "" if interval is None else str(_estimate(interval))


def _base_rate(allocation: Allocation) -> str:
    return f"{_estimate(allocation.base_rate)} samples/s"


def _job_name(job: Job, unit: str) -> str:
    return f"{ranks(job.world_size)} ({counted(job.devices, unit)} on {counted(job.nodes, 'node')})"


def choice(allocation: Allocation) -> str:
    """Return the chosen job size and the reason, in a few sentences."""
    chosen, cut = allocation.chosen, f"{allocation.cut:g}"
    sized = [job for job in allocation.jobs if not job.base]
    words: list[str] = []
    if chosen.base:
        best = max(sized, key=lambda job: job.surest_efficiency)
        words.append(
            f"Chosen job size: 1 rank. No larger one has an efficiency of {cut} or more with its whole 95 % interval; "
            f"{ranks(best.world_size)} {_comes(best)} nearest with {_efficiency(best)}."
        )
    else:
        sure = (
            "with its whole 95 % interval"
            if chosen.efficiency.low is not None
            else "(its value; there are too few rounds for an interval)"
        )
        words.append(
            f"Chosen job size: {_job_name(chosen, allocation.unit)}, the largest measured whose efficiency, "
            f"{_efficiency(chosen)}, is at or above {cut} {sure}."
        )
        larger = [job for job in sized if job.world_size > chosen.world_size]
        if larger:
            following = min(larger, key=lambda job: job.world_size)
            verdict = (
                f"with an interval that reaches beneath {cut}"
                if following.efficiency.value >= allocation.cut
                else f"beneath {cut}"
            )
            words.append(f"At {ranks(following.world_size)} it is {_efficiency(following)}, {verdict}.")
        else:
            words.append("No larger job size was measured, so that a larger one may do as well.")
    return " ".join([*words, *_finishing(allocation)])


def _comes(job: Job) -> str:
    return "comes" if job.world_size == 1 else "come"


def _efficiency(job: Job) -> str:
    return str(_estimate(job.efficiency))


def _finishing(allocation: Allocation) -> list[str]:
    """Return which job size finishes first, where queue waits are given."""
    first, chosen = allocation.first, allocation.chosen
    if first is None or first.wait_s is None or first.run_s is None or first.finish_s is None:
        return []
    name = ranks(first.world_size)
    if first.base:
        name += " (the base case)"
    verb = "finishes" if first.world_size == 1 else "finish"
    text = (
        f"With the queue waits given, {name} {verb} first: {format_seconds(first.wait_s)} of waiting and "
        f"{format_seconds(first.run_s.value)} of running are {format_seconds(first.finish_s)}"
    )
    if first is chosen:
        return [f"{text}; the chosen size is that one."]
    if chosen.finish_s is None:
        return [f"{text}; for the chosen size no wait is given."]
    return [f"{text}; the chosen size takes {format_seconds(chosen.finish_s)}."]


def length(allocation: Allocation) -> str:
    """Return what an epoch and a run are, in a sentence; empty where neither is known."""
    words: list[str] = []
    if allocation.samples_per_epoch is not None:
        words.append(
            f"An epoch is {allocation.samples_per_epoch:,} samples "
            f"({'the dataset as recorded' if allocation.samples_recorded else 'given, not recorded'}), "
            "rounded up to whole steps."
        )
    if allocation.epochs is not None:
        words.append(f"A run is {counted(allocation.epochs, 'epoch')}.")
    elif allocation.steps is not None:
        more = (
            "; under weak scaling a larger job sees more samples in it"
            if allocation.scaling == "weak"
            else ""
        )
        words.append(f"A run is {counted(allocation.steps, 'step')}{more}.")
    if allocation.first is not None:
        words.append("Queue waits are given, not measured.")
    if allocation.unit == "core":
        each = counted(allocation.threads_per_rank, "thread")
        workers = (
            f" and {counted(allocation.loader_workers, 'loader worker')}" if allocation.loader_workers else ""
        )
        words.append(f"A core is counted for each thread: {each}{workers} a rank.")
    return " ".join(words)


def method(allocation: Allocation) -> str:
    """Return how the numbers were made, on what, with which programs: a paragraph."""
    identity = allocation.machine.get("identity") or {}
    context = allocation.machine.get("context") or {}
    programs = [
        f"{name} {_told(identity[key])}"
        for key, name in (
            ("torch", "PyTorch"),
            ("python", "Python"),
            ("cuda", "CUDA"),
            ("nccl", "NCCL"),
            ("driver", "NVIDIA driver"),
            ("kernel", "Linux"),
        )
        if identity.get(key)
    ]
    commit = f", commit {context['git_commit']}" if context.get("git_commit") else ""
    base = allocation.jobs[0]
    written_by = context.get("ddpbench_version") or VERSION
    launched = launches_each(job.launches for job in allocation.jobs)
    threads = counted(allocation.threads_per_rank, "thread")
    place = "with a GPU of its own" if allocation.unit == "GPU" else "pinned to cores of its own"
    step = _estimate(base.step_s).scaled(1e3)
    text = (
        f"Measured with ddpbench {written_by}{commit} on {_hardware(identity)}; {', '.join(programs)}. Workload "
        f"{allocation.setting}, {allocation.dtype}, {threads} per rank; strategy {allocation.name}. Each job size was "
        f"launched as fresh processes, each rank {place} ({launched}), in rounds that run every "
        "case once in random order. A launch warms up until its steps show no trend, and then times steps in blocks "
        "between barriers. Speed-up and efficiency are ratios of samples per second to the base case within rounds; "
        "intervals are 95 % t-intervals over launches. "
        f"Base case: a single process, {_base_rate(allocation)}, {step} ms a step."
    )
    merged = context.get("merged_from") or []
    if merged:
        text += (
            f" The runs of {len(merged)} allocations were merged; ratios are taken within each run's rounds."
        )
    if allocation.proved:
        text += " Each case's gradients were proved equal to those of one process before it was timed."
    if allocation.disturbed:
        text += (
            f" {allocation.disturbed} of {counted(allocation.launches, 'launch', 'launches')} were disturbed (stolen "
            "time, foreign load or clock changes); they are kept."
        )
    return text


def _hardware(identity: Mapping[str, Any]) -> str:
    """Processor, cores and GPUs: of the machine, or of each of several nodes."""
    nodes = len(identity.get("slots") or ())
    cores = sorted({len(one) for one in _by_host(identity.get("cores"))} or {0})
    usable = counted(cores[0], "core") if len(cores) == 1 else f"{cores[0]} to {cores[-1]} cores"
    text = f"{_told(identity.get('cpu')) or 'an unnamed processor'} ({usable} usable)"
    kinds = [Counter(map(str, one)) for one in _by_host(identity.get("gpus"))]
    listed = [", ".join(f"{count} x {name}" for name, count in kind.items()) for kind in kinds]
    gpus = " or ".join(dict.fromkeys(filter(None, listed)))
    text += f" with {gpus}" if gpus else ""
    return f"{nodes} nodes, each {text}" if nodes > 1 else text


def _by_host(value: Any) -> list[Any]:
    """Return a fact's values: one, or one a host where `machine.json` tells it host by host."""
    return list(value.values()) if isinstance(value, Mapping) else [value or ()]


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return " or ".join(dict.fromkeys(str(one) for one in value.values() if one))
    return str(value or "")


def markdown(allocation: Allocation) -> str:
    """Return the page as Markdown."""
    columns = _columns(allocation)
    lines = [f"# Resources for {allocation.name}: {allocation.setting}", ""]
    lines.append("| " + " | ".join(column.title for column in columns) + " |")
    lines.append("|" + "---:|" * len(columns))
    for job in allocation.jobs:
        cells = [column.text(job) for column in columns]
        if job is allocation.chosen:
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        lines.append("| " + " | ".join(map(_markdown, cells)) + " |")
    bold = "In bold: the chosen job size."
    parts = [f"{bold} {length(allocation)}".rstrip(), choice(allocation)]
    lines += ["", *_spaced(parts), "", f"![{picture(allocation).alt}](allocation.png)", ""]
    lines += ["## Method", "", method(allocation)]
    if allocation.left_out:
        lines += ["", allocation.left_out]
    return clean("\n".join(lines)) + "\n"


def _spaced(parts: Sequence[str]) -> list[str]:
    return [line for part in parts for line in (part, "")][:-1]


def _markdown(text: str) -> str:
    return text.replace("|", "\\|")


def latex(allocation: Allocation) -> str:
    """Return the page as LaTeX for another document to input; it needs booktabs and graphicx."""
    columns = _columns(allocation)
    rows = []
    for job in allocation.jobs:
        cells = [escape(column.text(job)) for column in columns]
        if job is allocation.chosen:
            cells = [f"\\textbf{{{cell}}}" if cell else "" for cell in cells]
        rows.append("      " + " & ".join(cells) + r" \\")
    caption = escape(f"Resources for {allocation.name}: {allocation.setting}. In bold: the chosen job size.")
    notes = [escape(text) for text in (length(allocation), choice(allocation)) if text]
    drawn = picture(allocation)
    left_out = f"\n\n{escape(allocation.left_out)}" if allocation.left_out else ""
    return "\n".join(
        [
            r"% In the preamble: \usepackage{booktabs,graphicx}",
            r"\begin{table}[htbp]",
            r"  \centering",
            rf"  \caption{{{caption}}}",
            r"  \label{tab:allocation}",
            r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"    \begin{{tabular}}{{{'r' * len(columns)}}}",
            r"      \toprule",
            "      " + " & ".join(escape(column.title) for column in columns) + r" \\",
            r"      \midrule",
            *rows,
            r"      \bottomrule",
            r"    \end{tabular}%",
            r"  }",
            r"\end{table}",
            "",
            *_spaced(notes),
            "",
            r"\begin{figure}[htbp]",
            r"  \centering",
            r"  \includegraphics[width=0.8\linewidth]{allocation.png}",
            rf"  \caption{{{escape(drawn.caption)}}}",
            r"  \label{fig:allocation}",
            r"\end{figure}",
            "",
            r"\paragraph{Method.}",
            f"{escape(method(allocation))}{left_out}",
            "",
        ]
    )


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # \textquotedbl is not in every font encoding
    "`": "'",
    "[": r"{[}",
    "]": r"{]}",
    "\N{MINUS SIGN}": "$-$",
    "\N{MICRO SIGN}": r"$\mu$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{DEGREE SIGN}": r"$^\circ$",
    "\N{REGISTERED SIGN}": r"\textregistered{}",
    "\N{TRADE MARK SIGN}": r"\texttrademark{}",
    "\N{NO-BREAK SPACE}": "~",
}
"""Brackets too: after a line break LaTeX would read them as its optional argument."""
_ACCENTS = "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0327"


def escape(text: str) -> str:
    """A text that LaTeX sets as it is, whatever engine and font; what no Latin font has becomes a question mark."""
    plain = clean(text).replace("\n", " ")
    whole = "".join(_SPECIAL.get(one) or _plain(one) for one in plain)
    return re.sub(r"-(?=-)", "-{}", whole)  # two hyphens would become a dash


def _plain(character: str) -> str:
    if " " <= character <= "~":
        return character
    parts = unicodedata.normalize("NFD", character)
    accented = len(parts) == 2 and parts[0].isascii() and parts[0].isalpha() and parts[1] in _ACCENTS
    return character if accented else "?"


def picture(allocation: Allocation) -> Picture:
    """Speed-up against ranks on logarithmic axes, with the ideal line and the efficiency cut."""
    chosen = allocation.chosen
    heading = f"{allocation.name}: speed-up {_estimate(chosen.speedup)} at {ranks(chosen.world_size)}"
    if chosen.base:
        heading = f"{allocation.name}: no job size above 1 rank has an efficiency of {allocation.cut:g}"
    caption = (
        f"{allocation.setting}. Speed-up over a single process ({_base_rate(allocation)}), paired within rounds; "
        f"whiskers are 95 % t-intervals over launches ({launches_each(job.launches for job in allocation.jobs)}). "
        f"Dotted: ideal. Dashed: an efficiency of {allocation.cut:g}. Lines between points only guide the eye."
    )
    sized = [job for job in allocation.jobs if not job.base]
    alt = (
        f"Line chart, both axes logarithmic, of speed-up (no unit) against number of ranks for {allocation.name}: "
        + ", ".join(f"{_estimate(job.speedup)} at {ranks(job.world_size)}" for job in sized)
        + "."
    )
    columns = (Column("Ranks", number=True), Column("Speed-up", number=True))
    rows = tuple(
        (Cell.count(job.world_size), Cell.estimate(_estimate(job.speedup))) for job in allocation.jobs
    )
    return Picture(
        file_name="allocation",
        heading=heading,
        caption=caption,
        alt=alt,
        table=Table(caption="Speed-up by number of ranks", columns=columns, rows=rows),
        width_in=style.SMALL_WIDTH_IN,
        height_in=3.8,
        paint=partial(_paint, allocation=allocation),
        missing={},
    )


def _paint(sheet: Sheet, *, allocation: Allocation) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes = sheet.axes(0.6, 0.5, sheet.width_in - 1.7, 3.15)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    sized = [job for job in allocation.jobs if not job.base]
    sizes = sorted({job.world_size for job in allocation.jobs})
    low, high = 0.87, sizes[-1] * 1.15
    for factor, line, name in ((1.0, ":", "ideal"), (allocation.cut, "--", f"efficiency {allocation.cut:g}")):
        axes.plot(
            [low, high], [factor * low, factor * high], line, color=style.MUTED, linewidth=1.1, zorder=1
        )
        axes.annotate(
            name,
            (high, factor * high),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.NOTE_PT,
            color=style.MUTED,
            annotation_clip=False,
        )
    base = style.look(BASE)
    axes.plot([1], [1], base.marker, color=base.colour, markersize=6, zorder=3)
    look = style.look(allocation.strategy)
    estimates = [_estimate(job.speedup) for job in sized]
    axes.errorbar(
        [job.world_size for job in sized],
        [e.value for e in estimates],
        yerr=[
            [e.value - e.low if e.low is not None else 0.0 for e in estimates],
            [e.high - e.value if e.high is not None else 0.0 for e in estimates],
        ],
        fmt=look.marker,
        linestyle="-",
        linewidth=0.9,
        color=look.colour,
        markersize=6,
        markeredgecolor=look.outline or look.colour,
        elinewidth=1.2,
        capsize=2.5,
        zorder=3,
    )
    chosen = allocation.chosen
    axes.plot(
        [chosen.world_size],
        [chosen.speedup.value],
        "o",
        markersize=14,
        markerfacecolor="none",
        markeredgecolor=style.INK,
        markeredgewidth=1.0,
        zorder=4,
    )
    axes.annotate(
        "chosen",
        (chosen.world_size, chosen.speedup.value),
        xytext=(9, -12),
        textcoords="offset points",
        fontsize=style.NOTE_PT,
        color=style.INK,
    )
    values = [bound for e in estimates for bound in (e.value, e.low) if bound and bound > 0]
    bottom, top = (
        min([low * allocation.cut, *values]) / 1.05,
        max(high, *(e.high or e.value for e in estimates)) * 1.1,
    )
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, top)
    axes.set_xlabel("ranks")
    axes.set_ylabel("speed-up")
    axes.grid(visible=True, axis="y")
    shown = sizes if len(sizes) <= 8 else [size for size in sizes if size.bit_count() == 1]
    exponents = range(math.ceil(math.log2(bottom)), math.floor(math.log2(top)) + 1)
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in shown]))
    axes.yaxis.set_major_locator(FixedLocator([2.0**k for k in exponents]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
