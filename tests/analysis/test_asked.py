"""Settings that ranks recorded, compared with what their case asks for: in Validity, on the terminal, in cases.csv."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.records import Met
from ddpbench.report.rows import rows_of
from ddpbench.spec import Case
from tests.analysis.test_invariants import broken, checked, edited, of, written
from tests.synthetic import ORIGIN_NS, case_of, write_proof

DDP = case_of("ddp", 2)


def edits(tmp_path: Path, kind: str, case: Case = DDP, **changes: Any) -> Any:
    """Return an editor that writes these settings into a run's records."""
    launch = {"buckets": [3_500_000], "steps": [(10**9, 2 * 10**9, [], [])]} if kind == "buckets" else {}
    return edited(written(tmp_path, of(case, **launch)), kind, lambda record: record | changes)


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("start", {"threads": 2}, "threads_per_rank was 2; 1 was asked for"),
        ("outcome", {"threads": 4}, "threads_per_rank was 4; 1 was asked for"),
        ("start", {"device": "cuda:0"}, "device was cuda; cpu was asked for"),
        ("start", {"types": ["bfloat16", "float32"]}, "dtype was bfloat16; float32 was asked for"),
        ("start", {"loader_workers": 3}, "loader_workers was 3; 0 was asked for"),
        ("start", {"types": ["complex64", "float32"], "loader_workers": 0}, ""),
        ("outcome", {"threads": 1}, ""),
    ],
)
def test_another_setting_than_the_cases_is_reported(
    tmp_path: Path, kind: str, changes: dict[str, Any], said: str
) -> None:
    run = edits(tmp_path, kind, **changes)
    found = [one for one in checked(run).violations if one.invariant == "ran_as_asked"]
    if not said:
        assert found == []
        return
    (violation,) = found
    assert violation.broken.text == said
    assert violation.kind == "doubtful"
    summary = summarize(run)
    assert any(said in sentence for sentence in summary.conclusions.validity)
    assert "ranks ran with the threads, ranks, device, types, backend" in summary.conclusions.checks.line
    name, _, value = said.partition(" was ")
    flag = summary.cases.set_index("case_id").loc[DDP.case_id, "noise_flag"]
    assert flag == f"{name} {value.partition(';')[0]}, not {value.partition('; ')[2].split()[0]} 1/1"


def test_another_backend_than_the_cases_is_reported(tmp_path: Path) -> None:
    met = Met(start_ns=ORIGIN_NS, end_ns=ORIGIN_NS + 1, backend="mpi")
    run = written(tmp_path, of(DDP, more=[met]))
    assert broken(checked(run)) == {"ran_as_asked"}
    assert broken(checked(edited(run, "met", lambda record: record | {"backend": "gloo"}))) == set()


def test_a_case_of_one_process_has_one_and_its_types_are_its_own(tmp_path: Path) -> None:
    case = case_of("data_parallel", 2, dtype="own")
    run = edits(tmp_path, "start", case, types=["bfloat16", "float32"])
    assert broken(checked(run)) == set()
    assert list(summarize(run).cases["dtype"]) == ["bfloat16+float32"]
    old = written(tmp_path / "old", of(case))
    assert list(summarize(old).cases["dtype"]) == ["own"]


@pytest.mark.parametrize(("largest", "holds"), [(1_000_000, True), (100_000, False)])
def test_no_bucket_is_beyond_its_cap(tmp_path: Path, largest: int, holds: bool) -> None:
    """A bucket of 3.5 MB under a cap of 3 MiB (3.15 MB) is closed by its last gradient, not later."""
    case = case_of("ddp", 2, bucket_cap_mb=3.0)
    begin = 10**12
    steps = [(begin, begin + 10**8, [("forward", begin, begin + 10**6)], [])]
    run = written(tmp_path, of(case, blocks=[[10**8] * 10], steps=steps, buckets=[3_500_000]))
    found = checked(edited(run, "start", lambda record: record | {"largest_gradient_bytes": largest}))
    assert ("ran_as_asked" not in broken(found)) is holds


def test_what_ddpbench_changed_of_a_class_is_in_validity(tmp_path: Path) -> None:
    sentence = 'dtype = "float32" casts its batches from float64 to float32'
    run = edits(tmp_path, "outcome", changes=[sentence])
    assert f"Changed by ddpbench in 1 case: {sentence}" in " ".join(summarize(run).conclusions.validity)


def test_what_is_unproved_is_marked_and_in_validity(tmp_path: Path) -> None:
    run = written(tmp_path, of(DDP))
    shutil.rmtree(run.launch(DDP.case_id, "proof").path, ignore_errors=True)
    write_proof(run, DDP, compared="update, same gradients", left_out="the update draws random numbers")
    summary = summarize(run)
    (sentence,) = [one for one in summary.conclusions.validity if "draws random numbers" in one]
    assert sentence.startswith("1 case unproved: the update draws random")
    (row,) = [one for one in rows_of(summary) if one.case_id == DDP.case_id]
    assert "unproved" in row.flaw_words


def test_what_a_proof_left_out_names_the_case_and_the_comparison(tmp_path: Path) -> None:
    run = written(tmp_path, of(DDP))
    write_proof(run, DDP)
    records = run.launch(DDP.case_id, "proof").records(0)
    left_out = {
        "kind": "proof",
        "compared": "parameters, same samples",
        "dtype": "float64",
        "error": 0.0,
        "tolerance": float("inf"),
        "passed": True,
        "note": "they are too coarse",
    }
    update = left_out | {"compared": "update, same gradients", "tolerance": 1.0, "note": ""}
    text = records.read_text(encoding="utf-8")
    records.write_text(f"{json.dumps(left_out)}\n{json.dumps(update)}\n{text}", encoding="utf-8")
    (sentence,) = [one for one in summarize(run).conclusions.validity if "too coarse" in one]
    assert sentence.startswith("Proofs of 1 case (")
    assert sentence.endswith("): not compared: parameters, same samples (they are too coarse).")
