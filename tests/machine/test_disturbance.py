"""Whose processor time is whose: helpers beneath ranks, and nobody else's children."""

from __future__ import annotations

import subprocess
import sys
import time

from ddpbench.machine.disturbance import NoiseWatch

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ntime.sleep(30)"


def test_helpers_are_what_ranks_have_started() -> None:
    rank = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"
    ranks = [subprocess.Popen([sys.executable, "-c", text]) for text in (rank, BURN)]
    try:
        time.sleep(1.0)
        watch = NoiseWatch([0], lambda: [one.pid for one in ranks], shared_machine=True, helpers=True)
        deadline = time.monotonic() + 20
        while watch.helper_cpu_s < 0.3 and time.monotonic() < deadline:
            time.sleep(0.2)
            watch.tick(computing=False)
        assert 0.3 <= watch.helper_cpu_s < 0.5  # of the second it is its own time
    finally:
        for one in ranks:
            subprocess.run(["pkill", "-P", str(one.pid)], check=False)
            one.kill()
            one.wait()
