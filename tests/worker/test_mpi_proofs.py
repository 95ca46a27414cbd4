"""A few strategies proved over MPI as over gloo: the same gradients as one process, to 1e-10 in float64."""

from __future__ import annotations

import json

import pytest

from tests.failures.conftest import run_cli

pytestmark = [pytest.mark.multiprocess]


@pytest.mark.parametrize(
    ("backend", "strategies"),
    [
        ("mpi", ["master"]),
        *(pytest.param(name, ["ddp", "fsdp"], marks=pytest.mark.thorough) for name in ("gloo", "mpi")),
    ],
    ids=["mpi", "gloo with hooks", "mpi with hooks"],
)
def test_gradients_are_those_of_one_process(backend: str, strategies: list[str]) -> None:
    what = ["--strategy", *strategies, "--workload", "mlp:small", "--world-size", "2"]
    result = run_cli("verify", *what, "--backend", backend, "--json")
    assert result.returncode == 0, result
    entries = json.loads(result.stdout)
    compared = [
        proof
        for entry in entries
        for proof in entry["proofs"]
        if proof["dtype"] == "float64"
        and proof["compared"].startswith("gradients")
        and proof["tolerance"] <= 1e-10
    ]
    assert len(compared) >= (2 if strategies == ["master"] else 6)
    assert all(proof["passed"] and proof["error"] <= 1e-10 for proof in compared), compared
