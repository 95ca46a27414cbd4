"""A user's optimizer, schedule, clipping and autocast: checked before anything is launched, and proved."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.runtime.trial import summary_of, within_own
from ddpbench.spec import Case, PlannedCase
from tests.ranks import run_ranks
from tests.worker.own_cases import own_case

FILE = Path(__file__).parent / "own_loops.py"


def case_of(
    name: str, strategy: str = "single", world_size: int = 1, options: dict[str, Any] | None = None
) -> Case:
    return own_case(FILE, name, strategy, world_size, options=options)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def inspected(name: str) -> dict[str, Any]:
    from ddpbench.worker.verify.inspection import inspect_workload

    return inspect_workload(case_of(name))


WITH_LOSS = ["Functions", "Clipped", "Groups", "Outputs", "WarmsUp", "Narrow", "Frozen", "Slowly", "OneCycle"]
WITH_STEP = ["Gan", "Loop", "ScaledLoop", "Accumulates", "Overflows", "Critic", "Checkpointed", "Closure"]
WITH_STEP += ["AccumulatesAndWarmsUp"]
SOUND = [*WITH_LOSS, *WITH_STEP]


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.usefixtures("alone")
def test_what_training_loops_have_is_taken(name: str) -> None:
    facts = inspected(name)
    assert "problem" not in facts, facts
    assert facts.get("autocast") == ("bf16" if name in ("Narrow", "ScaledLoop", "Overflows") else None)
    assert facts.get("step", False) == (name in WITH_STEP)


@pytest.mark.usefixtures("alone")
def test_a_model_that_trains_in_evaluation_mode_is_named() -> None:
    said = "its model is in evaluation mode, without dropout or new statistics: if this is not intended, have model()"
    assert said in summary_of("own.py:Pretrained", inspected("Pretrained"))
    assert "evaluation" not in summary_of("own.py:Functions", inspected("Functions"))


@pytest.mark.parametrize("network", [["conv", "linear"], torch.nn.Linear(2, 2).eval()])
def test_a_models_attribute_called_network_is_not_taken_for_the_model(network: Any) -> None:
    from ddpbench.worker.verify.inspection import _is_in_evaluation

    model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.network = network
    assert not _is_in_evaluation(model)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AnotherModels", r"its optimizer has the parameters of another model than the one in training"),
        ("Part", r"leaves out 2 of the model's 4 trained parameters \(0\.weight, 0\.bias\)"),
        ("Strange", r"its optimizer has 1 parameter that the model does not have"),
        (
            "Still",
            r"did not change 2 of the model's 4 parameters that have a gradient \(0\.weight, 0\.bias\)",
        ),
        (
            "ByHand",
            r"64 steps changed parameters \(0\.weight, 0\.bias and 2 more\), but called step\(\) of no optimizer",
        ),
        ("NeverWarmsUp", r"16 updates of its optimizer did not change 4 of the model's 4 parameters"),
        (
            "Cached",
            r"two calls of model\(\) returned models that share parameters \(0\.weight, 0\.bias and 2 more\)",
        ),
        ("Backbone", r"two calls of model\(\) returned models that share parameters \(0\.0\.weight, "),
        ("Wraps", r"Wraps\.model\(\) needs a process group, .*: return the bare module"),
        ("WrapsLightly", r"model\(\) returned a DataParallel: return the bare module"),
        ("Two", r"optimizer\(\) returned two optimizers: write step"),
        ("NeverSteps", r"64 steps called no optimizer with a gradient to apply"),
        ("OtherNets", r"its optimizer has the parameters of another model than the one in training"),
        ("ReturnsNothing", r"its loss is None; it must be a scalar"),
        ("Number", r"its loss is the number \d.*: return the tensor, and not its item\(\)"),
        ("ReachesThrough", r"a wrapper has no 'cost': have the model's forward do it"),
        (
            "ClosureWithoutStep",
            r"its optimizer LBFGS computes the loss several times per step, .*: write step\(self, model, ",
        ),
        (
            "OfTheLastModel",
            r"no parameter got a gradient from the loss: does loss\(\) use the model that it is given",
        ),
        (
            "Infinite",
            r"0\.weight, 0\.bias and 2 more is not finite in the first step, .*: have loss\(\) give a finite one",
        ),
        (
            "Mends",
            r"2 more is not finite in the first step, so no strategy's gradient can be compared with it",
        ),
        ("NoOptimizer", r"optimizer\(\) returned None; it must return an optimizer"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_what_would_mislead_is_refused_in_a_sentence(name: str, said: str) -> None:
    problem = inspected(name)["problem"]
    assert problem.startswith(f"{FILE}:{name}: ")
    assert re.search(said, problem), problem
    assert "\n" not in problem


def proofs(
    rank: int,
    processes: int,
    name: str,
    strategy: str,
    world_size: int | None = None,
    options: dict[str, Any] | None = None,
) -> list[tuple[str, str, float, bool, str]]:
    """Return a case's comparisons: what, in which type, the error, whether it passed, the note."""
    from ddpbench.records import Proof
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.control import GroupControl
    from ddpbench.worker.training.training import Training
    from ddpbench.worker.verify.proof import Prover

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes))
    place = JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    training = Training(case_of(name, strategy, world_size or processes, options), place, torch.device("cpu"))
    control = GroupControl(torch.distributed.new_group(), rank)
    records = list(Prover(training, control, lambda: None).run())
    return [(p.compared, p.dtype, p.error, p.passed, p.note) for p in records if isinstance(p, Proof)]


EXACT = ["ddp", "master", "zero1", "fsdp"]
SPOKEN = {"Gan": "the step draws random numbers"}


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", EXACT)
@pytest.mark.parametrize("name", ["Clipped", "Groups"])
def test_clipping_schedules_and_groups_are_the_same_under_every_exact_strategy(
    name: str, strategy: str
) -> None:
    comparisons = run_ranks(proofs, 2, name, strategy)[0]
    assert all(passed for *_, passed, _ in comparisons), comparisons
    updates = [
        error
        for compared, dtype, error, *_ in comparisons
        if compared.startswith("update") and dtype == "float64"
    ]
    assert updates, comparisons
    assert updates[0] < 1e-6


@pytest.mark.ranks
def test_autocast_in_the_users_hand_is_named_in_the_proof() -> None:
    comparisons = run_ranks(proofs, 2, "Narrow", "ddp")[0]
    assert all(passed for *_, passed, _ in comparisons), comparisons
    types = {dtype for _, dtype, *_ in comparisons}
    assert types == {"float64", "float32, its own bf16 autocast"}
    assert not [note for *_, note in comparisons if "not a mean over samples" in note]


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", [*EXACT, "data_parallel"])
@pytest.mark.parametrize("name", ["TakesOut", "TakesOutInStep"])
@pytest.mark.usefixtures("alone")
def test_what_changes_its_batch_is_proved(name: str, strategy: str) -> None:
    ranks = 1 if strategy == "data_parallel" else 2
    made = run_ranks(proofs, ranks, name, strategy, 2)[0]
    assert all(passed and not note for *_, passed, note in made), made
    batch = "a batch is {'features': float32 [8, 6], 'label': int64 [8]}"
    assert batch in summary_of("own.py:Class", inspected(name))


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", EXACT)
@pytest.mark.parametrize("name", ["Gan", "Loop", "ScaledLoop", "Critic", "CriticFirst", "ScheduleFirst"])
def test_a_step_of_its_own_trains_as_replicas_in_lockstep_do(name: str, strategy: str) -> None:
    comparisons = run_ranks(proofs, 2, name, strategy)[0]
    assert all(passed for *_, passed, _ in comparisons), comparisons
    (error,) = [
        error
        for compared, dtype, error, *_ in comparisons
        if compared == "parameters, same samples" and dtype == "float64"
    ]
    assert error < 1e-9
    assert ("final replicas" in {compared for compared, *_ in comparisons}) == (strategy != "fsdp")


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["Gan", "Loop", "ScaledLoop"])
def test_replicas_in_threads_train_as_one_process_does(name: str) -> None:
    comparisons = run_ranks(proofs, 1, name, "data_parallel", 2)[0]
    assert all(passed for *_, passed, _ in comparisons), comparisons
    (compared,) = [each for each in comparisons if each[:2] == ("parameters, same samples", "float64")]
    assert compared[2] < 1e-9
    assert compared[4].startswith(SPOKEN[name]) if name in SPOKEN else not compared[4]


@pytest.mark.ranks
def test_a_step_that_leaves_out_its_updates_is_told_so() -> None:
    comparisons = run_ranks(proofs, 1, "LeavesOut", "data_parallel", 2)[0]
    assert [note for compared, *_, note in comparisons if compared == "parameters, same samples"] == [
        "in 64 steps step() called no optimizer: does a condition leave out the updates?"
    ] * 2


def training_of(name: str, **changes: Any) -> Any:
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.training import Training

    place = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=(), host="here")
    return Training(replace(case_of(name), **changes), place, torch.device("cpu"))


@pytest.mark.parametrize(("name", "evaluates"), [("Evaluated", True), ("Loop", False), ("Functions", True)])
@pytest.mark.usefixtures("alone")
def test_a_class_with_a_step_is_evaluated_by_its_loss_where_it_has_one(name: str, evaluates: bool) -> None:
    from ddpbench.measure.blocks import AloneControl, Stepper
    from ddpbench.measure.clock import HostClock
    from ddpbench.measure.recorder import NullRecorder
    from ddpbench.worker.rank.evaluation import evaluate

    training = training_of(name)
    assert training.workload.evaluates is evaluates
    if not evaluates:
        return
    model = training.fresh_model()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    replica = training.replica(model, NullRecorder(), distributed=False)
    stepper = Stepper(lambda: None, 8, HostClock(), AloneControl())
    blocks = evaluate(replica, training.batches(), stepper, 0.001, lambda: None)
    assert {block.phase for block in blocks} == {"warmup", "evaluation"}
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training


@pytest.mark.parametrize(("evaluation", "refused"), [(True, True), (False, False)])
@pytest.mark.usefixtures("alone")
def test_a_loss_that_evaluation_cannot_compute_is_refused_where_it_would(
    evaluation: bool, refused: bool
) -> None:
    from ddpbench.worker.verify.inspection import inspect_workload

    facts = inspect_workload(replace(case_of("EvaluatesWrongly"), evaluation=evaluation))
    assert (
        "its loss(), which evaluation computes, failed: TypeError: loss(model, batch) returned a tensor"
        in facts.get("problem", "")
    ) is refused


@pytest.mark.usefixtures("alone")
def test_what_a_step_without_an_update_holds_is_what_it_leaves() -> None:
    """Three of four steps only accumulate: their gradients exist at the end, and no optimizer has any state yet."""
    from ddpbench.measure.recorder import NullRecorder
    from ddpbench.worker.rank.measuring import Measurement

    training = training_of("Accumulates")
    measuring: Any = object.__new__(Measurement)
    measuring._replica = training.replica(training.fresh_model(), NullRecorder(), distributed=False)
    measuring._batches = training.batches()
    bytes_each = 4 * sum(each.numel() for each in measuring._replica.job.model.parameters())
    for _ in range(3):
        held = measuring._held()
        assert (held.parameter_bytes, held.gradient_bytes, held.optimizer_bytes) == (
            bytes_each,
            bytes_each,
            0,
        )
    updating = measuring._held()  # drops its gradients at the end: those before the update count
    assert updating.gradient_bytes == bytes_each
    assert updating.optimizer_bytes == bytes_each  # momentum


def test_the_random_state_of_all_that_a_step_may_draw_from_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """For CUDA's generators torch's functions are replaced: `tests/gpu` has the real ones."""
    import random

    import numpy as np

    from ddpbench.worker.training import randomness

    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(np.random.random())

    devices = [torch.tensor([1]), torch.tensor([2])]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [each.clone() for each in devices])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state_all", lambda states: devices.__setitem__(slice(None), states)
    )
    randomness.seed_all(5)
    kept = randomness.random_state()
    first = drawn()
    devices[0] += 10
    randomness.set_random_state(kept)
    assert drawn() == first
    assert [int(each) for each in devices] == [1, 2]


@pytest.mark.parametrize("built_for", [None, torch.device("cuda")])
def test_every_device_that_torch_was_built_for_is_seeded(
    built_for: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own function keeps the stack of each call, for each kind of device that was not used yet."""
    from ddpbench.worker.training import randomness

    seeded = []

    def seed_everywhere(seed: int) -> None:
        seeded.append(seed)
        torch.default_generator.manual_seed(seed)

    torch.manual_seed(5)
    expected = torch.rand(4)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: built_for)
    monkeypatch.setattr(torch, "manual_seed", seed_everywhere)
    randomness._for_cpus_alone.cache_clear()
    try:
        randomness.seed_all(5)
    finally:
        randomness._for_cpus_alone.cache_clear()
    assert torch.equal(torch.rand(4), expected)
    assert seeded == ([] if built_for is None else [5])


REFUSED = [
    (
        "Closure",
        "fsdp",
        "fsdp divides the update among ranks, but LBFGS computes one update of all parameters",
    ),
    ("Closure", "zero1", "zero1 divides the update among ranks, but LBFGS computes one update of all"),
    (
        "Sparse",
        "fsdp",
        "fsdp sends only dense gradients, but some of this model's are sparse: remove sparse=True",
    ),
    ("SparseLoop", "master", "master sends only dense gradients, but some of this model's are sparse"),
    ("Sparse", "async_server", "async_server sends only dense gradients"),
    ("Hollow", "fsdp", "the trained parameter none has no elements, and FSDP cannot reduce its gradient"),
    *(
        (
            "OneMemory",
            name,
            f"parameters 0.weight and 2.weight share memory, but {name} would train them separately",
        )
        for name in ("zero1", "fsdp", "post_local_sgd")
    ),
    (
        "Streams",
        "async_server",
        "the dataset divides its samples among 2 ranks itself, but async_server needs another division: give",
    ),
]


@pytest.mark.parametrize(("name", "strategy", "said"), REFUSED)
@pytest.mark.usefixtures("alone")
def test_a_strategy_that_cannot_train_a_class_is_skipped_with_a_sentence(
    name: str, strategy: str, said: str
) -> None:
    entries = [PlannedCase(case=case_of(name, each, 2)) for each in (strategy, "ddp")]
    skipped, kept = within_own(entries, {entries[0].case.workload: inspected(name)})
    assert str(skipped.skip_reason).startswith(said)
    assert kept.skip_reason is None


def test_parts_of_one_buffer_in_two_types_are_no_memory_in_common() -> None:
    from ddpbench.worker.verify.inspection import over_one_memory

    buffer = torch.zeros(80, dtype=torch.uint8)
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(buffer[:40].view(torch.float32))
    model.b = torch.nn.Parameter(buffer[40:].view(torch.bfloat16))
    assert over_one_memory(model) == []
    model.c = torch.nn.Parameter(buffer[38:40].view(torch.bfloat16))
    assert over_one_memory(model) == ["a", "c"]


@pytest.mark.usefixtures("alone")
def test_places_of_their_own_in_one_memory_hinder_nothing() -> None:
    assert "one_memory" not in inspected("OneBuffer")
    assert inspected("OneMemory")["one_memory"] == ["network.0.weight", "network.2.weight"]


@pytest.mark.usefixtures("alone")
def test_ddp_sends_sparse_gradients_by_the_librarys_all_reduce_alone() -> None:
    case = case_of("Sparse", "ddp", 2)
    others = [replace(case, algorithm="ring"), replace(case, options_json='{"compression": "fp16"}')]
    facts = {case.workload: inspected("Sparse")}
    planned = within_own([PlannedCase(case=each) for each in (case, *others)], facts)
    assert [str(each.skip_reason).partition(" sends")[0] for each in planned] == [
        "None",
        "ring",
        "compression = 'fp16'",
    ]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "strategy"),
    [("Sparse", "ddp"), ("SparseLoop", "ddp"), ("SparseRows", "ddp"), ("SparseRows", "zero1")],
)
def test_sparse_gradients_are_proved_where_they_can_be_sent(name: str, strategy: str) -> None:
    comparisons = run_ranks(proofs, 2, name, strategy)[0]
    assert all(passed for *_, passed, _ in comparisons), comparisons
    assert {dtype for _, dtype, *_ in comparisons} == {"float64", "float32"}


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["Accumulates", "AccumulatesAndWarmsUp", "Checkpointed", "Closure"])
@pytest.mark.parametrize("strategy", ["ddp", "master"])
def test_a_step_may_accumulate_compute_again_and_be_called_back(name: str, strategy: str) -> None:
    comparisons = run_ranks(proofs, 2, name, strategy)[0]
    assert all(passed for *_, passed, _ in comparisons), comparisons


def forget(part: str) -> None:
    """Make the strategy leave this part of a network unwrapped, in this process."""
    from ddpbench.strategies import own_step

    each_part = own_step.each_part

    def forgetful(network: Any, wrap: Any) -> Any:
        wrapped = each_part(network, wrap)
        wrapped[part] = network[part]
        return wrapped

    own_step.each_part = forgetful


def unwrapped(rank: int, processes: int, name: str, strategy: str) -> list[tuple[str, str, float, bool, str]]:
    """Return the proofs with a strategy that forgets the generator."""
    forget("maker")
    return proofs(rank, processes, name, strategy)


@pytest.mark.ranks
def test_a_network_that_is_not_aggregated_is_found_however_seldom_its_turn_is() -> None:
    comparisons = run_ranks(unwrapped, 2, "Critic", "ddp")[0]
    failed = {(compared, dtype) for compared, dtype, _, passed, _ in comparisons if not passed}
    assert ("parameters, same samples", "float64") in failed, comparisons
    assert ("parameters, same samples", "float32") in failed, comparisons


def lone_judge(
    rank: int, processes: int, name: str, strategy: str
) -> list[tuple[str, str, float, bool, str]]:
    """Return the proofs with a strategy that forgets the discriminator."""
    forget("judge")
    return proofs(rank, processes, name, strategy)


def held_in_float64(comparisons: list[tuple[str, str, float, bool, str]]) -> tuple[float, bool, str]:
    (comparison,) = [each for each in comparisons if each[:2] == ("parameters, same samples", "float64")]
    return comparison[2:]


def one_left_out(
    rank: int, processes: int, name: str, strategy: str
) -> list[tuple[str, str, float, bool, str]]:
    """Return the proofs with a DDP that does not average the last parameter."""
    from torch.nn.parallel import DistributedDataParallel

    make = DistributedDataParallel.__init__

    def forgetful(self: Any, module: torch.nn.Module, *arguments: Any, **settings: Any) -> None:
        last = [name for name, _ in module.named_parameters()][-1:]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, last)
        make(self, module, *arguments, **settings)

    DistributedDataParallel.__init__ = forgetful  # type: ignore[method-assign]
    return proofs(rank, processes, name, strategy)


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_parameter_that_is_not_averaged_is_found_under_accumulation_too(strategy: str) -> None:
    assert held_in_float64(run_ranks(proofs, 2, "AdamAccumulates", strategy)[0])[0] < 1e-9
    error, passed, _ = held_in_float64(run_ranks(one_left_out, 2, "AdamAccumulates", strategy)[0])
    assert not passed
    assert error > 1e-5


@pytest.mark.ranks
def test_what_a_step_leaves_frozen_is_compared_too() -> None:
    error, passed, note = held_in_float64(run_ranks(proofs, 2, "FreezesInTurn", "ddp")[0])
    assert passed
    assert (error < 1e-9, note) == (True, "")
    error, passed, _ = held_in_float64(run_ranks(lone_judge, 2, "FreezesInTurn", "ddp")[0])
    assert not passed
    assert error > 1e-3


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_update_made_of_a_ranks_samples_fails_where_ranks_hold_parts_too(strategy: str) -> None:
    comparisons = run_ranks(proofs, 2, "DecaysByItsBatch", strategy)[0]
    failed = [note for *_, passed, note in comparisons if not passed]
    assert failed, comparisons
    assert all("it computes with its rank's samples after backward()" in note for note in failed)
    assert not any("random" in note for note in failed)


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "data_parallel"])
def test_a_step_that_goes_around_the_strategy_is_told_so(strategy: str) -> None:
    processes = 1 if strategy == "data_parallel" else 2
    _, passed, note = held_in_float64(run_ranks(proofs, processes, "GoesAround", strategy, 2)[0])
    assert not passed
    assert "without calling the module that it is given" in note
    assert "model.module" in note


@pytest.mark.ranks
def test_a_step_that_keeps_ranks_from_averaging_is_told_so() -> None:
    _, passed, note = held_in_float64(run_ranks(proofs, 2, "NeverAverages", "ddp")[0])
    assert not passed
    assert "gradients were not averaged" in note
    assert "no_sync()" in note


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_second_backward_after_one_forward_is_named(strategy: str) -> None:
    _, passed, note = held_in_float64(run_ranks(proofs, 2, "GradientOfEach", strategy)[0])
    assert not passed
    assert "calls backward() 4 times after 2 forwards" in note
    assert held_in_float64(run_ranks(proofs, 2, "GradientOfEach", "master")[0])[1]


@pytest.mark.ranks
def test_gradients_of_gradients_through_threads_are_refused_and_not_lost() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"CannotTrainError: .*gradients of gradients"):
        run_ranks(proofs, 1, "Penalised", "data_parallel", 2)
    assert all(passed for *_, passed, _ in run_ranks(proofs, 2, "Penalised", "ddp")[0])


def first_replica_only(
    rank: int, processes: int, name: str, strategy: str, world_size: int
) -> list[tuple[str, str, float, bool, str]]:
    """Return the proofs of a DataParallel in threads that drops all replicas' gradients but the first's."""
    from ddpbench.strategies.data_parallel import ThreadedReplica

    whole = ThreadedReplica._reduce
    ThreadedReplica._reduce = lambda self, replicas: whole(self, replicas[:1])  # type: ignore[method-assign]
    return proofs(rank, processes, name, strategy, world_size)


@pytest.mark.ranks
def test_replicas_in_threads_that_draw_random_numbers_are_proved() -> None:
    (right,) = [
        each
        for each in run_ranks(proofs, 1, "Drops", "data_parallel", 2)[0]
        if each[:2] == ("gradients, same shards", "float64")
    ]
    assert (right[2] < 1e-10, right[3], right[4]) == (True, True, "")
    wrong = run_ranks(first_replica_only, 1, "Drops", "data_parallel", 2)[0]
    failed = {(compared, dtype) for compared, dtype, _, passed, _ in wrong if not passed}
    assert ("gradients, same shards", "float64") in failed


@pytest.mark.ranks
def test_threads_cannot_draw_again_in_backward_what_they_drew() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"CannotTrainError: .*share one random generator"):
        run_ranks(proofs, 1, "Recomputes", "data_parallel", 2)
    assert all(passed for *_, passed, _ in run_ranks(proofs, 2, "Recomputes", "ddp")[0])


@pytest.mark.ranks
def test_training_that_overflows_in_one_process_is_not_held_against_the_strategy() -> None:
    comparisons = run_ranks(proofs, 2, "Explodes", "fsdp")[0]
    (narrow,) = (each for each in comparisons if each[:2] == ("parameters, same samples", "float32"))
    assert narrow[3]
    assert "not finite after these updates in one process either" in narrow[4]
    assert all(passed for *_, passed, _ in comparisons)


def no_update(rank: int, processes: int, name: str, strategy: str) -> list[tuple[str, str, float, bool, str]]:
    """Return the proofs with a ZeRO-1 that updates nothing."""
    from ddpbench.strategies.zero1 import replica

    replica.SharedOutOptimizer.step = lambda self, *_, **__: None  # type: ignore[method-assign]
    return proofs(rank, processes, name, strategy)


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["Functions", "WarmsUp"])
def test_an_update_that_is_left_out_is_found_under_a_schedule_that_begins_at_zero_too(name: str) -> None:
    comparisons = run_ranks(no_update, 2, name, "zero1")[0]
    assert "update, same gradients" in {
        compared for compared, _, _, passed, _ in comparisons if not passed
    }, comparisons


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Uneven", r"did not call backward\(\) equally often"),
        ("OtherBranch", "reaches parameters on one rank that it"),
    ],
)
def test_ranks_that_would_wait_for_one_another_are_told_so(name: str, said: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=said):
        run_ranks(proofs, 2, name, "ddp")


@pytest.mark.ranks
def test_a_module_that_one_rank_does_not_call_is_waited_for_though_ddp_searches() -> None:
    with pytest.raises(pytest.fail.Exception, match="reaches parameters on one rank that it"):
        run_ranks(proofs, 2, "OtherBranch", "ddp", 2, {"find_unused_parameters": True})


def spans(rank: int, processes: int, name: str, strategy: str) -> tuple[float, int]:
    """Return, of some recorded steps, the spans' time over the steps', and the bytes that a step sent."""
    from ddpbench.measure.clock import HostClock
    from ddpbench.measure.recorder import StepRecorder
    from ddpbench.records import CommRecord, StepRecord
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.training import Training

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes))
    place = JobPlace(rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=())
    training = Training(case_of(name, strategy, processes), place, torch.device("cpu"))
    recorder = StepRecorder(HostClock())
    replica = training.replica(training.fresh_model(), recorder, distributed=processes > 1)
    batch, _ = next(training.batches())
    for number in range(4):
        recorder.begin_step(number)
        replica.own_step(batch)
        recorder.end_step()
    records = recorder.records()
    steps = [record for record in records if isinstance(record, StepRecord)]
    noted = sum(end - start for step in steps for _, start, end in step.spans)
    sent = sum(record.bytes for record in records if isinstance(record, CommRecord) and record.step == 3)
    covered = 0
    for step in steps:
        until = step.start_ns
        for _, start, end in sorted(step.spans, key=lambda span: span[1]):
            covered += max(0, end - max(start, until))
            until = max(until, end)
    assert noted == covered, "spans overlap"
    return noted / sum(step.end_ns - step.start_ns for step in steps), sent


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["Gan", "Loop", "Checkpointed", "Closure"])
def test_a_recorded_step_is_cut_into_spans_that_do_not_overlap(name: str) -> None:
    for strategy, ranks in (("single", 1), ("ddp", 2)):
        shares = [share for share, _ in run_ranks(spans, ranks, name, strategy)]
        assert all(0.5 < share <= 1 for share in shares), (strategy, shares)


@pytest.mark.ranks
def test_a_master_sends_the_gradients_that_a_backward_has_made_and_no_others() -> None:
    """Gathered and scattered: in the first backward the judge's, in the second all."""
    ((_, by_ddp), _), ((_, by_master), _) = (run_ranks(spans, 2, "Gan", name) for name in ("ddp", "master"))
    assert by_master == 2 * by_ddp
