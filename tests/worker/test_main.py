"""`python -m ddpbench.worker` as launchers start it: the processes between them and a rank or a slot."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpbench.worker import __main__ as worker
from tests.synthetic import write_run


class Reached(Exception):  # noqa: N818 - no error
    pass


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


def test_a_rank_that_is_started_alone_has_a_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: None
) -> None:
    run = write_run(tmp_path / "run", 2, rounds=1, blocks=1, steps=1)
    given: list[Path] = []

    def supervised(folder: Path, _work: Callable[[], int]) -> None:
        given.append(folder)
        raise Reached

    monkeypatch.setattr(worker, "supervised", supervised)
    monkeypatch.setattr(sys, "argv", ["worker", str(run.path), run.case_folders()[0], "0"])
    with pytest.raises(Reached):
        worker.main()
    assert given == [run.path]


def test_a_slot_that_is_stopped_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []

    def end_if_stopped(text: str) -> None:
        messages.append(text)
        raise Reached

    monkeypatch.setattr(worker, "end_if_stopped", end_if_stopped)
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path)])
    with pytest.raises(Reached):
        worker.main()
    assert "run the same commands again to resume" in messages[0]


@pytest.mark.parametrize("torchrun", [True, False])
def test_what_a_slots_user_code_starts_has_the_users_own_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, torchrun: bool
) -> None:
    """torchrun's line sets a variable so that slots import nothing from the working directory."""
    seen: list[str | None] = []

    def run(*_: object, **__: object) -> int:
        seen.append(os.environ.get("PYTHONSAFEPATH"))
        raise Reached

    monkeypatch.setattr(worker, "end_if_stopped", lambda _: None)
    monkeypatch.setattr("ddpbench.worker.slot.entry.run", run)
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path)])
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    if torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(Reached):
        worker.main()
    assert seen == [None if torchrun else "1"]


@pytest.mark.parametrize("name", ["plan.json", "machine.json", "job.key", "cases"])
def test_a_rank_of_a_directory_that_leads_elsewhere_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: None,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    run = write_run(tmp_path / "run", 2, rounds=1, blocks=1, steps=1)
    case_id = run.case_folders()[0]
    path = run.path / name
    if path.exists():
        path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "argv", ["worker", str(run.path), case_id, "7"])
    with pytest.raises(SystemExit) as ended:
        worker.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"ddpbench: {path} is a link")
    assert not os.path.lexists(run.path / "cases" / case_id / "launch-07")
