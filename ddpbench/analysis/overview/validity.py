"""Sentences that say what limits a run's numbers, each with the number of cases concerned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ddpbench.analysis.findings.groups import equal_buckets
from ddpbench.analysis.findings.loss import loss_sentences
from ddpbench.analysis.findings.pairing import pairing_sentences
from ddpbench.analysis.names import Names
from ddpbench.analysis.read.alternation import spinning_sentences
from ddpbench.analysis.read.faults import fault_sentences
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.staleness import staleness_sentences
from ddpbench.analysis.read.status import resume_command
from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.correlation import (
    TOLD_FROM,
    correlation_of,
    correlation_of_levels,
    widened,
)
from ddpbench.analysis.statistics.stats import MIN_ROUNDS
from ddpbench.analysis.statistics.tails import missed_words
from ddpbench.analysis.table.result import CaseResult
from ddpbench.naming import ranks_of
from ddpbench.records import Noise, RunDir
from ddpbench.records.plan import StoredPlan
from ddpbench.records.rundir import held_elsewhere
from ddpbench.spec import Budget
from ddpbench.spec.buckets import equal_words
from ddpbench.spec.grouping import cap_words
from ddpbench.strategies.traits import hides_transfers, traits_of
from ddpbench.units import counted, format_at_most, format_seconds, series_of

_END_WORDS = {
    "budget": " before the sweep's budget was exhausted",
    "rounds_max": " in as many rounds as were allowed",
    "interrupted": " before the sweep was interrupted",
    "failed": " before the sweep failed",
}
"""End of the sentence on intervals that stayed wide, for each reason why a sweep stops."""
_MEANING = {
    "steal": "the hypervisor gave processor time to others",
    "foreign load": "other processes used the cores",
    "clock change": "a core changed its clock",
    "not steady": "steps still changed while they were timed, in these launches or in what all have in common",
    "throttled": "a CPU quota held the ranks back",
    "shared machine": "another sweep was allowed at the same time",
    "late replay": "one step in 20 or more had a moment that came over 1 % of a step after it was due",
}
"""Meaning of each flag of a launch."""


_MOST_HOSTS = 3
"""Largest number of hosts that a sentence on interfaces names."""


def merge_sentences(merged: Mapping[str, Any]) -> Iterable[str]:
    """Yield sentences on the limits of a run that was merged from several runs."""
    if merged:
        origins = ", ".join(f"{o['path']} on {o['host']}" for o in merged["sources"])
        yield (
            f"Merged from {len(merged['sources'])} runs ({origins}): ratios are taken within each run's own rounds; "
            "cases of different runs were not interleaved."
        )
        yield from (f"Left out of the merge: {text}." for text in merged["left_out"])


def validity_sentences(
    plan: StoredPlan,
    results: Sequence[CaseResult],
    *,
    stop_reason: str,
    path: str,
) -> Iterable[str]:
    """Yield sentences on what limits the numbers of a run's cases, those that hold for almost every run last."""
    cases = [one.run for one in results]
    measured = [case for case in cases if case.timings]
    if not measured:
        yield "No launch of any case succeeded, so nothing was measured."
        yield from _damage(cases, Names(cases))
        return
    names = Names(measured)
    if stop_reason == "interrupted":
        if holder := held_elsewhere(RunDir(Path(path))):
            yield f"The run is being measured by {holder}: the numbers are those of the rounds so far."
        else:
            yield f"The sweep was interrupted; resume with: {resume_command(path)}"
    yield from _crowded(measured, names)
    if stop_reason == "budget":
        yield from _left_out(measured, names, plan.budget, resume_command(path))
    yield from _equal_caps(cases)
    yield from _too_few_rounds(measured, names)
    yield from pairing_sentences(measured, names)
    yield from _disturbances(measured)
    yield from spinning_sentences(measured, names)
    yield from fault_sentences(measured, names)
    yield from staleness_sentences(measured, names)
    yield from _unequal_parameters(measured, names)
    yield from _shared_cores(measured, names)
    yield from _several_hosts(measured, names)
    yield from _slow_interfaces(measured, names)
    yield from _untimed_transfers(measured, names)
    yield from loss_sentences(measured, names)
    yield from _damage(cases, names)
    yield from _unproved(measured, names)
    yield from _notes_of_proofs(measured, names)
    yield from _own_steps(measured, names)
    yield from _changes(measured, names)
    yield from _rarely_slow(measured)
    yield from _correlated(measured)
    yield from _wide(results, names, stop_reason)


def _crowded(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    crowded = [case for case in measured if case.oversubscribed]
    if crowded:
        yield (
            f"{names.count(crowded)} ran with more ranks than cores (oversubscribed): their numbers are left out of "
            f"fits and of findings other than claims, whose intervals allow for it{names.listed(crowded)}."
        )
    roomy = [case for case in measured if case.planned.oversubscribed and not case.oversubscribed]
    if roomy:
        most = max(case.shared_cores_share or 0.0 for case in roomy)
        yield (
            f"{names.count(roomy)} ran with more ranks than cores, whose processor time together was at most "
            f"{format_at_most(most)} of the time: no more of a step is waiting for cores{names.listed(roomy)}."
        )


def _too_few_rounds(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    few = [case for case in measured if len(case.timings) < MIN_ROUNDS]
    if few:
        yield (
            f"{names.count(few)} {_have(few)} under {MIN_ROUNDS} rounds: too few rounds to conclude "
            f"anything{names.listed(few)}."
        )


def _equal_caps(cases: Sequence[CaseRun]) -> Iterable[str]:
    found = [run.planned for run in cases if run.planned.stands_for]
    texts = (
        equal_words(one.case.workload, one.case.bucket_cap_mb, one.stands_for, one.caps_worth)
        for one in found
    )
    yield from (f"{text}." for text in dict.fromkeys(texts))
    for first, others in equal_buckets(cases):
        caps = [cap_words(run.case.bucket_cap_mb) for run in (first, *others)]
        yield (
            f"{first.case.workload} at {ranks_of(first.case)}: DDP built the same buckets under caps "
            f"{series_of(caps)}: they are one configuration, compared by {caps[0]} alone."
        )


def _left_out(measured: Sequence[CaseRun], names: Names, budget: Budget, resume: str) -> Iterable[str]:
    short = [case for case in measured if len(case.timings) < budget.rounds_min and case.status == "ok"]
    if short:
        counts = sorted({len(case.timings) for case in short})
        rounds = " or ".join(map(str, counts))
        yield (
            f"budget.total, {format_seconds(budget.total)}, was spent before {budget.rounds_min} rounds were done: "
            f"{names.count(short)} {_have(short)} {rounds}{names.listed(short)}. To run the rest: {resume}"
        )


def _disturbances(measured: Sequence[CaseRun]) -> Iterable[str]:
    flags = Counter(flag for case in measured for launch in case.good for flag in dict.fromkeys(launch.flags))
    total = sum(len(case.good) for case in measured)
    for flag, count in flags.items():
        yield (
            f"{capital(flag)} in {count} of {total} launches{_how_much(flag, measured)}: "
            f"{_MEANING[flag]}. They are kept, and their cases are marked."
        )


def _how_much(flag: str, measured: Sequence[CaseRun]) -> str:
    """State the median and the largest share of core time that others took; empty for other flags."""
    taken: Callable[[Noise], float] | None = {
        "steal": lambda noise: noise.steal_fraction,
        "foreign load": lambda noise: noise.foreign_fraction,
    }.get(flag)
    if taken is None:
        return ""
    shares = [taken(launch.noise) for case in measured for launch in case.good]
    return f" ({100 * median(shares):.1f} % of the cores' time in the median of all, {100 * max(shares):.1f} % at most)"


def _wide(results: Sequence[CaseResult], names: Names, stop_reason: str) -> Iterable[str]:
    asked: dict[float, list[CaseRun]] = {}
    for one in results:
        if one.ci_reached is False:
            asked.setdefault(one.target, []).append(one.run)
    for target, wide in asked.items():
        yield (
            f"{names.not_reached(wide)} the target half-width of {100 * target:g} %"
            f"{_END_WORDS.get(stop_reason, '')}{names.listed(wide)}."
        )


def _unequal_parameters(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    unequal = [case for case in measured if any(launch.params_equal is False for launch in case.launches)]
    if unequal:
        yield f"{names.count(unequal)} ended a launch with parameters that differ between ranks{names.listed(unequal)}."


def _shared_cores(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    sharing = [case for case in measured if any(launch.shares_cores for launch in case.good)]
    if sharing:
        yield f"{names.count(sharing)} had loader workers on the ranks' own cores{names.listed(sharing)}."


def _several_hosts(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    apart = [case for case in measured if any(launch.hosts > 1 for launch in case.good)]
    if apart:
        yield (
            f"{names.count(apart)} ran on several hosts, which share no clock: a transfer that ends on all "
            "ranks at once took as long as its shortest rank's part; in other transfers waiting for ranks counts as "
            f"communication{names.listed(apart)}."
        )


def _slow_interfaces(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    concerned: dict[tuple[str, str], list[CaseRun]] = {}
    hosts: dict[tuple[str, str], set[str]] = {}
    for case in measured:
        found = {one for launch in case.good for one in launch.slow_interfaces}
        for both in sorted({(used, faster) for _, used, faster in found}):
            concerned.setdefault(both, []).append(case)
            hosts.setdefault(both, set()).update(host for host, *there in found if tuple(there) == both)
    for both, cases in concerned.items():
        launches = [launch for case in cases for launch in case.good]
        slow = sum(any(both == (used, faster) for _, used, faster in one.slow_interfaces) for one in launches)
        more = len(hosts[both]) - _MOST_HOSTS
        named = [*sorted(hosts[both])[:_MOST_HOSTS], *([f"{more} more"] if more > 0 else [])]
        part = f" ({slow} of {len(launches)} launches)" if slow < len(launches) else ""
        yield (
            f"gloo used {both[0]} on {series_of(named)} in {names.within(cases)}{part}, though {both[1]} was "
            f"there: GLOO_SOCKET_IFNAME chooses another interface{names.listed(cases)}."
        )


def _untimed_transfers(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    exchanging = [case for case in measured if traits_of(case.case).exchanges]
    through_host = [case for case in exchanging if not case.case.times_transfers]
    hidden = [
        case
        for case in exchanging
        if case.case.times_transfers
        and hides_transfers(case.case)
        and case.parts is None  # older runs have instrumented transfers
    ]
    for untimed, why in (
        (through_host, "gloo takes GPU memory through the host's, and does not tell when a transfer ends"),
        (hidden, "on GPUs they are made on streams that their library does not show"),
    ):
        if untimed:
            yield (
                f"{names.count(untimed)} {_have(untimed)} step times and no times of communication, nor of a step's "
                f"parts: {why}{names.listed(untimed)}."
            )


def _unproved(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    found: dict[str, list[CaseRun]] = {}
    for case in measured:
        if case.unproved:
            found.setdefault(case.unproved, []).append(case)
    for reason, cases in found.items():
        yield f"{names.count(cases)} unproved: {reason}{names.listed(cases)}."


def _notes_of_proofs(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    unproved = {case.unproved for case in measured}
    found: dict[str, list[CaseRun]] = {}
    left_out: dict[str, list[str]] = {}
    for case in measured:
        for proof in case.proof.proofs if case.proof else ():
            if proof.note and proof.note not in unproved:
                cases, compared = found.setdefault(proof.note, []), left_out.setdefault(proof.note, [])
                if not cases or cases[-1] is not case:
                    cases.append(case)
                if not proof.was_made and proof.compared not in compared:
                    compared.append(proof.compared)
    for note, cases in found.items():
        what = f"not compared: {' and '.join(left_out[note])} ({note})" if left_out[note] else note
        yield f"Proofs of {names.within(cases)}{names.listed(cases)}: {what}."


def _own_steps(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    own = [case for case in measured if any(launch.own_step for launch in case.good)]
    if own:
        yield (
            f"{names.count(own)} {_have(own)} steps of the class's own, no two of which need be alike: operations "
            f"are not counted, and flops_per_sample and mfu are empty{names.listed(own)}."
        )
    evaluating = [case for case in own if case.case.evaluation and traits_of(case.case).whole_state]
    untimed = [case for case in evaluating if not any(one.evaluation for one in case.good)]
    if untimed:
        yield (
            f"{names.count(untimed)} {_have(untimed)} no evaluation: the class has a step() and no loss(), which is "
            f"what evaluation computes{names.listed(untimed)}."
        )


def _changes(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    changed: dict[str, list[CaseRun]] = {}
    for case in measured:
        for sentence in dict.fromkeys(one for launch in case.good for one in launch.changes):
            changed.setdefault(sentence, []).append(case)
    for sentence, cases in changed.items():
        yield f"Changed by ddpbench in {names.within(cases)}: {sentence}{names.listed(cases)}."


def _damage(cases: Sequence[CaseRun], names: Names) -> Iterable[str]:
    damaged = [text for case in cases for launch in case.launches for text in launch.damage]
    if damaged:
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        yield f"Damaged records: {damaged[0]}{more}. What cannot be read is left out."
    dropped = [case for case in cases if case.parts is not None and case.parts.dropped_transfers]
    if dropped:
        count = sum(case.parts.dropped_transfers for case in dropped if case.parts is not None)
        lack = "1 transfer lacks" if count == 1 else f"{count} transfers lack"
        yield f"{lack} a rank's record: left out{names.listed(dropped)}."


def _correlated(measured: Sequence[CaseRun]) -> Iterable[str]:
    """Yield sentences on correlated rounds, for which intervals of comparisons allow, but not those of step times."""
    longest = max(measured, key=lambda case: len(case.timings))
    found, factor = correlation_of([case.timings for case in measured]), widened(longest.timings)
    if factor > 1:
        yield (
            f"Rounds have a lag-1 correlation of {found.estimate:.2f}. Intervals of comparisons allow for "
            f"{found.reckoned:.2f}, half a standard error more, and are {factor:.2f} times as wide for it."
        )
    levels = correlation_of_levels([case.timings for case in measured])
    if levels.shown >= TOLD_FROM:
        yield (
            f"Step times of one round and the next have a lag-1 correlation of {levels.estimate:.2f}. "
            "Intervals of comparisons within rounds are not concerned. Those of step times, rates and parts take "
            "launches to be independent: they hold the median less often than 95 % of the time, "
            "in simulations 85 % at 0.35 and 78 % at 0.5."
        )


def _rarely_slow(measured: Sequence[CaseRun]) -> Iterable[str]:
    able = [count for case in measured if (count := len(case.timings)) >= MIN_ROUNDS]
    if len(able) > 1:
        fewest = min(able)
        yield (
            f"With {counted(fewest, 'launch', 'launches')} a case, "
            f"{missed_words(fewest, 'launches')} (95 % confidence)."
        )


def _have(cases: Sequence[CaseRun]) -> str:
    return "has" if len(cases) == 1 else "have"
