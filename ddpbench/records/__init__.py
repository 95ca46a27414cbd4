"""What was seen: record types, the run directory that holds them, their writer and reader."""

from ddpbench.records.address import Address, LeftOut, left_out_sentences
from ddpbench.records.archive import pack
from ddpbench.records.files import write_atomically
from ddpbench.records.outcome import LaunchOutcome, Noise
from ddpbench.records.reader import LaunchRecords, RankRecords, read_launch, read_rank
from ddpbench.records.request import LaunchRequest
from ddpbench.records.rundir import LaunchDir, RunDir, explain_os_error
from ddpbench.records.schema import (
    COMPUTE_SPANS,
    SCHEMA_VERSION,
    WORST_FIRST,
    Block,
    Buckets,
    Checkpoint,
    CommRecord,
    Compared,
    Costs,
    Drift,
    Held,
    LossCurve,
    Met,
    Pace,
    Proof,
    RankOutcome,
    RankStart,
    Record,
    Staleness,
    Status,
    StepRecord,
    Traffic,
    Warmup,
)
from ddpbench.records.writer import RecordWriteError, RecordWriter

__all__ = [
    "COMPUTE_SPANS",
    "SCHEMA_VERSION",
    "WORST_FIRST",
    "Address",
    "Block",
    "Buckets",
    "Checkpoint",
    "CommRecord",
    "Compared",
    "Costs",
    "Drift",
    "Held",
    "LaunchDir",
    "LaunchOutcome",
    "LaunchRecords",
    "LaunchRequest",
    "LeftOut",
    "LossCurve",
    "Met",
    "Noise",
    "Pace",
    "Proof",
    "RankOutcome",
    "RankRecords",
    "RankStart",
    "Record",
    "RecordWriteError",
    "RecordWriter",
    "RunDir",
    "Staleness",
    "Status",
    "StepRecord",
    "Traffic",
    "Warmup",
    "explain_os_error",
    "left_out_sentences",
    "pack",
    "read_launch",
    "read_rank",
    "write_atomically",
]
