"""A watchdog's conclusions from what it sees, with times by hand."""

from __future__ import annotations

import errno
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ddpbench.machine.disturbance import Totals, worst_of
from ddpbench.records import (
    Block,
    LaunchDir,
    LaunchRecords,
    LaunchRequest,
    Noise,
    RunDir,
    Warmup,
    read_launch,
)
from ddpbench.records.files import create_file, is_unfinished
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.reader import RankRecords
from ddpbench.records.schema import Record
from ddpbench.runtime.finished import Endings
from ddpbench.runtime.judge import (
    Took,
    conclude,
    judge,
    measured_seconds,
    unequal_collectives,
    waited_seconds,
    waiting_for_data,
)
from ddpbench.runtime.watchdog import GRACE_S, REAP_S, Seen
from tests.synthetic import RankLaunch, case_of, write_launch


def test_a_failed_rank_gives_the_others_their_grace() -> None:
    seen = Seen(ranks=2, alive_at=0.0)
    seen.exited(1, 1, 0.5, now=10.0)
    assert not seen.must_end(10.0 + GRACE_S)
    assert seen.must_end(10.1 + GRACE_S)
    seen.end(20.0)
    seen.exited(0, -9, 0.5, now=20.5)
    assert seen.first_bad == 1  # rank 0 was killed by us
    assert (seen.left, seen.cpu_s) == ([], 1.0)


def test_a_rank_killed_from_outside_is_to_blame_though_others_were_heard_of_first() -> None:
    seen = Seen(ranks=3, alive_at=0.0)
    seen.exited(0, 1, 0.0, now=1.0)
    seen.exited(2, -11, 0.0, now=1.2)
    assert seen.first_bad == 2
    seen.exited(1, -9, 0.0, now=1.3)
    assert seen.first_bad == 2


def test_only_a_change_is_a_sign_of_life() -> None:
    seen = Seen(ranks=1, alive_at=0.0)
    seen.beat(0, Pulse(5, "timed steps"), now=3.0)
    seen.beat(0, Pulse(5, "timed steps"), now=8.0)
    assert not seen.hangs(13.0, timeout_s=10.0)
    assert seen.hangs(13.1, timeout_s=10.0)
    seen.explain_hang([], 10.0, "budget.hang_timeout")
    assert "rank 0 made no step in timed steps after 5 steps" in seen.hang
    assert not seen.hangs(99.0, timeout_s=10.0)  # reported once


def test_who_is_stopped_holds_the_others_up_and_else_who_made_fewest_steps() -> None:
    seen = Seen(ranks=3, alive_at=0.0)
    for rank, steps in enumerate((7, 4, 9)):
        seen.beat(rank, Pulse(steps, "timed steps"), now=1.0)
    seen.explain_hang([2], 10.0, "x")
    assert seen.hung_rank == 2
    seen.explain_hang([], 10.0, "x")
    assert seen.hung_rank == 1


def test_who_is_in_the_earlier_phase_holds_the_others_up() -> None:
    seen = Seen(ranks=2, alive_at=0.0)
    seen.beat(0, Pulse(0, "meeting the other ranks"), now=1.0)
    seen.beat(1, Pulse(0, "building the model"), now=1.0)
    seen.explain_hang([], 10.0, "x")
    assert seen.hung_rank == 1


def test_a_rank_that_leaves_before_its_end_gives_the_others_their_grace() -> None:
    seen = Seen(ranks=3, alive_at=0.0)
    seen.beat(0, Pulse(9, "finishing"), now=1.0)
    seen.exited(0, 0, 0.1, now=1.0)
    assert not seen.must_end(99.0)
    seen.beat(1, Pulse(9, "timed steps"), now=1.0)
    seen.exited(1, 0, 0.1, now=1.0)
    assert not seen.must_end(1.0 + GRACE_S)
    assert seen.must_end(1.1 + GRACE_S)


STACKS = """
Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f0000000001 (most recent call first):
  File "{top}", line 12 in {function}
  File "/x/site-packages/torch/utils/data/_utils/fetch.py", line 54 in fetch
  File "/home/me/ddpbench/worker/{file}", line 118 in endless
  File "/home/me/ddpbench/worker/rank/rank.py", line 99 in run
"""


@pytest.mark.parametrize(
    ("top", "file", "found"),
    [
        ("/home/me/train.py", "training/batches.py", ", in train.py:12"),
        ("/x/site-packages/torch/queue.py", "training/batches.py", ""),
        ("/x/site-packages/torch/distributed/distributed_c10d.py", "training/training.py", None),
    ],
)
def test_stacks_tell_who_waits_for_data(tmp_path: Path, top: str, file: str, found: str | None) -> None:
    directory = LaunchDir(tmp_path)
    assert waiting_for_data(directory, 0) is None
    raised = 'File "/home/me/ddpbench/worker/training/batches.py", line 118, in endless\n'
    text = raised + STACKS.format(top=top, file=file, function="f")
    directory.log(0).write_text(text, encoding="utf-8")
    assert waiting_for_data(directory, 0) == found


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        (
            ("reduce_scatter_single", "all_gather_single"),
            "rank 0 in reduce_scatter_single, rank 1 in all_gather_single",
        ),
        (("all_reduce", "barrier", "barrier"), "rank 0 in all_reduce, rank 1 in barrier"),
        (("_all_gather_base", "broadcast"), "rank 0 in all_gather_base, rank 1 in broadcast"),
        (("all_reduce", "all_reduce"), ""),
        (("all_reduce", "recv"), ""),
        (("all_reduce", None), ""),
    ],
)
def test_stacks_tell_that_ranks_wait_in_different_collectives(
    tmp_path: Path, waits: tuple[str | None, ...], found: str
) -> None:
    directory = LaunchDir(tmp_path)
    torch = "/x/site-packages/torch/distributed/distributed_c10d.py"
    for rank, each in enumerate(waits):
        text = STACKS.format(top=torch, file="training/training.py", function=each) if each else "no stack"
        directory.log(rank).write_text(text, encoding="utf-8")
    assert unequal_collectives(directory, range(len(waits))) == found
    seen = Seen(ranks=len(waits), alive_at=0.0)
    for rank in range(len(waits)):
        seen.beat(rank, Pulse(4, "warm-up"), now=1.0)
    seen.explain_hang([], 60.0, "budget.hang_timeout")
    seen.ended_by_us |= set(range(len(waits)))
    said = judge(LaunchRecords(directory, ()), seen, purpose="measure", oom=False)
    assert said.status == "hung"
    assert (f"different collectives in warm-up after 4 steps ({found})" in said.error) == bool(found)
    assert ("raise budget.hang_timeout" in said.error) != bool(found)


def test_killed_and_not_heard_of_ends_the_wait() -> None:
    seen = Seen(ranks=1, alive_at=0.0)
    assert not seen.unheard(100.0)
    seen.end(100.0)
    assert not seen.unheard(100.0 + REAP_S)
    assert seen.unheard(100.1 + REAP_S)


def test_a_rank_without_a_record_is_not_ok(tmp_path: object) -> None:
    run, case = RunDir(tmp_path), case_of()  # type: ignore[arg-type]
    write_launch(run, case, 0, [RankLaunch()], outcome=None)
    seen = Seen(ranks=2, alive_at=0.0)
    for rank in (0, 1):
        seen.exited(rank, 0, 0.0, now=1.0)
    records = read_launch(run.launch(case.case_id, "measure", 0))
    verdict = judge(records, seen, purpose="measure", oom=False)
    assert (verdict.status, verdict.rank) == ("failed", 1)
    assert "ended without saying how" in verdict.error


def test_who_could_not_write_for_want_of_room_is_not_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose log is on the full disk, too, ends with an exit code and without a message."""
    run, case = RunDir(tmp_path), case_of()
    write_launch(run, case, 0, [RankLaunch()], outcome=None)
    directory = run.launch(case.case_id, "measure", 0)
    seen = Seen(ranks=2, alive_at=0.0)
    seen.exited(0, 0, 0.0, now=1.0)
    seen.exited(1, 1, 0.0, now=1.0)
    took = Took(started_utc="", wall_s=1.0, server_s=0.0)
    known: dict[str, Any] = {"oom": False, "took": took, "noise": Noise()}

    def full(path: Path, mode: int = 0o666) -> BinaryIO:
        if is_unfinished(path.name):
            raise OSError(errno.ENOSPC, "No space left on device")
        return create_file(path, mode)  # for a page that was left

    with monkeypatch.context() as patch:
        patch.setattr("ddpbench.records.files.create_file", full)
        with pytest.raises(OSError, match="No space left"):
            conclude(directory, LaunchRequest(case=case, purpose="measure"), seen, **known)
    assert not directory.outcome.exists()
    assert conclude(directory, LaunchRequest(case=case, purpose="measure"), seen, **known).status == "failed"
    assert directory.outcome.exists()
    assert not list(directory.path.glob(".*"))


@pytest.mark.parametrize(
    ("proof", "measured", "hopeless", "ok"),
    [
        ("ok", ["failed"], False, False),
        ("ok", ["failed", "hung"], True, False),
        ("ok", ["failed", "ok", "failed"], False, False),
        ("ok", ["ok", "failed", "ok"], False, True),  # as often as was asked: one more failure doesn't matter
        ("diverged", [], True, False),
        ("diverged", ["ok", "ok"], True, False),
    ],
)
def test_a_case_is_given_up_when_nothing_is_to_be_learned_and_ok_when_measured_often_enough(
    proof: str, measured: list[str], hopeless: bool, ok: bool
) -> None:
    endings = Endings(["c"], rounds=3)
    for purpose, statuses in (("proof", [proof]), ("measure", measured)):
        for number, status in enumerate(statuses):
            endings["c", purpose, number] = status  # type: ignore[index,assignment]
    assert endings.given_up("c") is hopeless
    assert endings.is_ok("c", rounds_min=2) is ok
    assert not endings.is_ok("other", rounds_min=2)
    assert not endings.given_up("other")


def test_what_a_plan_has_finished_is_a_byte_a_launch() -> None:
    endings = Endings(["a", "b"], rounds=3)
    assert not endings
    endings["a", "proof", 0] = "ok"
    endings["b", "measure", 2] = "hung"
    endings["b", "measure", 3] = endings["c", "proof", 0] = "ok"  # beyond the plan
    assert list(endings.finished()) == [("a", "proof", 0), ("b", "measure", 2)]
    assert endings["b", "measure", 2] == "hung"
    assert endings["b", "measure", 3] is None
    assert endings["c", "proof", 0] is None
    assert [endings.unfinished("b", rounds) for rounds in (0, 2, 3, 4)] == [0, 2, 2, 3]
    assert endings.unfinished("c", 4) == 4
    endings["b", "measure", 2] = None
    assert len(endings) == 1


def test_the_noise_of_several_machines_is_the_worst_of_each_kind() -> None:
    quiet = Totals(available_s=10.0, busy_s=8.0, steal_s=0.5, throttled_s=0.0, clock_change=0.1)
    loud = Totals(available_s=20.0, busy_s=18.0, steal_s=0.0, throttled_s=2.0, clock_change=None)
    found = worst_of([quiet.noise(8.0, shared_machine=False), loud.noise(13.0, shared_machine=False)])
    assert found == Noise(steal_fraction=0.05, foreign_fraction=0.25, clock_change=0.1, throttled_s=2.0)
    assert worst_of([]) == Noise()


def test_a_launcher_may_take_longer_until_a_rank_shows_life_and_not_after() -> None:
    seen = Seen(ranks=2, alive_at=0.0, start_s=100.0)
    seen.beat(0, Pulse(0, "starting"), 1.0)
    assert not seen.hangs(150.0, 60.0)
    assert seen.hangs(162.0, 60.0)
    seen.beat(1, Pulse(0, "building the model"), 150.0)
    assert not seen.hangs(209.0, 60.0)
    assert seen.hangs(211.0, 60.0)


def test_what_a_launch_waits_for_its_turn_is_neither_measured_nor_its_own_time(tmp_path: Path) -> None:
    def launch(waits_ns: int) -> LaunchRecords:
        warmup = Warmup(
            steps=5,
            start_ns=0,
            end_ns=10**9 + waits_ns,
            step_ns=1,
            steady=True,
            reason="",
            waited_ns=waits_ns,
        )
        records: list[Record] = [warmup]
        end_ns = warmup.end_ns
        for phase, index in (("timed", 0), ("timed", 1), ("instrumented", 0)):
            start_ns = end_ns + waits_ns
            end_ns = start_ns + 2 * 10**9
            block = Block(
                phase=phase,  # type: ignore[arg-type]
                index=index,
                steps=1,
                samples=1,
                start_ns=start_ns,
                end_ns=end_ns,
                waited_ns=waits_ns,
            )
            records.append(block)
        other = RankRecords(tmp_path / "rank-00001.attempt-0.jsonl", (replace(warmup, waited_ns=0),))
        ranks = RankRecords(tmp_path / "rank-00000.attempt-0.jsonl", tuple(records)), other
        return LaunchRecords(LaunchDir(tmp_path), ranks)

    for waits_ns in (0, 3 * 10**9):
        assert measured_seconds(launch(waits_ns)) == 1 + 2 + 2 + 2
        assert waited_seconds(launch(waits_ns)) == 4 * waits_ns / 1e9


CLOSED = "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:554] Connection closed by peer [127.0.0.1]:3112"


@pytest.mark.parametrize("heard", [(1, 0), (0, 1)])
def test_a_rank_that_leaves_by_os_exit_is_named_and_not_the_one_that_lost_it(
    tmp_path: Path, heard: tuple[int, int]
) -> None:
    run, case = RunDir(tmp_path), case_of()
    write_launch(run, case, 0, [RankLaunch(status="failed", error=CLOSED)], outcome=None)
    seen = Seen(ranks=2, alive_at=0.0)
    seen.beat(1, Pulse(3, "timed steps"), now=0.5)
    for rank in heard:
        seen.exited(rank, {0: 1, 1: 7}[rank], 0.0, now=1.0)
    verdict = judge(read_launch(run.launch(case.case_id, "measure", 0)), seen, purpose="measure", oom=False)
    assert (verdict.status, verdict.rank, verdict.phase) == ("failed", 1, "timed steps")
    assert verdict.error == (
        "rank 1 ended with exit code 7 and no record in timed steps after 3 steps (code that calls os._exit(7)?); "
        "see rank-00001.attempt-0.log"
    )


@pytest.mark.parametrize("code", [-6, 7])
def test_a_limit_of_the_address_space_is_named_where_a_log_tells_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    run, case = RunDir(tmp_path), case_of()
    write_launch(run, case, 0, [RankLaunch(status="failed", error=CLOSED)], outcome=None)
    launch = run.launch(case.case_id, "measure", 0)
    launch.log(1).write_text("  what():  Resource temporarily unavailable\nFatal Python error: Aborted\n")
    seen = Seen(ranks=2, alive_at=0.0)
    seen.exited(1, code, 0.0, now=1.0)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (760 << 20, 760 << 20))
    verdict = judge(read_launch(launch), seen, purpose="measure", oom=False)
    assert verdict.rank == 1
    assert (
        "; memory is limited to 760 MiB of address space: raise the limit with ulimit -v; see"
        in verdict.error
    )


@pytest.mark.parametrize(
    ("code", "value", "named"), [(-11, "DETAIL", 1), (-11, "INFO", 0), (-6, "DETAIL", 0)]
)
def test_the_variable_under_which_gloo_crashes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, value: str, named: int
) -> None:
    run, case = RunDir(tmp_path), case_of()
    write_launch(run, case, 0, [RankLaunch(status="failed", error=CLOSED)], outcome=None)
    launch = run.launch(case.case_id, "measure", 0)
    seen = Seen(ranks=2, alive_at=0.0)
    seen.exited(1, code, 0.0, now=1.0)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", value)
    verdict = judge(read_launch(launch), seen, purpose="measure", oom=False)
    said = (
        "; TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment may be why, DDP over gloo crashes so: unset it; "
        "see rank-"
    )
    assert verdict.error.count(said) == named


def test_a_rank_that_leaves_first_is_named_whatever_the_others_say_of_it(tmp_path: Path) -> None:
    run, case = RunDir(tmp_path), case_of()
    write_launch(
        run, case, 0, [RankLaunch(status="failed", error="NCCL: unhandled system error")], outcome=None
    )
    seen = Seen(ranks=2, alive_at=0.0)
    seen.exited(1, 7, 0.0, now=1.0)
    seen.exited(0, 1, 0.0, now=1.1)
    found = judge(read_launch(run.launch(case.case_id, "measure", 0)), seen, purpose="measure", oom=False)
    assert found.rank == 1


def test_a_rank_that_ended_without_a_record_gives_way_to_one_that_recorded_its_failure(
    tmp_path: Path,
) -> None:
    """Ray ends the other ranks with code 1 if one has failed, and may report their ends first."""
    run, case = RunDir(tmp_path), case_of()
    own = RankLaunch(status="failed", error="RuntimeError: the forward pass is broken")
    write_launch(run, case, 0, [own], outcome=None)
    seen = Seen(ranks=2, alive_at=0.0)
    seen.exited(1, 1, 0.0, now=1.0)
    seen.exited(0, 1, 0.0, now=1.1)
    found = judge(read_launch(run.launch(case.case_id, "measure", 0)), seen, purpose="measure", oom=False)
    assert (found.rank, found.error) == (0, "rank 0: RuntimeError: the forward pass is broken")


def test_a_rank_that_we_ended_is_not_to_blame(tmp_path: Path) -> None:
    run, case = RunDir(tmp_path), case_of()
    write_launch(run, case, 0, [RankLaunch(status="failed", error="ValueError: mine")], outcome=None)
    seen = Seen(ranks=2, alive_at=0.0)
    seen.exited(0, 1, 0.0, now=1.0)
    seen.end(5.0)
    seen.exited(1, -9, 0.0, now=5.1)
    found = judge(read_launch(run.launch(case.case_id, "measure", 0)), seen, purpose="measure", oom=False)
    assert (found.rank, found.error) == (0, "rank 0: ValueError: mine")


def test_a_strategy_that_refuses_a_model_in_the_proof_is_skipped_without_naming_a_rank(
    tmp_path: Path,
) -> None:
    run, case = RunDir(tmp_path), case_of()
    refused = RankLaunch(status="skipped", error="fsdp cannot train this model: no scalars")
    write_launch(run, case, 0, [refused, RankLaunch(status="failed", error=CLOSED)], outcome=None)
    seen = Seen(ranks=2, alive_at=0.0)
    for rank in (1, 0):
        seen.exited(rank, 1, 0.0, now=1.0)
    found = judge(read_launch(run.launch(case.case_id, "measure", 0)), seen, purpose="measure", oom=False)
    assert (found.status, found.error) == ("skipped", "fsdp cannot train this model: no scalars")
