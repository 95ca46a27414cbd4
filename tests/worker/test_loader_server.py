"""Loader workers and the process that forks them end with their rank, even if no process is left to end them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ddpbench.guard import kill_all
from tests.processes import alive

RANK = """
import multiprocessing, os, time
from ddpbench.worker.training.loader_server import PARENT
from multiprocessing.forkserver import _forkserver

os.environ[PARENT] = str(os.getpid())
workers = multiprocessing.get_context("forkserver")
workers.set_forkserver_preload(["ddpbench.worker.training.loader_server"])
started = [workers.Process(target=time.sleep, args=(600,)) for _ in range(2)]
for worker in started:
    worker.start()
print(_forkserver._forkserver_pid, *(worker.pid for worker in started), flush=True)
time.sleep(600)
"""


def test_they_die_with_their_rank(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", RANK], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        pids = [int(pid) for pid in rank.stdout.readline().split()]
        assert len(alive(pids, 0)) == 3
        rank.kill()
    left = alive(pids)
    kill_all(left)
    assert left == []
