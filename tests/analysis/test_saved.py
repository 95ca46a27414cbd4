"""Files of pytest-benchmark and baselines saved by name as sides of a comparison, from made-up records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis.export import exported
from ddpbench.analysis.regression import changes_of, read_side, unlike
from ddpbench.analysis.regression.baselines import Baselines, machine_folder, side_of
from ddpbench.analysis.regression.gate import read_baselines
from ddpbench.analysis.regression.saved import read_saved
from ddpbench.analysis.regression.wording import remarks
from ddpbench.cli import run as run_cli
from ddpbench.errors import IdentityError, RequestError
from ddpbench.records import RunDir
from ddpbench.spec import Case
from tests.analysis.test_changes import DDP, MASTER, SINGLE, made
from tests.synthetic import case_of

ASYNC = case_of("async_server", 3)
CAPPED = replace(DDP, bucket_cap_mb=25.0, options_json='{"gradient_as_bucket_view": true}', dilation=2.0)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(path: Path, run: RunDir) -> Path:
    path.write_bytes(exported(run, "pytest-benchmark"))
    return path


def changed(path: Path, **extra: Any) -> Path:
    """Return the file with these keys of the first benchmark's `extra_info` set; None removes one."""
    data = json.loads(path.read_text())
    info = data["benchmarks"][0]["extra_info"]
    for key, value in extra.items():
        info[key] = value
        if value is None:
            del info[key]
    path.write_text(json.dumps(data))
    return path


def test_a_file_compares_as_its_run_does(tmp_path: Path) -> None:
    """Ratios and intervals agree to the last digit; parts of a step are missing, and the page says so."""
    parts = {"forward": 12.0, "backward": 24.0, "optimizer": 4.0}
    base = made(tmp_path / "a", {SINGLE: 30, DDP: 40, CAPPED: 45, MASTER: 60}, parts=parts)
    new = made(tmp_path / "b", {SINGLE: 30, DDP: 52, CAPPED: 45}, parts={**parts, "backward": 36.0})
    runs = read_side(base), read_side(new)
    files = tuple(read_saved(saved(tmp_path / f"{run.path.name}.json", run)) for run in (base, new))
    whole = changes_of(*runs)
    assert any(change.parts for change in whole.changes)
    for sides in ((files[0], runs[1]), (runs[0], files[1]), files):
        assert unlike(*sides) == []
        changes = changes_of(*sides)
        assert [one.case for one in changes.changes] == [one.case for one in whole.changes]
        for one, other in zip(changes.changes, whole.changes, strict=True):
            assert one.verdict == other.verdict
            assert (one.ratio is None) == (other.ratio is None)
            if one.ratio is not None and other.ratio is not None:
                assert (one.ratio.low, one.ratio.high) == pytest.approx((other.ratio.low, other.ratio.high))
            assert one.parts == ()
            assert one.where is None
        assert sum("step times alone" in sentence for sentence in remarks(changes)) == 1
    assert "step times alone" not in " ".join(remarks(whole))


def test_saved_files_do_not_say_what_a_round_takes(tmp_path: Path) -> None:
    """This is not a lack of rounds."""
    files = [saved(tmp_path / f"{name}.json", made(tmp_path / name, {DDP: 40})) for name in ("a", "b")]
    said = " ".join(remarks(changes_of(*map(read_saved, files))))
    assert "saved files do not say what a round takes" in said
    assert "Too few rounds" not in said


def test_sessions_and_failed_launches_are_in_a_file(tmp_path: Path) -> None:
    """A side of two sessions has half the drift's variance, and a gate sees launches that began to fail."""
    runs = [made(tmp_path / name, {DDP: 40}, rounds=10) for name in ("a", "b")]
    for number in range(5, 10):
        outcome = runs[0].launch(DDP.case_id, "measure", number).outcome
        outcome.write_text(json.dumps(json.loads(outcome.read_text()) | {"session": "later"}))
    outcome = runs[1].launch(DDP.case_id, "measure", 3).outcome
    outcome.write_text(outcome.read_text().replace('"ok"', '"failed"'))
    files = [read_saved(saved(tmp_path / f"{run.path.name}.json", run)) for run in runs]
    assert len({timing.session for timing in files[0].cases[0].timings}) == 2
    (change,), (whole,) = changes_of(*files).changes, changes_of(*map(read_side, runs)).changes
    assert change.failures == whole.failures == 1
    assert change.ratio is not None
    assert whole.ratio is not None
    assert change.ratio.low == pytest.approx(whole.ratio.low)


def test_a_file_of_an_earlier_version_has_only_steps(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", made(tmp_path / "a", {DDP: 40}))
    now = read_saved(path)
    changed(path, schema_version=None, launch_steps=None, launch_samples=None, sessions=None)
    before = read_saved(path)
    sample_s = [[timing.sample_s for timing in side.cases[0].timings] for side in (before, now)]
    assert sample_s[0] == pytest.approx(sample_s[1])


def test_a_step_has_the_samples_that_were_counted(tmp_path: Path) -> None:
    """Only if ranks do not wait for each other may a step have other samples than its case's batch."""
    runs = [made(tmp_path / case.strategy, {case: 40}) for case in (DDP, ASYNC)]
    for run in runs:
        path = saved(tmp_path / "a.json", run)
        info = json.loads(path.read_text())["benchmarks"][0]["extra_info"]
        changed(path, launch_samples=[2 * count for count in info["launch_samples"]])
        if run is runs[0]:
            with pytest.raises(IdentityError, match=r"is damaged: .*launch_samples: 960 samples in 30 steps"):
                read_saved(path)
            continue
        for timing, step_s in zip(read_saved(path).cases[0].timings, info["steps_s"], strict=True):
            assert timing.step_s == pytest.approx(step_s)
            assert timing.sample_s == pytest.approx(
                timing.time_s / (2 * info["launch_samples"][timing.round])
            )


def test_an_entrys_numbers_agree(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", made(tmp_path / "a", {DDP: 40}))
    data = json.loads(path.read_text())
    one = data["benchmarks"][0]
    steps = one["extra_info"]["steps_s"]
    for key in ("mean", "min", "max"):
        changed_stats = {**one["stats"], key: one["stats"][key] * 1.01}
        path.write_text(json.dumps({**data, "benchmarks": [{**one, "stats": changed_stats}]}))
        with pytest.raises(IdentityError, match=rf"is damaged: .*stats\.{key} is "):
            read_saved(path)
    path.write_text(json.dumps(data))
    changed(path, step_time_s=1.01 * one["extra_info"]["step_time_s"])
    with pytest.raises(IdentityError, match=r"is damaged: .*step_time_s is "):
        read_saved(path)
    path.write_text(json.dumps(data))
    changed(path, steps_s=[value * (1 + 1e-9) for value in steps])  # as printed elsewhere
    read_saved(path)


@pytest.mark.parametrize("times", [[1e-9, 1e7] * 4, [1e-9] * 7 + [1e7], [1e-9, 1e7, 1e7]])
def test_times_at_the_ends_of_what_is_taken_are_compared(
    tmp_path: Path, times: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """For any width of the interval, and few degrees of freedom."""
    base, new = (saved(tmp_path / f"{name}.json", made(tmp_path / name, {DDP: 40})) for name in ("a", "b"))
    data = json.loads(new.read_text())
    del data["benchmarks"][0]["stats"]
    new.write_text(json.dumps(data))
    left = dict.fromkeys(("step_time_s", "launch_steps", "launch_samples", "sessions"))
    changed(new, steps_s=times, **left)
    for words in ([], ["--json"]):
        assert run_cli(["compare", str(base), str(new), *words]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_copies_of_a_run_are_not_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An export renumbers its rounds where a launch failed, and times lose their last digits."""
    run = made(tmp_path / "a", {DDP: 40}, rounds=6)
    outcome = run.launch(DDP.case_id, "measure", 0).outcome
    outcome.write_text(outcome.read_text().replace('"ok"', '"failed"'))
    file = saved(tmp_path / "a.json", run)
    copy = tmp_path / "b.json"
    copy.write_bytes(file.read_bytes())
    other = saved(tmp_path / "c.json", made(tmp_path / "c", {DDP: 40}, rounds=6))
    assert len(read_baselines([str(run.path), str(other)], Baselines())) == 2
    for paths in ((run.path, file), (file, copy), (other, run.path, file)):
        with pytest.raises(RequestError, match="has the same launches as"):
            read_baselines([str(path) for path in paths], Baselines())
    assert run_cli(["compare", str(run.path), str(file)]) == 2
    assert "one run is a copy" in capsys.readouterr().err
    assert run_cli(["history", "--as-given", str(run.path), str(file)]) == 2
    assert "one run is a copy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"identity": None, "steps_s": None}, "has no identity, steps_s in its extra_info"),
        ({"case_id": None}, "has no case_id in its extra_info; save it with the fixture ddp_benchmark"),
        ({"schema_version": 99}, "has schema 99; this ddpbench reads schema"),
        ({"steps_s": [0.1, "x"]}, "is damaged: .*steps_s.1"),
        ({"steps_s": [0.1, -1.0]}, "is damaged: .*steps_s.1"),
        ({"steps_s": [0.1, 1e-10]}, "is damaged: .*steps_s.1"),
        ({"steps_s": [0.1, 1e8]}, "is damaged: .*steps_s.1"),
        ({"steps_s": []}, "is damaged: .*steps_s"),
        ({"sessions": [0]}, "1 sessions for 8 launches"),
        ({"world_size": 4}, "has the contents of"),
        ({"bucket_cap_mb": "many"}, "is damaged: "),
        (
            {"bucket_cap_mb": "1e300"},
            r"bucket_cap_mb: .*, or 1e-06 to 1,048,576: no model has a TiB of gradients",
        ),
        ({"world_size": "two"}, "is damaged: .*world_size"),
        ({"status": "fine"}, "is damaged: .*status"),
    ],
)
def test_what_a_file_may_not_hold(tmp_path: Path, extra: dict[str, Any], sentence: str) -> None:
    path = changed(saved(tmp_path / "a.json", made(tmp_path / "a", {DDP: 40})), **extra)
    with pytest.raises(IdentityError, match=sentence):
        read_saved(path)


def test_what_is_no_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(RequestError, match="does not exist"):
        read_saved(path)
    for text, sentence in (
        ("{}", "has no benchmarks"),
        ('{"benchmarks": []}', "it is empty, as where no test was measured"),
        (
            '{"benchmarks": [{"name": "test_sort", "extra_info": {}}]}',
            "'test_sort' has no case_id, identity, steps_s",
        ),
        ('{"benchmarks": [{"name"', "is not a file of pytest-benchmark"),
        ("[" * 100_000, "is not a file of pytest-benchmark"),
    ):
        path.write_text(text)
        with pytest.raises(IdentityError, match=sentence):
            read_saved(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(IdentityError, match="not a text in UTF-8"):
        read_saved(path)


def test_other_benchmarks_of_a_file_are_left_out_and_counted(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", made(tmp_path / "a", {DDP: 40}))
    data = json.loads(path.read_text())
    data["benchmarks"].insert(0, {"name": "test_sort", "extra_info": {}, "stats": {}})
    path.write_text(json.dumps(data))
    side = read_saved(path)
    assert [run.case for run in side.cases] == [DDP]
    assert side.lacks.endswith("a.json has 1 benchmark of others, left out.")


def test_files_of_other_machines_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, later = (made(tmp_path / name, {DDP: 40, SINGLE: 30}) for name in ("a", "b"))
    path = saved(tmp_path / "a.json", run)
    data = json.loads(path.read_text())
    for one in data["benchmarks"]:
        one["extra_info"]["identity"]["torch"] = "2.99.0"
    path.write_text(json.dumps(data))
    assert run_cli(["compare", str(path), str(later.path)]) == 2
    assert "torch: '2.99.0' in " in capsys.readouterr().err
    assert run_cli(["compare", str(path), str(later.path), "--across"]) == 0
    data["benchmarks"][0]["extra_info"]["identity"]["torch"] = "2.98.0"
    path.write_text(json.dumps(data))
    with pytest.raises(IdentityError, match=r"more than one machine: torch is '2\.98\.0' and '2\.99\.0'"):
        read_saved(path)


def test_baselines_are_saved_found_listed_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, slow = made(tmp_path / "run", {DDP: 40}), made(tmp_path / "slow", {DDP: 80})
    for source in (slow, run):
        assert run_cli(["baseline", "save", "main", str(source.path)]) == 0
    folder = tmp_path / ".benchmarks" / machine_folder()
    assert sorted(path.name for path in folder.iterdir()) == ["0001_main.json", "0002_main.json"]
    capsys.readouterr()
    assert run_cli(["baseline", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "name",
        "0001_main",
        "0002_main",
    ]
    means = {text: side_of(text).name for text in ("main", "0001", "0001_main", "0002_main.json")}
    assert means == {
        "main": "0002_main",  # the latest
        "0001": "0001_main",
        "0001_main": "0001_main",
        "0002_main.json": "0002_main",
    }
    made(tmp_path / "later", {DDP: 80})
    assert run_cli(["compare", "0001", "later", "--fail-on", "3%"]) == 0
    assert run_cli(["compare", "main", "later", "--fail-on", "3%"]) == 1
    assert run_cli(["compare", "main", "0002"]) == 2
    assert "main is given as both sides" in capsys.readouterr().err
    assert run_cli(["baseline", "remove", "main"]) == 0
    assert side_of("main").name == "0001_main"


def test_a_path_wins_over_a_name_and_a_name_that_means_nothing_lists_those_that_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "main", {DDP: 40})
    Baselines().save("main", exported(run, "pytest-benchmark"))
    Baselines().save("other", exported(run, "pytest-benchmark"))
    assert side_of("main").path == Path("main")
    assert run_cli(["compare", "nightly", "main"]) == 2
    said = capsys.readouterr().err
    assert (
        f"nor a baseline saved in .benchmarks/{machine_folder()}; saved there: 0001_main, 0002_other" in said
    )
    with pytest.raises(RequestError, match="nothing is saved there"):
        Baselines(tmp_path / "none").find("main")


def test_names_are_those_of_pytest_benchmarks_storage(tmp_path: Path) -> None:
    """Files that one class saves the other finds, under the same number."""
    from pytest_benchmark.logger import Logger
    from pytest_benchmark.storage.file import FileStorage
    from pytest_benchmark.utils import get_machine_id

    assert machine_folder() == get_machine_id()
    theirs = FileStorage(".benchmarks", Logger(Logger.QUIET), default_machine_id=get_machine_id())
    run = made(tmp_path / "a", {DDP: 40})
    content = exported(run, "pytest-benchmark")
    theirs.save(json.loads(content), "4be1a90_20260101")
    ours = Baselines().save("mine", content)
    assert ours.name == "0002_mine.json"
    theirs.save(json.loads(content), "theirs")
    for text in ("0001", "0002", "0002_mine", "0003_theirs"):
        (path,) = theirs.query(text)
        assert Baselines().find(text).resolve() == path.resolve()
    other = tmp_path / ".benchmarks" / "Linux-CPython-3.99-64bit"
    other.mkdir()
    (other / "0001_far.json").write_bytes(content)
    (path,) = theirs.query("Linux-CPython-3.99-64bit/0001")
    assert Baselines().find("Linux-CPython-3.99-64bit/0001").resolve() == path.resolve()
    (tmp_path / ".benchmarks" / machine_folder() / "0001_again.json").write_bytes(content)
    with pytest.raises(RequestError, match="several saved baselines have the number 0001: 0001_4be1"):
        Baselines().find("0001")


@pytest.mark.parametrize("name", ["0001", "../up", "a/b", "", ".hidden", "-x", "a b"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(RequestError, match="invalid baseline name"):
        Baselines().save(name, b"{}")


def test_what_cannot_be_saved_and_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = made(tmp_path / "some", {SINGLE: 30, DDP: 40}, failed=DDP)
    none = made(tmp_path / "none", {DDP: 40}, failed=DDP)
    assert run_cli(["baseline", "save", "main", str(some.path)]) == 0
    assert "left out: ddp" in capsys.readouterr().err
    cases: list[Case] = [run.case for run in side_of("main").cases]
    assert cases == [SINGLE]
    for words, sentence in (
        (("save", "main", str(none.path)), "has no measured case"),
        (("save", "main", str(tmp_path)), "is not a run directory"),
        (("save", "main"), "give: ddpbench baseline save NAME RUN_DIR"),
        (("list", "main"), "give: ddpbench baseline list"),
        (("remove", "nightly"), "saved there: 0001_main"),
    ):
        assert run_cli(["baseline", *words]) == 2, words
        assert sentence in capsys.readouterr().err


def test_only_what_is_in_the_storage_and_means_the_name_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = made(tmp_path / "a", {DDP: 40})
    saved = Baselines().save("main", exported(run, "pytest-benchmark"))
    notes, old = tmp_path / "notes.json", Path(".benchmarks/main_old.json")
    for mine in (notes, old):
        mine.write_text("{}")
    for outside in ("../notes", "../../notes", "./notes", str(notes.with_suffix(""))):
        assert run_cli(["baseline", "remove", outside]) == 2
    assert notes.exists()
    capsys.readouterr()
    here = f"is saved in .benchmarks/{machine_folder()}"
    # Paths that exist, names that are similar to one, and a name without a machine's folder.
    for name, said in (
        ("a", f"no baseline 'a' {here}; saved there: main_old, 0001_main"),
        ("notes.json", f"no baseline 'notes.json' {here}; saved there: main_old, 0001_main"),
        ("note.json", f"no baseline 'note.json' {here}; saved there: main_old, 0001_main"),
        ("mian", f"no baseline 'mian' {here}; did you mean 'main'? saved there: main_old, 0001_main"),
        (str(saved), f"no baseline '{saved}' {here}; saved there: main_old, 0001_main"),
    ):
        assert run_cli(["baseline", "remove", name]) == 2
        assert capsys.readouterr().err == f"ddpbench: {said}\n"
    assert run_cli(["baseline", "remove", "main"]) == 0
    assert not saved.exists()
    assert old.exists(), "main is not its name"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (10**400, "a whole number of 401 digits"),
        (True, "step_time_s is"),
        (float("nan"), "nan is not a finite number"),
    ],
)
def test_a_number_that_is_none_of_a_float_s_is_damage(tmp_path: Path, given: object, sentence: str) -> None:
    data = json.loads(exported(made(tmp_path / "a", {DDP: 40}), "pytest-benchmark"))
    data["benchmarks"][0]["extra_info"]["step_time_s"] = given
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data))
    with pytest.raises(IdentityError, match=sentence):
        side_of(str(path))


def test_an_infinite_number_of_another_benchmark_does_no_harm(tmp_path: Path) -> None:
    data = json.loads(exported(made(tmp_path / "a", {DDP: 40}), "pytest-benchmark"))
    data["benchmarks"].append({"name": "another", "extra_info": {"gain": float("inf")}})
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data))
    assert len(side_of(str(path)).cases) == 1


def test_a_case_that_one_side_has_twice_is_said_to_be(tmp_path: Path) -> None:
    files = []
    for name, times in (("a", 2), ("b", 1)):
        data = json.loads(exported(made(tmp_path / name, {DDP: 40}), "pytest-benchmark"))
        data["benchmarks"] *= times
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(data))
    changes = changes_of(*(side_of(str(path)) for path in files))
    assert {one.verdict for one in changes.changes} == {"not comparable"}
    assert all("have it differently often" in one.reason for one in changes.changes)


def test_a_file_of_millions_of_lists_is_refused(tmp_path: Path) -> None:
    data = exported(made(tmp_path / "a", {DDP: 40}), "pytest-benchmark").decode()
    path = tmp_path / "a.json"
    path.write_text(f'{data.rstrip()[:-1]}, "more": [{"[]," * 4_300_000}1]}}')
    with pytest.raises(IdentityError, match="values; must be 8,388,608 at most"):
        side_of(str(path))


def test_other_benchmarks_may_have_kept_millions_of_times(tmp_path: Path) -> None:
    data = exported(made(tmp_path / "a", {DDP: 40}), "pytest-benchmark").decode()
    path = tmp_path / "a.json"
    path.write_text(f'{data.rstrip()[:-1]}, "more": [{"0.012345," * 2_500_000}1]}}')
    assert len(side_of(str(path)).cases) == 1
