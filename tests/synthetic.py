"""Complete synthetic run directories, in the sweep's own formats: any number of cases, rounds and ranks.

    python -m tests.synthetic OUT_DIR [--cases N] [--rounds R]

`write_run` writes a matrix of cases around a simple cost model with noise, quickly. `write_plan` and
`write_launch` write single pieces with exact numbers, for tests that compute the answer by hand.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpbench.records import SCHEMA_VERSION, RunDir
from ddpbench.records.plan import claims_json
from ddpbench.records.schema import as_json
from ddpbench.spec import Budget, Case, PlannedCase
from ddpbench.spec.claims import PlannedClaim

MS = 1_000_000
ORIGIN_NS = 10**12
RUN_ID = "5f0c3a9e1b27"
WORKLOADS = ("gpt:nano", "mlp", "gpt:micro", "resnet", "train.py:Mine")


TWO_BUCKETS = (1_187_840, 2_313_216)


def case_of(strategy: str = "ddp", world_size: int = 2, **changes: Any) -> Case:
    """Return a case as `expand` would make it: fields that follow from others are filled in."""
    with_buckets = strategy == "ddp"
    values: dict[str, Any] = {
        "experiment": "synthetic",
        "workload": "gpt:nano",
        "strategy": strategy,
        "world_size": world_size,
        "ranks_per_node": world_size,
        "backend": "gloo" if strategy in ("ddp", "master") else "",
        "bucket_cap_mb": "default" if with_buckets else None,
        "algorithm": {"ddp": "all_reduce", "master": "master", "data_parallel": "master"}.get(strategy, ""),
        "schedule": {"ddp": "overlapped", "master": "after_backward", "data_parallel": "after_backward"}.get(
            strategy, ""
        ),
        "local_batch": 8,
    }
    values |= changes
    values.setdefault("global_batch", values["local_batch"] * world_size)
    return Case(**values)


@dataclass(frozen=True, kw_only=True)
class RankLaunch:
    """A launch's records of one rank. Times in ns; blocks and steps begin at `start_ns`.

    `blocks` are the timed blocks' step times. `steps` are instrumented steps as
    (start, end, spans, transfers), a transfer being (bucket, op, bytes, start, end), and a message's number if only
    two ranks exchange it.
    """

    blocks: Sequence[Sequence[int]] = ((10 * MS,) * 10,)
    steps: Sequence[tuple[int, int, Sequence[tuple[str, int, int]], Sequence[tuple[Any, ...]]]] = ()
    group: int | None = None
    """Number of ranks in its collectives, if not all take part."""
    start_ns: int = ORIGIN_NS
    samples_per_step: int = 8
    steady: bool = True
    """True if the warm-up ended before its time was up; this alone flags nothing."""
    ready: bool = True
    """True if one-time work was done before the timed steps."""
    checksum: str = ""
    peak_memory_bytes: int | None = 200_000_000
    gradient_bytes: int = 3_500_000
    buckets: Sequence[int] | None = None
    evaluation: Sequence[Sequence[int]] = ()
    """Blocks of evaluation steps."""
    checkpoints: Sequence[tuple[str, int, int, int, int | None]] = ()
    """(method, bytes, start, end, write) of each checkpoint, `start` from the blocks' end."""
    curve: Sequence[tuple[int, Sequence[int], Sequence[float]]] = ()
    """Groups of a training to a loss: (start from the blocks' end, step times, losses)."""
    target: float = 2.0
    """The loss target."""
    host: str = "node-1"
    interfaces: tuple[str, str] | None = None
    """The interface that gloo uses, and a faster one."""
    status: str = "ok"
    error: str = ""
    cores: Sequence[int] | None = None
    """Its own number; None: the rank's."""
    minor_faults: int | None = None
    cpu_ns: int | None = None
    """Value in each timed block."""
    traffic: tuple[int, int, int] | None = None
    """(node, bytes sent, bytes received) per step, reported for every timed block."""
    pace: tuple[int, int, int, int] | None = None
    """(lateness, processor time, optimizer time, profiled optimizer time) per step, reported for every timed block."""
    staleness: Sequence[int] | None = None
    """A server's counts of the gradients applied in a timed block whose age was 0, 1, 2 ... updates."""
    held: tuple[int, int, int] | None = None
    """Bytes of parameters, gradients and optimizer state, reported after the instrumented steps."""
    more: Sequence[Any] = ()
    """Further records, unchanged, before its outcome."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The controlling side's part of a launch."""

    status: str = "ok"
    error: str = ""
    phase: str = ""
    last_log_line: str = ""
    wall_s: float = 3.0
    measured_s: float = 2.2
    server_s: float = 0.4
    noise: Mapping[str, Any] = field(default_factory=dict)


def processes_of(case: Case) -> int:
    """Return how many ranks a case has."""
    return 1 if case.strategy == "data_parallel" else case.world_size


def rank_lines(
    rank: int, case: Case, what: RankLaunch, number: int = 0, ranks: int | None = None
) -> list[str]:
    """Return a measuring rank's records, one per line; the launch is of round `number`."""
    records: list[dict[str, Any]] = [
        {
            "kind": "start",
            "schema_version": SCHEMA_VERSION,
            "rank": rank,
            "world_size": case.world_size,
            "attempt": 0,
            "pid": 4000 + rank,
            "host": what.host,
            "started_ns": what.start_ns - 10**9,
            "cores": [rank] if what.cores is None else list(what.cores),
            "loader_cores": [],
            "threads": case.threads_per_rank,
            "device": case.device,
            "torch_version": "2.13.0+cpu",
            "parameters": what.gradient_bytes // 4,
            "gradient_bytes": what.gradient_bytes,
            "case_id": case.case_id,
            "round": number,
            "ranks": processes_of(case) if ranks is None else ranks,
            "run_id": RUN_ID,
            **dict(zip(("gloo_interface", "faster_interface"), what.interfaces or (), strict=False)),
        },
        {
            "kind": "warmup",
            "steps": 12,
            "start_ns": what.start_ns - 300 * MS,
            "end_ns": what.start_ns - 100 * MS,
            "step_ns": 1_000_000,
            "steady": what.steady and what.ready,
            "reason": _warmup_reason(what),
        },
    ]
    at = what.start_ns
    for index, step_ns in enumerate(what.blocks):
        block = _block("timed", index, step_ns, at, what.samples_per_step)
        counted = {"minor_faults": what.minor_faults, "cpu_ns": what.cpu_ns}
        records.append(block | {name: count for name, count in counted.items() if count is not None})
        records += _beside(index, len(step_ns), what)
        at += sum(step_ns) + 5 * MS
    if what.steps:
        first, last = what.steps[0][0], what.steps[-1][1]
        times = [step[1] - step[0] for step in what.steps]
        records.append(_block("instrumented", 0, times, first, what.samples_per_step) | {"end_ns": last})
        if what.buckets is not None:
            records.append({"kind": "buckets", "bytes": list(what.buckets)})
        if what.held is not None:
            names = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
            records.append({"kind": "held", **dict(zip(names, what.held, strict=True))})
        for number, (start, end, spans, transfers) in enumerate(what.steps, start=1):
            records.append(
                {"kind": "step", "step": number, "start_ns": start, "end_ns": end, "spans": list(spans)}
            )
            records += [
                {
                    "kind": "comm",
                    "step": number,
                    "bucket": bucket,
                    "op": op,
                    "ranks": 2 if op == "send" else what.group,
                    "bytes": size,
                    "start_ns": begin,
                    "end_ns": until,
                    **({"message": message[0]} if message else {}),
                }
                for bucket, op, size, begin, until, *message in transfers
            ]
    for index, step_ns in enumerate(what.evaluation):
        records.append(_block("evaluation", index, step_ns, at, what.samples_per_step))
        at += sum(step_ns) + 5 * MS
    seen: dict[str, int] = {}
    for method, size, begin, until, write in what.checkpoints:
        index = seen[method] = seen.get(method, -1) + 1
        records.append(
            {
                "kind": "snapshot",
                "method": method,
                "index": index,
                "bytes": size,
                "start_ns": at + begin,
                "end_ns": at + until,
                "write_ns": write,
            }
        )
    for index, (begin, step_ns, losses) in enumerate(what.curve):
        records.append(
            {
                "kind": "curve",
                "index": index,
                "target": what.target,
                "samples": what.samples_per_step * len(step_ns),
                "start_ns": at + begin,
                "end_ns": at + begin + sum(step_ns),
                "step_ns": list(step_ns),
                "losses": list(losses),
            }
        )
    records += [as_json(record) for record in what.more]
    records += [
        {
            "kind": "outcome",
            "status": what.status,
            "error": what.error,
            "error_type": "",
            "phase": "",
            "step": None,
            "params_checksum": what.checksum,
            "peak_memory_bytes": what.peak_memory_bytes,
            "final_loss": 3.5,
            "finished_ns": at,
        },
    ]
    return [json.dumps(record, separators=(",", ":")) for record in records]


def _warmup_reason(what: RankLaunch) -> str:
    """Remove fields as in records from before the warm-up's steps were kept."""
    if not what.ready:
        return "one-time work was not done after 20 steps"
    return "three blocks without trend" if what.steady else "still changing when time was up"


def _beside(index: int, steps: int, what: RankLaunch) -> list[dict[str, Any]]:
    """Return the records of an emulated node and a replay about a timed block."""
    same = {"phase": "timed", "index": index}
    records: list[dict[str, Any]] = []
    if what.traffic is not None:
        node, sent, received = what.traffic
        counted = {
            "steps": steps,
            "node": node,
            "sent_bytes": sent * steps,
            "received_bytes": received * steps,
        }
        records.append({"kind": "traffic", **same, **counted})
    if what.pace is not None:
        late, cpu, own, due = what.pace
        pace = {"lateness_ns": [late] * steps, "cpu_ns": cpu * steps, "optimizer_ns": own}
        records.append({"kind": "pace", **same, **pace, "optimizer_due_ns": due})
    if what.staleness is not None:
        records.append({"kind": "staleness", "counts": list(what.staleness)})
    return records


def _block(phase: str, index: int, step_ns: Sequence[int], at: int, samples: int) -> dict[str, Any]:
    return {
        "kind": "block",
        "phase": phase,
        "index": index,
        "steps": len(step_ns),
        "samples": samples * len(step_ns),
        "start_ns": at,
        "end_ns": at + sum(step_ns),
        "step_ns": list(step_ns),
    }


def write_launch(
    run: RunDir,
    case: Case,
    number: int,
    ranks: Sequence[RankLaunch] = (),
    outcome: Outcome | None = Outcome(),
    *,
    expected_ranks: int | None = None,
) -> Path:
    """Write one measuring launch; without an outcome it is unfinished. Return its folder."""
    directory = run.launch(case.case_id, "measure", number)
    directory.path.mkdir(parents=True)
    for rank, what in enumerate(ranks):
        lines = rank_lines(rank, case, what, number, expected_ranks)
        directory.records(rank).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if outcome == Outcome():
        outcome = _spent(ranks)
    if outcome is not None:
        count = processes_of(case) if expected_ranks is None else expected_ranks
        _write_outcome(directory.outcome, case, number, "measure", outcome, count)
    return directory.path


def alternate(
    launch: Path, groups: Sequence[Sequence[Case]], of_blocks: Sequence[int] = (), *, ranks: int = 1
) -> None:
    """Record the cases with which a launch alternated, by group, and the group of each of its timed blocks."""
    path = launch / "outcome.json"
    ids = [[case.case_id for case in group] for group in groups]
    outcome = json.loads(path.read_text("utf-8")) | {"alternated": ids}
    path.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
    for file in sorted(launch.glob("rank-*.jsonl"))[:ranks] if of_blocks else ():
        groups_left = iter(of_blocks)
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        for record in records:
            if record["kind"] == "block" and record["phase"] == "timed":
                record["group"] = next(groups_left)
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def _spent(ranks: Sequence[RankLaunch]) -> Outcome:
    """Return a launch's outcome: the usual one, unless its blocks take longer."""
    blocks_s = max((sum(map(sum, rank.blocks)) for rank in ranks), default=0) / 1e9
    usual = Outcome()
    if blocks_s + 0.3 <= usual.measured_s:
        return usual
    return Outcome(measured_s=blocks_s + 0.3, wall_s=blocks_s + 1.1)


def _write_outcome(
    path: Path, case: Case, number: int, purpose: str, outcome: Outcome, processes: int
) -> None:
    data = {
        "kind": "launch",
        "schema_version": SCHEMA_VERSION,
        "case_id": case.case_id,
        "round": number,
        "purpose": purpose,
        "status": outcome.status,
        "error": outcome.error,
        "failed_rank": None if outcome.status == "ok" else 0,
        "phase": outcome.phase,
        "last_log_line": outcome.last_log_line,
        "exit_codes": [0 if outcome.status == "ok" else 1] * processes,
        "started_utc": "2026-03-04T09:12:44+00:00",
        "wall_s": outcome.wall_s,
        "measured_s": outcome.measured_s,
        "server_s": outcome.server_s,
        "run_id": RUN_ID,
        "noise": {
            "steal_fraction": 0.0,
            "foreign_fraction": 0.0,
            "clock_change": None,
            "shared_machine": False,
            **outcome.noise,
        },
    }
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def write_proof(
    run: RunDir,
    case: Case,
    outcome: Outcome = Outcome(),
    *,
    compared: str = "gradients, same shards",
    error: float = 3e-16,
    flops_per_sample: float | None = 6.3e8,
    dataset_samples: int | None = None,
    left_out: str = "",
) -> None:
    """Write the launch that proved a case; `left_out` is why its comparison could not be made."""
    directory = run.launch(case.case_id, "proof")
    directory.path.mkdir(parents=True)
    passed = outcome.status == "ok"
    proof = {
        "kind": "proof",
        "compared": compared,
        "dtype": "float64",
        "error": 0.0 if left_out else error if passed else 0.3,
        "tolerance": math.inf if left_out else 1e-10,
        "passed": passed,
        "note": left_out,
    }
    costs = {"kind": "costs", "flops_per_sample": flops_per_sample, "dataset_samples": dataset_samples}
    lines = [json.dumps(proof), json.dumps(costs)]
    directory.records(0).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _write_outcome(directory.outcome, case, 0, "proof", outcome, processes_of(case))


def write_plan(
    run: RunDir,
    cases: Sequence[PlannedCase | Case],
    budget: Budget | None = None,
    *,
    question: str = "",
    claims: Sequence[PlannedClaim] = (),
) -> None:
    """Write plan.json, machine.json and experiment.toml."""
    run.create()
    budget = budget or Budget()
    planned = [case if isinstance(case, PlannedCase) else PlannedCase(case=case) for case in cases]
    runnable = [entry.case.case_id for entry in planned if entry.skip_reason is None]
    plan = {
        "schema_version": SCHEMA_VERSION,
        "run_id": RUN_ID,
        "experiment": "synthetic",
        "question": question,
        "budget": budget.model_dump(),
        "cases": [
            {
                **entry.case.to_json(),
                "skip_reason": entry.skip_reason,
                "added_as_baseline": entry.added_as_baseline,
                "oversubscribed": entry.oversubscribed,
                "stands_for": list(entry.stands_for),
                "caps_worth": list(entry.caps_worth),
            }
            for entry in planned
        ],
        "launches": [
            {"round": number, "case_id": case_id}
            for number in range(budget.rounds_max)
            for case_id in runnable
        ],
        **claims_json(claims),
    }
    run.plan.write_text(json.dumps(plan) + "\n", encoding="utf-8")
    machine = {
        "schema_version": SCHEMA_VERSION,
        "identity": {
            "cpu": "A made-up processor",
            "cores": [0, 1, 2, 3],
            "cpu_quota": None,
            "gpus": [],
            "driver": None,
            "kernel": "6.1.0",
            "torch": "2.13.0+cpu",
            "python": "3.11.7",
            "experiment_digest": "b3f0c1d2e4a59687",
            "workload_digest": "0011223344556677",
        },
        "context": {
            "host": "nowhere",
            "started_utc": "2026-03-04T09:12:44+00:00",
            "command": "ddpbench sweep synthetic.toml",
            "ddpbench_version": "0.1.0",
            "git_commit": "4be1a90",
            "load_1min": 0.12,
        },
    }
    run.machine.write_text(json.dumps(machine, indent=1) + "\n", encoding="utf-8")
    run.experiment.write_text('name = "synthetic"\nquestion = "Does the analysis hold?"\n', encoding="utf-8")


def write_sessions(
    run: RunDir, stop_reason: str = "rounds_max", *, wall_s: float = 100.0, measured_s: float = 75.0
) -> None:
    """Write sessions.json with one session."""
    session = {
        "started_utc": "2026-03-04T09:12:44+00:00",
        "wall_s": wall_s,
        "measured_s": measured_s,
        "launches": 10,
        "stop_reason": stop_reason,
    }
    data = {"schema_version": SCHEMA_VERSION, "sessions": [session]}
    run.sessions.write_text(json.dumps(data) + "\n", encoding="utf-8")


def matrix(count: int, *, cores: int = 4) -> list[PlannedCase]:
    """Return `count` different cases: strategies, world sizes and bucket caps first, then workloads and batches.

    `single` at one rank comes first for each setting, so that every speed-up has its base case.
    """
    kinds: list[tuple[str, int, Any]] = [("single", 1, None)]
    kinds += [("independent", world, None) for world in (2, 4)]
    kinds += [("ddp", world, cap) for world in (2, 4) for cap in ("default", 1.0, 5.0, 25.0)]
    kinds += [("ddp", world, "default") for world in (1, 8)]
    kinds += [(strategy, world, None) for strategy in ("master", "data_parallel") for world in (2, 4)]
    planned: list[PlannedCase] = []
    for local_batch, workload in itertools.product((8, *range(16, 2000, 8)), WORKLOADS):
        for strategy, world, cap in kinds:
            case = case_of(strategy, world, workload=workload, bucket_cap_mb=cap, local_batch=local_batch)
            planned.append(PlannedCase(case=case, oversubscribed=world > cores))
            if len(planned) == count:
                return planned
    raise ValueError(f"no {count} different cases")


@dataclass(frozen=True, kw_only=True)
class Model:
    """The synthetic machine: a step's parts, seconds, and how they change with ranks and buckets."""

    forward_s: float = 0.010
    backward_s: float = 0.020
    optimizer_s: float = 0.002
    data_s: float = 0.0005
    comm_s: float = 0.004
    cores: int = 4
    noise: float = 0.01
    skew_s: float = 0.0
    """Increase of each rank's backward over the previous rank's."""
    by_cap: bool = False
    """True if buckets follow the case's cap; otherwise there are two everywhere, a few bytes apart by cap."""

    def buckets(self, case: Case) -> list[int]:
        """Return the sizes of a step's transfers, bytes."""
        whole = sum(TWO_BUCKETS)
        if not self.by_cap or case.schedule != "overlapped":
            cap = case.bucket_cap_mb
            more = (
                4 * round(100 * cap) if isinstance(cap, int | float) else 0
            )  # equal buckets are not compared
            return [TWO_BUCKETS[0] + more, TWO_BUCKETS[1] - more]
        if case.bucket_cap_mb == "default":
            return [2**20, whole - 2**20]
        size = int(float(case.bucket_cap_mb or 1) * 2**20)
        return [size] * (whole // size) + [whole % size] * (whole % size > 0)

    def parts(self, case: Case, factor: float) -> dict[str, int]:
        """Return the nanoseconds of each part of a step."""
        crowd = max(1.0, case.world_size / self.cores)
        contention = (1 + 0.03 * (case.world_size - 1)) * crowd * factor
        parts = {
            "data": self.data_s * factor / (1 + 9 * case.loader_workers) if case.data == "loader" else 0,
            "forward": self.forward_s * contention,
            "backward": self.backward_s * contention,
            "optimizer": self.optimizer_s * contention,
        }
        if case.strategy in ("ddp", "master") and case.world_size > 1:
            share = 2 * (case.world_size - 1)
            cap = case.bucket_cap_mb
            cost = self.comm_s * crowd * factor
            cost *= share if case.strategy == "master" else share / case.world_size
            parts["comm"] = cost * (1 + (0.3 / cap if isinstance(cap, float) else 0.02))
        if case.strategy == "data_parallel":
            parts |= {"scatter": 0.001 * factor, "replicate": 0.004 * factor}
            parts |= {"gather": 0.001 * factor, "reduce": 0.003 * factor}
        return {name: int(value * 1e9) for name, value in parts.items()}

    def recorded(self, case: Case, rank: int, what: RankLaunch) -> RankLaunch:
        """Return what a rank writes of its launch: here its steps."""
        return what


def rank_launch(case: Case, rank: int, factor: float, model: Model, *, blocks: int, steps: int) -> RankLaunch:
    """Return one rank of the synthetic machine: `blocks` timed blocks of ten steps, and `steps` instrumented ones."""
    parts = model.parts(case, factor)
    comm = parts.pop("comm", 0)
    hidden = min(comm // 2, parts["backward"]) if case.schedule == "overlapped" else 0
    late = int((case.world_size - 1) * model.skew_s * 1e9) if comm else 0
    step_ns = sum(parts.values()) + late + comm - hidden
    if late:
        parts["backward"] += int(rank * model.skew_s * 1e9)
        late -= int(rank * model.skew_s * 1e9)
    sizes = model.buckets(case)
    start = ORIGIN_NS + 1000 * rank
    at = start + blocks * (10 * step_ns + 5 * MS) + 50 * MS
    noted = []
    for _ in range(steps):
        begun, spans, transfers = at, [], []
        for name in ("data", "scatter", "replicate", "forward", "gather", "backward", "reduce"):
            if name in parts:
                spans.append((name, at, at + parts[name]))
                at += parts[name]
        if comm:
            begin = at + late - hidden
            ends = _ends(begin, comm, sizes, even=not model.by_cap)
            ops = ["all_reduce"] * len(sizes) if case.schedule == "overlapped" else ["gather", "scatter"]
            transfers = [
                (number, op, size, was - late, until)
                for number, (op, size, was, until) in enumerate(
                    zip(ops, sizes, [begin, *ends], ends, strict=False)
                )
            ]
            spans.append(("synchronize", at, begin + comm))
            at = begin + comm
        spans.append(("optimizer", at, at + parts["optimizer"]))
        at += parts["optimizer"]
        noted.append((begun, at, spans, transfers))
    promises = case.strategy in ("ddp", "master") and case.world_size > 1
    return RankLaunch(
        blocks=[[step_ns] * 10] * blocks,
        steps=noted,
        start_ns=start,
        samples_per_step=case.global_batch // processes_of(case),
        checksum="5f1d" * 8 if promises else "",
        gradient_bytes=sum(TWO_BUCKETS),
        buckets=sizes if case.strategy == "ddp" else None,
        evaluation=[[parts["forward"]] * 10] * 2 if case.evaluation else (),
        checkpoints=_checkpoints(rank, factor) if case.checkpoint else (),
    )


def _ends(begin: int, comm: int, sizes: Sequence[int], *, even: bool) -> list[int]:
    """Return when each transfer ends: all of them take `comm`, by their sizes and a latency as of 128 KiB, or
    evenly."""
    costs = [1 if even else size + 2**17 for size in sizes]
    return [begin + comm * sum(costs[: index + 1]) // sum(costs) for index in range(len(costs))]


def _checkpoints(rank: int, factor: float) -> list[tuple[str, int, int, int, int | None]]:
    """Return three checkpoints of each method, one after the other."""
    found: list[tuple[str, int, int, int, int | None]] = []
    at = 0
    for method, ms in (("plain", 40), ("dcp", 25)):
        for index in range(3):
            until = at + int(ms * factor * (2 if index == 0 else 1) * MS)
            wrote = method == "dcp" or rank == 0
            size = 7_002_112 // (1 if method == "plain" else 2) if wrote else 0
            found.append((method, size, at, until, until - at - MS if wrote else None))
            at = until + MS
    return found


def everything() -> list[PlannedCase]:
    """Return cases with which every section of a report has a figure, including one failed cap and one skipped case."""
    common: dict[str, Any] = {"evaluation": True, "checkpoint": True}
    kinds: list[tuple[str, int, Any]] = [("single", 1, None)]
    kinds += [("independent", world, None) for world in (2, 4, 8)]
    kinds += [("ddp", world, cap) for world in (1, 2, 4, 8) for cap in ("default", 0.25, 1.0)]
    kinds += [(strategy, world, None) for strategy in ("data_parallel", "master") for world in (2, 4)]
    planned = [
        PlannedCase(case=case_of(strategy, world, bucket_cap_mb=cap, **common), oversubscribed=world > 4)
        for strategy, world, cap in kinds
    ]
    for settings in ({"data": "memory"}, {"loader_workers": 1}):
        for strategy, world in (("single", 1), ("ddp", 4)):
            planned.append(PlannedCase(case=case_of(strategy, world, **common, **settings)))
    skipped = case_of("fsdp", 2, **common)
    planned.append(PlannedCase(case=skipped, skip_reason="fsdp needs what this machine has not"))
    planned.append(PlannedCase(case=case_of("ddp", 2, bucket_cap_mb=5.0, **common)))
    return planned


def write_everything(path: Path | str) -> RunDir:
    """Write a run of `everything`: ranks that wait for each other, buckets that follow their caps."""
    model = Model(by_cap=True, skew_s=0.0004, data_s=0.0015, noise=0.004)
    return write_run(path, everything(), blocks=2, steps=6, failing=1, model=model)


def write_run(
    path: Path | str,
    cases: Sequence[PlannedCase] | int = 12,
    *,
    rounds: int = 5,
    blocks: int = 4,
    steps: int = 10,
    seed: int = 0,
    failing: int = 0,
    model: Model | None = None,
) -> RunDir:
    """Write a complete finished run of these cases; the last `failing` ones fail in their first two rounds."""
    run = RunDir(Path(path))
    planned = matrix(cases) if isinstance(cases, int) else list(cases)
    model = model or Model()
    write_plan(run, planned, Budget(rounds_min=rounds, rounds_max=rounds), question="Does the analysis hold?")
    noise = random.Random(seed)
    drifts = [noise.gauss(0, 3 * model.noise) for _ in range(rounds)]
    runnable = [entry.case for entry in planned if entry.skip_reason is None]
    for index, case in enumerate(runnable):
        write_proof(run, case)
        if index >= len(runnable) - failing:
            bad = Outcome(
                status="failed",
                error="rank 0 in warm-up: ValueError: made up",
                phase="warm-up",
                last_log_line="ValueError: made up",
            )
            for number in range(min(2, rounds)):
                write_launch(run, case, number, outcome=bad)
            continue
        for number in range(rounds):
            factor = 1 + drifts[number] + noise.gauss(0, model.noise)
            ranks = [
                model.recorded(case, rank, rank_launch(case, rank, factor, model, blocks=blocks, steps=steps))
                for rank in range(processes_of(case))
            ]
            write_launch(run, case, number, ranks)
    write_sessions(run)
    return run


def main() -> None:
    """Write a run directory where the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.synthetic", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--failing", type=int, default=0)
    arguments = parser.parse_args()
    write_run(arguments.out, arguments.cases, rounds=arguments.rounds, failing=arguments.failing)


if __name__ == "__main__":
    main()
