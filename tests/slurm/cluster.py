"""A real Slurm of a few nodes, all on this machine: its daemons are children of the test, its files in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_CONFIGURATION = """\
ClusterName=ddpbench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
SlurmdTimeout=5
MessageTimeout=5
BatchStartTimeout=10
EpilogMsgTime=0
JobRequeue=1
FirstJobId={port}
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE
PartitionName=short Nodes=n1 MaxTime=30 State=UP OverSubscribe=EXCLUSIVE
PartitionName=closed Nodes=ALL AllowAccounts=physics State=UP
"""
_READY_S = 30.0


def missing() -> str:
    """Return why no cluster can be started here; empty if one can."""
    lacking = [name for name in ("slurmctld", "slurmd", "sbatch", "srun") if shutil.which(name) is None]
    return f"needs Slurm: {', '.join(lacking)} not on PATH" if lacking else ""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@dataclass
class Cluster:
    """The daemons, and the requests that tests make of them."""

    folder: Path
    names: tuple[str, ...]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """Return the environment with which commands find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "GLOO_SOCKET_IFNAME": "lo"}

    def start(self, name: str) -> None:
        """Start a daemon: the controller, or a node's."""
        argv = ["slurmctld", "-D", "-c"] if name == "slurmctld" else ["slurmd", "-D", "-N", name]
        env = {
            key: value for key, value in os.environ.items() if key != "DDPBENCH_TEST_TAG"
        }  # belongs to no single test
        log = (self.folder / f"{name}.out").open("ab")
        self.daemons[name] = subprocess.Popen(
            argv, env=env | self.env, stdout=log, stderr=log, start_new_session=True
        )
        log.close()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a daemon, and wait for its end."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(number)
        daemon.wait(20)

    def ask(self, *argv: str) -> str:
        """Return the output of one of Slurm's commands."""
        done = subprocess.run(
            argv, env=os.environ | self.env, capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout.strip()

    def job(self, job_id: str) -> dict[str, str]:
        """Return what the controller knows about a job."""
        return dict(
            part.partition("=")[::2] for part in self.ask("scontrol", "-o", "show", "job", job_id).split(" ")
        )

    def wait_for(self, job_id: str, *states: str, within_s: float = 60) -> str:
        """Return the state that a job reached."""
        deadline = time.monotonic() + within_s
        while True:
            state = self.job(job_id).get("JobState", "GONE")
            if state in states:
                return state
            assert time.monotonic() < deadline, f"job {job_id} is {state} after {within_s} s"
            time.sleep(0.2)

    def await_idle(self) -> None:
        """Wait until every node is up and idle."""
        deadline = time.monotonic() + _READY_S
        while self.ask("sinfo", "-h", "-p", "debug", "-o", "%T %D") != f"idle {len(self.names)}":
            assert time.monotonic() < deadline, self.ask("sinfo")
            time.sleep(0.1)


@contextlib.contextmanager
def cluster(folder: Path, *, nodes: int = 2, cpus: int = 4) -> Iterator[Cluster]:
    """Yield a cluster of this many nodes; remove it afterwards."""
    names = tuple(f"n{number + 1}" for number in range(nodes))
    port, *ports = _free_ports(1 + nodes)
    host = socket.gethostname().partition(".")[0]
    lines = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={own} CPUs={cpus} RealMemory=2000 State=UNKNOWN"
        for name, own in zip(names, ports, strict=True)
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("state", *(f"spool/{name}" for name in names)):
        (folder / name).mkdir(parents=True)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    text = _CONFIGURATION.format(host=host, user=user, port=port, folder=folder, nodes=lines)
    (folder / "slurm.conf").write_text(text)
    made = Cluster(folder, names)
    try:
        made.start("slurmctld")
        for name in names:
            made.start(name)
        made.await_idle()
        yield made
    finally:
        if "slurmctld" in made.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                made.ask("scancel", f"--user={user}")
                deadline = time.monotonic() + 15
                while made.ask("squeue", "-h") and time.monotonic() < deadline:
                    time.sleep(0.2)
        for name in (*names, "slurmctld"):
            if name in made.daemons:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    made.kill(name, signal.SIGTERM)
        for daemon in made.daemons.values():
            daemon.kill()
