"""Name cases by the settings that distinguish them from each other. `FACETS` has the words for each setting.

A `Namer` has all cases of a table, a figure, a text or a run. It gives each of them a unique name in four forms:

- **full**, for terminals: `ddp · 2 ranks · 25 MiB buckets · 1 thread per rank`;
- **short**, for figures and tables: `DDP, 2 ranks, 25 MiB buckets`;
- **spoken**, for sentences: `DDP at 2 ranks (25 MiB buckets)`;
- **key**, for data, which stays the same in all versions of ddpbench: `ddp · 2 ranks · 25 MiB buckets ·
  threads_per_rank=1`.

No other module makes names.
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
"""All fields of a case that distinguish it from other cases."""
_OF_CLASSES = ("strategy", "algorithm")
"""Fields whose value may be a class in a user's own file. Names of cases then have the class without the file."""
_CHOSEN = ("strategy", "algorithm", "schedule")
_IN_LABEL = {
    *_CHOSEN,
    *_PLACE,
    *OPTIONS,
    *("workload", "bucket_cap_mb", "loader_workers", "data", "fabric", "dilation", "shrink", "precision"),
    "recovery",
}
"""Fields that are in `Case.label`, or that `_key_words` puts into keys in its own way."""
_Words = Callable[[Case], list[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A table's column for a setting in which cases differ."""

    title: str
    text: Callable[[Case], str]
    """Return the column's text for a case."""


class Namer:
    """Names cases by the settings that distinguish them from each other.

    Other cases are named as if the constructor had got them.
    """

    def __init__(self, cases: Iterable[Case], *, among: Namer | None = None) -> None:
        """Give `cases` distinct names. If `among` is given, strategies and workloads are named as in `among`."""
        self._cases = dict.fromkeys(cases)
        self._whole = among
        self._called: _Called = _Called(self._cases) if among is None else among._called
        self._all = _Group(self._cases, self._called)
        self._labelled = _Labelled(self._cases, self._called)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an empty object.

        Pages have a `Namer` in each row, but figures get their names as text.
        """
        return object.__new__, (type(self),)

    def of(self, cases: Iterable[Case]) -> Namer:
        """Return a `Namer` of some of the cases, which names strategies and workloads as this one does."""
        return Namer(cases, among=self._whole or self)

    def full(self, case: Case, *, but: Collection[str] = ()) -> str:
        """Return a case's full name: its label, and the settings that distinguish it within that label.

        Words in `but` are left out.
        """
        first, *words = self._among(case)._labelled.full[case]
        return JOINT.join([first, *(word for word in words if word not in but)])

    def key(self, case: Case) -> str:
        """Return a case's name in data files: its label, and the settings in which cases differ, as `name=value`.

        The wording, special for some settings, stays the same in all versions of ddpbench.
        """
        return self._among(case)._labelled.keys[case]

    def short(self, case: Case, of: Iterable[str] | None = None, *, layouts: bool = True) -> str:
        """Return a case's short name: its strategy, ranks, and the settings that distinguish it within that strategy.

        `of` restricts the distinguishing fields; `layouts` adds the layout on nodes.
        """
        words = self._among(case)._parts[case] if of is None else self.details(case, of, layouts=layouts)
        return ", ".join([self.strategy(case), ranks_of(case), *words])

    def spoken(self, case: Case) -> str:
        """Return a case's name for a sentence: strategy, ranks and, in brackets, the settings that distinguish it."""
        return _bracketed(f"{self.spoken_strategy(case)} at {ranks_of(case)}", self._among(case)._parts[case])

    def variant(
        self, case: Case, of: Iterable[str] = EVERY, *, layouts: bool = True, more: Iterable[str] = ()
    ) -> str:
        """Return a case's strategy for a sentence, followed in brackets by its `details` and by `more`.

        The number of ranks is left out. `layouts` is as in `details`.
        """
        return _bracketed(self.spoken_strategy(case), [*self.details(case, of, layouts=layouts), *more])

    def details(self, case: Case, of: Iterable[str] = EVERY, *, layouts: bool = True) -> list[str]:
        """Describe the fields in `of` that distinguish a case from others of its strategy, at any number of ranks.

        With `layouts`, the layout on nodes is added where cases of the same strategy and ranks differ in it.
        """
        alike = self._among(case)._alike[self.spoken_strategy(case)]
        words = alike.words(case, [name for name in of if name not in _PLACE])
        return [*words, *([layout_of(case)] if layouts and alike.several_layouts(case.world_size) else [])]

    def apart(self, case: Case, of: Iterable[str] = EVERY) -> list[str]:
        """Describe a case's values of the fields in `of` in which the named cases differ.

        Options are compared within their workload or strategy. If workloads differ, other fields are compared within
        each.
        """
        return self._among(case)._all.words(case, of)

    def shared(self, among: Iterable[Case] | None = None) -> list[str]:
        """Return the words that the full names of all cases have in common; none for a single case.

        If `among` is given, only the names of these cases are compared.
        """
        first, *others = (self._labelled.full[case] for case in (self._cases if among is None else among))
        return [word for word in first[1:] if others and all(word in other[1:] for other in others)]

    def strategy(self, case: Case) -> str:
        """Return a case's strategy as named in figures and tables.

        DDP is `ring (DDP)` if it is compared with other algorithms.
        """
        return self._called.strategy(case, traits_of(case).display)

    def spoken_strategy(self, case: Case) -> str:
        """Return a case's strategy as named in sentences.

        DDP is `ring (DDP)` if it is compared with other algorithms.
        """
        return self._called.strategy(case, traits_of(case).spoken)

    def workload(self, case: Case) -> str:
        """Return the name of a case's workload, shortened to a user's class or a replay's profile if that is unique."""
        return self._called.workload(case)

    def _among(self, case: Case) -> Namer:
        return self if case in self._cases else Namer([*self._cases, case], among=self._whole)

    @cached_property
    def _alike(self) -> dict[str, _Group]:
        return {name: _Group(of, self._called) for name, of in _grouped(self._cases, self.spoken_strategy)}

    @cached_property
    def _parts(self) -> dict[Case, list[str]]:
        """Return, by case, the words after strategy and ranks in short and spoken names."""
        words_by_case = {case: self.details(case) for case in self._cases}
        drawn, said = (
            _twice((strategy(case), case.world_size, *words) for case, words in words_by_case.items())
            for strategy in (self.strategy, self.spoken_strategy)
        )
        return _unique(words_by_case, map(any, zip(drawn, said, strict=True)))


class _Called:
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
        """Return `name`, but `ring (DDP)` for DDP if it is compared with other algorithms."""
        return as_ring(name) if self._rings and is_ring(case) else name

    def workload(self, case: Case) -> str:
        return self._workloads.get(case.workload, case.workload)


class _Labelled:
    def __init__(self, cases: Iterable[Case], called: _Called) -> None:
        self._cases = cases
        self._called = called

    @cached_property
    def _groups(self) -> list[tuple[str, list[Case]]]:
        return _grouped(self._cases, lambda case: case.label)

    @cached_property
    def full(self) -> dict[Case, list[str]]:
        labels: dict[Case, list[str]] = {}
        for label, members in self._groups:
            group = _Group(members, self._called)
            labels |= {
                case: [*on_one_line(label).split(JOINT), *group.words(case, EVERY)] for case in members
            }
        return _unique(labels, _twice(map(tuple, labels.values())))

    @cached_property
    def keys(self) -> dict[Case, str]:
        return {
            case: on_one_line(JOINT.join([label, *words]))
            for label, members in self._groups
            for case, words in _key_words(members)
        }


class _Group:
    """Cases with words for the settings in which they differ."""

    def __init__(self, cases: Iterable[Case], called: _Called) -> None:
        self._cases = tuple(cases)
        self._called = called
        self._told: dict[tuple[str, ...], _Words] = {}

    def several_layouts(self, ranks: int) -> bool:
        return (
            len({(case.nodes, case.ranks_per_node) for case in self._cases if case.world_size == ranks}) > 1
        )

    def words(self, case: Case, of: Iterable[str]) -> list[str]:
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
        """Return a function from a case to its words for these fields; ranks may already determine layouts."""
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
    """Return the name of a case's curve in data: its strategy as in sentences, its variant, and `more` words."""
    return " ".join([Namer(among).spoken_strategy(case), *_variant_words(case, among), *more])


def _key_words(cases: Sequence[Case]) -> Iterator[tuple[Case, list[str]]]:
    """Yield the words after the label in a key. All cases have one label; workloads are compared apart."""
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
    """Distinguish a case from others of its strategy, worded as in `curve_key`."""
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
    """Return one column for each of these fields in which the cases differ; for options, one column per key."""
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
    """Describe a case's values of these fields in words, without regard to other cases."""
    return [word for name in of if (word := FACETS[name].word(case))]


def workload_of(case: Case) -> str:
    """Return a case's workload for a sentence: `gpt:nano`, or a class of a user's file without the path, `Images`."""
    return case.workload.rpartition(".py:")[2]


def ranks_of(case: Case) -> str:
    """Return how many ranks a case has: `1 rank`, `4 ranks`."""
    return counted(case.world_size, "rank")


def layout_of(case: Case) -> str:
    """Return a case's layout, nodes x ranks per node: `2 x 4`."""
    return FACETS["nodes"].word(case)


def layout_in_words(case: Case) -> str:
    """Return a case's layout with what it counts: `2 nodes x 4 ranks`."""
    return f"{counted(case.nodes, 'node')} x {counted(case.ranks_per_node, 'rank')}"


def spelled_out(case: Case, word: str) -> str:
    """Return a setting's word in the longer form of its first mention, which explains the word.

    A layout is written `1 node x 4 ranks`, and replicas of several ranks each are called a hybrid.
    """
    if word == layout_of(case):
        return layout_in_words(case)
    replicas = case.options.get("replicas", 1)
    return f"{word} (hybrid)" if replicas != 1 and word == _assigned("replicas", replicas) else word


def on_nodes(case: Case) -> str:
    """Return a phrase with a case's number of nodes: `on 2 nodes`."""
    return f"on {counted(case.nodes, 'node')}"


def on_nodes_of(case: Case) -> str:
    """Return a phrase with a case's number of ranks per node: `on nodes of 4`."""
    return f"on nodes of {case.ranks_per_node}"


def _clashing(name: str, every: Iterable[Case]) -> set[str]:
    """Return the words that stand for several values of a field."""
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
    start = (
        f"{name[:-1]}, " if name.endswith(")") else f"{name} ("
    )  # a ring's name ends in brackets: (DDP, 2 x 2)
    return f"{start}{', '.join(words)})"


def _grouped(cases: Iterable[Case], key: Callable[[Case], str]) -> list[tuple[str, list[Case]]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return list(groups.items())


def _twice(names: Iterable[Hashable]) -> list[bool]:
    every = list(names)
    counts = Counter(every)
    return [counts[name] > 1 for name in every]


def _unique(names: Mapping[Case, list[str]], twice: Iterable[bool]) -> dict[Case, list[str]]:
    """Add the case's id where `twice` says that the words are not unique."""
    return {
        case: [*words, *([case.case_id] if same else [])]
        for (case, words), same in zip(names.items(), twice, strict=True)
    }
