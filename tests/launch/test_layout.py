"""Plans for nodes: which cases fit how, and the command lines that start them, as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpbench.errors import OutputError, RequestError
from ddpbench.launch import external as elsewhere
from ddpbench.launch.layout import Nodes, launcher_lines, lines_of, plan_for
from ddpbench.records import RunDir
from ddpbench.strategies.frameworks import installed

TWO_BY_FOUR = Nodes(names=("hostA", "hostB"), ranks_per_node=4)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def layouts(folder: Path, text: str, nodes: Nodes = TWO_BY_FOUR) -> dict[tuple[str, int], str]:
    """Return strategy and nodes x ranks of each case, or why it is skipped."""
    planned = plan_for(write(folder / "x.toml", text), nodes, out=folder / "run")
    return {
        (entry.case.strategy, entry.case.world_size): entry.skip_reason
        or f"{entry.case.nodes}x{entry.case.ranks_per_node}"
        for entry in planned.plan.cases
    }


def test_the_lines_are_what_a_user_pastes() -> None:
    lines = launcher_lines(TWO_BY_FOUR, RunDir(Path("/runs/my run")))
    assert lines.static == tuple(
        f"PYTHONSAFEPATH=1 torchrun --nnodes=2 --nproc-per-node=4 --node-rank={rank} --master-addr=hostA "
        "--master-port=29500 -m ddpbench.worker '/runs/my run'"
        for rank in (0, 1)
    )
    assert lines.c10d == (
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 PYTHONSAFEPATH=1 torchrun --nnodes=2 --nproc-per-node=4 "
        "--rdzv-backend=c10d --rdzv-endpoint=hostA:29500 --rdzv-id='my run' -m ddpbench.worker '/runs/my run'"
    )
    plain = launcher_lines(TWO_BY_FOUR, RunDir(Path("/runs/x")))
    assert plain.srun == (
        "srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --kill-on-bad-exit=1 --export=ALL --cpu-bind=none "
        "bash -c "
        "'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID "
        "MASTER_ADDR=hostA MASTER_PORT=29500 exec python -P -m ddpbench.worker /runs/x'"
    )
    trial = launcher_lines(Nodes(names=("localhost", "localhost"), ranks_per_node=1), RunDir(Path("/runs/x")))
    assert all(line.startswith("GLOO_SOCKET_IFNAME=lo PYTHONSAFEPATH=1 torchrun") for line in trial.static)


def test_a_host_named_twice_is_refused_but_for_this_one() -> None:
    with pytest.raises(RequestError, match=r"--nodes 'a,b,a': a is named twice, .* raise --ranks-per-node"):
        Nodes(names=("a", "b", "a"))
    assert Nodes(names=("127.0.0.1", "127.0.0.1")).slots == 2


def test_auto_fills_as_few_nodes_as_hold_a_case(tmp_path: Path) -> None:
    text = '[base]\nworkload = "mlp:small"\n[axes]\nstrategy = ["ddp", "data_parallel"]\nworld_size = "auto"'
    assert layouts(tmp_path, text) == {
        ("ddp", 1): "1x1",
        ("ddp", 2): "1x2",
        ("ddp", 4): "1x4",
        ("ddp", 8): "2x4",
        ("data_parallel", 1): "1x1",
        ("data_parallel", 2): "1x2",
        ("data_parallel", 4): "1x4",
        ("data_parallel", 8): "runs all 8 replicas in one process, but the launch plans 4 ranks per node",
        ("single", 1): "1x1",
    }


def test_layouts_as_an_axis_are_kept_and_what_does_not_fit_is_skipped(tmp_path: Path) -> None:
    text = '[base]\nworkload = "mlp:small"\nworld_size = 8\n[axes]\nnodes = [1, 2, 4, 8]\n'
    planned = plan_for(
        write(tmp_path / "x.toml", text),
        Nodes(names=("a", "b", "c", "d"), ranks_per_node=4),
        out=tmp_path / "run",
    )
    found = {
        entry.case.nodes: entry.skip_reason for entry in planned.plan.cases if entry.case.world_size == 8
    }
    assert found == {
        1: "needs 1 x 8 (nodes x ranks), but planned for 4 x 4 (nodes x ranks)",
        2: None,
        4: None,
        8: "needs 8 x 1 (nodes x ranks), but planned for 4 x 4 (nodes x ranks)",
    }
    assert len({entry.case.case_id for entry in planned.plan.cases}) == 5  # and the base case
    assert {entry.case.launcher for entry in planned.plan.cases} == {"torchrun"}


def test_a_world_that_does_not_divide_takes_more_nodes_or_none(tmp_path: Path) -> None:
    three = Nodes(names=("a", "b", "c"), ranks_per_node=4)
    text = '[base]\nworkload = "mlp:small"\n[axes]\nworld_size = [6, 7]'
    assert layouts(tmp_path, text, three) == {
        ("ddp", 6): "2x3",
        ("ddp", 7): "needs 1 x 7 (nodes x ranks), but planned for 3 x 4 (nodes x ranks)",
        ("single", 1): "1x1",
    }


def test_a_framework_that_starts_its_ranks_itself_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots would be torchrun's, and its ranks Ray's."""
    monkeypatch.setattr(installed, "_installed", lambda names: (names[0], "2.60.0"))
    monkeypatch.setattr(installed, "_importable", lambda module: True)
    text = '[base]\nworkload = "mlp:small"\n[axes]\nstrategy = ["ddp", "ray_train"]\nworld_size = [2]'
    planned = plan_for(write(tmp_path / "x.toml", text), TWO_BY_FOUR, out=tmp_path / "run").plan
    refused = "ray starts its ranks itself, on one machine, under ddpbench sweep"
    assert {(entry.case.strategy, entry.case.launcher): entry.skip_reason for entry in planned.cases} == {
        ("ddp", "torchrun"): None,
        ("single", "torchrun"): None,
        ("ray_train", "ray"): refused,
        ("single", "ray"): refused,
    }


def test_a_planned_directory_prints_its_lines_again_and_is_not_planned_over(tmp_path: Path) -> None:
    source = write(tmp_path / "x.toml", '[base]\nworkload = "mlp:small"\nworld_size = 8\n')
    planned = plan_for(source, TWO_BY_FOUR, out=tmp_path / "run")
    assert lines_of(planned.run) == planned.lines
    other = lines_of(planned.run, names=("hostC",), ranks_per_node=8).static[0]
    assert other.startswith("PYTHONSAFEPATH=1 torchrun --nnodes=1 --nproc-per-node=8 ")
    # options that are not given stay as planned
    assert lines_of(planned.run, port=4242).static == tuple(
        line.replace("29500", "4242") for line in planned.lines.static
    )
    with pytest.raises(OutputError, match=f"ddpbench plan {planned.run.path}"):
        plan_for(source, TWO_BY_FOUR, out=tmp_path / "run")
    machine = json.loads(planned.run.machine.read_text(encoding="utf-8"))
    assert machine["identity"] == {}
    assert machine["context"]["planned_nodes"] == ["hostA", "hostB"]


def test_a_plan_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    source = write(
        tmp_path / "x.toml", '[base]\nworkload = "mlp:small"\nworld_size = 3\nstrategy = "single"\n'
    )
    with pytest.raises(RequestError, match="no case of this experiment fits these nodes"):
        plan_for(source, TWO_BY_FOUR, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("names", ["2", "", "a,,b", "a b", "a..b,c", f"c,{'a' * 64}"])
def test_nodes_are_host_names(names: str) -> None:
    with pytest.raises(RequestError, match="host name"):
        Nodes(names=tuple(names.split(",")), ranks_per_node=1)


def test_places_and_ports_are_possible() -> None:
    with pytest.raises(RequestError, match="--ranks-per-node: 0 given; must be a whole number, 1 to 4,096"):
        Nodes(names=("a",), ranks_per_node=0)
    with pytest.raises(RequestError, match="--port: 70000 given; must be a whole number, 1 to 65,535"):
        Nodes(names=("a",), ranks_per_node=1, port=70000)


@pytest.mark.parametrize(("setting", "noted"), [("", True), ('device = "cpu"', False)])
def test_a_plan_for_cpus_that_nobody_chose_is_told(
    setting: str, noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine that plans may be a login node without the cluster's GPUs."""
    monkeypatch.setattr(elsewhere, "usable_devices", lambda hardware: hardware.devices(gpus=0))
    text = f'[base]\nstrategy = "ddp"\nworkload = "mlp:small"\n{setting}\n[axes]\nworld_size = [2]\n'
    planned = plan_for(write(tmp_path / "x.toml", text), TWO_BY_FOUR, out=tmp_path / "run")
    assert sum("--set base.device=cuda" in note for note in planned.notes) == noted
