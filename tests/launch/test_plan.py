"""Plans as data: order, placement, environment, estimates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.plan import Plan, make_plan, plan_launch, skip_reasons
from ddpbench.machine.hardware import Hardware
from ddpbench.machine.placement import applied
from ddpbench.records import LaunchDir, RunDir
from ddpbench.runtime.estimate import (
    CROWDED_RANK_S,
    FRAMEWORK_S,
    LAUNCHER_START_S,
    RAY_S,
    SERVER_START_S,
    about,
    proof_s,
)
from ddpbench.runtime.expected import Expected
from ddpbench.runtime.progress import Done
from ddpbench.spec import Case, Devices, expand, parse_experiment

CATALOG = TableCatalog()


def hardware(*cores: int) -> Hardware:
    return Hardware(cores=cores, physical=len(cores), quota=None, gpu_addresses=(), cpu_model="test")


def plan_of(text: str) -> Plan:
    experiment = parse_experiment(text, CATALOG, name="test")
    return make_plan(experiment, expand(experiment, CATALOG, Devices(kind="cpu", gpus=0, cores=4)))


def places(case: Case, machine: Hardware) -> list[str]:
    plan = plan_launch(case, "measure", 0, directory=LaunchDir(Path("/x")), hardware=machine, catalog=CATALOG)
    return [rank.env["DDPBENCH_CORES"] for rank in plan.ranks]


def test_every_round_launches_every_case_once_in_an_order_of_its_own() -> None:
    text = "[axes]\nworld_size = [1, 2, 4]\nbucket_cap_mb = [1, 2, 5, 25]\n[budget]\nrounds_max = 6\nseed = 3"
    plan = plan_of(text)
    ids = {entry.case.case_id for entry in plan.runnable}
    rounds = [[case_id for at, case_id in plan.order if at == number] for number in range(6)]
    assert all(Counter(order) == Counter(ids) for order in rounds)
    assert len({tuple(order) for order in rounds}) == 6
    assert plan_of(text).order == plan.order  # the seed determines it
    assert plan_of(text.replace("seed = 3", "seed = 4")).order != plan.order


def test_each_reason_why_cases_cannot_run_is_said_once_with_its_cases() -> None:
    experiment = parse_experiment("[axes]\nworld_size = [1, 2, 3, 4]", CATALOG, name="test")
    cases = expand(experiment, CATALOG, Devices(kind="cpu", gpus=0, cores=4))
    why = {1: "too small", 2: "too slow", 3: "too small", 4: "too small"}
    entries = [
        replace(entry, skip_reason=why[entry.case.world_size])
        for entry in cases
        if not entry.added_as_baseline
    ]
    first, second = skip_reasons(entries).split("\n")
    assert first.startswith("  ddp · 1 rank")
    assert first.endswith(" and 2 more: too small")
    assert second.startswith("  ddp · 2 ranks")
    assert second.endswith(": too slow")
    assert " more" not in second


def test_skipped_cases_are_in_the_plan_and_not_in_the_order() -> None:
    plan = plan_of('[base]\nworld_size = 2\n[axes]\nstrategy = ["single", "ddp"]')
    skipped = [entry.case.case_id for entry in plan.cases if entry.skip_reason]
    assert len(skipped) == 1
    assert skipped[0] not in {case_id for _, case_id in plan.order}
    assert [case["case_id"] for case in plan.to_json()["cases"] if case["skip_reason"]] == skipped


def test_ranks_get_cores_of_their_own_and_share_in_turn_when_there_are_too_few() -> None:
    case = Case(workload="mlp:small", strategy="ddp", world_size=3)
    assert places(case, hardware(4, 5, 6, 7)) == ["4", "5", "6"]
    assert places(case, hardware(4, 5)) == ["4", "5", "4"]


def test_a_replays_ranks_may_use_every_core() -> None:
    case = Case(workload="replay:resnet50-v100", strategy="ddp", world_size=3, compute="synthetic")
    assert places(case, hardware(4, 5)) == ["4,5", "4,5", "4,5"]


def test_threads_get_a_core_each() -> None:
    case = Case(workload="mlp:small", strategy="ddp", world_size=2, threads_per_rank=2)
    assert places(case, hardware(0, 2, 4, 6)) == ["0,2", "4,6"]


def test_one_process_gets_all_its_replicas_cores() -> None:
    case = Case(workload="mlp:small", strategy="data_parallel", world_size=3)
    assert places(case, hardware(0, 1, 2, 3)) == ["0,1,2"]


def test_loader_workers_get_the_cores_left_over_or_share() -> None:
    case = Case(workload="mlp:small", strategy="ddp", world_size=2, loader_workers=1)
    for machine, expected in (
        (hardware(0, 1, 2, 3), ["2", "3"]),
        (hardware(0, 1, 2), ["2", "2"]),
        (hardware(0, 1), [None, None]),
    ):
        plan = plan_launch(
            case, "measure", 0, directory=LaunchDir(Path("/x")), hardware=machine, catalog=CATALOG
        )
        assert [rank.env.get("DDPBENCH_LOADER_CORES") for rank in plan.ranks] == expected


def test_threads_are_set_before_anything_is_imported() -> None:
    case = Case(workload="mlp:small", strategy="ddp", world_size=2, threads_per_rank=2)
    plan = plan_launch(
        case, "measure", 0, directory=LaunchDir(Path("/x")), hardware=hardware(0, 1, 2, 3), catalog=CATALOG
    )
    assert plan.server_env == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}


def test_a_rank_prints_as_a_command_that_a_shell_takes() -> None:
    case = Case(workload="mlp:small", strategy="ddp", world_size=1)
    plan = plan_launch(
        case, "measure", 7, directory=LaunchDir(Path("/a b")), hardware=hardware(0), catalog=CATALOG
    )
    command = plan.ranks[0].command(RunDir(Path("/a b")), case.case_id, "7")
    assert "RANK=0 WORLD_SIZE=1" in command
    assert command.endswith(f" -P -m ddpbench.worker '/a b' {case.case_id} 7")


def test_variables_are_the_servers_and_those_not_set_are_taken_away() -> None:
    case = Case(
        workload="mlp:small", strategy="ddp", env_json='{"GLOO_SOCKET_IFNAME": "eth7", "NCCL_ALGO": ""}'
    )
    plan = plan_launch(
        case, "measure", 0, directory=LaunchDir(Path("/x")), hardware=hardware(0), catalog=CATALOG
    )
    assert plan.server_env["GLOO_SOCKET_IFNAME"] == plan.ranks[0].env["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "NCCL_ALGO" not in applied({"NCCL_ALGO": "Ring"}, plan.server_env)
    command = plan.ranks[0].command(RunDir(Path("/x")), case.case_id, "0")
    assert command.startswith("env -u NCCL_ALGO DDPBENCH_CORES=0 ")


def test_an_estimate_starts_a_server_for_each_environment() -> None:
    one, two = (plan_of(f'[axes]\n"env.TEST" = {values}') for values in (["1"], ["1", "2"]))
    added_s = two.estimate_s(1, {}, []) - one.estimate_s(1, {}, [])
    assert added_s == pytest.approx(SERVER_START_S)


def test_an_estimate_counts_launches_rounds_and_proofs() -> None:
    plan = plan_of("[budget]\nmeasured_s = 2")
    ids = [entry.case.case_id for entry in plan.runnable]
    one, two = (plan.estimate_s(1, {ids[0]: n}, []) for n in (1, 2))
    assert two - one == pytest.approx(plan.launch_s(plan.runnable[0].case))
    assert two - one > 2
    assert plan.estimate_s(1) > plan.estimate_s(1, proofs=[])
    assert plan.estimate_s(3) - plan.estimate_s(2) > 2 * len(ids)


def test_an_estimate_counts_ranks_that_share_cores() -> None:
    """Plan eight ranks on four cores, which start, meet and compute one after the other."""
    plan = plan_of("[axes]\nworld_size = [4, 8]")
    own, shared = (next(entry for entry in plan.runnable if entry.case.world_size == size) for size in (4, 8))
    assert shared.oversubscribed
    assert not own.oversubscribed
    added_s = 8 * CROWDED_RANK_S
    expected = Expected(plan, Done(RunDir(Path("/nowhere")), plan), shared=False)
    assert plan.launch_s(shared.case) == pytest.approx(plan.launch_s(own.case) + added_s)
    assert expected.launch_s(shared) == pytest.approx(plan.launch_s(shared.case))
    assert plan.proof_s(shared.case) == pytest.approx(proof_s(shared.case) + added_s)
    assert expected.proof_s(shared.case) == pytest.approx(plan.proof_s(shared.case))


def test_an_estimate_counts_that_another_launchers_ranks_import_torch_anew() -> None:
    forked, spawned, torchruns, rays = (
        plan_of(f'[base]\nlauncher = "{launcher}"') for launcher in ("local", "spawn", "torchrun", "ray")
    )
    for of in (Plan.launch_s, Plan.proof_s):
        one, other, third, last = (
            of(plan, plan.runnable[0].case) for plan in (forked, spawned, torchruns, rays)
        )
        assert other == third == pytest.approx(one + LAUNCHER_START_S)
        assert last == pytest.approx(one + RAY_S)  # plus Ray's servers


@pytest.mark.parametrize(("launcher", "more"), [("local", 0.0), ("torchrun", FRAMEWORK_S)])
def test_an_estimate_counts_that_a_framework_is_imported_anew_too(launcher: str, more: float) -> None:
    plan = plan_of(f'[base]\nlauncher = "{launcher}"')
    bare = plan.runnable[0].case
    assert plan.launch_s(replace(bare, strategy="hf_trainer")) == pytest.approx(plan.launch_s(bare) + more)


def test_an_estimate_counts_all_the_time_that_a_loss_may_take_and_says_so() -> None:
    plain, asked = plan_of(""), plan_of('[budget]\nuntil_loss = 2.0\nuntil_s = "30 s"')
    case = plain.runnable[0].case
    assert asked.launch_s(case) == pytest.approx(plain.launch_s(case) + 30)
    assert about(plain.experiment.budget) == "about"
    assert about(asked.experiment.budget) == "at most"


def test_an_estimate_of_a_replay_knows_its_steps_and_its_links() -> None:
    """ResNet-50 on a V100: 97 ms per step, and 102 MB over 10 Gbit/s, of which 95 % are payload."""
    text = """
        [base]
        workload = "replay:resnet50-v100"
        dilation = {dilation}
        shrink = 50
        bucket_cap_mb = 1000
        [axes]
        strategy = ["ddp", "master"]
        [fabric]
        nodes = 8
        bandwidth = "10 Gbit/s"
        [budget]
        measured_s = 1
    """
    for dilation in (1.0, 4.0):
        plan = plan_of(text.format(dilation=dilation))
        by_strategy = {entry.case.strategy: plan.launch_s(entry.case) for entry in plan.runnable}
        master_step_s = dilation * (0.097 + 14 * 102.2e6 * 8 / 9.5e9)
        started_s = 0.4 + 8 * 0.35  # eight ranks on one machine
        assert by_strategy["master"] == pytest.approx(26 * master_step_s + started_s, rel=0.05)
        ring_step_s = dilation * max(0.097, 0.032 + 14 / 8 * 102.2e6 * 8 / 9.5e9)
        steps_s = max(1 + 22 * ring_step_s, 26 * ring_step_s)
        assert by_strategy["ddp"] == pytest.approx(steps_s + started_s, rel=0.05)
    assert plan.estimate_s(1) - plan.estimate_s(1, proofs=[]) > 10 * 4 * 14 * 102.2e6 * 8 / 9.5e9


def test_cases_that_differ_in_nothing_but_their_links_share_a_proof() -> None:
    case = Case(workload="mlp:small", strategy="ddp", world_size=4, nodes=4, fabric="1 Gbit/s")
    assert replace(case, fabric="100 Mbit/s").proof_key == case.proof_key
    assert replace(case, fabric="100 Mbit/s", dilation=4.0).proof_key == case.proof_key
    others = (
        replace(case, fabric="", nodes=1),
        replace(case, nodes=2),
        replace(case, bucket_cap_mb=1.0),
        replace(case, shrink=4),
        replace(case, strategy="master"),
    )
    assert len({other.proof_key for other in (case, *others)}) == 6
    assert replace(case, fabric="").proof_key == replace(case, fabric="").case_id
