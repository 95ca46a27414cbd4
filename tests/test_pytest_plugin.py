"""The fixture in a user's test suite: run by pytest in a separate process, on real ranks."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from ddpbench import pytest_plugin
from ddpbench.analysis.export import exported
from ddpbench.analysis.regression import Side, read_side
from ddpbench.analysis.regression.baselines import Baselines
from ddpbench.analysis.regression.gate import Gated, gated, read_baselines
from ddpbench.analysis.regression.saved import read_saved
from ddpbench.errors import DdpbenchError, IdentityError, RequestError, SideError
from ddpbench.launch.own_workloads import OWN_SETTINGS
from ddpbench.launch.sweep.servers import LastingServers
from ddpbench.pytest_plugin import _gate_of, in_pytest
from ddpbench.records import RunDir
from ddpbench.side_code import OUTSIDE
from ddpbench.text_safety import unprintable
from tests.analysis.test_changes import DDP, MASTER, SINGLE, made
from tests.processes import python_path

pytestmark = pytest.mark.multiprocess
ROOT = Path(__file__).parents[1]
TRAIN = """
import time, torch
from torch import nn

class Measured:
    def model(self):
        return nn.Linear(8, 2)

    def dataset(self):
        generator = torch.Generator().manual_seed(0)
        return torch.utils.data.TensorDataset(
            torch.randn(256, 8, generator=generator), torch.randint(0, 2, (256,), generator=generator)
        )

    def loss(self, model, batch):
        time.sleep(0.002)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1)
"""
SUITE = """
import pytest

@pytest.mark.parametrize("world_size", [1, 2])
def test_step(ddp_benchmark, world_size):
    row = ddp_benchmark(workload="train.py:Measured", strategy="ddp", world_size=world_size, local_batch=4)
    assert row["world_size"] == world_size
    assert row["step_time_s"] > 0.002

def test_typo(ddp_benchmark):
    ddp_benchmark(workload="train.py:Measured", strategy="ddq")
"""

LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "train.py").write_text(TRAIN)
    (tmp_path / "tests" / "test_steps.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_python(folder, "-m", "pytest", "-p", "no:cacheprovider", *words)


ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
import pytest
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(["-p", "no:cacheprovider", *words])
    print(json.dumps([int(code), said.getvalue()]))
"""


def run_pytests(folder: Path, several: list[tuple[str, ...]]) -> list[tuple[int, str]]:
    """Run pytest with each of several lists of arguments, in one process; return the exit codes and all output."""
    done = run_python(folder, "-c", ONE_AFTER_ANOTHER, json.dumps(several))
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in map(json.loads, done.stdout.splitlines())]


def run_python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def gate_words(baseline: Path) -> tuple[str, ...]:
    """Return the arguments with which the first test of the suite is judged."""
    judged = ("--ddpbench-gate=3%", f"--ddpbench-baseline={baseline}")
    return (*judged, "--ddpbench-measured=0.05", "-k", "test_step and 1")


def test_a_suite_saves_compares_and_gates(suite: Path) -> None:
    saved = suite / "base.json"
    first = run_pytest(suite, f"--benchmark-json={saved}", "--ddpbench-measured=0.05")
    assert "2 passed, 1 error" in first.stdout or "1 failed, 2 passed" in first.stdout, first.stdout
    assert "did you mean 'ddp'?" in first.stdout
    data = {one["name"]: one for one in json.loads(saved.read_text())["benchmarks"]}
    assert set(data) == {"test_step[1]", "test_step[2]"}
    for one in data.values():
        assert one["stats"]["rounds"] == 5
        assert one["stats"]["median"] == pytest.approx(one["extra_info"]["step_time_s"])
        assert one["stats"]["data"] == pytest.approx(one["extra_info"]["steps_s"])
        assert one["extra_info"]["identity"]["torch"]
    gate = gate_words(saved)
    again = run_pytest(suite, *gate)
    assert again.returncode == 0, again.stdout
    assert "ddpbench gate" in again.stdout
    assert "test_step[1]: " in again.stdout
    (suite / "tests" / "train.py").write_text(TRAIN.replace("0.002", "0.02"))
    slow = run_pytest(
        suite, *gate, "--ddpbench-drift=4%"
    )  # otherwise a loaded machine's own scatter would count
    assert slow.returncode == 1, slow.stdout
    assert "slower by more than 3 %" in slow.stdout


@pytest.mark.thorough
def test_where_no_baseline_has_a_test_the_gate_has_not_been_passed(suite: Path) -> None:
    saved = suite / "other.json"
    first = run_pytest(
        suite, f"--benchmark-json={saved}", "--ddpbench-measured=0.05", "-k", "test_step and 2"
    )
    assert first.returncode == 0, first.stdout
    nothing = run_pytest(suite, *gate_words(saved))
    assert nothing.returncode == 1, nothing.stdout
    assert "1 undecided" in nothing.stdout
    assert "passed" not in nothing.stdout.splitlines()[-1]
    assert "test_step[1]: not comparable: no baseline has it" in nothing.stdout
    assert "no test could be judged, so the gate was not passed" in nothing.stdout


RECORDED = """
from pathlib import Path

from ddpbench import pytest_plugin

pytest_plugin.DdpBenchmark._measure = lambda self, bench, wanted: pytest_plugin._read(Path("now"))
"""
"""Takes the launches of a test from an existing run."""


@pytest.mark.parametrize(
    ("step_ms", "code", "counted"),
    [(40, 0, "1 undecided in"), (30, 0, "1 passed in"), (60, 1, "1 failed in")],
    ids=["undecided", "faster", "slower"],
)
def test_a_test_that_the_gate_cannot_decide_is_not_counted_as_passed(
    suite: Path, step_ms: float, code: int, counted: str
) -> None:
    made(suite / "base", {DDP: 40})
    made(suite / "now", {DDP: step_ms})
    (suite / "conftest.py").write_text(RECORDED)
    (suite / "tests" / "test_steps.py").write_text(
        'def test_step(ddp_benchmark):\n    ddp_benchmark(workload="mlp")\n'
    )
    done = run_pytest(suite, "--ddpbench-gate=3%", "--ddpbench-baseline=base")
    assert done.returncode == code, done.stdout
    assert counted in done.stdout.splitlines()[-1]
    assert ("undecided: 1 of the 1 tests measured" in done.stdout) == (code == 0 and "undecided" in counted)
    # the flags that decide it have pytest's names
    assert not re.search(r"(?<![\w-])--(total|drift|rounds|base)\b|ddpbench compare", done.stdout), (
        done.stdout
    )


def test_progress_says_that_there_is_no_time_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = pytest_plugin._Bench(tmp_path, LastingServers(tmp_path / "server.log"), shows=True)
    for left_s in (9.2, 0.2, -3.0):
        bench.round_made(1, left_s)
    assert capsys.readouterr().out == (
        "ddpbench: round 1 of both sides, at most 9 s left\n"
        + "ddpbench: round 1 of both sides, no time left\n" * 2
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("to tell, give it --total '5 min'", "to tell, give it --ddpbench-total '5 min'"),
        ("--base ref=x: no such commit", "--ddpbench-baseline ref=x: no such commit"),
        ("(--drift); --rounds 600", "(--ddpbench-drift); --ddpbench-rounds 600"),
        (
            "ddpbench compare --interleave with --total '9 s'",
            "--ddpbench-baseline=ref=COMMIT with --ddpbench-total '9 s'",
        ),
        ("(set budget.rounds_min, or a test's rounds, to 19)", "(--ddpbench-rounds=19)"),
        (
            "strategy: ['a', 'b'] given; must be a text; several values are an axis: axes.strategy",
            "strategy: ['a', 'b'] given; must be a text; for several values parametrize the test",
        ),
        ("--ddpbench-total and --total-time stay", "--ddpbench-total and --total-time stay"),
    ],
)
def test_messages_name_the_flags_of_pytest(text: str, expected: str) -> None:
    assert in_pytest(text) == expected


def fixture_of(test: Path, root: Path) -> Any:
    """Return the fixture's value in a test of this file."""
    request: Any = SimpleNamespace(path=test, config=SimpleNamespace(rootpath=root))
    return pytest_plugin.DdpBenchmark(request, None, pytest_plugin.MeasuredTimer())


def written(fixture: Any, folder: Path, **settings: Any) -> dict[str, Any]:
    """Return the experiment for these settings."""
    fixture._write(folder / "x.toml", fixture._located(settings), {})
    return tomllib.loads((folder / "x.toml").read_text(encoding="utf-8"))


def test_settings_may_be_what_a_program_has_at_hand(suite: Path) -> None:
    fixture = fixture_of(suite / "tests" / "test_steps.py", suite)
    found = written(
        fixture,
        suite,
        workload=Path("train.py"),
        world_size=np.int64(2),
        lr=np.float32(0.5),
        learning=np.bool_(True),
        bucket_cap_mb=None,
        strategy=None,
        options={"ddp": {"gradient_as_bucket_view": None, "static_graph": True}},
        env={"A": "1"},
    )
    assert found == {
        "base": {"workload": "train.py", "world_size": 2, "lr": 0.5, "learning": True},
        "options": {"ddp": {"static_graph": True}},
        "env": {"A": "1"},
        "budget": {},
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"world_size": {1, 2}}, r"world_size: \{1, 2\} is of type set: give a text, a path, a number"),
        ({"world_size": np.arange(2)}, r"world_size: array\(\[0, 1\]\) is of type ndarray: give "),
        ({"options": {"ddp": {"x": [1, None]}}}, r"options\.ddp\.x\[1\]: None is of type NoneType: give "),
        ({"options": {"ddp": {2: 1}}}, r"options\.ddp: 2 is of type int: keys are texts"),
        ({"strategy": b"ddp"}, r"strategy: b'ddp' is of type bytes: give "),
        ({"strategy": "\ud800"}, r"strategy: '\\ud800' is not Unicode text"),
        ({"strategy": LOOP}, r"lists and dicts may have 12 levels at most"),
    ],
)
def test_a_setting_that_is_none_is_named(suite: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=message):
        written(fixture_of(suite / "tests" / "test_steps.py", suite), suite, **settings)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("rounds", "3", "whole number"), ("rounds", 2.5, "whole"), ("measured", "1", "number")],
)
def test_launches_and_seconds_are_numbers(name: str, value: object, message: str) -> None:
    kinds = (int,) if name == "rounds" else (int, float)
    with pytest.raises(pytest.fail.Exception, match=f"{name}: {value!r} is not a {message}"):
        pytest_plugin._number(name, value, *kinds)
    assert pytest_plugin._number(name, np.int64(3), *kinds) == 3
    assert pytest_plugin._number(name, None, *kinds) is None


@pytest.mark.parametrize("given", ["rounds=0", "measured=0"])
def test_no_rounds_and_no_seconds_are_refused(suite: Path, given: str) -> None:
    (suite / "tests" / "test_steps.py").write_text(
        f"def test_none(ddp_benchmark):\n    ddp_benchmark(workload='mlp:small', strategy='single', {given})\n"
    )
    done = run_pytest(suite, "--ddpbench-rounds=1", "--ddpbench-measured=0.01")
    assert "1 failed" in done.stdout
    assert "0 given; must be" in done.stdout


def test_a_second_case_in_a_test_is_refused_before_it_is_measured(suite: Path) -> None:
    call = "    ddp_benchmark(workload='mlp:small', strategy='single', rounds=1, measured=0.01)\n"
    (suite / "tests" / "test_steps.py").write_text(f"def test_two(ddp_benchmark):\n{call}{call}")
    done = run_pytest(suite)
    assert "1 failed" in done.stdout
    assert (
        "a test can measure only one case: write a test for each case, or parametrize this one" in done.stdout
    )
    assert "FixtureAlreadyUsed" not in done.stdout


@pytest.mark.parametrize("name", ["gone.py:Mine", "replay:gone.json"])
def test_a_file_that_is_nowhere_is_reported_with_the_folders_of_the_user(
    suite: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(suite)
    file = name.removeprefix("replay:").partition(":")[0]
    with pytest.raises(pytest.fail.Exception) as failed:
        fixture_of(suite / "tests" / "test_steps.py", suite)._located({"workload": name})
    assert str(failed.value) == (
        f"workload {name!r}: there is no file {suite}/tests/{file} or {suite}/{file}; give its path from the "
        "test's folder or from pytest's root"
    )
    whole = str(suite / "gone.py")
    with pytest.raises(pytest.fail.Exception, match=f"there is no file {whole}$"):
        fixture_of(suite / "tests" / "test_steps.py", suite)._located({"workload": f"{whole}:Mine"})


@pytest.mark.parametrize("words", ["", "print('going', flush=True); "])
def test_a_log_that_an_error_names_is_shown_as_its_folder_goes(suite: Path, words: str) -> None:
    (suite / "die.py").write_text(
        "import os\nfrom ddpbench.collectives.base import Collective\nclass Die(Collective):\n"
        f"    def _all_reduce(self, tensor): {words}os._exit(3)\n"
    )
    (suite / "tests/test_steps.py").write_text(
        "def test_step(ddp_benchmark):\n"
        '    ddp_benchmark(workload="mlp", strategy="ddp", algorithm="die.py:Die", world_size=2)\n'
    )
    done = run_pytest(suite, "--benchmark-disable")
    assert "1 failed in" in done.stdout, done.stdout
    assert "ended with exit code 3 and no record in" in done.stdout
    assert ("; see rank-0000" in done.stdout) is bool(words)
    shown = re.search(r"-- Captured rank-0000\d\S*\.log call --+\ngoing\n", done.stdout)
    assert bool(shown) is bool(words), done.stdout


def test_a_file_beside_the_test_comes_first_and_its_options_go_with_it(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (suite / "train.py").write_text("")
    fixture, given = (
        fixture_of(suite / "tests" / "test_steps.py", suite),
        {"workload": "train.py:Measured", "options": {"train.py": {"depth": 2}, "ddp": {}}},
    )
    for folder, file in ((suite, "tests/train.py"), (suite / "tests", "train.py")):
        monkeypatch.chdir(folder)
        found = fixture._located(given)
        assert found == {
            "workload": f"{file}:Measured",
            "options": {file: {"depth": 2}, "ddp": {}},
        }
        assert pytest_plugin._within(found, suite) == {
            "workload": "tests/train.py:Measured",
            "options": {"tests/train.py": {"depth": 2}, "ddp": {}},
        }


OWN = [
    ("workload", "own.py:Own"),
    ("workload", "replay:own.json"),
    ("strategy", "own.py:Own"),
    ("algorithm", "own.py:Own"),
]


@pytest.mark.parametrize(("kind", "name"), OWN)
def test_every_setting_that_names_a_file_finds_it_beside_the_test_and_in_each_code(
    suite: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    assert {one for one, _ in OWN} == {*OWN_SETTINGS}
    file = "own.json" if "json" in name else "own.py"
    (suite / "tests" / file).write_text("")
    fixture = fixture_of(suite / "tests" / "test_steps.py", suite)

    def as_from(path: object) -> str:
        return name.replace(file, str(path))

    for folder, place in ((suite, f"tests/{file}"), (suite / "tests", file)):
        monkeypatch.chdir(folder)
        for given in (name, as_from(suite / "tests" / file)):
            found = fixture._located({kind: given})
            if given == name:
                assert found[kind] == as_from(place)
            assert pytest_plugin._within(found, suite)[kind] == as_from(f"tests/{file}")
            away = pytest_plugin._within(found, suite / "elsewhere")[kind]
            assert away == as_from(suite / "tests" / file)
    with pytest.raises(
        pytest.fail.Exception, match=rf"{kind} 'gone.py:Own': there is no file {suite}/tests/"
    ):
        fixture._located({kind: "gone.py:Own"})


def test_disabled_it_only_sees_that_it_works(suite: Path) -> None:
    done = run_pytest(suite, "--benchmark-disable", "-s", "-k", "test_step and 1")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    shown = re.findall(r"^.*ddpbench: .*$", done.stdout, re.MULTILINE)
    assert any(re.search(r"ddp .*: proof ok$", line) for line in shown), "progress, as -s asks for output"
    assert any(re.search(r"ddp .*: round 1 ok, [\d.,]+ samples/s$", line) for line in shown)
    assert "ddpbench: 1 test ran once without measuring" in done.stdout
    refused = run_pytest(suite, "--benchmark-disable", "-k", "test_typo")
    assert "1 failed" in refused.stdout
    assert "ran once" not in refused.stdout


def test_ranks_find_modules_where_pytest_does(suite: Path) -> None:
    (suite / "lib" / "inner").mkdir(parents=True)
    (suite / "tests" / "train.py").rename(suite / "lib" / "inner" / "train.py")
    (suite / "pytest.ini").write_text("[pytest]\npythonpath = lib\n")
    (suite / "tests" / "test_steps.py").write_text(
        "import os\n"
        "def test_step(ddp_benchmark):\n"
        "    ddp_benchmark(workload='inner.train:Measured', strategy='ddp', world_size=2, local_batch=4)\n"
        "    assert 'lib' not in os.environ.get('PYTHONPATH', '')\n"
    )
    done = run_pytest(suite, "--benchmark-disable")
    assert "1 passed" in done.stdout, done.stdout


def test_pytest_benchmark_counts_it_among_its_own(suite: Path) -> None:
    (suite / "tests" / "test_own.py").write_text("def test_own():\n    pass\n")
    only = run_pytest(suite, "--benchmark-only", "-k", "own or typo")
    assert "1 failed, 1 skipped, 2 deselected" in only.stdout, only.stdout
    skipped = run_pytest(suite, "--benchmark-skip", "-k", "own or typo")
    assert "1 passed, 1 skipped, 2 deselected" in skipped.stdout, skipped.stdout


@pytest.mark.parametrize("fixtures", ["ddp_benchmark, benchmark", "benchmark, ddp_benchmark"])
def test_a_test_that_takes_both_fixtures_is_refused(suite: Path, fixtures: str) -> None:
    (suite / "tests" / "test_steps.py").write_text(
        f"def test_both({fixtures}):\n    benchmark(int)\n    ddp_benchmark(workload='mlp:small')\n"
    )
    done = run_pytest(suite)
    assert "a test cannot use both ddp_benchmark and benchmark: write one test for each" in done.stdout
    assert "1 error in" in done.stdout


@pytest.mark.thorough
def test_a_case_that_two_tests_measure_is_proved_once(suite: Path) -> None:
    """Each model that the proof makes is counted; the second test's ranks make only those of its launches."""
    (suite / "tests" / "train.py").write_text(
        TRAIN.replace("def model(self):", "def model(self):\n        open('models', 'a').write('.')")
    )
    (suite / "tests" / "test_steps.py").write_text(
        "import pytest\n@pytest.mark.parametrize('again', [1, 2])\ndef test_step(ddp_benchmark, again):\n"
        "    ddp_benchmark(workload='train.py:Measured', strategy='ddp', world_size=1, rounds=1, measured=0.02)\n"
        "    print('made', len(open('models').read()))\n"
    )
    done = run_pytest(suite, "-s")
    assert done.returncode == 0, done.stdout
    first, both = (int(found) for found in re.findall(r"made (\d+)", done.stdout))
    alone = run_pytest(suite, "-s", "-k", "step and 2")
    (more,) = (int(found) for found in re.findall(r"made (\d+)", alone.stdout))
    assert more - both == first, "a session of its own proves it again"
    assert both - first < first, "the second test did not"


@pytest.mark.thorough
def test_two_at_once_wait_for_each_other(suite: Path) -> None:
    """pytest-benchmark disables itself under xdist; what still runs does not measure the other, and this is
    reported."""
    done = run_pytest(suite, "-n", "2", "-k", "test_step and not typo")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "2 tests ran once without measuring" in done.stdout


def test_a_gate_that_could_not_fail_is_refused(suite: Path) -> None:
    refused: list[tuple[tuple[str, ...], str]] = [
        (
            ("--ddpbench-gate=3%", "--ddpbench-baseline=python=none"),
            "--ddpbench-baseline python=none: not a program",
        ),
        (("--ddpbench-gate=3%", "--ddpbench-baseline=main", "-n", "2"), "under pytest-xdist"),
        (
            ("--ddpbench-gate=3%", "--ddpbench-baseline=main", "--benchmark-disable"),
            "leave that out, or the gate",
        ),
        (("--ddpbench-turns=launches",), "--ddpbench-turns needs the gate"),
        (("--ddpbench-total=abc",), "--ddpbench-total needs the gate"),
        (
            ("--ddpbench-gate=3%", "--ddpbench-gate", "5%"),
            "--ddpbench-gate: given twice, as '3%' and '5%'; give it once",
        ),
        (("--ddpbench-rounds=0",), "argument --ddpbench-rounds: 0 given; must be a whole number, 1 to 1,000"),
        (("--ddpbench-measured=-1",), "argument --ddpbench-measured: -1 given; must be 1 ms to 1 h"),
        (("--ddpbench-rounds=3", "--ddpbench-rounds=5"), "--ddpbench-rounds: given twice, as '3' and '5'"),
        (
            (
                "--ddpbench-gate=3%",
                "--ddpbench-baseline=env=NAME=1",
                "--ddpbench-baseline=env=NAME=2",
            ),
            "--ddpbench-baseline: given twice",
        ),
    ]
    found = run_pytests(suite, [words for words, _ in refused])
    for (words, sentence), (code, said) in zip(refused, found, strict=True):
        assert code == 4, (words, said)
        assert sentence in said, (words, said)


def test_a_gate_in_the_projects_settings_lets_editors_collect(suite: Path) -> None:
    made(suite / "base", {DDP: 40})
    (suite / "pytest.ini").write_text("[pytest]\naddopts = --ddpbench-gate=3% --ddpbench-baseline=base\n")
    for words in (("--collect-only",), ("--setup-plan",)):
        done = run_pytest(suite, *words, "-k", "test_step")
        assert done.returncode == 0, (words, done.stdout + done.stderr)
        assert "gate was not passed" not in done.stdout


def test_both_plugins_may_be_named_where_none_loads_by_itself(suite: Path) -> None:
    """pytest-benchmark then has its module's name."""
    made(suite / "now", {DDP: 40})
    (suite / "conftest.py").write_text(RECORDED)
    (suite / "tests" / "test_steps.py").write_text(
        'def test_step(ddp_benchmark):\n    ddp_benchmark(workload="mlp")\n'
    )
    alone = ("--disable-plugin-autoload", "-p", "ddpbench.pytest_plugin")
    done = run_pytest(suite, *alone, "-p", "pytest_benchmark.plugin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    without = run_pytest(suite, *alone)
    assert without.returncode == 1, without.stdout + without.stderr
    assert "ddp_benchmark needs pytest-benchmark" in without.stdout


def test_the_command_line_replaces_an_option_of_the_projects_settings(suite: Path) -> None:
    (suite / "pytest.ini").write_text("[pytest]\naddopts = --ddpbench-rounds=3\n")
    done = run_pytest(suite, "--ddpbench-rounds=5", "--ddpbench-rounds=5", "--collect-only")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"baseline": []}, "needs --ddpbench-baseline: a file"),
        ({"baseline": ["nightly"]}, "nor a baseline saved in kept/.*; saved there: 0001_main"),
        ({"baseline": ["none.json"]}, "'none.json' is neither a run directory nor a file here"),
        ({"baseline": ["empty.json"]}, "it is empty"),
        (
            {"baseline": ["main", "ref=main"]},
            "main is a saved file, but ref=main is interleaved: give only one kind",
        ),
        ({"baseline": ["main", "0001"]}, "given twice"),
        ({"baseline": ["main"], "turns": "launches"}, "needs an interleaved baseline"),
        ({"baseline": ["ref=main"]}, "is in no git repository"),
        ({"baseline": ["path=none"]}, "the folder does not exist"),
        ({"baseline": ["."]}, "both sides are the same"),
        ({"total": "soon"}, "--ddpbench-total: .*'soon'"),
        ({"total": "1e400 s"}, "--ddpbench-total: '1e400 s' given; must be 1 s to 30 days"),
        ({"total": "0 s"}, "--ddpbench-total: '0 s' given; must be 1 s to 30 days"),
        ({"gate": "much"}, "--ddpbench-gate: .*give a share such as 3%"),
        ({"drift": "much"}, "--ddpbench-drift: .*give a share such as 3%"),
    ],
)
def test_what_a_gate_cannot_hold_against(
    suite: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], sentence: str
) -> None:
    monkeypatch.chdir(suite)
    Baselines(Path("kept")).save("main", exported(made(suite / "run", {DDP: 40}), "pytest-benchmark"))
    (suite / "empty.json").write_text(json.dumps({"benchmarks": []}))
    given = {"gate": "3%", "drift": "4%", "total": "3 min", "baseline": ["main"], "turns": None}
    assert len(_gate_of(Config(given)).saved) == 1
    with pytest.raises((ValueError, DdpbenchError), match=sentence):
        _gate_of(Config(given | options))


class Config:
    """Return options of pytest; saved baselines are in `kept`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given

    def getoption(self, name: str, *_: object) -> Any:
        return self._given.get(name.removeprefix("--ddpbench-"), "file://kept")


@pytest.mark.thorough
def test_a_tests_own_group_leaves_the_measured_time(suite: Path) -> None:
    own = SUITE.replace(
        "@pytest.mark.parametrize", "@pytest.mark.benchmark(min_rounds=7)\n@pytest.mark.parametrize"
    )
    (suite / "tests" / "test_steps.py").write_text(own)
    saved = suite / "base.json"
    done = run_pytest(suite, f"--benchmark-json={saved}", "--ddpbench-measured=0.05", "-k", "test_step and 1")
    assert done.returncode == 0, done.stdout
    (one,) = json.loads(saved.read_text())["benchmarks"]
    assert one["stats"]["median"] == pytest.approx(one["extra_info"]["step_time_s"])
    assert one["options"]["min_rounds"] == 7


NAME = "a.py::t"


def side(path: Path, steps_ms: float, *, test: str = NAME, **options: object) -> Side:
    """Make a file of one test with a case that takes that long."""
    run = made(path, {DDP: steps_ms}, **options)  # type: ignore[arg-type]
    data = json.loads(exported(run, "pytest-benchmark"))
    data["benchmarks"][0]["fullname"] = test
    file = path.with_suffix(".json")
    file.write_text(json.dumps(data))
    return read_saved(file)


def against(now: RunDir, *baselines: Side, test: str = NAME, **options: float) -> Gated:
    return gated(test, read_side(now), baselines, limit=0.03, **options)


def test_what_a_gate_decides(tmp_path: Path) -> None:
    base = side(tmp_path / "base", 40)
    same, slow = made(tmp_path / "same", {DDP: 40}), made(tmp_path / "slow", {DDP: 52})
    worse = against(slow, base)
    assert worse.fails
    assert worse.judged
    assert worse.sentence.startswith(f"{NAME}: slower by more than 3 %: +")
    assert worse.sentence.partition("+")[2][:2] in ("28", "29", "30", "31")
    assert worse.sentence.endswith("; 8 rounds)")
    alike = against(same, base)
    assert (alike.fails, alike.judged) == (False, True)
    assert "cannot tell: " in alike.sentence
    assert against(slow, base, test="b.py::moved").fails  # its case is the same
    assert not against(slow, base, alpha=1e-12).fails
    few = against(made(tmp_path / "few", {DDP: 80}, rounds=3), base)
    assert (few.judged, few.fails) == (False, False)
    assert "cannot tell: too few rounds: 3 of 5 at least" in few.sentence
    still = made(tmp_path / "still", {DDP: 40}, noise=0.0)
    copies = against(still, side(tmp_path / "copy", 40, noise=0.0), drift=0.0)
    assert (copies.judged, copies.fails) == (False, False)
    assert "as no clock measures" in copies.sentence


def test_a_gate_that_sees_too_few_launches_says_what_it_saw_and_how_many_do(tmp_path: Path) -> None:
    base = side(tmp_path / "base", 40, noise=0.001)
    alike = against(made(tmp_path / "same", {DDP: 40}, noise=0.001), base, drift=0.002)
    assert "cannot tell: both sides are alike, but 8 launches are too few" in alike.sentence
    assert "or a test's rounds, to 19): " in alike.sentence
    assert re.search(r"\): [^ ]+ % \(.* % to .* %; 8 rounds\)", alike.sentence)


def test_several_baselines_are_several_sessions(tmp_path: Path) -> None:
    """For sessions that vary by 4 %, comparing one with one gives +-11 %, and one with four +-9 %."""
    sides = [side(tmp_path / f"base{number}", 40, rounds=20) for number in range(4)]
    now = made(tmp_path / "now", {DDP: 40}, rounds=20)
    widths = []
    for baselines in (sides[:1], sides):
        sentence = against(now, *baselines).sentence.replace("\N{MINUS SIGN}", "-")
        ((low, high),) = re.findall(r"([+-]\d+\.\d+) % to ([+-]\d+\.\d+) %", sentence)
        widths.append(float(high) - float(low))
    assert widths[0] == pytest.approx(22, abs=1.5)
    assert widths[1] == pytest.approx(17.6, abs=1.5)


def test_what_a_gate_cannot_compare(tmp_path: Path) -> None:
    now = made(tmp_path / "now", {DDP: 52})
    other = against(made(tmp_path / "other", {replace(DDP, local_batch=4): 40}), side(tmp_path / "base", 40))
    assert (other.judged, other.fails) == (False, False)
    assert "not comparable: it is in this run alone; the other has it with local batch of 8" in other.sentence
    nothing = against(
        made(tmp_path / "master", {MASTER: 40}), read_side(made(tmp_path / "single", {SINGLE: 40}))
    )
    assert (nothing.judged, nothing.fails) == (False, False)
    assert nothing.sentence == f"{NAME}: not comparable: no baseline has it"
    far = read_side(made(tmp_path / "far", {DDP: 40}))
    far = replace(far, machine={"identity": {**far.identity, "torch": "2.99.0"}})
    with pytest.raises(
        IdentityError, match=r"far was measured under different conditions: torch: '2\.99\.0' in "
    ):
        against(now, far)
    assert against(now, read_side(made(tmp_path / "run", {DDP: 40, SINGLE: 30}))).fails  # a run directory
    with pytest.raises(RequestError, match="given twice and would count as two sessions"):
        read_baselines([str(now.path), f"{now.path}/../now"], Baselines())


def test_what_fails_is_printed_clean() -> None:
    """Errors of a run, and a file's name in a sentence of the gate, may both be others' texts."""
    attack = "\x1b[2J\x1b]0;title\x07\u202egnp\u200f"
    with pytest.raises(pytest.fail.Exception) as failed:
        pytest_plugin._fail(f"failed: {attack}")
    assert not unprintable(str(failed.value))
    lines: list[str] = []

    class Bench:
        notes = (attack,)
        gated = (Decided(attack),)

    stash = pytest.Stash()
    stash[pytest_plugin._GATE] = Decided(attack)  # type: ignore[assignment]
    stash[pytest_plugin._BENCH] = Bench()  # type: ignore[assignment]
    reporter = SimpleNamespace(stats={}, write_line=lines.append, write_sep=lambda *_: None)
    config: Any = SimpleNamespace(stash=stash, getoption=lambda *_: "5%")
    pytest_plugin.pytest_terminal_summary(reporter, config)
    assert len(lines) == 3
    assert not any(map(unprintable, lines))
    tree = ast.walk(ast.parse(Path(pytest_plugin.__file__).read_text(encoding="utf-8")))
    assert sum(isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.fail" for node in tree) == 1


@dataclass
class Decided:
    """Return the lines that the gate prints."""

    words: str
    judged = True
    undecided = False

    @property
    def sentence(self) -> str:
        return self.words


def test_without_torch_a_test_says_what_to_install(suite: Path) -> None:
    (suite / "conftest.py").write_text(
        "import importlib.util\nfound = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else found(name, *more)\n"
    )
    done = run_pytest(suite, "-k", "test_step and 1")
    assert done.returncode == 1, done.stdout
    assert "torch is not installed in this environment; run: pip install torch" in done.stdout


def test_importing_the_plugin_imports_neither_torch_nor_pandas() -> None:
    line = "import sys, ddpbench.pytest_plugin; print({'torch', 'pandas', 'scipy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"


def test_a_case_that_cannot_be_measured_fails_once_and_says_why_where_warnings_are_errors(
    suite: Path,
) -> None:
    done = run_pytest(suite, "-W", "error", "-k", "test_typo")
    assert "1 failed, 2 deselected in" in done.stdout, done.stdout
    assert "was not used at all" not in done.stdout
    assert re.search(r"^FAILED .*test_typo - Failed: base.strategy: unknown", done.stdout, re.MULTILINE), (
        done.stdout
    )


REMOVES = """
import os, shutil
import pytest

@pytest.fixture(autouse=True)
def removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path)
    yield
    with pytest.raises(FileNotFoundError):
        os.getcwd()
    os.chdir("/")
"""


def test_a_test_whose_working_directory_is_gone_measures(suite: Path) -> None:
    (suite / "tests" / "conftest.py").write_text(REMOVES)
    done = run_pytest(suite, "-k", "test_typo")
    assert "test_typo - Failed: base.strategy: unknown" in done.stdout, done.stdout
    assert "1 failed, 2 deselected in" in done.stdout, done.stdout


def test_people_with_a_pytest_of_before_7_can_still_run_their_own_tests(suite: Path) -> None:
    """Every pytest loads the plugin if ddpbench is installed, regardless of its version."""
    (suite / "tests" / "test_own.py").write_text("def test_own():\n    pass\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        before_7 = "import sys, pytest; del pytest.StashKey; sys.exit(pytest.main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", before_7, "-p", "no:cacheprovider", *words],
            cwd=suite,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
            | {"PYTHONPATH": python_path(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    done = run("-k", "own or typo")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "ddp_benchmark needs pytest 8.3 or newer, but" in done.stdout
    gate = run("--ddpbench-gate=3%", "--ddpbench-baseline=main")
    assert gate.returncode == 4
    assert "--ddpbench-gate needs pytest 8.3 or newer" in gate.stderr
    assert pytest_plugin._stash(SimpleNamespace()).get(pytest_plugin._STACK, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("shared", [True, False])
def test_a_base_that_would_import_other_code_fails_the_gate(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other base that cannot start may lack a new test's code; then this code alone is measured."""
    why = f"base: it would import a.b from /c{OUTSIDE}move it" if shared else "base: it lacks a.b"

    def in_turn(*_: object) -> None:
        raise SideError("base", why)

    def alone(*_: object) -> None:
        raise DdpbenchError("alone")

    monkeypatch.setattr(pytest_plugin.DdpBenchmark, "_in_turn", in_turn)
    monkeypatch.setattr(pytest_plugin.DdpBenchmark, "_alone", alone)
    stash = {pytest_plugin._GATE: SimpleNamespace(in_turn=True)}
    monkeypatch.setattr(pytest_plugin, "_stash", lambda _: stash)
    request: Any = SimpleNamespace(config=None, node=SimpleNamespace(name="test"))
    bench: Any = SimpleNamespace(folder=tmp_path, count=1)
    fixture = pytest_plugin.DdpBenchmark(request, None, Mock())
    with pytest.raises(pytest.fail.Exception, match="it would import a.b" if shared else "^alone$"):
        fixture._measure(bench, Mock())


def test_a_link_to_a_saved_file_is_refused_as_a_link(tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("saved.json")
    with pytest.raises(IdentityError, match=r"link\.json is a link: give the file that it leads to$"):
        read_saved(tmp_path / "link.json")
