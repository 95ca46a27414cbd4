"""The traits of a strategy, for comparing and drawing: from its class, or from a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from ddpbench.spec import Case, Promise, StatedTraits
from ddpbench.strategies import TABLE, load_strategy
from ddpbench.strategies.base import Role, Strategy
from ddpbench.texts import shortened
from ddpbench.user_files import short_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """A strategy with given options, as analysis and reports see it."""

    display: str
    """Its name in figures and tables."""
    spoken: str
    """Its name in a sentence."""
    role: Role
    """Whether it is the base case, the upper bound, or what others are held against."""
    promise: Promise | None
    """What is proved of it; None for one that is not known here."""
    one_process: bool
    uses_buckets: bool
    engine: str
    """What computes the model: `torch`, or a framework of another kind."""
    shows_transfers_on_gpus: bool
    whole_state: bool
    """Every rank computes the whole model and its whole update."""
    colour: str
    """`#RRGGBB`; empty: it has none of its own."""
    marker: str
    """Matplotlib's code; empty likewise."""
    note: str
    """A caveat that a report must print next to its numbers."""

    @property
    def exchanges(self) -> bool:
        """Whether its ranks exchange anything: where they do not, it is never ranked."""
        return self.promise != "nothing" and self.role != "base"

    @property
    def parts_state(self) -> bool:
        """Return whether ranks are known to hold parts of the model or of its optimizer."""
        return self.promise is not None and not self.whole_state

    @property
    def exact(self) -> bool:
        """Return whether it is proved to train as one process does, step by step; else a comparison has a caveat.

        The base case and the upper bound need none: that they exchange nothing is what they are for.
        """
        return self.promise == "gradients" or (self.promise == "nothing" and self.role in ("base", "bound"))


@cache
def _traits(strategy: str, stated: str, options_json: str, device: str) -> Traits:
    if strategy in TABLE:
        found = load_strategy(strategy)
        try:
            promise: Promise | None = found.promise(found.options.model_validate_json(options_json))
        except ValueError:  # options of another version
            promise = None if found.aggregates else "nothing"
        return _of_class(found, strategy.replace("_", " "), promise, device)
    if stated:
        own = StatedTraits.model_validate_json(stated)
        return Traits(**own.model_dump(), role="", engine="torch")
    name = short_name(strategy).replace("_", " ")  # of another version, or a user's own of a run without this
    return Traits(
        display=name,
        spoken=name,
        role="",
        promise=None,
        one_process=False,
        uses_buckets=False,
        engine="torch",
        shows_transfers_on_gpus=True,
        whole_state=False,
        colour="",
        marker="",
        note="",
    )


def _of_class(found: Strategy[Any], name: str, promise: Promise | None, device: str) -> Traits:
    suffix = f" {found.on_cpu}" if found.on_cpu and device == "cpu" else ""
    display = found.display or name
    return Traits(
        display=f"{display}{suffix}",
        spoken=f"{found.spoken or display}{suffix}",
        role=found.role,
        promise=promise,
        one_process=found.one_process,
        uses_buckets=found.uses_buckets,
        engine=found.engine,
        shows_transfers_on_gpus=found.shows_transfers_on_gpus,
        whole_state=found.whole_state,
        colour=found.colour,
        marker=found.marker,
        note=found.note,
    )


def _declared(strategy: Strategy[Any], name: str) -> Any:
    """Return what a user's own class says; empty where only a class of ddpbench does, from which it derives."""
    for each in type(strategy).__mro__:
        if each.__module__.partition(".")[0] == "ddpbench":
            return ""
        if name in vars(each):
            return getattr(strategy, name)
    return ""


_STATED = tuple(StatedTraits.model_fields)


def stated_traits(strategy: Strategy[Any], case: Case) -> str:
    """Return what a user's own strategy says of itself with a case's options, as `Case.strategy_traits` holds it.

    Raises:
        ValueError: it is nothing that reports can show; the sentence says what.
        StrategyError: it cannot say what it promises, or after how many steps what it exchanges repeats.
    """
    options = strategy.options.model_validate(case.options)
    promise = strategy.promise(options)
    strategy.period(options), strategy.accumulated(options)  # which refuse what ranks could not use
    traits = _of_class(strategy, "", promise, case.device)
    display = _declared(strategy, "display") or short_name(case.strategy)
    traits = replace(
        traits,
        display=display,
        spoken=_declared(strategy, "spoken") or display,
        colour=_declared(strategy, "colour"),
        marker=_declared(strategy, "marker"),
    )
    try:
        return StatedTraits(**{name: getattr(traits, name) for name in _STATED}).to_text()
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where, message = problem["loc"][0], problem["msg"].removeprefix("Value error, ")
        raise ValueError(
            f"class {short_name(case.strategy)}: {where} = {shortened(problem['input'])}: "
            f"{message[:1].lower()}{message[1:]}"
        ) from None


_MORE = (("", "X"), ("#009E73", "P"), ("#CC79A7", "p"), ("#56B4E9", "h"), ("#D55E00", "*"), ("#000000", "H"))
"""Colours and markers of users' own strategies that declare none, in turn; kin share a colour, and not a marker."""


def told_apart(cases: Sequence[Case]) -> list[Case]:
    """Return a run's cases with names, colours and markers of users' own strategies by which figures tell them apart.

    Where two of one run have the same name, or one has the name of a strategy of ddpbench, its file is added.
    """
    own = list(dict.fromkeys(case.strategy for case in cases if case.strategy_traits))
    if not own:
        return list(cases)
    users: dict[str, list[str]] = {}
    for case in cases:
        names = users.setdefault(traits_of(case).display, [])
        names.extend([case.strategy] if case.strategy not in names else [])

    def apart(case: Case) -> Case:
        stated = StatedTraits.model_validate_json(case.strategy_traits)
        changes: dict[str, str] = {}
        if len(users[stated.display]) > 1:
            file = _file_of(case.strategy)
            alike = [one for one in users[stated.display] if _file_of(one) == file]
            word = file if len(alike) == 1 else f"{file[-26:]} {alike.index(case.strategy) + 1}"
            changes = {name: f"{getattr(stated, name)[:25]} ({word})" for name in ("display", "spoken")}
        colour, marker = _MORE[own.index(case.strategy) % len(_MORE)]
        changes |= {"colour": stated.colour or colour, "marker": stated.marker or marker}
        return replace(case, strategy_traits=stated.model_copy(update=changes).to_text())

    return [apart(case) if case.strategy_traits else case for case in cases]


def traits_of(case: Case) -> Traits:
    """Return what the strategy of a case says of itself with the case's options; of a user's own as the case has it.

    Imports nothing of a user's.
    """
    return _traits(case.strategy, case.strategy_traits, case.options_json, case.device)


def hides_transfers(case: Case) -> bool:
    """Return whether ranks exchange something on GPUs that cannot be timed from outside."""
    return case.device == "cuda" and case.world_size > 1 and not traits_of(case).shows_transfers_on_gpus


def traits_named(strategy: str) -> Traits:
    """Return the same of a strategy of ddpbench by name alone, with the default options."""
    return _traits(strategy, "", "{}", "")


def rings_among(cases: Iterable[Case]) -> bool:
    """Return whether DDP is to be called the ring that it is: held against other algorithms over emulated links.

    gloo's all-reduce is a ring. Where DDP itself ran with several algorithms, those are named instead. Users' own
    strategies do not count: of their algorithms nothing is known.
    """
    linked = [
        case
        for case in cases
        if case.fabric and case.backend == "gloo" and not case.strategy_traits and traits_of(case).exchanges
    ]
    of_ddp = {case.algorithm for case in linked if traits_of(case).role == "reference"}
    return of_ddp == {"all_reduce"} and len({case.algorithm for case in linked}) > 1


def is_ring(case: Case) -> bool:
    """Return whether this is DDP whose gradients go round a ring by the backend's own all-reduce."""
    return traits_of(case).role == "reference" and bool(case.known_algorithm)


def as_ring(name: str) -> str:
    """Return a name such as `DDP` as that of the ring it is."""
    return f"ring ({name})"


def _file_of(strategy: str) -> str:
    """Return the end of a strategy's path, in letters that any figure has."""
    return re.sub(r"[^\w.-]+", " ", strategy.rpartition(":")[0]).strip()[-30:]
