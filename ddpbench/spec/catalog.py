"""What `spec` must know of strategies and workloads to validate an experiment; it imports neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel

from ddpbench.spec.case import Case

Pieces = Literal["", "stages", "branches"]
"""What a strategy cuts a model into, a piece for each rank of a replica."""
Promise = Literal["nothing", "gradients", "delayed", "averaged", "ordered"]
"""What of a strategy is proved before it is timed; `ddpbench.strategies.PROMISES` has it in words."""


def _all(world_size: int) -> int:
    return world_size


def _one_a_rank(case: Case) -> int:
    return case.world_size


def _untold(_: Case) -> str:
    return ""


class NoOptions(BaseModel, extra="forbid", frozen=True):
    """The options of a thing that has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyInfo:
    """What a strategy says of itself without importing torch; see `ddpbench.strategies.Strategy`."""

    name: str
    options: type[BaseModel]
    algorithm: str
    schedule: str
    """Its own; `algorithms` and `schedules` are what it can do instead, empty where there is no choice."""
    uses_buckets: bool
    uses_backend: bool
    one_process: bool
    note: str
    check: Callable[[Case], str | None]
    """Why the strategy cannot run a case, or None."""
    algorithms: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    own_algorithms: bool = False
    """True if a user's own algorithm may be asked for too."""
    trainers: Callable[[int], int] = _all
    """Of a world size: how many ranks train on samples of their own."""
    pieces: Pieces = ""
    piece_count: Callable[[Case], int] = _one_a_rank
    """Of a case: into how many pieces the model is cut."""
    launcher: str = ""
    """What starts its ranks, where that is its own; empty: whatever the experiment says."""
    traits: Callable[[Case], str] = _untold
    """Of a case: what a user's own strategy says of itself, as `Case.strategy_traits` holds it; empty of a known one.

    Raises `ValueError` where it is nothing that reports can show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """What a workload says of itself without importing torch; see `ddpbench.workloads.Workload`.

    `name` has its size: `gpt` and `gpt:nano` are one workload, `gpt:nano`.
    """

    name: str
    options: type[BaseModel]
    check: Callable[[Case], str | None]
    """Why the workload cannot run a case, or None."""
    compute: Literal["real", "replayed", "synthetic"] = "real"
    """Whether it trains, or replays a profile that was measured or made."""
    default_batch: int | None = None
    """The local batch where an experiment gives none."""
    pieces: Callable[[Pieces], int] = lambda _: 0
    """Into how many stages or branches its model can be cut; 0: it cannot."""
    own: bool = False
    """True for a user's own class."""


class Catalog(Protocol):
    """The known names, and their descriptions on demand."""

    def strategy_names(self) -> Iterable[str]:
        """Return every name an experiment may use for a strategy."""

    def workload_names(self) -> Iterable[str]:
        """Return every name an experiment may use for a workload; import paths are allowed beside them."""

    def installed_names(self, kind: str) -> Iterable[str]:
        """Return the names that installed packages add for a `strategy`, `workload` or `algorithm`; it takes time."""

    def strategy(self, name: str) -> StrategyInfo:
        """Return the strategy of that name, or of an import path such as `mine.py:TopK`, which is imported.

        Raises:
            KeyError: there is none.
            ValueError: a user's own cannot be used; the sentence says why.
        """

    def check_algorithm(self, name: str) -> None:
        """See that the file of a user's own algorithm such as `mine.py:MyRing` is there; nothing is imported.

        Raises:
            ValueError: it is not, or has no such class; the sentence says which.
        """

    def options_table(self, name: str) -> str:
        """Return the one name of a table of options that may be written in several ways.

        It has the file's path, or the path that a package registered, and no size or class of a workload.
        """

    def workload(self, name: str) -> WorkloadInfo:
        """Return the workload of that name, or of an import path such as `train.py:MyWorkload`.

        Raises:
            KeyError: there is none.
        """


def known_names(kind: str, catalog: Catalog) -> list[str]:
    """Return every name of a `strategy` or `workload`, those of installed packages included."""
    own = catalog.strategy_names() if kind == "strategy" else catalog.workload_names()
    return [*own, *catalog.installed_names(kind)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """What `auto` resolves against: the devices ranks can have, one each."""

    kind: str  # "cpu" or "cuda"
    gpus: int
    cores: int
    """Usable physical cores: affinity and cgroup quota applied, hyper-threads not counted."""
    without_bf16: str = ""
    """The GPU that cannot compute in bf16 itself, and why; empty where all can."""

    def ranks(self, device: str, threads_per_rank: int) -> int:
        """Return how many ranks have a device of their own: one per GPU, or one per `threads_per_rank` cores."""
        return self.gpus if device == "cuda" else max(1, self.cores // threads_per_rank)
