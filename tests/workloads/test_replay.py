"""Replays: real gradients, linear in the data, at the profiled times and in the profiled order."""

from __future__ import annotations

import copy
import json
import pickle
import re
import statistics
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.launch.catalog import TableCatalog
from ddpbench.measure.pacer import Pacer
from ddpbench.spec import Case, Devices, expand, parse_experiment
from ddpbench.strategies.data_parallel import replicate
from ddpbench.workloads import is_import_path, load_workload, workload_names
from ddpbench.workloads.replay import Replay
from ddpbench.workloads.replay_model import ReplayModel
from ddpbench.workloads.rhythm import ReplayOptions
from tests.measure.test_pacer import Host
from tests.workloads.test_profile import data

MS = 1_000_000


def written(folder: Path, **changes: Any) -> str:
    path = folder / "tiny.json"
    path.write_text(json.dumps(data(**changes)), encoding="utf-8")
    return f"replay:{path}"


def case_of(workload: str, options: dict[str, Any] | None = None, **changes: Any) -> Case:
    settings: dict[str, Any] = {
        "strategy": "single",
        "local_batch": 4,
        "global_batch": 4,
        "compute": "replayed",
        **changes,
    }
    return Case(workload=workload, workload_options_json=json.dumps(options or {}), **settings)


class Rig:
    """A replay in one rank with a fake clock, and what its steps did."""

    def __init__(self, workload: str, host: Host, rank: int = 0, launch: int = 0, **changes: Any) -> None:
        self.host = host
        self.workload = load_workload(workload).for_case(case_of(workload, **changes), rank, launch)
        assert isinstance(self.workload, Replay)
        self.pacer = Pacer(host.clock, host.sleep, active=True)
        self.workload.rhythm.pacer = self.pacer
        torch.manual_seed(0)
        model = self.workload.model(ReplayOptions())
        assert isinstance(model, ReplayModel)
        self.model = model
        self.optimizer = self.workload.optimizer(model.parameters(), ReplayOptions())
        dataset: Any = self.workload.dataset(ReplayOptions())
        self.batch, _ = dataset.__getitems__([5, 3, 900, 77])
        self.moments: list[tuple[str, int]] = []
        for name, parameter in zip(model.names, model.parameters(), strict=True):
            parameter.register_post_accumulate_grad_hook(
                lambda _, name=name: self.moments.append((name, host.now_ns - self.start_ns))
            )
        self.start_ns = host.now_ns

    def step(self, model: torch.nn.Module | None = None) -> list[int]:
        """Return the ends of forward, backward and update since the start, ns."""
        self.start_ns = self.host.now_ns
        ends = []
        loss = self.workload.loss((model or self.model)(self.batch), None)
        ends.append(self.host.now_ns - self.start_ns)
        loss.backward()
        ends.append(self.host.now_ns - self.start_ns)
        self.optimizer.step()
        ends.append(self.host.now_ns - self.start_ns)
        self.optimizer.zero_grad(set_to_none=True)
        self.pacer.end_step()
        return ends


def test_a_step_takes_the_profiles_times_and_gradients_come_at_their_moments(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())
    assert rig.step() == [10 * MS, 30 * MS, 33 * MS]
    assert rig.moments == [
        ("b.weight", 15 * MS),
        ("scale", 25 * MS),
        ("a.bias", 25 * MS),
        ("a.weight", 30 * MS),
    ]
    assert rig.pacer.take()[0] == (0,)


def test_dilation_slows_all_of_it(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host(), dilation=10.0)
    assert rig.step() == [100 * MS, 300 * MS, 330 * MS]
    assert rig.moments[0] == ("b.weight", 150 * MS)


def test_one_rank_may_be_slower_than_the_others_but_not_in_the_base_case(tmp_path: Path) -> None:
    slow = {"slow_rank": 1, "slow_factor": 1.5}
    name = written(tmp_path)
    changes: dict[str, Any] = {"options": slow, "strategy": "ddp", "world_size": 2}
    assert Rig(name, Host(), rank=0, **changes).step() == [10 * MS, 30 * MS, 33 * MS]
    assert Rig(name, Host(), rank=1, **changes).step() == [15 * MS, 45 * MS, 49_500_000]
    alone = {"slow_rank": 0, "slow_factor": 1.5}
    assert Rig(name, Host(), options=alone).step() == [10 * MS, 30 * MS, 33 * MS]


def test_jitter_has_its_standard_deviation_keeps_the_mean_and_is_a_ranks_own(tmp_path: Path) -> None:
    name = written(tmp_path)
    changes: dict[str, Any] = {"options": {"jitter": 0.2}, "world_size": 2, "strategy": "ddp"}

    def steps(rank: int, seed: int, count: int, launch: int = 0) -> list[float]:
        rig = Rig(name, Host(), rank=rank, launch=launch, seed=seed, **changes)
        return [rig.step()[-1] / 33e6 for _ in range(count)]

    seen = steps(0, 0, 600)
    # The mean of 600 draws is off by 0.2/√600 = 0.8 %, their deviation by about 0.2/√1200 = 0.6 %: five times that.
    assert statistics.fmean(seen) == pytest.approx(1, abs=0.04)
    assert statistics.stdev(seen) == pytest.approx(0.2, abs=0.03)
    assert steps(0, 0, 5) == seen[:5]
    assert steps(1, 0, 5) != seen[:5]
    assert steps(0, 1, 5) != seen[:5]
    assert steps(0, 0, 5, launch=1) != seen[:5]  # otherwise all rounds would be the same sample


def test_parameters_are_the_profiles_in_its_order(tmp_path: Path) -> None:
    model = Rig(written(tmp_path), Host()).model
    assert model.names == ("a.weight", "a.bias", "b.weight", "scale")
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 5), (3,), (7,), ()]


def test_shrunk_parameters_are_vectors_of_a_share_of_the_numbers(tmp_path: Path) -> None:
    model = Rig(written(tmp_path), Host(), shrink=4).model
    assert [tuple(p.shape) for p in model.parameters()] == [(4,), (1,), (2,), (1,)]  # 15, 3, 7 and 1 by 4, up


def test_gradients_are_linear_in_the_data_and_different_for_each_parameter(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())
    outputs = rig.model(rig.batch)
    assert outputs.tolist() == [0.0] * 4
    rig.workload.loss(outputs, None).backward()
    mean = rig.batch.mean(0)
    weights = []
    for parameter in rig.model.parameters():
        assert parameter.grad is not None
        expected = mean[: parameter.numel()].view(parameter.shape)
        weight = float((parameter.grad / expected).flatten()[0])
        torch.testing.assert_close(parameter.grad, weight * expected)
        weights.append(weight)
    assert len({round(weight, 4) for weight in weights}) == 4
    assert all(0 < weight <= 1 for weight in weights)


def test_a_gradient_longer_than_a_sample_repeats_it(tmp_path: Path) -> None:
    parameters = [{"name": "long", "shape": [3, 200], "dtype": "float32", "ready_s": 0.01}]
    rig = Rig(written(tmp_path, parameters=parameters), Host())
    rig.workload.loss(rig.model(rig.batch), None).backward()
    gradient = next(rig.model.parameters()).grad
    assert gradient is not None
    mean = rig.batch.mean(0)
    repeated = torch.cat([mean, mean, mean])[:600].view(3, 200)
    torch.testing.assert_close(gradient / gradient[0, 0], repeated / repeated[0, 0])


def test_autograd_takes_a_gradient_without_a_copy(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())

    def places() -> list[int]:
        rig.workload.loss(rig.model(rig.batch), None).backward()
        found = [
            parameter.grad.data_ptr() for parameter in rig.model.parameters() if parameter.grad is not None
        ]
        rig.optimizer.zero_grad(set_to_none=True)
        return found

    assert places() == places()  # the same memory again
    kept = [made.memory.data_ptr() for made in rig.model._gradients if made is not None]
    assert places() == kept


def test_two_passes_under_way_at_once_do_not_share_their_nodes(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())
    loss = rig.workload.loss
    loss(rig.model(rig.batch), None).backward()
    once = [parameter.grad.clone() for parameter in rig.model.parameters() if parameter.grad is not None]
    rig.optimizer.zero_grad(set_to_none=True)
    first, second = rig.model(rig.batch), rig.model(3 * rig.batch)
    loss(first, None).backward()
    loss(second, None).backward()
    for parameter, alone in zip(rig.model.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 4 * alone)


def test_without_gradients_a_pass_takes_forwards_time_and_leaves_nothing_behind(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())
    with torch.no_grad():
        assert not rig.model(rig.batch).requires_grad
    assert rig.host.now_ns - rig.start_ns == 10 * MS
    assert rig.step()[-1] == 33 * MS
    assert [name for name, _ in rig.moments] == ["b.weight", "scale", "a.bias", "a.weight"]


@pytest.mark.parametrize("ended", [True, False])
def test_a_model_that_is_dropped_is_gone_at_once(ended: bool, tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path))
    workload.for_case(case_of(workload.name), 0)
    assert isinstance(workload, Replay)
    model: Any = workload.model(ReplayOptions())
    batch = torch.rand(4, 256)
    workload.loss(model(batch), None).backward()
    if not ended:
        workload.loss(model(batch), None)  # a pass whose backward never comes
    kept = [weakref.ref(model), *(weakref.ref(parameter) for parameter in model.parameters())]
    del model
    assert [one() for one in kept] == [None] * len(kept)


def test_parameters_that_were_replaced_get_the_gradients(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())
    rig.step()
    replaced = torch.nn.Parameter(torch.zeros(7))
    rig.model.p2 = replaced
    rig.workload.loss(rig.model(rig.batch), None).backward()
    assert replaced.grad is not None


def test_gradients_that_add_up_are_not_added_to_themselves(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())
    loss = rig.workload.loss
    loss(rig.model(rig.batch), None).backward()
    once = [parameter.grad.clone() for parameter in rig.model.parameters() if parameter.grad is not None]
    loss(rig.model(3 * rig.batch), None).backward()
    for parameter, first in zip(rig.model.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 4 * first)


def test_copies_have_gradients_of_their_own_and_the_same_rank(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())
    rig.step()
    other = copy.deepcopy(rig.model)
    assert other.rhythm is rig.model.rhythm
    rig.workload.loss(rig.model(rig.batch), None).backward()
    first = [parameter.grad.clone() for parameter in rig.model.parameters() if parameter.grad is not None]
    rig.workload.loss(other(7 * rig.batch), None).backward()
    for parameter, kept in zip(rig.model.parameters(), first, strict=True):
        torch.testing.assert_close(parameter.grad, kept)


def test_replicas_in_one_process_share_no_gradient_and_are_numbered_in_turn(tmp_path: Path) -> None:
    options = {"slow_rank": 1, "slow_factor": 3.0}
    rig = Rig(written(tmp_path), Host(), options=options, strategy="data_parallel", world_size=2)
    for _ in range(2):  # steps
        replicas = [replicate(rig.model, alias=number == 0) for number in range(2)]
        taken = []
        for module, _ in replicas:
            start_ns = rig.host.now_ns
            module(rig.batch).mean().backward()
            taken.append(rig.host.now_ns - start_ns)
        assert taken == [30 * MS, 90 * MS]
        gradients = [[parameters[own].grad for own in rig.model.parameters()] for _, parameters in replicas]
        for one, two in zip(*gradients, strict=True):
            assert one is not None
            assert two is not None
            assert one.data_ptr() != two.data_ptr()
            torch.testing.assert_close(one, two)


def test_a_replica_that_waited_for_others_has_its_whole_backward_before_it(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host(), strategy="data_parallel", world_size=2)
    module, _ = replicate(rig.model, alias=True)
    outputs = module(rig.batch)
    rig.host.now_ns += 50 * MS  # gathering
    start_ns = rig.host.now_ns
    outputs.mean().backward()
    assert rig.host.now_ns - start_ns == 20 * MS


def test_the_update_is_real_and_its_own_time_is_noted(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host())
    before = [parameter.detach().clone() for parameter in rig.model.parameters()]
    rig.step()
    moved = [not torch.equal(p, b) for p, b in zip(rig.model.parameters(), before, strict=True)]
    assert all(moved)
    lateness, own_ns = rig.pacer.take()
    assert len(lateness) == 1
    assert own_ns == 0  # the host's clock stands still while it computes


def test_models_are_equal_in_every_rank_for_the_same_seed(tmp_path: Path) -> None:
    name = written(tmp_path)
    one, two = Rig(name, Host()).model, Rig(name, Host(), rank=3, strategy="ddp", world_size=4).model
    for mine, other in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert mine.numel() == 1 or len(mine.flatten().unique()) > 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "cuda"}, 'set device = "cpu"'),
        ({"evaluation": True}, "a replay has no loss: there is nothing to evaluate"),
        ({"checkpoint": True}, "a replay has no loss"),
        ({"precision": "bf16"}, r"precision full\): set precision = \"full\", or profile under bf16"),
        ({"dtype": "float64"}, r"the profile is of float32 parameters: set dtype = \"float32\""),
        ({"local_batch": 8}, "local batch of 4: set base.local_batch = 4, or leave it out"),
        (
            {"local_batch": 2, "scaling": "strong", "world_size": 2},
            'strong scaling gives 2 ranks 2: set scaling = "weak"',
        ),
        ({"options": {"slow_rank": 2}, "world_size": 2}, "slow_rank = 2, but there are only ranks 0 to 1"),
    ],
)
def test_what_a_replay_cannot_do_is_said(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    name = written(tmp_path)
    reason = load_workload(name).check(case_of(name, **changes))
    assert reason is not None
    assert re.search(said, reason), reason
    assert load_workload(name).check(case_of(name)) is None


def test_names_are_files_or_what_comes_with_ddpbench(tmp_path: Path) -> None:
    name = written(tmp_path)
    assert load_workload(name).compute == "replayed"
    assert load_workload("replay:resnet50-v100").compute == "synthetic"
    assert "replay:resnet50-v100" in workload_names()
    assert not is_import_path(name)
    assert not is_import_path("replay:odd.py:Name")
    with pytest.raises(KeyError):
        load_workload("replay:resnet-fifty")
    with pytest.raises(ValueError, match="there is no profile"):
        load_workload("replay:gone.json")


def test_an_experiments_replay_has_its_profiles_batch_and_says_what_it_is(tmp_path: Path) -> None:
    written(tmp_path)
    text = """
        [base]
        workload = "replay:tiny.json"
        dilation = 4.0
        shrink = 2
        [axes]
        "options.replay.slow_factor" = [1.0, 2.0]
        [options.replay]
        slow_rank = 0
    """
    catalog = TableCatalog(tmp_path)
    experiment = parse_experiment(text, catalog, name="e")
    planned = expand(experiment, catalog, Devices(kind="cpu", gpus=0, cores=2))
    ddp = [entry for entry in planned if entry.case.strategy == "ddp"]
    assert len(ddp) == 2
    for entry in ddp:
        assert entry.skip_reason is None
        assert (entry.case.local_batch, entry.case.compute) == (4, "replayed")
        assert (entry.case.dilation, entry.case.shrink) == (4.0, 2)
    assert [entry.case.workload_options["slow_factor"] for entry in ddp] == [1.0, 2.0]


def test_batches_come_whole_from_data_as_long_as_the_job_needs(tmp_path: Path) -> None:
    rig = Rig(written(tmp_path), Host(), strategy="ddp", world_size=64, global_batch=256)
    dataset: Any = rig.workload.dataset(ReplayOptions())
    assert len(dataset) == 64 * 256
    inputs, targets = rig.workload.collate(dataset.__getitems__([0, 1024, 9]))
    assert inputs.shape == (3, 256)
    assert torch.equal(inputs[0], inputs[1])
    assert not torch.equal(inputs[0], inputs[2])
    assert len(targets) == 3
    assert torch.equal(dataset[9][0], inputs[2])
    collate = pickle.loads(pickle.dumps(rig.workload.collate))  # as loader workers get it
    assert collate((inputs, targets))[0] is inputs


def test_the_time_that_hides_a_ranks_own_update_is_reported_as_it_is_replayed(tmp_path: Path) -> None:
    slow = {"slow_rank": 1, "slow_factor": 1.5}
    case = case_of(written(tmp_path), options=slow, strategy="ddp", world_size=2, dilation=10.0)
    due = [load_workload(case.workload).for_case(case, rank).rhythm.pacer.update_due_ns for rank in (0, 1)]
    assert due == [30 * MS, 45 * MS]  # 3 ms of the profile, dilated; and on the slow rank half as long again
