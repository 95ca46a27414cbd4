"""Find the session of a sweep in which a launch ran, by the session's name in its outcome or else by its start time."""

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
"""Tolerance of a session's start, which is computed from its end and its length in whole seconds, rounded down."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """The start and end times, in order, of old sessions without an id. Such sessions never overlap."""

    spans: tuple[tuple[datetime, datetime], ...] = ()

    @classmethod
    def of(cls, run: RunDir) -> Sessions:
        """Return the sessions of a run; empty if `sessions.json` is missing or damaged.

        Also empty for a merged run, whose round numbers already distinguish sessions.
        """
        if run.merged.exists():
            return cls()
        try:
            return cls(tuple(sorted(_spans(read_sessions(run)))))
        except IdentityError:
            return cls()

    def session_of(self, session: str, started_utc: str) -> str:
        """Return a text that identifies a launch's session, from its outcome's `session` and `started_utc`.

        Without a name, the start time decides. Launches between two recorded sessions count as one session, which was
        killed.
        """
        started = utc_of(started_utc)
        if session or started is None or not self.spans:
            return session
        for number, (begin, end) in enumerate(self.spans, start=1):
            if started <= end:
                return f"#{number}" if started >= begin else f"before #{number}"
        return f"after #{len(self.spans)}"


def _spans(entries: Iterable[dict[str, Any]]) -> Iterable[tuple[datetime, datetime]]:
    """Yield start and end of sessions without an id. In this older version, `started_utc` is the end."""
    for entry in entries:
        if entry.get("session"):
            continue
        end, wall_s = utc_of(entry.get("started_utc")), entry.get("wall_s")
        if end is not None and wall_s is not None:
            with contextlib.suppress(OverflowError):  # the start would be before year 1
                yield end - timedelta(seconds=wall_s) - _SLACK, end


UNKNOWN = Sessions()
"""An empty `Sessions`, which assigns no launch to a session by its time."""


def stop_reason_of(run: RunDir) -> str:
    """Return the reason why the last session of a run stopped; empty if the reason was not recorded."""
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
    """Return the entries of a run's `sessions.json`; empty if the file does not exist.

    Raises:
        IdentityError: the file is damaged, or has a different schema.
    """
    if not run.sessions.exists():
        return []
    data = run.read_json(run.sessions)
    check(_Sessions, run.sessions, data)
    entries: list[dict[str, Any]] = data["sessions"]
    return entries
