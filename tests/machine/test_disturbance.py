"""The owners of processor time: helpers beneath ranks, and not others' children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpbench.machine import disturbance
from ddpbench.machine.disturbance import NoiseWatch, own_cpu_s

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
        assert 0.3 <= watch.helper_cpu_s < 0.5  # its own part of the second
    finally:
        for one in ranks:
            subprocess.run(["pkill", "-P", str(one.pid)], check=False)
            one.kill()
            one.wait()


BURN_AND_END = "import time\nwhile time.process_time() < 0.3: pass"


def test_own_time_is_of_all_beneath_be_they_alive_or_not() -> None:
    """A grandchild that burns and ends is waited for by its parent, which ends midway; another keeps running."""
    middle = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN_AND_END!r}])"
    before, began = own_cpu_s(), time.process_time()
    subprocess.run([sys.executable, "-c", middle], check=True)
    lasting = subprocess.Popen(
        [sys.executable, "-c", f"{BURN_AND_END}\nprint(flush=True)\ntime.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert lasting.stdout is not None
        lasting.stdout.readline()
        beneath = own_cpu_s() - before - (time.process_time() - began)
        assert 0.55 <= beneath < 1.2  # twice 0.3 s, in ticks, and three interpreters' starts
        mine = own_cpu_s()
        lasting.kill()
        lasting.wait()
        assert -0.05 <= own_cpu_s() - mine < 0.3
    finally:
        lasting.kill()
        lasting.wait()
        lasting.stdout.close()


def test_what_another_program_uses_is_not_own() -> None:
    """It is an orphan: its parent has ended."""
    started = f"subprocess.Popen([sys.executable, '-c', {BURN!r}], stdout=subprocess.DEVNULL)"
    orphan = f"import subprocess, sys\nprint({started}.pid, flush=True)"
    before = own_cpu_s()
    printed = subprocess.run(
        [sys.executable, "-c", orphan], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    try:
        time.sleep(1.0)
        assert own_cpu_s() - before < 0.25
    finally:
        os.kill(int(printed), signal.SIGKILL)


def test_a_control_group_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "sys/fs/cgroup/pr\u00fcf"
    for path, text in (
        (tmp_path / "proc/self/cgroup", "0::/pr\u00fcf\n"),
        (tmp_path / "proc/stat", "cpu0 1 0 0 0 0 0 0 0\n"),
        (group / "cpu.stat", "usage_usec 9\nthrottled_usec 2000000\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(disturbance, "Path", lambda name: tmp_path / name.lstrip("/"))
    watch = NoiseWatch([0], list, shared_machine=True, helpers=False)
    (group / "cpu.stat").write_text("throttled_usec 3000000\n", encoding="utf-8")
    assert watch.totals().throttled_s == 1.0
