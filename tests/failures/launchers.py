"""Other launchers for tests: torchrun agents, and plain processes that set the five variables themselves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.failures.conftest import ROOT, run_cli

TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Ended:
    """A process that has ended, and its standard error."""

    code: int
    stderr: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC")}
    # The test's own imports don't belong to the job.
    return {**inherited, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(extra or {})}


def plan(experiment: Path, out: Path, *settings: str, nodes: int = 2, ranks: int = 1) -> Path:
    """Write a run directory for nodes that are all this machine."""
    names = ",".join(["127.0.0.1"] * nodes)
    overrides = [word for setting in settings for word in ("--set", setting)]
    result = run_cli(
        "plan", experiment, "--nodes", names, "--ranks-per-node", ranks, "--out", out, "--json", *overrides
    )
    assert result.returncode == 0, result
    assert json.loads(result.stdout)["run_dir"] == str(out)
    return out


def start(argv: Sequence[object], env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(word) for word in argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(env),
    )


def await_all(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    ended: list[Ended] = []
    try:
        for process in processes:
            _, errors = process.communicate(timeout=TIMEOUT_S)
            ended.append(Ended(process.returncode, errors))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return ended


def agents(
    run_dirs: Sequence[Path],
    *,
    ranks: int = 1,
    c10d: bool = False,
    env: Sequence[Mapping[str, str]] = ({}, {}),
    worker: Sequence[object] = (),
) -> list[subprocess.Popen[str]]:
    """Start a torchrun agent for each run directory, on loopback; in reverse, since nodes come in any order."""
    port = free_port()
    shape = [f"--nnodes={len(run_dirs)}", f"--nproc-per-node={ranks}"]
    started: list[subprocess.Popen[str]] = []
    for number, run_dir in reversed(list(enumerate(run_dirs))):
        meet = (
            [
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{port}",
                "--rdzv-id=test",
                "--local-addr=127.0.0.1",
            ]
            if c10d
            else [f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        )
        argv = [sys.executable, "-m", "torch.distributed.run", *shape, *meet]
        started.insert(0, start([*argv, "-m", "ddpbench.worker", run_dir, *worker], env[number]))
    return started


def slots(
    run_dirs: Sequence[Path],
    *,
    ranks: int | Sequence[int] = 1,
    env: Sequence[Mapping[str, str]] = ({}, {}),
    worker: Sequence[object] = (),
) -> list[subprocess.Popen[str]]:
    """Start what a user's own launcher would: `ranks` slots for each run directory, each a node."""
    port = free_port()
    counts = [ranks] * len(run_dirs) if isinstance(ranks, int) else ranks
    return [
        start(
            [sys.executable, "-m", "ddpbench.worker", run_dir, *worker],
            {
                "RANK": str(sum(counts[:node]) + local),
                "WORLD_SIZE": str(sum(counts)),
                "LOCAL_RANK": str(local),
                "NODE_RANK": str(node),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **env[node],
            },
        )
        for node, run_dir in enumerate(run_dirs)
        for local in range(counts[node])
    ]
