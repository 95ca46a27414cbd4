"""The scope of a page's statements: how much of the machine was used, and why just these cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis.case_summary import CaseSummary
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report import write_report
from ddpbench.report.page import used_words
from ddpbench.spec import Case
from tests.report.handmade import changed, handmade_summary
from tests.report.reading import read


def scope_text(summary: RunSummary, folder: Path) -> str:
    """Return what a page says on its choice of cases, after what it says on the cores and GPUs that it used."""
    document = read(write_report(summary, RunDir(folder)).read_text(encoding="utf-8"))
    used = [one.text for one in document.all("dd") if one.text.startswith("At most")]
    return " ".join([*used, document.one("p", class_="scope").text])


def test_a_page_repeats_what_the_experiment_says(tmp_path: Path) -> None:
    summary = handmade_summary()
    found = scope_text(changed(summary, scope="Small <b>models</b>, since time is short."), tmp_path)
    assert found.endswith("Small <b>models</b>, since time is short.")
    assert "does not say" not in found


def test_a_page_tells_where_the_experiment_says_nothing(tmp_path: Path) -> None:
    found = scope_text(handmade_summary(), tmp_path)
    assert found.endswith(
        "Rule 2 of Hoefler and Belli is not met: the experiment does not say why it has just these (scope)."
    )
    assert "At most 4 of 4 logical cores were used." in found


def planned(**changes: Any) -> Case:
    return Case(workload="gpt:nano", **{"strategy": "ddp", **changes})


@pytest.mark.parametrize(
    ("identity", "cases", "expected"),
    [
        ({"cores": [0, 1, 2, 3]}, [planned(world_size=1), planned(world_size=2)], "2 of 4 logical cores"),
        ({"cores": [0, 1, 2, 3]}, [planned(world_size=2, threads_per_rank=2)], "4 of 4 logical cores"),
        ({"cores": [0, 1, 2, 3]}, [planned(world_size=1, loader_workers=2)], "3 of 4 logical cores"),
        (
            {"cores": [0, 1, 2, 3]},
            [planned(world_size=1), planned(strategy="data_parallel", world_size=2, loader_workers=1)],
            "3 of 4 logical cores",
        ),
        ({"cores": [0, 1]}, [planned(world_size=16, nodes=16, fabric="16x1@1gbit")], "2 of 2 logical cores"),
        ({"cores": [0, 1, 2, 3]}, [planned(world_size=2, compute="replayed")], "4 of 4 logical cores"),
        ({"cores": [*range(64)], "cpu_quota": 1.5}, [planned(world_size=4)], "2 of 64 logical cores"),
        ({"cores": [0], "gpus": ["A"] * 8}, [planned(world_size=4, device="cuda")], "4 of 8 GPUs"),
        (
            {"cores": [0, 1], "gpus": ["A"]},
            [planned(world_size=1, device="cuda"), planned(world_size=2)],
            "2 of 2 logical cores and 1 of 1 GPU",
        ),
        ({"cores": {"a": [0], "b": [0, 1]}}, [planned(world_size=2)], ""),
        ({}, [planned(world_size=2)], ""),
        ({"cores": [0, 1]}, [planned(world_size=2, nodes=2)], ""),
        ({"cores": [0, 1]}, [planned(world_size=1), planned(world_size=2, nodes=2)], ""),
        ({"cores": [0], "slots": [4]}, [planned(world_size=4)], ""),
        ({"cores": [0], "gpus": ["A"]}, [planned(world_size=1, device="cuda")], "1 of 1 GPU"),
        ({"cores": [0, 1]}, [], ""),
    ],
)
def test_how_much_of_the_machine_was_used(identity: dict[str, Any], cases: list[Case], expected: str) -> None:
    summary = changed(
        handmade_summary(),
        machine={"identity": identity},
        by_case=tuple(CaseSummary(case_id=str(n), status="ok") for n in range(len(cases))),
        planned={str(n): one for n, one in enumerate(cases)},
    )
    verb = "was" if expected == "1 of 1 GPU" else "were"
    assert used_words(summary) == (f"At most {expected} {verb} used." if expected else "")


def test_of_several_runs_nothing_is_said_of_their_machines() -> None:
    summary = changed(handmade_summary(), merged_from=("a", "b"))
    assert used_words(handmade_summary())
    assert not used_words(summary)
