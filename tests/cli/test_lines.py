"""Tables and sentences for a terminal fit its width, and no word is broken."""

from __future__ import annotations

import io
import json
import math
import re
import typing
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.cli import lines, run
from ddpbench.cli.list import _LAUNCHERS, _SCHEDULES
from ddpbench.cli.verify import _Columns, _promises
from ddpbench.launch.verify import ProofVerdict
from ddpbench.records import Proof
from ddpbench.spec import Base
from ddpbench.strategies import load_strategy
from ddpbench.workloads import workload_names
from tests.synthetic import write_run

ROWS = [("case", "link", "n"), ("ddp · 2 ranks · default buckets", "1 Gbit/s, node 3 at 100 Mbit/s", "12")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_cells_go_on_below_where_columns_are_too_wide() -> None:
    assert lines.aligned(ROWS, 100, left=(0, 1)) == [
        "case                             link                             n",
        "ddp · 2 ranks · default buckets  1 Gbit/s, node 3 at 100 Mbit/s  12",
    ]
    narrow = lines.aligned(ROWS, 50, left=(0, 1), breakable=(0, 1))
    assert narrow == [
        "case                    link                     n",
        "ddp · 2 ranks           1 Gbit/s, node 3 at     12",
        "  default buckets         100 Mbit/s",
    ]


def test_columns_move_together_before_they_are_too_wide() -> None:
    assert lines.aligned(ROWS, 66, left=(0, 1), breakable=())[1].endswith("100 Mbit/s 12")
    assert max(map(len, lines.aligned(ROWS, 20, left=(0, 1), breakable=(0, 1)))) > 20, "no word is broken"


def test_sentences_are_wrapped_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a word " * 20 + "\n  known: " + "some, " * 20
    monkeypatch.setenv("COLUMNS", "70")
    terminal, file = Terminal(), io.StringIO()
    lines.say(text, terminal)
    lines.say(text, file)
    wrapped = terminal.getvalue().splitlines()
    assert max(map(len, wrapped)) <= 70
    assert " ".join(terminal.getvalue().split()) == " ".join(text.split())
    assert file.getvalue().splitlines() == text.split("\n")


def test_long_work_is_told_in_one_line_that_goes() -> None:
    now, terminal = [0.0], Terminal()
    with lines.PassingLine(terminal, lambda: now[0]) as report:
        for now[0], done in ((0.5, 10), (1.5, 1200), (1.6, 1300), (2.0, 1400)):
            report("reading cases", done, 2000)
        now[0] = 3.0
        report("comparing \x1b[31mcases", 0, 0)
    shown = terminal.getvalue().split("\r")
    assert shown[0] == ""
    assert shown[1] == "reading cases: 1,200 of 2,000\x1b[K", "after a second"
    assert shown[2] == "reading cases: 1,400 of 2,000\x1b[K", "five times a second at most"
    assert shown[3].startswith("comparing ")
    assert shown[3].count("\x1b") == 1
    assert shown[4:] == ["\x1b[K"]


def test_short_work_and_files_show_nothing() -> None:
    now = [0.0]
    for stream, end in ((Terminal(), 0.9), (io.StringIO(), 9.0)):
        now[0] = 0.0
        with lines.PassingLine(stream, lambda: now[0]) as report:
            now[0] = end
            report("reading cases", 1, 2)
        assert stream.getvalue() == ""


def test_a_line_goes_when_the_work_fails() -> None:
    terminal = Terminal()
    now = iter((0.0, 2.0, 2.0))
    with suppress(OSError), lines.PassingLine(terminal, lambda: next(now)) as report:
        report("reading cases", 1, 2)
        raise OSError
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_report_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = write_run(tmp_path / "run", 8)
    monkeypatch.setattr(lines, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(lines, "_REDRAWN_S", 0.0)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert run(["report", str(written.path)]) == 0
    shown = re.sub(r"\x1b\[K", "", terminal.getvalue()).split("\r")
    assert "reading cases: 0 of 8" in shown
    assert "reading cases: 7 of 8" in shown
    assert "comparing cases" in shown
    assert any(one.startswith("drawing figures: 0 of ") for one in shown)
    assert capsys.readouterr().out == f"{written.path / 'report.html'}\n"


@pytest.mark.parametrize("width", [60, 100])
def test_the_lists_name_everything_and_fit(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["list"]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= width
    heads = [line for line in output.splitlines() if not line.startswith(" ")]
    assert heads == ["strategies", "algorithms", "schedules", "workloads", "launchers", "experiments"]
    flat = " ".join(output.split())
    assert "halving_doubling recursive halving" in flat
    assert "gpt:SIZE a byte-level GPT" in flat
    assert "SIZE is nano, micro, mini, gopher-44m, small, medium, large or xl" in flat
    assert flat.count("a byte-level GPT") == 1
    assert "replay:gpt-nano-cpu gpt:nano on cpu, " in flat
    assert (
        "replay:gpt-small-h100 gpt:small on NVIDIA H100 80GB HBM3 in bf16, 21.4 ms a step of 16 samples"
        in flat
    )


def test_the_lists_hold_what_an_experiment_may_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert tuple(names["algorithms"]) == load_strategy("ddp").algorithms
    assert tuple(_SCHEDULES) == load_strategy("ddp").schedules
    assert tuple(_LAUNCHERS) == typing.get_args(Base.model_fields["launcher"].annotation)
    assert list(names["workloads"]) == workload_names(), "each with its size, for programs"


def verdict(options: str, *, status: typing.Literal["ok", "skipped"] = "ok") -> ProofVerdict:
    error = Proof(
        compared="gradients, same shards", dtype="float64", error=1e-12, tolerance=1e-10, passed=True
    )
    return ProofVerdict(
        strategy="ddp",
        algorithm="all_reduce",
        schedule="overlapped",
        chosen=(),
        options=options,
        promise="delayed",
        workload="gpt:nano",
        world_size=4,
        status=status,
        proofs=(error,),
        reason="" if status == "ok" else "PowerSGD cannot factorise gradients of bfloat16: use float32",
    )


def test_what_is_unproved_is_so_for_programs_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "the model draws random numbers"
    left_out = replace(verdict("").proofs[0], tolerance=math.inf, note=why)
    found = [verdict(""), replace(verdict(""), proofs=(left_out,)), verdict("", status="skipped")]
    monkeypatch.setattr("ddpbench.launch.verify.verify", lambda *_, **__: found)
    assert run(["verify", "--strategy", "ddp", "--workload", "mlp:small", "--world-size", "1", "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert [one["result"] for one in verdicts] == ["ok", "unproved", "skipped"]
    assert [one["unproved"] for one in verdicts] == ["", why, ""]
    assert [one["status"] for one in verdicts] == ["ok", "ok", "skipped"]


def test_long_options_do_not_push_the_other_columns_of_verify() -> None:
    long = verdict("compression=powersgd matrix_approximation_rank=4")
    whole = _Columns(52, 8, 0)
    assert whole.lines(long)[0].index("gpt:nano") == whole.head().index("workload")
    narrow = _Columns(27, 8, 30)
    for one in (long, verdict("accumulate=2"), verdict("compression=powersgd", status="skipped")):
        printed = narrow.lines(one)
        assert max(map(len, printed)) <= 80 + 4
        assert printed[0].index("gpt:nano") == narrow.head().index("workload")
    assert narrow.lines(long)[1].strip() == "matrix_approximation_rank=4"


def test_a_case_that_could_not_be_compared_is_unproved_and_says_why() -> None:
    note = "the model draws random numbers, and its replicas draw them in a different order: not comparable"
    left_out = Proof(
        compared="gradients, same shards",
        dtype="float64",
        error=0.0,
        tolerance=math.inf,
        passed=True,
        note=note,
    )
    update = replace(left_out, compared="update, same gradients", tolerance=1e-6, note="")
    (line,) = _Columns(8, 8, 0).lines(replace(verdict(""), proofs=(left_out, update)))
    assert line.split()[:5] == ["ddp", "gpt:nano", "4", "unproved", "the"]
    assert line.endswith(f"unproved {note}")
    assert replace(verdict(""), proofs=(left_out, *verdict("").proofs)).result == "ok", (
        "the shards' are compared"
    )
    assert replace(verdict(""), proofs=()).result == "ok", (
        "of ranks that exchange nothing there is nothing to prove"
    )


def test_ranks_that_aggregate_nothing_prove_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apart = replace(verdict(""), promise="nothing", proofs=(replace(verdict("").proofs[0], tolerance=0.0),))
    assert apart.result == "unproved"
    (line,) = _Columns(8, 8, 0).lines(apart)
    assert line.endswith("  unproved it aggregates nothing, so there is nothing to prove"), line
    monkeypatch.setattr("ddpbench.launch.verify.verify", lambda *_, **__: [apart])
    assert run(["verify", "--strategy", "ddp", "--workload", "mlp:small", "--world-size", "1"]) == 1
    said = capsys.readouterr()
    assert "0 proved, 0 not, 0 skipped, 1 unproved" in said.out
    assert "nothing was proved" in said.err


def test_the_largest_error_is_of_all_that_was_compared() -> None:
    gradients = replace(verdict("").proofs[0], compared="gradients, same shards", tolerance=1.6, error=1.5)
    (line,) = _Columns(8, 8, 0).lines(replace(verdict(""), proofs=(gradients,)))
    assert line.endswith("float64 1.5e+00"), line


def test_an_update_that_could_not_be_compared_is_unproved_whatever_its_gradients() -> None:
    update = replace(
        verdict("").proofs[0], compared="update, same gradients", tolerance=math.inf, note="the update draws"
    )
    gradients = replace(update, compared="gradients, same shards", tolerance=1e-10, note="")
    later = replace(update, compared="parameters, same samples", note="the model keeps state")
    for dtype in ("float64", "float32"):
        proofs = (replace(gradients, dtype=dtype), replace(update, dtype=dtype), replace(later, dtype=dtype))
        assert replace(verdict(""), proofs=proofs).unproved == "the update draws"
    made = replace(update, tolerance=1e-6, note="")
    partly = replace(verdict(""), promise="gradients", proofs=(gradients, made, later))
    (line,) = _Columns(8, 8, 0).lines(partly)
    assert line.endswith("; not compared: parameters, same samples (the model keeps state)"), line


def test_a_type_that_was_left_out_is_not_why_another_proves_nothing() -> None:
    unfit = replace(
        verdict("").proofs[0],
        compared="parameters, same samples",
        dtype="float64",
        tolerance=math.inf,
        note="the step computes in float32 only, so float64 is not compared",
    )
    initial = replace(unfit, compared="initial state", dtype="float32", tolerance=0.0, note="")
    draws = replace(unfit, dtype="float32", note="the step draws random numbers")
    assert replace(verdict(""), proofs=(unfit, initial, draws)).unproved == draws.note
    assert replace(verdict(""), proofs=(unfit,)).unproved == unfit.note


def test_a_promise_is_explained_only_where_a_case_holds_to_it() -> None:
    held, skipped = verdict(""), verdict("", status="skipped")
    assert [line.partition(":")[0] for line in _promises([held, skipped])] == ["delayed"]
    averaged, nothing = replace(skipped, promise="averaged"), replace(held, promise="nothing")
    usual = replace(held, promise="gradients")
    assert [line.partition(":")[0] for line in _promises([skipped, averaged, nothing, usual])] == ["nothing"]
