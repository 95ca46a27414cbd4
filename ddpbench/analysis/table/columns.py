"""The columns of `cases.csv`: name, type, unit, meaning and where each comes from. The one table of them.

The frame, the report, `docs/columns.md` and the printed table are made from it. Later work appends columns and never
renames or moves one. `make docs` writes the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from ddpbench.analysis.statistics.estimands import MEDIAN, WITHIN_ROUNDS
from ddpbench.spec import Case
from ddpbench.spec.grouping import check_complete

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun

Kind = Literal["text", "whole", "truth", "number"]
_SHOWN: dict[str, str] = {"whole": "integer", "truth": "boolean"}
"""What `docs/columns.md` calls a kind, where that is another word."""
Source = Literal[
    "plan",
    "launches",
    "timed steps",
    "instrumented steps",
    "proof",
    "evaluation",
    "checkpoints",
    "links",
    "replay",
    "training to a loss",
    "recovery",
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
    own = "time per step, mean over ranks and steps, median over launches"
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
        *_one("plan", "text", "algorithm", "", "collective algorithm that aggregates gradients"),
        *_one("plan", "text", "schedule", "", "when gradients are sent, relative to backward"),
        *_one("plan", "text", "options_json", "", "options of the strategy"),
        *_one("plan", "text", "backend", "", "collective library; empty if the strategy uses none"),
        *_one("plan", "text", "device", "", "cpu or cuda"),
        *_one("plan", "text", "launcher", "", "what starts the ranks"),
        *_one("plan", "whole", "world_size", "ranks", "number of ranks"),
        *_one("plan", "whole", "nodes", "nodes", "number of machines or of emulated nodes"),
        *_one("plan", "whole", "ranks_per_node", "ranks", "ranks on each node"),
        *_one("plan", "whole", "threads_per_rank", "threads", "compute threads of each rank"),
        *_one("plan", "whole", "loader_workers", "processes", "DataLoader worker processes of each rank"),
        *_one(
            "plan",
            "text",
            "bucket_cap_mb",
            "MiB",
            "bucket cap; `default`; empty for a strategy without buckets",
        ),
        *_one("plan", "whole", "local_batch", "samples", "batch per rank"),
        *_one("plan", "whole", "global_batch", "samples", "batch of the whole job"),
        *_one(
            "plan", "text", "scaling", "", "weak: the local batch is fixed; strong: the global batch is fixed"
        ),
        *_one(
            "plan",
            "text",
            "dtype",
            "",
            "type of parameters and gradients; several of a class's own are joined: bfloat16+float32",
        ),
        *_one("plan", "text", "fabric", "", "emulated links; empty for the machine's own links"),
        *_one(
            "plan",
            "text",
            "compute",
            "",
            "real, replayed (measured profile) or synthetic (profile from published times)",
        ),
        *_number(
            plan,
            "dilation",
            "1",
            "factor by which computation and links are slowed; reported times are divided by it",
        ),
        *_one(
            "launches",
            "text",
            "status",
            "",
            "ok, failed, hung, oom, diverged, skipped, or unfinished: too few rounds yet, none of them failed",
            value=lambda run: run.status,
        ),
        *_one(
            "launches", "text", "error", "", "what went wrong, and what to do", value=lambda run: run.error
        ),
        *_one(
            "launches",
            "whole",
            "launches",
            "launches",
            "successful launches; 0 if the case diverged",
            value=lambda run: len(run.good),
        ),
        *_one(
            "launches",
            "whole",
            "launches_failed",
            "launches",
            "failed launches",
            value=lambda run: sum(not launch.ok for launch in run.launches),
        ),
        *_one("timed steps", "whole", "steps", "steps", "timed steps, summed over launches"),
        *_one(
            "plan",
            "text",
            "baseline_case_id",
            "",
            "base case of the speed-up",
            value=lambda run: run.baseline_id,
        ),
        *_measured(timed, "step_time{}_s", "s", f"samples of one step over the job's rate, {MEDIAN}"),
        *_number(timed, "step_time_median_s", "s", "median of single steps, over all ranks and launches"),
        *_number(
            timed, "step_time_p95_s", "s", "95th percentile of single steps, over all ranks and launches"
        ),
        *_measured(
            timed, "samples_per_s{}", "samples/s", f"samples of all ranks per second of timed steps, {MEDIAN}"
        ),
        *_measured(timed, "speedup{}", "1", f"throughput over that of the base case, {WITHIN_ROUNDS}"),
        *_one(
            timed,
            "whole",
            "speedup_rounds",
            "rounds",
            "rounds with a launch of both, which the speed-up is over",
        ),
        *_measured(timed, "efficiency{}", "1", "speed-up over the number of ranks"),
        *_number(instrumented, "data_time_s", "s", f"waiting for a batch: {own}"),
        *_number(instrumented, "forward_time_s", "s", f"forward pass and loss: {own}"),
        *_number(instrumented, "backward_time_s", "s", f"backward pass: {own}"),
        *_number(instrumented, "optimizer_time_s", "s", f"optimizer update: {own}"),
        *_number(
            instrumented,
            "compute_time_s",
            "s",
            "forward and backward of independent ranks (one rank: of single) that compute alike; empty where none ran",
        ),
        *_number(
            instrumented,
            "comm_time_s",
            "s",
            "time per step in which data of a transfer can flow, median over launches",
        ),
        *_number(
            instrumented,
            "exposed_comm_s",
            "s",
            "communication while the rank computes nothing, median over launches",
        ),
        *_number(
            instrumented,
            "wait_time_s",
            "s",
            "waiting for ranks before data can flow, computing or not, so no less than the part of a step; median over "
            "launches",
        ),
        *_number(
            instrumented,
            "overlap_fraction",
            "1",
            "fraction of communication hidden behind computation, median over launches",
        ),
        *_one("launches", "whole", "gradient_bytes", "bytes", "gradients of one replica"),
        *_one("launches", "text", "actual_bucket_bytes", "bytes", "sizes of the buckets that DDP built"),
        *_one(
            "launches",
            "whole",
            "peak_memory_bytes",
            "bytes",
            "peak memory in timed steps, of the rank with the highest",
        ),
        *_number(
            "proof",
            "flops_per_sample",
            "operations",
            "floating-point operations per sample in forward and backward",
        ),
        *_number(
            timed, "mfu", "1", "model FLOPs utilisation; empty on a CPU and on GPUs whose peak is unknown"
        ),
        *_one(
            "launches",
            "truth",
            "params_equal",
            "",
            "replicas ended with equal parameters; empty if the strategy does not promise it",
        ),
        *_one(
            "timed steps",
            "truth",
            "oversubscribed",
            "",
            "ranks times threads per rank exceed the cores, and their processor time together is over 2 % of the time, "
            "or was not counted",
            value=lambda run: run.oversubscribed,
        ),
        *_one("timed steps", "truth", "ci_reached", "", "the interval is as narrow as requested"),
        *_one(
            "launches",
            "text",
            "noise_flag",
            "",
            "what disturbed the launches, and settings that ranks had otherwise than the case asks",
        ),
        *_one(
            "plan",
            "text",
            "precision",
            "",
            "full, or the autocast type of forward and loss",
        ),
        *_one(
            "plan",
            "text",
            "data",
            "",
            "loader or memory: where batches come from",
        ),
        *_measured(
            "evaluation",
            "evaluation_step_time{}_s",
            "s",
            f"one step of evaluation: forward and loss without gradients, {MEDIAN}",
        ),
        *_measured(
            "evaluation", "evaluation_samples_per_s{}", "samples/s", f"throughput of evaluation, {MEDIAN}"
        ),
        *_measured(
            "checkpoints", "snapshot_plain{}_s", "s", f"one checkpoint by rank 0 with torch.save, {MEDIAN}"
        ),
        *_measured(
            "checkpoints",
            "snapshot_dcp{}_s",
            "s",
            f"one checkpoint by all ranks with torch.distributed.checkpoint, {MEDIAN}",
        ),
        *_one(
            "checkpoints",
            "whole",
            "snapshot_bytes",
            "bytes",
            "bytes that all ranks write for one checkpoint; plain's if both methods ran",
        ),
        *_measured(
            "launches",
            "startup{}_s",
            "s",
            "from a launch's being asked for to the end of its last first step, median over launches, as its parts are",
        ),
        *_number("launches", "startup_process_s", "s", "of startup_s: until its process works for it"),
        *_number("launches", "startup_imports_s", "s", "of startup_s: importing torch and all else"),
        *_number("launches", "startup_model_s", "s", "of startup_s: making data and model"),
        *_number("launches", "startup_meeting_s", "s", "of startup_s: meeting the other ranks (rendezvous)"),
        *_number(
            "launches", "startup_first_step_s", "s", "of startup_s: making the replica, and the first step"
        ),
        *_number(
            "launches", "server_share_s", "s", "a launch's share of its fork server's start, not in startup_s"
        ),
        *_one("recovery", "whole", "failures", "", "planned failures that came, one a launch"),
        *_one("recovery", "whole", "recoveries", "", "of failures: those after which training went on"),
        *_measured(
            "recovery",
            "recovery{}_s",
            "s",
            "from the failure until the step that it came before is made again, median over launches, as its parts are",
        ),
        *_number("recovery", "recovery_detection_s", "s", "until torchrun's last agent has noticed"),
        *_number("recovery", "recovery_stopping_s", "s", "from there until all earlier ranks are gone"),
        *_number("recovery", "recovery_rendezvous_s", "s", "until the agents have agreed who is there"),
        *_number("recovery", "recovery_starting_s", "s", "until new processes have imported and built all"),
        *_number("recovery", "recovery_meeting_s", "s", "until the ranks have process groups"),
        *_number("recovery", "recovery_restoring_s", "s", "until the snapshot is loaded into the model"),
        *_number("recovery", "recovery_recomputing_s", "s", "until steps since the snapshot are made again"),
        *_number("recovery", "recomputed_steps", "steps", "made again after a failure, mean over launches"),
        *_measured(
            "recovery",
            "recovery_at_pace{}_s",
            "s",
            "from the failure until steps take at most 2 % longer than before it, on average from there on",
        ),
        *_number("recovery", "recoveries_at_pace", "", "of recoveries: those in which they did"),
        *_measured("recovery", "restored{}_s", "s", "from the failure until training continues"),
        *_measured("recovery", "recovery_snapshot{}_s", "s", "a snapshot, of those that delete an old one"),
        *_one("recovery", "whole", "recovery_snapshot_bytes", "bytes", "of a snapshot"),
        *_one("recovery", "whole", "samples_lost", "samples", "that no step was made with, of all launches"),
        *_one(
            "recovery",
            "whole",
            "samples_repeated",
            "samples",
            "that two steps were made with, of all launches",
        ),
        *_number(
            "recovery",
            "recovery_loss_difference",
            "1",
            "largest relative difference of a step's loss from the uninterrupted training's, in nine digits",
        ),
        *_one(
            "recovery",
            "whole",
            "recovery_loss_steps",
            "steps",
            "whose losses were compared, at least",
        ),
        *_one(
            "recovery",
            "text",
            "snapshots_unreadable",
            "",
            "snapshots that could not be used, and why: the one before was",
        ),
        *_measured(
            "recovery", "before_samples_per_s{}", "samples/s", "throughput of steps before the failure"
        ),
        *_measured(
            "recovery", "away_samples_per_s{}", "samples/s", "throughput of steps while a node is away"
        ),
        *_measured(
            "recovery", "after_samples_per_s{}", "samples/s", "throughput of steps after the last restart"
        ),
        *_measured("recovery", "joining{}_s", "s", "that training pauses for a node that comes back"),
        *_number(
            "recovery",
            "recovery_building_s",
            "s",
            "of recovery_restoring_s: making the model and the replica",
        ),
        *_one("launches", "whole", "parameters", "parameters", "trained parameters of the model"),
        *_one(
            "plan",
            "whole",
            "shrink",
            "1",
            "divisor of gradient bytes, bucket caps and link rates; reported sizes are multiplied by it",
        ),
        *_one("plan", "text", "workload_options_json", "", "options of the workload"),
        *_number(
            "links",
            "node_sent_bytes",
            "bytes",
            "bytes per step over the link of the node that sends most (where ranks of a node have links of their own, "
            "of the rank that does, with what stays within the node)",
        ),
        *_number(
            "links",
            "node_received_bytes",
            "bytes",
            "bytes per step to the node that receives most (where ranks of a node have links of their own, to the rank "
            "that does, with what stays within the node)",
        ),
        *_number(
            "links",
            "expected_node_bytes",
            "bytes",
            "bytes per step over the busiest of these links by the algorithm's formula",
        ),
        *_number("links", "traffic_ratio", "1", "node_sent_bytes over expected_node_bytes"),
        *_number(
            "replay",
            "lateness_p95_s",
            "s",
            "p95 over steps of the slowest rank's delay behind the profile",
        ),
        *_number("replay", "host_share", "1", "CPU time of all ranks over the CPU time of their cores"),
        *_number("replay", "dilation_needed", "1", "smallest dilation that hides host overhead"),
        *_one(
            "launches",
            "whole",
            "held_parameter_bytes",
            "bytes",
            "parameters held by the rank with most state",
        ),
        *_one(
            "launches",
            "whole",
            "held_gradient_bytes",
            "bytes",
            "gradients held by the rank with most state, before its update",
        ),
        *_one(
            "launches",
            "whole",
            "held_optimizer_bytes",
            "bytes",
            "optimizer state held by the rank with most state",
        ),
        *_number(loss, "target_loss", "loss", "mean loss that launches train to"),
        *_measured(
            loss, "time_to_loss{}_s", "s", f"time to the target loss, {MEDIAN}; empty if any launch missed it"
        ),
        *_number(loss, "samples_to_loss", "samples", "samples to the target loss"),
        *_number(loss, "steps_to_loss", "steps", "steps to the target loss"),
        *_measured(
            loss,
            "speedup_to_loss{}",
            "1",
            "the base case's time to the loss over this case's, paired within rounds",
        ),
        *_number(loss, "lowest_loss", "loss", "lowest mean loss of any launch"),
        *_number(
            timed,
            "staleness_mean",
            "updates",
            "async_server: mean staleness of the gradients applied",
        ),
        *_one(
            "timed steps",
            "whole",
            "staleness_max",
            "updates",
            "async_server: largest staleness of a gradient applied",
        ),
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
            "time per step in which transfers queue behind earlier ones of the same rank, median over launches",
        ),
        *_one("plan", "whole", "seed", "", "seed of initial parameters and data"),
        *_one("plan", "whole", "replicate", "", "number that distinguishes equal cases in an A/A test"),
        *_one("plan", "truth", "evaluation", "", "launches also time evaluation"),
        *_one("plan", "text", "recovery", "", "what fails in a training with snapshots; off: there is none"),
        *_one("plan", "whole", "snapshot_every", "steps", "from one snapshot to the next, for recovery"),
        *_one("plan", "whole", "agents", "", "of torchrun, each of which stands for a node, for recovery"),
        *_one("plan", "number", "collective_timeout", "s", "of a collective, for recovery"),
        *_one("plan", "truth", "checkpoint", "", "launches also time checkpoints"),
        *_one(
            "plan",
            "text",
            "checkpoint_dir",
            "",
            "folder for the timed checkpoints; empty for the run directory",
        ),
        *_one(
            "plan",
            "text",
            "same_buckets_mb",
            "MiB",
            "other bucket caps asked for that make the same buckets: the row stands for them",
            value=lambda run: (
                "; ".join(
                    cap if isinstance(cap, str) else f"{cap:g}"
                    for cap in run.planned.stands_for
                    if cap is not None
                )
                or None
            ),
        ),
        *_one(
            "plan",
            "text",
            "env_json",
            "",
            "environment variables set for the ranks; an empty text unsets one",
        ),
        *_number(
            "recovery", "restored_mean_s", "s", "restored_s as the mean over launches: R of how often to save"
        ),
        *_number(
            "recovery",
            "recovery_snapshot_mean_s",
            "s",
            "a snapshot, as the mean over launches: C of how often to save",
        ),
    ]


TABLE: tuple[Column, ...] = tuple(_table())
COLUMNS: tuple[str, ...] = tuple(column.name for column in TABLE)
"""Their names, in the order of the file."""
_COMPARED = tuple(one.name for one in fields(Case) if one.compare)
check_complete((*_COMPARED, *COLUMNS), {*COLUMNS}, "Case and ddpbench/analysis/table/columns.py")
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
        f"| `{column.name}` | {_SHOWN.get(column.kind, column.kind)} | {column.unit} | {column.meaning} "
        f"| {column.source} |"
        for column in TABLE
    ]
    return "\n".join(
        [
            "# Columns of cases.csv",
            "",
            "*Generated by `make docs` from `ddpbench/analysis/table/columns.py`; do not edit.*",
            "",
            "One row per case. Units are in the names; an empty cell means not measured or not defined. Columns keep",
            "their names and order; new ones are appended.",
            "",
            "A text that a spreadsheet would take for a formula has an apostrophe in front: one that begins with `=`,",
            "`+`, `-` or `@` (also after white space), a tab, a line break or an apostrophe. Control characters and",
            "marks of writing direction are replaced by U+FFFD. `ddpbench.analysis.read_csv` removes the apostrophe;",
            "`ddpbench.load` and `cases.parquet` have the texts as they were recorded. Numbers are never changed.",
            "",
            "| column | type | unit | meaning | from |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
