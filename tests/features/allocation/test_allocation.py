"""The allocation page compared with files that were checked by eye, and its numbers with sums by hand."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import struct
from pathlib import Path

import pytest

from ddpbench.analysis import load
from ddpbench.cli import run as cli
from ddpbench.errors import RequestError
from ddpbench.escaping import escape_latex
from ddpbench.features.allocation.analysis.allocation import Allocation, allocation_of
from ddpbench.features.allocation.analysis.choice import AllocationRequest
from ddpbench.features.allocation.command import _waits
from ddpbench.features.allocation.report.latex_page import latex
from ddpbench.features.allocation.report.markdown_page import markdown
from ddpbench.features.allocation.report.sentences import choice, method
from ddpbench.launch import own_workloads
from ddpbench.records import RunDir
from ddpbench.records.machine import SlurmJob
from ddpbench.records.submission_dir import SubmissionDir
from ddpbench.spec import Budget, Case, PlannedCase
from tests.kept import REPORTS
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan, write_proof

GOLDEN = Path(__file__).parent / "golden"
SINGLE = case_of("single", 1)
STEPS_MS = {SINGLE: 100.0, case_of("ddp", 2): 105.0, case_of("ddp", 4): 125.0, case_of("ddp", 8): 200.0}
"""Efficiencies by hand, weak scaling: 100/105, 100/125, 100/200."""


def a_run(
    path: Path,
    steps_ms: dict[Case, float] = STEPS_MS,
    *,
    crowded: int = 99,
    wobble: float = 0.5,
    samples: int | None = None,
) -> RunDir:
    """Return a run of five rounds; step times vary by `wobble` ms, except the base case's."""
    run = RunDir(path)
    planned = [PlannedCase(case=case, oversubscribed=case.world_size > crowded) for case in steps_ms]
    write_plan(run, planned, Budget(rounds_min=5, rounds_max=5))
    for case, step_ms in steps_ms.items():
        write_proof(run, case, dataset_samples=samples)
        for number, sign in enumerate((-1, 0, 1, 0.5, -0.5)):
            shift = 0 if case.strategy == "single" else sign * wobble
            step = round((step_ms + shift) * MS)
            rank = RankLaunch(blocks=[[step] * 10], samples_per_step=case.global_batch // case.world_size)
            write_launch(run, case, number, [rank] * case.world_size)
    return run


def of(run: RunDir, **given: object) -> Allocation:
    return allocation_of(run, AllocationRequest(**given))  # type: ignore[arg-type]


FULL = {
    "samples_per_epoch": 1_000_001,
    "epochs": 3,
    "waits_s": {1: 300.0, 4: 7200.0, 8: 90_000.0},
}


@pytest.mark.parametrize(("name", "render"), [("allocation.md", markdown), ("allocation.tex", latex)])
def test_the_page_is_the_one_that_was_read_by_eye(tmp_path: Path, name: str, render: object) -> None:
    page = render(of(a_run(tmp_path / "run"), **FULL))  # type: ignore[operator]
    path = GOLDEN / name
    if not path.exists():
        path.write_text(page, encoding="utf-8")
        pytest.fail(f"{path} was not there and has been written: read it")
    assert page == path.read_text(encoding="utf-8"), f"to accept the change, delete {path} and run this again"


def test_times_and_hours_are_sums_by_hand(tmp_path: Path) -> None:
    found = of(a_run(tmp_path / "run"), **FULL)
    base, two, four, eight = found.jobs
    assert [job.devices for job in found.jobs] == [1, 2, 4, 8]
    # 1,000,001 samples in steps of 32 are 31,251 steps of 125 ms
    assert four.epoch_s is not None
    assert four.epoch_s.value == pytest.approx(31_251 * 0.125)
    assert four.epoch_hours is not None
    assert four.epoch_hours.value == pytest.approx(4 * 31_251 * 0.125 / 3600)
    assert base.run_s is not None
    assert base.run_s.value == pytest.approx(3 * 125_001 * 0.1)
    assert four.finish_s == pytest.approx(7200 + 3 * 31_251 * 0.125)
    assert two.wait_s is None
    assert eight.efficiency.value == pytest.approx(0.5, rel=1e-5)
    assert found.first is four


@pytest.mark.parametrize(
    ("cut", "ranks", "words"),
    [
        (0.9, 2, "At 4 ranks it is 0.800"),
        (0.8, 2, "with an interval that reaches beneath 0.8"),
        (0.7, 4, "At 8 ranks it is 0.500"),
        (0.4, 8, "No larger job size was measured"),
        (
            0.99,
            1,
            "No larger one has an efficiency of 0.99 or more with its whole 95 % interval; 2 ranks come nearest",
        ),
    ],
)
def test_the_choice_is_the_largest_whose_whole_interval_is_above_the_cut(
    tmp_path: Path, cut: float, ranks: int, words: str
) -> None:
    found = of(a_run(tmp_path / "run"), efficiency_cut=cut)
    assert found.chosen.world_size == ranks
    assert words in choice(found)
    bold = [line for line in markdown(found).splitlines() if line.startswith("| **")]
    assert len(bold) == 1


def test_without_an_interval_the_value_decides_and_that_is_said(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, list(STEPS_MS), Budget(rounds_min=1, rounds_max=1))
    for case, step_ms in STEPS_MS.items():
        ranks = [RankLaunch(blocks=[[round(step_ms * MS)] * 10])] * case.world_size
        write_launch(run, case, 0, ranks)
    found = of(run, efficiency_cut=0.8)
    assert found.chosen.world_size == 4
    assert "(its value; there are too few rounds for an interval)" in choice(found)
    assert "proved" not in method(found), "no proof lies in this run"


def test_a_case_whose_comparison_was_left_out_is_not_said_to_be_proved(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert "proved equal" in method(of(run))
    case = max(STEPS_MS, key=lambda each: each.world_size)
    shutil.rmtree(run.launch(case.case_id, "proof").path)
    write_proof(run, case, left_out="the model draws random numbers")
    assert "proved" not in method(of(run))


def test_what_finishes_first_is_told_beside_what_was_chosen(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    far = of(run, steps=1000, waits_s={1: 60.0, 4: 600.0})
    # 1,000 steps: 60 + 100 s against 600 + 125 s
    assert far.first is not None
    assert far.first.base
    text = choice(far)
    assert (
        "1 rank (the base case) finishes first: 60 s of waiting and 1 min 40 s of running are 2 min 40 s"
        in text
    )
    assert "the chosen size takes 12 min 5 s" in text
    assert "under weak scaling a larger job sees more samples" in markdown(far)
    assert "for the chosen size no wait is known" in choice(of(run, steps=1000, waits_s={1: 60.0}))
    assert "the chosen size is that one" in choice(of(run, steps=1000, waits_s={4: 1.0}))


def test_oversubscribed_sizes_are_neither_chosen_nor_shown(tmp_path: Path) -> None:
    found = of(a_run(tmp_path / "run", crowded=4), efficiency_cut=0.1)
    assert [job.world_size for job in found.jobs] == [1, 2, 4]
    assert found.chosen.world_size == 4
    assert "Not in the table: 8 ranks" in markdown(found)


def test_ddp_is_taken_unless_another_strategy_is_asked_for(tmp_path: Path) -> None:
    cases = {
        SINGLE: 100.0,
        case_of("master", 2): 120.0,
        case_of("master", 4): 130.0,
        case_of("ddp", 2): 105.0,
    }
    cases |= {case_of("ddp", 2, bucket_cap_mb=1.0): 150.0}
    run = a_run(tmp_path / "run", cases)
    found = of(run)
    assert found.name == "DDP with default buckets"
    assert (
        "also in this run: master, gpt:nano, weak scaling with a local batch of 8 (--strategy master); "
        in (found.elsewhere)
    )
    assert found.elsewhere.endswith("1 buckets (--where bucket_cap_mb=1)")
    assert of(run, where={"bucket_cap_mb": "1"}).jobs[1].step_s.value == pytest.approx(0.15, rel=1e-3)
    assert of(run, strategy="master").name == "master"


def test_a_curve_with_a_number_that_cannot_be_right_is_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", {**STEPS_MS, case_of("ddp", 4): 30.0})
    with pytest.raises(
        RequestError, match=r"DDP at 4 ranks cannot be right: .* speed-up.* is 1[23].*again"
    ) as why:
        of(run)
    assert "at most" in str(why.value)


def test_of_two_batches_of_one_strategy_either_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = dict(STEPS_MS)
    cases |= {case_of("single", 1, local_batch=32): 380.0, case_of("ddp", 2, local_batch=32): 400.0}
    run = a_run(tmp_path / "run", cases)
    first = of(run)
    assert first.jobs[0].global_batch == 8
    assert first.elsewhere == (
        "also in this run: DDP, gpt:nano, weak scaling with a local batch of 32 (--where local_batch=32)"
    )
    other = of(run, where={"local_batch": "32"})
    assert [job.global_batch for job in other.jobs] == [32, 64]
    assert other.elsewhere.endswith("a local batch of 8 (--where local_batch=8)")
    for where, message in (
        ("local_batch=16", f"--where local_batch=16: no such curve in {run.path}; local_batch is 8 or 32"),
        ("global_batch=16", "no curve has one global_batch for all its ranks; they differ in local_batch"),
        ("zzz=1", f"zzz=1: zzz is not a setting of a case in {run.path}; they differ in local_batch"),
        ("ranks=2", "ranks is not a setting of a case in"),
        ("ranks=2", "did you mean 'world_size'?"),
        ("local_batc=8", "local_batc is not a setting of a case in"),
        ("bucket_cap_mb=7", f"no such bucket cap in {run.path}; there is default"),
        ("local_batch", "give NAME=VALUE, such as local_batch=32"),
    ):
        assert cli(["allocation", str(run.path), "--where", where]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["$(touch x)/a.py:B", "two words/it's.py:B", "`a`;b.py:B"])
def test_flags_that_name_a_workload_are_one_word_each_to_a_shell(tmp_path: Path, name: str) -> None:
    cases = dict(STEPS_MS)
    cases |= {case_of("single", 1, workload=name): 100.0, case_of("ddp", 2, workload=name): 105.0}
    run = a_run(tmp_path / "run", cases)
    flags = shlex.split(of(run).elsewhere.rpartition(" (")[2].removesuffix(")"))
    assert flags == ["--workload", name]
    assert name in method(of(run, workload=flags[1]))
    with pytest.raises(RequestError, match=r"no case of .* has a measured snapshot time") as why:
        of(run, workload=name, mtbf_s=3600.0)
    line = str(why.value).rpartition("a run of: ")[2]
    assert shlex.split(line) == ["ddpbench", "sweep", "recovery", "--set", f"base.workload={name}"]


def test_an_epoch_is_the_recorded_dataset_unless_another_is_given(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", samples=6400)
    found = of(run, epochs=2)
    base = found.jobs[0]
    assert (found.samples_per_epoch, found.samples_recorded) == (6400, True)
    assert base.epoch_s is not None
    assert base.epoch_s.value == pytest.approx(6400 / 8 * 0.1)
    assert "6,400 samples (the dataset as recorded)" in markdown(found)
    assert "1,000 samples (given, not recorded)" in markdown(of(run, samples_per_epoch=1000))


def test_queue_waits_are_those_of_the_runs_own_jobs(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    machine = json.loads(run.machine.read_text(encoding="utf-8"))
    jobs = [
        SlurmJob(job_id=str(n), nodes=n, slots=n, queue_wait_s=wait) for n, wait in ((1, 60.0), (2, 600.0))
    ]
    machine["context"]["slurm_jobs"] = [job.model_dump() for job in jobs]
    run.machine.write_text(json.dumps(machine), encoding="utf-8")
    found = of(run, steps=100)
    assert {job.wait_s for job in found.jobs} == {60.0}
    assert "Queue waits are those of 1 job of this run: queues change. A core" in markdown(found)
    assert "With the queue waits recorded, 1 rank" in markdown(found)


def test_a_requeued_job_is_one_job_with_a_wait_for_each_start(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    machine = json.loads(run.machine.read_text(encoding="utf-8"))
    jobs = [
        SlurmJob(job_id="1", restarts=restarts, nodes=1, slots=8, queue_wait_s=wait)
        for restarts, wait in ((0, 60.0), (1, 3600.0))
    ]
    machine["context"]["slurm_jobs"] = [job.model_dump() for job in jobs]
    run.machine.write_text(json.dumps(machine), encoding="utf-8")
    found = of(run, steps=100)
    assert {job.wait_s for job in found.jobs} == {1830.0}
    assert found.waits_recorded == 1


def test_queue_waits_that_are_given_are_not_called_recorded(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    machine = json.loads(run.machine.read_text(encoding="utf-8"))
    job = SlurmJob(job_id="1", nodes=1, slots=8, queue_wait_s=60.0)
    machine["context"]["slurm_jobs"] = [job.model_dump()]
    run.machine.write_text(json.dumps(machine), encoding="utf-8")
    for sizes, given in (
        ((1,), "That of 1 rank is given, not measured."),
        ((1, 4, 8), "Those of 1, 4 and 8 ranks are given, not measured."),
    ):
        found = of(run, steps=100, waits_s=dict.fromkeys(sizes, 3600.0))
        assert [job.wait_s for job in found.jobs if job.world_size in sizes] == [3600.0] * len(sizes)
        page = markdown(found)
        assert "With the queue waits recorded and given, " in page
        assert f"Queue waits are those of 1 job of this run: queues change. {given}" in page
    page = markdown(of(run, steps=100, waits_s=dict.fromkeys((1, 2, 4, 8), 3600.0)))
    assert "With the queue waits given, " in page
    assert "Queue waits are given, not measured." in page
    assert "of this run: queues change" not in page


def test_wrong_requests_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run")
    for given, words in (
        (["--strategy", "dpd"], "did you mean 'ddp'?"),
        (["--workload", "resnet"], "known: gpt:nano"),
        (["--efficiency-cut", "0"], "above 0 and up to 1"),
        (["--epochs", "2"], "--epochs needs --samples-per-epoch"),
        (["--epochs", "2", "--steps", "3"], "give only one of them"),
        (["--steps", "0"], "--steps: 0 given; must be a whole number, 1 to"),
        (["--queue-wait", "8=2h"], "needs the length of the job"),
        (
            ["--queue-wait", "5=2h", "--steps", "9"],
            "no case at 5 ranks is in the table; give one of 1, 2, 4, 8",
        ),
        (["--queue-wait", "8:2h", "--steps", "9"], "not RANKS=TIME"),
        (["--queue-wait", "8=2 years", "--steps", "9"], "invalid duration"),
        (["--queue-wait", "8=2h,8=3h", "--steps", "9"], "8 ranks are given twice"),
        (["--queue-wait", "1=5min,1=6min", "--steps", "9"], "1 rank is given twice"),
    ):
        assert cli(["allocation", str(run.path), *given]) == 2
        printed = capsys.readouterr()
        assert words in printed.err
        assert printed.out == ""
    assert not (run.path / "allocation.md").exists()
    assert cli(["allocation", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_a_comma_without_an_entry_of_queue_waits_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert _waits("1=5min,") == _waits(" ,1=5min,,") == {1: 300.0}
    for none in (",", " , "):
        assert cli(["allocation", "nowhere", "--queue-wait", none]) == 2
        assert "is not RANKS=TIME, such as 8=2h" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli(["allocation", "nowhere", "--queue-wait", ""])
    assert "--queue-wait: the value is empty" in capsys.readouterr().err


def test_a_run_that_is_not_finished_is_to_be_resumed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    plan["budget"] |= {"rounds_min": 30, "rounds_max": 30}
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(RequestError) as refused:
        of(run)
    assert str(refused.value) == (
        f"{run.path} does not have a complete curve for an allocation yet: 4 of 4 cases are unfinished, the first "
        f"measured in 5 of at least 30 rounds so far; resume with: ddpbench sweep {run.path}"
    )


def test_a_curve_that_is_not_finished_is_to_be_resumed(tmp_path: Path) -> None:
    fsdp = case_of("fsdp2", 2)
    run = a_run(tmp_path / "run", {**STEPS_MS, fsdp: 120.0})
    for number in range(2, 5):
        shutil.rmtree(run.launch(fsdp.case_id, "measure", number).path)
    with pytest.raises(
        RequestError, match=r"--strategy fsdp2: no such curve in .* yet; its case is unfinished"
    ):
        of(run, strategy="fsdp2")


PACKAGES = {("strategy", "topk"): "pack:TopK", ("algorithm", "to_each"): "pack:ToEach"}


def test_a_strategy_and_an_algorithm_go_by_the_names_of_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_workloads, "path_of", lambda kind, name: PACKAGES.get((kind, name), ""))
    topk = case_of("pack:TopK", 2)
    run = a_run(tmp_path / "run", {**STEPS_MS, topk: 120.0})
    assert cli(["allocation", str(run.path), "--strategy", "topk"]) == 0
    assert "# Resources for TopK" in capsys.readouterr().out
    theirs = a_run(tmp_path / "theirs", {**STEPS_MS, case_of("ddp", 2, algorithm="pack:ToEach"): 120.0})
    words = ["allocation", str(theirs.path), "--where"]
    assert cli([*words, "algorithm=to_each"]) == 0
    assert cli([*words, "algorithm=pack:ToEach"]) == 0
    assert cli([*words, "algorithm=to_none"]) == 2


def test_emulated_runs_are_no_base_for_an_allocation(tmp_path: Path) -> None:
    slow = case_of("ddp", 2, fabric="1 Gbit/s")
    run = a_run(tmp_path / "run", {SINGLE: 100.0, slow: 150.0})
    with pytest.raises(RequestError, match="all of its curves are emulated"):
        of(run)


@pytest.mark.usefixtures("painted")
def test_the_command_writes_three_files_and_prints_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = a_run(tmp_path / "run"), tmp_path / "new" / "proposal"
    assert (
        cli(["allocation", str(run.path), "--out", str(out), "--queue-wait", "1=5min, 8=2h", "--steps", "9"])
        == 0
    )
    assert sorted(path.name for path in out.iterdir()) == [
        ".allocation.sha256",
        "allocation.md",
        "allocation.png",
        "allocation.tex",
    ]
    assert capsys.readouterr().out == (out / "allocation.md").read_text(encoding="utf-8")
    head = (out / "allocation.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, _ = struct.unpack(">II", head[16:24])
    assert width == 1440


def test_latex_is_well_formed_whatever_the_machine_is_called(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    data = json.loads(run.machine.read_text(encoding="utf-8"))
    nasty = r"{Xeon}_100% & co. #1 \input{x} $y$ ~^ [a] <b> | µ é 東 --- `q` " + '"r"'
    data["identity"]["cpu"] = nasty
    run.machine.write_text(json.dumps(data), encoding="utf-8")
    page = latex(of(run, **FULL))
    body = "\n".join(line for line in page.splitlines() if not line.startswith("%"))
    assert "東" not in body
    assert r"\{Xeon\}\_100\% \& co. \#1 \textbackslash{}input\{x\} \$y\$" in body
    bare = body.replace(r"\\", "").replace(r"\{", "").replace(r"\}", "")
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert re.findall(r"\\begin\{(\w+)\}", body) == ["table", "tabular", "figure"]
    assert sorted(re.findall(r"\\end\{(\w+)\}", body)) == ["figure", "table", "tabular"]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    columns = len(re.search(r"\{(r+)\}", body)[1])  # type: ignore[index]
    assert len(rows) == 5
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {columns - 1}
    assert not re.search(r"(?<!\\)[#_%^]", re.sub(r"%$", "", body, flags=re.MULTILINE))


def test_every_printable_character_is_escaped_or_set_as_it_is() -> None:
    assert escape_latex("a--b") == "a-{}-b"
    assert escape_latex("a---b") == "a-{}-{}-b"
    assert escape_latex("50 %_x\\") == r"50 \%\_x\textbackslash{}"
    assert escape_latex("naïve Zürich Łódź") == "naïve Zürich ?ódź"
    assert escape_latex("1\N{MINUS SIGN}2 µs ≥ 3") == r"1$-$2 $\mu$s ? 3"


@pytest.mark.parametrize("ending", ["md", "tex", "png"])
def test_a_text_that_its_user_has_edited_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    run = a_run(tmp_path / "run")
    words = ["allocation", str(run.path), "--out", str(tmp_path / "proposal")]
    edited = tmp_path / "proposal" / f"allocation.{ending}"
    assert cli([*words, "--steps", "9"]) == 0
    assert cli([*words, "--steps", "99"]) == 0  # unchanged, so it is made again
    edited.write_bytes(edited.read_bytes() + b"mine")
    before = {path.name: path.read_bytes() for path in edited.parent.iterdir()}
    capsys.readouterr()
    assert cli([*words, "--steps", "9"]) == 2
    assert f"{edited} was changed after ddpbench wrote it, and would be lost" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in edited.parent.iterdir()} == before
    edited.unlink()
    assert cli([*words, "--steps", "9"]) == 0


def test_another_programs_file_of_the_name_is_not_replaced(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    folder = tmp_path / "thesis"
    folder.mkdir()
    for name in ("allocation.tex", "thesis.tex"):
        (folder / name).write_text("mine")
    assert cli(["allocation", str(run.path), "--out", str(folder)]) == 2
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "allocation.tex": "mine",
        "thesis.tex": "mine",
    }


def test_a_pair_that_a_claim_names_has_the_speed_up_of_its_report() -> None:
    """Alone, its 95 % interval would show that one microbatch slows down, [0.958, 0.9996]; the report's does not."""
    run = RunDir(REPORTS / "claim_model_parallel")
    job = of(run, strategy="pipeline", where={"microbatches": "1"}).jobs[-1]
    cases = load(run).set_index("case_id")
    (row,) = (
        one
        for _, one in cases[cases["strategy"] == "pipeline"].iterrows()
        if one["speedup"] == pytest.approx(job.speedup.value)
    )
    assert (job.speedup.low, job.speedup.high) == pytest.approx(
        (row["speedup_ci_low"], row["speedup_ci_high"])
    )


def test_a_submissions_directory_means_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "week-slurm"
    run = a_run(folder / "nodes-1")
    SubmissionDir(folder).file.write_text("{}")
    before = {*folder.iterdir()}
    assert cli(["allocation", str(folder), "--steps", "100"]) == 0
    assert (run.path / "allocation.md").is_file()
    assert {*folder.iterdir()} == before, "its runs alone are written to"
