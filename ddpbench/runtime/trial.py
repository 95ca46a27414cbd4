"""Try users' own workloads before any launch, each in a separate process with its smallest local batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpbench.errors import WorkloadError
from ddpbench.naming import Namer, words_of
from ddpbench.runtime.equal_caps import Gradients, replayed_gradients
from ddpbench.runtime.estimate import Tried
from ddpbench.runtime.probes import gradients_of, inspected
from ddpbench.runtime.server import ServerProcess
from ddpbench.spec import Case, PlannedCase
from ddpbench.strategies import ModelFound, found_reason, load_strategy, own_step_reason, stream_reason
from ddpbench.units import counted, series_of
from ddpbench.workloads import is_import_path

INSPECTION_TIMEOUT_S = 120.0


def inspect_own(
    server: ServerProcess,
    cases: Sequence[Case],
    folder: Path,
    timeout_s: float = INSPECTION_TIMEOUT_S,
    *,
    before_each: Callable[[], None] = lambda: None,
) -> dict[str, Mapping[str, Any]]:
    """Try every user's own workload among the cases, and return the facts found, by workload name with options.

    `before_each` is called before each trial.

    Raises:
        WorkloadError: some workloads cannot be used; the message has one sentence per problem.
    """
    smallest: dict[str, Case] = {}
    largest: dict[str, Case] = {}
    for case in cases:
        if is_import_path(case.workload):
            key = case.workload_with_options
            if key not in smallest or case.local_batch < smallest[key].local_batch:
                smallest[key] = case
            if key not in largest or case.global_batch > largest[key].global_batch:
                largest[key] = case
    facts_by_name: dict[str, Mapping[str, Any]] = {}
    problems: dict[str, list[Case]] = {}
    for name, case in smallest.items():
        before_each()
        facts = inspected(server, alone(case), folder, timeout_s, largest[name])
        if "problem" in facts:
            problems.setdefault(str(facts["problem"]), []).append(case)
        elif few := _too_few(facts, largest[name]):
            problems.setdefault(f"{name}: {few}", [])
        facts_by_name[name] = facts
    for left in ("probe.json", "probe.log"):
        (folder / left).unlink(missing_ok=True)
    if problems:
        raise WorkloadError("\n".join(f"{why}{_with(alike, smallest)}" for why, alike in problems.items()))
    return facts_by_name


_TRIED = ("workload", "workload_options_json")
"""Settings by which messages identify a trial."""


def _with(cases: Sequence[Case], tried_: Mapping[str, Case]) -> str:
    every = {name for name, case in tried_.items() if cases and case.workload == cases[0].workload}
    if len(every) == len(cases):
        return ""
    given = (", ".join(words_of(case, ("workload_options_json",))) for case in cases)
    return f" (with {' and with '.join(given)})" if cases else ""


def _too_few(facts: Mapping[str, Any], largest: Case) -> str:
    dealt = facts.get("dealt_samples")
    why = largest.too_few(dealt) if dealt is not None else ""
    return f"at {counted(largest.world_size, 'rank')} {why}" if why else ""


def alone(case: Case) -> Case:
    """Return the case's single-process baseline, with the case's local batch and without loader workers."""
    alone = case.baseline()
    return replace(alone, local_batch=case.local_batch, global_batch=case.local_batch, loader_workers=0)


def tried(own: Mapping[str, Mapping[str, Any]]) -> dict[str, Tried]:
    """Return what trials measured, by workload name with options; `own` is the result of `inspect_own`."""
    return {
        name: Tried(
            made_s=facts["made_s"],
            step_s=facts["step_s"],
            local_batch=facts["local_batch"],
            gradient_bytes=facts.get("gradient_bytes"),
        )
        for name, facts in own.items()
    }


def gradients_in_rank(
    server: ServerProcess, folder: Path, *, before_each: Callable[[], None] = lambda: None
) -> Gradients:
    """Return a function that finds the sizes of a case's gradients (bytes).

    A replay's sizes are in its profile. Otherwise a rank of the server computes a backward pass, after a call of
    `before_each`.
    """

    def gradients(case: Case) -> Sequence[int] | None:
        if replayed := replayed_gradients(case):
            return replayed
        before_each()
        found = gradients_of(server, replace(alone(case), precision="full"), folder, INSPECTION_TIMEOUT_S)
        for left in ("probe.json", "probe.log"):
            (folder / left).unlink(missing_ok=True)
        return found

    return gradients


def within_own(
    entries: Sequence[PlannedCase], own: Mapping[str, Mapping[str, Any]]
) -> tuple[PlannedCase, ...]:
    """Mark cases as skipped if the trial showed that their strategy cannot train the workload's model.

    Raises:
        WorkloadError: all cases are skipped.
    """
    entries_left = tuple(
        replace(entry, skip_reason=_own_reason(entry.case, own[entry.case.workload_with_options]))
        if entry.skip_reason is None and entry.case.workload_with_options in own
        else entry
        for entry in entries
    )
    reasons = dict.fromkeys(
        f"{', '.join(words_of(entry.case, _TRIED))}: {entry.skip_reason}"
        for entry in entries_left
        if entry.skip_reason
    )
    if all(entry.skip_reason is not None for entry in entries_left):
        raise WorkloadError("\n".join(reasons))
    return entries_left


def skipped_by_trial(before: Sequence[PlannedCase], after: Sequence[PlannedCase]) -> list[str]:
    """Return one line per case that is skipped in `after` but not in `before`, with its label and the reason."""
    planned = {entry.case.case_id for entry in before if entry.skip_reason is None}
    names = Namer(entry.case for entry in after)
    return [
        f"skipped: {names.full(entry.case)}: {entry.skip_reason}"
        for entry in after
        if entry.skip_reason is not None and entry.case.case_id in planned
    ]


def _own_reason(case: Case, facts: Mapping[str, Any]) -> str | None:
    closure, sparse = str(facts.get("closure", "")), bool(facts.get("sparse"))
    reason = own_step_reason(case) if facts.get("step") else None
    reason = reason or (stream_reason(case) if facts.get("stream") else None)
    meets = facts.get("exchanges") or facts.get("waits")
    if meets and load_strategy(case.strategy).trainers(case.world_size) < case.world_size:
        reason = reason or (
            "the class exchanges values between ranks or waits at a barrier, but the serving rank of "
            f"{case.strategy} computes no loss: the other ranks would wait for it"
        )
    reason = reason or load_strategy(case.strategy).model_reason(case, closure=closure, sparse=sparse)
    found = ModelFound(
        trained=tuple(facts.get("trained_types", ())),
        mixed_within_blocks=bool(facts.get("mixed_blocks")),
        dropped_blocks=tuple(facts.get("dropped_blocks", ())),
        updates_in_backward=bool(facts.get("in_backward")),
        unreached=() if facts.get("exchanges") else tuple(facts.get("unreached", ())),
        empty=tuple(facts.get("empty", ())),
        over_one_memory=tuple(facts.get("one_memory", ())),
    )
    return reason or found_reason(case, found)


_NOT_IDENTIFYING = (
    "made_s",
    "step_s",
    "local_batch",
    "dealt_samples",
    "mixed_blocks",
    "dropped",
    "dropped_blocks",
    "empty",
    "one_memory",
    "stream",
)


def identifying(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that belong to a workload's identity, without those that only estimates and checks use."""
    return {key: value for key, value in facts.items() if key not in _NOT_IDENTIFYING}


def _few(names: Sequence[str]) -> str:
    shown = [name.removeprefix("network.") for name in names[:2]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _types(facts: Mapping[str, Any]) -> str:
    types = tuple(facts.get("types", ()))
    return "" if types in ((), ("float32",)) else f" ({series_of(types)})"


def _of_closure(optimizer: str) -> str:
    return (
        f"its {optimizer} decides by the loss that its closure returns: average this loss over ranks in the "
        "closure (torch.distributed.all_reduce). Otherwise ranks make unequal numbers of backwards and wait for "
        "one another"
    )


_IN_EVALUATION = (
    "its model is in evaluation mode, without dropout or new statistics: if this is not intended, have model() "
    "return model.train()"
)


def summary_of(name: str, facts: Mapping[str, Any]) -> str:
    """Return text that describes a workload, with the facts that its trial found."""
    return f"workload {described(name, facts)}"


def described(name: str, facts: Mapping[str, Any]) -> str:
    """Describe a workload by the facts that its trial found; each item of the fact `changes` adds a line."""
    samples = facts.get("samples")
    many = f", {samples:,} samples" if samples is not None else ""
    how = [
        *(["makes its steps itself"] if facts.get("step") else []),
        *(["asks for the process group"] if facts.get("group") else []),
        *([_of_closure(facts["closure"])] if facts.get("closure") else []),
        *(["updates parameters during backward"] if facts.get("in_backward") else []),
        *(
            [f"sets gradients without backward() ({_few(facts['unreached'])})"]
            if facts.get("unreached")
            else []
        ),
        *([f"enters {facts['autocast']} autocast itself"] if facts.get("autocast") else []),
        *([_IN_EVALUATION] if facts.get("evaluation_mode") else []),
        *([f"its parameters {_few(facts['one_memory'])} share memory"] if facts.get("one_memory") else []),
        *([f"its forward writes into {_few(facts['writes'])}"] if facts.get("writes") else []),
        *(
            [f"its steps leave out different parameters ({_few(facts['dropped'])})"]
            if facts.get("dropped")
            else []
        ),
    ]
    return (
        f"{name}: {facts['parameters']:,} parameters{_types(facts)}, {facts['gradient_bytes']:,} bytes of "
        f"gradient{many}; a batch is {facts['batch']}{''.join(f'; {each}' for each in how)}"
        f"{''.join(f'{chr(10)}  {each}' for each in facts.get('changes', ()))}"
    )
