"""Run directories on the nodes' own disks, for clusters without a shared directory.

The job's script contains the packed run directory, and unpacks it on every node. One node gathers all records
(`worker/slot`), from which they are fetched with srun, during the job and after it.

The parent folder may be writable for every user, such as `/tmp`. Therefore the run's folder gets a random name and mode
700, and is checked on every node before use.
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

from ddpbench.errors import LaunchError, OutputError, RequestError
from ddpbench.launch.slurm.control import UnreachableError, environment
from ddpbench.launch.slurm.request import Request
from ddpbench.records.rundir import explain_os_error, explain_read_error
from ddpbench.text_safety import shortened
from ddpbench.units import format_bytes

MARK = "# The run directory:"
"""The last line of a script that the shell reads; an archive in base64 follows."""
MOST_ARCHIVE = 2_900_000
"""Largest archive, bytes: Slurm refuses scripts above 4 MB (`max_script_size`), and base64 turns 3 bytes into 4."""
IMMEDIATE_S = 60
"""Seconds that a fetch after a job's end waits for the nodes to be free. After that, the fetch fails."""
FETCH_S = 300.0
"""Time limit of a fetch, seconds."""
_MOST_FETCHED = 1 << 32
_LEFT_OUT = frozenset(
    ["report.html", "figures", "slides", "job.sbatch", ".lock", ".ddpbench", "cases.csv", "cases.parquet"]
)
"""Names in a run that are neither packed nor fetched."""
_SHARED_OPTIONS = ("partition", "account", "qos", "reservation", "constraint")
"""Options of sbatch that srun also has; without them srun might not get the same nodes."""


_CHECK = r"""own_folder() {  # whether nobody else can write in the folder, or put another in its place; it says why not
    local at start=$1 refuse="refused: $1" root owner mode
    case $1 in /*) ;; *) echo "$refuse is not an absolute path"; return 1 ;; esac
    if [ -L "$1" ] || ! [ -d "$1" ]; then echo "$refuse is not a folder"; return 1; fi
    if ! [ -O "$1" ]; then echo "$refuse belongs to another user"; return 1; fi
    mode=$(stat -c %a -- "$1")
    case $mode in 700|2700) ;; *) echo "$refuse has mode $mode, not 700"; return 1 ;; esac
    root=$(stat -c %u /)
    for start in "$1" "$(realpath -- "$1")"; do
        at=${start%/*}
        while [ -n "$at" ]; do
            read -r owner mode < <(stat -c '%u %a' -- "$at") || { echo "$refuse changed"; return 1; }
            case $owner in "$root"|0|"$EUID") ;; *) echo "$refuse is below $at of another user"; return 1 ;; esac
            if ! [ -L "$at" ] && (( 8#$mode & 2 && ! (8#$mode & 512) )); then
                echo "$refuse is below $at, where others can put another in its place"
                return 1
            fi
            at=${at%/*}
        done
    done
}"""
"""Bash function that checks that nobody else can write to a folder or replace it.

A parent folder may be writable for others if it has the sticky bit, as /tmp has.
"""


def place(local: str, key: str, nodes: int) -> str:
    """Return a run directory's path on the disks of its `nodes` nodes, as a shell word that the nodes' shells expand.

    `local` is the parent folder, which `Request` has checked, and `key` the random part of the name.
    """
    return f'"{local}/ddpbench-{key}-nodes-{nodes}"'


def unpacking(where: str, nodes: int) -> list[str]:
    """Return the lines of a job's script that unpack the run directory on each node; `where` is from `place`."""
    one_each = f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --export=ALL --mpi=none"
    unpack = (
        f'; run={where}; make_folder "$run" && base64 -d | '
        'tar -x -J --keep-newer-files --warning=no-ignore-newer -C "$run"'
    )
    return [
        "# No directory is shared: the run directory stands at this script's end, and is unpacked on each node, in a",
        "# folder that is its owner's alone.",
        *_CHECK.splitlines(),
        "make_folder() {  # the folder may be there of an earlier job of this submission",
        '    mkdir -p -- "${1%/*}" && { mkdir -m 700 -- "$1" 2> /dev/null; own_folder "$1" >&2; }',
        "}",
        f"run={where}",
        'make_folder "$run" || exit 1',
        'output="$run/slurm-$SLURM_JOB_ID.out"',
        'if [ -L "$output" ]; then exit 1; fi',
        'exec >> "$output" 2>&1 || exit 1',
        f"sed '1,/^{MARK}$/d' \"$0\" | {one_each} bash -c \\",
        f'  "$(declare -f own_folder make_folder)"{shlex.quote(unpack)} || exit 1',
        "",
    ]


def archive(run: Path) -> str:
    """Pack a run directory and return the archive in base64, as lines for a script.

    Raises:
        RequestError: the archive is too long for a script.
        OutputError: the run cannot be read.
    """
    packed = io.BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w:xz", preset=lzma.PRESET_DEFAULT) as file:
            for path in sorted(run.iterdir()):
                if path.name not in _LEFT_OUT and not path.name.startswith(("slurm-", "server-")):
                    file.add(path, arcname=path.name, filter=_plain)
    except OSError as error:
        raise OutputError(f"{run} cannot be read: {explain_read_error(error)}") from None
    data = packed.getvalue()
    if len(data) > MOST_ARCHIVE:
        raise RequestError(
            f"{run} takes {format_bytes(len(data))} packed, but a script can hold only "
            f"{format_bytes(MOST_ARCHIVE)}: use a directory that all nodes share, or fewer cases and "
            "rounds"
        )
    return base64.encodebytes(data).decode("ascii")


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a file's or folder's entry without its owner; None leaves anything else out."""
    if not (entry.isfile() or entry.isdir()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _srun(job_id: str | None, nodes: str, count: int, request: Request) -> list[str]:
    """Return the start of an srun command for one process per node; `job_id` is None after the job."""
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
    """Run a command on the nodes and return its output.

    Raises:
        UnreachableError: the command cannot be run on the nodes now, or fails.
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
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UnreachableError(
            f"srun: {shortened(lines[-1]) if lines else f'it ended with {done.returncode}'}"
        )
    return done.stdout


class RefusedFolderError(LaunchError):
    """A run's folder on a node is missing, or other users could have written to it."""


def fetch(run: Path, where: str, nodes: str, count: int, request: Request, *, job_id: str | None) -> None:
    """Fetch a job's records from the disks of its nodes into the run directory `run`.

    `where` is the folder on the nodes, from `place`. `nodes` is Slurm's list of the `count` nodes. `job_id` is None
    once the job has ended.

    Raises:
        UnreachableError: the nodes cannot be reached now, or none of them answered.
        RefusedFolderError: no node has a folder that only its owner can write to.
        OutputError: the run cannot be written here.
    """
    looking = (
        f'{_CHECK}\nrun={where}\nif why=$(own_folder "$run"); then\n'
        '    echo "$SLURMD_NODENAME $(ls "$run"/cases/*/*/outcome.json 2> /dev/null | wc -l)"\n'
        'else\n    echo "$SLURMD_NODENAME $why"\nfi'
    )
    said = _on_nodes(_srun(job_id, nodes, count, request), looking).decode("utf-8", "replace")
    found = {name: int(number) for name, number in re.findall(r"^(\S+) (\d+)$", said, flags=re.MULTILINE)}
    if not found:
        if refused := re.findall(r"^(\S+) refused: (.+)$", said, flags=re.MULTILINE):
            raise RefusedFolderError(f"{refused[0][1]} (on {refused[0][0]})")
        raise UnreachableError(f"no node of {nodes} sent its records of the run")
    most = max(found, key=lambda name: found[name])
    left_out = " ".join(f"--exclude=./{name}" for name in sorted(_LEFT_OUT))
    packing = f'{_CHECK}\nrun={where}\nown_folder "$run" >&2 && tar -c -z -C "$run" {left_out} .'
    data = _on_nodes(_srun(job_id, most, 1, request), packing)
    _unpack(run, data)


def _unpack(run: Path, data: bytes) -> None:
    """Unpack fetched records into the run, without overwriting newer files.

    Raises:
        UnreachableError: the archive was cut short in transfer.
        OutputError: the run cannot be written, or the files are too large.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as file:
            members = file.getmembers()
            if sum(member.size for member in members) > _MOST_FETCHED:
                raise OutputError(f"{run}: the nodes hold more than {format_bytes(_MOST_FETCHED)} of records")
            for member in members:
                here = run / member.name
                if not (member.isfile() or member.isdir()):
                    continue  # records are neither links nor pipes
                if member.isfile() and here.is_file() and here.stat().st_mtime > member.mtime + 1:
                    continue
                file.extract(member, run, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise UnreachableError(f"the archive from the nodes is incomplete: {error}") from None
    except OSError as error:
        raise OutputError(f"{run} cannot be written: {explain_os_error(error)}") from None
