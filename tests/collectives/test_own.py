"""Algorithms from users' files: planned without being imported, and proved on real ranks under DDP."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddpbench.collectives import load_collective
from ddpbench.collectives.transport import Transport
from ddpbench.errors import ExperimentError, StrategyError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.own_classes import not_an_algorithm
from ddpbench.launch.own_workloads import with_located
from ddpbench.launch.verify import verification_cases, verify
from ddpbench.machine.identity import sources_named
from ddpbench.naming import Namer
from ddpbench.report.draw import style
from ddpbench.spec import Case, Devices, expand, parse_experiment

OWN = Path(__file__).with_name("own_algorithms.py")
DEVICES = Devices(kind="cpu", gpus=0, cores=4)


def cases_of(text: str, folder: Path) -> list[Case]:
    found = with_located(parse_experiment(text, TableCatalog(folder), name="own"), folder)
    planned = expand(found, TableCatalog(folder), DEVICES)
    return [one.case for one in planned if not one.added_as_baseline]


def of(*algorithms: str, strategy: str = "ddp") -> str:
    listed = ", ".join(f'"{name}"' for name in algorithms)
    return (
        f'[base]\nworld_size = 2\nworkload = "mlp"\nstrategy = "{strategy}"\n[axes]\nalgorithm = [{listed}]\n'
    )


def test_it_is_a_case_that_no_formula_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nearby").mkdir()
    (tmp_path / "nearby/mine.py").write_text(
        "raise RuntimeError('planning imports it')\nclass ToEach(Sum): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    usual, own = cases_of(of("all_reduce", "mine.py:ToEach"), tmp_path / "nearby")
    assert own.algorithm == "nearby/mine.py:ToEach"
    assert own.label == "ddp · ToEach · 2 ranks · default buckets"
    assert own.known_algorithm == ""
    assert own.case_id != usual.case_id
    assert sources_named([usual, own]) == ["mlp:small", "nearby/mine.py:ToEach"]
    assert style.look(own) != style.look(usual)


def test_two_files_with_one_class_name_stay_apart(tmp_path: Path) -> None:
    own = [
        Case(workload="mlp", strategy="ddp", algorithm=f"{name}.py:Mine", schedule="overlapped", world_size=2)
        for name in ("a", "b")
    ]
    names = Namer(own)
    assert [names.full(case).rpartition(" · ")[2] for case in own] == ["Mine (a.py)", "Mine (b.py)"]
    assert [names.apart(case, ["algorithm"]) for case in own] == [["Mine (a.py)"], ["Mine (b.py)"]]
    assert names.apart(replace(own[0], algorithm="naive_ring"), ["algorithm"]) == ["naive ring"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (of("gone.py:ToEach"), "there is no file"),
        (of("mine.py:ToEech"), "mine.py has no class ToEech; did you mean 'ToEach'?"),
        (of("mine.py:Odd"), "mine.py has no class Odd; known: FromTheSecondCall, OwnFirst, ToEach, Twice"),
        (of("mine.py:Other"), "class Other in mine.py is not an algorithm: derive it from"),
        (of("mine.py:Another"), "class Another in mine.py is not an algorithm: derive it from"),
        (of("mine.py:ToEach", strategy="master"), "master leaves no choice of it"),
        (
            '[base]\nworld_size = 2\nalgorithm = "ring"\n[axes]\nstrategy = ["single", "master", "fsdp"]\n',
            'single, master and fsdp leave no choice of it; set strategy = "ddp"',
        ),
    ],
)
def test_what_cannot_be_used_is_reported_before_anything_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(OWN.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = parse_experiment(text, TableCatalog(), name="own")
    with pytest.raises(ExperimentError) as error:
        expand(found, TableCatalog(), DEVICES)
    assert said in str(error.value)


def test_a_rank_takes_no_other_class_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_collective(f"{OWN}:ToEach").name == "ToEach"
    with pytest.raises(StrategyError, match=r"class Other in .* is not an algorithm: derive it from"):
        load_collective(f"{OWN}:Other")


@pytest.mark.parametrize(
    "text",
    [
        "from helper import Sum\nclass Mine(Sum): ...",
        "import helper\nclass Mine(helper.Sum): ...",
        "from helper import made\n@made\nclass Mine: ...",
        "class Mine(metaclass=type): ...",
        "class Mine: ...\nMine = made(Mine)",
        "class Mine: ...\nfrom helper import *",
        "from ddpbench.collectives.ring import Ring\nclass Kin(Ring): ...\nclass Mine(Kin): ...",
    ],
)
def test_whether_it_is_an_algorithm_is_left_to_a_rank_where_only_that_can_tell(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    assert not not_an_algorithm(f"{tmp_path}/mine.py:Mine")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (1, "the rank itself; use another of the ranks 0 to 2$"),
        (3, r"rank 3, which does not exist; use another of the ranks 0 to 2 \(is a `% size` missing"),
        (-1, "rank -1, which does not exist; use another"),
    ],
)
def test_a_message_to_no_other_rank_is_refused_before_gloo_has_it(other: int, said: str) -> None:
    transport = Transport.__new__(Transport)  # without a process group, so that nothing can be sent
    transport.rank, transport.size = 1, 3
    with pytest.raises(ValueError, match=rf"^send\(\) was called for a message to {said}"):
        transport.send(torch.ones(2), other)
    with pytest.raises(ValueError, match=rf"^receive\(\) was called for a message from {said}"):
        transport.receive(torch.ones(2), other)


@pytest.mark.multiprocess
def test_a_right_one_is_proved_and_a_wrong_one_diverges(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text(encoding="utf-8")
    (text,) = (one for one in re.findall(r"(?ms)^```python\n(.*?)^```", page) if "class ToEach" in one)
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    names = [f"{tmp_path / 'mine.py'}:ToEach", f"{OWN}:Twice", f"{OWN}:OwnFirst", f"{OWN}:FromTheSecondCall"]
    cases = verification_cases(["ddp"], ["mlp"], [3], "gloo", algorithms=names, schedules=["overlapped"])
    found = {verdict.chosen: verdict for verdict in verify(cases)}
    assert found["ToEach",].result == "ok", found
    assert found["Twice",].result == "diverged", found
    assert "ddp with the algorithm Twice does not train as one process does (every" in found["Twice",].reason
    assert found["FromTheSecondCall",].result == "diverged", found
    assert "gradients, later steps (float64): error 0.5" in found["FromTheSecondCall",].reason
    assert found["OwnFirst",].result == "diverged", found
    assert (
        "allowed 0, the ranks' parameters differ, even if only by rounding: all ranks"
        in found["OwnFirst",].reason
    )
