"""The facts on strategies and workloads that `spec` needs to validate an experiment; it imports neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel

from ddpbench.spec.case import Case

Pieces = Literal["", "stages", "branches"]
"""Pieces that a strategy cuts a model into, one for each rank of a replica."""
Promise = Literal["nothing", "gradients", "delayed", "averaged", "ordered"]
"""The property of a strategy that is proved before timing; `ddpbench.strategies.PROMISES` has each in words.
"""


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
    """Traits that a strategy states without importing torch; see `ddpbench.strategies.Strategy`."""

    name: str
    options: type[BaseModel]
    algorithm: str
    schedule: str
    """The default schedule; `algorithms` and `schedules` list the alternatives, and are empty if there is no
    choice.
    """
    uses_buckets: bool
    uses_backend: bool
    one_process: bool
    note: str
    check: Callable[[Case], str | None]
    """Return why the strategy cannot run a case, or None."""
    algorithms: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    own_algorithms: bool = False
    """True if a user's own algorithm may be requested too."""
    trainers: Callable[[int], int] = _all
    """Return how many ranks of a world size train on their own samples."""
    pieces: Pieces = ""
    piece_count: Callable[[Case], int] = _one_a_rank
    """Return into how many pieces a case's model is cut."""
    launcher: str = ""
    """The launcher that starts its ranks, if it has its own; empty for the experiment's."""
    traits: Callable[[Case], str] = _untold
    """Return the traits that a user's strategy states for a case, as in `Case.strategy_traits`; empty for a
    known one.

    Raises `ValueError` if reports cannot show them.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """Traits that a workload states without importing torch; see `ddpbench.workloads.Workload`.

    `name` includes its size: `gpt` and `gpt:nano` are one workload, `gpt:nano`.
    """

    name: str
    options: type[BaseModel]
    check: Callable[[Case], str | None]
    """Return why the workload cannot run a case, or None."""
    compute: Literal["real", "replayed", "synthetic"] = "real"
    """Source of computation: training, a measured profile, or a synthetic one."""
    default_batch: int | None = None
    """The local batch used if an experiment gives none."""
    pieces: Callable[[Pieces], int] = lambda _: 0
    """Return into how many stages or branches its model can be cut; 0 if it cannot be."""
    own: bool = False
    """True for a user's own class."""


class Catalog(Protocol):
    """The known names, and their descriptions on demand."""

    def strategy_names(self) -> Iterable[str]:
        """Return every name that an experiment may use for a strategy."""

    def workload_names(self) -> Iterable[str]:
        """Return every name that an experiment may use for a workload; import paths are allowed too."""

    def installed_names(self, kind: str) -> Iterable[str]:
        """Return the names that installed packages add for a `strategy`, `workload` or `algorithm`; this
        takes time.
        """

    def strategy(self, name: str) -> StrategyInfo:
        """Return the strategy of that name, or of an import path such as `mine.py:TopK`, which is imported.

        Raises:
            KeyError: the name is unknown.
            ValueError: a user's strategy cannot be used; the message says why.
        """

    def check_algorithm(self, name: str) -> None:
        """Check that the file of a user's algorithm such as `mine.py:MyRing` exists; nothing is imported.

        Raises:
            ValueError: the file does not exist, or has no such class; the message says which.
        """

    def options_table(self, name: str) -> str:
        """Return the canonical name of a table of options, which may be written in several ways.

        It has the file's path, or the path that a package registered, without the size or class of a
        workload.
        """

    def workload(self, name: str) -> WorkloadInfo:
        """Return the workload of that name, or of an import path such as `train.py:MyWorkload`.

        Raises:
            KeyError: the name is unknown.
        """


def known_names(kind: str, catalog: Catalog) -> list[str]:
    """Return every name of a `strategy` or `workload`, including those of installed packages."""
    own = catalog.strategy_names() if kind == "strategy" else catalog.workload_names()
    return [*own, *catalog.installed_names(kind)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """The devices that ranks can use, which `auto` resolves against; each rank gets its own."""

    kind: str  # "cpu" or "cuda"
    gpus: int
    cores: int
    """Usable physical cores: affinity and cgroup quota applied, hyper-threads not counted."""
    without_bf16: str = ""
    """The GPU that cannot compute in bf16 itself, and why; empty if all can."""

    def ranks(self, device: str, threads_per_rank: int) -> int:
        """Return how many ranks can have their own device: one per GPU, or one per `threads_per_rank` cores."""
        return self.gpus if device == "cuda" else max(1, self.cores // threads_per_rank)
