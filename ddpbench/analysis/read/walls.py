"""Wall times of rounds, and of a session's work outside them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from statistics import fmean

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.timings import TimingKey
from ddpbench.errors import IdentityError
from ddpbench.records import RunDir
from ddpbench.records.sessions import read_sessions


def round_wall_s(cases: Sequence[CaseRun]) -> float:
    """Return the wall time of a round of these cases, seconds.

    It is the sum of each case's mean launch, with its share of server start-up.
    """
    return math.fsum(
        fmean(launch.wall_s + launch.server_s for launch in case.launches) for case in cases if case.launches
    )


def server_start_s(cases: Sequence[CaseRun], among: Collection[TimingKey]) -> float:
    """Return the mean start-up time of fork servers per round, seconds, over the rounds in `among`."""
    shares = [
        launch.server_s
        for case in cases
        for launch in case.launches
        if launch.timing is not None and launch.timing.pair in among
    ]
    return math.fsum(shares) / len(among)


def launches_wall_s(cases: Sequence[CaseRun]) -> float:
    """Return the wall time of all launches of these cases, seconds."""
    return math.fsum(launch.wall_s + launch.server_s for case in cases for launch in case.launches)


def session_walls_s(run: RunDir) -> list[float]:
    """Return the wall times of a run's sessions, seconds, as far as recorded."""
    with suppress(IdentityError, NotADirectoryError):  # a saved file has no sessions
        return [float(wall) for entry in read_sessions(run) if (wall := entry.get("wall_s")) is not None]
    return []


def begin_wall_s(run: RunDir, cases: Sequence[CaseRun]) -> float:
    """Return a session's wall time outside its rounds, seconds, as for importing torch and for proofs.

    It is 0 if not recorded.
    """
    walls = session_walls_s(run)
    return max(0.0, math.fsum(walls) - launches_wall_s(cases)) / len(walls) if walls else 0.0
