"""Wrong requests: a message, no traceback, exit code 2, nothing started."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

from tests.failures.conftest import ROOT, run_cli, workload


def refused(*arguments: object, code: int = 2, **environment: str) -> str:
    result = run_cli(*arguments, **environment)
    assert result.returncode == code, result
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr


def test_an_unknown_experiment_names_the_nearest() -> None:
    assert "did you mean 'quick'?" in refused("sweep", "quik")
    assert "known: " in refused("sweep", "no/such/file.toml")


def test_an_unknown_flag_or_command_is_refused() -> None:
    assert "--dryrun" in refused("sweep", "--dryrun")
    assert "invalid choice" in refused("swep")


def test_a_typo_in_the_toml_names_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "typo.toml"
    path.write_text('[base]\nstrategie = "ddp"\n[axes]\nworld_size = []\n', encoding="utf-8")
    message = refused("sweep", path)
    assert "2 problems" in message
    assert "base.strategie: unknown key; did you mean 'strategy'?" in message
    assert "axes.world_size: is empty" in message


def test_broken_toml_and_binary_files(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[base\n", encoding="utf-8")
    assert "not valid TOML" in refused("sweep", broken)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not a UTF-8 text file" in refused("sweep", binary)


def test_a_wrong_override_is_refused() -> None:
    assert "unknown key; did you mean 'local_batch'?" in refused(
        "sweep", "quick", "--set", "base.local_bach=2"
    )
    assert "--set" in refused("sweep", "quick", "--set", "nonsense")


def test_gpus_that_are_not_there() -> None:
    message = refused("sweep", "quick", "--set", "base.device=cuda", CUDA_VISIBLE_DEVICES="")
    assert "no usable GPU here" in message
    assert 'backend = "nccl" moves data between GPUs only' in refused(
        "sweep", "quick", "--set", "base.backend=nccl", CUDA_VISIBLE_DEVICES=""
    )


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep me", encoding="utf-8")
    assert "not a run directory" in refused("sweep", tmp_path)
    assert "choose another --out" in refused("sweep", "quick", "--out", tmp_path)
    assert (tmp_path / "precious.txt").read_text(encoding="utf-8") == "keep me"
    assert "not a run directory" in refused("report", tmp_path)


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("", encoding="utf-8")
    message = refused("sweep", "quick", "--out", occupied / "run")
    assert "cannot be written" in message
    assert "--out" in message


def test_another_sweep_on_the_same_cores_is_named(
    write_experiment: Callable[..., Path], tmp_path: Path
) -> None:
    core = min(os.sched_getaffinity(0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
        claim.bind(f"\0ddpbench-core-{core}")
        claim.listen(1)
        path = write_experiment([workload("Sound")])
        message = refused("sweep", path, "--out", tmp_path / "run", code=3, DDPBENCH_SHARED_MACHINE="")
    assert f"process {os.getpid()}" in message
    assert "DDPBENCH_SHARED_MACHINE" in message


def test_a_run_directory_in_use_is_refused(write_experiment: Callable[..., Path], tmp_path: Path) -> None:
    import fcntl

    run = tmp_path / "run"
    run.mkdir()
    path = write_experiment([workload("Sound")])
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run / "plan.json").write_text('{"schema_version": 1}', encoding="utf-8")
        message = refused("sweep", path, "--out", run, code=3)
        assert "in use by another ddpbench command: wait until that ends or give another --out" in message


def test_another_schema_is_refused(write_experiment: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_text(json.dumps({"schema_version": 99}), encoding="utf-8")
    assert "schema 99" in refused("sweep", write_experiment([workload("Sound")]), "--out", run)
    (run / "plan.json").write_text("{ torn", encoding="utf-8")
    assert "cannot be read" in refused("sweep", write_experiment([workload("Sound")]), "--out", run)


def test_a_workload_too_big_for_its_arguments_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "strong.toml"
    path.write_text('[base]\nscaling = "strong"\nglobal_batch = 9\nworld_size = 2\n', encoding="utf-8")
    assert "do not divide evenly" in refused("sweep", path)


def test_nothing_of_a_refused_request_is_left(tmp_path: Path) -> None:
    refused("sweep", "quick", "--set", "base.lokal=1", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert (ROOT / "experiments").is_dir()
