"""Define, for each field of a case, its role in comparisons, the quantities that it decides, and its wording in texts.

A **panel** is a set of cases that may be compared. Within a panel, cases differ in **variant** (the strategy, and what
distinguishes two uses of one strategy) and in **scale** (ranks, nodes, bucket cap: the x axis of a curve). A series is
one variant of one panel. If a field of `Case` has no entry here, the import fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from operator import attrgetter
from typing import Any

from ddpbench.spec import environment
from ddpbench.spec.axis import ALL, Axis, Decided, Role, axis_of
from ddpbench.spec.case import BASE, OF_FRAMEWORKS, OWN_TYPES, Case
from ddpbench.spec.links import link_words, short_links
from ddpbench.units import counted, series_of
from ddpbench.user_files import short_name

GroupKey = tuple[Hashable, ...]
"""A key that is equal for cases of one group. Don't index into it; leave fields out with `but`."""


@dataclass(frozen=True, slots=True)
class Facet:
    """The role of a field of `Case` in comparisons, and its wording in texts."""

    role: Role
    title: str
    """Heading of the field's column in tables."""
    word: Callable[[Case], str]
    """Return words for the field's value in a sentence or in a figure; empty for the usual value."""
    decides: Collection[Decided] = ()
    """Quantities that can be compared only between cases with equal values of the field.

    A quantity is `loss` (the course of the loss), `state` (the bytes of a model's state) or `compute` (the computing
    time of one rank).
    """
    value: Callable[[Case], Hashable] | None = field(default=None, kw_only=True)
    """Return the value by which cases are compared; None if the field's own value is used."""
    always_shown: Callable[[Case], bool] = field(default=lambda case: False, kw_only=True)
    """Return whether to mention the case's value with every number, even if all cases share it."""
    cell: Callable[[Case], str] | None = field(default=None, kw_only=True)
    """Return the content of the field's column; None if the column shows the plain value."""

    def in_column(self, name: str) -> Callable[[Case], str]:
        """Return a function from a case to its cell in the column of the field `name`."""
        return self.cell or partial(_as_it_is, name)


def cap_words(cap: float | str | None) -> str:
    """Return a phrase for a bucket cap: `default`, `25 MiB`; empty if it is None."""
    if cap is None:
        return ""
    return cap if isinstance(cap, str) else f"{cap:g} MiB"


def loading(case: Case) -> str:
    """Return a phrase for the source of batches: `data in memory`, `no loader workers`, `2 loader workers`."""
    if case.data == "memory":
        return "data in memory"
    return counted(case.loader_workers, "loader worker") if case.loader_workers else "no loader workers"


def batch(case: Case) -> int:
    """Return the size (samples) of the batch that stays fixed as ranks are added: the local or the global batch."""
    return case.local_batch if case.scaling == "weak" else case.global_batch


def batch_words(case: Case) -> str:
    """Return a phrase for the batch that stays fixed as ranks are added: `local batch of 8`, `global batch of 64`."""
    return f"{'local' if case.scaling == 'weak' else 'global'} batch of {batch(case):,}"


def number_words(case: Case, machine: Mapping[str, Any]) -> str:
    """Return a phrase for the type of parameters and the autocast type, which a user's workload may set itself.

    `machine` is the run's `machine.json`, which has facts on users' own workloads.
    """
    entered = _own_facts(case, machine).get("autocast", "")
    kind = case.dtype
    if kind == OWN_TYPES:
        kind = own_types(case, machine) or type_word(case)
    if entered:
        return f"{kind} with its own {entered} autocast"
    return kind if case.precision == "full" else f"{kind} with {case.precision} autocast"


def own_types(case: Case, machine: Mapping[str, Any]) -> str:
    """Return a phrase for the types in a user's own model: `bfloat16 and float32`; empty if `machine` lacks them."""
    types = _own_facts(case, machine).get("types", ())
    return series_of([str(each) for each in types]) if isinstance(types, list | tuple) else ""


def _own_facts(case: Case, machine: Mapping[str, Any]) -> Mapping[str, Any]:
    context = machine.get("context")
    own = context.get("own_workloads", {}) if isinstance(context, Mapping) else {}
    facts: object = None
    if isinstance(own, Mapping):  # older runs have one entry per name, regardless of the options
        facts = own.get(case.workload_with_options, own.get(case.workload))
    return facts if isinstance(facts, Mapping) else {}


def type_word(case: Case) -> str:
    """Return a phrase for a case's `dtype`: `float32`, or `the class's own types`."""
    return "the class's own types" if case.dtype == OWN_TYPES else case.dtype


def _plain(name: str) -> Callable[[Case], str]:
    return lambda case: str(getattr(case, name)).replace("_", " ")


def _algorithm(case: Case) -> str:
    return short_name(case.algorithm).replace("_", " ")


def _batch_cell(case: Case) -> str:
    return f"{batch(case):,} {'local' if case.scaling == 'weak' else 'global'}"


def _as_it_is(name: str, case: Case) -> str:
    value = getattr(case, name)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _options(name: str) -> Callable[[Case], str]:
    return lambda case: ", ".join(option_words(name, None, case))


def launcher_name(case: Case) -> str:
    """Return a phrase for a case's launcher in a sentence: `a fork server`, `torchrun`, `Ray Train`."""
    return _LAUNCHERS.get(case.launcher, case.launcher)


def _launched(case: Case) -> str:
    return f"launched by {launcher_name(case)}"


RECOVERIES = {
    "off": "no failure",
    "uninterrupted": "uninterrupted",
    "exception": "a rank raises",
    "SIGKILL": "a rank is killed",
    "SIGSTOP": "a rank is stopped",
    "snapshot": "killed in a snapshot",
    "agent": "an agent is killed",
    "leave": "a node leaves and returns",
}
UNDISTURBED = ("off", "uninterrupted")
"""Values of `recovery` with which nothing fails."""
_LAUNCHERS = {"local": "a fork server", "spawn": "mp.spawn", "ray": "Ray Train"}

_FACETS: dict[str, Facet] = {
    "experiment": Facet("bookkeeping", "Experiment", lambda case: case.experiment),
    "workload": Facet("panel", "Workload", lambda case: case.workload, ALL),
    "strategy": Facet("variant", "Strategy", lambda case: case.strategy_name),
    "algorithm": Facet("variant", "Algorithm", _algorithm, cell=_algorithm),
    "schedule": Facet("variant", "Schedule", _plain("schedule"), cell=_plain("schedule")),
    "options_json": Facet("variant", "Options", _options("options_json")),
    "workload_options_json": Facet(
        "panel",
        "Workload options",
        _options("workload_options_json"),
        ALL,
    ),
    "launcher": Facet(
        "variant",
        "Launcher",
        _launched,
        ["compute"],
        always_shown=lambda case: case.launcher in OF_FRAMEWORKS,
    ),
    "nodes": Facet("scale", "Nodes", lambda case: f"{case.nodes} x {case.ranks_per_node}"),
    "ranks_per_node": Facet(
        "scale",
        "Ranks per node",
        lambda case: f"{case.nodes} x {case.ranks_per_node}",
        ["compute"],
    ),
    "loader_workers": Facet(
        "panel",
        "Loader workers",
        lambda case: loading(case) if case.data == "loader" else "",
        ["compute"],
        always_shown=lambda case: case.data == "loader" and case.loader_workers > 0,
    ),
    "bucket_cap_mb": Facet(
        "scale",
        "Bucket",
        lambda case: f"{cap_words(case.bucket_cap_mb)} buckets" if case.bucket_cap_mb is not None else "",
    ),
    "local_batch": Facet(
        "panel",
        "Batch",
        lambda case: batch_words(case) if case.scaling == "weak" else "",
        ["compute"],
        value=lambda case: case.local_batch if case.scaling == "weak" else None,
        cell=_batch_cell,
    ),
    "global_batch": Facet(
        "panel",
        "Batch",
        lambda case: batch_words(case) if case.scaling == "strong" else "",
        value=lambda case: case.global_batch if case.scaling == "strong" else None,
        cell=_batch_cell,
    ),
    "dtype": Facet("panel", "Type", type_word, ALL),
    "fabric": Facet(
        "panel",
        "Link",
        lambda case: link_words(case.fabric) or "the machine's own links",
        cell=lambda case: short_links(case.fabric) if case.fabric else "",
        always_shown=lambda case: bool(case.fabric),
    ),
    "data": Facet(
        "panel", "Data", loading, ["loss", "compute"], always_shown=lambda case: case.data == "memory"
    ),
    "env_json": Facet(
        "variant",
        "Environment",
        _options("env_json"),
        always_shown=lambda case: case.env_json != environment.NONE,
    ),
    "recovery": Facet(
        "panel",
        "Failure",
        lambda case: RECOVERIES.get(case.recovery, case.recovery),
    ),
    "strategy_traits": Facet("bookkeeping", "Strategy says", lambda case: ""),
}
"""Facets that need more than the field's own value. The facets of all other fields are declared in `Case`."""


def _declared(name: str, axis: Axis) -> Facet:
    def word(case: Case) -> str:
        return axis.word(getattr(case, name))

    def always_shown(case: Case) -> bool:
        return axis.always_shown(getattr(case, name))

    return Facet(axis.role, axis.title, word, axis.decides, always_shown=always_shown)


AXES: dict[str, Axis] = {one.name: axis for one in fields(Case) if (axis := axis_of(one)) is not None}
"""The declarations of fields of `Case` that were made with `axis`."""


def check_complete(names: Iterable[str], known: Collection[str], where: str) -> None:
    """Check that `names` and the keys of `known` are the same.

    Raises:
        TypeError: a name has no entry, or an entry has no name; the message begins with `where`.
    """
    names = list(names)
    lacking = [name for name in names if name not in known] + [name for name in known if name not in names]
    if lacking:
        raise TypeError(f"{where} differ in {', '.join(lacking)}")


_KNOWN = _FACETS | {name: _declared(name, axis) for name, axis in AXES.items()}
check_complete((one.name for one in fields(Case)), _KNOWN, "Case and its axes in ddpbench/spec/grouping.py")
FACETS: dict[str, Facet] = {one.name: _KNOWN[one.name] for one in fields(Case)}
"""Facets by field, in the order in which names and sentences mention them."""


def of_role(*roles: Role) -> tuple[str, ...]:
    """Return the names of the fields with these roles."""
    return tuple(name for name, facet in FACETS.items() if facet.role in roles)


_VALUES: dict[str, Callable[[Case], Hashable]] = {
    name: facet.value or attrgetter(name) for name, facet in FACETS.items()
}
VIRTUAL = ("fabric", "compute", "dilation", "shrink")
"""Fields that make a case differ from training on the machine's own links."""
PANEL, VARIANT, SCALE = of_role("panel"), of_role("variant"), of_role("scale")
_ALIKE = (*PANEL, *VARIANT, *SCALE)
_DECIDING: dict[Decided, tuple[str, ...]] = {
    what: tuple(name for name, facet in FACETS.items() if what in facet.decides) for what in ALL
}


def _key(case: Case, names: tuple[str, ...], but: Collection[str]) -> GroupKey:
    return tuple([value_of(case) for value_of in _readers(names, tuple(but))])


@cache
def _readers(names: tuple[str, ...], but: tuple[str, ...]) -> list[Callable[[Case], Hashable]]:
    """Return functions that read these fields, cached because a report needs many keys."""
    return [_VALUES[name] for name in names if name not in but]


def panel(case: Case, *, but: Collection[str] = ()) -> GroupKey:
    """Return the key of a case's panel, leaving out the fields `but`. Cases with equal keys may be compared."""
    return _key(case, PANEL, but)


def panel_value(case: Case, name: str) -> Hashable:
    """Return the value of a case's field `name`, in the form in which comparisons use it."""
    return _VALUES[name](case)


def variant(case: Case, *, but: Collection[str] = ()) -> GroupKey:
    """Return the key of a case's variant, such as its strategy, algorithm, schedule, backend and options.

    It differs between cases of one panel at one scale. The fields `but` are left out.
    """
    return _key(case, VARIANT, but)


def alike(case: Case, *, but: Collection[str] = ()) -> GroupKey:
    """Return a key that is equal for cases that differ only in bookkeeping and the fields `but`."""
    return _key(case, _ALIKE, but)


def deciding(what: Decided, case: Case) -> GroupKey:
    """Return a key that is equal for cases that can be compared in `what`: `loss`, `state` or `compute`.

    `loss` is its course (except for the samples per step, which callers must compare), `state` the bytes of state, and
    `compute` the computing time of one rank.
    """
    names = _DECIDING[what]
    if what == "compute":  # depends on the rank's batch under either scaling, and not on transport variables
        own = environment.own_json(case.env_json)
        return (*_key(case, names, ("local_batch",)), case.local_batch, own)
    return _key(case, names, ())


def base_of_none(cases: Iterable[Case]) -> set[Case]:
    """Return base cases with more threads than others, with which no case is compared.

    Their speed-up would be 1, and a report would seem to say that more threads gain nothing.
    """
    every = list(cases)
    if len({case.threads_per_rank for case in every}) < 2:
        return set()
    fewest: dict[GroupKey, int] = {}
    led = {panel(case, but=("fabric",)) for case in every if case.strategy != BASE}
    for case in every:
        if panel(case, but=("fabric",)) in led:
            key = _but_threads(case)
            fewest[key] = min(case.threads_per_rank, fewest.get(key, case.threads_per_rank))
    return {
        case
        for case in every
        if case.strategy == BASE
        and panel(case, but=("fabric",)) not in led
        and case.threads_per_rank > fewest.get(_but_threads(case), case.threads_per_rank)
    }


def _but_threads(case: Case) -> GroupKey:
    return panel(case, but=("fabric", "threads_per_rank"))


def differing(cases: Iterable[Case], names: Iterable[str] = tuple(FACETS)) -> list[str]:
    """Return the fields among `names` whose values differ between the cases."""
    every = list(cases)
    return [name for name in names if len(set(map(_VALUES[name], every))) > 1]


class Label(str):
    """A text that must be shown with a case's numbers, such as `emulated 1 Gbit/s link` or `replayed`."""

    __slots__ = ()


def qualifiers(case: Case) -> list[Label]:
    """Return the texts that must be shown with a case's numbers."""
    return [
        Label(_env_word(case) if name == "env_json" else facet.word(case))
        for name, facet in FACETS.items()
        if facet.always_shown(case)
    ]


_MOST_VARIABLES = 2
"""Most environment variables to name next to a number. If there are more, the text says only how many there are."""


def _env_word(case: Case) -> str:
    names = list(case.env)
    if len(names) <= _MOST_VARIABLES:
        return FACETS["env_json"].word(case)
    return f"{len(names)} environment variables set"


def is_virtual(case: Case) -> bool:
    """Return whether a case has emulated links, or replayed, dilated or shrunk computation."""
    return any(FACETS[name].always_shown(case) for name in VIRTUAL)


def virtual_words(case: Case, *, but: Collection[str] = ()) -> list[str]:
    """Return one text for each way in which a case is virtual: emulated links; replayed, dilated or shrunk computation.

    The fields `but` are left out.
    """
    return [
        FACETS[name].word(case) for name in VIRTUAL if name not in but and FACETS[name].always_shown(case)
    ]


def cap_order(cap: float | str | None) -> tuple[int, float]:
    """Return a sort key for bucket caps: None first, then `default`, then by size."""
    if cap is None:
        return (0, 0.0)
    return (1, 0.0) if isinstance(cap, str) else (2, cap)


def varied(cases: Iterable[Case], name: str) -> list[str]:
    """Return the option keys in which cases of the same strategy (or workload) differ.

    `name` says which field of `OPTIONS` to compare. Environment variables are compared among all cases.
    """
    groups: dict[Hashable, list[dict[str, Any]]] = {}
    for case in cases:
        groups.setdefault(_WHOSE[name](case), []).append(OPTIONS[name](case))
    keys: dict[str, None] = {}
    for members in groups.values():
        for key in dict.fromkeys(key for options in members for key in options):
            if len({_option_text(name, key, options) for options in members}) > 1:
                keys[key] = None
    return list(keys)


def option_word(name: str, key: str, case: Case) -> str:
    """Return a text for a case's value of an option; empty if the case does not have the option.

    `name` is the field of `OPTIONS` that has the option, and `key` the option's key in it.
    """
    return _option_text(name, key, OPTIONS[name](case))


def _option_text(name: str, key: str, options: Mapping[str, Any]) -> str:
    value = options.get(key)
    if name == "env_json" and value == environment.UNSET:
        return "unset"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def option_words(name: str, only: Collection[str] | None, case: Case) -> list[str]:
    """Return `key=value` for each of a case's options.

    `name` is a field in `OPTIONS`; `only`, if given, lists the keys to return.
    """
    return [
        environment.words(key, value)
        if name == "env_json"
        else f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in OPTIONS[name](case).items()
        if only is None or key in only
    ]


def option_axis(name: str, key: str, case: Case) -> str:
    """Return the full name of a case's option in an experiment: `options.train.py.width`, `env.NCCL_ALGO`.

    `name` is the field of `OPTIONS` that has the option, and `key` the option's key in it.
    """
    if name == "env_json":
        return f"env.{key}"
    owner = case.strategy if name == "options_json" else case.workload.rpartition(":")[0] or case.workload
    return f"options.{owner}.{key}"


OPTIONS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "env_json": attrgetter("env"),
    "options_json": attrgetter("options"),
    "workload_options_json": attrgetter("workload_options"),
}
"""Fields of a case that have several settings, each with the function that returns these settings by key."""
_WHOSE: dict[str, Callable[[Case], Hashable]] = {
    "options_json": attrgetter("strategy"),
    "workload_options_json": attrgetter("workload"),
    "env_json": lambda case: None,
}
