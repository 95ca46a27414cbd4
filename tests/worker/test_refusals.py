"""Models that a strategy cannot train: their cases are skipped with torch's reason, and no others are."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.spec import Case
from tests.ranks import run_ranks
from tests.worker.own_cases import own_case

FILE = Path(__file__).parent / "strange_models.py"


def case_of(name: str, strategy: str, world_size: int = 2, **options: Any) -> Case:
    return own_case(FILE, name, strategy, world_size, options=options)


def prover_of(
    rank: int, processes: int, name: str, strategy: str, options: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the prover of a case on a rank, and the rank that judges how it ends."""
    from ddpbench.records import LaunchRequest
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.rank.rank import Rank
    from ddpbench.worker.training.control import AloneControl, GroupControl
    from ddpbench.worker.training.training import Training
    from ddpbench.worker.verify.proof import Prover

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes))
    case = case_of(name, strategy, **options)
    place = JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    request = LaunchRequest(case=case, purpose="proof", round=0, measured_s=0.0, run_id="")
    judged = Rank(None, place, None, request)  # type: ignore[arg-type]
    training = judged._training = Training(case, place, torch.device("cpu"))
    control = AloneControl() if processes == 1 else GroupControl(torch.distributed.new_group(), rank)
    return Prover(training, control, lambda: None), judged


def ended(rank: int, processes: int, name: str, strategy: str, options: dict[str, Any]) -> tuple[str, str]:
    """Return the outcome of a case's proof on a rank, in its record's form; and the reason."""
    from ddpbench.records import Proof

    prover, judged = prover_of(rank, processes, name, strategy, options)
    try:
        records = list(prover.run())
    except Exception as problem:
        outcome: tuple[str, str] = judged._classify(problem)
        return outcome
    wrong = [
        f"{each.compared}: {each.error:.2g}"
        for each in records
        if isinstance(each, Proof) and not each.passed
    ]
    return ("diverged", "; ".join(wrong)) if wrong else ("ok", "")


def noted(rank: int, processes: int, name: str, strategy: str) -> tuple[set[str], set[str], set[str]]:
    """Return the notes on a case's comparisons, those that failed, and those that failed without a note."""
    from ddpbench.records import Proof

    prover, _ = prover_of(rank, processes, name, strategy, {})
    made = [each for each in prover.run() if isinstance(each, Proof)]
    unexplained = {each.compared for each in made if not each.passed and not each.note}
    failed = {each.compared for each in made if not each.passed}
    return {each.note for each in made if each.note}, failed, unexplained


REFUSED = [
    ("ZeroDim", "fsdp", "fully_shard doesn't support scalar parameters. Change temperature to a 1D tensor"),
    ("SyncBatchNorm", "ddp", "SyncBatchNorm expected input tensor to be on GPU"),
    ("SyncBatchNorm", "master", "SyncBatchNorm expected input tensor to be on GPU"),
    ("CheckpointedTwice", "fsdp", "its hooks missed the backward"),
    ("CheckpointedTwice", "ddp", "use_reentrant=False, or set options.ddp.static_graph = true"),
    ("CheckpointedTwice", "zero1", "use_reentrant=False, or set options.zero1.static_graph = true"),
    ("NotContiguous", "fsdp", "FSDP does not support non-contiguous parameters"),
    ("NotContiguous", "post_local_sgd", "makes weights contiguous (0.weight is not)"),
    ("Scripted", "fsdp", "not supported on ScriptModules"),
    ("Forces", "fsdp", "a parameter was used after FSDP had freed it"),
    ("TwoBackwards", "ddp", "after one forward): add up the losses and call backward() once"),
    ("Decay", "fsdp", "a parameter was used outside its module's forward"),
    ("Hooked", "fsdp", "FSDP replaces parameters by shards without their hooks"),
    ("GathersHooked", "fsdp", "FSDP replaces parameters by shards without their hooks"),
    (
        "MovesTogether",
        "zero1",
        "zero1 divides the update among ranks, but OneLength computes one update of all parameters",
    ),
    (
        "StepsTogether",
        "zero1",
        "zero1 divides the update among ranks, but OneLength computes one update of all parameters",
    ),
]


@pytest.mark.ranks
@pytest.mark.parametrize(("name", "strategy", "said"), REFUSED)
def test_a_model_that_a_strategy_cannot_train_is_skipped_with_the_reason(
    name: str, strategy: str, said: str
) -> None:
    outcomes = run_ranks(ended, 2, name, strategy, {})
    assert [status for status, _ in outcomes] == ["skipped", "skipped"], outcomes
    assert all(reason.startswith(f"{strategy} cannot train this model") for _, reason in outcomes)
    assert all(said in reason for _, reason in outcomes), outcomes


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("strategy", "options", "advice"),
    [("data_parallel", {}, "or use ddp"), ("ddp", {"accumulate": 2}, "or leave out accumulate")],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_tensor_that_parts_of_a_batch_have_whole_is_named(
    strategy: str, options: dict[str, Any], advice: str, ranks: int
) -> None:
    said = (
        r"its batches of \d+ samples hold a tensor of length \d+, which cannot be divided among the parts of a batch "
        rf".*{advice} \(RuntimeError: .*targets"
    )
    if strategy == "data_parallel" and ranks == 1:
        return  # nothing is divided
    processes = 1 if strategy == "data_parallel" else ranks
    own = {} if strategy == "data_parallel" else {"world_size": ranks}
    for status, reason in run_ranks(ended, processes, "JoinedTargets", strategy, options | own):
        assert status == "skipped", reason
        assert re.search(said, reason), reason


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["Compiled", "CompiledInPlace", "Scripted"])
def test_replicas_in_threads_refuse_a_model_whose_copies_compute_with_the_first_ones_parameters(
    name: str,
) -> None:
    ((status, reason),) = run_ranks(ended, 1, name, "data_parallel", {})
    assert status == "skipped", reason
    assert "torch.nn.DataParallel cannot replicate it" in reason


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "strategy", "options", "status", "said"),
    [
        (
            "Unused",
            "ddp",
            {},
            "failed",
            "(spare.weight, spare.bias): set options.ddp.find_unused_parameters = true",
        ),
        ("Broken", "ddp", {}, "failed", "ValueError: the learning rate must not be negative"),
        ("Unused", "ddp", {"find_unused_parameters": True}, "ok", ""),
        ("CheckpointedTwice", "ddp", {"static_graph": True}, "ok", ""),
        ("WeightNorm", "ddp", {}, "ok", ""),
        ("Hooked", "ddp", {}, "ok", ""),
        ("Scripted", "master", {}, "ok", ""),
        ("Compiled", "fsdp", {}, "ok", ""),
        ("Gathers", "ddp", {}, "ok", ""),
        ("Gathers", "fsdp", {}, "ok", ""),
        ("Gathers", "post_local_sgd", {}, "ok", ""),
        ("GathersHooked", "ddp", {}, "ok", ""),
        ("AsksInStep", "ddp", {}, "ok", ""),
        ("MovesTogether", "ddp", {}, "ok", ""),
        ("MovesTogether", "fsdp", {}, "ok", ""),
        ("Packed", "ddp", {}, "ok", ""),
        ("PackedLoader", "ddp", {}, "ok", ""),
        ("Images", "ddp", {}, "ok", ""),
        (
            "Images",
            "ddp",
            {"accumulate": 2},
            "skipped",
            "options.ddp.accumulate cannot divide a batch among its parts",
        ),
        ("Stateful", "ddp", {}, "ok", ""),
        ("OneSize", "ddp", {}, "ok", ""),
        ("Freezes", "fsdp", {}, "ok", ""),
        ("InDataclass", "master", {}, "ok", ""),
    ],
)
def test_other_models_are_proved_and_other_errors_fail(
    name: str, strategy: str, options: dict[str, Any], status: str, said: str
) -> None:
    outcomes = run_ranks(ended, 2, name, strategy, options)
    assert [each for each, _ in outcomes] == [status, status], outcomes
    assert all(said in reason for _, reason in outcomes), outcomes


def each_ended(rank: int, processes: int, strategies: list[str]) -> dict[str, tuple[str, str]]:
    """Return outcomes of proofs without DDP's switches, as skipped or failed, and with the switch that the message
    names.
    """
    outcomes = {}
    for strategy in strategies:
        for name, switch in (
            ("UnusedDecayed", "find_unused_parameters"),
            ("CheckpointedTwice", "static_graph"),
        ):
            for options in ({}, {switch: True}):
                outcomes[f"{strategy} {name} {bool(options)}"] = ended(
                    rank, processes, name, strategy, options
                )
    return outcomes


@pytest.mark.ranks
def test_what_wraps_ddp_takes_the_switches_that_its_messages_name() -> None:
    for outcomes in run_ranks(each_ended, 2, ["zero1", "post_local_sgd"]):
        for strategy in ("zero1", "post_local_sgd"):
            for name, switch in (
                ("UnusedDecayed", "find_unused_parameters"),
                ("CheckpointedTwice", "static_graph"),
            ):
                status, reason = outcomes[f"{strategy} {name} False"]
                assert status in ("failed", "skipped"), (strategy, name)
                assert f"set options.{strategy}.{switch} = true" in reason
                assert outcomes[f"{strategy} {name} True"] == ("ok", "")


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "strategy", "said"),
    [
        ("Thaws", "ddp", "the model trains different parameters after some steps"),
        ("Thaws", "zero1", "the model trains different parameters after some steps"),
        ("Thaws", "fsdp", "the model thaws parameters (0.bias, ...) after some forwards"),
        ("Freezes", "fsdp", "the model freezes parameters (net.0.bias, ...) after some forwards"),
        ("ByRank", "ddp", "gives different gradients on each rank"),
        ("ByRank", "fsdp", "gives different gradients on each rank"),
        ("ByAskedRank", "ddp", "gives different gradients on each rank"),
        ("ByAskedRank", "post_local_sgd", "gives different gradients on each rank"),
        ("CompiledByRank", "ddp", "gives different gradients on each rank"),
        ("ByAskedRankInStep", "ddp", "gives different parameters on each rank"),
        ("ByRankInStep", "ddp", "gives different parameters on each rank"),
        ("ByRankInStep", "fsdp", "gives different parameters on each rank"),
    ],
)
def test_what_the_class_does_is_not_held_against_the_strategy(name: str, strategy: str, said: str) -> None:
    for notes, failed, unexplained in run_ranks(noted, 2, name, strategy):
        assert not unexplained
        assert bool(failed) == (name == "Thaws" and strategy != "fsdp")  # FSDP averages the thawed layer, too
        assert any(said in note for note in notes), notes


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("Logs", "ddp"),
        ("Logs", "post_local_sgd"),
        ("LogsInStep", "ddp"),
        ("Compiled", "post_local_sgd"),
        ("CompiledInStep", "master"),
    ],
)
def test_who_asks_for_its_rank_or_waits_for_others_exchanges_nothing(name: str, strategy: str) -> None:
    assert run_ranks(noted, 2, name, strategy) == [(set(), set(), set())] * 2


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "strategy"), [("FrozenByRank", "ddp"), ("FrozenByRank", "master"), ("FrozenByRankInStep", "ddp")]
)
def test_a_model_that_trains_other_parameters_on_each_rank_is_skipped(name: str, strategy: str) -> None:
    for status, reason in run_ranks(ended, 2, name, strategy, {}):
        assert status == "skipped", reason
        assert "it trains different parameters on each rank" in reason


def test_a_models_own_train_is_called_on_the_tried_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpbench.worker.training.training import Training
    from ddpbench.worker.verify.inspection import inspect_workload

    made: list[torch.nn.Module] = []
    fresh_model = Training.fresh_model

    def counted(training: Training) -> torch.nn.Module:
        made.append(fresh_model(training))
        return made[-1]

    monkeypatch.setattr(Training, "fresh_model", counted)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "its model's train()" in inspect_workload(case_of("NeverSet", "single", 1))["problem"]
    assert len(made) == 2  # a large model leaves no room for a third


@pytest.mark.ranks
def test_replicas_in_threads_call_the_hooks_of_parameters() -> None:
    assert run_ranks(ended, 1, "Hooked", "data_parallel", {}) == [("ok", "")]


@pytest.mark.ranks
def test_replicas_in_threads_refuse_a_model_that_returns_what_cannot_be_gathered() -> None:
    ((status, reason),) = run_ranks(ended, 1, "Policy", "data_parallel", {})
    assert status == "skipped", reason
    assert (
        "its forward returns an object of type Categorical, which torch.nn.DataParallel cannot gather"
        in reason
    )


@pytest.mark.ranks
def test_batches_of_packed_samples_are_not_divided_among_replicas() -> None:
    ((status, reason),) = run_ranks(ended, 1, "Packed", "data_parallel", {})
    assert status == "skipped", reason
    assert "data_parallel cannot divide a batch among its replicas" in reason


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["WritesInputs", "InDataclass", "Stateful", "TwoBackwards"])
def test_replicas_in_threads_have_inputs_of_their_own(name: str) -> None:
    ((status, reason),) = run_ranks(ended, 1, name, "data_parallel", {})
    assert status == "ok", reason


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PackedUnsaid", "samples instead of 8: "),
        ("PackedUnsaid", "define samples(self, batch), which returns their number"),
        (
            "Lazy",
            "its model has uninitialised lazy parameters (0.weight, 0.bias): have model() pass a batch through the ",
        ),
        (
            "NoSync",
            "a wrapper has no 'no_sync': the strategy decides when gradients are averaged: leave this call out",
        ),
        (
            "Meta",
            "the model has parameters or buffers on the device meta, such as 0.weight: in model()",
        ),
        (
            "InObject",
            "hold no tensor that can be found: Unseen; have the dataset, or collate(self, samples), give",
        ),
        (
            "NeverSet",
            "its model's train() puts 1 into evaluation mode, but ddpbench does not call train(): have model()",
        ),
        (
            "Plateau",
            "scheduler ReduceLROnPlateau, whose step() needs a value such as the loss: write step(self, model",
        ),
    ],
)
def test_what_no_strategy_can_train_is_refused_when_it_is_tried(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddpbench.worker.verify.inspection import inspect_workload

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert said in inspect_workload(case_of(name, "single", 1))["problem"]


@pytest.mark.parametrize("name", ["SetToTrain", "SetInStep"])
def test_a_model_that_is_set_to_train_keeps_in_evaluation_what_it_will(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddpbench.worker.verify.inspection import inspect_workload

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "problem" not in inspect_workload(case_of(name, "single", 1))


@pytest.mark.parametrize(
    "strategy", ["ddp", "zero1", "fsdp", "master", "data_parallel", "single", "independent"]
)
def test_updates_during_backward_are_left_to_strategies_that_average_nothing(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddpbench.runtime.trial import _own_reason
    from ddpbench.worker.verify.inspection import inspect_workload

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    facts = inspect_workload(case_of("InBackward", "single", 1))
    reason = _own_reason(case_of("InBackward", strategy, 1 if strategy == "single" else 2), facts)
    averages = strategy in ("ddp", "zero1", "fsdp", "master")
    assert ("step during backward" in (reason or "")) is averages, (reason, facts)


def test_a_parameter_that_some_gradients_lack_has_no_mean() -> None:
    from ddpbench.worker.verify.values import mean

    one, two = torch.ones(1), torch.full((1,), 3.0)
    assert mean([{"a": one, "b": one}, {"a": two}]) == {"a": torch.full((1,), 2.0)}
