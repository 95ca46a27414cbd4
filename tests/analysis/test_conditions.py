"""Conditions of comparisons: the remarks of answers and findings next to their numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddpbench.analysis.findings.wording import conditions
from ddpbench.analysis.invariants.checked import Bounded, Checked, Violation
from ddpbench.analysis.names import Names
from ddpbench.analysis.overview.build import summarize
from ddpbench.analysis.overview.validity import (
    _disturbances,
    _own_steps,
    _slow_interfaces,
    _untimed_transfers,
)
from ddpbench.analysis.overview.warnings import warning_sentences
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.measurement import _loaders_share_cores
from ddpbench.analysis.read.measurement import _slow_interfaces as _slow_interfaces_of
from ddpbench.analysis.read.pace import Pacing
from ddpbench.analysis.scaling.fits import _remarks
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import step_time
from ddpbench.records import RankStart, RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, Case
from ddpbench.spec.links import links_of
from ddpbench.strategies.traits import hides_transfers
from tests.analysis.test_findings import DDP, MASTER
from tests.synthetic import RankLaunch, case_of, processes_of, write_launch, write_plan

WIDE, NARROW = (case_of("ddp", 2, bucket_cap_mb=cap) for cap in (25.0, 1.0))


def runs(path: Path, *cases: Case, flagged: int = 0, flag: str = "steal") -> list[CaseRun]:
    """Return the cases with four launches each, the first of which have this flag."""
    run = RunDir(path / "run")
    write_plan(run, list(cases), Budget())
    for case in cases:
        for number in range(4):
            write_launch(run, case, number, [RankLaunch()] * processes_of(case))
    return [
        replace(
            one,
            launches=tuple(
                replace(launch, flags=(flag,) if number < flagged else ())
                for number, launch in enumerate(one.launches)
            ),
        )
        for one in read_cases(run, read_plan(run))
    ]


def test_a_cap_that_all_share_is_said_and_the_default_is_not(tmp_path: Path) -> None:
    assert conditions(runs(tmp_path / "a", WIDE, MASTER)) == ("25 MiB buckets",)
    assert conditions(runs(tmp_path / "b", DDP, MASTER)) == ()
    assert conditions(runs(tmp_path / "c", WIDE, NARROW)) == ()  # those are distinguished by it
    assert conditions(runs(tmp_path / "d", MASTER)) == ()


def test_disturbances_of_most_launches_are_said(tmp_path: Path) -> None:
    assert conditions(runs(tmp_path / "a", DDP, MASTER, flagged=3)) == ("6 of 8 launches disturbed",)
    assert conditions(runs(tmp_path / "b", DDP, MASTER, flagged=2)) == ()
    assert conditions(runs(tmp_path / "c", DDP, MASTER, flagged=4, flag="not steady")) == ()
    assert conditions([]) == ()


def test_by_how_much_at_most_replays_were_late_is_said(tmp_path: Path) -> None:
    folders = iter(range(9))

    def paced(late: float, *cases: Case) -> list[CaseRun]:
        found = runs(tmp_path / f"{next(folders)}", *cases)
        step = step_time(found[0].timings).value
        pace = Pacing(
            lateness_s=np.array([0.0, 2 * late * step]), cpu_s=1.0, cores_s=10.0, optimizer_s=9.0, due_s=1.0
        )
        return [
            replace(one, launches=tuple(replace(launch, pace=pace) for launch in one.launches))
            for one in found
        ]

    words = "replayed computation came late: {} read up to {} % too long by this alone"
    assert conditions(paced(0.05, DDP)) == (words.format("its steps", 5.3),)  # 5 of 95
    assert conditions(paced(0.05, DDP), late=False) == ()
    assert conditions(paced(0.05, DDP, MASTER)) == (words.format("steps of DDP", 5.3),)
    assert conditions(paced(0.019, DDP)) == ()
    for late in (0.6, 1.0, 1.5):  # a worker's step may take several of the job's
        assert conditions(paced(late, DDP)) == (
            "replayed computation came late: its steps may read more than twice too long by this alone",
        )


def test_replays_that_fill_the_cores_are_said(tmp_path: Path) -> None:
    def busy(name: str, cpu_s: float, *cases: Case) -> list[CaseRun]:
        pace = Pacing(lateness_s=np.zeros(2), cpu_s=cpu_s, cores_s=10.0, optimizer_s=0.0, due_s=0.0)
        return [
            replace(one, launches=tuple(replace(launch, pace=pace) for launch in one.launches))
            for one in runs(tmp_path / name, *cases)
        ]

    eight = case_of("ddp", 8)
    assert conditions(busy("a", 9.1, DDP, eight)[1:]) == (
        "DDP took 91 % of this machine's cores, so that these set its pace",
    )
    full, idle = busy("b", 9.6, DDP, eight)[1], busy("c", 1.0, DDP)[0]
    assert conditions([idle, full]) == (
        "DDP at 8 ranks took 96 % of this machine's cores, so that these set its pace",
    )
    assert conditions(busy("d", 8.9, DDP)) == ()


@pytest.mark.parametrize(
    ("fabric", "exposed_s", "remark"),
    [
        (
            "1 Gbit/s",
            0.2,
            "29 % of a step is transfers beyond their link's time, the library's or this machine's",
        ),
        ("1 Gbit/s", 0.12, ""),
        ("", 0.2, ""),
        ("1 Gbit/s; latency 5000 \N{MICRO SIGN}s", 0.2, ""),
        ("1 Gbit/s; loss 1 %", 0.2, ""),
        ("1 Gbit/s; shared storage", 0.2, ""),
    ],
)
def test_what_transfers_take_beyond_their_links_is_said(
    tmp_path: Path, fabric: str, exposed_s: float, remark: str
) -> None:
    """A ring of two sends 10 MB once over its link of 1 Gbit/s: 84 of the 400 ms of a step."""
    case = case_of("ddp", 2, fabric=fabric, nodes=2) if fabric else DDP
    (run,) = runs(tmp_path, case)
    parts: Any = SimpleNamespace(exposed_s=exposed_s, step_s=0.4)
    launches = tuple(replace(launch, gradient_bytes=10**7) for launch in run.launches)
    assert not fabric or links_of(fabric) is not None
    assert conditions([replace(run, parts=parts, launches=launches)]) == ((remark,) if remark else ())


def test_validity_says_which_communication_cannot_be_timed(tmp_path: Path) -> None:
    gloo = case_of("ddp", 2, device="cuda", backend="gloo")
    mixed = runs(tmp_path, gloo, case_of("ddp", 2, device="cuda", backend="nccl"))
    (sentence,) = _untimed_transfers(mixed, Names(mixed))
    assert sentence.startswith(
        "1 case has step times and no times of communication, nor of a step's parts: gloo takes"
    )
    assert not list(_untimed_transfers(mixed[1:], Names(mixed[1:])))
    alone = runs(tmp_path / "alone", case_of("single", 1, device="cuda", backend="gloo"))
    assert not list(_untimed_transfers(alone, Names(alone)))  # it exchanges nothing


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed", "pipeline", "branches"])
def test_validity_says_which_libraries_hide_theirs(strategy: str, tmp_path: Path) -> None:
    ddp = case_of("ddp", 2, device="cuda", backend="nccl")
    hides = replace(ddp, strategy=strategy, bucket_cap_mb=None, algorithm="", schedule="")
    found = runs(tmp_path, ddp, hides, replace(hides, world_size=1), replace(hides, device="cpu"))
    (sentence,) = _untimed_transfers(found, Names(found))
    assert sentence.startswith("1 case has step times and no times of communication")
    assert "on GPUs they are made on streams that their library does not show" in sentence
    assert [hides_transfers(one.case) for one in found] == [False, True, False, False]


def test_validity_says_what_a_step_of_the_class_leaves_empty(tmp_path: Path) -> None:
    plain = runs(tmp_path / "a", DDP)
    assert not list(_own_steps(plain, Names(plain)))

    def own_steps(name: str, *cases: Case) -> list[CaseRun]:
        found = runs(tmp_path / name, *(replace(case, evaluation=True) for case in cases))
        launches = [tuple(replace(launch, own_step=True) for launch in one.launches) for one in found]
        return [replace(one, launches=own) for one, own in zip(found, launches, strict=True)]

    own = own_steps("b", DDP, MASTER)
    operations, evaluation = _own_steps(own, Names(own))
    assert operations == (
        "All 2 cases have steps of the class's own, no two of which need be alike: operations are not counted, and "
        "flops_per_sample and mfu are empty."
    )
    assert evaluation == (
        "All 2 cases have no evaluation: the class has a step() and no loss(), which is what evaluation computes."
    )
    timed = [
        replace(one, launches=tuple(replace(each, evaluation=each.timing) for each in one.launches))
        for one in own
    ]
    assert list(_own_steps(timed, Names(timed))) == [operations]
    parted = own_steps("c", case_of("fsdp", 2), MASTER)  # with parted state none is timed, for any class
    _, evaluation = _own_steps(parted, Names(parted))
    assert evaluation.startswith("1 case has no evaluation: ")


def test_validity_says_how_much_was_stolen(tmp_path: Path) -> None:
    stolen = iter((0.01, 0.03, 0.05, 0.25))
    found = [
        replace(
            one,
            launches=tuple(
                replace(launch, noise=replace(launch.noise, steal_fraction=next(stolen)))
                for launch in one.launches
            ),
        )
        for one in runs(tmp_path, DDP, flagged=3)
    ]
    (sentence,) = _disturbances(found)
    assert sentence.startswith(
        "Steal in 3 of 4 launches (4.0 % of the cores' time in the median of all, 25.0 % at most): "
    )
    (sentence,) = _disturbances(runs(tmp_path / "b", DDP, flagged=1, flag="clock change"))
    assert sentence.startswith("Clock change in 1 of 4 launches: ")


def test_a_serial_fraction_above_one_is_called_what_it_is() -> None:
    above, within = ({"s": Interval(value=value, low=value - 0.1, high=value + 0.1)} for value in (1.2, 0.9))
    assert _remarks("gustafson", above, beta_held=False) == [
        "The serial fraction is above 1: several ranks train fewer samples/s than one."
    ]
    assert _remarks("gustafson", within, beta_held=False) == []


def broken(rule: str, label: str, seen: float) -> Violation:
    return Violation(
        invariant=rule,
        statement="a speed-up is at most the number of ranks",
        meaning="",
        kind="doubtful",
        case_id=label,
        label=label,
        broken=Bounded(what="its speed-up", seen=seen, most=2.0, unit=""),
    )


def test_a_run_that_was_mostly_disturbed_is_doubted_before_any_number(tmp_path: Path) -> None:
    (sentence,) = warning_sentences(runs(tmp_path / "a", DDP, MASTER, flagged=3), Checked())
    assert sentence.startswith(
        "Most launches were disturbed (6 of 8): other guests of the host took over 1 % of the "
    )
    assert not list(warning_sentences(runs(tmp_path / "b", DDP, MASTER, flagged=2), Checked()))


def test_a_case_that_beats_its_upper_bound_is_doubted_before_any_number() -> None:
    checks = Checked(
        cases=3,
        violations=(
            broken("at_most_the_ranks", "ddp", 2.2),
            broken("at_most_the_ranks", "master", 2.4),
            broken("links_carry", "ring", 9.0),
        ),
    )
    (sentence,) = warning_sentences([], checks)
    assert sentence.startswith("A case beats its upper bound: master is more than linear")
    assert sentence.endswith(", and 1 more.")


SLOW = {"gloo_interface": "eth0 (1 Gbit/s)", "faster_interface": "ib0 (100 Gbit/s)"}


def on_hosts(*hosts: tuple[str, dict[str, str]]) -> list[RankStart]:
    """Return the starts of ranks, each with its host and the interfaces that it records."""
    return [
        RankStart(
            rank=rank,
            world_size=len(hosts),
            pid=1,
            host=host,
            started_ns=0,
            cores=(0,),
            threads=1,
            device="cpu",
            torch_version="2.13.0",
            **more,  # type: ignore[arg-type]
        )
        for rank, (host, more) in enumerate(hosts)
    ]


def test_a_slow_interface_is_told_of_launches_over_several_hosts() -> None:
    used, faster = SLOW.values()
    assert _slow_interfaces_of(on_hosts(("b", SLOW), ("a", SLOW), ("a", SLOW))) == (
        ("a", used, faster),
        ("b", used, faster),
    )
    fast = {"gloo_interface": "ib0 (100 Gbit/s)"}
    assert _slow_interfaces_of(on_hosts(("a", fast), ("b", SLOW))) == (("b", used, faster),)
    assert _slow_interfaces_of(on_hosts(("a", SLOW), ("a", SLOW))) == ()


def test_a_slow_interface_next_to_a_faster_one_is_reported(tmp_path: Path) -> None:
    used, faster = SLOW.values()
    cases = runs(tmp_path, DDP, MASTER)
    slow = tuple((f"n{number}", used, faster) for number in range(5))
    ddp, master = (
        replace(run, launches=tuple(replace(one, slow_interfaces=slow[:hosts]) for one in run.launches))
        for run, hosts in zip(cases, (2, 5), strict=True)
    )
    (sentence,) = _slow_interfaces([ddp, master], Names(cases))
    assert sentence == (
        "gloo used eth0 (1 Gbit/s) on n0, n1, n2 and 2 more in all 2 cases, though ib0 (100 Gbit/s) was there: "
        "GLOO_SOCKET_IFNAME chooses another interface."
    )
    # Another session, which followed the advice.
    half = replace(
        ddp,
        launches=tuple(
            replace(one, slow_interfaces=() if number else slow[:1])
            for number, one in enumerate(ddp.launches)
        ),
    )
    (sentence,) = _slow_interfaces([half, cases[1]], Names(cases))
    assert sentence.startswith("gloo used eth0 (1 Gbit/s) on n0 in 1 case (1 of 4 launches), though")
    assert not list(_slow_interfaces(cases, Names(cases)))


def test_what_ranks_note_of_their_interfaces_reaches_the_page(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [DDP], Budget())
    ranks = [RankLaunch(host=host, interfaces=("eth0", "ib0 (100 Gbit/s)")) for host in ("b", "a")]
    for number in range(2):
        write_launch(run, DDP, number, ranks)
    (said,) = (sentence for sentence in summarize(run).conclusions.validity if "gloo used" in sentence)
    assert said.startswith("gloo used eth0 on a and b in 1 case, though ib0 (100 Gbit/s) was there: ")


@pytest.mark.parametrize(
    ("ranks", "hosts", "workers", "shared"),
    [
        (4, 1, 3, False),  # 16 processes on the 16 cores of a socket
        (4, 1, 4, True),
        (4, 2, 4, False),  # ten of them on each host
        (1, 1, 16, True),
        (4, 1, 0, False),
    ],
)
def test_loader_workers_with_gpus_share_the_cores_of_a_socket_s_ranks(
    ranks: int, hosts: int, workers: int, shared: bool
) -> None:
    case = case_of("ddp", ranks, device="cuda", backend="nccl", loader_workers=workers)
    starts = [
        RankStart(
            rank=rank,
            world_size=ranks,
            pid=1,
            host=f"host{rank % hosts}",
            started_ns=0,
            cores=tuple(range(16)),
            threads=1,
            device="cuda",
            torch_version="2.13.0",
        )
        for rank in (*range(ranks), 0)  # rank 0 was started again
    ]
    assert _loaders_share_cores(case, starts) is shared
