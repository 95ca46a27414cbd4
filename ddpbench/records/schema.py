"""The records that a rank writes, one JSON object per line, and the schema's history.

Records have raw times and sizes, and no ratios. Times are nanoseconds on the host's monotonic clock
(`time.perf_counter_ns` on Linux), which all ranks of one host share. GPU times are those of CUDA events, converted to
this clock. Sizes are bytes.

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
"""Makes pydantic stop at the first invalid element, because errors about millions of elements would take GB."""
Many = Annotated[tuple[_T, ...], _AT_ONCE]

Whole = Annotated[int, Field(ge=0)]
"""A size or a count. `check_digits` limits it, like every integer of a record, to 64 bits."""
Size = Annotated[int, Field(ge=0, le=2**43)]
"""Bytes of one bucket or transfer, at most 8 TiB, so that they still fit in 64 bits times a case's shrink."""
Count = Annotated[int, Field(gt=0)]
Steps = Annotated[int, Field(gt=0, lt=2**31)]
"""Number of steps of a block, limited so that the sum over all launches fits in 64 bits."""
Place = Annotated[int, Field(ge=0, le=2**53)]
"""Position of a sample in a job's order, or a number of consecutive samples; sums over ranks and launches fit in 64
bits.
"""
Number = int
"""A time on a clock with an arbitrary zero, or a plain number."""

Status = Literal["ok", "failed", "hung", "oom", "diverged", "skipped"]
CaseStatus = Literal["ok", "failed", "hung", "oom", "diverged", "skipped", "unfinished"]
"""Statuses of a case. An `unfinished` case has too few rounds, because its sweep was interrupted or out of time.
"""
WORST_FIRST: tuple[Status, ...] = ("diverged", "hung", "oom", "failed", "ok", "skipped")
"""Statuses in the order of precedence: a case gets the first of its launches' statuses."""

COMPUTE_SPANS = frozenset({"forward", "backward", "optimizer", "scatter", "replicate", "gather", "reduce"})
"""Names of the spans in which a rank computes; `gather`, `scatter`, `replicate` and `reduce` are DataParallel's own
work on its master.

Other spans are `data` (waiting for a batch) and `synchronize` (blocked until gradients are aggregated, or parameters
gathered or sent). A span that is interrupted by `synchronize` is recorded in pieces.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStart:
    """The first record of a rank, with its number, where it runs, and properties of its model and of torch."""

    kind: Literal["start"] = "start"
    schema_version: Number = SCHEMA_VERSION
    rank: Whole
    world_size: Count
    attempt: Whole = 0
    pid: Whole
    host: str
    started_ns: Number
    """When the imports were done, which under a fork server was before the launch was requested."""
    asked_ns: Number | None = None
    """When the launch was requested, on the same clock; None if unknown, or if it was requested on a different host."""
    entered_ns: Number | None = None
    """When the rank's own process began to work for the launch."""
    cores: Many[Whole]
    loader_cores: Many[Whole] = ()
    """Cores set aside for loader workers; empty if workers share the ranks' cores."""
    threads: Count
    device: str
    torch_version: str
    parameters: Whole = 0
    gradient_bytes: Whole = 0
    largest_gradient_bytes: Whole | None = None
    """Gradient bytes of the largest parameter. Older records lack this field and all below it."""
    types: Many[str] = ()
    """The number types of the parameters, by torch's names, sorted."""
    loader_workers: Whole | None = None
    """Number of worker processes of the rank's DataLoader; None if the loader is of a different class."""
    own_step: bool = False
    """True if the workload has its own `step`, so that a step may send only some gradients, or some of them twice.
    """
    case_id: str = ""
    """Id of the case for which the rank was started. The next fields are its round, number of ranks and run id."""
    round: Whole | None = None
    ranks: Count | None = None
    run_id: str = ""
    gloo_interface: str = ""
    """The network interface that gloo uses, with its nominal rate; recorded only for several nodes."""
    faster_interface: str = ""
    """Another interface of this host with at least twice that nominal rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """Recorded when the ranks have met, which means that they are connected and have process groups."""

    kind: Literal["met"] = "met"
    start_ns: Number
    end_ns: Number
    backend: str = ""
    """The collective library of the process group; empty without a process group, and in older records."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """Time of a fixed computation before or after the measured steps. Only old records have it.

    Its change did not correlate with a launch's deviation, unlike the time that other guests of the host took (steal).
    """

    kind: Literal["drift"] = "drift"
    when: Literal["before", "after"]
    work_ns: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmup:
    """The record of the finished warm-up, with its steps, and whether step times were still changing."""

    kind: Literal["warmup"] = "warmup"
    steps: Whole
    start_ns: Number
    end_ns: Number
    step_ns: Number
    """The median step time of the warm-up's last block."""
    steady: bool
    reason: str
    blocks_ns: Many[Many[Number]] = ()
    """This rank's step times by block, without the first steps, which include one-time work. Older records lack them.
    """
    first_ns: Number | None = None
    """When the first step ended; older records lack this."""
    waited_ns: Number = 0
    """Time during the warm-up for which launches interleaved with this one had the turn; recorded only by rank 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive steps between two barriers, without the first step after the first barrier.

    `step_ns` are this rank's own step times, in order; their sum is `end_ns - start_ns`. `samples` counts this rank's
    (for `data_parallel`, all replicas'). Steps of the phase `evaluation` are forward and loss without gradients.
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
    """Page faults of this process during the block that needed no disk read; None if not counted."""
    cpu_ns: Number | None = None
    """Processor time of this process during the block, with its threads and system calls; None if not counted."""
    waited_ns: Number = 0
    """Time before the block for which launches interleaved with this one had the turn; recorded only by rank 0."""
    waiting_cpu_ns: Number = 0
    """Processor time of this process, with its threads, while it waited before the block."""
    group: Whole = 0
    """Index of the group in `LaunchOutcome.alternated` with which the block alternated; recorded only by rank 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """Sizes in bytes of the gradient buckets that DDP's reducer made, in the order of their first transfer."""

    kind: Literal["buckets"] = "buckets"
    bytes: Many[Size]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Bytes of parameters, gradients and optimizer state on a rank, between backward and update.

    A sharded tensor counts only with the rank's own part. Buckets, activations and the library's buffers are not
    included.
    """

    kind: Literal["held"] = "held"
    parameter_bytes: Whole
    gradient_bytes: Whole
    optimizer_bytes: Whole


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """An instrumented step, with its spans as (name, start_ns, end_ns), in the order of their starts."""

    kind: Literal["step"] = "step"
    step: Whole
    start_ns: Number
    end_ns: Number
    spans: Many[Annotated[tuple[str, Number, Number], _AT_ONCE]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommRecord:
    """A rank's part in one transfer of an instrumented step, from its submission to its result.

    `op` is a key of `ddpbench.records.operations.OPERATIONS`, or `NAME/FLOW` for a user's strategy.
    """

    kind: Literal["comm"] = "comm"
    step: Whole
    bucket: Number
    op: str
    bytes: Size
    start_ns: Number
    end_ns: Number
    sent_bytes: Size | None = None
    """Bytes that this rank passed to the network for the transfer, summed over messages; None if a library sends them.
    """
    ranks: Whole | None = None
    """Number of ranks that take part, such as two for a message between ranks; None if all do."""
    message: Number | None = None
    """Number by which two ranks match their records of a message; None if transfers are alike in all steps."""
    begun_ns: Number | None = None
    """When the rank took the transfer from its own queue; None if the transfer has no queue, or is in the backend's
    queue.
    """
    root: Number | None = None
    """The root of a gather, reduce, scatter or broadcast; None means rank 0 or, for a broadcast, the rank with the
    number `bucket`.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint of model and optimizer state, timed by one rank between two barriers.

    Under `plain`, rank 0 calls torch.save and the others wait. Under `dcp`, all ranks call
    torch.distributed.checkpoint.save. Both end when the bytes are on the disk (fsync).
    """

    kind: Literal["snapshot"] = "snapshot"
    method: Literal["plain", "dcp"]
    index: Whole
    """Index from 0; the first checkpoint of a method includes one-time work."""
    bytes: Whole
    """Bytes that this rank wrote."""
    start_ns: Number
    end_ns: Number
    write_ns: Number | None
    """The time that the rank itself spent on writing; None if it only waited."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurve:
    """Consecutive steps of training to a loss, with a fresh model and from the data's first batch.

    The time in which ranks agree whether to continue is in no record. `samples` is the number of this rank's.
    """

    kind: Literal["curve"] = "curve"
    index: Whole
    target: Annotated[float, Field(allow_inf_nan=False)]
    """The loss to train down to."""
    samples: Whole
    start_ns: Number
    end_ns: Number
    step_ns: Many[Number]
    """This rank's step times, in order; their sum is `end_ns - start_ns`."""
    losses: Many[float]
    """This rank's loss of each step, before the update, to seven digits; empty for a rank without a loss, such as a
    server.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """Recorded when a gang, the ranks that torchrun starts together, begins to train or continues from a snapshot.

    `noticed_ns`, `stopped_ns` and `placed_ns` are the torchrun agent's; None for the first gang or a restarted agent.
    """

    kind: Literal["gang"] = "gang"
    number: Whole
    """Number of the gang, from 0, regardless of how agents count restarts."""
    world_size: Count
    noticed_ns: Number | None
    """When the agent saw that a rank had failed, or that a node had joined."""
    stopped_ns: Number | None
    """When the agent's earlier ranks had all ended."""
    placed_ns: Number | None
    """When the agents had agreed on the members, and began to start ranks."""
    entered_ns: Number | None
    started_ns: Number
    meeting_ns: Number
    met_ns: Number
    ready_ns: Number
    """When the snapshot was loaded, and the next step could begin."""
    built_ns: Number | None = None
    """Time for making the model and the replica, before the snapshot was loaded; older records lack this."""
    step: Whole
    """Number of steps that were made before this gang, according to the snapshot."""
    samples: Whole
    """Number of the job's samples in these steps."""
    unreadable: Many[str] = ()
    """Later snapshots that could not be used, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A snapshot of model, optimizer, random generators and position in the data.

    Rank 0 saves it while the others wait.
    """

    kind: Literal["state"] = "state"
    gang: Whole
    step: Whole
    """Number of steps made before the snapshot."""
    bytes: Whole
    """Bytes that this rank wrote."""
    start_ns: Number
    end_ns: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Consecutive steps of training with snapshots, which end with a snapshot, a failure or the last step."""

    kind: Literal["trained"] = "trained"
    gang: Whole
    first: Whole
    """The number of the first of these steps, from 0."""
    start_ns: Number
    ends_ns: Many[Number]
    """The end of each step."""
    losses: Many[float]
    """This rank's losses, to seven digits; empty for a rank without a loss."""
    samples: Many[Annotated[tuple[Place, Place], _AT_ONCE]]
    """Samples that this rank trained on, as ranges (first, count) of positions in the job's order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The record of a planned failure, the last of the rank that fails or sees it."""

    kind: Literal["failure"] = "failure"
    gang: Whole
    what: str
    step: Whole
    """Number of steps made before the failure."""
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
    """A comparison of the ranks' results with the results of a single process, made before timing.

    `compared` says what is compared. `error` is the largest relative error of any parameter (norm of the difference
    divided by the norm of the reference), and `tolerance` the largest allowed error.
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
        """Return whether the comparison was made. If not, `note` has the reason."""
        return was_made(self.tolerance)


def was_made(tolerance: float) -> bool:
    """Return whether a comparison with this tolerance was made.

    Comparisons that were left out have an infinite tolerance.
    """
    return not math.isinf(tolerance)


UPDATE_EXCHANGES = "the update exchanges values between ranks"
"""Beginning of a note on updates that by design differ from a single process's, so that gradients alone prove too
little.
"""


ROUNDING_ALONE = "rounding alone changes"
"""Beginning of the note on a failed comparison if different rounding changes the reference by as much as the error."""


_DECISIVE = (("gradients", "sums"), ("update", "parameters"), ("share",))
"""Groups of comparisons, by the beginnings of their names. If a proof has comparisons of a group, at least one must
have been made.
"""


def why_unproved(proofs: Iterable[Proof]) -> str:
    """Return why the comparisons do not prove a strategy's training; empty if they do, or if it aggregates nothing.

    If gradients and updates are promised, both must be compared. A failure that rounding may explain leaves the case
    unproved. Reasons in number types in which the user's class can compute come first.
    """
    proofs = list(proofs)
    types = {each.dtype for each in proofs if each.compared == "initial state"}
    for kinds in _DECISIVE:
        decisive = [each for each in proofs if each.compared.startswith(kinds)]
        if decisive and not any(each.was_made for each in decisive):
            noted = sorted((each for each in decisive if each.note), key=lambda each: each.dtype not in types)
            return noted[0].note if noted else _NOT_COMPARED
    partly = (UPDATE_EXCHANGES, ROUNDING_ALONE)
    return next((each.note for each in proofs if each.note.startswith(partly)), "")


_NOT_COMPARED = "no comparison was made"


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Floating-point operations per sample, and the number of samples in the dataset.

    `flops_per_sample` is the number of operations of forward and backward, by torch's own counter. `dataset_samples`
    is None if the dataset has no length.
    """

    kind: Literal["costs"] = "costs"
    flops_per_sample: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    dataset_samples: Whole | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes that a node's emulated link carried during a block, as the node's first rank reads them.

    With separate links (`local_bandwidth`), each rank records its own. Headers are included, up to 5 % less than on a
    wire, because the kernel splits segments later. Traffic within the node does not cross a node's link.
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
    """Delays of a rank's replay in a block, compared with its profile, and its processor time.

    `lateness_ns` is, for each step, the largest delay of an event after its due time; 0 if none was late. `cpu_ns`
    includes the process's threads and system calls.
    """

    kind: Literal["pace"] = "pace"
    phase: Literal["warmup", "timed", "instrumented", "evaluation"]
    index: Whole
    """Index of the block."""
    lateness_ns: Many[Number]
    cpu_ns: Number
    optimizer_ns: Number
    """Time per step of the rank's own parameter update, for which the profile's optimizer time should suffice."""
    optimizer_due_ns: Number = 0
    """The profile's optimizer time per step, dilated as in this run; 0 if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staleness:
    """Staleness of the gradients that a server applied in a block of timed steps, and in the step before the block.

    `counts[s]` is the number of gradients whose parameters had been updated s times since a worker got them.
    """

    kind: Literal["staleness"] = "staleness"
    counts: Many[Whole]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """The outcome of a rank, which states whether the rank succeeded, and otherwise its error.

    A rank that was killed leaves no such record.
    """

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
    """Processor time of the rank's process and of loader workers that it waited for, with threads and system calls.
    """
    finished_ns: Number
    threads: Count | None = None
    """Number of torch's compute threads at the end; older records lack this."""
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
"""Pydantic's configuration without a cache of texts. Texts differ by launch, so a cache would grow in a long sweep."""
_MANY: TypeAdapter[list[Record]] = TypeAdapter(Annotated[list[_Tagged], _AT_ONCE], config=_TEXTS_NOT_KEPT)


@cache
def _one() -> TypeAdapter[Record]:
    """Return the parser, made on first use, because that takes as long as reading 100 files."""
    return TypeAdapter(_Tagged, config=_TEXTS_NOT_KEPT)


_TO_ZEROS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(128)) + b" " * 128
_LONG = b"0" * 19


def check_digits(data: bytes) -> None:
    """Check that all integers in JSON text fit in 64 bits, in one pass instead of a limit per field.

    Raises:
        ValueError: an integer does not fit.
    """
    if _LONG not in data.translate(_TO_ZEROS):
        return
    for digits in _WHOLE_NUMBER.finditer(_TEXT.sub(b'""', data)):
        if len(digits[1]) > 19 or int(digits[1]) >= 2**63:
            raise ValueError(f"a whole number of {len(digits[1]):,} digits")


MOST_LISTS = 1 << 22
"""Largest number of lists, objects and lines of a rank's records.

Training to a loss writes four per ten steps. Training with snapshots writes six per step if steps take a quarter of a
second.
"""
MOST_NUMBERS = 26_000_000
"""Largest number of commas in a rank's records.

Training to a loss writes two numbers per step, and five more per ten steps.
"""


def check_counts(data: bytes) -> None:
    """Refuse records that take far more memory than disk space, such as many empty lists.

    Raises:
        ValueError: there are more lists, objects, lines or values than any rank writes.
    """
    if sum(map(data.count, (b"[", b"{", b"\n"))) > MOST_LISTS:
        raise ValueError("has more lists, objects and lines in total than any rank writes")
    if data.count(b",") > MOST_NUMBERS:
        raise ValueError("has more values than any rank writes")


_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
"""A JSON string. The quantifiers are possessive, because backtracking would take 100 bytes per byte of a long text."""
_WHOLE_NUMBER = re.compile(rb"(?<![\d.eE+])-?(\d{19,})(?![\d.eE])")


def record_from_json(line: bytes) -> Record:
    """Parse a record from its line.

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
    """Parse many complete lines at once, which takes two thirds of the time of parsing them one by one.

    Raises:
        ValueError: a line is not a record; `record_from_json` on each line tells which line, and why.
    """
    data = b"[%s]" % lines.removesuffix(b"\n").replace(b"\n", b",")
    check_digits(data)
    return _MANY.validate_json(data)


def as_json(record: Record) -> dict[str, Any]:
    """Return a record as a JSON object."""
    return asdict(record)
