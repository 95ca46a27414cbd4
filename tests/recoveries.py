"""Complete synthetic trainings with snapshots: two ranks that fail once at a known time, and resume from a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ddpbench.analysis.recovery import RankRecovery
from ddpbench.records import Failure, Gang, RunDir, Snapshot, Trained
from ddpbench.spec import Budget, Case
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan, write_sessions

S = 1_000 * MS
BATCH = 4
KILLED = case_of(
    "ddp", 2, recovery="SIGKILL", launcher="torchrun", local_batch=BATCH, snapshot_every=20, agents=2
)
UNINTERRUPTED = replace(KILLED, recovery="uninterrupted")


@dataclass(frozen=True, kw_only=True)
class FailingLaunch:
    """A launch that fails at step `fails` with a snapshot every 20 steps, with set times of its last gang."""

    fails: int = 50
    step_ms: int = 50
    again_ms: int = 50
    """A step's time after the failure."""
    last: int = 150
    noticed_s: float = 0.5
    stopped_s: float = 1.0
    placed_s: float = 2.0
    meeting_s: float = 3.5
    met_s: float = 3.75
    ready_s: float = 4.0
    built_s: float | None = 0.15
    snapshot_ms: int = 20
    wrong_loss: float = 0.0
    lost: int = 0
    """Number of samples that rank 0 leaves out at its first step after the failure."""
    repeated: int = 0


def ranks_of(launch: FailingLaunch, case: Case = KILLED, *, start_ns: int = 100 * S) -> list[RankRecovery]:
    """Return what the launch's ranks recorded."""
    return [_rank(rank, launch, case, start_ns) for rank in range(case.world_size)]


def records_of(rank: RankRecovery) -> list[Gang | Snapshot | Trained | Failure]:
    """Return a rank's records as one list."""
    return [*rank.gangs, *rank.snapshots, *rank.trained, *rank.failures]


def _rank(rank: int, launch: FailingLaunch, case: Case, start_ns: int) -> RankRecovery:
    every, size = case.snapshot_every, case.local_batch
    uninterrupted = case.recovery == "uninterrupted"
    trained: list[Trained] = []
    snapshots: list[Snapshot] = []
    at = start_ns

    def train(gang: int, first: int, until: int, step_ms: int, at: int) -> int:
        done = first
        while done < until:
            end = min((done // every + 1) * every, until)
            ends = tuple(at + (index + 1) * step_ms * MS for index in range(end - done))
            places = [(step * 2 + rank) * size for step in range(done, end)]
            runs = [(place, size) for place in places]
            if gang and done == first and rank == 0:
                if launch.lost:
                    runs[0] = (places[0] + launch.lost, size - launch.lost)
                if launch.repeated:
                    runs[0] = (places[0], size - launch.repeated)
                    runs.insert(1, (places[0], launch.repeated))
            losses = tuple(
                3.0 - 0.01 * step + (launch.wrong_loss if gang else 0.0) for step in range(done, end)
            )
            trained.append(
                Trained(gang=gang, first=done, start_ns=at, ends_ns=ends, losses=losses, samples=tuple(runs))
            )
            at, done = ends[-1], end
            if done % every == 0:
                later = at + launch.snapshot_ms * MS
                size_bytes = 1_000_000 if rank == 0 else 0
                snapshots.append(Snapshot(gang=gang, step=done, bytes=size_bytes, start_ns=at, end_ns=later))
                at = later
        return at

    gangs = [_gang(0, 0, start_ns - S, case)]
    at = train(0, 0, launch.last if uninterrupted else launch.fails, launch.step_ms, at)
    failures: list[Failure] = []
    if not uninterrupted:
        failed_ns = at
        if rank == 1:
            failures.append(Failure(gang=0, what="SIGKILL", step=launch.fails, at_ns=failed_ns))
        step = launch.fails // every * every

        def after(seconds: float) -> int:
            return failed_ns + round(seconds * 1e9)

        gangs.append(
            Gang(
                number=1,
                world_size=case.world_size,
                noticed_ns=after(launch.noticed_s + 0.1 * rank),
                stopped_ns=after(launch.stopped_s),
                placed_ns=after(launch.placed_s),
                entered_ns=after(launch.placed_s + 0.2),
                started_ns=after(launch.meeting_s - 0.1),
                meeting_ns=after(launch.meeting_s),
                met_ns=after(launch.met_s),
                ready_ns=after(launch.ready_s),
                built_ns=None if launch.built_s is None else round((launch.built_s - 0.01 * rank) * 1e9),
                step=step,
                samples=step * 2 * size,
            )
        )
        train(1, step, launch.last, launch.again_ms, after(launch.ready_s))
    return RankRecovery(gangs, snapshots, trained, failures)


def _gang(number: int, step: int, at_ns: int, case: Case) -> Gang:
    return Gang(
        number=number,
        world_size=case.world_size,
        noticed_ns=None,
        stopped_ns=None,
        placed_ns=None,
        entered_ns=at_ns,
        started_ns=at_ns,
        meeting_ns=at_ns,
        met_ns=at_ns,
        ready_ns=at_ns,
        step=step,
        samples=0,
    )


def ended(launch: FailingLaunch, case: Case = KILLED) -> list[RankLaunch]:
    """Return ranks that end as one fails, without a recovery."""
    return [
        RankLaunch(
            more=records_of(
                RankRecovery(
                    [one.gangs[0]],
                    one.snapshots,
                    [each for each in one.trained if not each.gang],
                    one.failures,
                )
            ),
            status="failed",
        )
        for one in ranks_of(launch, case)
    ]


def write(folder: Path, launches: dict[Case, list[FailingLaunch]]) -> RunDir:
    """Write a run of these launches."""
    run = RunDir(folder)
    write_plan(run, list(launches), Budget(rounds_min=5, rounds_max=5))
    for case, every in launches.items():
        for number, launch in enumerate(every):
            ranks = [RankLaunch(more=records_of(each)) for each in ranks_of(launch, case)]
            write_launch(run, case, number, ranks)
    write_sessions(run)
    return run
