"""`ddpbench sweep --dry-run`: the cases, how many launches they take and how long. Starts nothing."""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddpbench.launch.estimate import SERVER_START_S, about, server_starts_s
from ddpbench.launch.plan import plan_launch, to_prove
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.units import format_seconds

if TYPE_CHECKING:
    from ddpbench.launch.sweep.preparation import Prepared
    from ddpbench.records.rundir import Purpose
    from ddpbench.spec import Case, Catalog, PlannedCase

WIDEST = 100
"""Columns of the table at most; a terminal of fewer gets what it has."""
_NARROWEST = 60
_GAP = "  "
_NO_BREAK = "\N{NO-BREAK SPACE}"
_JOINT = " · "
"""Between the words of a label, where a long one is broken."""


def columns_here() -> int:
    """Return the width to print for: the terminal's, or `WIDEST` where that is less or there is none."""
    return max(_NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))


def table(prepared: Prepared, width: int) -> list[str]:
    """Return the sweep as a table of its cases, with what each takes, what all take, and which are skipped."""
    plan, budget = prepared.plan, prepared.experiment.budget
    rounds, proofs, names = budget.rounds_min, to_prove(plan.runnable), plan.labels()
    labels, shared = _without_shared(
        {entry.case.case_id: names[entry.case.case_id] for entry in plan.runnable}
    )
    launch_s = {entry.case.case_id: plan.launch_s(entry.case) for entry in plan.runnable}
    rows = [("case", "launches", "each", "total")]
    for entry in plan.runnable:
        each_s = launch_s[entry.case.case_id]
        label = _JOINT.join([labels[entry.case.case_id], *_marks(entry)])
        rows.append((label, str(rounds), _seconds(each_s), _seconds(rounds * each_s)))
    proofs_s = sum(plan.proof_s(case) for case in proofs)
    shared_machine = own_environment_allows_sharing()
    servers_s = server_starts_s(rounds, shared=shared_machine)
    often = "once" if shared_machine else "once a round"
    rows.append(("proofs, before the first round", str(len(proofs)), "", _seconds(proofs_s)))
    rows.append((f"starting torch, {often}", "", _seconds(SERVER_START_S), _seconds(servers_s)))
    lines = [*_wrapped(f"{prepared.experiment.name}: {prepared.experiment.question}".rstrip(": "), width)]
    lines.append(f"run directory: {prepared.run.path}")
    lines += [line for note in prepared.notes for line in _wrapped(note, width, indent=2)]
    lines += _wrapped(f"all cases: {_JOINT.join(shared)}", width) if shared else []
    lines += ["", *_aligned(rows, width), ""]
    count = len(plan.runnable)
    lines += _wrapped(
        f"{_many(count, 'case')}, {_many(rounds * count, 'launch', 'launches')} in {_many(rounds, 'round')}, "
        f"{_many(len(proofs), 'proof')}: {_total(prepared)}",
        width,
    )
    skipped = [entry for entry in plan.cases if entry.skip_reason is not None]
    if skipped:
        lines += ["", f"skipped: {_many(len(skipped), 'case')}"]
        for entry in skipped:
            lines += _wrapped(f"  {names[entry.case.case_id]}: {entry.skip_reason}", width, indent=4)
    return lines


def launches(prepared: Prepared, catalog: Catalog) -> Iterator[str]:
    """Yield every launch of the first `rounds_min` rounds in order, the proofs first, with each rank's command line."""
    plan, rounds = prepared.plan, prepared.experiment.budget.rounds_min
    names = plan.labels()
    yield _order_words(prepared)
    for case in to_prove(plan.runnable):
        yield f"proof     {case.case_id}  {names[case.case_id]}"
        yield from _commands(prepared, catalog, case, "proof", 0)
    for number, case_id in plan.order:
        if number < rounds:
            yield f"round {number + 1:<3} {case_id}  {names[case_id]}"
            yield from _commands(prepared, catalog, plan.case(case_id).case, "measure", number)


def _order_words(prepared: Prepared) -> str:
    """Return where the printed order comes from."""
    seed = prepared.experiment.budget.seed
    if prepared.draws_seed:
        return f"order of launches: an example (seed {seed}); each run draws its own, or takes budget.seed"
    return f"order of launches: seed {seed}"


def _commands(
    prepared: Prepared, catalog: Catalog, case: Case, purpose: Purpose, number: int
) -> Iterator[str]:
    launch = plan_launch(
        case,
        purpose,
        number,
        directory=prepared.run.launch(case.case_id, purpose, number),
        hardware=prepared.hardware,
        catalog=catalog,
        gpu_addresses=prepared.hardware.gpu_addresses,
    )
    what = "proof" if purpose == "proof" else str(number)
    return (f"    {rank.command(prepared.run, case.case_id, what)}" for rank in launch.ranks)


def _without_shared(names: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the labels without the words that all of them have, and these words."""
    parts = {case_id: name.split(_JOINT) for case_id, name in names.items()}
    first, *others = parts.values()
    shared = [word for word in first[1:] if others and all(word in other[1:] for other in others)]
    kept = {
        case_id: _JOINT.join([words[0], *(word for word in words[1:] if word not in shared)])
        for case_id, words in parts.items()
    }
    return kept, shared


def _marks(entry: PlannedCase) -> list[str]:
    return [
        *(["base case of the speed-ups"] if entry.added_as_baseline else []),
        *(["oversubscribed"] if entry.oversubscribed else []),
    ]


def _total(prepared: Prepared) -> str:
    """Return how long all of it takes, with as few rounds as it may have and with as many."""
    plan, budget = prepared.plan, prepared.experiment.budget
    least, most = (
        plan.estimate_s(rounds, shared=own_environment_allows_sharing())
        for rounds in (budget.rounds_min, budget.rounds_max)
    )
    told = f"{about(budget)} {_seconds(least)} for {_many(budget.rounds_min, 'round')}"
    if least > budget.total:
        shared = own_environment_allows_sharing()
        fitting = (n for n in range(budget.rounds_min) if plan.estimate_s(n, shared=shared) <= budget.total)
        room = max(fitting, default=0)
        return f"{told}, and budget.total, {_seconds(budget.total)}, has room for {room} of them"
    if budget.rounds_max == budget.rounds_min:
        return told
    longest = _seconds(min(most, budget.total))
    return (
        f"{told}; up to {budget.rounds_max} rounds ({longest}) while intervals are wider than "
        f"±{100 * budget.target_half_width:g} %"
    )


def _seconds(seconds: float) -> str:
    """Return an estimate: it is not known to more than whole seconds from ten on."""
    return format_seconds(math.ceil(seconds) if seconds >= 10 else round(seconds, 1))


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def _aligned(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the rows in columns: the first broken between words where it is long, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(1, len(rows[0]))]
    beside = sum(widths) + len(_GAP) * len(widths)
    first = min(max(len(row[0]) for row in rows), width - beside)
    for label, *cells in rows:
        head, *rest = _broken(label, first)
        told = "".join(f"{_GAP}{cell:>{size}}" for cell, size in zip(cells, widths, strict=True))
        yield f"{head:<{first}}{told}".rstrip()
        yield from rest


def _broken(label: str, width: int) -> list[str]:
    """Return a label in lines, broken between its parts where they fit, else between words."""
    lines = [""]
    for part in label.split(_JOINT):
        joined = f"{lines[-1]}{_JOINT}{part}" if lines[-1].strip() else f"{lines[-1]}{part}"
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines += _wrapped(f"  {part}", width, indent=2)
    return [line for line in lines if line.strip()]


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Return lines of whole words; a number stays with its unit."""
    joined = re.sub(r"(?<=\d) (?=[^\s\d])", _NO_BREAK, text)
    lines = textwrap.wrap(
        joined, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]
