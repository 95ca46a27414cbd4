"""Results of cases and launches, as plain values.

Times are seconds, sizes bytes, rates bytes or samples per second. A case is named by its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

from ddpbench.analysis.read.overlap import PARTS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import BestVerdict, Judgement, Standing, Verdict, judged

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """Result of a measuring launch."""

    case_id: str
    round: int
    status: str
    step_time_s: float | None
    """Step time; None, like the rate, if the launch did not succeed."""
    samples_per_s: float | None
    wall_s: float
    measured_s: float
    server_s: float
    """Start-up time of the launch's fork server."""
    steal_fraction: float
    foreign_fraction: float
    steady: bool | None
    noise_flag: str
    session: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ByPart(Generic[Value]):
    """A value for each part of a step, such as a time or a text."""

    forward: Value
    backward: Value
    optimizer: Value
    other_compute: Value
    exposed_comm: Value
    exposed_wait: Value
    data: Value
    not_attributed: Value

    @property
    def by_name(self) -> dict[str, Value]:
        """Return the values by the parts' names (`PARTS`), for code that loops over all parts."""
        return {name: getattr(self, name) for name in PARTS}


assert tuple(one.name for one in fields(ByPart)) == PARTS


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """The parts of a case's instrumented step. They are means over ranks and steps, and medians over launches.

    In one launch, the parts add up to the step. Their medians over launches add up to it only approximately.
    """

    case_id: str
    parts: ByPart[Interval]
    overlapped_comm: Interval
    """Communication that overlaps with computation. It is not one of the parts that add up to the step."""
    step_time_s: float
    launches: int
    instrumentation_overhead: float | None
    """Instrumented step time divided by timed step time, minus 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """Times of a rank's single steps, and what fills its step (`analysis/step_times.py`).

    The parts are means over a launch's instrumented steps, and then over launches, so that they add up to `step_s`.
    None without instrumented steps. `compute_s` is forward, backward, optimizer and other computation.
    """

    case_id: str
    rank: int
    role: str
    """Reason why this rank is included if only some ranks are, such as `most computation`.

    Empty if all ranks are included. Also empty for the first rank, unless it has another role.
    """
    ranks: int
    """The case's number of ranks with timed steps, including ranks that are left out here."""
    launches: int
    steps: int
    """Number of this rank's timed steps in these launches."""
    quantiles_s: tuple[float, ...]
    """Quantiles of the timed steps, seconds, at each of `QUANTILES`: from the shortest to the longest step."""
    step_s: float | None
    compute_s: float | None
    exposed_comm_s: float | None
    exposed_wait_s: float | None
    """Time that the rank waits for other ranks, with its own gradients ready."""
    data_s: float | None
    not_attributed_s: float | None
    servers: tuple[int, ...] = ()
    """The case's ranks that take no samples, such as a parameter server, and so have no training steps."""

    @property
    def median_s(self) -> float:
        """Return the median of the timed steps, in seconds."""
        return self.quantiles_s[QUANTILES.index(50)]

    @property
    def p95_s(self) -> float | None:
        """Return the 95th percentile of the timed steps, in seconds; None if the steps are too few for one."""
        return self.quantiles_s[QUANTILES.index(95)] if self.steps >= FEWEST_FOR_P95 else None


QUANTILES = tuple(range(0, 101, 5))
"""The quantiles of step times that are stored, in per cent."""
FEWEST_FOR_P95 = 20
"""Smallest number of steps for which a 95th percentile is stated: of 20 steps, one is longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyPhase:
    """Times of a span of a case, such as one of `data_parallel`, that records more than the standard spans."""

    case_id: str
    span: str
    mean_s: float
    """Mean over ranks, steps and launches."""
    order: int
    """Position within the step."""
    median_s: float
    """Median over launches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proved:
    """A comparison of a case's proof, made before the case is timed.

    `tolerance` is infinite for a comparison that was left out (`records.was_made`).
    """

    case_id: str
    compared: str
    dtype: str
    error: float
    """Relative error."""
    tolerance: float
    passed: bool
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Comparison of a case's step time with the step time of a second case, paired by round."""

    topic: str
    """Kind of the comparison, which says what the second case is.

    - `buckets`, `layouts`, `strategies`, `ranks`: the fastest other case of its group.
    - `data`: the same case with its batches in memory.
    - `precision`: the same case in full precision.
    """
    case_id: str
    best_case_id: str
    """Id of the second case."""
    ratio: Interval
    """The case's step time divided by the second's. The intervals of a group hold at once."""
    verdict: str
    """`best`, `as good`, `slower`, `cannot tell` or `too few` (`statistics/best.py`).

    For `data` and `precision` it is a `Finding`'s verdict.
    """

    @property
    def standing(self) -> Standing:
        """Return the case's standing among the cases of its group."""
        return Standing(verdict=cast(BestVerdict, self.verdict), against=self.best_case_id, ratio=self.ratio)

    @property
    def judgement(self) -> Judgement:
        """Return the judgement of the comparison, which must be of topic `data` or `precision`."""
        bound = judged(self.ratio, 0).bound
        return Judgement(verdict=cast(Verdict, self.verdict), ratio=self.ratio, bound=bound)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputResult:
    """Time for which a measured case waits for data (`analysis/inputs.py`)."""

    group: int
    """Index of the case's group; cases of a group differ only in where their batches come from."""
    case_id: str
    data: str
    loader_workers: int
    waited_s: float | None
    """Waiting time in an instrumented step; `waited_share` is its share of the step."""
    waited_share: float | None
    ratio: Interval | None
    """Step time divided by that of the case with batches in memory."""
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficiencyLoss:
    """A single loss of a case's efficiency (`steps/waterfall.py`). All losses and the efficiency add up to 1."""

    case_id: str
    item: str
    """A name of `waterfall.LOSSES`, or `efficiency`."""
    share: Interval
    rounds: int
    split: bool
    """True if contention is a separate loss."""
    outrun: bool
    """True if independent ranks were slower than the case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferResult:
    """Transfers with the same strategy, operation, number of ranks and size (`steps/communication.py`)."""

    group: int
    """Number of the strategy. The strategy with the most sizes is first."""
    case_id: str
    """Id of the first case with such a transfer."""
    op: str
    world_size: int
    bytes: int
    time_s: Interval
    busbw: Interval | None
    """Bus bandwidth; None for an operation without a known factor."""
    call_time_s: Interval
    """Time of the call as nccl-tests measures it, from which `call_busbw` is computed."""
    call_busbw: Interval | None
    factor: float | None
    rounds: int
    transfers: int
    latency_s: Interval | None
    """Intercept of the line fitted to the operation's times over their sizes.

    This field and the next three are None if no line was fitted.
    """
    byte_s: float | None
    misfit: float | None
    latency_share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkResult:
    """A case's communication over emulated links (`analysis/network.py`)."""

    case_id: str
    network_s: Interval
    rounds: int
    formula: str
    """Name of the algorithm's textbook formula. Without a formula, it is empty and `formula_s` is None."""
    formula_s: float | None
    bound_s: float | None
    """Lower bound on the time of any algorithm; None unless all links are alike."""
    gradient_bytes: float | None
    sent_bytes: float | None
    """Bytes that the busiest rank passed to the network; None if a library sent them and did not count them."""
    formula_bytes: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LossPoint:
    """A point of the curve of a case that trains to a loss, averaged over launches.

    `loss` is the mean over the last steps up to `step`. `TrainedToLoss.window` is the number of these steps.
    """

    case_id: str
    step: int
    samples: int
    time_s: float
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedToLoss:
    """A case that trained to a loss (`analysis/time_to_loss.py`)."""

    case_id: str
    target: float
    window: int
    batch: int
    launches: int
    reached: int
    """Number of launches that reached the loss."""
    lowest_loss: float | None
    steps_trained: int
    one_device_case_id: str | None
    """Id of the case `single` with the same batch."""
    apart: float | None
    """Largest relative difference of the case's losses from those of `one_device_case_id`, over the first steps."""


def columns_of(kind: Any, results: Iterable[Any]) -> dict[str, list[Any]]:
    """Return results of the dataclass `kind` as a table: `columns` with the names, and `data` with one row per result.

    An interval `x_s` becomes `x_s`, `x_ci_low_s` and `x_ci_high_s`, and a `ByPart` of intervals three columns per part.
    A type with methods `columns` and `column_names` encodes itself.
    """
    own = hasattr(kind, "columns")
    names = [*(kind.column_names() if own else _names(kind))]
    rows = [each.columns() if own else dict(_cells(each)) for each in results]
    return {"columns": names, "data": [[row[name] for name in names] for row in rows]}


def _names(kind: Any) -> Iterator[str]:
    for field in fields(kind):
        if "ByPart" in str(field.type):
            for part in PARTS:
                yield from (name for name, _ in _ends(part, None))
        elif "Interval" in str(field.type):
            yield from (name for name, _ in _ends(field.name, None))
        else:
            yield field.name


def _cells(result: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(result):
        value = getattr(result, field.name)
        if isinstance(value, ByPart):
            for name, each in value.by_name.items():
                yield from _ends(name, each)
        elif isinstance(value, Interval) or "Interval" in str(field.type):
            yield from _ends(field.name, value)
        else:
            yield field.name, value


def _ends(name: str, interval: Interval | None) -> Iterator[tuple[str, float | None]]:
    start, unit = (name.removesuffix("_s"), "_s") if name.endswith("_s") else (name, "")
    yield name, None if interval is None else interval.value
    yield f"{start}_ci_low{unit}", None if interval is None else interval.low
    yield f"{start}_ci_high{unit}", None if interval is None else interval.high
