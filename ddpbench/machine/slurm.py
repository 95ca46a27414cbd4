"""Find the Slurm job that this process belongs to, if any, and how long the job waited in the queue."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from datetime import datetime

_ASK_S = 20.0


def _scontrol(job_id: str) -> str:
    """Return Slurm's information about a job as one line; `""` if Slurm does not answer."""
    try:
        done = subprocess.run(
            ["scontrol", "-o", "show", "job", job_id],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def queue_wait_s(shown: str) -> float | None:
    """Return how long a job waited in the queue (s), from the output of `scontrol -o show job`; None if it is unknown.

    For a requeued job, this is the wait since it was requeued.
    """
    fields = dict(part.partition("=")[::2] for part in shown.split())
    try:
        submitted, started = (datetime.fromisoformat(fields[name]) for name in ("SubmitTime", "StartTime"))
    except (KeyError, ValueError):
        return None
    return max(0.0, (started - submitted).total_seconds())


def own_job(
    slots: int, env: Mapping[str, str] = os.environ, ask: Callable[[str], str] = _scontrol
) -> dict[str, object] | None:
    """Return the facts that `machine.json` stores about this process's Slurm job; None outside a job.

    `slots` is the number of slots for ranks in the job.
    """
    job_id = env.get("SLURM_JOB_ID", "")
    nodes = env.get("SLURM_JOB_NUM_NODES", "") or env.get("SLURM_NNODES", "")
    if not job_id.isdecimal() or not nodes.isdecimal():
        return None
    restarts = env.get("SLURM_RESTART_COUNT", "")
    return {
        "job_id": job_id,
        "restarts": int(restarts) if restarts.isdecimal() else 0,
        "nodes": int(nodes),
        "slots": slots,
        "queue_wait_s": queue_wait_s(ask(job_id)),
    }
