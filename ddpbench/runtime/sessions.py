"""Write `sessions.json`, which has an entry for each session of a run, with any launcher.

A session is the time during which one sweep command works in the run's directory.
"""

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
    """A session of a sweep: the id that its launches record, and when it began."""

    id: str
    started_utc: str

    @classmethod
    def begin(cls) -> Session:
        """Return a session that begins now, with an id drawn at random."""
        return cls(secrets.token_hex(6), utc_now())


def note_session(
    run: RunDir, session: Session, *, wall_s: float, measured_s: float, launches: int, stop_reason: str
) -> str:
    """Add the entry of a session that ends. If the file was damaged, replace it and return a sentence that says so."""
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
