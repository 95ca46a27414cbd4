"""Run N of torchrun's agents with M ranks each on one machine, to test failures of nodes.

Run as `python -m ddpbench.worker.elastic RESTARTS N M FOLDER RUN_DIR CASE_ID ROUND`. Each agent represents a node, and
this process acts as the scheduler: it restarts a killed agent immediately, and one that has left when the file `join`
appears in FOLDER. Agent 0 hosts the store in which the agents meet.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ddpbench.guard import adopt_orphans, descendants, die_with_parent, kill_all
from ddpbench.machine.ports import free_port

LAST_CALL_S = 5
"""Time in seconds that nodes wait for further nodes once the minimum number of nodes has joined.

It has an effect only if the number of nodes may vary. torchrun's default is 30.
"""
_LOOK_S = 0.01
_END_S = 5.0


def gpus_of(number: int, ranks: int, visible: str | None) -> str:
    """Return the GPUs for the ranks of agent `number`, one per rank, as a value of CUDA_VISIBLE_DEVICES.

    `ranks` is the number of ranks per agent. `visible` lists all agents' GPUs (None: the machine's). Each agent needs
    its own list, because it numbers its ranks from 0.
    """
    mine = range(number * ranks, (number + 1) * ranks)
    names = [str(index) for index in range(mine.stop)] if visible is None else visible.split(",")
    return ",".join(names[index] for index in mine if index < len(names))


class Agents:
    """The torchrun agents of one launch."""

    def __init__(
        self, count: int, ranks: int, folder: Path, worker: list[str], *, fewest: int, restarts: int
    ) -> None:
        """Prepare `count` agents with `ranks` ranks each, without starting them.

        Training needs at least `fewest` agents. Each agent may restart its ranks `restarts` times.
        """
        self._count, self._ranks, self._folder = count, ranks, folder
        port = free_port()
        nodes = str(count) if fewest == count else f"{fewest}:{count}"
        self._line = [
            *(sys.executable, "-P", "-m", "ddpbench.worker.agent"),
            f"--nnodes={nodes}",
            f"--nproc-per-node={ranks}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            f"--rdzv-id={port}",
            "--local-addr=127.0.0.1",
            f"--max-restarts={restarts}",
        ]
        self._worker = ["-m", "ddpbench.worker", *worker]
        self._leaves = fewest < count
        self._again = restarts
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._away: set[int] = set()

    def start(self, number: int) -> None:
        """Start agent `number` as a child process."""
        parent = os.getpid()
        options = f"is_host={int(number == 0)},last_call_timeout={LAST_CALL_S}"
        # If ranks used the agents' store, restarted ones could read addresses of the earlier ones (torch
        # 2.13, gloo).
        env = os.environ | {
            "DDPBENCH_NODE": str(number),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "CUDA_VISIBLE_DEVICES": gpus_of(number, self._ranks, os.environ.get("CUDA_VISIBLE_DEVICES")),
        }
        self._running[number] = subprocess.Popen(
            [*self._line, f"--rdzv-conf={options}", *self._worker],
            env=env,
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  one prctl
        )

    def run(self) -> int:
        """Start all agents and wait. Return 0 once all have exited without an error, or 1 once one has failed.

        If the case plans a failure, the last agent is meant to exit. Its exit does not count as a failure, and the
        agent is started again.
        """
        for number in range(self._count):
            self.start(number)
        while self._running:
            time.sleep(_LOOK_S)
            self._reap()
            if self._away and (self._folder / "join").exists():
                self.start(self._away.pop())
            for number, process in list(self._running.items()):
                code = process.poll()
                if code is None:
                    continue
                del self._running[number]
                planned = number == self._count - 1 and number > 0 and (self._folder / "failed").exists()
                if code == -signal.SIGKILL and planned and not self._leaves and self._again:
                    self._again -= 1
                    self.start(number)
                elif code != 0 and planned and self._leaves and not (self._folder / "join").exists():
                    self._away.add(number)
                elif code != 0:
                    return 1
        return 0

    def _reap(self) -> None:
        """Reap ranks whose agent was killed, so that their CPU time counts for this launch."""
        agents = {process.pid for process in self._running.values()}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in agents:
                    return  # `poll` reaps it
                os.waitpid(ended.si_pid, 0)

    def end(self) -> None:
        """Ask all running agents to end. After `_END_S` seconds, kill the remaining agents and all their processes."""
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline and any(one.poll() is None for one in self._running.values()):
            time.sleep(_LOOK_S)
        kill_all(descendants(os.getpid()))


def main() -> None:
    """Run a launch's agents, then exit with 0 if all ended without an error, otherwise with 1."""
    restarts, count, ranks, folder, *worker = sys.argv[1:]
    fewest, _, most = count.rpartition(":")
    agents = Agents(
        int(most), int(ranks), Path(folder), worker, fewest=int(fewest or most), restarts=int(restarts)
    )

    def asked_to_end(_number: int, _frame: FrameType | None) -> None:
        agents.end()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, asked_to_end)
    adopt_orphans()
    try:
        code = agents.run()
    finally:
        agents.end()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
