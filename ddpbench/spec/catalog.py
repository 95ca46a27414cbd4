"""The facts about strategies and workloads that validate an experiment without importing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel

from ddpbench.spec.case import Case

Pieces = Literal["", "stages", "branches"]
"""The kind of pieces into which a strategy cuts a model, one for each rank of a replica; empty if it does not."""
Promise = Literal["nothing", "gradients", "delayed", "averaged", "ordered"]
"""The property of a strategy that is proved before timing; `ddpbench.strategies.PROMISES` describes each."""


def _all(world_size: int) -> int:
    return world_size


def _one_a_rank(case: Case) -> int:
    return case.world_size


def _untold(_: Case) -> str:
    return ""


class NoOptions(BaseModel, extra="forbid", frozen=True):
    """Options of a strategy or workload that accepts no options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyInfo:
    """The traits of a strategy that can be read without importing torch; see `ddpbench.strategies.Strategy`."""

    name: str
    options: type[BaseModel]
    algorithm: str
    schedule: str
    """The default schedule. `algorithms` and `schedules` list all choices, and are empty if nothing can be chosen."""
    uses_buckets: bool
    uses_backend: bool
    one_process: bool
    note: str
    check: Callable[[Case], str | None]
    """Return why the strategy cannot run a case, or None."""
    algorithms: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    own_algorithms: bool = False
    """True if a user's own algorithm may be requested, too."""
    trainers: Callable[[int], int] = _all
    """Return, for a world size, how many ranks train on their own samples."""
    pieces: Pieces = ""
    piece_count: Callable[[Case], int] = _one_a_rank
    """Return the number of pieces into which a case's model is cut."""
    launcher: str = ""
    """The strategy's own launcher; empty if it uses the experiment's."""
    traits: Callable[[Case], str] = _untold
    """Return the traits that a user's strategy states for a case, as in `Case.strategy_traits`.

    Return an empty text for a strategy of ddpbench. Raise `ValueError` if reports cannot show the traits.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """The traits of a workload that can be read without importing torch; see `ddpbench.workloads.Workload`.

    `name` includes the size even if the experiment leaves it out: `gpt` is the workload `gpt:nano`.
    """

    name: str
    options: type[BaseModel]
    check: Callable[[Case], str | None]
    """Return why the workload cannot run a case, or None."""
    compute: Literal["real", "replayed", "synthetic"] = "real"
    """Source of the computation: training, or the replay of a measured or a synthetic profile."""
    default_batch: int | None = None
    """The local batch to use if an experiment gives none; None for the general default."""
    pieces: Callable[[Pieces], int] = lambda _: 0
    """Return the largest number of stages or branches into which the model can be cut; 0 if it cannot be."""
    own: bool = False
    """True if the workload is a user's own class."""


class Catalog(Protocol):
    """The names of strategies and workloads, and facts about each."""

    def strategy_names(self) -> Iterable[str]:
        """Return the names of ddpbench's strategies."""

    def workload_names(self) -> Iterable[str]:
        """Return the names of ddpbench's workloads."""

    def installed_names(self, kind: str) -> Iterable[str]:
        """Return the names that installed packages add for a `strategy`, `workload` or `algorithm`; this is slow."""

    def strategy(self, name: str) -> StrategyInfo:
        """Return the facts about the strategy with this name; an import path such as `mine.py:TopK` is imported.

        Raises:
            KeyError: the name is unknown.
            ValueError: a user's strategy cannot be used; the message says why.
        """

    def check_algorithm(self, name: str) -> None:
        """Check that the file of a user's algorithm such as `mine.py:MyRing` exists, without importing it.

        Raises:
            ValueError: the file does not exist, or has no such class; the message says which.
        """

    def options_table(self, name: str) -> str:
        """Return the name of the options table of the strategy or workload that an experiment calls `name`.

        For a user's file, the table's name is the file's path. For a class of an installed package, it is the path that
        the package registered. The size of a workload is dropped: `gpt:mini` gives `gpt`. The name of a class is kept,
        as in `mine.py:Net`.
        """

    def workload(self, name: str) -> WorkloadInfo:
        """Return the facts about the workload with this name, or with an import path such as `train.py:MyWorkload`.

        Raises:
            KeyError: the name is unknown.
            ValueError: the workload cannot be used; the message says why.
        """


def known_names(kind: str, catalog: Catalog) -> list[str]:
    """Return all names of strategies or workloads (`kind`), including those of installed packages."""
    own = catalog.strategy_names() if kind == "strategy" else catalog.workload_names()
    return [*own, *catalog.installed_names(kind)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """The machine's devices for ranks, which decide the values of `auto`."""

    kind: str  # "cpu" or "cuda"
    gpus: int
    cores: int
    """Number of physical cores, not hyper-threads, that affinity and the control group's quota allow."""
    without_bf16: str = ""
    """A clause that names a GPU without bf16 hardware, and its compute capability; empty if all GPUs have bf16."""

    def ranks(self, device: str, threads_per_rank: int) -> int:
        """Return how many ranks these devices can run: one per GPU, or one per `threads_per_rank` cores."""
        return self.gpus if device == "cuda" else max(1, self.cores // threads_per_rank)
