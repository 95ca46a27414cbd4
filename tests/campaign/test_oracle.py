"""Check the oracle: each rule with an example that breaks it, and with one that does not."""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ddpbench
from ddpbench.cli import flags, make_parser
from tests.campaign import faults, inputs, job, models, oracle, outputs, rundirs, soak
from tests.campaign.nasty import VALUES, toml_document
from tests.synthetic import write_run


def ended(
    code: int | None = 2, stderr: str = "ddpbench: base.seed: -1; use 0 or more\n", out: str = ""
) -> oracle.Ended:
    return oracle.Ended(["sweep"], code, out, stderr, 1.0)


def test_a_good_refusal_is_good() -> None:
    assert oracle.of_command(ended(), codes=(0, 2), named=("base.seed",)) == []


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (ended(None), "still running"),
        (ended(1), "exit code 1, not 0 or 2"),
        (ended(stderr="Traceback (most recent call last):\nValueError: use 1\n"), "a traceback"),
        (ended(stderr="use \x1b[31mred\n"), "a control character"),
        (ended(stderr="use one \u202e of them\n"), "a control character"),
        (ended(stderr="use 1 " * 2000), "characters are said"),
        (ended(stderr=" \n"), "no word of what is wrong"),
        (ended(stderr="ddpbench: bad base.seed\n"), "no word of what to do"),
        (ended(stderr="ddpbench: seed -1; use 0 or more\n"), "'base.seed' is not named"),
        (ended(out="a table\n"), "on standard output"),
    ],
)
def test_what_a_command_gets_wrong_is_seen(command: oracle.Ended, found: str) -> None:
    wrong = oracle.of_command(command, codes=(0, 2), named=("base.seed",))
    assert any(found in each for each in wrong), wrong


@pytest.mark.parametrize("folder", ["", ".venv/lib/python3.11/site-packages/"])
def test_torchruns_own_traceback_at_its_exit_barrier_is_no_slots(folder: str) -> None:
    at = f"E1123 11:16:56.380000 6387 {folder}torch/distributed/elastic/agent/server/api.py:1008] "
    agents = f"{at}Error waiting on exit barrier. Elapsed: 1 s\n{at}Traceback (most recent call last):\n"
    assert oracle.without_exit_barrier(ended(0, f"a card\n{agents}")).stderr == "a card\n"
    slots = "Traceback (most recent call last):\n"
    assert oracle.without_exit_barrier(ended(0, agents + slots)).stderr == slots
    for said in (slots, f"{at}Traceback (most recent call last):\n"):
        assert oracle.without_exit_barrier(ended(0, said)).stderr == said


def test_what_is_left_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "LEFT_S", 0.1)
    before = oracle.Before.now([tmp_path])
    assert oracle.of_what_is_left(before, [tmp_path], "tag-left") == []
    (tmp_path / "pymp-x").mkdir()
    sleeper = subprocess.Popen(["sleep", "100"], env={**os.environ, oracle.TAG: "tag-left"})
    wrong = oracle.of_what_is_left(before, [tmp_path], "tag-left")
    assert any("pymp-x" in each for each in wrong)
    assert any("sleep 100" in each for each in wrong)
    assert sleeper.wait(10) == -9  # and it is ended


def test_what_others_can_reach_is_seen() -> None:
    import socket

    with socket.socket() as inside:
        inside.bind(("127.0.0.1", 0))
        inside.listen()
        port = inside.getsockname()[1]
        assert not any(address.endswith(f":{port}") for address in oracle.beyond_loopback())
    with socket.socket() as outside:
        outside.bind(("0.0.0.0", 0))
        outside.listen()
        assert f"0.0.0.0:{outside.getsockname()[1]}" in oracle.beyond_loopback()


def test_lost_and_repeated_launches_are_seen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, 2, rounds=1, blocks=1, steps=1)
    before = oracle.finished(run)
    assert len(before) == 4
    assert oracle.of_launches(before, oracle.finished(run)) == []
    first, second, *_ = sorted(before)
    shutil.rmtree(run / first)
    record = next((run / second).glob("rank-*.jsonl"))
    record.write_text(record.read_text() + "\n")
    assert oracle.of_launches(before, oracle.finished(run)) == [f"lost: {first}", f"done again: {second}"]


def test_another_table_is_seen(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_run(tmp_path / name, 2, rounds=2, blocks=1, steps=1, seed=len(name))
        ddpbench.load(tmp_path / name, write=True)
    one, other = tmp_path / "one", tmp_path / "other"
    assert (one / "cases.csv").read_bytes() != (other / "cases.csv").read_bytes()  # its times differ
    assert oracle.of_table(one, other) == []
    table = (other / "cases.csv").read_text(encoding="utf-8")
    (other / "cases.csv").write_text(table.replace(",ok,", ",failed,", 1), encoding="utf-8")
    (wrong,) = oracle.of_table(one, other)
    assert "status" in wrong
    lines = table.splitlines(keepends=True)
    (other / "cases.csv").write_text("".join(lines[:-1]), encoding="utf-8")
    assert "has the cases" in oracle.of_table(one, other)[0]


def test_a_campaign_has_its_numbers() -> None:
    """A thousand inputs, all different, three hundred faults; equal for equal seeds."""
    names = inputs.drawn(1000, seed=3)
    assert len(set(names)) == len(names) >= 1000
    assert names == inputs.drawn(1000, seed=3) != inputs.drawn(1000, seed=4)
    assert sum(map(faults.count, faults.chains())) >= 300
    assert set(faults.drawn(1.0, 0)) == set(faults.chains())
    rundirs.forget()


def test_a_job_forgets_where_importing_torch_put_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_root")
    assert job._environment() == {
        name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"
    }


def test_every_nasty_value_can_be_written() -> None:
    for name, value in VALUES.items():
        text = toml_document({"base": {"seed": value}})
        assert text.startswith('"base" = {"seed" = '), name
        text.encode("utf-8")


def test_the_campaign_imports_nothing_of_torch() -> None:
    """Processes forked for an input have no threads of torch, and do not need its seconds to import."""
    code = "import sys, tests.campaign.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=inputs.ROOT).returncode == 0


def test_a_soak_sees_growth_and_no_growth() -> None:
    generator = random.Random(5)

    def pages(leak: float, noise: float, launches: int = 500) -> list[float]:
        """Return KiB in multiples of a page, of a process that leaks `leak` KiB per launch."""
        return [4 * round((30_000 + leak * one + generator.gauss(0, noise)) / 4) for one in range(launches)]

    assert soak.is_flat([7.0] * 500)
    for leak, noise, launches in (
        (0.25, 0, 500),
        (0.25, 20, 500),
        (4, 40, 500),
        (4, 40, 100),
        (2.5, 400, 500),
    ):
        assert not any(soak.is_flat(pages(leak, noise, launches)) for _ in range(50)), (leak, noise)
    flat = sum(soak.is_flat(pages(0, 40)) for _ in range(400))
    assert flat >= 392  # noise alone: 1.25 % each, as four memories are checked
    late = [30_000.0] * 437 + [30_000.0 + 100 * one for one in range(63)]
    assert not soak.is_flat(late)  # growth that begins late
    assert soak.is_flat([30_000.0] * 200 + [30_016.0] * 300)  # one more pool
    assert not soak.is_flat([30_000.0 + 16 * (one // 50) for one in range(500)])
    assert soak.is_steady([5, 6, 5, 5] * 125)
    assert not soak.is_steady([5.0] * 499 + [6.0])
    assert list(soak.counted(range(20))) == list(range(2, 20))


def test_a_soak_s_t_is_that_of_four_intervals() -> None:
    from scipy.stats import t

    assert t.sf(soak.T_TOGETHER, soak.BATCHES - 2) == pytest.approx(0.025 / 4, rel=0.01)


def test_every_command_that_writes_is_tried_where_it_cannot() -> None:
    parser = make_parser()
    (found,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    tried = {words[0] for words in (outputs.FILE_COMMANDS | outputs.OTHER_COMMANDS).values()}
    assert tried | set(outputs.NOT_HERE) == set(found.choices)
    assert not tried & set(outputs.NOT_HERE)
    named = {
        (command, action.option_strings[-1])
        for command, one in found.choices.items()
        for action in one._actions
        if action.type is flags.output_path and command not in outputs.NOT_HERE
    }
    assert named == {(words[0], words[-2]) for words in outputs.FILE_COMMANDS.values()}


def test_what_is_lost_of_the_users_own_is_seen(tmp_path: Path) -> None:
    def before() -> outputs.State:
        (tmp_path / "mine").mkdir(exist_ok=True)
        for name in ("out", "train.py", "mine/notes.txt"):
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).write_text("the user's own", encoding="utf-8")
        return outputs.state(tmp_path)

    state = before()
    assert outputs.lost("x:limited", state, tmp_path, 2) == []
    (tmp_path / "train.py").write_text("cut", encoding="utf-8")
    (tmp_path / "mine/notes.txt").unlink()
    (tmp_path / "page.html").touch()
    assert outputs.lost("x:limited", state, tmp_path, 2) == [
        "train.py was changed",
        "lost: mine/notes.txt",
        "empty: page.html",
    ]
    assert outputs.lost("x:limited", state, tmp_path, 0) == ["lost: mine/notes.txt", "empty: page.html"]
    state = before()
    (tmp_path / "page.html").unlink()
    (tmp_path / "out").unlink()
    (tmp_path / "out").symlink_to("train.py")
    assert outputs.lost("x:folder", state, tmp_path, 2) == ["out was replaced by something else"]
    before()
    assert outputs.lost("x:there", outputs.state(tmp_path), tmp_path, 0) == ["the output was not written"]


def test_every_model_is_a_script_and_each_is_promised_something() -> None:
    for name, model in models.models().items():
        ast.parse(model.text)
        assert "class Measured" in model.text or "Measured = " in model.text, name
        assert model.promises or model.refused or model.perhaps, name
        assert model.codes != (1,) or model.named, name


def run_of_a_model(run: Path, strategies: dict[str, dict[str, str]]) -> None:
    """Write a run of `threads-2-at-import-not-1` that keeps its promises, except for these values."""
    shutil.rmtree(run, ignore_errors=True)
    rows: list[dict[str, str]] = []
    for strategy, other in strategies.items():
        launch = run / "cases" / strategy / "launch-00"
        launch.mkdir(parents=True)
        rows.append(
            {"case_id": strategy, "strategy": strategy, "status": "ok", "error": "", "dtype": "float32"}
            | {"noise_flag": "foreign load 1/1"}
            | {name: value for name, value in other.items() if name in ("status", "dtype", "noise_flag")}
        )
        start = {"kind": "start", "types": ["float32"], "threads": int(other.get("recorded", "1"))}
        proof = {"kind": "proof", "note": other.get("note", "")}
        (launch / "rank-00000.jsonl").write_text("\n".join(map(json.dumps, (start, proof))), encoding="utf-8")
        seen = {"types": [other.get("type", "float32")], "threads": 1}
        text = "" if other.get("silent") else f"{models.SEEN}{json.dumps(seen)}\n"
        (launch / "rank-00000.log").write_text(text, encoding="utf-8")
        outcome = {"status": "ok", "failed_rank": None}
        (launch / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    with (run / "cases.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (run / "report.html").write_text("set back to threads_per_rank = 1", encoding="utf-8")


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"status": "diverged"}, "ddp: diverged, not ok"),
        ({"dtype": "bfloat16"}, "ddp: the table has the types bfloat16, not float32"),
        ({"noise_flag": "threads_per_rank 2, not 1 1/1"}, "ddp: flagged: threads_per_rank 2"),
        ({"recorded": "2"}, "ddp: threads [2] are recorded, not 1"),
        ({"type": "float64"}, "ddp: the class trains with the types [['float64']]"),
        ({"silent": "yes"}, "ddp: the class trains with the threads [], not 1"),
        ({"note": "the model gives different gradients"}, "ddp: a note: the model gives different"),
    ],
)
def test_promises_of_a_model_that_are_not_kept_are_seen(
    tmp_path: Path, other: dict[str, str], found: str
) -> None:
    name, run = "threads-2-at-import-not-1", tmp_path / "run"
    run_of_a_model(run, {"single": {}, "ddp": {}})
    assert models.broken(name, run) == []
    run_of_a_model(run, {"single": {}, "ddp": other})
    wrong = models.broken(name, run)
    assert wrong
    assert all(each.startswith("ddp: ") for each in wrong), wrong
    assert any(each.startswith(found) for each in wrong), wrong


def test_a_case_that_is_missing_and_another_rank_blamed_are_seen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_of_a_model(run, {"single": {}})
    (run / "report.html").write_text("", encoding="utf-8")
    assert models.broken("threads-2-at-import-not-1", run) == [
        "no case of ddp",
        "'set back to threads_per_rank = 1' is not on the page",
    ]
    run_of_a_model(run, {"ddp": {"status": "failed"}})
    outcome = {"status": "failed", "failed_rank": 0}
    (run / "cases/ddp/launch-00/outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    wrong = models.broken("ends-exits-7-rank-1-step-1", run)
    assert "ddp: blamed: {0}, not rank 1" in wrong
    assert "ddp: 'exit code 7' is not in ''" in wrong


def test_the_page_names_every_kind_of_input() -> None:
    page = (inputs.ROOT / "tests/campaign/README.md").read_text(encoding="utf-8")
    table = page.partition("| input |")[2].partition("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name.strip() for cell in first for name in cell.split(",")} == set(inputs.FAMILIES)
    assert set(inputs.SHARES) == set(inputs.FAMILIES)
