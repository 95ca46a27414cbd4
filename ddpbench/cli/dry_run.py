"""`ddpbench sweep --dry-run`: print the cases, their launches and estimated time, and start nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpbench.cli.lines import aligned, wrapped
from ddpbench.cli.resolution import resolution_words, rounds_within
from ddpbench.launch.memory import free_bytes, least_bytes
from ddpbench.launch.plan import plan_launch
from ddpbench.launch.sweep.earlier import earlier_rounds
from ddpbench.launch.sweep.waiting_memory import waiting_memory
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.runtime.equal_caps import open_words
from ddpbench.runtime.estimate import about, is_unknown, report_s, server_starts_s
from ddpbench.runtime.progress import Done, to_prove
from ddpbench.text_safety import JOINT
from ddpbench.units import format_bytes, format_seconds, series_of

if TYPE_CHECKING:
    from ddpbench.launch.sweep.preparation import Prepared
    from ddpbench.records.rundir import Purpose
    from ddpbench.spec import Case, Catalog, PlannedCase


_MUCH_BYTES = 2**30


def table(prepared: Prepared, width: int) -> list[str]:
    """Return the lines of a dry run: a table of cases with their times, the total, the skipped cases and the claims."""
    plan, budget = prepared.plan, prepared.experiment.budget
    rounds, proofs, names = budget.rounds_min, to_prove(plan.runnable), plan.names
    shared = names.shared(entry.case for entry in plan.runnable)
    launch_s = {entry.case.case_id: plan.launch_s(entry.case) for entry in plan.runnable}
    rows = [("case", "launches", "each", "total")]
    for entry in plan.runnable:
        each_s = launch_s[entry.case.case_id]
        label = JOINT.join([names.full(entry.case, but=shared), *_marks(entry)])
        times = (_seconds(each_s), _seconds(rounds * each_s))
        rows.append((label, str(rounds), *(("unknown", "") if _unknown(prepared, entry) else times)))
    proofs_s = sum(plan.proof_s(case) for case in proofs)
    shared_machine = own_environment_allows_sharing()
    cases = [entry.case for entry in plan.runnable]
    servers_s = server_starts_s(rounds, cases, shared=shared_machine)
    once_s = server_starts_s(1, cases, shared=shared_machine)
    often = "once" if shared_machine else "once a round"
    tried = not any(_unknown(prepared, entry) for entry in plan.runnable)
    proofs_time = _seconds(proofs_s) if tried else ""
    rows.append(("proofs, before the first round", str(len(proofs)), "", proofs_time))
    rows.append((f"starting torch, {often}", "", _seconds(once_s), _seconds(servers_s)))
    rows.append(("report, at the end", "", "", _seconds(report_s(len(plan.cases)))))
    lines = [*wrapped(f"{prepared.experiment.name}: {prepared.experiment.question}".rstrip(": "), width)]
    lines.append(f"run directory: {prepared.run.path}")
    lines += [line for note in prepared.notes for line in wrapped(note, width, indent=2)]
    lines += (
        wrapped(text, width, indent=2) if (text := open_words(plan.cases)) and not prepared.resumes else []
    )
    lines += wrapped(f"all cases: {JOINT.join(shared)}", width) if shared else []
    lines += ["", *aligned(rows, width), ""]
    count = len(plan.runnable)
    lines += wrapped(
        f"{_many(count, 'case')}, {_many(rounds * count, 'launch', 'launches')} in {_many(rounds, 'round')}, "
        f"{_many(len(proofs), 'proof')}: {_total(prepared)}",
        width,
    )
    resolution = resolution_words(plan, shared=shared_machine, earlier=earlier_rounds(prepared))
    lines += wrapped(resolution, width, indent=2) if resolution else []
    if prepared.resumes and tried and prepared.run.cases.is_dir():  # a packed run would have to be unpacked
        lines += wrapped(_left(prepared), width)
    for text in filter(None, (_memory(prepared), _waiting(prepared))):
        lines += wrapped(text, width)
    skipped = [entry for entry in plan.cases if entry.skip_reason is not None]
    if skipped:
        lines += ["", f"skipped: {_many(len(skipped), 'case')}"]
        for entry in skipped:
            lines += wrapped(f"  {names.full(entry.case)}: {entry.skip_reason}", width, indent=4)
    return [*lines, *_claims(prepared, width)]


def _claims(prepared: Prepared, width: int) -> list[str]:
    claims = prepared.plan.claims
    entries = {entry.case.case_id: entry for entry in prepared.plan.cases}
    lines = ["", f"claims: {len(claims)}"] if claims else []
    for claim in claims:
        pairs = [(entries[a], entries[b]) for a, b in claim.pairs]
        skipped = sum(any(entry.skip_reason is not None for entry in pair) for pair in pairs)
        crowded = sum(any(entry.oversubscribed for entry in pair) for pair in pairs)
        parts = [
            f"{_many(len(pairs), 'pair')} of cases",
            *([f"{skipped} with a skipped case"] if skipped else []),
            *(
                [f"{crowded} with an oversubscribed case, which counts only if the cores are mostly idle"]
                if crowded
                else []
            ),
        ]
        lines += wrapped(f"  {claim.says}: {', '.join(parts)}", width, indent=4)
    return lines


def launches(prepared: Prepared, catalog: Catalog) -> Iterator[str]:
    """Yield a line for each proof and each launch of the first `rounds_min` rounds, with the ranks' command lines."""
    plan, rounds = prepared.plan, prepared.experiment.budget.rounds_min
    names = plan.names
    yield _order_words(prepared)
    for case in to_prove(plan.runnable):
        yield f"proof     {case.case_id}  {names.full(case)}"
        yield from _commands(prepared, catalog, case, "proof", 0)
    for number, case_id in plan.order:
        if number < rounds:
            case = plan.case(case_id).case
            yield f"round {number + 1:<3} {case_id}  {names.full(case)}"
            yield from _commands(prepared, catalog, case, "measure", number)


def _order_words(prepared: Prepared) -> str:
    seed = prepared.experiment.budget.seed
    if prepared.draws_seed:
        return (
            f"order of launches, as an example (seed {seed}); each run draws a new order unless budget.seed "
            "is set"
        )
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


def _marks(entry: PlannedCase) -> list[str]:
    return [
        *(["base case of the speed-ups"] if entry.added_as_baseline else []),
        *(["oversubscribed"] if entry.oversubscribed else []),
    ]


def _unknown(prepared: Prepared, entry: PlannedCase) -> bool:
    case = entry.case
    return is_unknown(case, prepared.plan.tried.get(case.workload_with_options))


def _memory(prepared: Prepared) -> str:
    known = [(least_bytes(entry.case) or 0, entry.case) for entry in prepared.plan.runnable]
    most, case = max(known, key=lambda one: one[0], default=(0, None))
    if case is None or most < _MUCH_BYTES:
        return ""
    name = prepared.plan.names.full(case)
    return f"memory: at least {format_bytes(most)} for {name}: parameters, gradients and optimizer state of its ranks"


def _waiting(prepared: Prepared) -> str:
    plan, turns = prepared.plan, prepared.experiment.budget.turns
    found = waiting_memory(plan.runnable, turns, plan.step_bytes, free_bytes())
    return f"memory while blocks alternate: {found}" if found is not None else ""


def _total(prepared: Prepared) -> str:
    plan, budget = prepared.plan, prepared.experiment.budget
    unknown = [entry.case.workload for entry in plan.runnable if _unknown(prepared, entry)]
    drawn_s = report_s(len(plan.cases))
    if unknown:
        names = series_of(list(dict.fromkeys(unknown)))
        return (
            f"their time and memory are unknown. A sweep tries {names} when it starts, and then prints "
            f"how many rounds fit into budget.total, {_seconds(budget.total)}"
        )
    shared = own_environment_allows_sharing()
    least, room = plan.estimate_s(budget.rounds_min, shared=shared), rounds_within(plan, shared=shared)
    text = f"{about(budget)} {_seconds(least + drawn_s)} for {_many(budget.rounds_min, 'round')}"
    if least > budget.total:
        return f"{text}; only {room} of them fit into budget.total, {_seconds(budget.total)}"
    if room == budget.rounds_min:
        return text
    longest = _seconds(plan.estimate_s(room, shared=shared) + drawn_s)
    return (
        f"{text}; up to {room} rounds ({longest}) while intervals are wider than "
        f"±{100 * budget.target_half_width:g} %"
    )


def _left(prepared: Prepared) -> str:
    done = Done(prepared.run, prepared.plan)
    done.read()
    left_s = prepared.plan.left_s(done, shared=own_environment_allows_sharing())
    left_s += report_s(len(prepared.plan.cases))
    return (
        f"launches done already: {len(done.endings)}; {about(prepared.plan.budget)} {_seconds(left_s)} to go"
    )


def _seconds(seconds: float) -> str:
    return format_seconds(math.ceil(seconds) if seconds >= 10 else round(seconds, 1))


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"
