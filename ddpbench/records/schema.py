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
"""Nothing is read after the first fault: notes on millions of them would take GB."""
Many = Annotated[tuple[_T, ...], _AT_ONCE]

Whole = Annotated[int, Field(ge=0)]
"""A size or a count. That it is no larger than 64 bits hold, as every number of a record, `check_digits` sees to."""
Size = Annotated[int, Field(ge=0, le=2**43)]
"""Bytes of one bucket or transfer: 8 TiB at most, so that they can be multiplied by what a case was shrunk by."""
Count = Annotated[int, Field(gt=0)]
Steps = Annotated[int, Field(gt=0, lt=2**31)]
"""Of a block: so many that those of all launches together are still a number of 64 bits."""
Place = Annotated[int, Field(ge=0, le=2**53)]
"""Of a sample in a job's order, or how many follow one another: sums over ranks and launches are 64 bits at most."""
Number = int
"""A time on a clock whose zero is anywhere, or a number of something."""

Status = Literal["ok", "failed", "hung", "oom", "diverged", "skipped"]
CaseStatus = Literal["ok", "failed", "hung", "oom", "diverged", "skipped", "unfinished"]
"""The statuses of a case: `unfinished` has too few rounds, as its sweep was interrupted or ran out of time."""
WORST_FIRST: tuple[Status, ...] = ("diverged", "hung", "oom", "failed", "ok", "skipped")
"""The order in which a case takes the worst status of its launches."""

COMPUTE_SPANS = frozenset({"forward", "backward", "optimizer", "scatter", "replicate", "gather", "reduce"})
"""Names of the spans in which a rank computes; `gather`, `scatter`, `replicate` and `reduce` are
DataParallel's own work on its master. Other names: `data` (waiting for a batch), `synchronize` (blocked
until gradients are aggregated, or parameters gathered or sent: a span around it is noted in pieces)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStart:
    """A rank has started: who it is, where it runs and what it found there."""

    kind: Literal["start"] = "start"
    schema_version: Number = SCHEMA_VERSION
    rank: Whole
    world_size: Count
    attempt: Whole = 0
    pid: Whole
    host: str
    started_ns: Number
    """When its imports were done. A fork server's were before it was asked."""
    asked_ns: Number | None = None
    """When its launch was asked for, on the same clock; None where that was on another host, or not told."""
    entered_ns: Number | None = None
    """When its own process began to work for it."""
    cores: Many[Whole]
    loader_cores: Many[Whole] = ()
    """Cores set aside for loader workers; empty while there are workers: they share the ranks' cores."""
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
    """Worker processes of its DataLoader; None where its loader is of another class."""
    own_step: bool = False
    """The workload makes its steps itself: what is sent in one may be some gradients, or some of them twice."""
    case_id: str = ""
    """The case, round, number of ranks and run that it was started for. Older records name none of them."""
    round: Whole | None = None
    ranks: Count | None = None
    run_id: str = ""
    gloo_interface: str = ""
    """Over which interface gloo moves its data, with the rate that it claims. Told where nodes are several, alone."""
    faster_interface: str = ""
    """Another one here that claims twice that rate or more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """The ranks have met, and made their process groups."""

    kind: Literal["met"] = "met"
    start_ns: Number
    end_ns: Number
    backend: str = ""
    """The collective library of the process group; empty where there is none, and in older records."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """A fixed computation's time before or after the measured steps. Read from old records; no longer written.

    Over recorded runs its change did not correlate with a launch's deviation; stolen time does."""

    kind: Literal["drift"] = "drift"
    when: Literal["before", "after"]
    work_ns: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmup:
    """How the warm-up ended: after how many steps, and whether they were seen to change still."""

    kind: Literal["warmup"] = "warmup"
    steps: Whole
    start_ns: Number
    end_ns: Number
    step_ns: Number
    """A step's time at its end: the last block's median."""
    steady: bool
    reason: str
    blocks_ns: Many[Many[Number]] = ()
    """This rank's step times, block by block, once the one-time work was done. Older records have none."""
    first_ns: Number | None = None
    """When the first step ended; older records have none."""
    waited_ns: Number = 0
    """Meanwhile, while another side of a comparison had its turn: rank 0 alone notes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive steps between two barriers; the first after the barrier is not in it.

    `step_ns` are this rank's own step times, in order; their sum is `end_ns - start_ns`. `samples` are
    this rank's (for `data_parallel`, of all its replicas). A step of `evaluation` is forward and loss
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
    """Pages the kernel gave this process meanwhile, none of them read from a disk. None: not counted."""
    cpu_ns: Number | None = None
    """Processor time of this process meanwhile, its threads and system calls included. None: not counted."""
    waited_ns: Number = 0
    """Before it, while another side of a comparison had its turn: rank 0 alone notes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """The gradient buckets the reducer really made, in the order of their first transfer, bytes."""

    kind: Literal["buckets"] = "buckets"
    bytes: Many[Size]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a rank holds of the model's state between backward and update: its own part of whatever is sharded.

    Buckets, activations and what the library keeps for itself are not in it.
    """

    kind: Literal["held"] = "held"
    parameter_bytes: Whole
    gradient_bytes: Whole
    optimizer_bytes: Whole


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One instrumented step: its spans as (name, start_ns, end_ns), in order of their starts."""

    kind: Literal["step"] = "step"
    step: Whole
    start_ns: Number
    end_ns: Number
    spans: Many[Annotated[tuple[str, Number, Number], _AT_ONCE]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommRecord:
    """One rank's part in one transfer of an instrumented step: from handing it over to having its result.

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
    """What this rank handed to the network for it, counted message by message; None where the library sends."""
    ranks: Whole | None = None
    """How many ranks take part, as two in a message from one to another; None: all of them."""
    message: Number | None = None
    """What only two ranks exchange they know by this number, in steps that may have others; None: steps agree."""
    begun_ns: Number | None = None
    """When the rank turned to it, where it keeps a queue; None: it follows from the backend, or there is no queue."""
    root: Number | None = None
    """The rank that a gather, reduce, scatter or broadcast goes to or comes from; None: rank 0, and of a broadcast the
    rank that its bucket numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One checkpoint of model and optimizer state as one rank saw it, from the barrier before to the one after.

    `plain`: rank 0 calls torch.save and the others wait; `dcp`: all ranks call
    torch.distributed.checkpoint.save. Either ends when the bytes are on the disk (fsync).
    """

    kind: Literal["snapshot"] = "snapshot"
    method: Literal["plain", "dcp"]
    index: Whole
    """From 0; the first of a method pays for what is done once."""
    bytes: Whole
    """What this rank wrote."""
    start_ns: Number
    end_ns: Number
    write_ns: Number | None
    """The rank's own part of it; None where it only waited."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurve:
    """Consecutive steps of a training to a loss, which begins with a fresh model and the data's first batch.

    Ranks agree between these records whether to go on; the time for it is in none of them. `samples` are this rank's.
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
    """This rank's loss of each step, before its update, in seven digits; empty where it knows none, as a server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """A training with snapshots begins, or goes on from one: its ranks were started together, and have met.

    What an agent of torchrun did before, it has told this rank, which it started: None of the first gang, and of an
    agent that was started anew itself.
    """

    kind: Literal["gang"] = "gang"
    number: Whole
    """From 0, whatever agents count."""
    world_size: Count
    noticed_ns: Number | None
    """When its agent saw that a rank had failed, or that a node had come."""
    stopped_ns: Number | None
    """When the agent's earlier ranks had all ended."""
    placed_ns: Number | None
    """When the agents had agreed who is there: ranks are started from here on."""
    entered_ns: Number | None
    started_ns: Number
    meeting_ns: Number
    met_ns: Number
    ready_ns: Number
    """When the model was as it had been saved, and the next step could begin."""
    built_ns: Number | None = None
    """Time of making the model and the replica, before what was saved was loaded; not in older records."""
    step: Whole
    """Steps made before, of which the snapshot tells."""
    samples: Whole
    """Of the job, trained on in these."""
    unreadable: Many[str] = ()
    """Later snapshots that could not be used, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Model, optimizer, generators and place in the data, saved by rank 0 while the others wait."""

    kind: Literal["state"] = "state"
    gang: Whole
    step: Whole
    """Steps made by then."""
    bytes: Whole
    """What this rank wrote."""
    start_ns: Number
    end_ns: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Consecutive steps of a training with snapshots, which ends at a snapshot, a failure or its last step."""

    kind: Literal["trained"] = "trained"
    gang: Whole
    first: Whole
    """The number of its first step, from 0."""
    start_ns: Number
    ends_ns: Many[Number]
    """The end of each step."""
    losses: Many[float]
    """This rank's, in seven digits; empty where it knows none."""
    samples: Many[Annotated[tuple[Place, Place], _AT_ONCE]]
    """What this rank trained on, by place in the job's order of samples: runs, each its first and how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What was planned to fail fails now: the last that its rank, or a rank beside it, notes."""

    kind: Literal["failure"] = "failure"
    gang: Whole
    what: str
    step: Whole
    """Steps made by then."""
    at_ns: Number


Compared = Literal[
    "initial state",
    "gradients, same shards",
    "gradients, whole batch",
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
    """One comparison with a single process, before timing.

    `compared` names what was held against what; `error` is the largest relative error over parameters
    (norm of the difference over norm of the reference), `tolerance` what was allowed.
    """

    kind: Literal["proof"] = "proof"
    compared: Compared
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
    """Return False for what is allowed where a comparison was left out."""
    return not math.isinf(tolerance)


UPDATE_EXCHANGES = "the update exchanges values between ranks"
"""Beginning of a note on updates that one process would make otherwise: gradients alone do not prove the training."""


_DECISIVE = (("gradients", "sums"), ("update", "parameters"), ("share",))
"""Groups of comparisons, by how they begin: of each group that a proof has, one has to be made."""


def why_unproved(proofs: Iterable[Proof]) -> str:
    """Return why no comparison shows what a strategy trained; empty where one does, or where it aggregates nothing.

    Gradients alone do not show it where updates are to be compared as well, nor do these without gradients. A type in
    which the class cannot compute is left out before its initial states are compared: what holds in the others is the
    reason.
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
    """What one sample costs, and how many there are.

    `flops_per_sample` are floating-point operations of forward and backward (torch's own counter);
    `dataset_samples` is the length of the dataset, None where it has none.
    """

    kind: Literal["costs"] = "costs"
    flops_per_sample: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    dataset_samples: Whole | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What a node's emulated link carried during a block, as its first rank read it from the kernel's counters.

    Where ranks of a node have links of their own (`local_bandwidth`) each of them notes its own's.

    Bytes of frames as the interface counts them: a segment that the kernel splits later has its headers
    counted once, so that they fall short of the wire's by up to 5 %. Traffic that stays within the node is not in a
    node's; a rank's own link carries both.
    """

    kind: Literal["traffic"] = "traffic"
    phase: Literal["warmup", "timed", "instrumented", "evaluation"]
    index: Whole
    """Of the block."""
    steps: Steps
    node: Whole
    sent_bytes: Whole
    received_bytes: Whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How well a rank's replay kept its profile's times during a block, and what the host worked beside.

    `lateness_ns` is of each step the latest that any of its moments came after it was due (0: none was late).
    `cpu_ns` is the processor time of the rank's process, its threads and system calls included, over the block.
    """

    kind: Literal["pace"] = "pace"
    phase: Literal["warmup", "timed", "instrumented", "evaluation"]
    index: Whole
    """Of the block."""
    lateness_ns: Many[Number]
    cpu_ns: Number
    optimizer_ns: Number
    """The time the rank's own update of the parameters took a step, which the profile's optimizer time should hide."""
    optimizer_due_ns: Number = 0
    """That profiled time as this run replays it: dilated, on the same clock as `optimizer_ns`. 0: not told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staleness:
    """How stale the gradients were that a server applied in a block of timed steps, and the step before it.

    `counts[s]` of them were computed from parameters to which s updates had been made since.
    """

    kind: Literal["staleness"] = "staleness"
    counts: Many[Whole]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """How a rank ended. A rank that was killed leaves none."""

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
    """Processor time of its process and of loader workers that it waited for, threads and system calls included."""
    finished_ns: Number
    threads: Count | None = None
    """Compute threads that torch had at its end; older records have none."""
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
"""Each launch has others, and a long sweep would grow."""
_MANY: TypeAdapter[list[Record]] = TypeAdapter(Annotated[list[_Tagged], _AT_ONCE], config=_TEXTS_NOT_KEPT)


@cache
def _one() -> TypeAdapter[Record]:
    """Return what reads a single record: made on first use, for that takes as long as reading some hundred files."""
    return TypeAdapter(_Tagged, config=_TEXTS_NOT_KEPT)


_TO_ZEROS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(128)) + b" " * 128
_LONG = b"0" * 19


def check_digits(data: bytes) -> None:
    """Refuses whole numbers that 64 bits do not hold: for less than limits on each field would cost.

    Raises:
        ValueError: there is one.
    """
    if _LONG not in data.translate(_TO_ZEROS):
        return
    for found in _WHOLE_NUMBER.finditer(_TEXT.sub(b'""', data)):
        if len(found[1]) > 19 or int(found[1]) >= 2**63:
            raise ValueError(f"a whole number of {len(found[1]):,} digits")


MOST_LISTS = 1 << 22
"""Lists, objects and lines of a rank's records: training to a loss notes four each ten steps, that with snapshots six
each step where steps take a quarter of a second."""
MOST_NUMBERS = 26_000_000
"""Commas in them: training to a loss notes two numbers a step, and five for each ten."""


def check_counts(data: bytes) -> None:
    """Refuses what takes far more in memory than in a file: empty lists, or lines without a record.

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
    """Return the records of many whole lines at once, which takes two thirds of the time.

    Raises:
        ValueError: one of them is not a record; `record_from_json` tells which and why.
    """
    data = b"[%s]" % lines.removesuffix(b"\n").replace(b"\n", b",")
    check_digits(data)
    return _MANY.validate_json(data)


def as_json(record: Record) -> dict[str, Any]:
    """A record as a JSON object."""
    return asdict(record)
