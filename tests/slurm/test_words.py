"""No value leaves its quoted word: no name of an experiment, folder or option changes what a job's script runs."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddpbench.cli import run
from ddpbench.errors import RequestError
from ddpbench.launch.external import JobShape
from ddpbench.launch.slurm.disks import place
from ddpbench.launch.slurm.request import Option, Request
from ddpbench.launch.slurm.script import Slots, job_script
from ddpbench.launch.slurm.words import job_name
from ddpbench.text_safety import command

NASTY = (
    "a\nid > owned",
    "a\n#SBATCH --wrap=id",
    "$(touch owned)",
    "`touch owned`",
    '"; touch owned; "',
    "'; touch owned; '",
    "a\\",
    "a\r",
    "\u2028touch owned",
    "${IFS}",
    "-x",
    "# b",
    "% %j",
    "*",
    "",
)
ODD = st.one_of(
    st.sampled_from(NASTY), st.text(max_size=12), st.text("\"'\\$`\n;&|<>(){}#!~ ab", max_size=12)
)
NAMES = ("partition", "comment", "gres", "job-name", "mail-user")
STUBS = {
    "srun": 'printf "%s\\0" "$@" >> "$RECORD"',
    "scontrol": "echo n1",
    "module": ":",
}


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    for name, body in STUBS.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


def as_run(text: str, stubs: Path, folder: Path) -> list[str]:
    """Run a script in an empty folder and return the words that its one srun got."""
    record = folder.with_suffix(".record")
    record.write_bytes(b"")
    folder.mkdir(exist_ok=True)
    env = {"PATH": f"{stubs}:/usr/bin:/bin", "RECORD": str(record), "SLURM_JOB_ID": "7", "USER": "me"}
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=env, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(folder.iterdir()), "a word of it was run"
    return record.read_bytes().decode("utf-8").split("\0")[:-1]


def as_worker(inner: str, folder: Path) -> list[str]:
    """Return the words of the command that a task's shell runs."""
    line = f'exec() {{ printf "%s\\0" "$@"; }}; {inner}'
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env={"USER": "me"}, capture_output=True, timeout=20, check=False
    )
    assert not list(folder.iterdir()), "a word of it was run"
    return done.stdout.decode("utf-8").split("\0")[:-1]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    stem=ODD,
    folder=ODD.filter(lambda text: "\0" not in text),
    python=ODD.filter(lambda text: bool(text) and "\0" not in text),
    options=st.dictionaries(st.sampled_from(NAMES), st.none() | ODD, max_size=3),
    local=st.sampled_from(("", "/scratch/$USER")),
)
@example(stem="a\n#SBATCH --wrap=id", folder="run", python="python", options={}, local="")
@example(stem="a", folder="run\ntouch owned", python="python", options={}, local="")
@example(stem="a", folder="$(touch owned)", python="'; touch owned; '", options={"comment": "`id`"}, local="")
@example(stem="a", folder="run", python="py\nthon", options={}, local="/scratch/$USER")
def test_a_script_does_the_same_whatever_its_values_are(
    stem: str,
    folder: str,
    python: str,
    options: dict[str, str | None],
    local: str,
    stubs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run_dir = Path("/work") / f"r{folder}" / "nodes-2"
    try:
        request = Request(
            sizes=(2,),
            ranks_per_node=1,
            options=tuple(Option(name=name, value=value) for name, value in options.items()),
            local=local,
        )
        text = job_script(
            run_dir,
            job_name(stem, 2),
            JobShape(2, 1),
            request,
            cpus=1,
            time_s=600.0,
            slots=Slots(
                python=python,
                again=command("ddpbench", "submit", run_dir.parent),
                local=place(local, "0" * 32, 2) if local else "",
            ),
        )
    except RequestError as error:
        assert re.search("which a job's script cannot hold|which is special to Slurm", str(error))  # noqa: PT017
        return
    own = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "output", "open-mode"}
    lines = [line for line in text.split("\n") if line.startswith("#SBATCH")]
    read = [shlex.split(line.removeprefix("#SBATCH ")) for line in lines]
    assert all(len(words) == 1 for words in read), "an option of more than one word"
    found = dict(words[0].removeprefix("--").partition("=")[::2] for words in read)
    assert set(found) == {*own, *options, "no-requeue" if local else "requeue"}
    assert {name: found[name] for name in options} == {name: value or "" for name, value in options.items()}
    if local:
        assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0
        return
    empty = tmp_path_factory.mktemp("empty") / "cwd"
    words = as_run(text, stubs, empty)
    assert words[-3:-1] == ["bash", "-c"]
    assert as_worker(words[-1], empty) == [python, "-P", "-m", "ddpbench.worker", str(run_dir)]


@pytest.mark.parametrize("stem", [*NASTY, "é", "a" * 300, "../..", "x y"])
def test_a_jobs_name_is_a_word_of_letters_digits_and_few_marks(stem: str) -> None:
    name = job_name(stem, 4)
    assert name.endswith("-4")
    assert len(name) <= 80
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert name[0] not in ".-"


def test_a_usual_name_stays_as_it_is() -> None:
    assert job_name("first_week-2", 16) == "first_week-2-16"


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\x1b[2J", "a\u202eb", "a\udc80b"])
def test_every_field_that_reaches_a_script_is_one_line(text: str) -> None:
    def script(**given: object) -> str:
        values = {"again": "again", "python": "python", "run_dir": "/r"} | given
        return job_script(
            Path(str(values["run_dir"])),
            str(values.get("name", "n")),
            JobShape(1, 1),
            Request(sizes=(1,), ranks_per_node=1),
            cpus=None,
            time_s=60.0,
            slots=Slots(
                python=str(values["python"]),
                again=str(values["again"]),
            ),
        )

    for field in ("again", "python", "run_dir", "name"):
        with pytest.raises(RequestError, match="which a job's script cannot hold"):
            script(**{field: text})
    with pytest.raises(RequestError, match="--comment"):
        Option(name="comment", value=text)
    with pytest.raises(RequestError, match="is not an option of sbatch"):
        Option(name=text)
    with pytest.raises(RequestError, match="--setup"):
        Request(sizes=(1,), ranks_per_node=1, setup=(text,))
    with pytest.raises(RequestError, match="--local"):
        Request(sizes=(1,), ranks_per_node=1, local=f"/{text}")


def test_an_empty_folder_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["submit", "quick", "--nodes", "1", "--dry-run", "--local", ""])
    assert "--local: the value is empty" in capsys.readouterr().err


def test_an_experiments_file_name_with_a_second_line_is_only_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line to the script: a line break in the file's name adds no line to the script."""
    path = tmp_path / "exp\n#SBATCH --wrap=id\ntouch owned\n.toml"
    path.write_text((Path(__file__).parents[2] / "experiments/quick.toml").read_text(encoding="utf-8"))
    assert run(["submit", str(path), "--nodes", "1", "--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert "#SBATCH --job-name=exp-SBATCH---wrap-id-touch-owned-1" in lines
    assert not [line for line in lines if line.startswith(("#SBATCH --wrap", "touch"))]


@pytest.mark.parametrize("folder", ["/work/a\\b", "/work/b\\", "/work/a\\/nodes-1"])
def test_a_backslash_in_a_directory_sends_no_output_to_another_folder(folder: str) -> None:
    """Slurm drops a backslash in the path of a job's output, and then puts no job's number in the name."""

    def script(local: str) -> str:
        return job_script(
            Path(folder),
            "a-1",
            JobShape(1, 1),
            Request(sizes=(1,), ranks_per_node=1, local=local),
            cpus=None,
            time_s=60.0,
            slots=Slots(
                python="python",
                again="ddpbench submit DIR",
                local=place(local, "0" * 32, 1) if local else "",
            ),
        )

    with pytest.raises(RequestError, match=r"the character .* in the path of a job's output"):
        script("")
    assert "#SBATCH --output=/dev/null\n" in script("/scratch/$USER")
