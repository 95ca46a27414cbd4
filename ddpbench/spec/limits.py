"""Limits of numbers with their reasons, for experiment files, `--set`, flags and `docs/settings.md`.

A limit excludes only requests that make no sense on any machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import core_schema

from ddpbench.errors import RequestError
from ddpbench.text_safety import shortened, whole_number
from ddpbench.units import format_bit_rate, parse_bit_rate, parse_seconds

MAX_RANKS = 4096
MAX_NODES = 128
MIN_RATE = 8e6
"""Lowest rate, bit/s; with a lower one, a burst of 2 ms is smaller than an Ethernet frame."""
MAX_RATE = 4e12
MAX_VALUES = 1_000
"""Most values of one axis."""
MAX_COMBINATIONS = 5_000
"""Most combinations of all axes, before excludes."""
MAX_LAUNCHES = 100_000
"""Most launches (cases times rounds); at three seconds each, this many take days."""
MAX_PROCESSES = 8_192
"""Most processes (ranks and their loader workers) that ddpbench starts on one machine."""
_DAY_S = 86_400.0
_WHOLE = re.compile(r"[+-]?[0-9][0-9_]*")
_SPANS = (("days", _DAY_S), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"


def _span(seconds: float) -> str:
    """Return a duration in one unit: `1 ms`, `1 h`, `30 days`."""
    unit, scale = next(((unit, scale) for unit, scale in _SPANS if seconds >= scale), ("s", 1.0))
    return f"{seconds / scale:g} {unit if seconds != _DAY_S else 'day'}"


def _fraction(text: str) -> float:
    """Return the fraction in a text such as `1 %`; NaN for other texts."""
    number = text.strip().removesuffix("%")
    try:
        return float(number) / 100 if text.strip().endswith("%") else float("nan")
    except ValueError:
        return float("nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The limits of a number. In a type such as `Annotated[int, RANKS]`, it replaces pydantic's own validation.

    `above` and `below` exclude the limits themselves. `low_why` and `high_why` are the reasons for the limits.
    """

    low: float
    high: float
    whole: bool = False
    above: bool = False
    below: bool = False
    low_why: str = ""
    high_why: str = ""
    reads: Callable[[str], float] | None = None
    """Parse a text such as `10 min`; None if the value must be a number."""
    shows: Callable[[float], str] = _number

    @property
    def words(self) -> str:
        """Return the limits as text: `1 to 128`, or `above 0 and below 1`."""
        low, high = self.shows(self.low), self.shows(self.high)
        if not self.above and not self.below:
            return f"{low} to {high}"
        start, end = "above" if self.above else "from", "below" if self.below else "up to"
        return f"{start} {low} and {end} {high}"

    def checked(self, value: object) -> float:
        """Return a valid number as an int if `whole` is set, else as a float.

        Raises:
            ValueError: it is not a number, or not within the limits; the message has the limits.
        """
        if isinstance(value, str) and self.reads is not None:
            value = self.reads(value)
        kinds = (int,) if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(self._must_be())  # noqa: TRY004  pydantic's
        if value < self.low or (self.above and value == self.low):
            raise ValueError(self._must_be(self.low_why))
        if value > self.high or (self.below and value == self.high):
            raise ValueError(self._must_be(self.high_why))
        if math.isnan(value):
            raise ValueError(self._must_be())
        return value if self.whole else float(value)

    def parsed(self, text: str) -> float:
        """Return the number in a text.

        Raises:
            ValueError: the text is not a number, or the number is not within the limits; the message quotes the text.
        """
        bare = text.strip()
        value: object = bare
        if _WHOLE.fullmatch(bare):
            value = whole_number(bare)
        else:
            with suppress(ValueError):
                value = float(bare)
        try:
            return self.checked(value)
        except ValueError as error:
            raise ValueError(f"{shortened(value)} given; {error}") from None

    def check_flag(self, flag: str, value: float) -> None:
        """Check a number that was given to a flag.

        Raises:
            RequestError: the number is not within the limits.
        """
        try:
            self.checked(value)
        except ValueError as error:
            raise RequestError(f"{flag}: {shortened(value)} given; {error}") from None

    def read_flag(self, flag: str, text: str) -> float:
        """Parse and check the text that was given to a flag.

        Raises:
            RequestError: the text is not a number, or the number is not within the limits.
        """
        try:
            return self.parsed(text)
        except ValueError as error:
            raise RequestError(f"{flag}: {error}") from None

    def _must_be(self, why: str = "") -> str:
        kind = "a whole number, " if self.whole else ""
        return f"must be {kind}{self.words}{': ' if why else ''}{why}"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.checked)


def _count(low: int, high: int, why: str = "", low_why: str = "") -> Range:
    return Range(low=low, high=high, whole=True, high_why=why, low_why=low_why)


def _duration(low: float, high: float, why: str = "", low_why: str = "", *, below: bool = False) -> Range:
    return Range(
        low=low, high=high, high_why=why, low_why=low_why, below=below, reads=parse_seconds, shows=_span
    )


# The sections [base] and [axes].
RANKS = _count(1, MAX_RANKS, "the memory page for watching ranks has no room for more")
THREADS = _count(1, 4096, "no machine has that many cores")
LOADER_WORKERS = _count(0, 128, "every rank starts this many processes")
BUCKET_CAP_MB = Range(
    low=1e-6, high=2**20, low_why="a bucket has at least one byte", high_why="no model has a TiB of gradients"
)
LOCAL_BATCH = _count(1, 1_000_000, "no rank holds that many samples of a step")
GLOBAL_BATCH = _count(1, 1_000_000_000, "no job trains on that many samples in a step")
NODES = _count(1, MAX_RANKS, "nodes cannot exceed ranks")
SEED = _count(0, 2**32 - 1, "generators take 32 bits")
REPLICATE = _count(0, 999, "an A/A test compares a few equal cases")
DILATION = Range(low=1, high=1000, high_why="a step of a second would take a quarter of an hour")
SHRINK = _count(1, 1_000_000, "gradients of a TiB become a MiB")

# The section [budget].
ROUNDS = _count(1, 1_000, "intervals narrow with the root of their number")
MEASURED_S = _duration(
    1e-3, 3600, "further rounds say more than longer launches", "a single step can take that long"
)
HALF_WIDTH = Range(low=0, high=1, above=True, below=True)
TOTAL_S = _duration(1, 30 * _DAY_S, "resume the run to continue")
HANG_TIMEOUT_S = _duration(
    1, _DAY_S, "a stuck rank would keep the machine occupied", "a rank's start alone takes about that long"
)
UNTIL_LOSS = Range(low=0, high=1e9, above=True)
UNTIL_STEPS = _count(1, 10_000_000, "each step's loss is kept")
SNAPSHOT_STEPS = _count(1, 100_000, "a launch trains for over four times this many steps")
COLLECTIVE_TIMEOUT_S = _duration(
    1,
    _DAY_S,
    "a stopped rank is noticed only after this time",
    "ranks may be that far apart in normal training",
)
UNTIL_S = _duration(1e-3, _DAY_S, "each launch trains that long")

# The section [fabric].
FABRIC_NODES = _count(1, MAX_NODES, "each node is a network namespace of this machine")
RANKS_PER_NODE = _count(1, MAX_RANKS, "no job has more ranks")
RACKS = _count(1, MAX_NODES, "racks cannot exceed nodes")
RATE = Range(
    low=MIN_RATE,
    high=MAX_RATE,
    low_why="a burst of 2 ms would hold no frame; dilate time instead",
    high_why="is the unit right?",
    reads=parse_bit_rate,
    shows=format_bit_rate,
)
LATENCY_S = Range(
    low=0,
    high=10.0,
    below=True,
    high_why="no network delays that long",
    reads=parse_seconds,
    shows=lambda s: f"{s:g} s",
)
LOSS = Range(low=0, high=1, below=True, high_why="nothing would arrive", reads=_fraction)

# The section [[claims]].
CLAIMED_LEAD = Range(
    low=0,
    high=1000,
    above=True,
    high_why="nothing is that much faster",
    low_why="leave it out",
    reads=_fraction,
)
CLAIMED_MARGIN = Range(
    low=0,
    high=1,
    above=True,
    below=True,
    low_why="no two launches take exactly equally long",
    reads=_fraction,
)
MAX_CLAIMS = 50
CLAIM_NUMBER = _count(1, 1_000)
MAX_HISTORY = 100
"""Most entries of one claim's history."""
MAX_PAIRS = 1_000
"""Most pairs of cases that decide one claim."""

# Options of strategies and workloads.
PARTS = _count(1, 4096, "a batch has no more parts than samples")
REPLICAS = _count(1, MAX_RANKS // 2, "each replica has at least two ranks")
FACTOR_RANK = _count(1, 256)
BUCKET_NUMBERS = _count(1, 10**12, "no model has that many parameters", "a bucket has at least one number")
POWERSGD_START = _count(2, 16, "it is part of the warm-up", "torch's minimum")
AVERAGING_PERIOD = _count(2, 10, "the smallest timed block has that many steps", "1 is DDP")
LOCAL_SGD_START = _count(0, 16, "it is part of the warm-up")
PACK_BYTES = _count(0, 2**40, "no model's gradients have a TiB")
LEARNING_RATE = Range(low=0, high=10, above=True)
ADAM_LEARNING_RATE = Range(low=0, high=1, above=True)
BLOCK_SIZE = _count(1, 8192)
TOKENS = _count(8, 1024)
DROPOUT = Range(low=0, high=1, below=True)
IMAGE_SIZE = _count(32, 1024)
CLASSES = _count(2, 100_000)
JITTER = Range(low=0, high=1)
SLOW_RANK = _count(0, MAX_RANKS - 1, "no job has more ranks")
SLOW_FACTOR = Range(low=1e-3, high=1000)

# A profile's file.
PROFILE_S = Range(low=0, high=_DAY_S, high_why="no step takes a day", shows=_span)
INTERVAL_S = Range(low=-_DAY_S, high=_DAY_S)
DIMENSION = _count(1, 10**12, "no model has that many parameters")
SAMPLE_BYTES = _count(0, 2**40, "no sample has a TiB")
STEPS = _count(0, 10**9)

# Flags without a setting.
AA_ROUNDS = _count(3, 1_000, "intervals narrow with the root of their number", "fewer give no interval")
PROFILED_STEPS = _count(
    2, 1_000_000, "intervals are narrow long before this number", "fewer give no interval"
)
PORT = _count(1, 65_535, "a port has 16 bits")
EFFICIENCY = Range(low=0, high=1, above=True, reads=_fraction)
JOB_LENGTH = _count(1, 10**15, "no job is that long")
TIME_LIMIT_S = _duration(60, 365 * _DAY_S, "no queue takes a job that long", "Slurm counts minutes")
MTBF_S = _duration(1, 3650 * _DAY_S, "it does not fail then", "no work would be done between two failures")
DECIDING_S = replace(TOTAL_S, high_why="no comparison takes that long")
PLANNED_S = Range(
    low=0,
    high=365 * _DAY_S,
    above=True,
    high_why="no measurement takes that long",
    reads=parse_seconds,
    shows=_span,
)
WAIT_S = _duration(0, 3650 * _DAY_S, "no queue is that long")
SAMPLES = Range(low=1, high=GLOBAL_BATCH.high * MAX_RANKS, whole=True)
"""Samples per step of the whole job, which can be above `GLOBAL_BATCH` if many ranks each have a given local batch."""
SECONDS_OF_COLLECTIVES = replace(COLLECTIVE_TIMEOUT_S, reads=None)
MOST_SHRINK = 10**6
"""Largest shrink; multiplied by the largest transfer of a record, it still fits in 64 bits."""
