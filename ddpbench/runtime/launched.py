"""Start ranks on this machine by torchrun, mp.spawn, srun, mpiexec or Ray, one launch at a time.

`LaunchedRanks` has the interface of a fork server, but starts more slowly, because each rank is a new `python -m
ddpbench.worker` that imports everything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ddpbench.errors import LaunchError, MachineError, ServerGoneError
from ddpbench.guard import (
    COMPILER_CACHE,
    compiler_cache,
    descendants,
    die_with_parent,
    kill_all,
    remove_unused_cache,
)
from ddpbench.helper_process import child_environment
from ddpbench.machine.placement import applied
from ddpbench.machine.ports import free_port
from ddpbench.records import LaunchDir
from ddpbench.records.files import open_to_append, write_anew
from ddpbench.records.heartbeat import (
    PAGE_BYTES,
    WORDS_BYTES,
    Pulse,
    noted_end,
    noted_lives,
    noted_pid,
    read_pulse,
    shared_page,
)
from ddpbench.records.job_key import SECRET_VARIABLE
from ddpbench.records.reader import read_launch
from ddpbench.records.request import LaunchRequest
from ddpbench.records.schema import RankOutcome
from ddpbench.removal import Identity, TemporaryFolder, remove_tree
from ddpbench.spec import Case
from ddpbench.strategies.frameworks.installed import missing

RANKS_VARIABLE = "DDPBENCH_RANKS"
"""Environment variable with the path of the file that `LaunchedRanks.launch` writes for its ranks.

The file has each rank's environment, and the path of the shared memory for heartbeats.
"""
SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable of Python that has the effect of `python -P`."""
_OWN = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "DDPBENCH_RENDEZVOUS"}
)
"""Environment variables that each launcher sets for its ranks in its own way."""
_PLACES = {
    "mpiexec": "RANK=$PMI_RANK WORLD_SIZE=$PMI_SIZE LOCAL_RANK=$MPI_LOCALRANKID",
    "srun": "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID",
}
_PMI = ("HYDRA", "MPICH", "Intel(R) MPI", "MVAPICH")
"""Names that appear in the version text of an mpiexec that supports PMI."""
START_S = {"ray": 180.0}
"""Extra time allowed until a rank's first sign of life, by launcher (s), because Ray first starts its own servers."""
RESTARTS = 3
"""Maximum number of restarts of failed ranks by torchrun: for one planned failure and two others."""
_END_S = 10.0
_PAGE = "ddpbench-page-"
"""Prefix of the name of a launch's temporary folder, with the heartbeat file, settings and the launcher's files."""
_SHORT = 16
"""Maximum length of a temporary folder's path under Ray. Ray's socket paths add 91 characters, and a socket path has at
most 107.
"""
_STALE_S = 3600.0
"""Age from which an unlocked temporary folder is removed (s). A sweep may not yet have locked a younger folder."""


def _program(launcher: str) -> str | None:
    own = Path(sys.executable).parent / launcher
    return str(own) if own.is_file() else shutil.which(launcher)


def check_launcher(launcher: str) -> None:
    """Check that a launcher can start ranks on this machine.

    Raises:
        MachineError: the launcher cannot start ranks; the message says what is missing.
    """
    if launcher in ("local", "spawn", "torchrun"):
        return
    if launcher == "ray":
        if reason := missing("ray_train"):
            raise MachineError(f'launcher = "ray": {reason}')
        return
    if _program(launcher) is None:
        needs = 'pip install "ddpbench[mpi]"' if launcher == "mpiexec" else "Slurm's commands"
        raise MachineError(f'launcher = "{launcher}": {launcher} is not on PATH; it needs {needs}')
    if launcher == "mpiexec":
        _check_mpiexec(_program(launcher) or launcher)
    if launcher == "srun" and not os.environ.get("SLURMD_NODENAME"):
        raise MachineError(
            'launcher = "srun": srun starts ranks on the node of its allocation; run the sweep in a job there: '
            "sbatch --nodes=1 --wrap 'ddpbench sweep ...'"
        )


def _check_mpiexec(program: str) -> None:
    """Check that an mpiexec supports PMI, from which ranks learn their numbers.

    Raises:
        MachineError: the mpiexec does not support PMI, or cannot be run.
    """
    needs = 'pip install "ddpbench[mpi]" brings one'
    try:
        found = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=30,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f'launcher = "mpiexec": {program} cannot be run ({error}); {needs}') from None
    if not any(name in found.stdout for name in _PMI):
        first = (found.stdout.strip() or "it does not say what it is").partition("\n")[0]
        raise MachineError(
            f'launcher = "mpiexec": {program} is not part of MPICH or a related MPI ({first}), so ranks would not '
            f"get their rank numbers; {needs}"
        )


def command_of(launcher: str, ranks: int, worker: Sequence[str]) -> list[str]:
    """Return the command by which a launcher starts `ranks` ranks; `worker` has the arguments of `ddpbench.worker`."""
    python = sys.executable
    if launcher == "spawn":
        return [python, "-P", "-m", "ddpbench.worker.spawn", str(ranks), *worker]
    if launcher == "ray":
        return [python, "-P", "-m", "ddpbench.worker.ray", str(ranks), *worker]
    if launcher == "torchrun":
        run = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0"]
        run.append("--local-addr=127.0.0.1")  # otherwise ranks use this host's name, which may lead elsewhere
        return [python, "-P", "-m", *run, "-m", "ddpbench.worker", *worker]
    rank = shlex.join([python, "-P", "-m", "ddpbench.worker", *worker])
    line = ["bash", "-c", f"{_PLACES[launcher]} exec {rank}"]
    program = _program(launcher) or launcher
    if launcher == "mpiexec":
        return [program, "-bind-to", "none", "-n", str(ranks), *line]
    node = os.environ["SLURMD_NODENAME"]
    shape = ["--nodes=1", f"--nodelist={node}", f"--ntasks={ranks}", "--cpu-bind=none", "--overcommit"]
    return [program, *shape, "--overlap", "--mpi=none", "--kill-on-bad-exit=1", *line]


def elastic_command(case: Case, folder: Path, worker: Sequence[str]) -> list[str]:
    """Return the command that starts a case's ranks under torchrun agents, which restart failed ranks."""
    fewest = "1:" if case.recovery == "leave" else ""
    shape = [
        str(RESTARTS),
        f"{fewest}{case.agents}",
        str(case.world_size // case.agents),
        str(folder.absolute()),
    ]
    return [sys.executable, "-P", "-m", "ddpbench.worker.elastic", *shape, *worker]


class LaunchedRanks:
    """Ranks started by the case's launcher. As a context manager, it ends all their processes on exit."""

    start_s = 0.0
    reports_helper_times = False

    def __init__(self, case: Case, log: Path) -> None:
        self._case, self._launcher, self._log = case, case.launcher, log
        _remove_stale_pages()
        # All in one folder: otherwise another user who sees the page's name could create the other files first.
        self._made = TemporaryFolder(_PAGE, _pages(self._launcher))
        self._folder = self._made.path
        self._lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # if folders cannot be locked, none counts as stale
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # the kernel releases it, however this process ends
        self._page_file = self._folder / "page"
        try:
            write_anew(self._page_file, bytes(PAGE_BYTES + WORDS_BYTES))
            self._page = shared_page(self._page_file)
        except BaseException:  # for example, the disk is full
            self._forget()
            raise
        self._words = memoryview(self._page).cast("Q")
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: LaunchDir | None = None
        self._ranks = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids that ranks have reported; for a rank that has not reported, the launcher's id."""
        return tuple(noted_pid(self._words, rank) or self.pid for rank in range(self._ranks))

    def forget(self) -> None:
        """Forget the ranks' process ids, because all ranks have ended."""
        self._ranks = 0

    @property
    def pid(self) -> int:
        """Return the launcher's process id; this process's id before the launcher is started."""
        return self._process.pid if self._process is not None else os.getpid()

    @property
    def is_stopped(self) -> bool:
        """Return False: unlike for a fork server, nothing checks whether a launcher is stopped."""
        return False

    def give_up_stopped(self) -> None:
        """Raise `ServerGoneError`; never called, because `is_stopped` is always False."""
        raise ServerGoneError(f"{self._launcher} was stopped")

    def launch(self, envs: Sequence[Mapping[str, str]], directory: LaunchDir) -> bool:
        """Start the launcher, which starts one rank per environment; ranks read the request in `directory`.

        Return False, because nothing needs to be prepared before the launch.

        Raises:
            LaunchError: the launcher cannot be started.
        """
        self._directory = directory
        table = self._folder / "ranks.json"
        own = [{name: value for name, value in env.items() if name not in _OWN} for env in envs]
        case = directory.path.parent
        recovers = self._case.recovery != "off" and directory.path.name != "proof"
        run_id = LaunchRequest.read(directory.request).run_id if recovers else ""
        gangs = directory.checkpoints(self._case.checkpoint_dir, run_id)
        folder = self._folder / "d"
        if self._launcher == "ray":
            folder.mkdir(mode=0o700)
        settings = {
            "page": str(self._page_file),
            "ranks": own,
            "gangs": str(gangs) if recovers else "",
            "folder": str(folder),
            "safe_path": SAFE_PATH in os.environ,
        }
        write_anew(table, json.dumps(settings))
        what = "proof" if directory.path.name == "proof" else directory.path.name.removeprefix("launch-")
        worker = [str(case.parent.parent.absolute()), case.name, str(int(what)) if what != "proof" else what]
        env = self._environment(envs[0], table, case.parent.parent)
        parent = os.getpid()
        line = (
            elastic_command(self._case, gangs, worker)
            if recovers
            else command_of(self._launcher, len(envs), worker)
        )
        with open_to_append(self._log) as output:
            try:
                self._process = subprocess.Popen(
                    line,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),  # noqa: PLW1509  one prctl
                )
            except OSError as error:
                raise LaunchError(f"{self._launcher} cannot be started: {error.strerror}") from None
        self._ranks = len(envs)
        return False

    def _environment(self, first: Mapping[str, str], table: Path, run: Path) -> dict[str, str]:
        """Return the launcher's environment, given rank 0's, the file with the ranks' own, and the run's folder."""
        env = applied(child_environment(), dict(first))
        for name in (*_OWN, "DDPBENCH_CORES", "DDPBENCH_LOADER_CORES", SECRET_VARIABLE):
            env.pop(name, None)
        # torchrun starts ranks without -P, so Python would look for modules in the working directory first.
        env |= {RANKS_VARIABLE: str(table), "PYTHONUNBUFFERED": "1", SAFE_PATH: "1"}
        env.setdefault("OMP_NUM_THREADS", "1")  # otherwise torchrun sets this, with a message
        # Ranks of Ray and of torchrun's agents have no guard that sets it.
        env.setdefault(COMPILER_CACHE, str(compiler_cache(run).absolute()))
        if self._launcher == "torchrun":  # otherwise it leaves a folder for logs in /tmp
            env["PET_LOG_DIR"] = str(self._folder / "logs")
        if self._launcher not in ("torchrun", "ray"):  # those two set the address themselves
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        return env

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return one `exited` event per rank once the launcher has ended; `[]` if it still runs after `timeout_s`."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while True:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() >= deadline:
                return []
            time.sleep(min(0.01, timeout_s))
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        # Ranks that outlive the launcher have a different parent by now, but have reported their own ids.
        kill_all(pid for rank, pid in enumerate(self.pids) if noted_lives(self._words, rank))
        ranks, self._ranks = self._ranks, 0
        noted = {rank: noted_end(self._words, rank) for rank in range(ranks)}
        ends = self._ends(ranks)
        cpu_s = max(usage.ru_utime + usage.ru_stime, sum(end.cpu_s or 0.0 for end in ends.values())) / ranks
        codes = {rank: 0 if end.status == "ok" else 1 for rank, end in ends.items()}
        codes |= {rank: each for rank, each in noted.items() if each is not None}
        fallback = code if code else 1
        return [
            {"event": "exited", "rank": rank, "code": codes.get(rank, fallback), "cpu_s": cpu_s}
            for rank in sorted(range(ranks), key=lambda rank: codes.get(rank, fallback) == 0)
        ]

    def _ends(self, ranks: int) -> dict[int, RankOutcome]:
        assert self._directory is not None
        outcomes = {rank.rank: rank.last(RankOutcome) for rank in read_launch(self._directory).ranks}
        return {rank: end for rank, end in outcomes.items() if end is not None and rank < ranks}

    def pulse(self, rank: int) -> Pulse:
        """Return a rank's heartbeat."""
        return read_pulse(self._words, rank)

    def signal_ranks(self, number: signal.Signals, pids: tuple[int, ...] | None = None) -> None:
        """Send a signal to all ranks, or to the processes in `pids`. SIGKILL ends the launcher and its processes."""
        if number == signal.SIGKILL:
            self._end()
            return
        for pid in self.pids if pids is None else pids:
            if pid != self.pid:  # the launcher itself gets only SIGKILL
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def _end(self) -> None:
        """End the launcher, which ends ranks that are not its descendants; then kill the rest."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        below = descendants(process.pid)
        os.kill(process.pid, signal.SIGTERM)  # Popen's method may reap the process, which is left to `events`
        deadline = time.monotonic() + _END_S
        while (
            time.monotonic() < deadline
            and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ):
            time.sleep(0.02)
        kill_all([*below, *descendants(process.pid), process.pid])

    def close(self) -> None:
        """End all remaining processes, and remove the temporary folder."""
        try:
            self._end()
            if self._process is not None and self._process.returncode is None:
                self._process.wait()
        finally:
            self._words.release()
            self._page.close()
            self._forget()

    def _forget(self) -> None:
        self._made.remove()
        if self._directory is not None:
            remove_unused_cache(compiler_cache(self._directory.path.parents[2]))
        os.close(self._lock)

    def __enter__(self) -> LaunchedRanks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remove_stale_pages() -> None:
    """Remove this user's temporary folders that killed sweeps left and no process has locked."""
    folders = {_pages(launcher) for launcher in ("torchrun", "ray")}
    for path in [path for folder in folders for path in Path(folder).glob(f"{_PAGE}*")]:
        with contextlib.suppress(OSError):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            held = os.open(path, flags)
            try:
                found = os.fstat(held)
                if time.time() - found.st_mtime > _STALE_S and found.st_uid == os.getuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(path, made=Identity.of(found), private=True)
            finally:
                os.close(held)


def _pages(launcher: str) -> str:
    usual = tempfile.gettempdir()
    return "/tmp" if launcher == "ray" and len(usual) > _SHORT and Path("/tmp").is_dir() else usual
