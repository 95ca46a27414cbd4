"""Wall times of rounds, and of the work of sessions outside rounds."""

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
    """Return the wall time (seconds) of a round of these cases.

    It is the sum over cases of the mean launch, including the launch's share of starting the fork server.
    """
    return math.fsum(
        fmean(launch.wall_s + launch.server_s for launch in case.launches) for case in cases if case.launches
    )


def server_start_s(cases: Sequence[CaseRun], among: Collection[TimingKey]) -> float:
    """Return the mean time (seconds) per round for starting fork servers, over the rounds in `among`."""
    shares = [
        launch.server_s
        for case in cases
        for launch in case.launches
        if launch.timing is not None and launch.timing.pair in among
    ]
    return math.fsum(shares) / len(among)


def launches_wall_s(cases: Sequence[CaseRun]) -> float:
    """Return the total wall time (seconds) of all launches of these cases, including fork servers."""
    return math.fsum(launch.wall_s + launch.server_s for case in cases for launch in case.launches)


def session_walls_s(run: RunDir) -> list[float]:
    """Return the recorded wall times (seconds) of a run's sessions."""
    with suppress(IdentityError, NotADirectoryError):  # a saved file has no sessions
        return [float(wall) for entry in read_sessions(run) if (wall := entry.get("wall_s")) is not None]
    return []


def begin_wall_s(run: RunDir, cases: Sequence[CaseRun]) -> float:
    """Return a session's wall time (seconds) outside its rounds, for example for importing torch and for proofs.

    It is a mean over sessions, and 0 if not recorded.
    """
    walls = session_walls_s(run)
    return max(0.0, math.fsum(walls) - launches_wall_s(cases)) / len(walls) if walls else 0.0
