"""Names of cases: by what distinguishes each from the others, every setting in the words of `FACETS`.

One `Namer` holds all cases of a table, a figure, a text or a run, and gives each a name that no other of them has:
**full** for terminals (`ddp · 2 ranks · 25 MiB buckets · 1 thread per rank`), **short** for figures and tables (`DDP, 2
ranks, 25 MiB buckets`), **spoken** for sentences (`DDP at 2 ranks (25 MiB buckets)`), **key** for data, by which files
of several versions are matched (`ddp · 2 ranks · 25 MiB buckets · threads_per_rank=1`). No other module makes names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ddpbench.spec import environment
from ddpbench.spec.case import OWN_TYPES, Case
from ddpbench.spec.grouping import FACETS, OPTIONS, VARIANT, differing, option_word, option_words, varied
from ddpbench.strategies.traits import as_ring, is_ring, rings_among, traits_of
from ddpbench.text_safety import JOINT, on_one_line
from ddpbench.units import counted

_PLACE = ("world_size", "nodes", "ranks_per_node")
EVERY = tuple(name for name, facet in FACETS.items() if facet.role != "bookkeeping")
"""All fields that distinguish cases."""
_OF_CLASSES = ("strategy", "algorithm")
"""Fields that may name a class in a user's own file; their words name the class without the file."""
_CHOSEN = ("strategy", "algorithm", "schedule")
_IN_LABEL = {
    *_CHOSEN,
    *_PLACE,
    *OPTIONS,
    *("workload", "bucket_cap_mb", "loader_workers", "data", "fabric", "dilation", "shrink", "precision"),
    "recovery",
}
"""Fields that are in `Case.label`, or that keys word separately."""
_Words = Callable[[Case], list[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A column of a setting in which cases differ."""

    title: str
    text: Callable[[Case], str]
    """Return its text for a case."""


class Namer:
    """Names of some cases, by what distinguishes them; another case is named as if it were one of them."""

    def __init__(self, cases: Iterable[Case], *, among: Namer | None = None) -> None:
        """Take `cases`, all that could be meant; strategies and workloads are named as in `among`, if given."""
        self._cases = dict.fromkeys(cases)
        self._whole = among
        self._called: _Called = _Called(self._cases) if among is None else among._called
        self._all = _Group(self._cases, self._called)
        self._labelled = _Labelled(self._cases, self._called)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a `Namer` without its contents: each row of a page has one, and drawn names are texts already."""
        return object.__new__, (type(self),)

    def of(self, cases: Iterable[Case]) -> Namer:
        """Return names of some of the cases, distinguished only from each other; strategies and workloads as here."""
        return Namer(cases, among=self._whole or self)

    def full(self, case: Case, *, but: Collection[str] = ()) -> str:
        """Return its label and what distinguishes it from others of that label; without the words in `but`."""
        first, *words = self._among(case)._labelled.full[case]
        return JOINT.join([first, *(word for word in words if word not in but)])

    def key(self, case: Case) -> str:
        """Return the name in data, which keeps its wording: its label, and settings that differ as `name=value`."""
        return self._among(case)._labelled.keys[case]

    def short(self, case: Case, of: Iterable[str] | None = None, *, layouts: bool = True) -> str:
        """Return its strategy as figures name it, its ranks, and what distinguishes it from others of that strategy.

        With `of` only these fields are used, and layouts if `layouts` is true.
        """
        words = self._among(case)._parts[case] if of is None else self.details(case, of, layouts=layouts)
        return ", ".join([self.strategy(case), ranks_of(case), *words])

    def spoken(self, case: Case) -> str:
        """Return the name for a sentence: strategy, ranks and, in brackets, all that distinguishes it from others."""
        return _bracketed(f"{self.spoken_strategy(case)} at {ranks_of(case)}", self._among(case)._parts[case])

    def variant(
        self, case: Case, of: Iterable[str] = EVERY, *, layouts: bool = True, more: Iterable[str] = ()
    ) -> str:
        """Return its spoken strategy and in brackets its `details` in these fields and `more` words.

        Ranks are left to the sentence. With `layouts` the layout is added where the strategy has several at its number
        of ranks.
        """
        return _bracketed(self.spoken_strategy(case), [*self.details(case, of, layouts=layouts), *more])

    def details(self, case: Case, of: Iterable[str] = EVERY, *, layouts: bool = True) -> list[str]:
        """Return the words of these fields that distinguish a case among all cases of its strategy, of any ranks."""
        alike = self._among(case)._alike[self.spoken_strategy(case)]
        words = alike.words(case, [name for name in of if name not in _PLACE])
        return [*words, *([layout_of(case)] if layouts and alike.several_layouts(case.world_size) else [])]

    def apart(self, case: Case, of: Iterable[str] = EVERY) -> list[str]:
        """Return a case's words for those of these fields in which the cases differ.

        An option of a workload or strategy is included if others of that workload or strategy have another value.
        Where workloads differ, each workload's cases are compared among themselves for the other fields: what follows
        from the workload is left out.
        """
        return self._among(case)._all.words(case, of)

    def shared(self, among: Iterable[Case] | None = None) -> list[str]:
        """Return the words that all full names share, or those of `among`; none if there is one case alone."""
        first, *others = (self._labelled.full[case] for case in (self._cases if among is None else among))
        return [word for word in first[1:] if others and all(word in other[1:] for other in others)]

    def strategy(self, case: Case) -> str:
        """Return its strategy as figures and tables name it; DDP as a ring, where others are not rings."""
        return self._called.strategy(case, traits_of(case).display)

    def spoken_strategy(self, case: Case) -> str:
        """Return its strategy as a sentence names it; DDP as a ring, where others are not rings."""
        return self._called.strategy(case, traits_of(case).spoken)

    def workload(self, case: Case) -> str:
        """Return its workload: a user's own by its class, a replay by its profile, where no other has this name."""
        return self._called.workload(case)

    def _among(self, case: Case) -> Namer:
        return self if case in self._cases else Namer([*self._cases, case], among=self._whole)

    @cached_property
    def _alike(self) -> dict[str, _Group]:
        """Return the cases of each strategy, by its name in sentences."""
        return {name: _Group(of, self._called) for name, of in _grouped(self._cases, self.spoken_strategy)}

    @cached_property
    def _parts(self) -> dict[Case, list[str]]:
        """Return the words of short and spoken names that follow strategy and ranks, by case."""
        words_by_case = {case: self.details(case) for case in self._cases}
        drawn, said = (
            _twice((strategy(case), case.world_size, *words) for case, words in words_by_case.items())
            for strategy in (self.strategy, self.spoken_strategy)
        )
        return _unique(words_by_case, map(any, zip(drawn, said, strict=True)))


class _Called:
    """Names of strategies and workloads among some cases."""

    def __init__(self, cases: Collection[Case]) -> None:
        self._cases = cases

    @cached_property
    def _rings(self) -> bool:
        return rings_among(self._cases)

    @cached_property
    def _workloads(self) -> dict[str, str]:
        every = dict.fromkeys(case.workload for case in self._cases)
        few = {name: name.rpartition(".py:")[2].removeprefix("replay:") for name in every}
        counts = Counter(few.values())
        return {name: word if counts[word] == 1 else name for name, word in few.items()}

    def strategy(self, case: Case, name: str) -> str:
        """Return the strategy's name, or that of the ring it is."""
        return as_ring(name) if self._rings and is_ring(case) else name

    def workload(self, case: Case) -> str:
        """Return its workload, shortened where no other has the same short name."""
        return self._workloads.get(case.workload, case.workload)


class _Labelled:
    """Names of cases that begin with their labels."""

    def __init__(self, cases: Iterable[Case], called: _Called) -> None:
        self._cases = cases
        self._called = called

    @cached_property
    def _groups(self) -> list[tuple[str, list[Case]]]:
        return _grouped(self._cases, lambda case: case.label)

    @cached_property
    def full(self) -> dict[Case, list[str]]:
        """Return the words of the full names, by case."""
        labels: dict[Case, list[str]] = {}
        for label, members in self._groups:
            group = _Group(members, self._called)
            labels |= {
                case: [*on_one_line(label).split(JOINT), *group.words(case, EVERY)] for case in members
            }
        return _unique(labels, _twice(map(tuple, labels.values())))

    @cached_property
    def keys(self) -> dict[Case, str]:
        """Return the names in data, by case."""
        return {
            case: on_one_line(JOINT.join([label, *words]))
            for label, members in self._groups
            for case, words in _key_words(members)
        }


class _Group:
    """Cases to distinguish from each other, and their words for what they do not share."""

    def __init__(self, cases: Iterable[Case], called: _Called) -> None:
        self._cases = tuple(cases)
        self._called = called
        self._told: dict[tuple[str, ...], _Words] = {}

    def several_layouts(self, ranks: int) -> bool:
        """Return whether cases with this number of ranks have several layouts on nodes."""
        return (
            len({(case.nodes, case.ranks_per_node) for case in self._cases if case.world_size == ranks}) > 1
        )

    def words(self, case: Case, of: Iterable[str]) -> list[str]:
        """Return a case's words for those of these fields in which the cases differ, each word once."""
        names = tuple(of)
        if names not in self._told:
            self._told[names] = self._telling(names)
        words = dict.fromkeys(on_one_line(word) for word in self._told[names](case))
        return [word for word in words if word]

    def _telling(self, of: tuple[str, ...]) -> _Words:
        names = differing(self._cases, of)
        if "workload" not in names:
            return self._plainly(self._cases, names)
        rest = [name for name in of if name != "workload"]
        within = {
            name: self._plainly(group, differing(group, rest))
            for name, group in _grouped(self._cases, lambda case: case.workload)
        }
        return lambda case: [self._called.workload(case), *within[case.workload](case)]

    def _plainly(self, members: Sequence[Case], names: Sequence[str]) -> _Words:
        """Return a function from a case to its words for these fields; no layouts where ranks imply them."""
        if "world_size" in names and len({case.world_size for case in members}) == len(
            {(case.world_size, case.nodes, case.ranks_per_node) for case in members}
        ):
            names = [name for name in names if name not in ("nodes", "ranks_per_node")]
        tellers = [
            self._teller(name, members) for name in sorted(names, key=lambda name: name != "world_size")
        ]
        return lambda case: [word for tell in tellers for word in tell(case)]

    def _teller(self, name: str, members: Sequence[Case]) -> _Words:
        if name in OPTIONS:
            return partial(option_words, name, frozenset(varied(members, name)))
        if name == "strategy":
            said = {case.strategy: self._called.strategy(case, traits_of(case).spoken) for case in members}
            if len(set(said.values())) == len(said):
                return lambda case: [said[case.strategy]]
        if name in _OF_CLASSES:
            return partial(_class_word, name, _clashing(name, members))
        return lambda case: [FACETS[name].word(case)]


def curve_key(case: Case, among: Collection[Case], *, more: Iterable[str] = ()) -> str:
    """Return the name of a case's curve in data: spoken strategy, words for its variant, and `more` words."""
    return " ".join([Namer(among).spoken_strategy(case), *_variant_words(case, among), *more])


def _key_words(cases: Sequence[Case]) -> Iterator[tuple[Case, list[str]]]:
    """Yield cases of one label with their words in keys; settings are compared within a workload."""
    workloads = _grouped(cases, lambda case: case.workload)
    chosen = differing(cases, _CHOSEN)
    for workload, members in workloads:
        first = [workload.removeprefix("replay:")] if len(workloads) > 1 else []
        settings = [_key_settings(case) for case in members]
        every = dict.fromkeys(key for each in settings for key in each)
        apart = [key for key in every if any(each.get(key) != settings[0].get(key) for each in settings)]
        if ("", "local_batch") in apart and ("", "global_batch") in apart:
            apart.remove(("", "global_batch"))
        for case, own in zip(members, settings, strict=True):
            choices = [_key_choice(getattr(case, name)) for name in chosen]
            yield case, [*choices, *first, *(_key_word(*key, own[key]) for key in apart if key in own)]


def _key_settings(case: Case) -> dict[tuple[str, str], Any]:
    """Return the settings that are not in a label, by field of `OPTIONS` (empty for none) and name."""
    options = ("workload_options_json", "options_json", "env_json")
    settings = {(name, key): value for name in options for key, value in OPTIONS[name](case).items()}
    return settings | {("", name): getattr(case, name) for name in EVERY if name not in _IN_LABEL}


def _key_choice(value: str) -> str:
    return value.rpartition(":")[0] or value.replace("_", " ")


def _key_word(of: str, name: str, value: Any) -> str:
    if of == "env_json":
        return environment.words(name, value)
    if name == "dtype" and value == OWN_TYPES:
        return "own types"
    if name in ("dtype", "device", "backend", "launcher"):
        return str(value)
    return _assigned(name, value)


def _assigned(name: str, value: Any) -> str:
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def _variant_words(case: Case, among: Iterable[Case]) -> list[str]:
    """Return a case's words for its variant among those of its strategy, in the form of curves' keys."""
    same = [other for other in among if other.strategy == case.strategy]
    words: list[str] = []
    for name in differing(same, VARIANT):
        if name in OPTIONS:
            only = varied(same, name)
            own = {key: value for key, value in OPTIONS[name](case).items() if key in only}
            if name == "env_json":
                own = {key: value or "unset" for key, value in own.items()}
            words += [_assigned(key, value) for key, value in own.items()]
        else:
            word = FACETS[name].word(case)
            clashing = name in _OF_CLASSES and word in _clashing(name, same)
            words.append(f"{word} ({getattr(case, name).rpartition(':')[0]})" if clashing else word)
    return list(dict.fromkeys(word for word in words if word))


def columns(cases: Sequence[Case], of: Iterable[str] = EVERY) -> list[Setting]:
    """Return a column for each of these fields that not all cases share; for options, one for each key."""
    by_title: dict[str, Setting] = {}
    for name in differing(cases, of):
        if name in OPTIONS:
            for key in varied(cases, name):
                by_title[key] = Setting(title=key, text=partial(option_word, name, key))
        else:
            facet = FACETS[name]
            by_title.setdefault(facet.title, Setting(title=facet.title, text=facet.in_column(name)))
    return list(by_title.values())


def words_of(case: Case, of: Iterable[str]) -> list[str]:
    """Return a case's words for these fields, without regard to other cases."""
    return [word for name in of if (word := FACETS[name].word(case))]


def ranks_of(case: Case) -> str:
    """Return how many ranks a case has: `1 rank`, `4 ranks`."""
    return counted(case.world_size, "rank")


def layout_of(case: Case) -> str:
    """Return its layout, nodes x ranks per node: `2 x 4`."""
    return FACETS["nodes"].word(case)


def on_nodes(case: Case) -> str:
    """Return the number of nodes of its ranks: `on 2 nodes`."""
    return f"on {counted(case.nodes, 'node')}"


def on_nodes_of(case: Case) -> str:
    """Return the number of ranks on each of its nodes: `on nodes of 4`."""
    return f"on nodes of {case.ranks_per_node}"


def _clashing(name: str, every: Iterable[Case]) -> set[str]:
    """Return the words that different values of a field share."""
    values: dict[str, set[str]] = {}
    for case in every:
        values.setdefault(FACETS[name].word(case), set()).add(getattr(case, name))
    return {word for word, of in values.items() if len(of) > 1}


def _class_word(name: str, clashing: Collection[str], case: Case) -> list[str]:
    word = FACETS[name].word(case)
    if word in clashing:
        return [f"{word} ({getattr(case, name).rpartition(':')[0]})"]
    return [word] if word != case.strategy else []  # a master's algorithm is called master


def _bracketed(name: str, words: Sequence[str]) -> str:
    if not words:
        return name
    start = f"{name[:-1]}, " if name.endswith(")") else f"{name} ("  # of a ring: (DDP, 2 x 2)
    return f"{start}{', '.join(words)})"


def _grouped(cases: Iterable[Case], key: Callable[[Case], str]) -> list[tuple[str, list[Case]]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return list(groups.items())


def _twice(names: Iterable[Hashable]) -> list[bool]:
    """Return for each name whether another is the same."""
    every = list(names)
    counts = Counter(every)
    return [counts[name] > 1 for name in every]


def _unique(names: Mapping[Case, list[str]], twice: Iterable[bool]) -> dict[Case, list[str]]:
    """Return the words of names, with the case's id where the words of two are the same."""
    return {
        case: [*words, *([case.case_id] if same else [])]
        for (case, words), same in zip(names.items(), twice, strict=True)
    }
