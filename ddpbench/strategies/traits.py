"""What a strategy says of itself, for those who compare and draw: made from its class, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ddpbench.spec import Case
from ddpbench.strategies import TABLE, load_strategy
from ddpbench.strategies.base import Promise, Role


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

    @property
    def exchanges(self) -> bool:
        """Whether its ranks exchange anything: where they do not, it is never ranked."""
        return self.promise != "nothing" and self.role != "base"

    @property
    def exact(self) -> bool:
        """Whether it is proved to train as one process does, step by step. Else it is not compared without a caveat."""
        return self.promise in ("gradients", "nothing")


@cache
def _traits(strategy: str, options_json: str, device: str) -> Traits:
    if strategy not in TABLE:  # of another version, or a user's own that is not here
        name = strategy.replace("_", " ")
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
        )
    found = load_strategy(strategy)
    try:
        promise: Promise | None = found.promise(found.options.model_validate_json(options_json))
    except ValueError:  # options of another version
        promise = None if found.aggregates else "nothing"
    suffix = f" {found.on_cpu}" if found.on_cpu and device == "cpu" else ""
    display = found.display or strategy.replace("_", " ")
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
    )


def traits_of(case: Case) -> Traits:
    """Return what the strategy of a case says of itself with the case's options."""
    return _traits(case.strategy, case.options_json, case.device)


def hides_transfers(case: Case) -> bool:
    """Return whether ranks exchange something on GPUs that cannot be timed from outside."""
    return case.device == "cuda" and case.world_size > 1 and not traits_of(case).shows_transfers_on_gpus


def traits_named(strategy: str) -> Traits:
    """Return the same by name alone, with the default options."""
    return _traits(strategy, "{}", "")


def rings_among(cases: Iterable[Case]) -> bool:
    """Return whether DDP is to be called the ring that it is: held against other algorithms over emulated links.

    gloo's all-reduce is a ring. Where DDP itself ran with several algorithms, those are named instead.
    """
    linked = [case for case in cases if case.fabric and case.backend == "gloo" and traits_of(case).exchanges]
    of_ddp = {case.algorithm for case in linked if traits_of(case).role == "reference"}
    return of_ddp == {"all_reduce"} and len({case.algorithm for case in linked}) > 1


def spoken_among(case: Case, among: Iterable[Case]) -> str:
    """Return a strategy's name in a sentence on these cases; DDP's is that of the ring it is where others are not."""
    return spoken_of(case, rings=is_ring(case) and rings_among(among))


def spoken_of(case: Case, *, rings: bool) -> str:
    """Return a strategy's name in a sentence; `rings` is what `rings_among` says of the cases that it is on."""
    spoken = traits_of(case).spoken
    return as_ring(spoken) if rings and is_ring(case) else spoken


def is_ring(case: Case) -> bool:
    """Return whether this is DDP whose gradients go round a ring by the backend's own all-reduce."""
    return traits_of(case).role == "reference" and bool(case.known_algorithm)


def as_ring(name: str) -> str:
    """Return a name such as `DDP` as that of the ring it is."""
    return f"ring ({name})"
