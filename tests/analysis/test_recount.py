"""A recount of what fills the steps of sharded, cut and hybrid models, from a kept run's raw records.

It shares no code with `ddpbench.analysis.read`: it reads JSON, has spans as lists of pairs, and works on one rank's
step at a time.
"""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.results import RankTimes
from ddpbench.analysis.summary import RunSummary
from tests.kept import unpacked

Span = tuple[int, int]
Records = Mapping[int, Sequence[Mapping[str, Any]]]
"""A launch's records, by rank."""
PARTS = ("compute_s", "exposed_comm_s", "exposed_wait_s", "data_s", "not_attributed_s")


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans as disjoint spans in order."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def minus(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return what of the spans lies in none of the others."""
    left = union(spans)
    for start, end in union(others):
        left = [piece for low, high in left for piece in ((low, min(high, start)), (max(low, end), high))]
        left = [(low, high) for low, high in left if high > low]
    return left


def within(spans: Iterable[Span], step: Span) -> list[Span]:
    return union((max(low, step[0]), min(high, step[1])) for low, high in spans)


def length(spans: Iterable[Span]) -> int:
    return sum(high - low for low, high in spans)


@dataclass
class Part:
    """A rank's part in a transfer, ns: `served` is when the rank turned to it."""

    rank: int
    record: Mapping[str, Any]
    served: int = 0

    @property
    def start(self) -> int:
        return int(self.record["start_ns"])

    @property
    def end(self) -> int:
        return int(self.record["end_ns"])


def is_message(record: Mapping[str, Any]) -> bool:
    return record["op"] == "send"


def serve(parts: Sequence[Part], threads: int) -> None:
    """Let a rank's threads serve its collectives in order of submission; a message waits for none."""
    busy_until = [0] * threads
    for part in sorted(parts, key=lambda part: part.start):
        part.served = part.start
        if not is_message(part.record):
            first = busy_until.index(min(busy_until))
            part.served = min(max(part.start, busy_until[first]), part.end)
            busy_until[first] = part.end


def flows_of(launch: Records, threads: int) -> Mapping[int, Mapping[str, list[Span]]]:
    """Return, for each rank, the spans in which its transfers move data and in which it waits for other ranks."""
    transfers: defaultdict[tuple[Any, ...], list[Part]] = defaultdict(list)
    found: dict[int, dict[str, list[Span]]] = {rank: {"comm": [], "wait": []} for rank in launch}
    for rank, records in launch.items():
        own = [Part(rank, record) for record in records if record["kind"] == "comm"]
        serve(own, threads)
        seen: defaultdict[tuple[Any, ...], int] = defaultdict(int)
        for part in own:
            name = (part.record["step"], part.record["bucket"], part.record["op"])
            transfers[(*name, seen[name])].append(part)
            seen[name] += 1
    for parts in transfers.values():
        assert len(parts) == (parts[0].record["ranks"] or len(launch)), (
            "the kept run has every rank's records"
        )
        begin = max(part.served for part in parts)
        for part in parts:
            end = part.end
            if is_message(part.record):
                (end,) = (one.end for one in parts if not one.record["sent_bytes"])
            found[part.rank]["wait"].append((part.served, min(begin, end)))
            found[part.rank]["comm"].append((begin, end))
    return found


def filled(step: Mapping[str, Any], flows: Mapping[str, list[Span]]) -> dict[str, int]:
    """Return what fills a rank's step, ns: computation first, then transfers, waiting, and data."""
    whole = (step["start_ns"], step["end_ns"])
    named: defaultdict[str, list[Span]] = defaultdict(list)
    for name, start, end in step["spans"]:
        named["compute" if name in ("forward", "backward", "optimizer") else name].append((start, end))
    assert set(named) <= {"compute", "data", "synchronize"}
    taken: list[Span] = []
    found: dict[str, int] = {}
    kinds = (named["compute"], flows["comm"], flows["wait"], named["data"], [whole])
    for name, spans in zip(PARTS, kinds, strict=True):
        own = minus(within(spans, whole), taken)
        found[name] = length(own)
        taken = union([*taken, *own])
    return found


def recounted(launches: Iterable[Records], threads: int = 2) -> dict[int, dict[str, float]]:
    """Return each rank's parts of a step and the step, seconds: means over steps, then over launches."""
    means: defaultdict[int, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for launch in launches:
        flows = flows_of(launch, threads)
        for rank, records in launch.items():
            steps = [record for record in records if record["kind"] == "step"]
            first = min(step["step"] for step in steps)
            assert first == 1, "transfers of the step before are in the flows of all steps"
            each = [filled(step, flows[rank]) for step in steps]
            for name in PARTS:
                means[rank][name].append(fmean(one[name] for one in each) / 1e9)
            means[rank]["step_s"].append(fmean(step["end_ns"] - step["start_ns"] for step in steps) / 1e9)
    return {rank: {name: fmean(of) for name, of in own.items()} for rank, own in means.items()}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSummary, Path]:
    """Return a kept run's summary, and the folder of its cases' raw records."""
    folder = tmp_path_factory.mktemp("kept")
    run = unpacked("hybrid", folder)
    with tarfile.open(run.path / "records.tar.xz") as archive:
        archive.extractall(folder / "raw", filter="data")
    return summarize(run), folder / "raw" / "cases"


def launches_of(case: Path) -> list[Records]:
    return [
        {
            number: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            for number, path in enumerate(sorted(launch.glob("rank-*.jsonl")))
        }
        for launch in sorted(case.glob("launch-*"))
    ]


@pytest.mark.parametrize(
    "case_id",
    [
        "fsdp-w4-d2137313",
        "fsdp-w4-8741711b",
        "pipeline-w4-38330a56",
        "pipeline-w4-b2553493",
        "ddp-w4-bdefault-4a0b8ecd",
    ],
)
def test_each_ranks_parts_are_those_of_a_recount(hybrid: tuple[RunSummary, Path], case_id: str) -> None:
    summary, cases = hybrid
    found: dict[int, RankTimes] = {one.rank: one for one in summary.steps.by_rank if one.case_id == case_id}
    counted = recounted(launches_of(cases / case_id))
    assert set(found) == set(counted) == {0, 1, 2, 3}
    for rank, parts in counted.items():
        for name, value in parts.items():
            assert getattr(found[rank], name) == pytest.approx(value, rel=1e-9, abs=2e-9), (rank, name)
    assert sum(parts["exposed_comm_s"] for parts in counted.values()) > 0
