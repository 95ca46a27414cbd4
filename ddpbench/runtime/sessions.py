"""Write a run's `sessions.json`, with an entry for each time that a sweep command works in the directory."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from ddpbench.errors import IdentityError
from ddpbench.records import SCHEMA_VERSION, RunDir, write_atomically
from ddpbench.records.sessions import read_sessions
from ddpbench.units import utc_now


@dataclass(frozen=True, slots=True)
class Session:
    """The id of a session, which its launches record, and the time when the session began."""

    id: str
    started_utc: str

    @classmethod
    def begin(cls) -> Session:
        """Return a session that begins now, with a random id."""
        return cls(secrets.token_hex(6), utc_now())


def note_session(
    run: RunDir, session: Session, *, wall_s: float, measured_s: float, launches: int, stop_reason: str
) -> str:
    """Add the entry of an ended session to the run's `sessions.json`; return `""`, or a sentence if it was damaged."""
    sessions: list[dict[str, Any]] = []
    problem = ""
    try:
        sessions = read_sessions(run)
    except IdentityError as error:
        problem = str(error)
    sessions.append(
        {
            "session": session.id,
            "started_utc": session.started_utc,
            "ended_utc": utc_now(),
            "wall_s": round(wall_s, 3),
            "measured_s": round(measured_s, 3),
            "launches": launches,
            "stop_reason": stop_reason,
        }
    )
    data = {"schema_version": SCHEMA_VERSION, "sessions": sessions}
    write_atomically(run.sessions, json.dumps(data, indent=1) + "\n")
    return problem
