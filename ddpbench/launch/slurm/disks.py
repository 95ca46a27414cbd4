"""Runs on the nodes' own disks, where no directory is shared: they travel in a job's script, and are fetched with srun.

A job unpacks its run on every node. What a node has newer stays. The slots gather all records on one node
(`worker/slot`), from which they are fetched while the job runs, and once more when it has ended.
"""

from __future__ import annotations

import base64
import io
import lzma
import re
import shlex
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from ddpbench.errors import OutputError, RequestError
from ddpbench.launch.slurm.control import UnreachableError, environment
from ddpbench.launch.slurm.request import Request
from ddpbench.records.rundir import explain_os_error
from ddpbench.texts import shortened
from ddpbench.units import format_bytes

MARK = "# The run directory:"
"""The last line of a script that a shell reads; what follows is an archive in base64."""
MOST_ARCHIVE = 2_900_000
"""Slurm takes no script above 4 MB (`max_script_size`); base64 makes three bytes four."""
IMMEDIATE_S = 60
"""Until a fetch after a job has its turn on the nodes, seconds; then it is tried again later."""
FETCH_S = 300.0
"""Until it is done, seconds."""
_MOST_FETCHED = 1 << 32
_LEFT_OUT = frozenset(
    ["report.html", "figures", "slides", "job.sbatch", ".lock", "cases.csv", "cases.parquet"]
)
"""What the command that follows makes by itself."""
_SHARED_OPTIONS = ("partition", "account", "qos", "reservation", "constraint")
"""Options of sbatch that srun takes too, and without which it might not get the same nodes."""


def place(request: Request, name: str, key: str) -> str:
    """Return where the run called `name` is on a node, as a word of the shell, whose variables the node expands."""
    return f'"{request.local}/ddpbench-{key}-{name}"'


def unpacking(where: str, nodes: int) -> list[str]:
    """Return the script's lines that unpack the run directory on each node."""
    one_each = f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --export=ALL --mpi=none"
    unpack = (
        f"mkdir -p {where} && base64 -d | tar -x -J --keep-newer-files --warning=no-ignore-newer -C {where}"
    )
    return [
        "# No directory is shared: the run directory stands at this script's end, and is unpacked on each node.",
        f"run={where}",
        'mkdir -p "$run" && exec >> "$run/slurm-$SLURM_JOB_ID.out" 2>&1',
        f"sed '1,/^{MARK}$/d' \"$0\" | {one_each} bash -c \\",
        f"  {shlex.quote(unpack)} || exit 1",
        "",
    ]


def archive(run: Path) -> str:
    """Return a run directory as an archive in base64, lines of a script.

    Raises:
        RequestError: it is too long for a script.
        OutputError: it cannot be read.
    """
    packed = io.BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w:xz", preset=lzma.PRESET_DEFAULT) as file:
            for path in sorted(run.iterdir()):
                if path.name not in _LEFT_OUT and not path.name.startswith(("slurm-", "server-")):
                    file.add(path, arcname=path.name, filter=_plain)
    except OSError as error:
        raise OutputError(f"{run} cannot be read: {explain_os_error(error)}") from None
    data = packed.getvalue()
    if len(data) > MOST_ARCHIVE:
        raise RequestError(
            f"{run} takes {format_bytes(len(data))} packed, and a script holds {format_bytes(MOST_ARCHIVE)}: use a "
            "directory that all nodes see, or fewer cases and rounds"
        )
    return base64.encodebytes(data).decode("ascii")


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return what is packed of an entry: files and folders, and nobody's name."""
    if not (entry.isfile() or entry.isdir()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _srun(job_id: str | None, nodes: str, count: int, request: Request) -> list[str]:
    """Return srun on nodes of a job that runs, or on the same nodes once it has ended."""
    line = [
        "srun",
        "--quiet",
        f"--nodelist={nodes}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
    ]
    if job_id is not None:
        return [*line, f"--jobid={job_id}", "--overlap", "--mpi=none"]
    own = [f"--{name}={value}" for name in _SHARED_OPTIONS if (value := request.value(name)) is not None]
    return [*line, f"--immediate={IMMEDIATE_S}", "--job-name=ddpbench-fetch", "--time=10", "--mpi=none", *own]


def _on_nodes(line: Sequence[str], command: str) -> bytes:
    """Return what a command prints there.

    Raises:
        UnreachableError: it cannot be run there now.
    """
    try:
        done = subprocess.run(
            [*line, "bash", "-c", command],
            env=environment(None),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"srun did not end within {FETCH_S:.0f} s") from None
    except OSError as error:
        raise UnreachableError(f"srun cannot be run: {error.strerror}") from None
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UnreachableError(f"srun: {shortened(told[-1]) if told else f'it ended with {done.returncode}'}")
    return done.stdout


def fetch(run: Path, where: str, nodes: str, count: int, request: Request, *, job_id: str | None) -> None:
    """Brings the records of a job on these nodes into `run`; `job_id` is given while it runs.

    Raises:
        UnreachableError: the nodes cannot be asked now, or none of them has the run.
        OutputError: it cannot be written here.
    """
    looking = f'echo "$SLURMD_NODENAME $(ls {where}/cases/*/*/outcome.json 2>/dev/null | wc -l)"'
    told = _on_nodes(_srun(job_id, nodes, count, request), looking).decode("utf-8", "replace")
    found = {name: int(number) for name, number in re.findall(r"^(\S+) (\d+)$", told, flags=re.MULTILINE)}
    if not found:
        raise UnreachableError(f"no node of {nodes} said what it has of the run")
    most = max(found, key=lambda name: found[name])
    left_out = " ".join(f"--exclude=./{name}" for name in sorted(_LEFT_OUT))
    data = _on_nodes(_srun(job_id, most, 1, request), f"tar -c -z -C {where} {left_out} .")
    _unpack(run, data)


def _unpack(run: Path, data: bytes) -> None:
    """Writes what was fetched; files here that are newer stay, as on the nodes.

    Raises:
        UnreachableError: it was cut short on its way.
        OutputError: it cannot be written.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as file:
            members = file.getmembers()
            if sum(member.size for member in members) > _MOST_FETCHED:
                raise OutputError(f"{run}: what the nodes have of it is over {format_bytes(_MOST_FETCHED)}")
            for member in members:
                here = run / member.name
                if member.isfile() and here.is_file() and here.stat().st_mtime > member.mtime + 1:
                    continue
                file.extract(member, run, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise UnreachableError(f"what came from the nodes is no whole archive: {error}") from None
    except OSError as error:
        raise OutputError(f"{run} cannot be written: {explain_os_error(error)}") from None
