"""A process that tries the names it reads, one per line, and answers each with a line of JSON; in its own
namespaces.

With root it has its own network, processes, /tmp and /dev/shm: anything left there was left by the input it
tried, and the input cannot reach other processes. Without root it checks its own folder and processes alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN = tuple(place for place in ("/tmp", "/dev/shm") if not ROOT.is_relative_to(place))
"""Places that are empty in an isolated job, where nothing may be left, and shared otherwise; without the one
that holds this code, if any.
"""
WORK = next(place for place in ("/mnt", "/srv") if not ROOT.is_relative_to(place))
"""Working folder of an isolated job, also its own."""
_ISOLATED = "DDPBENCH_CAMPAIGN_ISOLATED"


def can_isolate() -> bool:
    """Return whether this user may make namespaces."""
    command = ["unshare", "-m", "-n", "-p", "-i", "--fork", "--mount-proc", "true"]
    return os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0


def start(*, isolated: bool) -> subprocess.Popen[str]:
    """Start a job; write names to it, read answers from it, close its input to end it."""
    python = [sys.executable, "-m", "tests.campaign.job"]
    if isolated:
        mounts = " && ".join(f"mount -t tmpfs tmpfs {place}" for place in (*OWN, WORK))
        inside = f'{mounts} && ip link set lo up && exec "$@"'
        unshare = ["unshare", "-m", "-n", "-p", "-i", "--fork", "--kill-child", "--mount-proc"]
        python = [*unshare, "sh", "-c", inside, "sh", *python]
    return subprocess.Popen(
        python,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**_environment(), _ISOLATED: str(int(isolated)), "DDPBENCH_SHARED_MACHINE": "1"},
    )


def _environment() -> dict[str, str]:
    """Return this process's environment without what importing torch adds: a place in /tmp that would look
    like the user's.
    """
    return {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}


def serve(names: Iterator[str]) -> None:
    """Try each name that is read, and print what was wrong with it."""
    from tests.campaign import faults, rundirs, trial

    isolated = os.environ[_ISOLATED] == "1"
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
    ):  # ignored in processes started by nohup or &, and so in theirs
        signal.signal(number, signal.SIG_DFL)
    shared = [Path(place) for place in OWN] if isolated else []
    if isolated:
        tempfile.tempdir = WORK
    trial.prepare()
    with tempfile.TemporaryDirectory(prefix="ddpbench-campaign-") as folder:
        for number, line in enumerate(names):
            name = line.rstrip("\n")
            began = time.monotonic()
            tried = faults.tried if name.startswith("fault:") else trial.tried
            try:
                wrong = tried(name, Path(folder) / str(number), shared)
            except Exception:  # a fault of the campaign is a finding too
                wrong = [f"the campaign itself: {traceback.format_exc()[-1500:]}"]
            answer = {"name": name, "wrong": wrong, "seconds": round(time.monotonic() - began, 2)}
            try:
                print(json.dumps(answer), flush=True)
            except BrokenPipeError:  # the reader has gone
                break
    rundirs.forget()


if __name__ == "__main__":
    serve(iter(sys.stdin))
