"""A repeated flag: lists are joined, and of two different values none is silently dropped."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ddpbench.cli import make_parser, run
from ddpbench.spec import documents


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(found.choices)


def parsed(*words: str) -> argparse.Namespace:
    found: argparse.Namespace = make_parser().parse_args([*words])
    return found


WITH_VALUES = [
    (command, action)
    for command, parser in commands().items()
    for action in parser._actions
    if action.option_strings and action.nargs != 0
]
VALUES: dict[str, tuple[str, str]] = {
    "turns": ("blocks", "launches"),
    "backend": ("gloo", "mpi"),
    "device": ("cpu", "cuda"),
    "kind": ("csv", "parquet"),
    "table": ("steps", "transfers"),
    "schedule": ("overlapped", "after_backward"),
    "efficiency_cut": ("0.5", "0.6"),
    "fail_on": ("3%", "4%"),
    "drift": ("3%", "4%"),
    "resolve": ("3%", "4%"),
    "mtbf": ("1h", "2h"),
    "port": ("4000", "4001"),
}
"""Two values of each flag that does not take any text; others are tried with 5 and 6."""


@pytest.mark.parametrize(
    ("command", "action"),
    WITH_VALUES,
    ids=[f"{name} {action.option_strings[-1]}" for name, action in WITH_VALUES],
)
def test_both_values_are_kept_or_the_second_is_refused(
    command: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = action.option_strings[0]
    first, second = VALUES.get(action.dest, ("5", "6"))
    words = [word for one in commands()[command]._actions for word in _needed(one) if one.dest != action.dest]
    code = 0
    try:
        arguments = parsed(command, *words, flag, first, flag, second)
    except SystemExit as stop:
        code = stop.code
    if code:
        said = capsys.readouterr().err
        assert code == 2
        assert f"argument {flag}" in said
        assert "given twice" in said
        assert parsed(command, *words, flag, first, flag, first)  # the same twice does not contradict
        return
    kept = getattr(arguments, action.dest)
    one = getattr(parsed(command, *words, flag, first), action.dest)
    other = getattr(parsed(command, *words, flag, second), action.dest)
    joined = [*one, *other] if isinstance(kept, list) else f"{one},{other}"
    assert kept == joined


def _needed(action: argparse.Action) -> list[str]:
    """Return the values for a required argument."""
    if not action.required:
        return []
    value = str(next(iter(action.choices))) if action.choices else "x"
    return [*action.option_strings[:1], value]


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "base.local_batch=4", "--set", "base.local_batch=8"),
        ("--set", "local_batch=4", "--set", "base.local_batch = 8"),
        ("--set", "axes.world_size=[1]", "--set", "axes.world_size=[2]"),
        ("--set", "workload=mlp", "--workload", "gpt"),
        ("--workload", "gpt", "--set", "base.workload=mlp"),
        ("--set", "axes.options.ddp.accumulate=[1]", "--set", 'axes."options.ddp.accumulate"=[2]'),
        ("--set", "options.ddp.accumulate=2", "--set", "options.ddp={static_graph=true}"),
    ],
)
def test_a_setting_is_given_one_value(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("sweep", *words)
    assert "given twice, as " in capsys.readouterr().err


def test_settings_that_differ_are_all_kept() -> None:
    words = [
        "base.seed=1",
        "budget.seed=2",
        "axes.seed=[3]",
        "options.ddp.accumulate=2",
        "options.fsdp.accumulate=4",
    ]
    words += ["base.seed=1"]
    given = [word for one in words for word in ("--set", one)]
    assert parsed("sweep", *given).overrides == words


def test_each_setting_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(text: str) -> dict[str, object]:
        asked.append(text)
        return parse(text)

    parse = documents.parse
    monkeypatch.setattr(documents, "parse", counted)
    words = [f"env.A{number}='{number}'" for number in range(30)]
    parsed("sweep", *(word for one in words for word in ("--set", one)), "--workload", "mlp")
    assert sorted(asked) == sorted(f"value = {one.partition('=')[2]}" for one in [*words, "workload=mlp"])


def test_lists_are_joined() -> None:
    assert parsed("verify", "--strategy", "ddp", "zero1", "--strategy", "single").strategy == [
        "ddp",
        "zero1",
        "single",
    ]
    assert parsed("verify", "--world-size", "1", "--world-size", "3", "4").world_size == [1, 3, 4]
    assert parsed("verify", "--strategy", "ddp", "ddp", "--strategy", "ddp").strategy == ["ddp"]
    assert parsed("report", "x", "--figures", "svg", "--figures", "pdf").figures == "svg,pdf"
    assert parsed("doctor", "--nodes", "a,b", "--nodes", "c").nodes == "a,b,c"


def test_verify_proves_each_of_the_strategies_that_are_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def proved(cases: list[object], *_: object, **__: object) -> list[object]:
        asked.extend(str(case.case.strategy) for case in cases)  # type: ignore[attr-defined]
        return []

    monkeypatch.setattr("ddpbench.launch.verify.verify", proved)
    given = ("--workload", "mlp:small", "--world-size", "2")
    assert run(["verify", "--strategy", "ddp", "--strategy", "single", *given]) == 1  # nothing was proved
    assert set(asked) == {"ddp", "single"}
    assert "nothing was proved" in capsys.readouterr().err


def test_the_former_name_of_a_flag_is_taken_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parsed("noise", "--total", "1 min", "--within", "5 min")
    assert arguments.total == [60.0, 300.0]
    assert capsys.readouterr().err == "--within is deprecated: use --total\n"
    assert parsed("noise", "--total", "1 min").total == [60.0]
    assert capsys.readouterr().err == ""


@pytest.mark.multiprocess
def test_skipping_everything_is_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--strategy", "single", "--world-size", "2", "--workload", "mlp:small"]
    assert run(["verify", *given]) == 1
    said = capsys.readouterr()
    assert "0 proved, 0 not, 1 skipped" in said.out
    assert "nothing was proved: all cases were skipped" in said.err


@pytest.mark.parametrize(
    "words",
    [
        "sweep quick --dry-run --out=--",
        "compare a b --drift=--",
        "allocation a --where=--",
        "verify --set=--",
    ],
)
def test_two_dashes_are_no_value(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words.split())
    assert ended.value.code == 2
    assert "expected one value, but got --\n" in capsys.readouterr().err
