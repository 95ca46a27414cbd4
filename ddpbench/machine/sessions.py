"""`sessions.json`: an entry for each time a sweep worked in a run directory, whoever started its ranks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ddpbench.errors import IdentityError
from ddpbench.records import SCHEMA_VERSION, RunDir, write_atomically


def note_session(run: RunDir, *, wall_s: float, measured_s: float, launches: int, stop_reason: str) -> str:
    """Adds an entry. Where the file is damaged it is begun anew, and the returned sentence says so."""
    sessions: list[dict[str, Any]] = []
    problem = ""
    if run.sessions.exists():
        try:
            sessions = run.read_json(run.sessions)["sessions"]
        except IdentityError as error:
            problem = str(error)
    sessions.append(
        {
            "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_s": round(wall_s, 3),
            "measured_s": round(measured_s, 3),
            "launches": launches,
            "stop_reason": stop_reason,
        }
    )
    data = {"schema_version": SCHEMA_VERSION, "sessions": sessions}
    write_atomically(run.sessions, json.dumps(data, indent=1) + "\n")
    return problem
