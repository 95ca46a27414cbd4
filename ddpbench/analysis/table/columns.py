"""The columns of `cases.csv`: name, type, unit, meaning and where each comes from. The one table of them.

The frame, the report, `docs/columns.md` and the printed table are made from it. Later work appends columns and never
renames or moves one. `make docs` writes the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ddpbench.spec.grouping import FACETS, check_complete

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun

Kind = Literal["text", "whole", "truth", "number"]
Source = Literal[
    "plan",
    "launches",
    "timed steps",
    "instrumented steps",
    "proof",
    "evaluation",
    "snapshots",
    "links",
    "replay",
    "training to a loss",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of `cases.csv`."""

    name: str
    kind: Kind
    unit: str
    """Empty for what has none; `1` for shares and ratios."""
    meaning: str
    source: Source
    value: Callable[[CaseRun], Any] | None = None
    """What a case has here; None for what the frame works out with other columns of its row, or takes from the case."""
    of: str = ""
    """The column whose 95 % interval this is an end of; empty for a column of its own."""

    @property
    def dtype(self) -> str:
        """Its dtype in the frame. What is empty is NA (NaN in a column of numbers), never -1, 0 or an empty text."""
        return {"text": "string", "whole": "Int64", "truth": "boolean", "number": "float64"}[self.kind]


def _one(source: Source, kind: Kind, name: str, unit: str, meaning: str, **more: Any) -> list[Column]:
    return [Column(name=name, kind=kind, unit=unit, meaning=meaning, source=source, **more)]


def _number(source: Source, name: str, unit: str, meaning: str) -> list[Column]:
    return _one(source, "number", name, unit, meaning)


def _ends(source: Source, pattern: str, unit: str) -> list[Column]:
    """Return the two ends of an interval; `{}` in the pattern is where `_ci_low` and `_ci_high` stand."""
    of = pattern.format("")
    return [
        Column(
            name=pattern.format(f"_ci_{end}"),
            kind="number",
            unit=unit,
            meaning=f"{words} end of the 95 % interval of {of}",
            source=source,
            of=of,
        )
        for end, words in (("low", "lower"), ("high", "upper"))
    ]


def _measured(source: Source, pattern: str, unit: str, meaning: str) -> list[Column]:
    """Return a number and the ends of its interval."""
    return [*_number(source, pattern.format(""), unit, meaning), *_ends(source, pattern, unit)]


def _table() -> list[Column]:
    plan: Source = "plan"
    timed: Source = "timed steps"
    instrumented: Source = "instrumented steps"
    own = "span of a rank's step, mean over ranks, steps and launches"
    loss: Source = "training to a loss"
    return [
        *_one(
            "plan",
            "text",
            "case_id",
            "",
            "stable name: strategy, ranks, bucket cap and a digest of the contents",
        ),
        *_one("plan", "text", "experiment", "", "name of the experiment"),
        *_one("plan", "text", "workload", "", "what is trained"),
        *_one("plan", "text", "strategy", "", "how gradients are aggregated"),
        *_one(
            "plan", "text", "algorithm", "", "the strategy's collective algorithm, where it leaves a choice"
        ),
        *_one("plan", "text", "schedule", "", "when it communicates, where it leaves a choice"),
        *_one("plan", "text", "options_json", "", "the strategy's options"),
        *_one("plan", "text", "backend", "", "the collective library; empty without one"),
        *_one("plan", "text", "device", "", "cpu or cuda"),
        *_one("plan", "text", "launcher", "", "what started the ranks"),
        *_one("plan", "whole", "world_size", "ranks", "ranks in all"),
        *_one("plan", "whole", "nodes", "nodes", "machines, or emulated nodes"),
        *_one("plan", "whole", "ranks_per_node", "ranks", "ranks on each node"),
        *_one("plan", "whole", "threads_per_rank", "threads", "computing threads of each rank"),
        *_one("plan", "whole", "loader_workers", "processes", "data-loading processes of each rank"),
        *_one(
            "plan",
            "text",
            "bucket_cap_mb",
            "MiB",
            "bucket cap; `default`; empty for a strategy without buckets",
        ),
        *_one("plan", "whole", "local_batch", "samples", "batch of a rank"),
        *_one("plan", "whole", "global_batch", "samples", "batch of the job"),
        *_one("plan", "text", "scaling", "", "weak: the local batch is held fixed; strong: the global batch"),
        *_one("plan", "text", "dtype", "", "number type of parameters and gradients"),
        *_one("plan", "text", "fabric", "", "emulated links; empty for the machine's own"),
        *_one("plan", "text", "compute", "", "real, replayed from a profile, or synthetic"),
        *_number(
            plan,
            "dilation",
            "1",
            "factor by which computation and links are slowed; results are divided by it",
        ),
        *_one(
            "launches",
            "text",
            "status",
            "",
            "ok, failed, hung, oom, diverged or skipped",
            value=lambda run: run.status,
        ),
        *_one("launches", "text", "error", "", "what went wrong and what to do", value=lambda run: run.error),
        *_one(
            "launches",
            "whole",
            "launches",
            "launches",
            "launches that count",
            value=lambda run: len(run.good),
        ),
        *_one(
            "launches",
            "whole",
            "launches_failed",
            "launches",
            "launches that do not",
            value=lambda run: sum(not launch.ok for launch in run.launches),
        ),
        *_one("timed steps", "whole", "steps", "steps", "timed steps of all launches"),
        *_one(
            "plan",
            "text",
            "baseline_case_id",
            "",
            "base case of the speed-up",
            value=lambda run: run.baseline_id,
        ),
        *_measured(timed, "step_time{}_s", "s", "samples of a step over the job's rate, mean over launches"),
        *_number(timed, "step_time_median_s", "s", "median of the single steps of all ranks and launches"),
        *_number(
            timed, "step_time_p95_s", "s", "95th percentile of the single steps of all ranks and launches"
        ),
        *_measured(timed, "samples_per_s{}", "samples/s", "samples of all ranks per second of timed steps"),
        *_measured(timed, "speedup{}", "1", "throughput over the base case's, paired within rounds"),
        *_measured(timed, "efficiency{}", "1", "speed-up over the number of ranks"),
        *_number(instrumented, "data_time_s", "s", f"waiting for a batch: {own}"),
        *_number(instrumented, "forward_time_s", "s", f"forward pass and loss: {own}"),
        *_number(instrumented, "backward_time_s", "s", f"backward pass: {own}"),
        *_number(instrumented, "optimizer_time_s", "s", f"update: {own}"),
        *_number(
            instrumented,
            "compute_time_s",
            "s",
            "forward and backward of the same ranks without communication",
        ),
        *_number(
            instrumented, "comm_time_s", "s", "time of a step in which data of some transfer could flow"
        ),
        *_number(instrumented, "exposed_comm_s", "s", "communication outside computation"),
        *_number(instrumented, "wait_time_s", "s", "waiting for other ranks while no data could flow"),
        *_number(instrumented, "overlap_fraction", "1", "share of communication hidden behind computation"),
        *_one("launches", "whole", "gradient_bytes", "bytes", "gradients of one replica"),
        *_one("launches", "text", "actual_bucket_bytes", "bytes", "buckets that the reducer made"),
        *_one("launches", "whole", "peak_memory_bytes", "bytes", "largest rank's peak in timed steps"),
        *_number(
            "proof", "flops_per_sample", "operations", "floating-point operations of forward and backward"
        ),
        *_number(
            timed, "mfu", "1", "model FLOPs utilisation; empty on a CPU and where a GPU's peak is not known"
        ),
        *_one(
            "launches",
            "truth",
            "params_equal",
            "",
            "replicas ended with equal parameters, where that is promised",
        ),
        *_one(
            "plan",
            "truth",
            "oversubscribed",
            "",
            "more ranks than cores",
            value=lambda run: run.planned.oversubscribed,
        ),
        *_one("timed steps", "truth", "ci_reached", "", "the interval is as narrow as was asked for"),
        *_one("launches", "text", "noise_flag", "", "what disturbed launches"),
        *_one(
            "plan",
            "text",
            "precision",
            "",
            "full, or the type that forward and loss compute in under autocast",
        ),
        *_one(
            "plan",
            "text",
            "data",
            "",
            "loader: through a DataLoader; memory: batches lie ready on the device",
        ),
        *_measured("evaluation", "evaluation_step_time{}_s", "s", "forward and loss without gradients"),
        *_measured("evaluation", "evaluation_samples_per_s{}", "samples/s", "throughput of evaluation"),
        *_measured("snapshots", "snapshot_plain{}_s", "s", "one snapshot by rank 0 with torch.save"),
        *_measured(
            "snapshots",
            "snapshot_dcp{}_s",
            "s",
            "one snapshot by all ranks with torch.distributed.checkpoint",
        ),
        *_one(
            "snapshots",
            "whole",
            "snapshot_bytes",
            "bytes",
            "what all ranks write for one; plain's where both ran",
        ),
        *_one("launches", "whole", "parameters", "numbers", "trained numbers of the model"),
        *_one(
            "plan",
            "whole",
            "shrink",
            "1",
            "divisor of gradients, caps and links; sizes here are multiplied by it",
        ),
        *_one("plan", "text", "workload_options_json", "", "the workload's options"),
        *_number(
            "links", "node_sent_bytes", "bytes", "bytes per step over the link of the node that sent most"
        ),
        *_number("links", "node_received_bytes", "bytes", "bytes per step to the node that received most"),
        *_number(
            "links",
            "expected_node_bytes",
            "bytes",
            "what the algorithm's formula says the busiest node sends",
        ),
        *_number("links", "traffic_ratio", "1", "node_sent_bytes over expected_node_bytes"),
        *_number(
            "replay", "lateness_p95_s", "s", "95th percentile over steps of how late their latest moment came"
        ),
        *_number(
            "replay", "host_share", "1", "processor time of all ranks over what their cores had to give"
        ),
        *_number("replay", "dilation_needed", "1", "smallest dilation that hides the host's own work"),
        *_one(
            "launches",
            "whole",
            "held_parameter_bytes",
            "bytes",
            "parameters that the rank with most state holds",
        ),
        *_one(
            "launches", "whole", "held_gradient_bytes", "bytes", "gradients that it holds before its update"
        ),
        *_one("launches", "whole", "held_optimizer_bytes", "bytes", "optimizer state that it holds"),
        *_number(loss, "target_loss", "loss", "mean loss that launches train down to"),
        *_measured(
            loss, "time_to_loss{}_s", "s", "time to the target; empty where not every launch reached it"
        ),
        *_number(loss, "samples_to_loss", "samples", "samples to the target"),
        *_number(loss, "steps_to_loss", "steps", "steps to the target"),
        *_measured(
            loss, "speedup_to_loss{}", "1", "base case's time to the loss over this case's, within rounds"
        ),
        *_number(loss, "lowest_loss", "loss", "lowest mean loss of any launch"),
        *_number(
            timed,
            "staleness_mean",
            "updates",
            "async_server: updates that a gradient's parameters lacked, mean",
        ),
        *_one("timed steps", "whole", "staleness_max", "updates", "async_server: the most of them"),
        *_ends(instrumented, "data_time{}_s", "s"),
        *_ends(instrumented, "forward_time{}_s", "s"),
        *_ends(instrumented, "backward_time{}_s", "s"),
        *_ends(instrumented, "optimizer_time{}_s", "s"),
        *_ends(instrumented, "compute_time{}_s", "s"),
        *_ends(instrumented, "comm_time{}_s", "s"),
        *_ends(instrumented, "exposed_comm{}_s", "s"),
        *_ends(instrumented, "wait_time{}_s", "s"),
        *_ends(instrumented, "overlap_fraction{}", "1"),
        *_measured(
            instrumented,
            "queue_time{}_s",
            "s",
            "time in which transfers queued behind the rank's earlier ones",
        ),
        *_one("plan", "whole", "seed", "", "seed of initial parameters and data"),
        *_one("plan", "whole", "replicate", "", "number that tells equal cases apart in an A/A test"),
        *_one("plan", "truth", "evaluation", "", "launches time evaluation, too"),
        *_one("plan", "truth", "checkpoint", "", "launches time snapshots, too"),
        *_one(
            "plan", "text", "checkpoint_dir", "", "where snapshots are written; empty: in the run directory"
        ),
    ]


TABLE: tuple[Column, ...] = tuple(_table())
COLUMNS: tuple[str, ...] = tuple(column.name for column in TABLE)
"""Their names, in the order of the file."""
check_complete((*FACETS, *COLUMNS), {*COLUMNS}, "Case and ddpbench/analysis/table/columns.py")
DTYPES: dict[str, str] = {column.name: column.dtype for column in TABLE}


def meanings() -> list[tuple[str, str]]:
    """Return each column of its own, with its unit, and what it means; an interval's ends are told with it."""
    with_ends = {column.of for column in TABLE}
    return [
        (
            f"{column.name}, with its interval" if column.name in with_ends else column.name,
            f"{column.meaning} ({column.unit})"
            if column.unit in ("s", "bytes", "MiB", "samples/s")
            else column.meaning,
        )
        for column in TABLE
        if not column.of
    ]


def page() -> str:
    """`docs/columns.md`."""
    rows = [
        f"| `{column.name}` | {column.kind} | {column.unit} | {column.meaning} | {column.source} |"
        for column in TABLE
    ]
    return "\n".join(
        [
            "# Columns of cases.csv",
            "",
            "One row per case. Units are in the names; empty means not measured or not defined. Columns keep their",
            "names and their order; new ones are appended.",
            "",
            "| column | type | unit | meaning | from |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
