"""`world_size = "auto"` on a fabric that fixes the number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpbench.cli import run
from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import Devices, Experiment, expand, left_out, parse_experiment, resolve
from ddpbench.spec.fabric import fabric_overrides

CATALOG = TableCatalog()
CORES = Devices(kind="cpu", gpus=0, cores=2)
AUTO = '[base]\nworkload = "mlp:small"\n[axes]\nworld_size = ["auto"]\n'


def experiment(text: str, fabric: str = "") -> Experiment:
    overrides = fabric_overrides(fabric) if fabric else []
    return parse_experiment(text, CATALOG, name="test", overrides=overrides)


def layouts(asked: Experiment) -> list[tuple[int, int]]:
    """Return (nodes, ranks) of the cases; all of them can run."""
    entries = expand(asked, CATALOG, CORES)
    assert not [entry.skip_reason for entry in entries if entry.skip_reason]
    ranks = [entry for entry in entries if not entry.added_as_baseline]
    return [(entry.case.nodes, entry.case.world_size) for entry in ranks]


@pytest.mark.parametrize(
    ("fabric", "kept", "said"),
    [
        ("2 x 2 x 1gbit", [(1, 1), (2, 4)], "leaves out 2 ranks on this fabric: 2 nodes of 2 are 4 ranks"),
        (
            "2 x 4 x 1gbit",
            [(1, 1), (2, 8)],
            "leaves out 2 and 4 ranks on this fabric: 2 nodes of 4 are 8 ranks",
        ),
        (
            "3 x 2 x 1gbit",
            [(1, 1), (3, 6)],
            "leaves out 2 and 4 ranks on this fabric: 3 nodes of 2 are 6 ranks",
        ),
        ("2 x 1 x 1gbit", [(1, 1), (2, 2)], ""),
        ("4 x 1gbit", [(1, 1), (2, 2), (4, 4)], ""),  # fewer ranks have fewer nodes
        ("", [(1, 1), (1, 2)], ""),
    ],
)
def test_sizes_that_fit_are_kept(fabric: str, kept: list[tuple[int, int]], said: str) -> None:
    asked = experiment(AUTO, fabric)
    assert layouts(asked) == kept
    assert left_out(asked).removeprefix('world_size = "auto" ') == said


def test_sizes_that_are_given_are_no_choice_of_auto() -> None:
    with pytest.raises(ExperimentError, match="2 nodes of 2 ranks are 4 ranks, not 2"):
        expand(experiment(AUTO.replace('"auto"', "2, 4"), "2 x 2 x 1gbit"), CATALOG, CORES)
    both = experiment(AUTO.replace('"auto"', '2, "auto"'), "2 x 2 x 1gbit")
    assert left_out(both) == ""
    with pytest.raises(ExperimentError, match="2 nodes of 2 ranks are 4 ranks, not 2"):
        expand(both, CATALOG, CORES)


def test_each_of_several_layouts_has_the_size_that_it_makes_also_when_resumed() -> None:
    text = f'{AUTO}"fabric.nodes" = [1, 2, 4]\n[fabric]\nranks_per_node = 2\nbandwidth = "1 Gbit/s"\n'
    asked = experiment(text)
    assert layouts(asked) == [(1, 1), (1, 2), (2, 4), (4, 8)]
    assert left_out(asked) == ""
    resolved = resolve(asked, CORES)
    again = experiment(resolved.to_toml())
    assert layouts(again) == layouts(asked)
    assert resolve(again, CORES) == again


def test_beside_an_axis_of_nodes_auto_is_one_rank_on_each_also_when_resumed() -> None:
    asked = experiment(f'{AUTO}"fabric.nodes" = [2, 4, 8]\n[fabric]\nbandwidth = "1 Gbit/s"\n')
    assert layouts(asked) == [(1, 1), (2, 2), (4, 4), (8, 8)]
    assert left_out(asked) == (
        'world_size = "auto" is one rank on each node: 2, 4 and 8 ranks; fabric.ranks_per_node sets more'
    )
    again = experiment(resolve(asked, CORES).to_toml())
    assert layouts(again) == layouts(asked)


def test_beside_nodes_of_a_launcher_auto_leaves_out_sizes_that_do_not_fit() -> None:
    text = AUTO.replace("[axes]", 'launcher = "torchrun"\n[axes]\nnodes = [1, 2]')
    entries = expand(experiment(text), CATALOG, Devices(kind="cpu", gpus=0, cores=4))
    shapes = [(e.case.nodes, e.case.world_size) for e in entries if not e.added_as_baseline]
    assert sorted(shapes) == [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4)]


def test_a_dry_run_says_what_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["sweep", "quick", "--dry-run", "--fabric", "2 x 2 x 1gbit"]) == 0
    message = capsys.readouterr().out
    assert 'world_size = "auto" leaves out 2 ranks on this fabric: 2 nodes of 2 are 4 ranks' in message
    assert "ddp · 4 ranks · default buckets · 2 x 2 · 1 Gbit/s, emulated" in message
    assert " 2 ranks ·" not in message


QUICK = (Path(__file__).parents[2] / "experiments/quick.toml").read_text(encoding="utf-8")


def threads(text: str, devices: Devices) -> list[tuple[str, int, int]]:
    """Return (strategy, ranks, threads) of the cases, each once; none is skipped, oversubscribed, or added
    for another.
    """
    entries = expand(experiment(text), CATALOG, devices)
    assert not any(one.skip_reason or one.oversubscribed or one.added_as_baseline for one in entries)
    return sorted({(e.case.strategy, e.case.world_size, e.case.threads_per_rank) for e in entries})


@pytest.mark.parametrize(
    ("cores", "ranks"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4]), (64, [1, 2, 4, 8, 16, 32, 64])]
)
def test_quick_has_one_process_with_a_thread_for_each_core(cores: int, ranks: list[int]) -> None:
    """World sizes are those with one thread per rank, whose base case stays the one with one thread."""
    found = threads(QUICK, Devices(kind="cpu", gpus=0, cores=cores))
    assert [one for one in found if one[0] == "single"] == sorted({("single", 1, 1), ("single", 1, cores)})
    assert [world for name, world, _ in found if name == "ddp"] == ranks
    assert {count for name, _, count in found if name != "single"} == {1}


def test_on_gpus_without_single_and_for_replays_all_cores_threads_are_no_case() -> None:
    gpus = Devices(kind="cuda", gpus=2, cores=16)
    assert {count for _, _, count in threads(QUICK, gpus)} == {1}
    cores = Devices(kind="cpu", gpus=0, cores=4)
    of_ddp = QUICK.replace('["single", ', "[")
    asked = resolve(experiment(of_ddp), cores)
    assert asked.axes["threads_per_rank"] == [1]
    replayed = resolve(experiment(QUICK.replace("gpt:micro", "replay:gpt-micro-cpu")), cores)
    assert replayed.axes["threads_per_rank"] == [1]


def test_all_cores_threads_are_excluded_by_their_name_and_stay_so_when_resumed() -> None:
    cores = Devices(kind="cpu", gpus=0, cores=4)
    rule = '[[exclude]]\nstrategy = "single"\nthreads_per_rank = "all"\n'
    without = threads(QUICK.replace("[budget]", f"{rule}[budget]"), cores)
    assert {count for _, _, count in without} == {1}
    one_core = Devices(kind="cpu", gpus=0, cores=1)
    assert ("single", 1, 1) in threads(QUICK.replace("[budget]", f"{rule}[budget]"), one_core)
    resolved = resolve(experiment(QUICK), cores)
    again = experiment(resolved.to_toml())
    assert resolve(again, cores) == again
    assert threads(resolved.to_toml(), cores) == threads(QUICK, cores)


def test_all_threads_belong_in_axes() -> None:
    text = '[base]\nworkload = "mlp:small"\nthreads_per_rank = "all"\n'
    with pytest.raises(ExperimentError, match=r'base\.threads_per_rank: "all" belongs in \[axes\]'):
        expand(experiment(text), CATALOG, CORES)


def test_a_job_on_nodes_has_no_process_with_all_of_their_cores(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        run(["plan", "quick", "--nodes", "a,b", "--ranks-per-node", "2", "--out", str(tmp_path / "run")]) == 0
    )
    message = capsys.readouterr().out
    assert "the case with one thread per core is left out" in message
    plan = json.loads((tmp_path / "run/plan.json").read_text(encoding="utf-8"))
    assert {one["threads_per_rank"] for one in plan["cases"]} == {1}
