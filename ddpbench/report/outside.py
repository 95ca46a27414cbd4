"""Add texts to pictures for use outside the page: the conditions under which their numbers hold, and the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddpbench.analysis.sentences import Sentence, but, headline
from ddpbench.analysis.summary import RunSummary
from ddpbench.picture_formats import PictureFormats
from ddpbench.report.captions import shared_setting
from ddpbench.report.figure_texts import fitted
from ddpbench.report.parts import Picture
from ddpbench.report.rows import Row
from ddpbench.report.words import launches_each, moment
from ddpbench.spec.grouping import VIRTUAL
from ddpbench.text_safety import clean


def dressed(
    summary: RunSummary, rows: Sequence[Row], pictures: Iterable[Picture], wanted: PictureFormats
) -> list[Picture]:
    """Return the pictures with a subtitle, a source line and the `wanted` formats.

    Phrases that the subtitle or the heading states are removed from the captions. Headings and captions are shortened
    to fit (`figure_texts.fitted`).
    """
    every, source = conditions(rows), source_line(summary)
    return [
        fitted(
            replace(
                picture,
                heading=headline(picture.heading),
                subtitle=_subtitle(picture, every),
                caption=but(picture.caption, _stated_in(picture, every)),
                source=source,
                wanted=wanted,
            )
        )
        for picture in pictures
    ]


def conditions(rows: Sequence[Row]) -> list[str]:
    """Return phrases that state the settings that all cases of a run share, and the number of launches.

    Phrases on emulation are left out, because each picture states them.
    """
    measured = [row for row in rows if row.launches]
    if not measured:
        return []
    return [*shared_setting(measured, but=VIRTUAL), launches_each(row.launches for row in measured)]


def source_line(summary: RunSummary) -> str:
    """Return one line that names the program, the run, its date and the machine's hardware, but not the host."""
    identity, context = (_part(summary.about.machine, name) for name in ("identity", "context"))
    cores, torch, commit = identity.get("cores"), identity.get("torch"), context.get("git_commit")
    gpus = identity.get("gpus")
    counted = f"{len(cores)} cores of " if isinstance(cores, Sequence) and len(cores) > 1 else ""
    machine = ", ".join(str(gpu) for gpu in gpus) if isinstance(gpus, Sequence) and gpus else ""
    machine = machine or (f"{counted}{identity['cpu']}" if identity.get("cpu") else "")
    version = context.get("ddpbench_version")
    program = f"ddpbench {version}" if version else "ddpbench"
    parts = [
        f"{program}{f' ({commit})' if commit else ''}, run {Path(summary.about.run_path).name or summary.about.name}",
        moment(context["started_utc"]) if context.get("started_utc") else "",
        machine,
        f"torch {torch}" if torch else "",
    ]
    return clean(f"Source: {' · '.join(part for part in parts if part)}")


def _stated_in(picture: Picture, every: Sequence[str]) -> set[str]:
    """Return the phrases that the picture states outside its caption; `every` holds conditions shared by all cases."""
    own = picture.caption.conditions if isinstance(picture.caption, Sentence) else ()
    return {
        *every,
        *picture.label,
        picture.group,
        *(word for word in own if word in picture.heading),
    }


def _subtitle(picture: Picture, every: Sequence[str]) -> str:
    words = [*filter(None, [picture.group]), *every[:-1], *picture.label, *every[-1:]]
    outside = [word for word in dict.fromkeys(words) if word not in picture.heading]
    brackets = ["brackets: 95 % intervals"] if "[" in picture.heading else []
    return ", ".join([*outside, *brackets])


def _part(machine: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = machine.get(name)
    return part if isinstance(part, Mapping) else {}
