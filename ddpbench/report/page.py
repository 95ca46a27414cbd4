"""Assemble the page: order its sections, number its tables, draw and embed its figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from ddpbench.analysis.finding import Finding, each_tag_once
from ddpbench.analysis.findings.wording import LATE
from ddpbench.analysis.sentences import but, headline
from ddpbench.analysis.summary import Conclusions, RunSummary
from ddpbench.analysis.table.columns import meanings
from ddpbench.analysis.table.frame import csv_of
from ddpbench.installed import with_features
from ddpbench.picture_formats import ONLY_PNG, PictureFormats
from ddpbench.report.captions import emulation_words, shared_words
from ddpbench.report.draw.canvas import DrawnPicture
from ddpbench.report.draw.painter import Painter, draw_all
from ddpbench.report.embedded import (
    TERMS_HERE,
    Embedded,
    NumberedTable,
    TableCounter,
    data_address,
    labelled,
    with_pictures,
    with_terms,
)
from ddpbench.report.folds import MOST_LIMITS, folded, in_short, open_findings, without_repeats
from ddpbench.report.of_packages import OfPackage, Taken, ids_of, ids_of_page, sections_of_packages
from ddpbench.report.outside import dressed
from ddpbench.report.parts import Picture, Section
from ddpbench.report.rows import Row, rows_of
from ddpbench.report.sections import (
    breakdown,
    buckets,
    checkpoints,
    claims,
    communication,
    inputs,
    laws,
    layouts,
    links,
    memory,
    network,
    one_step,
    precision,
    scaling,
    startup,
    step_times,
    strategies,
    time_to_loss,
    waterfall,
)
from ddpbench.report.summary_json import embedded_json
from ddpbench.report.tables.cases import summary_table
from ddpbench.report.tables.data_parallel import data_parallel_section, phases_table
from ddpbench.report.tables.failures import failures_table
from ddpbench.report.tables.proofs import proofs_line, proofs_table
from ddpbench.report.tables.provenance import fabrics_table, machine_table
from ddpbench.report.templates import environment
from ddpbench.report.words import moment, percent, series_of
from ddpbench.spec import Case
from ddpbench.spec.documents import parse
from ddpbench.strategies.traits import traits_of
from ddpbench.text_safety import clean, command
from ddpbench.units import counted, format_at_most, format_seconds
from ddpbench.version import VERSION

_HERE = Path(__file__).parent
FIGURES: Mapping[str, Callable[[RunSummary, Sequence[Row]], Section | None]] = {
    "claims": lambda run, rows: claims.section(run.conclusions.claims, rows),
    "scaling": lambda run, rows: scaling.section(run.conclusions.claims, rows),
    "layouts": lambda run, rows: layouts.section(run.steps, rows),
    "network": lambda run, rows: network.section(run.communication.network, rows),
    "links": lambda run, rows: links.section(run.steps, rows),
    "laws": lambda run, rows: laws.section(run.steps.laws, rows),
    "strategies": lambda run, rows: strategies.section(run.steps.launches, run.conclusions.findings, rows),
    "time_to_loss": lambda run, rows: time_to_loss.section(run.training, rows),
    "precision": lambda run, rows: precision.section(run.steps, rows),
    "breakdown": lambda run, rows: breakdown.section(run.steps.breakdown, run.conclusions.checks, rows),
    "waterfall": lambda run, rows: waterfall.section(run.steps.waterfall, rows, first=_answered(run)),
    "step_times": lambda run, rows: step_times.section(
        run.steps.by_rank, run.conclusions.checks, rows, first=_answered(run)
    ),
    "one_step": lambda run, rows: one_step.section(run.steps, rows),
    "inputs": lambda run, rows: inputs.section(run.inputs, rows),
    "buckets": lambda run, rows: buckets.section(run.steps, rows),
    "communication": lambda run, rows: communication.section(run.communication.transfers, rows),
    "memory": lambda _, rows: memory.section(rows),
    "checkpoints": lambda run, rows: checkpoints.section(run.checkpoints, rows),
    "startup": lambda _, rows: startup.section(rows),
}
"""Functions that make the page's sections, in the page's order. Each section has one file or folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The finished page, and its picture files by path in the run directory."""

    html: str
    figures: Mapping[str, bytes]


_Placed = list[tuple[Section, list[Embedded], list[NumberedTable], bool]]
"""For each section: its numbered figures, its other tables, and whether all of these are folded."""


def build(summary: RunSummary, painter: Painter | None = None, wanted: PictureFormats = ONLY_PNG) -> Page:
    """Return the page of a run and its picture files. Equal summaries give equal bytes."""
    rows = rows_of(summary)
    numbers = TableCounter()
    shared = shared_words(rows)
    found = sections_of(summary, rows)
    pictures = [picture for section in found for picture in section.pictures]
    identity = _part(summary.about.machine, "identity")
    drawing = dressed(summary, rows, [labelled(picture) for picture in pictures], wanted)
    if painter is not None:
        painter.start(drawing)
    # While other processes draw, this one makes the rest of the page.
    all_cases = summary_table(summary, rows)
    own_phases = data_parallel_section(summary.steps.phases, rows)
    core = [*found, *([own_phases] if own_phases is not None else [])]
    found_more = _of_packages(summary, rows, core, ids=all_cases.row_ids, wanted=wanted)
    found += [one.section for one in found_more]
    made = [section for section in found if section.shows]
    without_figure = [section for section in found if not section.shows]
    every_case = numbers.sure(all_cases)
    sections = _placed(made, numbers, shared, summary.conclusions.answer)
    proved = all(one.passed for one in summary.training.proofs)
    html = (
        _environment(shared)
        .get_template("page.html")
        .render(
            summary=summary,
            title=f"{summary.about.name} \N{MIDDLE DOT} ddpbench report",
            **_conclusions(summary.conclusions, found, shared),
            shared=list(shared),
            left_out=emulation_words(rows, identity.get("cores")),
            virtual=any(row.emulated for row in rows),
            without_figure=without_figure,
            in_short=_in_short(summary),
            summary_table=every_case,
            sections=sections,
            data_parallel=own_phases,
            proofs_line=proofs_line(summary.training.proofs),
            proofs_passed=proved,
            terms_here=TERMS_HERE,
            column_meanings=meanings(),
            **_closing_tables(summary, rows, _missing_from(sections), numbers),
            **_words_on_run(summary),
            **_downloads(summary),
        )
    )
    drawn = painter.drawn() if painter is not None else draw_all(drawing)
    drawn += [picture for one in found_more for picture in one.drawn]
    return Page(
        html=with_pictures(with_terms(html), drawn),
        figures={path: content for one in drawn for path, content in one.files.items()},
    )


def sections_of(summary: RunSummary, rows: Sequence[Row]) -> list[Section]:
    """Return the sections that ddpbench itself makes for this run, in the page's order."""
    made = (make(summary, rows) for make in with_features("section", FIGURES).values())
    return [section for section in made if section is not None]


def _answered(summary: RunSummary) -> list[str]:
    return [case for one in summary.conclusions.answer for case in one.cases]


def _of_packages(
    summary: RunSummary,
    rows: Sequence[Row],
    core: Sequence[Section],
    *,
    ids: Iterable[str],
    wanted: PictureFormats,
) -> list[OfPackage]:
    taken = Taken(
        ids=ids_of_page() | ids_of(core) | {*ids},
        file_names=[picture.file_name for section in core for picture in section.pictures],
    )

    def drawn(picture: Picture) -> DrawnPicture:
        (one,) = draw_all(dressed(summary, rows, [picture], wanted))
        return one

    return list(sections_of_packages((summary, rows), taken, _environment(()), drawn))


def _downloads(summary: RunSummary) -> Mapping[str, str]:
    return {
        "csv": data_address("text/csv", csv_of(summary.cases)),
        "json": data_address("application/json", embedded_json(summary)),
    }


def _placed(
    made: Sequence[Section], numbers: TableCounter, shared: Collection[str], answer: Sequence[Finding]
) -> _Placed:
    count = itertools.count(1)
    sections: _Placed = []
    for section in made:
        embedded = [
            Embedded(
                picture=picture,
                number=next(count),
                table=numbers.sure(picture.table),
                shared=shared,
                folded=in_fold,
            )
            for picture, in_fold in zip(section.pictures, folded(section, answer), strict=True)
        ]
        beneath = [numbers.sure(table) for table in section.tables]
        shut = all(one.folded for one in embedded) and all(table.fold for table in section.tables)
        sections.append((section, embedded, beneath, shut))
    return sections


def _missing_from(sections: _Placed) -> Mapping[str, Sequence[int]]:
    affected: dict[str, list[int]] = {}
    for _, embedded, *_ in sections:
        for one in embedded:
            for case_id in one.picture.missing:
                affected.setdefault(case_id, []).append(one.number)
    return affected


def _conclusions(
    said: Conclusions, sections: Sequence[Section], shared: Collection[str]
) -> Mapping[str, object]:
    answer = _anchored(each_tag_once(said.answer), sections, shared)
    further = list(dict.fromkeys(tag for finding, _ in answer for tag in finding.further))
    limits = [*said.validity, *([f"The answer: {'; '.join(further)}."] if further else [])]
    findings = without_repeats(said.findings, said.answer)
    stated = {*shared, *_qualified_once(said.answer)}
    common = {
        tag: numbers for tag, numbers in _holders(findings).items() if len(numbers) > 1 and tag not in stated
    }
    anchored = _anchored(findings, sections, {*stated, *common})
    shown = open_findings(findings)
    return {
        "banners": [*filter(None, [said.checks.banner]), *said.warnings],
        "answer": answer,
        "findings": anchored[:shown],
        "more_findings": anchored[shown:],
        "common_tags": [(f"Findings {series_of(numbers)}", tag) for tag, numbers in common.items()],
        "limits": [*map(in_short, limits[:MOST_LIMITS])],
        "more_limits": [*map(in_short, limits[MOST_LIMITS:])],
    }


def _holders(findings: Iterable[Finding]) -> Mapping[str, list[str]]:
    holders: dict[str, list[str]] = {}
    for number, finding in enumerate(findings, start=1):
        for tag in finding.tags:
            holders.setdefault(tag, []).append(f"{number}")
    return holders


def _anchored(
    findings: Iterable[Finding], sections: Sequence[Section], shared: Collection[str]
) -> Sequence[tuple[Finding, str]]:
    anchors = {"summary", "method", "provenance", "validity"} | {section.anchor for section in sections}
    return [
        (
            replace(
                finding,
                text=finding.text.but(shared),
                tags=tuple(tag for tag in finding.tags if tag not in shared),
            ),
            finding.evidence if finding.evidence in anchors else "summary",
        )
        for finding in findings
    ]


def _qualified_once(answer: Iterable[Finding]) -> set[str]:
    return {
        tag for finding in answer for tag in finding.tags if "launch" not in tag and not tag.startswith(LATE)
    }


def _closing_tables(
    summary: RunSummary, rows: Sequence[Row], affected: Mapping[str, Sequence[int]], numbers: TableCounter
) -> Mapping[str, NumberedTable | None]:
    of_cores = (
        " (of cores, in how many there are)" if "slots" in _part(summary.about.machine, "identity") else ""
    )
    identity = machine_table(
        summary.about.machine, "identity", f"Identity: a resume refuses a difference{of_cores}"
    )
    context = machine_table(summary.about.machine, "context", "Context: recorded, and may differ")
    return {
        "phases": numbers.table(phases_table(summary.steps.phases, rows)),
        "failures": numbers.table(failures_table(summary.course.failures, rows, affected)),
        "proofs": numbers.table(proofs_table(summary.training.proofs, rows)),
        "identity": numbers.sure(identity),
        "machine_context": numbers.sure(context),
        "fabrics": numbers.table(fabrics_table(summary.communication.fabrics)),
    }


def _words_on_run(summary: RunSummary) -> Mapping[str, object]:
    context = _part(summary.about.machine, "context")
    return {
        "context": context,
        "started": moment(context.get("started_utc")),
        "counts": count_words(summary),
        "budget": _part(_experiment(summary), "budget"),
        "scope": clean(summary.about.scope).strip(),
        "used": used_words(summary),
        "measured_share": None
        if summary.course.measured_share is None
        else percent(summary.course.measured_share),
        "wall": format_seconds(summary.course.wall_s),
        "command": _resumes(summary),
        "report_command": command("ddpbench", "report", Path(summary.about.run_path)),
        "version": VERSION,
    }


def _in_short(summary: RunSummary) -> str:
    counts, context = summary.course.counts, _part(summary.about.machine, "context")
    failed = f"{counts.failed:,} failed" if counts.failed else "none failed"
    made = counts.succeeded + counts.failed
    of = f" of {counts.planned:,}" if made < counts.planned else ""
    launches = f"{made:,}{of} {'launch' if made == counts.planned == 1 else 'launches'}"
    parts = [
        f"{counts.cases:,} cases",
        f"{counts.skipped_cases:,} skipped" if counts.skipped_cases else "",
        f"{launches} in {counted(counts.rounds, 'round')}, {failed}",
        moment(context.get("started_utc")),
        format_seconds(summary.course.wall_s),
    ]
    return " \N{MIDDLE DOT} ".join(word for word in parts if word)


def count_words(summary: RunSummary) -> Sequence[tuple[str, str]]:
    """Return the labels and values of the counts at the head of the page."""
    counts = summary.course.counts
    return (
        ("Launches planned", f"{counts.planned:,}"),
        ("succeeded", f"{counts.succeeded:,}"),
        ("failed", f"{counts.failed:,}"),
        ("Cases", f"{counts.cases:,}"),
        ("skipped", f"{counts.skipped_cases:,}"),
        ("Rounds", f"{counts.rounds:,}"),
    )


def _environment(shared: Collection[str]) -> jinja2.Environment:
    templates = environment()
    templates.filters["headline"] = headline
    templates.filters["counted"] = counted
    templates.filters["at_most"] = format_at_most
    templates.filters["exactly"] = _exactly
    templates.filters["unshared"] = partial(but, shown=shared)
    return templates


def _exactly(text: str) -> Markup:
    """Return HTML that readers can copy unchanged from the page."""
    return Markup(escape(clean(text)))


def _part(machine: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = machine.get(name)
    return part if isinstance(part, Mapping) else {}


def _resumes(summary: RunSummary) -> str:
    context, path = _part(summary.about.machine, "context"), Path(summary.about.run_path)
    if "submitted_nodes" in context:
        return command("ddpbench", "submit", path.parent)
    if "planned_nodes" in context:
        return command("ddpbench", "plan", path)
    return command("ddpbench", "sweep", path / "experiment.toml")


def _experiment(summary: RunSummary) -> Mapping[str, object]:
    try:
        return parse(summary.about.experiment_toml)
    except ValueError:
        return {}


def used_words(summary: RunSummary) -> str:
    """Say how many of the machine's cores and GPUs the largest case used; empty if their total numbers are not known.

    The numbers are unknown for a run on several machines or jobs, because its nodes may differ.
    """
    identity = _part(summary.about.machine, "identity")
    cases = [summary.planned[one.case_id] for one in summary.by_case if one.status != "skipped"]
    if (
        summary.about.merged_from
        or "slots" in identity
        or any(case.nodes > 1 and not case.fabric for case in cases)
    ):
        return ""
    uses = []
    for noun, key, device in (("logical core", "cores", "cpu"), ("GPU", "gpus", "cuda")):
        here = identity.get(key)
        mine = [case for case in cases if case.device == device]
        if not mine or not isinstance(here, Sequence) or isinstance(here, str) or not here:
            continue
        used = min(
            len(here),
            max(_used_cores(case, len(here)) if device == "cpu" else case.world_size for case in mine),
        )
        quota = identity.get("cpu_quota")
        if device == "cpu" and isinstance(quota, int | float):
            used = max(1, min(used, math.ceil(quota)))
        uses.append((used, f"{used} of {counted(len(here), noun)}"))
    if not uses:
        return ""
    verb = "was" if [used for used, _ in uses] == [1] else "were"
    return f"At most {' and '.join(words for _, words in uses)} {verb} used."


def _used_cores(case: Case, here: int) -> int:
    if case.compute != "real":
        return here
    processes = 1 if traits_of(case).one_process else case.world_size
    return case.world_size * case.threads_per_rank + processes * case.loader_workers
