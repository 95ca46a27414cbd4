"""The records a rank writes, one JSON object a line, and the schema's history. Raw spans; no ratios.

Times are nanoseconds on the host's monotonic clock (`time.perf_counter_ns` on Linux), which all ranks of
one host share; GPU times are CUDA events placed on that clock. Sizes are bytes.

History
    1  the first schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, FailFast, Field, TypeAdapter, ValidationError

_T = TypeVar("_T")

SCHEMA_VERSION = 1

_AT_ONCE = FailFast()
"""Reading stops at the first fault: notes on millions of them would take GB."""
Many = Annotated[tuple[_T, ...], _AT_ONCE]

Whole = Annotated[int, Field(ge=0)]
"""A size or a count. `check_digits` limits it to 64 bits, as every number of a record."""
Size = Annotated[int, Field(ge=0, le=2**43)]
"""Bytes of one bucket or transfer: at most 8 TiB, so that they can be multiplied by a case's shrink."""
Count = Annotated[int, Field(gt=0)]
Steps = Annotated[int, Field(gt=0, lt=2**31)]
"""Steps of a block: the sum over all launches fits in 64 bits."""
Place = Annotated[int, Field(ge=0, le=2**53)]
"""Position of a sample in a job's order, or the length of a run of samples: sums over ranks and launches fit
in 64 bits.
"""
Number = int
"""A time on a clock with an arbitrary zero, or a plain number."""

Status = Literal["ok", "failed", "hung", "oom", "diverged", "skipped"]
CaseStatus = Literal["ok", "failed", "hung", "oom", "diverged", "skipped", "unfinished"]
"""The statuses of a case: `unfinished` has too few rounds, because its sweep was interrupted or ran out of
time.
"""
WORST_FIRST: tuple[Status, ...] = ("diverged", "hung", "oom", "failed", "ok", "skipped")
"""Statuses from worst to best: a case gets the worst status of its launches."""

COMPUTE_SPANS = frozenset({"forward", "backward", "optimizer", "scatter", "replicate", "gather", "reduce"})
"""Names of the spans in which a rank computes; `gather`, `scatter`, `replicate` and `reduce` are
DataParallel's own work on its master. Other names: `data` (waiting for a batch), `synchronize` (blocked
until gradients are aggregated, or parameters gathered or sent: a span around it is recorded in pieces).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStart:
    """A rank has started: its rank, where it runs and what it found there."""

    kind: Literal["start"] = "start"
    schema_version: Number = SCHEMA_VERSION
    rank: Whole
    world_size: Count
    attempt: Whole = 0
    pid: Whole
    host: str
    started_ns: Number
    """When its imports were done. In a fork server that was before the launch was requested."""
    asked_ns: Number | None = None
    """When its launch was requested, on the same clock; None if that was on another host, or is unknown."""
    entered_ns: Number | None = None
    """When its own process began to work for it."""
    cores: Many[Whole]
    loader_cores: Many[Whole] = ()
    """Cores set aside for loader workers; empty if workers share the ranks' cores."""
    threads: Count
    device: str
    torch_version: str
    parameters: Whole = 0
    gradient_bytes: Whole = 0
    largest_gradient_bytes: Whole | None = None
    """Gradient bytes of the largest parameter. Older records lack it, and the fields that follow."""
    types: Many[str] = ()
    """The number types of the parameters, by torch's names, sorted."""
    loader_workers: Whole | None = None
    """Worker processes of its DataLoader; None if its loader is of another class."""
    own_step: bool = False
    """True if the workload makes its steps itself: a step may then send only some gradients, or some of them
    twice.
    """
    case_id: str = ""
    """The case, round, number of ranks and run that it was started for. Older records lack them."""
    round: Whole | None = None
    ranks: Count | None = None
    run_id: str = ""
    gloo_interface: str = ""
    """The interface over which gloo moves its data, with its nominal rate. Recorded only for several nodes.
    """
    faster_interface: str = ""
    """Another interface of this host with at least twice that nominal rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """The ranks have met, and formed their process groups."""

    kind: Literal["met"] = "met"
    start_ns: Number
    end_ns: Number
    backend: str = ""
    """The collective library of the process group; empty without a group, and in older records."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """A fixed computation's time before or after the measured steps. Read from old records; no longer
    written.

    Over recorded runs its change did not correlate with a launch's deviation; stolen time does.
    """

    kind: Literal["drift"] = "drift"
    when: Literal["before", "after"]
    work_ns: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmup:
    """End of the warm-up: the number of steps, and whether step times were still changing."""

    kind: Literal["warmup"] = "warmup"
    steps: Whole
    start_ns: Number
    end_ns: Number
    step_ns: Number
    """A step's time at the end of the warm-up: the last block's median."""
    steady: bool
    reason: str
    blocks_ns: Many[Many[Number]] = ()
    """This rank's step times, block by block, once the one-time work was done. Older records lack them."""
    first_ns: Number | None = None
    """When the first step ended; older records lack it."""
    waited_ns: Number = 0
    """Time of waiting during the warm-up, while another side of a comparison had its turn: recorded by rank 0
    alone.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive steps between two barriers, without the first step after the barrier.

    `step_ns` are this rank's own step times, in order; their sum is `end_ns - start_ns`. `samples` are this
    rank's (for `data_parallel`, those of all its replicas). A step of `evaluation` is forward and loss
    without gradients.
    """

    kind: Literal["block"] = "block"
    phase: Literal["warmup", "timed", "instrumented", "evaluation"]
    index: Whole
    steps: Steps
    samples: Size
    start_ns: Number
    end_ns: Number
    step_ns: Many[Number] = ()
    minor_faults: Whole | None = None
    """Page faults of this process during the block that needed no disk read. None: not counted."""
    cpu_ns: Number | None = None
    """Processor time of this process during the block, with its threads and system calls. None: not counted.
    """
    waited_ns: Number = 0
    """Time of waiting before the block, while another side of a comparison had its turn: recorded by rank 0
    alone.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """The gradient buckets that the reducer made, in the order of their first transfer, bytes."""

    kind: Literal["buckets"] = "buckets"
    bytes: Many[Size]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Bytes of the model's state on a rank between backward and update: its own part of everything that is
    sharded.

    Buckets, activations and the library's buffers are not included.
    """

    kind: Literal["held"] = "held"
    parameter_bytes: Whole
    gradient_bytes: Whole
    optimizer_bytes: Whole


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """An instrumented step: its spans as (name, start_ns, end_ns), in order of their starts."""

    kind: Literal["step"] = "step"
    step: Whole
    start_ns: Number
    end_ns: Number
    spans: Many[Annotated[tuple[str, Number, Number], _AT_ONCE]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommRecord:
    """Part of one rank in one transfer of an instrumented step: from handing it over to having its result.

    `op` is one of `ddpbench.records.operations.OPERATIONS`.
    """

    kind: Literal["comm"] = "comm"
    step: Whole
    bucket: Number
    op: str
    bytes: Size
    start_ns: Number
    end_ns: Number
    sent_bytes: Size | None = None
    """Bytes that this rank handed to the network for it, counted per message; None if the library sends."""
    ranks: Whole | None = None
    """Number of ranks that take part, such as two in a message from one to another; None: all of them."""
    message: Number | None = None
    """Number by which two ranks match their message, in steps that may have others; None: all steps are
    alike.
    """
    begun_ns: Number | None = None
    """When the rank turned to it, if it keeps a queue; None: it follows from the backend, or there is no
    queue.
    """
    root: Number | None = None
    """The rank that a gather, reduce, scatter or broadcast goes to or comes from; None: rank 0, and for a
    broadcast the rank that its bucket numbers.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint of model and optimizer state as one rank saw it, from the barrier before to the one
    after.

    `plain`: rank 0 calls torch.save and the others wait; `dcp`: all ranks call
    torch.distributed.checkpoint.save. Either ends when the bytes are on the disk (fsync).
    """

    kind: Literal["snapshot"] = "snapshot"
    method: Literal["plain", "dcp"]
    index: Whole
    """From 0; the first of a method includes one-time work."""
    bytes: Whole
    """Bytes that this rank wrote."""
    start_ns: Number
    end_ns: Number
    write_ns: Number | None
    """The rank's own part of the time; None if it only waited."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurve:
    """Consecutive steps of a training to a loss, which begins with a fresh model and the data's first batch.

    Between these records ranks agree whether to continue; no record includes that time. `samples` are this
    rank's.
    """

    kind: Literal["curve"] = "curve"
    index: Whole
    target: Annotated[float, Field(allow_inf_nan=False)]
    """The loss it trains down to."""
    samples: Whole
    start_ns: Number
    end_ns: Number
    step_ns: Many[Number]
    """This rank's step times, in order; their sum is `end_ns - start_ns`."""
    losses: Many[float]
    """This rank's loss of each step, before its update, to seven digits; empty if it has no loss, as a
    server.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """A training with snapshots begins, or continues from one: its ranks were started together, and have met.

    Times before that come from the agent of torchrun that started this rank. They are None for the first
    gang, and for an agent that was itself restarted.
    """

    kind: Literal["gang"] = "gang"
    number: Whole
    """From 0, regardless of the agents' own count."""
    world_size: Count
    noticed_ns: Number | None
    """When its agent saw that a rank had failed, or that a node had joined."""
    stopped_ns: Number | None
    """When the agent's earlier ranks had all ended."""
    placed_ns: Number | None
    """When the agents had agreed on the members: ranks are started from then on."""
    entered_ns: Number | None
    started_ns: Number
    meeting_ns: Number
    met_ns: Number
    ready_ns: Number
    """When the model was in its saved state, and the next step could begin."""
    built_ns: Number | None = None
    """Time of making the model and the replica, before the saved state was loaded; not in older records."""
    step: Whole
    """Steps made before, as recorded in the snapshot."""
    samples: Whole
    """Samples of the job, trained on in these steps."""
    unreadable: Many[str] = ()
    """Later snapshots that could not be used, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Model, optimizer, generators and position in the data, saved by rank 0 while the others wait."""

    kind: Literal["state"] = "state"
    gang: Whole
    step: Whole
    """Steps made by then."""
    bytes: Whole
    """Bytes that this rank wrote."""
    start_ns: Number
    end_ns: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Consecutive steps of a training with snapshots, which end at a snapshot, a failure or the last step."""

    kind: Literal["trained"] = "trained"
    gang: Whole
    first: Whole
    """The number of its first step, from 0."""
    start_ns: Number
    ends_ns: Many[Number]
    """The end of each step."""
    losses: Many[float]
    """This rank's losses, to seven digits; empty if it has no loss."""
    samples: Many[Annotated[tuple[Place, Place], _AT_ONCE]]
    """Samples that this rank trained on, by position in the job's order: runs of samples as (first, count).
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The planned failure happens now: the last record of the rank that fails, or of another rank that sees
    it.
    """

    kind: Literal["failure"] = "failure"
    gang: Whole
    what: str
    step: Whole
    """Steps made by then."""
    at_ns: Number


ComparedQuantity = Literal[
    "initial state",
    "gradients, same shards",
    "gradients, whole batch",
    "gradients, later steps",
    "gradients, scale",
    "gradients, each rank's weight",
    "gradients, size of rounding",
    "update, same gradients",
    "loss, same samples",
    "parameters, same samples",
    "sums of gradients, with what is kept",
    "share of gradients kept back",
    "parameters, averaged",
    "parameters, updates in the server's order",
    "every parameter has a rank",
    "final replicas",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """A comparison with a single process, before timing.

    `compared` names both sides; `error` is the largest relative error over parameters (norm of the difference
    over norm of the reference), `tolerance` the largest allowed error.
    """

    kind: Literal["proof"] = "proof"
    compared: ComparedQuantity
    dtype: str
    error: float
    tolerance: float
    passed: bool
    note: str = ""

    @property
    def was_made(self) -> bool:
        """Return False for a comparison that was left out: `note` says why."""
        return was_made(self.tolerance)


def was_made(tolerance: float) -> bool:
    """Return False for the tolerance of a comparison that was left out."""
    return not math.isinf(tolerance)


UPDATE_EXCHANGES = "the update exchanges values between ranks"
"""Beginning of a note on updates that differ from one process by design: gradients alone do not prove the
training.
"""


_DECISIVE = (("gradients", "sums"), ("update", "parameters"), ("share",))
"""Groups of comparisons, by their beginnings: of each group that a proof has, one must be made."""


def why_unproved(proofs: Iterable[Proof]) -> str:
    """Return why no comparison shows what a strategy trained; empty if one does, or if it aggregates nothing.

    Gradients alone do not show it if updates are to be compared as well, nor do updates without gradients. A
    type in which the class cannot compute is left out before its initial states are compared: the reason is
    that of the other types.
    """
    proofs = list(proofs)
    types = {each.dtype for each in proofs if each.compared == "initial state"}
    for kinds in _DECISIVE:
        decisive = [each for each in proofs if each.compared.startswith(kinds)]
        if decisive and not any(each.was_made for each in decisive):
            noted = sorted((each for each in decisive if each.note), key=lambda each: each.dtype not in types)
            return noted[0].note if noted else _NOT_COMPARED
    return next((each.note for each in proofs if each.note.startswith(UPDATE_EXCHANGES)), "")


_NOT_COMPARED = "no comparison was made"


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """The cost of one sample, and the number of samples.

    `flops_per_sample` are floating-point operations of forward and backward (torch's own counter);
    `dataset_samples` is the length of the dataset, None if it has no length.
    """

    kind: Literal["costs"] = "costs"
    flops_per_sample: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    dataset_samples: Whole | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes that a node's emulated link carried during a block, read by its first rank from the kernel's
    counters.

    If ranks of a node have separate links (`local_bandwidth`), each of them records its own link.

    Bytes of frames are as the interface counts them: a segment that the kernel splits later has its headers
    counted once, so that they fall short of the wire's by up to 5 %. Traffic that stays within the node is
    not in a node's counters; a rank's own link carries both.
    """

    kind: Literal["traffic"] = "traffic"
    phase: Literal["warmup", "timed", "instrumented", "evaluation"]
    index: Whole
    """Index of the block."""
    steps: Steps
    node: Whole
    sent_bytes: Whole
    received_bytes: Whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Accuracy with which a rank's replay kept its profile's times during a block, and the processor time it used.

    `lateness_ns` is, for each step, the largest delay of any of its events after its due time (0: none was
    late). `cpu_ns` is the processor time of the rank's process, its threads and system calls included, over
    the block.
    """

    kind: Literal["pace"] = "pace"
    phase: Literal["warmup", "timed", "instrumented", "evaluation"]
    index: Whole
    """Index of the block."""
    lateness_ns: Many[Number]
    cpu_ns: Number
    optimizer_ns: Number
    """Time per step of the rank's own parameter update, which the profile's optimizer time should cover."""
    optimizer_due_ns: Number = 0
    """That profiled time as this run replays it: dilated, on the same clock as `optimizer_ns`. 0: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staleness:
    """Staleness of the gradients that a server applied in a block of timed steps, and in the step before it.

    `counts[s]` of them were computed from parameters to which s updates had been made since.
    """

    kind: Literal["staleness"] = "staleness"
    counts: Many[Whole]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """Outcome of a rank. A rank that was killed leaves no such record."""

    kind: Literal["outcome"] = "outcome"
    status: Status
    error: str = ""
    error_type: str = ""
    phase: str = ""
    step: Whole | None = None
    params_checksum: str = ""
    peak_memory_bytes: Whole | None = None
    final_loss: float | None = None
    cpu_s: float | None = None
    """Processor time of its process and of loader workers that it waited for, threads and system calls
    included.
    """
    finished_ns: Number
    threads: Count | None = None
    """Compute threads that torch had at its end; older records lack it."""
    changes: Many[str] = ()
    """Sentences, without their full stop, on types and settings of a user's class that ddpbench changed."""


Record = (
    RankStart
    | Met
    | Drift
    | Warmup
    | Block
    | Buckets
    | Held
    | StepRecord
    | CommRecord
    | Checkpoint
    | LossCurve
    | Gang
    | Snapshot
    | Trained
    | Failure
    | Proof
    | Costs
    | Traffic
    | Pace
    | Staleness
    | RankOutcome
)
_Tagged = Annotated[Record, Field(discriminator="kind")]
_TEXTS_NOT_KEPT = ConfigDict(cache_strings="keys")
"""Texts differ from launch to launch: a cache of them would grow during a long sweep."""
_MANY: TypeAdapter[list[Record]] = TypeAdapter(Annotated[list[_Tagged], _AT_ONCE], config=_TEXTS_NOT_KEPT)


@cache
def _one() -> TypeAdapter[Record]:
    """Return the parser of a single record: made on first use, as that takes as long as reading some hundred
    files.
    """
    return TypeAdapter(_Tagged, config=_TEXTS_NOT_KEPT)


_TO_ZEROS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(128)) + b" " * 128
_LONG = b"0" * 19


def check_digits(data: bytes) -> None:
    """Refuse whole numbers that do not fit in 64 bits: cheaper than a limit on each field.

    Raises:
        ValueError: there is one.
    """
    if _LONG not in data.translate(_TO_ZEROS):
        return
    for digits in _WHOLE_NUMBER.finditer(_TEXT.sub(b'""', data)):
        if len(digits[1]) > 19 or int(digits[1]) >= 2**63:
            raise ValueError(f"a whole number of {len(digits[1]):,} digits")


MOST_LISTS = 1 << 22
"""Most lists, objects and lines of a rank's records: training to a loss writes four per ten steps, training
with snapshots six per step if steps take a quarter of a second.
"""
MOST_NUMBERS = 26_000_000
"""Most commas in them: training to a loss writes two numbers per step, and five per ten steps."""


def check_counts(data: bytes) -> None:
    """Refuse what takes far more memory than disk space: empty lists, or lines without a record.

    Raises:
        ValueError: there are more of them than any rank writes.
    """
    if sum(map(data.count, (b"[", b"{", b"\n"))) > MOST_LISTS:
        raise ValueError("has more lists, objects and lines than a rank writes")
    if data.count(b",") > MOST_NUMBERS:
        raise ValueError("has more values than a rank writes")


_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
"""Possessive, because saved places to backtrack to would take a hundred bytes per byte of a long text."""
_WHOLE_NUMBER = re.compile(rb"(?<![\d.eE+])-?(\d{19,})(?![\d.eE])")


def record_from_json(line: bytes) -> Record:
    """Return a record from its line.

    Raises:
        ValueError: the line is not a record of this schema; the message says why.
    """
    check_counts(line)
    check_digits(line)
    try:
        return _one().validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


def records_from_json(lines: bytes) -> list[Record]:
    """Return the records of many complete lines at once, in two thirds of the time.

    Raises:
        ValueError: one of them is not a record; `record_from_json` reports which and why.
    """
    data = b"[%s]" % lines.removesuffix(b"\n").replace(b"\n", b",")
    check_digits(data)
    return _MANY.validate_json(data)


def as_json(record: Record) -> dict[str, Any]:
    """Return a record as a JSON object."""
    return asdict(record)
