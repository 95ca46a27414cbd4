"""Directories for checkpoints and runs: unusable ones are refused before anything starts; cases keep theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.errors import OutputError
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.records import RunDir
from ddpbench.spec import Case


def request(folder: Path, base: str) -> SweepRequest:
    path = folder / "save.toml"
    path.write_text(f'[base]\nstrategy = "single"\n{base}\n', encoding="utf-8")
    return SweepRequest(experiment=path, out=folder / "run")


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        base = f'checkpoint = true\ncheckpoint_dir = "{tmp_path / name}"'
        with pytest.raises(
            OutputError, match=f"{name}' is not a directory: make the directory, name another"
        ):
            prepare(request(tmp_path, base))


@pytest.mark.parametrize("below", ["", "of_mine"])
def test_one_where_others_can_exchange_a_checkpoints_folder_is_refused(tmp_path: Path, below: str) -> None:
    """Other users could replace it by links, through which other files are overwritten or a folder removed."""
    scratch = tmp_path / "scratch"
    (scratch / below).mkdir(parents=True)
    base = f'checkpoint = true\ncheckpoint_dir = "{scratch / below}"'
    scratch.chmod(0o777)
    with pytest.raises(
        OutputError, match=rf"everybody can rename what is in {scratch}, .* chmod \+t {scratch}"
    ):
        prepare(request(tmp_path, base))
    launch = RunDir(tmp_path / "run").launch("ddp-w2", "measure", 0)
    with pytest.raises(OutputError, match="everybody can rename"):
        launch.checkpoints(str(scratch / below), "0a")
    scratch.chmod(0o1777)
    assert prepare(request(tmp_path, base)).plan.runnable
    assert launch.checkpoints(str(scratch / below), "0a").parent == scratch / below


def test_it_belongs_to_cases_that_save_and_to_no_others(tmp_path: Path) -> None:
    base = f'checkpoint_dir = "{tmp_path}"'
    saving = prepare(request(tmp_path, f"{base}\ncheckpoint = true")).plan.runnable[0].case
    assert saving.checkpoint_dir == str(tmp_path)
    plain = prepare(request(tmp_path, f"{base}\ncheckpoint = false")).plan.runnable[0].case
    assert plain.checkpoint_dir == ""
    assert saving.case_id != plain.case_id


def test_cases_of_before_keep_their_ids() -> None:
    case = Case(workload="mlp:small", strategy="single")
    data = case.to_json()
    for name in ("evaluation", "checkpoint", "checkpoint_dir", "data", "precision"):
        del data[name]
    assert Case.from_json(data).case_id == case.case_id


def test_what_a_killed_sweep_left_is_in_nobodys_way_and_other_files_are(tmp_path: Path) -> None:
    left = tmp_path / "run"
    RunDir(left).create()
    for name in (".tmp-x1", ".torchinductor"):
        (left / name).mkdir()
    for name in (".lock", ".ddpbench-0123456789abcdef.new"):
        (left / name).touch()
    assert prepare(request(tmp_path, "")).plan.runnable
    (left / "thesis.new").touch()
    with pytest.raises(OutputError, match="holds other files"):
        prepare(request(tmp_path, ""))
