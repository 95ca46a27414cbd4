"""What was seen: record types, the run directory that holds them, their writer and reader."""

from ddpbench.records.reader import LaunchRecords, RankRecords, read_launch, read_rank
from ddpbench.records.request import LaunchRequest
from ddpbench.records.rundir import LaunchDir, RunDir, explain_os_error, write_atomically
from ddpbench.records.schema import (
    COMPUTE_SPANS,
    SCHEMA_VERSION,
    WORST_FIRST,
    Block,
    Buckets,
    CommRecord,
    Costs,
    Drift,
    LaunchOutcome,
    Noise,
    Proof,
    RankOutcome,
    RankStart,
    Record,
    Status,
    StepRecord,
    Warmup,
    as_json,
)
from ddpbench.records.writer import RecordWriteError, RecordWriter

__all__ = [
    "COMPUTE_SPANS",
    "SCHEMA_VERSION",
    "WORST_FIRST",
    "Block",
    "Buckets",
    "CommRecord",
    "Costs",
    "Drift",
    "LaunchDir",
    "LaunchOutcome",
    "LaunchRecords",
    "LaunchRequest",
    "Noise",
    "Proof",
    "RankOutcome",
    "RankRecords",
    "RankStart",
    "Record",
    "RecordWriteError",
    "RecordWriter",
    "RunDir",
    "Status",
    "StepRecord",
    "Warmup",
    "as_json",
    "explain_os_error",
    "read_launch",
    "read_rank",
    "write_atomically",
]
