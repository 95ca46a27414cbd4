"""The output of `sweep --dry-run`: a table of cases, and each launch only on request."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from scipy import stats as scipy_stats

from ddpbench.analysis.statistics.judgement import MARGIN
from ddpbench.analysis.statistics.resolution import resolved_in_one_sweep
from ddpbench.analysis.statistics.stats import MIN_ROUNDS
from ddpbench.cli import run
from ddpbench.cli.dry_run import table
from ddpbench.cli.lines import WIDEST
from ddpbench.launch.devices import missing_backend
from ddpbench.launch.experiments import known_experiments
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.machine.identity import known_identity
from ddpbench.records import RunDir
from ddpbench.records.archive import pack
from ddpbench.records.plan import read_plan
from ddpbench.runtime.estimate import report_s
from ddpbench.spec.settings import MOST_ROUNDS
from ddpbench.units import counted, format_at_most
from tests.synthetic import MS, RUN_ID, RankLaunch, processes_of, write_launch, write_proof

REPLAYS = """
question = "Which is faster?"
[base]
workload = "replay:resnet50-v100"
shrink = 50
bucket_cap_mb = 1000
[axes]
strategy = ["ddp", "master", "branches"]
"fabric.nodes" = [2, 16]
[fabric]
bandwidth = "10 Gbit/s"
racks = 2
uplink = "40 Gbit/s"
[budget]
rounds_min = 3
rounds_max = 7
"""


@pytest.fixture(autouse=True)
def as_wide_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDEST))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["sweep", *arguments, "--dry-run"]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def replays(tmp_path: Path) -> str:
    path = tmp_path / "replays.toml"
    path.write_text(REPLAYS, encoding="utf-8")
    return str(path)


def seconds(text: str) -> float:
    """Return the seconds of a printed duration, such as `3 min 6 s`."""
    words = text.split()
    return sum(
        float(n) * {"h": 3600, "min": 60, "s": 1, "ms": 1e-3}[u]
        for n, u in zip(words[::2], words[1::2], strict=True)
    )


def table_rows(lines: list[str]) -> list[list[str]]:
    """Return the table's rows, cut where its header's columns end."""
    head = next(line for line in lines if line.startswith("case "))
    ends = [head.index(name) + len(name) for name in ("launches", "each", "total")]
    body = lines[lines.index(head) + 1 :]
    rows = [line for line in body[: body.index("")] if not line.startswith(" ")]
    starts = [head.index("launches"), ends[0], ends[1], ends[2]]
    return [
        [line[: starts[0]].strip(), *(line[a:b].strip() for a, b in zip(starts, ends, strict=False))]
        for line in rows
    ]


def test_a_line_for_each_case_and_none_for_a_rank(replays: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, replays)
    assert len(lines) == 28
    assert not any("RANK=" in line for line in lines)
    names = [row[0] for row in table_rows(lines)]
    assert [name.partition(" ")[0] for name in names[:-3]] == ["ddp", "ddp", "master", "master", "single"]
    assert "all cases: shrunk /50" in lines
    assert not any("shrunk" in name for name in names)


def test_the_tables_times_add_up_to_the_total(replays: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, replays)
    *cases, proofs, _, report = table_rows(lines)
    assert {row[1] for row in cases} == {"3"}
    assert report[0] == "report, at the end"
    assert seconds(report[3]) == pytest.approx(report_s(7), abs=0.1)  # two of its cases are skipped
    for row in cases:
        assert 3 * seconds(row[2]) == pytest.approx(seconds(row[3]), abs=3)
    said = " ".join(lines[lines.index("", lines.index("") + 1) :])
    assert f"{len(cases)} cases, {3 * len(cases)} launches in 3 rounds, {proofs[1]} proofs: about " in said
    total = seconds(said.split("about ")[1].split(" for 3 rounds")[0])
    assert sum(seconds(row[3]) for row in table_rows(lines)) == pytest.approx(total, abs=len(cases) + 2)
    fitting, took = re.findall(r"; up to (\d+) rounds \((.+?)\)", said)[0]
    assert 3 < int(fitting) < 7  # of the 7, those that fit
    assert total < seconds(took) < 600 + seconds(report[3])


def test_the_memory_of_launches_that_wait_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "turns.toml"
    text = '[base]\nworkload = "mlp:large"\nworld_size = 2\n[axes]\nstrategy = ["ddp", "master"]\n'
    path.write_text(f'question = "Which is faster?"\n{text}[budget]\nturns = "blocks"\n', encoding="utf-8")
    monkeypatch.setattr("ddpbench.cli.dry_run.free_bytes", lambda: 20 * 2**30)
    words = " ".join(printed(capsys, str(path)))
    # two launches of two ranks, each with four copies of 36 MB and 30 MiB more, and a fork server's 300 MiB
    assert "memory while blocks alternate: 4 ranks wait with about 972 MiB of 20 GiB free" in words
    monkeypatch.setattr("ddpbench.cli.dry_run.free_bytes", lambda: 2**30)
    words = " ".join(printed(capsys, str(path)))
    assert "at most 2 launches alternate, to stay under 80 % of the free memory" in words
    assert "memory while" not in " ".join(printed(capsys, str(path), "--set", 'budget.turns="launches"'))


def test_a_budget_without_room_for_the_promised_rounds_is_told(
    replays: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = " ".join(" ".join(printed(capsys, replays, "--set", "budget.total=5 min")).split())
    assert "; only 2 of them fit into budget.total, 5 min" in words
    assert "up to 7 rounds" not in words


def planned_words(capsys: pytest.CaptureFixture[str], experiment: str, **budget: object) -> str:
    """Return the output of a dry run with these settings of the budget, as one line."""
    given = [word for name, value in budget.items() for word in ("--set", f"budget.{name}={value}")]
    return " ".join(" ".join(printed(capsys, experiment, *given)).split())


FEW = f"warning: under {MIN_ROUNDS} rounds are too few to tell cases apart"


def test_rounds_that_can_compare_no_cases_are_warned_of(
    replays: str, capsys: pytest.CaptureFixture[str]
) -> None:
    least = MIN_ROUNDS - 1
    words = planned_words(capsys, replays, rounds_max=least)
    assert f"{FEW}: give budget.rounds_max = {MIN_ROUNDS} or more" in words
    assert FEW not in planned_words(capsys, replays, rounds_max=MIN_ROUNDS)
    words = planned_words(capsys, replays, total="5 min")
    assert f"{FEW}, and {MIN_ROUNDS} take about " in words
    assert ": raise budget.total, lower budget.measured_s, or leave out cases" in words
    assert FEW not in planned_words(capsys, replays, total="1 h")
    one = ("--set", 'axes.strategy=["single"]', "--set", 'axes."fabric.nodes"=[1]')
    alone = printed(capsys, replays, *one, "--set", f"budget.rounds_max={least}")
    assert FEW not in " ".join(alone)
    assert alone.count("") == 2  # before and after the table
    assert alone[-1]


@pytest.mark.parametrize("rounds", [MIN_ROUNDS, 7, 40])
def test_what_the_planned_rounds_resolve_is_what_the_analysis_resolves(
    rounds: int, replays: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = planned_words(capsys, replays, rounds_max=rounds, total="10 h")
    found = re.search(
        rf"{rounds} rounds resolve a difference of ([\d.]+) % between two cases if the standard deviation of their "
        r"ratio within a round is at most ([\d.]+) %; if it is 10 %, they resolve ([\d.]+) %",
        words,
    )
    assert found is not None, words
    change, deviation, noisy = (float(text) / 100 for text in found.groups())
    assert change == MARGIN
    assert resolved_in_one_sweep(deviation, rounds) == pytest.approx(
        MARGIN, rel=0.06
    )  # two digits are printed
    assert resolved_in_one_sweep(0.1, rounds) == pytest.approx(noisy, abs=0.01)


def test_only_rounds_that_fit_are_said_to_resolve_something(
    replays: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = planned_words(capsys, replays, rounds_max=40, total="15 min")
    fitting = int(re.findall(r"(\d+) rounds resolve", words)[0])
    assert MIN_ROUNDS <= fitting < 40


def test_a_plan_for_several_nodes_says_what_its_rounds_resolve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (rounds, wanted) in enumerate([("4", FEW), ("7", "7 rounds resolve a difference of 2 %")]):
        given = ["--nodes", "a,b", "--set", "budget.rounds_min=1", "--set", f"budget.rounds_max={rounds}"]
        assert run(["plan", "quick", *given, "--out", str(tmp_path / str(number))]) == 0
        assert wanted in capsys.readouterr().out


def test_what_is_skipped_comes_last_with_its_reason(replays: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, replays)
    at = lines.index("skipped: 2 cases")
    skipped = " ".join(line.strip() for line in lines[at + 1 :])
    assert skipped.count("branches · ") == 2
    assert "a replay has no branches" in skipped


def test_verbose_adds_every_launch_in_order_with_each_ranks_command(
    replays: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short = printed(capsys, replays, "--out", "somewhere")
    lines = printed(capsys, replays, "--out", "somewhere", "-v")
    assert lines[: len(short)] == short
    order, *rest = lines[len(short) + 1 :]
    assert order.startswith("order of launches, as an example (seed ")
    launches = [line.split() for line in rest if not line.startswith(" ")]
    assert [words[0] for words in launches] == ["proof"] * 5 + ["round"] * 15
    assert [words[1] for words in launches[5:]] == ["1"] * 5 + ["2"] * 5 + ["3"] * 5
    assert {words[2] for words in launches[5:10]} == {words[1] for words in launches[:5]}
    ranks = 2 + 16 + 2 + 16 + 1
    assert sum("-m ddpbench.worker" in line for line in rest) == ranks * (1 + 3)


CAPS = "axes.bucket_cap_mb=['default', 25, 100, 1000]"
FOUND_LATER = "bucket caps that make the same buckets are found before the timed launches, and run once"


def test_equal_bucket_caps_of_a_replay_are_told_and_planned_once(
    replays: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its profile has gradients of 102 MB, shrunk by 50 like the caps."""
    path = Path(replays)
    path.write_text(REPLAYS.replace("bucket_cap_mb = 1000\n", ""), encoding="utf-8")
    lines = printed(capsys, replays, "--set", "axes.strategy=['ddp']", "--set", CAPS)
    output = " ".join(lines)
    assert (
        "replay:resnet50-v100: bucket caps 100 MiB and 1000 MiB make the same buckets and are run once"
        in output
    )
    names = [row[0] for row in table_rows(lines)]
    assert [sum(f"{cap} buckets" in name for name in names) for cap in ("100 MiB", "1000 MiB", "25 MiB")] == [
        2,
        0,
        2,
    ]
    assert FOUND_LATER not in output


@pytest.mark.parametrize("command", [["sweep", "--dry-run"], ["plan", "--nodes", "a,b"]])
@pytest.mark.parametrize(("several", "expected"), [(True, True), (False, False)])
def test_that_equal_bucket_caps_of_a_model_are_found_later_is_told(
    command: list[str], several: bool, expected: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = CAPS if several else "base.bucket_cap_mb=25"
    experiment = tmp_path / "x.toml"
    experiment.write_text(
        '[base]\nworkload = "mlp:small"\nstrategy = "ddp"\nworld_size = 2\n', encoding="utf-8"
    )
    name, *rest = command
    assert run([name, str(experiment), *rest, "--set", given, "--out", str(tmp_path / "run")]) == 0
    assert (FOUND_LATER in " ".join(capsys.readouterr().out.split())) is expected


def test_verbose_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "quick", "-v"]) == 2
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(known_experiments()))
def test_every_experiment_fits_the_width_without_a_broken_word(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    narrow = printed(capsys, name, "--out", "x")
    assert max(map(len, narrow)) <= 60
    monkeypatch.setenv("COLUMNS", "1000")  # at most WIDEST is used
    wide = printed(capsys, name, "--out", "x")
    assert max(map(len, wide)) <= WIDEST
    assert {word for line in narrow for word in line.split()} - {"·"} == {
        word for line in wide for word in line.split()
    } - {"·"}
    assert not any("\x1b" in line or "\N{NO-BREAK SPACE}" in line for line in narrow)


def with_own_models() -> list[str]:
    """Return the experiments that docs/own-loop.md names for `--workload`."""
    text = (Path(__file__).parents[2] / "docs/own-loop.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"`--workload` works with the experiments ([^.]*)\.", text)
    return re.findall(r"`(\w+)`", sentence)


@pytest.mark.parametrize("name", with_own_models())
def test_every_experiment_that_the_page_names_runs_a_model_of_ones_own(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "experiments/own_script/train_after.py:Measured"
    lines = printed(capsys, name, "--workload", own, "--out", "x")
    output = " ".join(line.strip() for line in lines)
    skipped = {"family": 1, "backends": 2 if missing_backend("mpi") else 0}.get(name, 0)
    assert [word for word in lines if word.startswith("skipped")] == (
        [f"skipped: {counted(skipped, 'case')}"] if skipped else []
    )
    assert ("cannot be cut into stages" in output) is (name == "family")
    assert (
        "replaces the axis workload" in output
        if name in ("strategies", "precision")
        else "axis" not in output
    )


def test_the_experiments_of_the_page_are_found() -> None:
    assert {"quick", "strategies", "precision", "family", "time_to_loss"} <= set(with_own_models())
    assert set(with_own_models()) <= known_experiments().keys()


def test_an_estimate_knows_how_large_a_shipped_model_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 1.5 billion parameters of gpt:xl: forward and backward of four samples are 40 Tflop, minutes on any core."""
    monkeypatch.setattr("ddpbench.launch.sweep.preparation.memory_limit", lambda: 1 << 40)
    flags = (
        "--workload",
        "gpt:xl",
        "--set",
        "base.local_batch=4",
        "--set",
        'axes.strategy=["single", "ddp"]',
    )
    lines = printed(capsys, "quick", *flags)
    rows = {row[0]: row for row in table_rows(lines)}
    assert seconds(rows["single · 1 rank · 1 thread per rank"][2]) > 60
    # 2 ranks with 1,478,019,200 parameters of 16 bytes each: 47,296,614,400 bytes
    assert "memory: at least 44 GiB for ddp · 2 ranks" in " ".join(lines)


def test_a_model_that_does_not_fit_is_skipped_with_its_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpbench.launch.sweep.preparation.memory_limit", lambda: 30 << 30)
    flags = (
        "--workload",
        "gpt:xl",
        "--set",
        'axes.strategy=["single", "ddp"]',
        "--set",
        "axes.world_size=[1, 2]",
    )
    text = " ".join(" ".join(printed(capsys, "quick", *flags)).split())
    assert (
        "parameters, gradients and optimizer state of 2 ranks take at least 44 GiB of memory "
        "(1,478,019,200 parameters), but only 30 GiB is available: use a smaller model or fewer ranks"
    ) in text
    assert "of 1 rank take" not in text


def test_of_a_model_of_ones_own_nothing_is_known_before_it_is_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, "own_workload")
    assert {row[2] for row in table_rows(lines)[:-3]} == {"unknown"}
    text = " ".join(" ".join(lines).split())
    assert "their time and memory are unknown. A sweep tries experiments/own_workload/" in text
    assert "about" not in text


def begun_run(request: SweepRequest) -> RunDir:
    """Return a run that was started here and has measured nothing yet."""
    prepared = prepare(request)
    toml = prepared.experiment.to_toml()
    identity = known_identity(prepared.hardware, toml, prepared.plan.cases) | {"torch": version("torch")}
    prepared.run.path.mkdir(parents=True)
    prepared.run.machine.write_text(json.dumps({"schema_version": 1, "identity": identity}), encoding="utf-8")
    prepared.run.experiment.write_text(toml, encoding="utf-8")
    prepared.run.plan.write_text(prepared.plan.dumps(), encoding="utf-8")
    return prepared.run


@pytest.mark.parametrize("words", [("--dry-run",), ("--dry-run", "--json"), ()])
@pytest.mark.parametrize("key", ["python", "torch", "kernel"])
def test_a_run_that_cannot_be_resumed_here_is_refused_alike_by_a_dry_run(
    key: str, words: tuple[str, ...], replays: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = begun_run(SweepRequest(experiment=Path(replays), out=tmp_path / "begun"))
    assert run(["sweep", str(begun.path), "--dry-run"]) == 0
    machine = json.loads(begun.machine.read_text(encoding="utf-8"))
    machine["identity"][key] = "0.1"
    begun.machine.write_text(json.dumps(machine), encoding="utf-8")
    before = sorted(path.name for path in begun.path.iterdir())
    capsys.readouterr()
    assert run(["sweep", str(begun.path), *words]) == 2
    said = capsys.readouterr()
    assert f"{key}: '0.1' before, '" in said.err
    assert sorted(path.name for path in begun.path.iterdir()) == before  # nor a lock


def test_a_dry_run_refuses_a_damaged_plan(
    replays: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = begun_run(SweepRequest(experiment=Path(replays), out=tmp_path / "begun"))
    begun.plan.write_text('{"schema_version": 99}', encoding="utf-8")
    assert run(["sweep", str(begun.path), "--dry-run"]) == 2
    assert "schema 99" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", [3, 1])
def test_of_a_run_that_was_begun_what_is_left_is_said(rounds: int, replays: str, tmp_path: Path) -> None:
    request = SweepRequest(experiment=Path(replays), overrides=[], out=tmp_path / "begun", retry_failed=False)
    prepared = prepare(request)
    assert not any("done already" in line for line in table(prepared, WIDEST))
    begun = replace(prepared, resumes=True, plan=replace(prepared.plan, run_id=RUN_ID))
    for entry in begun.plan.runnable:
        write_proof(begun.run, entry.case)
        for number in range(rounds):
            write_launch(begun.run, entry.case, number)
    (left,) = (line for line in table(begun, WIDEST) if line.startswith("launches done already: "))
    done, _, to_go = left.removeprefix("launches done already: ").partition("; about ")
    assert int(done) == (1 + rounds) * len(begun.plan.runnable)  # including the proofs
    left_s = seconds(to_go.removesuffix(" to go"))
    pack(begun.run)
    shutil.rmtree(begun.run.cases)
    assert not any("done already" in line for line in table(begun, WIDEST))
    assert not begun.run.cases.exists()  # a dry run writes nothing, and the folder may be read-only
    left_s -= report_s(len(begun.plan.cases))
    assert abs(left_s) < 0.1 if rounds == 3 else 0 < left_s < begun.plan.estimate_s(3)


def finished_run(replays: str, path: Path) -> RunDir:
    """Write a run with all launches of its plan."""
    begun = begun_run(SweepRequest(experiment=Path(replays), out=path))
    plan = read_plan(begun)
    for entry in plan.runnable:
        write_proof(begun, entry.case)
        for number in range(plan.budget.rounds_max):
            write_launch(begun, entry.case, number)
    for outcome in begun.cases.rglob("outcome.json"):
        text = outcome.read_text(encoding="utf-8")
        outcome.write_text(text.replace(RUN_ID, plan.run_id), encoding="utf-8")
    return begun


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_a_finished_run_needs_no_cores_and_no_processes(
    words: tuple[str, ...],
    replays: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    finished = finished_run(replays, tmp_path / "finished")
    monkeypatch.setattr("ddpbench.launch.sweep.sweep.identify", fail)
    run(["sweep", str(finished.path), *words])
    assert "finished; no launch is left" in "".join(capsys.readouterr())
    last = sorted(finished.cases.glob("*/launch-06"))[0]
    shutil.rmtree(last)
    if words:
        run(["sweep", str(finished.path), *words])
        assert "no launch is left" not in "".join(capsys.readouterr())
    else:
        with pytest.raises(AssertionError, match="a process was started"):
            run(["sweep", str(finished.path), *words])


def plan_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["sweep", *arguments, "--dry-run", "--json"]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def test_a_resolution_and_a_time_are_the_budgets(replays: str, capsys: pytest.CaptureFixture[str]) -> None:
    cases = sum(not entry["skip_reason"] for entry in plan_json(capsys, replays)["cases"])
    plan = plan_json(capsys, replays, "--total", "30min", "--resolve", "3%")
    budget = plan["budget"]
    assert (budget["total"], budget["target_half_width"]) == (1800.0, 0.03)
    fitting = int(1800 / (cases * budget["measured_s"]))  # their timed steps alone take that long
    assert budget["rounds_max"] == fitting > 7
    assert len(plan["launches"]) == fitting * cases
    assert plan_json(capsys, replays, "--total", "30min")["budget"]["rounds_max"] == 7
    short = plan_json(capsys, replays, "--total", "1min", "--resolve", "3%")["budget"]
    assert short["rounds_max"] == 7  # it is never lowered
    long = plan_json(capsys, replays, "--total", "600 h", "--resolve", "0.1%")["budget"]
    assert long["rounds_max"] == MOST_ROUNDS
    given = ("--set", "rounds_max=9")
    assert (
        plan_json(capsys, replays, "--total", "30min", "--resolve", "3%", *given)["budget"]["rounds_max"] == 9
    )


def test_a_resolution_is_refused_where_claims_fix_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["sweep", "claim_input_bound", "--resolve", "3%", "--dry-run"]
    assert run(given) == 2
    assert "claims need a number of rounds that is fixed in advance, and --resolve does not fix it" in (
        " ".join(capsys.readouterr().err.split())
    )
    assert run([*given, "--set", "claims=[]"]) == 0


def test_only_rounds_that_fit_are_planned_for_a_resolution(
    replays: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = " ".join(" ".join(printed(capsys, replays, "--total", "30min", "--resolve", "3%")).split())
    fitting, took = re.findall(r"up to (\d+) rounds \((.+?)\) while intervals are wider than ±3 %", words)[0]
    assert 7 < int(fitting) < 100
    assert seconds(took) == pytest.approx(1800, rel=0.1)
    assert f" {fitting} rounds resolve a difference of 2 %" in words


def test_a_resumed_run_keeps_its_resolution(
    replays: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, out = Path(replays), tmp_path / "begun"
    first = SweepRequest(
        experiment=experiment,
        overrides=["budget.total=1800.0", "budget.target_half_width=0.03"],
        out=out,
        fills_time=True,
    )
    begun_run(first)
    same = ("--total", "30min", "--resolve", "3%")
    rounds = json.loads((out / "plan.json").read_text(encoding="utf-8"))["budget"]["rounds_max"]
    for source in ([str(out)], [replays, "--out", str(out)]):
        assert plan_json(capsys, *source, *same)["budget"]["rounds_max"] == rounds
    assert plan_json(capsys, str(out))["budget"]["rounds_max"] == rounds
    assert run(["sweep", str(out), "--resolve", "2%", "--dry-run"]) == 2
    assert "budget.target_half_width" in capsys.readouterr().err
    assert run(["sweep", str(out), "--total", "31min"]) == 2
    assert "budget.total" in capsys.readouterr().err


SCATTER = {"ddp": 0.05, "master": 0.02, "branches": 0.01}


def measured_run(request: SweepRequest, rounds: int) -> RunDir:
    """Return a run whose log ratios are alternately above and below their mean by half of their scatter."""
    begun = begun_run(request)
    plan = read_plan(begun)
    for entry in plan.runnable:
        relative = SCATTER.get(entry.case.strategy, 0.0) * math.sqrt((rounds - 1) / rounds)
        for number in range(rounds):
            step = round(10 * MS * math.exp((-1) ** number * relative))
            write_launch(
                begun, entry.case, number, [RankLaunch(blocks=[[step] * 10])] * processes_of(entry.case)
            )
    for path in [*begun.cases.rglob("outcome.json"), *begun.cases.rglob("*.jsonl")]:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(RUN_ID, plan.run_id), encoding="utf-8")
    return begun


def half(rounds: int, scatter: float) -> float:
    return float(scipy_stats.t.ppf(0.975, rounds - 1)) * scatter / math.sqrt(rounds)


EARLIER = "reports/replays-20260101T000000Z"
FROM = f"(from {EARLIER}, 6 rounds)"
LONG = ("--set", "rounds_max=40", "--set", "total=2 h")


def earlier_here(replays: str, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> RunDir:
    """Return a run with six rounds in ./reports."""
    monkeypatch.chdir(Path(replays).parent)
    request = SweepRequest(
        experiment=Path(replays), overrides=["budget.rounds_max=8", *overrides], out=Path(EARLIER)
    )
    return measured_run(request, 6)


def test_an_earlier_run_of_the_cases_says_what_will_be_resolved(
    replays: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_before = earlier_here(replays, monkeypatch)
    words = " ".join(" ".join(printed(capsys, replays, *LONG)).split())
    assert "rounds resolve" not in words
    needed = next(n for n in range(6, 1000) if half(n, 0.05) <= 0.02)
    assert f"±2 % takes about {needed} rounds, " in words
    assert f" {FROM}" in words
    few = ("--set", "rounds_max=10", "--set", "total=2 h")
    words = " ".join(" ".join(printed(capsys, replays, *few)).split())
    found = re.search(
        r"after 10 rounds, (\d+) min: widest interval about ±([\d.]+ %) \(from (.+?)\); ", words
    )
    assert found is not None, words
    assert found[2] == format_at_most(half(10, 0.05))
    assert found[3] == f"{EARLIER}, 6 rounds"
    words = " ".join(" ".join(printed(capsys, replays, *LONG, "--resolve", "0.01%")).split())
    assert "±0.01 % takes over 1,000 rounds" in words
    wide = " ".join(" ".join(printed(capsys, replays, *LONG, "--resolve", "20%")).split())
    assert "±20 % takes about 5 rounds, " in wide  # the base case's median needs five
    shutil.rmtree(run_before.path)
    assert "from reports" not in " ".join(printed(capsys, replays, *LONG))


@pytest.mark.parametrize(
    "spoil", ["machine", "measured_s", "turns", "case", "packed", "damaged", "few", "name"]
)
def test_a_run_under_other_conditions_says_nothing(
    spoil: str, replays: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "measured_s": ["budget.measured_s=1"],
        "turns": ["budget.turns=auto"],
        "case": ['axes.strategy=["ddp"]'],
    }.get(spoil, [])
    earlier = earlier_here(replays, monkeypatch, *given)
    if spoil == "machine":
        text = earlier.machine.read_text(encoding="utf-8")
        machine = json.loads(text)
        machine["identity"]["cores"] = [0, 1, 2, 3, 4, 5, 6]
        earlier.machine.write_text(json.dumps(machine), encoding="utf-8")
    elif spoil == "packed":
        pack(earlier)
        shutil.rmtree(earlier.cases)
    elif spoil == "damaged":
        earlier.plan.write_text("{", encoding="utf-8")
    elif spoil == "few":
        for number in range(4):
            for folder in earlier.cases.glob(f"*/launch-{number:02}"):
                shutil.rmtree(folder)
    elif spoil == "name":
        earlier.path.rename(earlier.path.with_name("other-20260101T000000Z"))
    words = " ".join(" ".join(printed(capsys, replays, *LONG)).split())
    assert "from reports" not in words
    assert "rounds resolve a difference of 2 %" in words
    assert spoil != "packed" or not earlier.cases.exists()


def test_of_several_runs_the_newest_that_knows_is_taken(
    replays: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = earlier_here(replays, monkeypatch)
    begun_run(SweepRequest(experiment=Path(replays), out=Path("reports/replays-20260201T000000Z")))
    assert FROM in " ".join(" ".join(printed(capsys, replays, *LONG)).split())
    shutil.copytree(earlier.path, "reports/replays-20260103T000000Z")
    words = " ".join(" ".join(printed(capsys, replays, *LONG)).split())
    assert "(from reports/replays-20260103T000000Z, 6 rounds)" in words


def test_a_resumed_run_is_forecast_by_its_own_rounds(
    replays: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier_here(replays, monkeypatch, "budget.total=7200")
    words = " ".join(" ".join(printed(capsys, EARLIER)).split())
    found = re.search(r"after 8 rounds, (\d+) min: widest interval about (±.+?)\); ", words)
    assert found is not None, words
    assert found[2] == f"±{format_at_most(half(8, 0.05))} {FROM.removesuffix(')')}"
    assert int(found[1]) < 8  # two rounds are left, of about two minutes each
