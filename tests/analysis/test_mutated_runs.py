"""A run directory with any value of its files replaced by another: the reader reports the fault, or continues."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import load
from ddpbench.analysis.overview.validity import merge_sentences
from ddpbench.analysis.read.fabrics import fabric_sentences, fabrics_of
from ddpbench.errors import DdpbenchError, IdentityError
from ddpbench.records import RunDir, read_launch
from ddpbench.records.machine import read_machine, read_merged
from ddpbench.records.sessions import Sessions, read_sessions
from ddpbench.spec import Budget, Case
from tests.synthetic import (
    MS,
    ORIGIN_NS,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_sessions,
)

DEEP = "[" * 2000 + "]" * 2000
VALUES = (
    *("null", "-1", "0", "1e400", '"x"', "[]", "{}", "9" * 5000, "9" * 400, str(2**63 - 1), str(-(2**63))),
    *(DEEP, '"\\u0000"', '"\\ud800"'),
)
"""Replacements for each value of a file, as JSON. No float holds a number of 400 digits."""
_HERE = "the value that is replaced"


def small_run(path: Path) -> RunDir:
    """Write two cases, with every kind of record that one launch can have."""
    run = RunDir(path)
    cases = [case_of("single", 1), case_of("ddp", 2)]
    write_plan(run, cases, Budget(rounds_min=1, rounds_max=1))
    for case in cases:
        write_proof(run, case)
        write_launch(run, case, 0, [rank(case)] * case.world_size)
    write_sessions(run)
    run.merged.write_text(
        json.dumps({"schema_version": 1, "sources": [origin()], "left_out": []}), encoding="utf-8"
    )
    run.fabrics.write_text(
        json.dumps([{"links": "1 Gbit/s", "nodes": 2, "asked_bit_per_s": [1e9]}]), encoding="utf-8"
    )
    return run


def origin() -> dict[str, Any]:
    return {
        "path": "a",
        "fingerprint": "b",
        "host": "c",
        "started_utc": None,
        "git_commit": None,
        "cores": 1,
        "gpus": 0,
    }


def rank(case: Case) -> RankLaunch:
    at = ORIGIN_NS + 10**9
    transfers = [(0, "all_reduce", 4096, at + 3 * MS, at + 6 * MS)] if case.world_size > 1 else []
    spans = [("forward", at, at + 2 * MS), ("backward", at + 2 * MS, at + 7 * MS)]
    return RankLaunch(
        steps=[(at, at + 10 * MS, spans, transfers)],
        buckets=[4096],
        evaluation=[[5 * MS] * 2],
        checkpoints=[("plain", 100, 0, MS, MS)],
        curve=[(0, [10 * MS] * 4, [4.0, 3.0, 2.0, 1.0])],
        minor_faults=3,
        cpu_ns=30_000_000,
        traffic=(0, 10, 10),
        pace=(1, 1, 1, 1),
        staleness=[3, 1],
        held=(1, 1, 1),
    )


def replaced(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield a copy of a JSON value for each value in it, replaced by `_HERE`, and its place; in a list only
    the first.
    """
    yield "", _HERE
    items = data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ()
    for key, value in items:
        for where, changed in replaced(value):
            copy = dict(data) if isinstance(data, dict) else list(data)
            copy[key] = changed
            yield f".{key}{where}", copy


def mutations(run: RunDir, values: int) -> Iterator[tuple[Path, str, bytes]]:
    """Yield file, replacement and the file's new contents; each place gets `values` of `VALUES` in turn."""
    case = case_of("ddp", 2)
    launch = run.launch(case.case_id, "measure", 0)
    paths = [run.plan, run.machine, run.sessions, run.merged, run.fabrics, launch.outcome]
    paths += [run.launch(case.case_id, "proof").records(0), launch.records(0)]
    turn = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        for index, line in enumerate(lines):
            for where, changed in replaced(json.loads(line)):
                for value in itertools.islice(itertools.cycle(VALUES), turn, turn + values):
                    new = json.dumps(changed).replace(json.dumps(_HERE), value)
                    whole = "\n".join([*lines[:index], new, *lines[index + 1 :], ""])
                    yield path, f"{path.name}: {index}{where} = {value[:20]}", whole.encode()
                turn = (turn + values) % len(VALUES)


def read_notes(run: RunDir) -> None:
    """Read the files that a report reads in addition to plan and records."""
    read_machine(run)
    read_sessions(run)
    Sessions.of(run).session_of("", "2026-03-04T09:12:44+00:00")
    list(merge_sentences(read_merged(run)))
    list(fabric_sentences(fabrics_of(run)))


def test_a_wrong_value_anywhere_is_a_sentence_or_is_read(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    assert len(load(run)) == 2
    found, read = [], 0
    for path, what, data in mutations(run, 2):
        before = path.read_bytes()
        path.write_bytes(data)
        try:
            read_notes(run)
            load(run)
            read += 1
        except DdpbenchError as error:
            if "\n" in str(error) or path.name not in str(error):
                found.append(f"{what}: {error}")
        except Exception as error:
            found.append(f"{what}: {type(error).__name__}: {error}")
        path.write_bytes(before)
    assert not found, "\n".join(found)
    assert read > 100  # most of a rank's records may have any value of their type


@pytest.mark.parametrize("value", ["9" * 5000, DEEP, "1e400", str(2**63), '"\\u0000"', '"\\ud800"'])
@pytest.mark.parametrize("name", ["plan", "machine", "sessions", "merged"])
def test_what_no_value_of_a_run_is_is_refused_wherever_it_stands(
    tmp_path: Path, name: str, value: str
) -> None:
    run = small_run(tmp_path / "run")
    path: Path = getattr(run, name)
    data = json.loads(path.read_text(encoding="utf-8")) | {"unheard of": [_HERE]}
    path.write_text(json.dumps(data).replace(json.dumps(_HERE), value), encoding="utf-8")
    with pytest.raises(IdentityError, match=rf"{name}\.json cannot be read: "):
        run.read_json(path)


@pytest.mark.parametrize("field", ["strategy", "workload_options_json", "fabric", "shrink", "world_size"])
def test_a_case_that_is_none_is_refused_though_its_id_is_that_of_its_contents(
    tmp_path: Path, field: str
) -> None:
    run = small_run(tmp_path / "run")
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    case = plan["cases"][1]
    wrong: dict[str, Any] = {"strategy": "../../out", "workload_options_json": "[", "fabric": "0 bit/s"}
    case[field] = wrong.get(field, 2**62)
    new = Case.from_json(case).case_id
    text = json.dumps(plan).replace(case["case_id"], new)
    run.plan.write_text(text, encoding="utf-8")
    with pytest.raises(IdentityError, match=r"plan\.json is damaged: "):
        load(run)


@pytest.mark.parametrize(
    ("name", "value"), [("steps", 2**31), ("steps", 0), ("samples", 2**50), ("index", -1)]
)
def test_a_block_s_counts_are_such_that_sums_of_them_can_be_held(
    tmp_path: Path, name: str, value: int
) -> None:
    run = small_run(tmp_path / "run")
    launch = run.launch(case_of("ddp", 2).case_id, "measure", 0)
    lines = [json.loads(line) for line in launch.records(0).read_text(encoding="utf-8").splitlines()]
    next(line for line in lines if line["kind"] == "block")[name] = value
    launch.records(0).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    (damage,) = read_launch(launch).damage
    assert f"line 3: not a record: block.{name}: " in damage
