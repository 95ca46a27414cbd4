"""Two interleaved sides: commits of a repository, folders, settings; invalid sides, and how they end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ddpbench.cli import run
from ddpbench.errors import LaunchError, SideError
from ddpbench.launch.interleave import turns
from ddpbench.launch.interleave.compare import ComparisonRequest, interleave
from ddpbench.launch.interleave.sides import SideSpec
from ddpbench.launch.interleave.turns import read_comparison
from ddpbench.launch.watch import whole_because
from tests.failures.conftest import ROOT, command, run_cli, worker_processes
from tests.processes import python_path, started
from tests.repositories import EXPERIMENT, TRAIN, begin_repository, commit_training, git
from tests.synthetic import case_of

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.004)
    commit_training(folder, "slow", sleep=0.006)
    return folder


@pytest.mark.thorough
def test_a_slower_commit_is_found_and_gated(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = repository.parent / "out"
    code, out_text, said = compare(
        repository,
        "bench/step.toml",
        "--base",
        "fast",
        "--new",
        ".",
        "--out",
        out,
        "--fail-on",
        "3%",
        "--json",
    )
    assert code == 1, out_text + said
    data = json.loads(out_text)
    (case,) = data["cases"]
    assert case["verdict"] == "slower"
    assert case["ratio"]["low"] > 1.03
    assert 1.1 < case["ratio"]["value"] < 2
    assert case["rounds"] >= 5
    assert data["paired"] is True
    assert data["base"]["git_commit"] == git(repository, "rev-parse", "--short=12", "fast")
    assert data["new"]["git_commit"] == git(repository, "rev-parse", "--short=12", "HEAD")
    order = read_comparison(out).order
    assert len(order) == case["rounds"]
    for first, second in zip(order[::2], order[1::2], strict=False):
        assert {first, second} == {"base", "new"}  # the sides alternate in going first
    again = run_cli("compare", out, "--json")
    assert json.loads(again.stdout)["cases"] == data["cases"]
    assert not [
        line for line in git(repository, "status", "--porcelain").splitlines() if "__pycache__" not in line
    ]
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not worker_processes()


def blocks_of(out: Path, side: str, number: int) -> list[tuple[int, int, str]]:
    """Return when each timed block of a launch began and ended, ns, and of which side."""
    (launch,) = (out / side / "cases").glob(f"*/launch-{number:02}")
    found = []
    for line in next(launch.glob("rank-00000*.jsonl")).read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "block" and record["phase"] == "timed":
            found.append((record["start_ns"], record["end_ns"], side))
    return found


def outcome_of(out: Path, side: str, number: int) -> dict[str, Any]:
    (path,) = (out / side / "cases").glob(f"*/launch-{number:02}/outcome.json")
    outcome: dict[str, Any] = json.loads(path.read_text())
    return outcome


ALIKE_SIDES = ("bench/step.toml", "--base", "fast", "--new", "env=NOTHING=1", "--rounds", 3)
ALIKE = (*ALIKE_SIDES, "--total", "1 s")
"""Sides without a difference, for the fewest rounds."""


def test_blocks_of_both_sides_are_in_turn_and_never_at_once(repository: Path) -> None:
    out = repository.parent / "out"
    settings = ("--set", "budget.measured_s=0.3", "--set", "budget.seed=7")
    code, printed, said = compare(repository, *ALIKE, "--out", out, *settings)
    assert code == 0, printed + said
    seeds = {json.loads((out / side / "plan.json").read_text())["budget"]["seed"] for side in ("base", "new")}
    assert len(seeds - {7}) == len(seeds) == 1  # drawn again, for both
    blocks = sorted(blocks_of(out, "base", 0) + blocks_of(out, "new", 0))
    for before, after in itertools.pairwise(blocks):
        assert before[1] <= after[0]
    order = [side for *_, side in blocks]
    alternating = sum(a != b for a, b in itertools.pairwise(order))
    assert len(order) >= 10
    assert alternating >= min(map(order.count, ("base", "new"))) * 2 - 2, order
    assert read_comparison(out).turns == "blocks"
    for side in ("base", "new"):
        outcome = outcome_of(out, side, 0)
        assert outcome["noise"]["in_turn"] is True
        assert outcome["noise"]["foreign_fraction"] == 0
        spent_s = sum(end - start for start, end, whose in blocks if whose == side) / 1e9
        assert spent_s < outcome["measured_s"] < outcome["wall_s"]
        assert outcome["wall_s"] < (blocks[-1][1] - blocks[0][0]) / 1e9 + 60


FORGETS_ITS_TURN = 'import os\nos.environ.pop("DDPBENCH_TURNSTILE", None)\n'
TELLS_LESS = """
import json
whole = json.dumps
def less(event, **more):
    ready = isinstance(event, dict) and event.get("event") == "ready"
    return whole({key: event[key] for key in event if key != "whole"} if ready else event, **more)
json.dumps = less
"""


@pytest.mark.thorough
@pytest.mark.parametrize("why", ["asked for", "an older ddpbench", "one that asks in another way"])
def test_whole_launches_are_in_turn_where_blocks_cannot_be(repository: Path, why: str) -> None:
    out = repository.parent / "out"
    words: tuple[str, ...] = ()
    if why == "asked for":
        words = ("--turns", "launches")
    else:
        code = FORGETS_ITS_TURN if why == "an older ddpbench" else TELLS_LESS
        (repository / "sitecustomize.py").write_text(code)
        words = ("--new", "path=.")
    code, printed, said = compare(repository, *ALIKE, *words, "--out", out)
    assert code == 0, printed + said
    blocks = sorted(blocks_of(out, "base", 0) + blocks_of(out, "new", 0))
    order = [side for *_, side in blocks]
    assert sum(a != b for a, b in itertools.pairwise(order)) == 1, order
    assert not any(outcome_of(out, side, 0)["noise"]["in_turn"] for side in ("base", "new"))
    assert read_comparison(out).turns == "launches"
    because = 'new (path=., set=env.NOTHING="1") cannot see whose turn it is (an older ddpbench?)'
    assert (because in said) == (why != "asked for"), said


OWN_LOADER = """
    def loader(self, rank, world_size, batch):
        return torch.utils.data.DataLoader(self.dataset(), batch_size=batch, num_workers=1)

    def optimizer("""


@pytest.mark.thorough
def test_an_own_loader_with_workers_keeps_its_turn_and_that_is_told(repository: Path) -> None:
    train = repository / "bench" / "train.py"
    train.write_text(TRAIN.format(sleep=0.004).replace("\n    def optimizer(", OWN_LOADER))
    git(repository, "commit", "-qam", "own loader")
    out = repository.parent / "out"
    words = ("bench/step.toml", "--base", "main", "--new", "env=NOTHING=1", "--rounds", 3, "--total", "1 s")
    code, printed, said = compare(repository, *words, "--out", out)
    assert code == 0, printed + said
    order = [side for *_, side in sorted(blocks_of(out, "base", 0) + blocks_of(out, "new", 0))]
    assert sum(a != b for a, b in itertools.pairwise(order)) == 1, order
    because = (
        "launches are interleaved, not blocks of their steps, because the workload's loader has "
        "worker processes"
    )
    assert said.count(because) == 2, said  # for either side
    assert not any(outcome_of(out, side, 0)["noise"]["in_turn"] for side in ("base", "new"))


@dataclass
class Ready:
    """A side that is ready, in its own description."""

    words: str = "base"
    at_turnstile: bool = True
    cases: Sequence[int] = (0, 1, 2, 4)
    whole: Mapping[str, str] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("base", "new", "sentence", "of_all"),
    [
        (Ready(), Ready(), "", False),
        (
            Ready(),
            Ready("new (path=.)", at_turnstile=False),
            "{}, because new (path=.) cannot see whose turn",
            True,
        ),
        (Ready(cases=(0, 1, 3, 4)), Ready(), "{}, because the sides cannot measure the same cases", True),
        (Ready(), Ready(whole={"0": "x", "1": "y", "4": "x"}), "of 3 of 4 cases {}: x; y", False),
        (Ready(whole={"0": "x", "1": "x"}), Ready(whole={"1": "x", "2": "x", "4": "y"}), "{}: x; y", True),
    ],
)
def test_why_whole_launches_are_in_turn_is_told(base: Ready, new: Ready, sentence: str, of_all: bool) -> None:
    words, all_of_them = turns.why_whole([base, new])
    assert words.startswith(sentence.format("launches are interleaved, not blocks of their steps"))
    assert bool(words) == bool(sentence)
    assert all_of_them is of_all


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        ({}, ""),
        ({"device": "cuda"}, "memory"),
        ({"launcher": "torchrun"}, "launcher"),
        ({"recovery": "restart"}, "recovers"),
        ({"loader_workers": 1}, "fetching"),
        ({"fabric": "1 Gbit/s; own storage"}, "storage"),
    ],
)
def test_cases_that_cannot_wait_are_whole_in_turn(settings: dict[str, Any], because: str) -> None:
    found = whole_because(replace(case_of("ddp", 2), **settings))
    assert because in found
    assert bool(found) == bool(because)


def test_without_a_socket_whole_launches_are_in_turn_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("t" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    heard = Heard()
    made = turns.Turns((), tmp_path, heard, turns="blocks")  # type: ignore[arg-type]
    assert made._opened() is None
    assert made.turns == "launches"
    assert (
        "launches are interleaved, not blocks of their steps, because no socket can be made"
        in heard.messages[0]
    )
    assert not list(long.iterdir())


@pytest.mark.thorough
def test_what_other_programs_use_beside_a_comparison_is_told(repository: Path) -> None:
    out = repository.parent / "out"
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        code, printed, said = compare(repository, *ALIKE, "--out", out)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert code == 0, printed + said
    foreign = read_comparison(out).foreign
    assert len(foreign) == len(read_comparison(out).order)
    assert min(foreign) > 0.2, foreign
    assert "of the cores' time in" in printed
    assert json.loads(run_cli("compare", out, "--json").stdout)["foreign"] == foreign


@pytest.mark.thorough
def test_a_rank_that_is_killed_while_it_waits_for_its_turn_costs_one_launch(repository: Path) -> None:
    out = repository.parent / "out"
    words = ("--out", out, "--set", "budget.measured_s=1", "--total", "20 s")
    with compare_begun(repository, *ALIKE_SIDES, *words) as process:
        deadline = time.monotonic() + 90
        while len(timed := list(out.glob("*/cases/*/launch-00/rank-00000*.jsonl"))) < 2 or not all(
            '"timed"' in path.read_text() for path in timed
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (path,) = out.glob("new/cases/*/launch-00/rank-00000*.jsonl")
        os.kill(json.loads(path.read_text().splitlines()[0])["pid"], signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    assert outcome_of(out, "new", 0)["status"] == "failed"
    assert "was killed by SIGKILL" in said
    assert {outcome_of(out, side, 1)["status"] for side in ("base", "new")} == {"ok"}
    assert outcome_of(out, "base", 0)["status"] == "ok"


def compare(folder: Path, *words: object, searched: Sequence[Path] = ()) -> tuple[int, str, str]:
    """Run a comparison in a folder; `searched` are folders of PYTHONPATH."""
    done = subprocess.run(
        command("compare", "--interleave", *words),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": python_path(ROOT, *searched)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.thorough
def test_settings_are_sides_too_and_uncommitted_changes_are_said(repository: Path) -> None:
    (repository / "bench" / "train.py").write_text(TRAIN.format(sleep=0.002))
    code, out_text, said = compare(
        repository,
        *(
            "bench/step.toml",
            "--base",
            "set=base.local_batch=8",
            "--new",
            "path=.",
            "--new",
            "set=base.local_batch=16",
        ),
        *("--out", repository.parent / "out", "--total", "1 min", "--json"),
    )
    assert code == 0, out_text + said
    (case,) = json.loads(out_text)["cases"]
    assert case["verdict"] == "faster"  # a sample of twice as many takes half the time
    assert "has uncommitted changes or new files, which are measured too" in said


DDP_OR_MASTER = ("--base", "set=base.strategy=ddp", "--new", "set=base.strategy=master")
TWO_RANKS = ("--set", "base.world_size=2")


def test_sides_of_different_strategies_are_compared(repository: Path) -> None:
    out, page = repository.parent / "out", repository.parent / "page.html"
    again = ("--total", "1 min", "--rounds", "3", "--html", page)
    code, out_text, said = compare(
        repository, "bench/step.toml", *DDP_OR_MASTER, *TWO_RANKS, "--out", out, "--json", *again
    )
    assert code == 0, out_text + said
    data = json.loads(out_text)
    (case,) = data["cases"]
    assert case["verdict"] != "not comparable"
    assert case["rounds"] >= 1
    assert case["label"] == "2 ranks"  # the strategies are named once
    assert data["settings"] == {"base.strategy": {"base": "ddp", "new": "master"}}
    assert page.read_text().count("base.strategy: &#39;ddp&#39; in base, &#39;master&#39; in new") == 1
    assert data["turns"] == "blocks"
    done = run_cli("compare", out)
    assert "The sides differ in base.strategy: 'ddp' in base, 'master' in new." in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("2 ranks")]
    assert "ddp" not in row


def test_sides_that_cannot_be_matched_are_refused_before_anything_starts(repository: Path) -> None:
    ran = repository.parent / "ran"
    text = TRAIN.format(sleep=0.002).replace("time.sleep", f"open({str(ran)!r}, 'a').close(); time.sleep")
    (repository / "bench" / "train.py").write_text(text)
    out = repository.parent / "new" / "out"
    axis = ("--set", "axes.bucket_cap_mb=[1, 25]")
    code, _, said = compare(repository, "bench/step.toml", *DDP_OR_MASTER, *TWO_RANKS, *axis, "--out", out)
    assert code == 2, said
    assert "must have the same cases, apart from base.strategy. Nothing was started:" in " ".join(
        said.split()
    )
    assert "1 MiB buckets and ddp · 2 ranks · 25 MiB buckets in base, and master" in " ".join(said.split())
    same = ("--base", "set=base.strategy=single")
    code, _, said = compare(repository, "bench/step.toml", *same, "--out", out)
    assert code == 2, said
    assert "both sides are the same: with set=base.strategy=single" in said
    assert not ran.exists()
    assert not out.parent.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--base", "nope", "--new", "."), "has no such commit"),
        (("--base", "fast", "--new", "fast"), "both sides are the same"),
        (("--base", "path=nowhere", "--new", "."), "--base path=nowhere: the folder does not exist"),
        (("--new", "../../nowhere"), "--new path=../../nowhere: the folder does not exist"),
        (("--new", "/nowhere/x"), "--new path=/nowhere/x: the folder does not exist"),
        (("--base", "python=nothing", "--new", "."), "not a program on PATH"),
        (("--base", "python=/bin/true", "--new", "."), ""),
        (
            ("--base", "ref=fast", "--base", "path=.", "--new", "."),
            "both a commit and a folder are given for one side's code",
        ),
        (("--base", "fast", "--new", "set=base.strategy=ddq"), "did you mean 'ddp'?"),
        (
            ("--base", "fast", "--new", "set=budget.seed = 5"),
            "a comparison chooses the number and order of its rounds itself",
        ),
        (("--base", "fast", "--new", ".", "--total", "soon"), "--total: "),
    ],
)
def test_what_cannot_be_a_side_is_refused(repository: Path, words: tuple[str, ...], sentence: str) -> None:
    out = repository.parent / "new" / "out"
    code, out_text, said = compare(repository, "bench/step.toml", *words, "--out", out)
    assert code == 2, out_text + said
    assert sentence in said
    assert not out.parent.exists()  # it would hold nothing, and block the next one


def test_a_commit_that_does_not_work_is_named(repository: Path) -> None:
    (repository / "bench" / "train.py").write_text("from a_package_that_nobody_has import Measured\n")
    git(repository, "commit", "-qam", "broken")
    code, out_text, said = compare(
        repository, "bench/step.toml", "--base", "fast", "--new", "main", "--out", repository.parent / "out"
    )
    assert code == 2, out_text + said
    assert "new (ref=main)" in said
    assert "a_package_that_nobody_has" in said
    assert not worker_processes()


def begun(folder: Path, out: Path) -> subprocess.Popen[str]:
    """Start a comparison of the tagged commit with the working tree, which a test is to end."""
    return compare_begun(folder, "bench/step.toml", "--base", "fast", "--new", ".", "--out", out)


def compare_begun(folder: Path, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("compare", "--interleave", *words),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": python_path(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.thorough)])
def test_an_ended_comparison_leaves_nothing_and_keeps_its_rounds(
    repository: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = repository.parent / "out"
    temporary = repository.parent / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = begun(repository, out)
    deadline = time.monotonic() + 90
    while len(list(out.glob("*/cases/*/launch-*/outcome.json"))) < 5:
        assert time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert f"ddpbench compare {out}" in said
    deadline = time.monotonic() + 60
    while worker_processes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    comparison = json.loads(run_cli("compare", out, "--json").stdout)
    assert comparison["cases"][0]["rounds"] >= 2
    assert not list(temporary.glob("ddpbench-turns-*"))


def test_a_comparison_that_is_ended_before_its_first_round_names_no_command(repository: Path) -> None:
    out = repository.parent / "out"
    process = begun(repository, out)
    deadline = time.monotonic() + 90
    while not (out / turns.FILE).exists():
        assert time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("interrupted; no round was finished\n")
    assert not out.exists()
    assert not worker_processes()


FIT = "of the 5 planned rounds fit into 1 min 40 s; to measure all, give"


@pytest.mark.parametrize(
    ("left_s", "round_s", "said"),
    [
        (80, 20, ""),
        (
            79,
            20,
            f"starting both sides took 1 s, and a round takes 20 s. Only about 4 {FIT} --total '2 min'",
        ),
        (
            -5,
            300,
            f"starting both sides took 0 s, and a round takes 5 min. Only about 1 {FIT} --total '22 min'",
        ),
    ],
)
def test_a_time_that_will_not_do_is_told_after_the_first_round(
    left_s: float, round_s: float, said: str
) -> None:
    assert turns.too_short(100, left_s, round_s, 5) == said


@pytest.mark.thorough
def test_a_guilty_commit_is_found_on_real_ranks(repository: Path) -> None:
    for number in range(3):
        commit_training(repository, f"after {number}", sleep=0.006, remark=number)
    out = repository.parent / "out"
    done = subprocess.run(
        command("bisect", "bench/step.toml", "fast", "main", "--out", out, "--total", "3 min", "--json"),
        cwd=repository,
        env=os.environ | {"PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["commits"] == [git(repository, "rev-parse", "main~3")]
    assert answer["ratio"]["low"] > 1
    assert "slow" in {one["verdict"] for one in answer["tried"]}
    assert all(one["verdict"] == "slow" or one["why"] == "undecided in its time" for one in answer["tried"])


@pytest.mark.parametrize("words", [(), ("--turns", "launches"), ("--turns", "blocks")])
def test_bisect_takes_turns_in_what_it_is_told(
    repository: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    asked: list[ComparisonRequest] = []

    def stop(one: ComparisonRequest, _: object) -> None:
        asked.append(one)
        raise LaunchError("enough")

    monkeypatch.setattr("ddpbench.launch.interleave.compare.interleave", stop)
    monkeypatch.chdir(repository)
    assert run(["bisect", "bench/step.toml", "fast", "main", *words]) == 1
    assert [one.turns for one in asked] == [words[-1] if words else "blocks"]


@pytest.mark.thorough
def test_the_script_for_ci_gates(repository: Path) -> None:
    """Run what docs/ci has for users' own pipelines, as it is."""
    programs = repository.parent / "bin"
    programs.mkdir()
    (programs / "ddpbench").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ddpbench "$@"\n')
    (programs / "ddpbench").chmod(0o755)
    summary = repository.parent / "summary.md"
    env = os.environ | {
        "PYTHONPATH": python_path(ROOT),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SUMMARY": str(summary),
    }
    workflow = (ROOT / "docs/ci/workflow.yml").read_text(encoding="utf-8")
    assert "bash bench/gate.sh bench/step.toml" in workflow
    assert "submodules: true" in workflow, "its ddpbench is one"
    for base, limit, code in (("fast", "3%", 1), ("main", "50%", 0)):
        done = subprocess.run(
            ["bash", ROOT / "docs/ci/gate.sh", "bench/step.toml", base],
            cwd=repository,
            env=env | {"TOTAL": "2 min", "LIMIT": limit},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert summary.read_text().startswith("**ddpbench**: 1 case")


@pytest.mark.thorough
def test_a_sides_code_comes_before_what_is_installed(repository: Path) -> None:
    """It comes even before the environment's package, as after pip install of the change to be measured."""
    installed = repository.parent / "site-packages"
    (installed / "speed").mkdir(parents=True)
    (installed / "speed" / "__init__.py").write_text("SLEEP = 0.002\n")
    for sleep, message in ((0.002, "fast package"), (0.006, "slow package")):
        (repository / "src" / "speed").mkdir(parents=True, exist_ok=True)
        (repository / "src" / "speed" / "__init__.py").write_text(f"SLEEP = {sleep}\n")
        train = TRAIN.format(sleep="speed.SLEEP").replace("import time\n", "import time\nimport speed\n")
        (repository / "bench" / "train.py").write_text(train)
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", message)
    done = subprocess.run(
        command("compare", "--interleave", "bench/step.toml", "--base", "main~1", "--new", "main", "--json"),
        cwd=repository,
        env=os.environ | {"PYTHONPATH": python_path(ROOT, installed)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    assert case["verdict"] == "slower", case


@pytest.mark.thorough
def test_an_experiment_that_no_commit_has_is_measured_with_each_sides_own_code(repository: Path) -> None:
    (repository / "bench" / "other.toml").write_text(EXPERIMENT)
    code, out_text, said = compare(
        repository,
        "bench/other.toml",
        "--base",
        "fast",
        "--new",
        ".",
        "--out",
        repository.parent / "out",
        "--json",
    )
    assert code == 0, out_text + said
    (case,) = json.loads(out_text)["cases"]
    assert case["verdict"] == "slower", case


def test_code_that_both_sides_would_share_is_refused(repository: Path) -> None:
    away = repository.parent / "away"
    away.mkdir()
    (away / "step.toml").write_text(EXPERIMENT)
    (away / "train.py").write_text(TRAIN.format(sleep=0.002))
    out = repository.parent / "out"
    code, out_text, said = compare(
        repository, away / "step.toml", "--base", "fast", "--new", ".", "--out", out
    )
    assert code == 2, out_text + said
    assert "outside its code: put the experiment into the repository" in said


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["import", "loss"])
def test_a_module_that_both_sides_would_share_is_refused(repository: Path, when: str) -> None:
    """The training imports a module by an absolute path, at once or within a step."""
    library = repository / "libs"
    library.mkdir()
    (library / "shared_by_both.py").write_text("SLEEP = 0.0\n")
    lines = f"import sys; sys.path.insert(0, {str(library)!r}); import shared_by_both"
    training = TRAIN.format(sleep=0.002)
    if when == "import":
        training = f"{lines}\n{training}"
    else:
        training = training.replace("        time.sleep", f"        {lines}\n        time.sleep")
    (repository / "bench" / "train.py").write_text(training)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "shared")
    out = repository.parent / "out"
    code, out_text, said = compare(
        repository, "bench/step.toml", "--base", "HEAD", "--new", ".", "--out", out
    )
    assert code == 2, out_text + said
    assert "base (ref=HEAD): it would import shared_by_both from" in said
    assert "which is outside its code: its own copy is" in said
    assert not out.exists()


@pytest.mark.thorough
def test_a_package_in_a_folder_of_the_repository_is_each_sides_own(repository: Path) -> None:
    package = repository / "packages" / "core" / "src" / "slow_core"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("SLEEP = 0.002\n")
    training = TRAIN.replace("import time\n", "import time\nfrom slow_core import SLEEP\n").format(
        sleep="SLEEP"
    )
    (repository / "bench" / "train.py").write_text(training)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "package")
    (package / "__init__.py").write_text("SLEEP = 0.02\n")
    out = repository.parent / "out"
    code, out_text, said = compare(
        repository,
        *("bench/step.toml", "--base", "HEAD", "--new", ".", "--out", out, "--json"),
        searched=[package.parent],
    )
    assert code == 0, out_text + said
    (case,) = json.loads(out_text)["cases"]
    assert case["ratio"]["value"] > 3


@pytest.mark.thorough
def test_a_dependency_cloned_inside_the_repository_is_shared_and_named(repository: Path) -> None:
    dependency = repository / "third_party" / "dep"
    begin_repository(dependency, sleep=1.0)
    (dependency / "slow_dep.py").write_text("SLEEP = 0.002\n")
    training = TRAIN.replace("import time\n", "import time\nfrom slow_dep import SLEEP\n").format(sleep="{}")
    (repository / ".gitignore").write_text("third_party\n")
    for sleep in ("SLEEP", "10 * SLEEP"):
        (repository / "bench" / "train.py").write_text(training.format(sleep))
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", sleep)
    code, out_text, said = compare(
        repository,
        *("bench/step.toml", "--base", "HEAD~1", "--new", ".", "--out", repository.parent / "out", "--json"),
        searched=[dependency],
    )
    assert code == 0, out_text + said
    assert f"both sides use the same files of {dependency}, which" in " ".join(said.split())
    (case,) = json.loads(out_text)["cases"]
    assert case["ratio"]["value"] > 1.5


@pytest.mark.thorough
def test_an_installed_workload_is_refused_only_if_nothing_differs(repository: Path) -> None:
    """A setting may differ, or the user's code that the workload imports."""
    installed = repository.parent / "elsewhere"
    installed.mkdir()
    pace = "import os\ndef pace():\n  if 'OWN' not in os.environ: return 0.002\n  import own\n  return own.SLEEP\n"
    workload = f"{pace}{TRAIN.format(sleep='pace()')}"
    (installed / "theirs.py").write_text(workload)
    (repository / "src").mkdir()
    (repository / "bench" / "step.toml").write_text(EXPERIMENT.replace("train.py", "theirs"))
    for sleep in (0.002, 0.02):
        (repository / "src" / "own.py").write_text(f"SLEEP = {sleep}\n")
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", str(sleep))

    def compared(number: int, *words: str) -> tuple[int, str, str]:
        out = repository.parent / f"out{number}"
        given = ("--base", "HEAD~1", "--new", ".", "--out", out, "--json", *words)
        return compare(repository, "bench/step.toml", *given, searched=[installed])

    code, _, said = compared(1)
    assert code == 2, said
    assert "it would run theirs:Measured, which is outside its code: both sides run the same code" in said
    code, out_text, said = compared(2, "--base", "set=base.local_batch=9")
    assert code == 0, out_text + said
    code, out_text, said = compared(3, "--set", "env.OWN=1")
    assert code == 0, out_text + said
    (case,) = json.loads(out_text)["cases"]
    assert case["ratio"]["value"] > 1.5


@pytest.mark.thorough
def test_sides_whose_cases_all_fail_are_told_as_such(repository: Path) -> None:
    (repository / "bench" / "train.py").write_text(
        TRAIN.format(sleep=0.002).replace("return nn.functional", "1 / 0\n        return nn.functional")
    )
    code, out_text, said = compare(
        repository,
        "bench/step.toml",
        "--base",
        "fast",
        "--new",
        ".",
        "--out",
        repository.parent / "out",
        "--fail-on",
        "3%",
    )
    assert code in (1, 2), out_text + said
    assert "division by zero" in out_text + said


@pytest.mark.thorough
def test_a_side_whose_proofs_all_fail_keeps_the_logs_that_say_why(repository: Path) -> None:
    fails = "import torch.distributed as d; 1 / int(not d.is_initialized() or d.get_world_size() == 1)"
    text = TRAIN.format(sleep=0.002).replace("return nn.functional", f"{fails}\n        return nn.functional")
    (repository / "bench" / "train.py").write_text(text)
    out = repository.parent / "out"
    ddp = ("--set", "base.strategy=ddp", "--set", "base.world_size=2")
    sides = ("--base", "fast", "--new", ".", "--out", out)
    code, printed, said = compare(repository, "bench/step.toml", *sides, *ddp)
    assert code == 1, printed + said
    assert "one side has no case that can be measured: see the logs in" in said
    assert "division by zero" in "".join(path.read_text() for path in out.glob("new/cases/*/proof/*.log"))


HANGS_AT_ONCE = """
import sys, time
def wait():
    time.sleep(600)
if "ddpbench.launch.interleave.turn" in sys.orig_argv:
    wait()
"""
HANGS_LATER = """
import sys, time
class Late:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "ddpbench.strategies.ddp":
            time.sleep(600)
if "ddpbench.launch.interleave.turn" in sys.orig_argv:
    sys.meta_path.insert(0, Late)
"""


@pytest.mark.parametrize(
    ("code", "line", "patience", "doing"),
    [
        (HANGS_AT_ONCE, 4, "START_S", "its interpreter started"),
        (HANGS_LATER, 7, "SILENT_S", "it was planning the experiment"),
    ],
)
def test_a_side_that_hangs_outside_of_a_launch_is_ended_and_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch, code: str, line: int, patience: str, doing: str
) -> None:
    """The message says where it hung, and nothing of it is left."""
    (repository / "sitecustomize.py").write_text(code)
    (repository / "bench" / "step.toml").write_text(EXPERIMENT.replace('"single"', '"ddp"'))
    monkeypatch.setattr(turns, patience, 5.0)
    monkeypatch.chdir(repository)
    asked = ComparisonRequest(
        experiment=Path("bench/step.toml"),
        base=SideSpec(name="base", path="."),
        new=SideSpec(name="new", overrides=("base.local_batch=16",)),
        out=repository.parent / "out",
        total_s=60,
        fewest=5,
    )
    began = time.monotonic()
    with pytest.raises(SideError) as found:
        interleave(asked, Heard())
    assert time.monotonic() - began < 60
    assert found.value.side == "base"
    assert str(found.value) == (
        f"base (path=.): it printed nothing for 5 s while {doing}, at line {line} of "
        f"{repository / 'sitecustomize.py'}: it was ended"
    )
    assert not worker_processes()
    assert not [one for one in started() if "ddpbench.launch.interleave.turn" in one.cmdline()]


@pytest.mark.thorough
def test_a_side_that_stops_while_the_other_waits_for_its_turn_is_ended_and_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the second of its round: nothing listens to it, and the first reports all the time that it waits."""
    monkeypatch.setattr(turns, "SILENT_S", 12.0)
    monkeypatch.setattr(turns, "_END_S", 2.0)
    monkeypatch.chdir(repository)
    out = repository.parent / "out"
    stopped: list[str] = []

    class Stopping(Heard):
        def round_made(self, number: int, left_s: float) -> None:
            if not stopped:
                stopped.append(read_comparison(out).order[0])  # the first side is second in the next round
                (side,) = (
                    one
                    for one in started()
                    if "ddpbench.launch.interleave.turn" in one.cmdline()
                    and str(out / stopped[0]) in one.cmdline()
                )
                side.suspend()

    asked = ComparisonRequest(
        experiment=Path("bench/step.toml"),
        base=SideSpec(name="base", path="."),
        new=SideSpec(name="new", overrides=("base.local_batch=16",)),
        out=out,
        total_s=300,
        fewest=5,
    )
    with pytest.raises(LaunchError, match="it printed nothing for 12 s while it was") as found:
        interleave(asked, Stopping())
    words = {"base": "base (path=.)", "new": "new (set=base.local_batch=16)"}[stopped[0]]
    assert str(found.value).startswith(f"{words}: "), found.value
    deadline = time.monotonic() + 60
    while worker_processes():  # its server's guard ends it
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Heard:
    """A listener of a comparison."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def begun(self, out: Path) -> None:
        """Do nothing."""

    def event(self, text: str) -> None:
        self.messages.append(text)

    def round_made(self, number: int, left_s: float) -> None:
        """Do nothing."""
