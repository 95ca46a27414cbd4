"""The columns of `cases.csv`: name, type, unit, meaning, and how each is computed from a case's results.

The frame, the report, `docs/columns.md` and the printed table are made from this module. Later changes append columns
and never rename or move one. `make docs` writes `docs/columns.md`.
"""

from __future__ import annotations

from dataclasses import fields

from ddpbench.analysis.read.pace import host_share, lateness_p95_s
from ddpbench.analysis.read.staleness import mean_of
from ddpbench.analysis.statistics.estimands import MEDIAN, WITHIN_ROUNDS
from ddpbench.analysis.table.column import CsvColumn, From, PartReader, setting
from ddpbench.spec import Case
from ddpbench.spec.grouping import AXES, check_complete

_SHOWN: dict[str, str] = {"whole": "integer", "truth": "boolean"}
"""Names of column kinds in `docs/columns.md` that differ from the kinds."""
_PLAN, _LAUNCHES, _PROOF = From("plan"), From("launches"), From("proof")
_TIMED, _STEPS, _EVALUATION = From("timed steps"), From("instrumented steps"), From("evaluation")
_CHECKPOINTS, _LINKS, _REPLAY = From("checkpoints"), From("links"), From("replay")
_LOSS, _FAILURES = From("training to a loss"), From("recovery")
_OWN = "time per step, mean over ranks and steps, median over launches"
_BUCKETS = PartReader(lambda case: case.run.bucket_bytes)
_FAILED = PartReader(lambda case: case.failed)
_HELD = PartReader(lambda case: case.held_bytes)
_LOSSES_APART = PartReader(lambda case: case.loss_difference)
_PACED = PartReader(lambda case: case.paced)
_RECOVERY = PartReader(lambda case: case.recovery)
_SINGLE_STEPS = PartReader(lambda case: case.single_steps_s)
_STALENESS = PartReader(lambda case: case.staleness)
_START = PartReader(lambda case: case.start)
_TO_LOSS = PartReader(lambda case: case.to_loss)
_TRAFFIC = PartReader(lambda case: case.traffic)
_TRANSFERS = PartReader(lambda case: case.transfers)


def bucket_text(cap: float | str | None) -> str:
    """Return a bucket cap as the table shows it: `default`, or a number without needless decimals. Empty for None."""
    if cap is None:
        return ""
    return cap if isinstance(cap, str) else f"{cap:.15g}"


_DATA_TIME = _STEPS.measured(
    "data_time{}_s", "s", f"waiting for a batch: {_OWN}", lambda case: case.part("data")
)
_FORWARD_TIME = _STEPS.measured(
    "forward_time{}_s", "s", f"forward pass and loss: {_OWN}", lambda case: case.part("forward")
)
_BACKWARD_TIME = _STEPS.measured(
    "backward_time{}_s", "s", f"backward pass: {_OWN}", lambda case: case.part("backward")
)
_OPTIMIZER_TIME = _STEPS.measured(
    "optimizer_time{}_s", "s", f"optimizer update: {_OWN}", lambda case: case.part("optimizer")
)
_COMPUTE_TIME = _STEPS.measured(
    "compute_time{}_s",
    "s",
    "forward and backward of independent ranks (one rank: of single) that compute alike; "
    "empty where none ran",
    lambda case: case.compute_time,
)
_COMM_TIME = _STEPS.measured(
    "comm_time{}_s",
    "s",
    f"time per step in which data of a transfer can flow, {MEDIAN}",
    lambda case: case.communication("comm"),
)
_EXPOSED_COMM = _STEPS.measured(
    "exposed_comm{}_s",
    "s",
    f"communication while the rank computes nothing, {MEDIAN}",
    lambda case: case.communication("exposed"),
)
_WAIT_TIME = _STEPS.measured(
    "wait_time{}_s",
    "s",
    f"waiting for ranks before data can flow, computing or not, so no less than the part of a step; {MEDIAN}",
    lambda case: case.communication("wait"),
)
_OVERLAP_FRACTION = _STEPS.measured(
    "overlap_fraction{}",
    "1",
    f"fraction of communication hidden behind computation, {MEDIAN}",
    _TRANSFERS(lambda parts: parts.overlap_interval()),
)
_TABLE: tuple[CsvColumn, ...] = (
    _PLAN.text(
        "case_id",
        "stable name: strategy, ranks, bucket cap and a digest of the contents",
        lambda case: case.run.case_id,
    ),
    setting("experiment", "", "name of the experiment"),
    setting("workload", "", "what is trained"),
    setting("strategy", "", "how gradients are aggregated"),
    setting("algorithm", "", "collective algorithm that aggregates gradients"),
    setting("schedule", "", "when gradients are sent, relative to backward"),
    setting("options_json", "", "options of the strategy"),
    setting("backend"),
    setting("device"),
    setting("launcher", "", "what starts the ranks"),
    setting("world_size"),
    setting("nodes", "nodes", "number of machines or of emulated nodes"),
    setting("ranks_per_node", "ranks", "ranks on each node"),
    setting("threads_per_rank"),
    setting("loader_workers", "processes", "DataLoader worker processes of each rank"),
    _PLAN.text(
        "bucket_cap_mb",
        "bucket cap; `default`; empty for a strategy without buckets",
        lambda case: bucket_text(case.run.case.bucket_cap_mb),
        "MiB",
    ),
    setting("local_batch", "samples", "batch per rank"),
    setting("global_batch", "samples", "batch of the whole job"),
    setting("scaling"),
    _PLAN.text(
        "dtype",
        "type of parameters and gradients; several of a class's own are joined: bfloat16+float32",
        lambda case: case.types,
    ),
    setting("fabric", "", "emulated links; empty for the machine's own links"),
    setting("compute"),
    setting("dilation"),
    _LAUNCHES.text(
        "status",
        "ok, failed, hung, oom, diverged, skipped, or unfinished: too few rounds yet, none of them failed",
        lambda case: case.run.status,
    ),
    _LAUNCHES.text("error", "what went wrong, and what to do", lambda case: case.run.error),
    _LAUNCHES.whole(
        "launches", "launches", "successful launches; 0 if the case diverged", lambda case: len(case.run.good)
    ),
    _LAUNCHES.whole(
        "launches_failed",
        "launches",
        "failed launches",
        lambda case: sum(not launch.ok for launch in case.run.launches),
    ),
    _TIMED.whole(
        "steps",
        "steps",
        "timed steps, summed over launches",
        lambda case: sum(timing.steps for timing in case.timings) if case.timings else None,
    ),
    _PLAN.text("baseline_case_id", "base case of the speed-up", lambda case: case.run.baseline_id),
    *_TIMED.measured(
        "step_time{}_s",
        "s",
        f"samples of one step over the job's rate, {MEDIAN}",
        lambda case: case.step_time,
    ),
    _TIMED.number(
        "step_time_median_s",
        "s",
        "median of single steps, over all ranks and launches",
        _SINGLE_STEPS(lambda found: found[0]),
    ),
    _TIMED.number(
        "step_time_p95_s",
        "s",
        "95th percentile of single steps, over all ranks and launches",
        _SINGLE_STEPS(lambda found: found[1]),
    ),
    *_TIMED.measured(
        "samples_per_s{}",
        "samples/s",
        f"samples of all ranks per second of timed steps, {MEDIAN}",
        lambda case: case.samples_per_s,
    ),
    *_TIMED.measured(
        "speedup{}", "1", f"throughput over that of the base case, {WITHIN_ROUNDS}", lambda case: case.speedup
    ),
    _TIMED.whole(
        "speedup_rounds",
        "rounds",
        "rounds with a launch of both, which the speed-up is over",
        lambda case: case.speedup_rounds,
    ),
    *_TIMED.measured("efficiency{}", "1", "speed-up over the number of ranks", lambda case: case.efficiency),
    _DATA_TIME.middle,
    _FORWARD_TIME.middle,
    _BACKWARD_TIME.middle,
    _OPTIMIZER_TIME.middle,
    _COMPUTE_TIME.middle,
    _COMM_TIME.middle,
    _EXPOSED_COMM.middle,
    _WAIT_TIME.middle,
    _OVERLAP_FRACTION.middle,
    _LAUNCHES.whole("gradient_bytes", "bytes", "gradients of one replica", lambda case: case.gradient_bytes),
    _LAUNCHES.text(
        "actual_bucket_bytes",
        "sizes of the buckets that DDP built",
        _BUCKETS(lambda sizes: ";".join(map(str, sizes))),
        "bytes",
    ),
    _LAUNCHES.whole(
        "peak_memory_bytes",
        "bytes",
        "peak memory in timed steps, of the rank with the highest",
        lambda case: case.peak_memory_bytes,
    ),
    _PROOF.number(
        "flops_per_sample",
        "operations",
        "floating-point operations per sample in forward and backward",
        lambda case: case.flops_per_sample,
    ),
    _TIMED.number(
        "mfu",
        "1",
        "model FLOPs utilisation; empty on a CPU and on GPUs whose peak is unknown",
        lambda case: case.mfu,
    ),
    _LAUNCHES.truth(
        "params_equal",
        "replicas ended with equal parameters; empty if the strategy does not promise it",
        lambda case: case.params_equal,
    ),
    _TIMED.truth(
        "oversubscribed",
        "ranks times threads per rank exceed the cores, and their processor time together is "
        "over 2 % of the time, or was not counted",
        lambda case: case.run.oversubscribed,
    ),
    _TIMED.truth("ci_reached", "the interval is as narrow as requested", lambda case: case.ci_reached),
    _LAUNCHES.text(
        "noise_flag",
        "what disturbed the launches, and settings that ranks had otherwise than the case asks",
        lambda case: case.noise,
    ),
    setting("precision"),
    setting("data", "", "loader or memory: where batches come from"),
    *_EVALUATION.measured(
        "evaluation_step_time{}_s",
        "s",
        f"one step of evaluation: forward and loss without gradients, {MEDIAN}",
        lambda case: case.evaluation_step_time,
    ),
    *_EVALUATION.measured(
        "evaluation_samples_per_s{}",
        "samples/s",
        f"throughput of evaluation, {MEDIAN}",
        lambda case: case.evaluation_samples_per_s,
    ),
    *_CHECKPOINTS.measured(
        "snapshot_plain{}_s",
        "s",
        f"one checkpoint by rank 0 with torch.save, {MEDIAN}",
        PartReader(lambda case: case.checkpoints.get("plain"))(lambda found: found.cost),
    ),
    *_CHECKPOINTS.measured(
        "snapshot_dcp{}_s",
        "s",
        f"one checkpoint by all ranks with torch.distributed.checkpoint, {MEDIAN}",
        PartReader(lambda case: case.checkpoints.get("dcp"))(lambda found: found.cost),
    ),
    _CHECKPOINTS.whole(
        "snapshot_bytes",
        "bytes",
        "bytes that all ranks write for one checkpoint; plain's if both methods ran",
        lambda case: next((found.bytes for found in case.checkpoints.values()), None),
    ),
    *_LAUNCHES.measured(
        "startup{}_s",
        "s",
        "from a launch's being asked for to the end of its last first step, median over "
        "launches, as its parts are",
        _START(lambda found: found.total),
    ),
    _LAUNCHES.number(
        "startup_process_s",
        "s",
        "of startup_s: until its process works for it",
        _START(lambda found: found.parts.process_s),
    ),
    _LAUNCHES.number(
        "startup_imports_s",
        "s",
        "of startup_s: importing torch and all else",
        _START(lambda found: found.parts.imports_s),
    ),
    _LAUNCHES.number(
        "startup_model_s",
        "s",
        "of startup_s: making data and model",
        _START(lambda found: found.parts.model_s),
    ),
    _LAUNCHES.number(
        "startup_meeting_s",
        "s",
        "of startup_s: meeting the other ranks (rendezvous)",
        _START(lambda found: found.parts.meeting_s),
    ),
    _LAUNCHES.number(
        "startup_first_step_s",
        "s",
        "of startup_s: making the replica, and the first step",
        _START(lambda found: found.parts.first_step_s),
    ),
    _LAUNCHES.number(
        "server_share_s",
        "s",
        "a launch's share of its fork server's start, not in startup_s",
        lambda case: case.server_share_s,
    ),
    _FAILURES.whole(
        "failures", "", "planned failures that came, one a launch", _FAILED(lambda cost: cost.failures)
    ),
    _FAILURES.whole(
        "recoveries",
        "",
        "of failures: those after which training went on",
        _FAILED(lambda cost: cost.recoveries),
    ),
    *_FAILURES.measured(
        "recovery{}_s",
        "s",
        "from the failure until the step that it came before is made again, median over "
        "launches, as its parts are",
        _RECOVERY(lambda cost: cost.total),
    ),
    _FAILURES.number(
        "recovery_detection_s",
        "s",
        "until torchrun's last agent has noticed",
        _RECOVERY(lambda cost: cost.parts.get("detection_s")),
    ),
    _FAILURES.number(
        "recovery_stopping_s",
        "s",
        "from there until all earlier ranks are gone",
        _RECOVERY(lambda cost: cost.parts.get("stopping_s")),
    ),
    _FAILURES.number(
        "recovery_rendezvous_s",
        "s",
        "until the agents have agreed who is there",
        _RECOVERY(lambda cost: cost.parts.get("rendezvous_s")),
    ),
    _FAILURES.number(
        "recovery_starting_s",
        "s",
        "until new processes have imported and built all",
        _RECOVERY(lambda cost: cost.parts.get("starting_s")),
    ),
    _FAILURES.number(
        "recovery_meeting_s",
        "s",
        "until the ranks have process groups",
        _RECOVERY(lambda cost: cost.parts.get("meeting_s")),
    ),
    _FAILURES.number(
        "recovery_restoring_s",
        "s",
        "until the snapshot is loaded into the model",
        _RECOVERY(lambda cost: cost.parts.get("restoring_s")),
    ),
    _FAILURES.number(
        "recovery_recomputing_s",
        "s",
        "until steps since the snapshot are made again",
        _RECOVERY(lambda cost: cost.parts.get("recomputing_s")),
    ),
    _FAILURES.number(
        "recomputed_steps",
        "steps",
        "made again after a failure, mean over launches",
        _FAILED(lambda cost: cost.recomputed_steps),
    ),
    *_FAILURES.measured(
        "recovery_at_pace{}_s",
        "s",
        "from the failure until steps take at most 2 % longer than before it, on average from there on",
        _RECOVERY(lambda cost: cost.regained),
    ),
    _FAILURES.number(
        "recoveries_at_pace",
        "",
        "of recoveries: those in which they did",
        _FAILED(lambda cost: cost.regained_launches),
    ),
    *_FAILURES.measured(
        "restored{}_s",
        "s",
        "from the failure until training continues",
        _RECOVERY(lambda cost: cost.restored),
    ),
    *_FAILURES.measured(
        "recovery_snapshot{}_s",
        "s",
        "a snapshot, of those that delete an old one",
        _RECOVERY(lambda cost: cost.snapshot),
    ),
    _FAILURES.whole(
        "recovery_snapshot_bytes", "bytes", "of a snapshot", _RECOVERY(lambda cost: cost.snapshot_bytes)
    ),
    _FAILURES.whole(
        "samples_lost",
        "samples",
        "that no step was made with, of all launches",
        _RECOVERY(lambda cost: cost.lost),
    ),
    _FAILURES.whole(
        "samples_repeated",
        "samples",
        "that two steps were made with, of all launches",
        _RECOVERY(lambda cost: cost.repeated),
    ),
    _FAILURES.number(
        "recovery_loss_difference",
        "1",
        "largest relative difference of a step's loss from the uninterrupted training's, in nine digits",
        _LOSSES_APART(lambda found: found[0]),
    ),
    _FAILURES.whole(
        "recovery_loss_steps",
        "steps",
        "whose losses were compared, at least",
        _LOSSES_APART(lambda found: found[1]),
    ),
    _FAILURES.text(
        "snapshots_unreadable",
        "snapshots that could not be used, and why: the one before was",
        _RECOVERY(lambda cost: "; ".join(cost.unreadable)),
    ),
    *_FAILURES.measured(
        "before_samples_per_s{}",
        "samples/s",
        "throughput of steps before the failure",
        _RECOVERY(lambda cost: cost.rates.before),
    ),
    *_FAILURES.measured(
        "away_samples_per_s{}",
        "samples/s",
        "throughput of steps while a node is away",
        _RECOVERY(lambda cost: cost.rates.away),
    ),
    *_FAILURES.measured(
        "after_samples_per_s{}",
        "samples/s",
        "throughput of steps after the last restart",
        _RECOVERY(lambda cost: cost.rates.after),
    ),
    *_FAILURES.measured(
        "joining{}_s",
        "s",
        "that training pauses for a node that comes back",
        _RECOVERY(lambda cost: cost.joined),
    ),
    _FAILURES.number(
        "recovery_building_s",
        "s",
        "of recovery_restoring_s: making the model and the replica",
        _RECOVERY(lambda cost: cost.built_s),
    ),
    _LAUNCHES.whole(
        "parameters", "parameters", "trained parameters of the model", lambda case: case.parameters
    ),
    setting("shrink"),
    setting("workload_options_json", "", "options of the workload"),
    _LINKS.number(
        "node_sent_bytes",
        "bytes",
        "bytes per step over the link of the node that sends most (where ranks of a node have "
        "separate links, of the rank that does, with what stays within the node)",
        _TRAFFIC(lambda found: found.sent),
    ),
    _LINKS.number(
        "node_received_bytes",
        "bytes",
        "bytes per step to the node that receives most (where ranks of a node have "
        "separate links, to the rank that does, with what stays within the node)",
        _TRAFFIC(lambda found: found.received),
    ),
    _LINKS.number(
        "expected_node_bytes",
        "bytes",
        "bytes per step over the busiest of these links by the algorithm's formula",
        lambda case: case.expected_node_bytes,
    ),
    _LINKS.number(
        "traffic_ratio", "1", "node_sent_bytes over expected_node_bytes", lambda case: case.traffic_ratio
    ),
    _REPLAY.number(
        "lateness_p95_s",
        "s",
        "p95 over steps of the slowest rank's delay behind the profile",
        _PACED(lateness_p95_s),
    ),
    _REPLAY.number(
        "host_share", "1", "CPU time of all ranks over the CPU time of their cores", _PACED(host_share)
    ),
    _REPLAY.number(
        "dilation_needed",
        "1",
        "smallest dilation that hides host overhead",
        lambda case: case.dilation_needed,
    ),
    _LAUNCHES.whole(
        "held_parameter_bytes",
        "bytes",
        "parameters held by the rank with most state",
        _HELD(lambda held: held[0]),
    ),
    _LAUNCHES.whole(
        "held_gradient_bytes",
        "bytes",
        "gradients held by the rank with most state, before its update",
        _HELD(lambda held: held[1]),
    ),
    _LAUNCHES.whole(
        "held_optimizer_bytes",
        "bytes",
        "optimizer state held by the rank with most state",
        _HELD(lambda held: held[2]),
    ),
    _LOSS.number(
        "target_loss", "loss", "mean loss that launches train to", _TO_LOSS(lambda cost: cost.target)
    ),
    *_LOSS.measured(
        "time_to_loss{}_s",
        "s",
        f"time to the target loss, {MEDIAN}; empty if any launch missed it",
        _TO_LOSS(lambda cost: cost.time_s),
    ),
    _LOSS.number(
        "samples_to_loss", "samples", "samples to the target loss", _TO_LOSS(lambda cost: cost.samples)
    ),
    _LOSS.number("steps_to_loss", "steps", "steps to the target loss", _TO_LOSS(lambda cost: cost.steps)),
    *_LOSS.measured(
        "speedup_to_loss{}",
        "1",
        "the base case's time to the loss over this case's, paired within rounds",
        lambda case: case.speedup_to_loss,
    ),
    _LOSS.number("lowest_loss", "loss", "lowest mean loss of any launch", _TO_LOSS(lambda cost: cost.lowest)),
    _TIMED.number(
        "staleness_mean",
        "updates",
        "async_server: mean staleness of the gradients applied",
        _STALENESS(mean_of),
    ),
    _TIMED.whole(
        "staleness_max",
        "updates",
        "async_server: largest staleness of a gradient applied",
        _STALENESS(lambda counts: len(counts) - 1),
    ),
    *_DATA_TIME.ends,
    *_FORWARD_TIME.ends,
    *_BACKWARD_TIME.ends,
    *_OPTIMIZER_TIME.ends,
    *_COMPUTE_TIME.ends,
    *_COMM_TIME.ends,
    *_EXPOSED_COMM.ends,
    *_WAIT_TIME.ends,
    *_OVERLAP_FRACTION.ends,
    *_STEPS.measured(
        "queue_time{}_s",
        "s",
        "time per step in which transfers queue behind earlier ones of the same rank, median over launches",
        lambda case: case.communication("queue"),
    ),
    setting("seed"),
    setting("replicate"),
    setting("evaluation"),
    setting("recovery", "", "what fails in a training with snapshots; off: there is none"),
    setting("snapshot_every"),
    setting("agents"),
    setting("collective_timeout"),
    setting("checkpoint"),
    setting("checkpoint_dir"),
    _PLAN.text(
        "same_buckets_mb",
        "other bucket caps asked for that make the same buckets: the row stands for them",
        lambda case: "; ".join(case.same_caps),
        "MiB",
    ),
    setting("env_json", "", "environment variables set for the ranks; an empty text unsets one"),
    _FAILURES.number(
        "restored_mean_s",
        "s",
        "restored_s as the mean over launches: R of how often to save",
        _RECOVERY(lambda cost: cost.restored_mean_s),
    ),
    _FAILURES.number(
        "recovery_snapshot_mean_s",
        "s",
        "a snapshot, as the mean over launches: C of how often to save",
        _RECOVERY(lambda cost: cost.snapshot_mean_s),
    ),
)
_NAMED = {column.name for column in _TABLE}
TABLE = (*_TABLE, *(setting(name) for name in AXES if name not in _NAMED))
"""All columns; an axis that is not listed above comes last."""
COLUMNS: tuple[str, ...] = tuple(column.name for column in TABLE)
"""Names of the columns, in the order of the file."""
_COMPARED = tuple(one.name for one in fields(Case) if one.compare)
check_complete((*_COMPARED, *COLUMNS), {*COLUMNS}, "Case and ddpbench/analysis/table/columns.py")
DTYPES: dict[str, str] = {column.name: column.dtype for column in TABLE}


def meanings() -> list[tuple[str, str]]:
    """Return the name of each column with its meaning and unit. Columns of an interval's ends are left out."""
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
    """Return the text of the page `docs/columns.md`."""
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
