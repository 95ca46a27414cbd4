"""Assign launches to the sessions of a sweep: by their outcome, or by time if an older version wrote it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, Field

from ddpbench.errors import IdentityError
from ddpbench.records.checked import check
from ddpbench.records.rundir import RunDir
from ddpbench.units import utc_of

_SLACK = timedelta(seconds=2)
"""Times were recorded in whole seconds, rounded down: a session's start follows from its end and its length.
"""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Times at which sessions without launch ids worked, in order; they never overlap."""

    spans: tuple[tuple[datetime, datetime], ...] = ()

    @classmethod
    def of(cls, run: RunDir) -> Sessions:
        """Return the sessions of a run; empty if the file is missing or damaged.

        Also empty for a merged run: its sessions may have worked at the same time on different machines, and
        rounds of different runs have different numbers anyway.
        """
        if run.merged.exists():
            return cls()
        try:
            return cls(tuple(sorted(_spans(read_sessions(run)))))
        except IdentityError:
            return cls()

    def session_of(self, session: str, started_utc: str) -> str:
        """Return the session of a launch, from its outcome's fields; the same text for all launches of one.

        A launch without an id is assigned by its start. Launches between two recorded sessions come from
        sessions that were killed before they were recorded: those count as one.
        """
        started = utc_of(started_utc)
        if session or started is None or not self.spans:
            return session
        for number, (begin, end) in enumerate(self.spans, start=1):
            if started <= end:
                return f"#{number}" if started >= begin else f"before #{number}"
        return f"after #{len(self.spans)}"


def _spans(entries: Iterable[dict[str, Any]]) -> Iterable[tuple[datetime, datetime]]:
    """Yield start and end of each session without an id, from its recorded end (`started_utc`) and length."""
    for entry in entries:
        if entry.get("session"):
            continue
        end, wall_s = utc_of(entry.get("started_utc")), entry.get("wall_s")
        if end is not None and wall_s is not None:
            with contextlib.suppress(OverflowError):  # before the first year that dates have
                yield end - timedelta(seconds=wall_s) - _SLACK, end


UNKNOWN = Sessions()
"""Sessions of a run without times: no session can be found by time."""


def stop_reason_of(run: RunDir) -> str:
    """Return why the last sweep of a run stopped; empty if that was not recorded."""
    try:
        entries = read_sessions(run)
    except IdentityError:
        return ""
    return (entries[-1].get("stop_reason") or "") if entries else ""


class _Session(BaseModel, extra="allow", strict=True):
    session: str = ""
    started_utc: str | None = None
    ended_utc: str | None = None
    wall_s: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    measured_s: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    launches: Annotated[int, Field(ge=0)] | None = None
    stop_reason: str | None = None


class _Sessions(BaseModel, strict=True):
    sessions: list[_Session]


def read_sessions(run: RunDir) -> list[dict[str, Any]]:
    """Return the sweeps that worked in a run, as they recorded themselves; empty if the file does not
    exist yet.

    Raises:
        IdentityError: the file is damaged, or has another schema.
    """
    if not run.sessions.exists():
        return []
    data = run.read_json(run.sessions)
    check(_Sessions, run.sessions, data)
    entries: list[dict[str, Any]] = data["sessions"]
    return entries
