"""A job's script as a whole: compared with a kept one, and read by bash and sbatch."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.launch.external import JobShape
from ddpbench.launch.slurm.disks import place
from ddpbench.launch.slurm.request import Option, Request
from ddpbench.launch.slurm.script import Slots, job_script

GOLDEN = Path(__file__).parent / "golden"
PLAIN = Request(sizes=(2,), ranks_per_node=8)
FULL = Request(
    sizes=(2,),
    ranks_per_node=8,
    options=(
        Option(name="partition", value="gpu"),
        Option(name="gres", value="gpu:8"),
        Option(name="exclusive"),
        Option(name="comment", value='it\'s "quoted" \\ # $HOME'),
        Option(name="job-name", value="mine"),
        Option(name="no-requeue"),
    ),
    setup=("module load cuda", "source ~/env/bin/activate"),
    port=29500,
)


def script(request: Request, path: str = "/work/run/nodes-2", *, retry_failed: bool = False) -> str:
    return job_script(
        Path(path),
        "strategies-2",
        JobShape(2, 8),
        request,
        cpus=4,
        time_s=1500.0,
        slots=Slots(
            python="/opt/env/bin/python",
            again="ddpbench submit /work/run",
            retry_failed=retry_failed,
            local=place(request.local, "0123456789abcdef" * 2, 2) if request.local else "",
        ),
    )


LOCAL = replace(PLAIN, local="/scratch/$USER")


@pytest.mark.parametrize(("name", "request_"), [("plain", PLAIN), ("full", FULL), ("local", LOCAL)])
def test_a_script_is_as_it_is_kept(name: str, request_: Request) -> None:
    assert script(request_) == (GOLDEN / f"{name}.sbatch").read_text(encoding="utf-8")


def test_one_node_of_one_rank_is_said_in_the_singular() -> None:
    slots = Slots(python="python", again="ddpbench submit run")
    script = job_script(Path("run"), "x", JobShape(1, 1), PLAIN, cpus=1, time_s=60.0, slots=slots)
    assert "what this run directory plans for 1 node of 1 rank. To follow it:" in script


def test_a_script_is_a_script(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(script(FULL, '/a b/it\'s "100 %"', retry_failed=True))
    assert subprocess.run(["bash", "-n", path], capture_output=True, check=False).stderr == b""
    assert '--output="/a b/it\'s \\"100 %%\\"/slurm-%j.out"' in path.read_text()
    assert "--retry-failed" in path.read_text()


def test_what_is_given_replaces_what_would_be_said() -> None:
    lines = script(FULL).splitlines()
    assert [line for line in lines if "job-name" in line] == ["#SBATCH --job-name=mine"]
    assert "#SBATCH --requeue" not in lines
    assert "#SBATCH --requeue" in script(PLAIN).splitlines()


def test_every_line_for_slurm_stands_before_the_first_command() -> None:
    lines = script(FULL).splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]
