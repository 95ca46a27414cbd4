"""The parts of a submission that are read, and those that are refused before Slurm sees them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from ddpbench.cli import submit
from ddpbench.errors import RequestError
from ddpbench.launch.slurm import control
from ddpbench.launch.slurm.control import Partition, check_room
from ddpbench.launch.slurm.request import (
    Option,
    Request,
    options_of,
    parse_option,
    parse_sizes,
    parse_time,
    slurm_time,
)
from ddpbench.records.submission_dir import SubmissionDir


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("auto", None),
        ("45 min", 2700),
        ("90", 5400),
        ("90:30", 5430),
        ("2:30:00", 9000),
        ("1-12", 129_600),
        ("1-02:30", 95_400),
        ("1-02:30:10", 95_410),
        ("2h", 7200),
    ],
)
def test_a_time_limit_is_ours_or_slurms(text: str, seconds: float | None) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "3x", "1:2:3:4", "-5", "59 s", "400-0", "1-"])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--time"):
        parse_time(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "00:01:00"), (61, "00:02:00"), (9000, "02:30:00"), (95_400, "1-02:30:00")]
)
def test_slurm_is_told_whole_minutes_upwards(seconds: float, text: str) -> None:
    assert slurm_time(seconds) == text
    assert parse_time(text) == -(-seconds // 60) * 60


def test_sizes_come_ascending() -> None:
    assert parse_sizes("4, 1,2") == (1, 2, 4)


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "1,1", "1.5", "-1", "99999"])
def test_what_is_no_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--nodes"):
        parse_sizes(text)


@pytest.mark.parametrize("name", ["nodes", "array", "output", "time", "ntasks", "wait", "ntasks-per-node"])
def test_what_a_submission_sets_itself_is_not_taken(name: str) -> None:
    with pytest.raises(RequestError, match=f"--sbatch {name} is not accepted"):
        parse_option(f"{name}=1")


@pytest.mark.parametrize("name", ["bbf", "export-file", "export-fi", "export-"])
def test_no_option_has_sbatch_read_a_file_here(name: str) -> None:
    with pytest.raises(RequestError, match=f"--sbatch {name} is not accepted: sbatch would read a file"):
        parse_option(f"{name}=/home/me/.ssh/id_ed25519")
    assert parse_option("export=NONE").value == "NONE"
    assert parse_option("bb=capacity=1GB").name == "bb"


@pytest.mark.parametrize("text", ["", "=x", "-p x", "QOS=high", "a b=1"])
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="long name"):
        parse_option(text)


def test_a_line_of_a_script_holds_no_second_one() -> None:
    with pytest.raises(RequestError, match="--comment"):
        parse_option("comment=a\n#SBATCH --uid=0")
    with pytest.raises(RequestError, match="--setup"):
        Request(sizes=(1,), ranks_per_node=1, setup=("a\nb",))


def test_an_option_with_a_flag_of_its_own_is_given_once() -> None:
    options = options_of([("partition", "p"), ("gres", None)], ["qos=high", "hold"], exclusive=True)
    assert options == (
        Option(name="partition", value="p"),
        Option(name="exclusive"),
        Option(name="qos", value="high"),
        Option(name="hold"),
    )
    with pytest.raises(RequestError, match="--partition is given twice"):
        Request(sizes=(1,), ranks_per_node=1, options=(*options, Option(name="partition", value="q")))


KNOWN = (
    Partition(name="debug", nodes=2, time_s=None, default=True),
    Partition(name="short", nodes=4, time_s=1800.0, default=False),
    Partition(name="long", nodes=4, time_s=86_400.0, default=False),
)


@pytest.mark.parametrize(
    ("asked", "nodes", "seconds", "problem"),
    [
        (None, 2, 1e6, None),
        (None, 3, 60, "the partition debug has 2 nodes"),
        ("short", 4, 1800, None),
        (
            "short",
            4,
            1801,
            "the jobs ask for 31 min, but the limit of partition short is 30 min. With --time 30",
        ),
        ("short,long", 4, 7200, None),
        ("short,long", 5, 60, "has 4 nodes"),
        ("shrot", 1, 60, "did you mean 'short'"),
        ("debug,shrot", 1, 60, "no such partition"),
    ],
)
def test_what_a_partition_never_has_is_refused(
    asked: str | None, nodes: int, seconds: float, problem: str | None
) -> None:
    if problem is None:
        check_room(KNOWN, asked, nodes, seconds)
        return
    with pytest.raises(RequestError, match=problem):
        check_room(KNOWN, asked, nodes, seconds)


def test_without_a_default_partition_sbatch_says_what_it_wants() -> None:
    check_room(KNOWN[1:], None, 99, 1e9)


@pytest.mark.parametrize(
    ("chosen", "room", "problem"),
    [
        ({1: "short", 4: "long"}, {1: 1800.0, 4: 86_400.0}, None),  # a site may choose by size
        ({1: "short", 4: "short"}, {1: 1800.0, 4: 86_400.0}, "limit of partition short is 30 min"),
        ({4: "short"}, {4: 1800.0}, None),
        ({2: ""}, {2: 60.0}, None),
        (
            {3: ""},
            {3: 60.0},
            "the partition debug has 2 nodes",
        ),  # Slurm does not report it, so it is the default one
        ({4: "short,long", 2: "short,long"}, {4: 60.0, 2: 7200.0}, None),
        ({4: "short"}, {1: 1e9, 4: 60.0}, None),  # the other one was submitted meanwhile
    ],
)
def test_each_job_is_held_against_the_partition_that_slurm_chose_for_it(
    chosen: dict[int, str], room: dict[int, float], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "partitions", lambda: KNOWN)
    if problem is None:
        submit._check_room(room, chosen)
        return
    with pytest.raises(RequestError, match=problem):
        submit._check_room(room, chosen)


def test_an_option_given_again_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    SubmissionDir(tmp_path).file.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "asked": {"experiment": "quick.toml", "experiment_digest": "0123"},
                "slurm": {
                    "time_s": None,
                    "options": [["partition", "gpu"], ["gres", "gpu:8"], ["exclusive", None]],
                    "setup": [],
                    "port": None,
                },
                "sizes": [{"nodes": 2, "ranks_per_node": 8, "run": "nodes-2", "estimated_s": 1.0}],
            }
        )
    )
    parser = argparse.ArgumentParser()
    submit.add_parser(parser.add_subparsers())
    found = submit._asked_for(parser.parse_args(["submit", str(tmp_path), "--partition", "gpu2"]))
    assert sorted((option.name, option.value) for option in found.request.options) == [
        ("exclusive", None),
        ("gres", "gpu:8"),
        ("partition", "gpu2"),
    ]


@pytest.mark.parametrize("folder", ["scratch", "/a b", "/a'b", '/a"b', "/a\\b", "$(id)", "/a;b", "/a`b`"])
def test_what_a_shell_would_take_for_more_is_no_folder(folder: str) -> None:
    with pytest.raises(RequestError, match="give an absolute path on the nodes"):
        Request(sizes=(1,), ranks_per_node=1, local=folder)


@pytest.mark.parametrize("folder", ["/scratch", "/scratch/$USER", "${TMPDIR}/x", "$HOME"])
def test_a_folder_on_the_nodes_may_have_variables(folder: str) -> None:
    assert Request(sizes=(1,), ranks_per_node=1, local=folder).local == folder
