"""Properties of a strategy that comparisons and figures need, read from the strategy's class or from a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from ddpbench.spec import Case, Promise, StatedTraits
from ddpbench.strategies import TABLE, load_strategy
from ddpbench.strategies.base import Strategy, StrategyRole
from ddpbench.text_safety import shortened
from ddpbench.user_files import short_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """Properties of a strategy with given options that analysis and reports need."""

    display: str
    """The strategy's name in figures and tables."""
    spoken: str
    """The strategy's name in a sentence."""
    role: StrategyRole
    """The strategy's role, such as the base case, the upper bound, or a reference that others are compared with."""
    promise: Promise | None
    """The key of the promise that is proved, or None if this version does not know the strategy."""
    one_process: bool
    uses_buckets: bool
    engine: str
    """The library that computes the model, such as `torch`."""
    shows_transfers_on_gpus: bool
    whole_state: bool
    """True if every rank has the full model and optimizer."""
    colour: str
    """Colour in figures as `#RRGGBB`, or empty."""
    marker: str
    """Marker in figures as matplotlib's code, or empty."""
    note: str
    """A caveat that a report must print next to the strategy's numbers."""
    framework: str = ""
    """The framework that trains, such as `lightning`; empty if ddpbench's own code does."""

    @property
    def exchanges(self) -> bool:
        """True if the strategy's ranks exchange data. Comparisons rank only such strategies."""
        return self.promise != "nothing" and self.role != "base"

    @property
    def parts_state(self) -> bool:
        """True if each rank is known to have only a part of the model or of the optimizer's state."""
        return self.promise is not None and not self.whole_state

    @property
    def exact(self) -> bool:
        """True if every step is proved to equal a single process's, so that comparisons need no caveat.

        The base case and the upper bound, which exchange nothing, need none either.
        """
        return self.promise == "gradients" or (self.promise == "nothing" and self.role in ("base", "bound"))


@cache
def _traits(strategy: str, stated: str, options_json: str, device: str) -> Traits:
    if strategy in TABLE:
        found = load_strategy(strategy)
        try:
            promise: Promise | None = found.promise(found.options.model_validate_json(options_json))
        except ValueError:  # a different version wrote the options
            promise = None if found.aggregates else "nothing"
        return _of_class(found, strategy.replace("_", " "), promise, device)
    if stated:
        own = StatedTraits.model_validate_json(stated)
        return Traits(**own.model_dump(), role="", engine="torch")
    name = short_name(strategy).replace("_", " ")  # a different version's, or a user's in an old run
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
        framework=found.framework,
    )


def _declared(strategy: Strategy[Any], name: str) -> Any:
    for each in type(strategy).__mro__:
        if each.__module__.partition(".")[0] == "ddpbench":
            return ""
        if name in vars(each):
            return getattr(strategy, name)
    return ""


_STATED = tuple(StatedTraits.model_fields)


def stated_traits(strategy: Strategy[Any], case: Case) -> str:
    """Return the traits of a user's strategy with a case's options, as the text in `Case.strategy_traits`.

    Raises:
        ValueError: reports cannot show the traits; the message says why.
        StrategyError: a method of the strategy, such as `promise` or `period`, fails or returns an unusable value.
    """
    options = strategy.options.model_validate(case.options)
    promise = strategy.promise(options)
    strategy.period(options), strategy.accumulated(options)  # these raise if ranks could not use the answers
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
"""Pairs of colour and marker, used in turn for users' strategies that declare no colour or marker."""


def told_apart(cases: Sequence[Case]) -> list[Case]:
    """Return a run's cases with distinct names, colours and markers for users' strategies.

    Of equal names, a user's strategy is named with its file.
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
    """Return the traits of a case's strategy with the case's options.

    This imports no user code, because the case itself includes the traits of a user's strategy.
    """
    return _traits(case.strategy, case.strategy_traits, case.options_json, case.device)


def hides_transfers(case: Case) -> bool:
    """Return whether a case's ranks exchange data between GPUs in transfers that cannot be timed."""
    return case.device == "cuda" and case.world_size > 1 and not traits_of(case).shows_transfers_on_gpus


def traits_named(strategy: str) -> Traits:
    """Return the traits of one of ddpbench's own strategies with its default options."""
    return _traits(strategy, "", "{}", "")


def rings_among(cases: Iterable[Case]) -> bool:
    """Return whether names should call DDP a ring, because other algorithms also run over emulated links.

    gloo's all-reduce is a ring. If DDP itself ran with several algorithms, its names contain them instead. Users'
    strategies are ignored, because their algorithms are unknown.
    """
    linked = [
        case
        for case in cases
        if case.fabric and case.backend == "gloo" and not case.strategy_traits and traits_of(case).exchanges
    ]
    of_ddp = {case.algorithm for case in linked if traits_of(case).role == "reference"}
    return of_ddp == {"all_reduce"} and len({case.algorithm for case in linked}) > 1


def is_ring(case: Case) -> bool:
    """Return whether this is a case of DDP in which the backend all-reduces gradients in a ring."""
    return traits_of(case).role == "reference" and bool(case.known_algorithm)


def as_ring(name: str) -> str:
    """Return the name for a strategy that is called a ring, for example `ring (DDP)` for `DDP`."""
    return f"ring ({name})"


def _file_of(strategy: str) -> str:
    """Return the last 30 characters of a strategy's path, without those that some figures cannot draw."""
    return re.sub(r"[^\w.-]+", " ", strategy.rpartition(":")[0]).strip()[-30:]
