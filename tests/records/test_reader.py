"""Records written and read back; torn, damaged and foreign files; what a run directory refuses."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ddpbench.errors import IdentityError, InUseError, OutputError, RecordError
from ddpbench.features.recovery.rank.recovering import NOTED_S, FailurePlan
from ddpbench.records import (
    Block,
    Buckets,
    CommRecord,
    Costs,
    Drift,
    Held,
    LaunchDir,
    LaunchOutcome,
    Noise,
    Proof,
    RankOutcome,
    RankStart,
    RecordWriter,
    RunDir,
    StepRecord,
    Warmup,
    read_launch,
    read_rank,
    write_atomically,
)
from ddpbench.records.schema import (
    LossCurve,
    Trained,
    as_json,
    check_counts,
    record_from_json,
    records_from_json,
)
from ddpbench.spec import limits
from ddpbench.worker.rank.time_to_loss import GROUP_S, LEAST_STEPS
from tests.recoveries import KILLED

NS = 2**62
RECORDS: list[Any] = [
    RankStart(
        rank=3,
        world_size=4,
        pid=7,
        host="node \u00fc",
        started_ns=NS,
        cores=(0, 2),
        threads=1,
        device="cpu",
        torch_version="2.13.0",
    ),
    Drift(when="before", work_ns=50),
    Warmup(steps=12, start_ns=1, end_ns=2, step_ns=1, steady=False, reason="still changing when time was up"),
    Block(phase="timed", index=0, steps=2, samples=16, start_ns=NS, end_ns=NS + 3, step_ns=(1, 2)),
    Buckets(bytes=(10, 20)),
    StepRecord(step=1, start_ns=0, end_ns=9, spans=(("forward", 0, 4), ('a "quoted" name', 4, 9))),
    CommRecord(step=1, bucket=0, op="all_reduce", bytes=10, start_ns=2, end_ns=5),
    Proof(compared="initial state", dtype="float64", error=float("inf"), tolerance=0.0, passed=False),
    Costs(flops_per_sample=None),
    Held(parameter_bytes=8, gradient_bytes=4, optimizer_bytes=NS),
    RankOutcome(status="ok", finished_ns=4, final_loss=3.5, peak_memory_bytes=None),
]


@pytest.fixture
def launch(tmp_path: Path) -> LaunchDir:
    return LaunchDir(tmp_path)


def write(launch: LaunchDir, *records: Any, rank: int = 0) -> Path:
    path = launch.records(rank)
    with RecordWriter(path) as writer:
        writer.write(*records)
    return path


def test_every_kind_of_record_comes_back_as_it_was(launch: LaunchDir) -> None:
    read = read_rank(write(launch, *RECORDS))
    assert list(read.records) == RECORDS
    assert read.torn_line is None
    assert read.of(Drift) == [RECORDS[1]]
    assert read.last(Costs) == RECORDS[8]
    assert {type(record) for record in RECORDS} == {type(record) for record in read.records}


@given(
    st.lists(st.integers(0, 2**63 - 1), max_size=4),
    st.text(max_size=20),
    st.floats(allow_nan=False),
)
def test_numbers_and_texts_survive(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], text: str, loss: float
) -> None:
    written = [
        Block(phase="timed", index=1, steps=1, samples=1, start_ns=0, end_ns=2**63 - 1, step_ns=tuple(times)),
        RankOutcome(status="failed", error=text, final_loss=loss, finished_ns=0),
    ]
    assert list(read_rank(write(LaunchDir(tmp_path_factory.mktemp("launch")), *written)).records) == written


def test_one_line_a_record_flushed_at_once(launch: LaunchDir) -> None:
    with RecordWriter(launch.records(0)) as writer:
        writer.write(RECORDS[1])
        assert launch.records(0).read_text(encoding="utf-8").count("\n") == 1
        writer.write(RECORDS[8], RECORDS[10])
        lines = launch.records(0).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["drift", "costs", "outcome"]


@pytest.mark.parametrize("cut", [1, 10])
def test_a_torn_last_line_is_reported_and_the_rest_is_kept(launch: LaunchDir, cut: int) -> None:
    path = write(launch, *RECORDS)
    path.write_bytes(path.read_bytes()[:-cut])
    read = read_rank(path)
    assert list(read.records) == RECORDS[:-1]
    assert read.torn_line == len(RECORDS)
    (damage,) = read_launch(launch).damage
    assert damage == f"{path}, line {len(RECORDS)}: torn (its end is missing)"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not a record"),
        ("[]", "line 2: not a record"),
        ('{"kind":"sun"}', "line 2: not a record: .*sun"),
        ('{"kind":"drift","when":"never","work_ns":1}', "line 2: not a record: drift.when"),
        ('{"kind":"drift","when":"before"}', "line 2: not a record: drift.work_ns"),
        ("", "line 2: not a record"),
    ],
)
def test_a_damaged_line_is_named(launch: LaunchDir, line: str, words: str) -> None:
    path = write(launch, RECORDS[1])
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with RecordWriter(path) as writer:
        writer.write(RECORDS[8])
    with pytest.raises(RecordError, match=words):
        read_rank(path)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            replace(RECORDS[6], bytes=-5),
            r"comm\.bytes: Input should be greater than or equal to 0; it is {\"kind\":\"comm\".*\"bytes\":-5",
        ),
        (replace(RECORDS[6], bytes=1.5), r"comm\.bytes: Input should be a valid integer"),
        (replace(RECORDS[6], op=OSError()), r"comm: Object of type OSError is not JSON serializable"),
        ({"kind": "comm"}, r"dict: asdict\(\) should be called on dataclass instances"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(launch: LaunchDir, record: Any, said: str) -> None:
    path = write(launch, RECORDS[1])
    with RecordWriter(path) as writer:
        with pytest.raises(ValueError, match=f"a record .* cannot be read back: {said}"):
            writer.write(RECORDS[8], record)
        writer.write(RECORDS[8])
    assert read_rank(path).records == (RECORDS[1], RECORDS[8])


def test_records_of_another_schema_are_refused(launch: LaunchDir) -> None:
    path = write(launch, dataclasses.replace(RECORDS[0], schema_version=2))
    with pytest.raises(RecordError, match="line 1: schema 2; this ddpbench reads schema 1"):
        read_rank(path)


def test_a_launch_s_other_ranks_are_read_beside_a_damaged_one(launch: LaunchDir) -> None:
    write(launch, RECORDS[1], rank=1)
    launch.records(0).write_text("x\n", encoding="utf-8")
    found = read_launch(launch)
    assert [rank.rank for rank in found.ranks] == [1]
    assert "rank-00000.attempt-0.jsonl, line 1" in found.damage[0]
    assert found.outcome is None


def outcome(**changes: Any) -> LaunchOutcome:
    values: dict[str, Any] = {"case_id": "c", "round": 2, "purpose": "measure", "status": "ok"}
    return LaunchOutcome(**{**values, **changes})


def test_an_outcome_comes_back_as_it_was(launch: LaunchDir) -> None:
    written = outcome(exit_codes=(0, None), noise=Noise(steal_fraction=0.25, clock_change=None))
    launch.outcome.write_text(json.dumps(written.to_json()), encoding="utf-8")
    assert read_launch(launch).outcome == written


@pytest.mark.parametrize(
    ("change", "words"), [({"status": "fine"}, "outcome"), ({"schema_version": 7}, "schema 7")]
)
def test_a_wrong_outcome_is_damage(launch: LaunchDir, change: dict[str, Any], words: str) -> None:
    launch.outcome.write_text(json.dumps(outcome().to_json() | change), encoding="utf-8")
    found = read_launch(launch)
    assert found.outcome is None
    assert words in found.damage[0]


def test_launches_are_found_by_number_and_without_those_set_aside(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for number in (2, 10, 100):
        run.launch("c", "measure", number).path.mkdir(parents=True)
    aside = run.launch("c", "measure", 1)
    aside.path.mkdir()
    run.set_aside(aside)
    again = run.launch("c", "measure", 1)
    again.path.mkdir()
    run.set_aside(again)
    run.launch("c", "proof").path.mkdir()
    assert [launch.path.name for launch in run.launches("c")] == ["launch-02", "launch-10", "launch-100"]
    assert sorted(path.name for path in run.case("c").glob("*.aside-*")) == [
        "launch-01.aside-0",
        "launch-01.aside-1",
    ]
    assert run.launches("no such case") == []


def test_a_half_written_file_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_atomically(path, "before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "after")
    assert path.read_text(encoding="utf-8") == "before"
    assert [found.name for found in tmp_path.iterdir()] == ["plan.json"]


def test_a_file_system_without_locks_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.raises(OutputError, match=r"cannot be locked \(No locks available\)"),
        RunDir(tmp_path).locked(),
    ):
        pass


def test_one_command_holds_a_directory_at_a_time_and_is_named(tmp_path: Path) -> None:
    run, lock = RunDir(tmp_path), tmp_path / ".lock"
    held = f"{tmp_path} is in use by ddpbench pack (process {os.getpid()} on {os.uname().nodename})"
    with pytest.raises(RuntimeError), run.locked():
        raise RuntimeError
    assert not lock.exists()  # it was created for this
    with run.locked("ddpbench pack"):
        for otherwise, end in (("", ""), ("give another --out", " or give another --out")):
            with (
                pytest.raises(InUseError, match=f"^{re.escape(held)}: wait until that ends{end}$"),
                RunDir(tmp_path).locked("a sweep", otherwise),
            ):
                pytest.fail("two held it")
        lock.write_bytes(b"")  # a full disk
        with pytest.raises(InUseError, match="in use by another ddpbench command: wait"), run.locked():
            pytest.fail("two held it")
    assert not lock.exists()
    lock.write_text("x" * 10_000, encoding="utf-8")  # of a killed process, or a stranger
    with run.locked():
        assert "x" not in lock.read_text(encoding="utf-8")
    assert not lock.read_bytes()  # it existed before


def test_a_lock_that_its_holder_has_just_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, flock = tmp_path / ".lock", fcntl.flock
    removed: list[Path] = []

    def late(file: Any, operation: int) -> None:
        flock(file, operation)
        if not removed:
            removed.append(lock.rename(tmp_path / "removed"))

    monkeypatch.setattr(fcntl, "flock", late)
    with RunDir(tmp_path).locked("ddpbench pack"):
        assert "ddpbench pack" in lock.read_text(encoding="utf-8")
        assert not removed[0].read_bytes()
    assert not lock.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not a run directory: machine.json is missing"),
        ("{", "cannot be read"),
        ("[1]", "an object was expected"),
        ('{"schema_version": 2}', "schema 2; this ddpbench reads schema 1"),
        ("{}", "schema None"),
    ],
)
def test_what_is_no_run_directory_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    run = RunDir(tmp_path)
    if text is not None:
        run.machine.write_text(text, encoding="utf-8")
    with pytest.raises(IdentityError, match=words):
        run.read_json(run.machine)


def test_a_place_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="choose another place"):
        RunDir(tmp_path / "file" / "run").create()


def test_texts_of_records_are_not_kept() -> None:
    """Texts differ from launch to launch: a cache of them would grow with a sweep."""
    line = json.dumps(dataclasses.asdict(RECORDS[0]) | {"host": "a_host"}).encode()
    for read in (lambda: records_from_json(line + b"\n")[0], lambda: record_from_json(line)):
        first, second = read(), read()
        assert first == second
        assert first.host is not second.host


@pytest.mark.parametrize(
    "content",
    [
        b"{}\n" * 2_200_000,
        b"\n" * 4_300_000,
        b"12\n" * 4_300_000,
        b'{"kind":"met","a":[%s1]}\n' % (b"[]," * 4_300_000),
        b'{"kind":"buckets","bytes":[%s1]}\n' % (b"1," * 26_100_000),
        b"[%s" % (b"{" * 4_300_000),
    ],
    ids=["objects", "lines", "numbers", "lists", "values", "torn"],
)
def test_a_rank_s_file_of_more_than_any_rank_writes_is_not_read(content: bytes, tmp_path: Path) -> None:
    """Each takes a hundred times its bytes in memory, and a few KB of an archive."""
    path = tmp_path / "rank-00000.attempt-0.jsonl"
    path.write_bytes(content)
    with pytest.raises(
        RecordError, match=r"has more (lists, objects and lines in total|values) than any rank writes"
    ):
        read_rank(path)
    with pytest.raises(ValueError, match="than any rank writes"):
        record_from_json(content)


def test_the_longest_training_to_a_loss_is_read(tmp_path: Path) -> None:
    """Its steps are recorded in groups; the most groups result from the fewest steps per group."""
    groups = limits.UNTIL_STEPS.high // LEAST_STEPS
    assert groups > limits.UNTIL_S.high / GROUP_S
    curve = LossCurve(
        index=0,
        target=1.0,
        samples=8,
        start_ns=0,
        end_ns=1,
        step_ns=(1,) * LEAST_STEPS,
        losses=(1.5,) * LEAST_STEPS,
    )
    line = json.dumps(as_json(curve), separators=(",", ":")).encode() + b"\n"
    check_counts(line * groups)
    path = tmp_path / "rank-00000.attempt-0.jsonl"
    path.write_bytes(line * 1000)
    assert set(read_rank(path).records) == {curve}


def test_the_longest_training_with_snapshots_is_read() -> None:
    """Each step is one record if it takes longer than steps may go unrecorded."""
    every = limits.SNAPSHOT_STEPS.high
    case = replace(KILLED, recovery="uninterrupted", snapshot_every=every)
    steps = max(FailurePlan.of(case, NOTED_S, number).ends for number in range(100))
    assert steps > 6 * every
    step = Trained(gang=0, first=0, start_ns=0, ends_ns=(1,), losses=(1.5,), samples=((0, 4),))
    line = json.dumps(as_json(step), separators=(",", ":")).encode() + b"\n"
    check_counts(line * steps)


@pytest.mark.parametrize("item", [b"[]", b'""'])
def test_of_many_faults_the_first_alone_is_noted(item: bytes) -> None:
    for line in (
        b'{"kind":"buckets","bytes":[%s1]}\n' % ((item + b",") * 1000),
        (b'{"kind":"buckets","bytes":[%s]}\n' % item) * 1000,
        (item + b"\n") * 1000,
    ):
        with pytest.raises(ValidationError) as caught:
            records_from_json(line)
        assert caught.value.error_count() == 1
