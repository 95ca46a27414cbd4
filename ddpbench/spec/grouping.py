"""Rules that make cases comparable: each field of a case has its role, what it decides, and its words.

A **panel** holds cases that may be compared; within it they differ in **variant** (the strategy, and what
distinguishes two uses of one strategy) and in **scale** (ranks, nodes, bucket cap: the x axis of a curve). A
series is one variant of one panel. Analysis, reports and names (`ddpbench.naming`) all use this module; a new
field of `Case` without an entry fails at import.
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
"""Equal for cases that are alike. Don't index into it: leave fields out with `but`."""


@dataclass(frozen=True, slots=True)
class Facet:
    """A field of `Case`: its role, and its words."""

    role: Role
    title: str
    """Heading of its column, in tables that have one."""
    word: Callable[[Case], str]
    """Return its value as a sentence or a figure's name states it; empty for the usual value."""
    decides: Collection[Decided] = ()
    """Quantities that two cases have in common only if they share it: the course of the `loss`, the bytes of
    a model's `state`, the `compute` time of one rank.
    """
    value: Callable[[Case], Hashable] | None = field(default=None, kw_only=True)
    """Return the value that must be equal, if that is not the field itself."""
    always_shown: Callable[[Case], bool] = field(default=lambda case: False, kw_only=True)
    """Return True if numbers must always be shown with it, even if all cases share it."""
    cell: Callable[[Case], str] | None = field(default=None, kw_only=True)
    """Return the content of its column, if that is not the plain value."""

    def in_column(self, name: str) -> Callable[[Case], str]:
        """Return a function from a case to its cell in the column of the field `name`."""
        return self.cell or partial(_as_it_is, name)


def cap_words(cap: float | str | None) -> str:
    """Return words for a bucket cap: `default`, `25 MiB`; empty without buckets."""
    if cap is None:
        return ""
    return cap if isinstance(cap, str) else f"{cap:g} MiB"


def loading(case: Case) -> str:
    """Return words for the source of batches: `data in memory`, `no loader workers`, `2 loader workers`."""
    if case.data == "memory":
        return "data in memory"
    return counted(case.loader_workers, "loader worker") if case.loader_workers else "no loader workers"


def batch(case: Case) -> int:
    """Return the batch that scaling holds fixed, in samples: a rank's or the whole job's."""
    return case.local_batch if case.scaling == "weak" else case.global_batch


def batch_words(case: Case) -> str:
    """Return `local batch of 8` or `global batch of 64`."""
    return f"{'local' if case.scaling == 'weak' else 'global'} batch of {batch(case):,}"


def number_words(case: Case, machine: Mapping[str, Any]) -> str:
    """Return words for the parameters' type and the autocast type: the case's, or one that the workload
    enters itself.

    `machine` is the run's `machine.json`, which records facts on users' own workloads.
    """
    entered = _own_facts(case, machine).get("autocast", "")
    kind = case.dtype
    if kind == OWN_TYPES:
        kind = own_types(case, machine) or type_word(case)
    if entered:
        return f"{kind} with its own {entered} autocast"
    return kind if case.precision == "full" else f"{kind} with {case.precision} autocast"


def own_types(case: Case, machine: Mapping[str, Any]) -> str:
    """Return the types of a user's own model, `bfloat16 and float32`; empty if `machine.json` does not have
    them.
    """
    types = _own_facts(case, machine).get("types", ())
    return series_of([str(each) for each in types]) if isinstance(types, list | tuple) else ""


def _own_facts(case: Case, machine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts that `machine.json` has from trying a case's workload."""
    context = machine.get("context")
    own = context.get("own_workloads", {}) if isinstance(context, Mapping) else {}
    facts: object = None
    if isinstance(own, Mapping):  # older runs have one entry per name, regardless of the options
        facts = own.get(case.workload_with_options, own.get(case.workload))
    return facts if isinstance(facts, Mapping) else {}


def type_word(case: Case) -> str:
    """Return a case's type: `float32`, or `the class's own types`."""
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
    """Return the launcher of a case's ranks for use in a sentence: `a fork server`, `torchrun`, `Ray Train`."""
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
"""Values of `recovery` under which nothing fails."""
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
"""Fields whose words need other fields of the case; the remaining fields are declared in `Case`."""


def _declared(name: str, axis: Axis) -> Facet:
    def word(case: Case) -> str:
        return axis.word(getattr(case, name))

    def always_shown(case: Case) -> bool:
        return axis.always_shown(getattr(case, name))

    return Facet(axis.role, axis.title, word, axis.decides, always_shown=always_shown)


AXES: dict[str, Axis] = {one.name: axis for one in fields(Case) if (axis := axis_of(one)) is not None}
"""Declarations of fields that have more than a type and a default."""


def check_complete(names: Iterable[str], known: Collection[str], where: str) -> None:
    """Check that every field has an entry, and that every entry is for a field.

    Raises:
        TypeError: a field has no entry, or an entry has no field.
    """
    names = list(names)
    lacking = [name for name in names if name not in known] + [name for name in known if name not in names]
    if lacking:
        raise TypeError(f"{where} differ in {', '.join(lacking)}")


_KNOWN = _FACETS | {name: _declared(name, axis) for name, axis in AXES.items()}
check_complete((one.name for one in fields(Case)), _KNOWN, "Case and its axes in ddpbench/spec/grouping.py")
FACETS: dict[str, Facet] = {one.name: _KNOWN[one.name] for one in fields(Case)}
"""Facets by field, in the order in which their words appear."""


def of_role(*roles: Role) -> tuple[str, ...]:
    """Return the fields of these roles."""
    return tuple(name for name, facet in FACETS.items() if facet.role in roles)


_VALUES: dict[str, Callable[[Case], Hashable]] = {
    name: facet.value or attrgetter(name) for name, facet in FACETS.items()
}
VIRTUAL = ("fabric", "compute", "dilation", "shrink")
"""Fields by which a case may differ from training on the machine's own links."""
PANEL, VARIANT, SCALE = of_role("panel"), of_role("variant"), of_role("scale")
_ALIKE = (*PANEL, *VARIANT, *SCALE)
_DECIDING: dict[Decided, tuple[str, ...]] = {
    what: tuple(name for name, facet in FACETS.items() if what in facet.decides) for what in ALL
}


def _key(case: Case, names: tuple[str, ...], but: Collection[str]) -> GroupKey:
    return tuple([value_of(case) for value_of in _readers(names, tuple(but))])


@cache
def _readers(names: tuple[str, ...], but: tuple[str, ...]) -> list[Callable[[Case], Hashable]]:
    """Return functions that read a case's values of these fields; a report asks for tens of thousands of
    keys.
    """
    return [_VALUES[name] for name in names if name not in but]


def panel(case: Case, *, but: Collection[str] = ()) -> GroupKey:
    """Return the key that two cases must share to be compared, without the fields `but`."""
    return _key(case, PANEL, but)


def panel_value(case: Case, name: str) -> Hashable:
    """Return a case's value of one field, as comparisons look at it."""
    return _VALUES[name](case)


def variant(case: Case, *, but: Collection[str] = ()) -> GroupKey:
    """Return the key that separates cases of one panel at one scale: strategy, algorithm, schedule, backend,
    options.
    """
    return _key(case, VARIANT, but)


def alike(case: Case, *, but: Collection[str] = ()) -> GroupKey:
    """Return a key of all fields except bookkeeping and `but`: equal for cases that differ in those alone."""
    return _key(case, _ALIKE, but)


def deciding(what: Decided, case: Case) -> GroupKey:
    """Return the key that two cases must share to have the same course of the loss, bytes of state, or rank's
    computation.

    For the loss, the samples of a step are not part of the key: the caller knows which samples it compares.
    """
    names = _DECIDING[what]
    if what == "compute":  # per rank: its own batch under either scaling, and no transport variables
        own = environment.own_json(case.env_json)
        return (*_key(case, names, ("local_batch",)), case.local_batch, own)
    return _key(case, names, ())


def base_of_none(cases: Iterable[Case]) -> set[Case]:
    """Return base cases that no other case is compared with and that have more threads than one that is.

    A speed-up over itself would read as if it trained no faster than the base case of the others.
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
    """Return those of these fields that not all cases share, in the order in which their words appear."""
    every = list(cases)
    return [name for name in names if len(set(map(_VALUES[name], every))) > 1]


def qualifiers(case: Case) -> list[str]:
    """Return the words that must accompany a case's numbers: emulated, replayed, dilated, shrunk, ..."""
    return [
        _env_word(case) if name == "env_json" else facet.word(case)
        for name, facet in FACETS.items()
        if facet.always_shown(case)
    ]


_MOST_VARIABLES = 2
"""More would hide the other words next to a number: further ones are counted, and the experiment's file has
them.
"""


def _env_word(case: Case) -> str:
    names = list(case.env)
    if len(names) <= _MOST_VARIABLES:
        return FACETS["env_json"].word(case)
    return f"{len(names)} environment variables set"


def is_virtual(case: Case) -> bool:
    """Return whether links were shaped, or computation replayed, dilated or shrunk."""
    return any(FACETS[name].always_shown(case) for name in VIRTUAL)


def virtual_words(case: Case, *, but: Collection[str] = ()) -> list[str]:
    """Return words for what in a case's times is not the machine's own; empty if it trained on the machine's
    links.
    """
    return [
        FACETS[name].word(case) for name in VIRTUAL if name not in but and FACETS[name].always_shown(case)
    ]


def cap_order(cap: float | str | None) -> tuple[int, float]:
    """Return a sort key for bucket caps: none, `default`, then by size."""
    if cap is None:
        return (0, 0.0)
    return (1, 0.0) if isinstance(cap, str) else (2, cap)


def varied(cases: Iterable[Case], name: str) -> list[str]:
    """Return those of the options `name` (or variables) that not all cases of one strategy or workload share."""
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
    """Return a case's value of one of its options `name` (`options_json`, ...) in words; empty if it lacks
    the option.
    """
    return _option_text(name, key, OPTIONS[name](case))


def _option_text(name: str, key: str, options: Mapping[str, Any]) -> str:
    value = options.get(key)
    if name == "env_json" and value == environment.UNSET:
        return "unset"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def option_words(name: str, only: Collection[str] | None, case: Case) -> list[str]:
    """Return a case's options `name` as `key=value`, or its variables; only those in `only`, if given."""
    return [
        environment.words(key, value)
        if name == "env_json"
        else f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in OPTIONS[name](case).items()
        if only is None or key in only
    ]


def option_axis(name: str, key: str, case: Case) -> str:
    """Return one of a case's options `name` as an axis of an experiment: `options.train.py.width`, `env.NCCL_ALGO`."""
    if name == "env_json":
        return f"env.{key}"
    owner = case.strategy if name == "options_json" else case.workload.rpartition(":")[0] or case.workload
    return f"options.{owner}.{key}"


OPTIONS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "env_json": attrgetter("env"),
    "options_json": attrgetter("options"),
    "workload_options_json": attrgetter("workload_options"),
}
"""Fields that hold several settings, by key."""
_WHOSE: dict[str, Callable[[Case], Hashable]] = {
    "options_json": attrgetter("strategy"),
    "workload_options_json": attrgetter("workload"),
    "env_json": lambda case: None,
}
