"""Users' classes whose updates keep state, draw at random, or get gradients in other ways."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ddpbench.launch.verify import verification_cases, verify
from ddpbench.records import Proof, why_unproved
from ddpbench.runtime.trial import _own_reason, summary_of
from ddpbench.worker.verify.faults import by_rank
from ddpbench.worker.verify.inspection import _dropped, inspect_workload
from ddpbench.worker.verify.optimizers import narrower_type
from ddpbench.worker.verify.update_faults import OF_ITS_SAMPLES
from ddpbench.workloads import plain_state
from tests.ranks import run_ranks
from tests.worker import test_refusals, update_models
from tests.worker.own_cases import own_case
from tests.worker.test_odd_models import proved
from tests.worker.test_refusals import ended

FILE = Path(__file__).parent / "update_models.py"


def each_ended(
    rank: int, processes: int, names: list[str], strategies: list[str]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the outcome of each class's proof under each strategy; `fsdp wrap=whole` is one with an option."""
    test_refusals.FILE = FILE
    found = {}
    for name in names:
        for strategy in strategies:
            plain, *given = strategy.split()
            options: dict[str, Any] = dict(each.split("=") for each in given)
            found[name, strategy] = ended(rank, processes, name, plain, options)
    return found


KEEPING = ["Counts", "CountsInList", "KeepsOptimizer", "Averages", "KeepsModel", "CountsLosses"]


@pytest.mark.ranks
def test_what_an_object_keeps_is_of_one_model() -> None:
    strategies = ["ddp", "zero1", "fsdp", "master"]
    for found in run_ranks(each_ended, 2, KEEPING, strategies):
        status, reason = found.pop(("Averages", "fsdp"))
        assert (status, "FSDP does not support deepcopy" in reason) == ("skipped", True), reason
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}
    (found,) = run_ranks(each_ended, 1, KEEPING, ["data_parallel", "single"])
    assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
def test_an_update_by_a_count_of_losses_is_proved() -> None:
    strategies = ["ddp", "zero1", "fsdp", "master", "post_local_sgd"]
    for found in run_ranks(each_ended, 2, ["ClipsByCount"], strategies):
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}
    for name in ("ClipsByCount", "ClipsByLoss"):
        for strategy, ranks in (("single", 1), ("data_parallel", 2)):
            proofs, _ = proved(own_case(FILE, name, strategy, ranks))
            assert [each for each in proofs if not each.passed] == []
            made = {each.was_made for each in proofs if each.compared == "update, same gradients"}
            assert made == {True} or (name, strategy) == (
                "ClipsByLoss",
                "data_parallel",
            )  # depends on threads


@pytest.mark.ranks
def test_an_update_by_a_count_of_losses_is_proved_where_a_step_has_several() -> None:
    assert run_ranks(accumulating, 2, "ClipsByCount") == [("ok", "")] * 2


def accumulating(rank: int, processes: int, name: str) -> tuple[str, str]:
    test_refusals.FILE = FILE
    return ended(rank, processes, name, "ddp", {"accumulate": 2})


def noted_of(
    rank: int, processes: int, names: list[str], strategies: list[str]
) -> dict[tuple[str, str], tuple[set[str], set[str], set[str]]]:
    """Return each proof's notes, the comparisons that failed, and those that failed without a note."""
    test_refusals.FILE = FILE
    return {
        (name, strategy): test_refusals.noted(rank, processes, name, strategy)
        for name in names
        for strategy in strategies
    }


@pytest.mark.ranks
def test_an_update_by_the_loss_of_its_ranks_samples_is_named_and_not_the_strategy() -> None:
    for found in run_ranks(noted_of, 2, ["ClipsByLoss"], ["ddp", "zero1", "fsdp", "master"]):
        for (_, strategy), (notes, failed, unexplained) in found.items():
            assert (bool(failed), unexplained) == (True, set()), strategy
            assert OF_ITS_SAMPLES in notes, (strategy, notes)


@pytest.mark.ranks
def test_an_update_that_would_wait_for_other_ranks_is_named_before_it_is_made() -> None:
    for found in run_ranks(noted_of, 2, ["ClipsOnFirst"], ["fsdp", "zero1"]):
        for key, (notes, failed, unexplained) in found.items():
            assert ("update, same gradients" in failed, unexplained) == (True, set()), key
            assert {note for note in notes if note.startswith(f"the update {by_rank('parameters')}")}, notes


@pytest.mark.ranks
def test_state_that_a_batch_seen_again_leaves_as_it_is_does_not_fail_a_proof() -> None:
    names, strategies = ["RunsMaximum", "ScalesByFirst"], ["ddp", "zero1", "fsdp"]
    for found in run_ranks(noted_of, 2, names, strategies):
        for key, (notes, failed, _) in found.items():
            assert (failed, {note.partition(",")[0] for note in notes}) == (
                set(),
                {"the model keeps state from one forward to the next"},
            ), key


@pytest.mark.ranks
def test_steps_of_a_class_that_keeps_state_of_its_samples_are_compared_with_those_of_one_rank() -> None:
    for unmade in run_ranks(not_made, 2, "RunsMaximum", "fsdp"):
        assert unmade == {"gradients, whole batch"}


def not_made(rank: int, processes: int, name: str, strategy: str) -> set[str]:
    test_refusals.FILE = FILE
    prover, _ = test_refusals.prover_of(rank, processes, name, strategy, {})
    return {each.compared for each in prover.run() if isinstance(each, Proof) and not each.was_made}


def test_a_copied_object_shares_its_data_and_what_cannot_be_copied() -> None:
    class Own:
        def __init__(self) -> None:
            self.data = TensorDataset(torch.zeros(2))
            self.splits = {"train": self.data}
            self.many = list(range(plain_state.MOST_PARTS + 1))
            self.lock = threading.Lock()
            self.queue = [torch.zeros(2)]
            self.model, self.locked = nn.Linear(2, 2), [self.queue, self.lock]
            self.bound = self.queue_of

        def queue_of(self) -> Any:
            return self.queue

    own = Own()
    made = plain_state.copy_of(own, {id(own.model): own.model})
    assert [
        getattr(made, name) is getattr(own, name) for name in ("data", "many", "lock", "locked", "model")
    ] == [True] * 5
    assert made.splits is not own.splits
    assert made.splits["train"] is own.data
    assert made.queue is not own.queue
    assert made.queue[0] is not own.queue[0]
    assert made.bound() is made.queue


@pytest.mark.ranks
def test_optimizers_without_torchs_constructor_and_models_with_locks_are_proved() -> None:
    names = ["WrapsOptimizer", "WrapsInStep", "HoldsLock"]
    for found in run_ranks(each_ended, 2, names, ["ddp", "fsdp", "master"]):
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
def test_zero1_refuses_an_optimizer_that_steps_another_one_with_all_parameters() -> None:
    names = ["WrapsOptimizer", "WrapsInStep", "WrapsAdam", "HidesAdam"]
    for found in run_ranks(each_ended, 2, names, ["zero1"]):
        for (name, _), (status, reason) in found.items():
            assert status == "skipped", (name, reason)
            said = (
                r"zero1 gives each rank a part .*, but \w+ steps another optimizer, Adam, which updates all"
            )
            assert re.search(said, reason), (name, reason)
    (found,) = run_ranks(each_ended, 1, ["WrapsAdam"], ["zero1"])
    assert set(found.values()) == {("ok", "")}


@pytest.mark.multiprocess
def test_zero1_names_the_line_of_an_optimizer_that_needs_all_parameters() -> None:
    (one,) = verify(verification_cases(["zero1"], [f"{FILE}:KeepsAListOfAll"], [2], "gloo"))[:1]
    assert one.status == "failed"
    said = r"zero1 gives each rank .* Draws fails with a part \(does it .* \([^ ]*update_models\.py:\d+\)"
    assert re.search(said, one.reason), one.reason


def test_lists_of_modules_that_nothing_calls_are_cut_into_their_parts() -> None:
    from ddpbench.strategies.fsdp.replica import blocks

    inner = nn.ModuleDict(
        {"a": nn.Linear(2, 2), "b": nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.ReLU()])}
    )
    cut = blocks(nn.ModuleList([inner, nn.Linear(2, 2)]))
    assert [type(each).__name__ for each in cut] == ["Linear", "Sequential", "Linear"]


@pytest.mark.ranks
def test_fsdp_names_its_cut_into_blocks_where_only_that_cannot_train() -> None:
    for found in run_ranks(each_ended, 2, ["Nested", "ByMethods", "Adapts"], ["fsdp", "fsdp wrap=whole"]):
        for name, said in (
            ("ByMethods", "outside its module's forward"),
            ("Adapts", "torch.autograd.grad was"),
        ):
            status, reason = found.pop((name, "fsdp"))
            assert (status, said in reason, "may train it" in reason) == ("skipped", True, True), reason
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.parametrize("name", ["Surgery", "PerSample", "PutTogether", "WrapsInStep"])
def test_gradients_that_no_backward_made_are_left_to_strategies_that_average_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    facts = inspect_workload(own_case(FILE, name, "single", 1))
    strange = name in ("Surgery", "PerSample")
    for strategy in ("ddp", "zero1", "fsdp", "master", "data_parallel", "single", "independent"):
        reason = _own_reason(own_case(FILE, name, strategy, 1 if strategy == "single" else 2), facts) or ""
        expected = strange and strategy in ("ddp", "zero1", "fsdp", "master")
        assert (f"{strategy} averages gradients at the end of a backward()" in reason) is expected, (
            strategy,
            facts,
        )
    message = "sets gradients without backward() (0.weight" in summary_of(name, facts)
    assert message is strange


@pytest.mark.ranks
def test_replicas_in_threads_refuse_what_torch_func_cannot_go_through() -> None:
    (found,) = run_ranks(each_ended, 1, ["Surgery", "PerSample"], ["data_parallel"])
    assert found["Surgery", "data_parallel"] == ("ok", "")
    status, reason = found["PerSample", "data_parallel"]
    assert (status, "torch.func cannot differentiate" in reason) == ("skipped", True), reason


DRAWING = ["DrawsInOptimizer", "DrawsBeforeUpdate", "DrawsInStep"]


@pytest.mark.ranks
def test_what_updates_draw_is_named_where_it_makes_replicas_unequal_and_else_left_out() -> None:
    for found in run_ranks(each_noted, 2, DRAWING, ["ddp", "zero1", "fsdp", "master"]):
        for (name, strategy), (passed, failed, fault) in found.items():
            if strategy in ("ddp", "master"):
                assert failed == {"final replicas"}, (name, strategy)
                assert "draws random numbers" in fault
            else:
                assert (failed, fault) == (set(), ""), (name, strategy)
            assert "initial state" in passed
    (found,) = run_ranks(each_noted, 1, DRAWING[:2], ["data_parallel", "independent"])
    assert {(str(failed), fault) for _, failed, fault in found.values()} == {("set()", "")}


def each_noted(
    rank: int, processes: int, names: list[str], strategies: list[str]
) -> dict[tuple[str, str], tuple[set[str], set[str], str]]:
    """Return the steps of each class's proof that passed without a note or failed, and the note on the model."""
    found = {}
    for name in names:
        for strategy in strategies:
            records, fault = proved(own_case(FILE, name, strategy, 2), rank, processes)
            passed = {each.compared for each in records if each.passed and not each.note}
            failed = {each.compared for each in records if not each.passed}
            found[name, strategy] = (passed, failed, fault)
    return found


def each_reason(
    rank: int, processes: int, names: list[str], strategies: list[str]
) -> dict[tuple[str, str], tuple[bool, str]]:
    """Return if each class's comparisons passed under each strategy, and why it is unproved; empty if it is proved."""
    found = {}
    for name in names:
        for strategy in strategies:
            records, _ = proved(own_case(FILE, name, strategy, 2), rank, processes)
            found[name, strategy] = (all(each.passed for each in records), why_unproved(records))
    return found


@pytest.mark.ranks
def test_an_update_that_sums_what_is_averaged_already_is_unproved() -> None:
    for found in run_ranks(each_reason, 2, ["SumsAgain", "SumsInGroup"], ["ddp", "master"]):
        for key, (passed, why) in found.items():
            assert passed, key
            assert why.startswith(
                "the update exchanges values between ranks, and one process makes a different update"
            ), key
    for found in run_ranks(each_reason, 2, ["SumsAgain"], ["post_local_sgd"]):
        assert [why for _, why in found.values()] == [
            "the update exchanges values between ranks that train apart: one process cannot redo their steps"
        ]


@pytest.mark.ranks
def test_state_outside_of_the_model_is_named_and_no_type_is_proved() -> None:
    kept = {
        "CountsForAll": "STEP in update_models.py",
        "CountsUpdatesForAll": "CountsUpdatesForAll.made in update_models.py",
    }
    for found in run_ranks(each_reason, 2, list(kept), ["ddp"]):
        for (name, _), (passed, why) in found.items():
            assert passed, name
            assert f"it keeps state outside of the model ({kept[name]}), so a later call returns" in why, why
    for found in run_ranks(each_reason, 2, ["StepsForAll"], ["ddp"]):
        ((_, why),) = found.values()
        assert "keeps state outside of the model (StepsForAll.made in update_models.py)" in why, why
    for found in run_ranks(each_reason, 2, ["CountsForAll"], ["post_local_sgd"]):
        ((passed, why),) = found.values()
        assert passed
        assert "outside of the model (STEP in update_models.py)" in why, why
    for found in run_ranks(each_reason, 2, ["CountsAndDraws"], ["ddp"]):
        ((_, why),) = found.values()
        assert "it draws from a random generator that no seed" in why, why


@pytest.mark.ranks
def test_an_update_that_rounds_coarsely_is_not_compared_where_parameters_are_cut() -> None:
    later = "parameters, same samples"
    for found in run_ranks(each_noted, 2, ["Orthogonalises"], ["fsdp", "zero1"]):
        assert all(not failed for _, failed, _ in found.values()), found
        assert later in found["Orthogonalises", "zero1"][0]
        assert later not in found["Orthogonalises", "fsdp"][0]


def test_the_type_that_updates_compute_in_is_seen() -> None:
    own = update_models.Orthogonalises()
    for dtype in (torch.float64, torch.float32):
        assert narrower_type(lambda dtype=dtype: own.model().to(dtype), own.optimizer) == "bfloat16"  # type: ignore[misc]
        for usual in (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad):
            assert narrower_type(lambda dtype=dtype: own.model().to(dtype), usual) == ""  # type: ignore[misc]


@pytest.mark.ranks
def test_a_rate_that_is_estimated_from_all_parameters_is_found_after_several_updates() -> None:
    for found in run_ranks(each_ended, 2, ["EstimatesRate"], ["zero1", "fsdp", "ddp"]):
        assert found.pop(("EstimatesRate", "ddp")) == ("ok", "")
        for (_, strategy), (status, reason) in found.items():
            said = f"{strategy} divides the update among ranks, but DAdaptation computes one update of all parameters"
            assert (status, said in reason) == ("skipped", True), (strategy, reason)


@pytest.mark.ranks
def test_a_forward_that_writes_only_after_an_update_is_named() -> None:
    for found in run_ranks(each_noted, 2, ["FollowsItself"], ["post_local_sgd"]):
        for passed, failed, fault in found.values():
            assert "final replicas" in failed - passed
            assert "the model's forward writes into its own parameters (second.weight, second.bias)" in fault


@pytest.mark.ranks
def test_parts_of_an_update_that_draws_are_unproved() -> None:
    names = ["DrawsInOptimizer", "DrawsBeforeUpdate", "DrawsMildly", "DrawsAlike"]
    for found in run_ranks(each_reason, 2, names, ["zero1", "fsdp"]):
        for key, (passed, why) in found.items():
            assert passed, key
            assert why.startswith("the update draws random numbers, and each rank draws them for its own"), (
                key,
                why,
            )


@pytest.mark.ranks
def test_an_update_that_draws_alike_on_all_ranks_is_proved() -> None:
    for found in run_ranks(each_reason, 2, ["DrawsAlike"], ["ddp", "master"]):
        assert set(found.values()) == {(True, "")}, found


@pytest.mark.ranks
def test_an_update_of_all_parameters_together_is_found_though_it_draws() -> None:
    for found in run_ranks(each_ended, 2, ["ClipsAndDraws"], ["zero1"]):
        status, reason = found["ClipsAndDraws", "zero1"]
        assert (status, "Private computes one update of all parameters" in reason) == ("skipped", True)


@pytest.mark.ranks
def test_an_update_that_exchanges_and_is_as_one_process_makes_it_is_proved() -> None:
    for found in run_ranks(each_reason, 2, ["MeansAgain", "Shares"], ["ddp", "master"]):
        assert set(found.values()) == {(True, "")}, found


@pytest.mark.parametrize("name", ["DrawsInOptimizer", "DrawsBeforeUpdate", "DrawsInStep", "DropsOut"])
def test_what_updates_draw_is_drawn_alike_in_one_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    records, _ = proved(own_case(FILE, name, "single", 1))
    assert {(each.passed, each.note) for each in records if each.compared.startswith(("up", "param"))} == {
        (True, "")
    }


@pytest.mark.ranks
def test_a_model_that_seeds_by_rank_is_named() -> None:
    for found in run_ranks(each_noted, 2, ["SeededByRank"], ["ddp", "fsdp"]):
        for passed, failed, fault in found.values():
            assert (passed, failed) == (set(), {"initial state"})
            assert fault.startswith("model() returns different parameters on each rank")


@pytest.mark.ranks
def test_steps_in_which_ranks_would_wait_for_one_another_are_named() -> None:
    said = {
        "UpdatesOnFirstRank": "more often on one rank than on another",
        "PenalizesOnFirstRank": "more often on one rank than on another",
        "SkipsByItsLoss": "computes with its rank's samples after backward()",
    }
    for found in run_ranks(each_noted, 2, list(said), ["ddp", "zero1", "fsdp", "master"]):
        for (name, strategy), (passed, failed, fault) in found.items():
            assert (passed, failed) == ({"initial state"}, {"parameters, same samples"}), (name, strategy)
            assert said[name] in fault, (name, strategy, fault)


@pytest.mark.ranks
def test_updates_that_follow_the_rank_are_named() -> None:
    names = ["RateByRank", "ScheduleByRank", "ScalesByRank", "ScalesInStepByRank"]
    for found in run_ranks(each_noted, 2, names, ["ddp", "master"]):
        for (name, strategy), (_, failed, fault) in found.items():
            assert failed == {"final replicas"}, (name, strategy)
            what = "the step" if name == "ScalesInStepByRank" else "the update"
            assert fault.startswith(f"{what} gives different parameters on each rank"), (
                name,
                strategy,
                fault,
            )
    for found in run_ranks(each_noted, 2, names[:3], ["zero1", "fsdp", "post_local_sgd"]):
        for (name, strategy), (_, failed, fault) in found.items():
            compared = "parameters, averaged" if strategy == "post_local_sgd" else "parameters, same samples"
            assert failed & {compared, "update, same gradients"}, (name, strategy)
            assert fault.startswith("the update gives different parameters on each rank"), (
                name,
                strategy,
                fault,
            )


def test_an_optimizer_next_to_step_is_given_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    problem = inspect_workload(own_case(FILE, "NamesItP", "single", 1))["problem"]
    assert (
        "optimizer() is given the model as 'p'. To get the parameters, write optimizer(self, parameters)"
        in problem
    )


def each_note(
    rank: int, processes: int, names: list[str], strategies: list[str]
) -> dict[tuple[str, str], list[str]]:
    """Return the notes on each class's comparisons under each strategy."""
    found = {}
    for name in names:
        for strategy in strategies:
            records, _ = proved(own_case(FILE, name, strategy, 2), rank, processes)
            found[name, strategy] = [each.note for each in records]
            assert {each.compared for each in records if not each.passed and not each.note} == set()
    return found


SEARCHING = "ddp find_unused_parameters=true"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "strategies"),
    [
        ("BranchesByData", ["ddp", "zero1", "post_local_sgd", f"{SEARCHING} static_graph=true", SEARCHING]),
        ("BranchesInStep", ["ddp", "zero1", SEARCHING]),
        ("DetachesByRank", ["ddp", "zero1"]),
    ],
)
def test_parameters_that_only_some_ranks_use_are_named_with_the_setting(
    name: str, strategies: list[str]
) -> None:
    used = "0.weight and 0.bias" if name == "DetachesByRank" else "more.weight and more.bias"
    for found in run_ranks(each_ended, 2, [name], strategies):
        for (_, strategy), (status, reason) in found.items():
            owner, *given = strategy.split()
            setting = "static_graph = false" if given else "find_unused_parameters = true"
            expected = f"do not use {used}: set options.{owner}.{setting}, or"
            if strategy == SEARCHING:
                assert (status, reason) == ("ok", "")
            else:
                assert (status, expected in reason) == ("failed", True), (strategy, reason)


@pytest.mark.ranks
def test_a_model_of_which_ranks_use_different_parts_is_left_to_other_strategies_than_fsdp() -> None:
    for found in run_ranks(each_ended, 2, ["BranchesByData"], ["fsdp", "master"]):
        assert found["BranchesByData", "master"] == ("ok", "")
        status, reason = found["BranchesByData", "fsdp"]
        assert (status, "leaves out more.weight and more.bias in some steps" in reason) == (
            "skipped",
            True,
        ), reason


@pytest.mark.ranks
def test_gradients_that_are_not_finite_on_one_rank_are_named() -> None:
    why = {
        "SpoiledSamples": "its samples hold NaN or infinite values",
        "InfiniteByRank": "have loss() give a finite one",
    }
    for found in run_ranks(each_noted, 2, list(why), ["ddp", "zero1", "fsdp", "master", "post_local_sgd"]):
        for (name, strategy), (_, failed, fault) in found.items():
            assert failed == {"gradients, same shards"}, (name, strategy)
            assert fault.startswith("on rank 1 the gradient of 0.weight, 0.bias and 2 more is not finite"), (
                fault
            )
            assert fault.endswith(why[name]), (name, strategy, fault)
    for found in run_ranks(each_note, 2, ["SpoiledInStep"], ["ddp", "fsdp"]):
        for notes in found.values():
            assert any(each.endswith("Samples of rank 1 hold NaN or infinite values") for each in notes), (
                notes
            )
    (found,) = run_ranks(each_noted, 1, ["SpoiledBehind"], ["data_parallel"])
    _, failed, fault = found["SpoiledBehind", "data_parallel"]
    assert "gradients, same shards" in failed
    assert fault.startswith("on replica 1 the gradient of 0.weight, 0.bias and 2 more is not finite"), fault


@pytest.mark.ranks
def test_hooks_that_see_the_whole_batch_are_held_against_one_process() -> None:
    (found,) = run_ranks(each_noted, 1, ["Clamped"], ["data_parallel"])
    passed, failed, _ = found["Clamped", "data_parallel"]
    assert (failed, "gradients, same shards" in passed, "gradients, whole batch" in passed) == (
        set(),
        False,
        True,
    )
    for found in run_ranks(each_noted, 2, ["Clamped"], ["ddp"]):
        passed, failed, _ = found["Clamped", "ddp"]
        assert (failed, "gradients, same shards" in passed, "gradients, whole batch" in passed) == (
            set(),
            True,
            False,
        )


@pytest.mark.ranks
def test_gradients_that_the_graph_limits_are_held_against_one_process_too() -> None:
    names = ["LimitsInGraph", "LimitsOutput"]
    (found,) = run_ranks(each_noted, 1, names, ["data_parallel"])
    for passed, failed, _ in found.values():
        assert (failed, "gradients, same shards" in passed, "gradients, whole batch" in passed) == (
            set(),
            False,
            True,
        )
    for found in run_ranks(each_note, 2, names, ["ddp"]):
        for notes in found.values():
            assert any(
                note.startswith("the loss is a mean over samples, but its gradient is not") for note in notes
            )


def replicas_planted(rank: int, processes: int, planted: str) -> set[str]:
    """Return the comparisons that fail if replicas in threads go wrong."""
    from ddpbench.strategies.data_parallel import ThreadedReplica

    right = ThreadedReplica.gradients_of

    def wrong(self: Any, inputs: Any, targets: Any) -> torch.Tensor:
        if planted == "lost shard":
            return right(self, [each[: len(each) // 2] for each in inputs], targets)
        loss = right(self, inputs, targets)
        for each in self.job.model.parameters():
            each.grad.mul_(2)
        return loss

    ThreadedReplica.gradients_of = wrong  # type: ignore[method-assign]
    found, _ = proved(own_case(FILE, "LimitsInGraph", "data_parallel", 2), rank, processes)
    return {each.compared for each in found if not each.passed}


@pytest.mark.ranks
@pytest.mark.parametrize("planted", ["lost shard", "scale"])
def test_gradients_that_the_graph_limits_hide_no_fault(planted: str) -> None:
    (failed,) = run_ranks(replicas_planted, 1, planted)
    assert "gradients, same shards" in failed


@pytest.mark.ranks
def test_a_step_without_backward_calls_the_module_that_it_is_given() -> None:
    (found,) = run_ranks(each_reason, 1, ["Evolves"], ["data_parallel"])
    assert set(found.values()) == {(True, "")}
    (around,) = run_ranks(each_noted, 1, ["EvolvesAround"], ["data_parallel"])
    ((_, failed, fault),) = around.values()
    assert failed == {"parameters, same samples"}
    assert fault.startswith("step() trains without calling the module that it is given")


@pytest.mark.ranks
def test_a_coin_that_falls_alike_under_two_seeds_is_a_random_number() -> None:
    names = ["TossesCoin", "TossesCoinInStep"]
    for found in run_ranks(each_ended, 2, names, ["ddp", "fsdp"]):
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}
    (found,) = run_ranks(each_ended, 1, names, ["data_parallel"])
    assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
def test_parameters_over_one_memory_are_compared_with_a_model_that_has_them_so() -> None:
    for found in run_ranks(each_ended, 2, ["TiesMemory"], ["ddp", "master"]):
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
def test_parameters_that_begin_to_train_later_are_named() -> None:
    for found in run_ranks(each_noted, 2, ["ThawsInStep"], ["ddp", "zero1", "master"]):
        for (_, strategy), (_, failed, fault) in found.items():
            assert ("final replicas" if strategy != "zero1" else "parameters, same samples") in failed
            assert fault.startswith("0.weight, 0.bias begin to train after the model was wrapped")
    (found,) = run_ranks(each_ended, 1, ["ThawsInStep"], ["data_parallel", "single"])
    assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
def test_parameters_that_are_frozen_or_thawed_midway_are_proved_in_one_process() -> None:
    (found,) = run_ranks(each_ended, 1, ["ThawsOptimized", "Freezes", "ThawsBeforeUpdate"], ["single"])
    assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
def test_parameters_that_are_frozen_midway_are_named_where_replicas_differ() -> None:
    for found in run_ranks(each_noted, 2, ["Freezes"], ["ddp"]):
        ((_, failed, fault),) = found.values()
        assert failed == {"final replicas"}
        assert fault.startswith("the model trains different parameters after some steps")


@pytest.mark.ranks
def test_a_step_that_freezes_parameters_is_told_that_ddp_waits_for_their_gradients() -> None:
    strategies = ["ddp", "zero1", "ddp find_unused_parameters=true", "fsdp", "master"]
    for found in run_ranks(each_ended, 2, ["FreezesInStep"], strategies):
        for strategy in ("ddp", "zero1"):
            status, reason = found.pop(("FreezesInStep", strategy))
            assert status == "failed"
            assert "DDP waits for the gradients of all parameters" in reason
            assert f"0.weight: set options.{strategy}.find_unused_parameters = true" in reason
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


def of_inspection(rank: int, processes: int, name: str) -> dict[str, Any]:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes)}
    return inspect_workload(own_case(FILE, name, "fsdp", 2))


@pytest.mark.ranks
def test_parameters_that_are_thawed_are_not_left_out_by_steps() -> None:
    (facts,) = run_ranks(of_inspection, 1, "ThawsBeforeUpdate")
    assert "step_s" in facts
    assert "dropped" not in facts
    assert _dropped([{"a"}, {"a", "b"}], [{"a", "b"}, {"a", "b"}]) == ["b"]
    assert _dropped([{"a"}, {"a", "b"}], [{"a"}, {"a", "b"}]) == []


def test_replicas_that_differ_after_timed_steps_have_a_parameter_that_began_to_train_named() -> None:
    from ddpbench.worker.rank.measuring import trained_late

    training: Any = SimpleNamespace(trained_names=("weight",))
    assert trained_late(training, nn.ModuleDict({"network": nn.Linear(2, 2)})) == ["bias"]


def test_hooks_of_replicas_in_threads_are_named_where_one_fails() -> None:
    from ddpbench.strategies import load_strategy
    from ddpbench.worker.verify.refusals import failure

    for name, ranks, hooks in (("data_parallel", 2, True), ("data_parallel", 2, False), ("ddp", 2, True)):
        training: Any = SimpleNamespace(strategy=load_strategy(name), hooks_see_outputs=hooks)
        training.case = SimpleNamespace(world_size=ranks, strategy=name)
        training.options = load_strategy(name).options()
        said = failure(IndexError("list index out of range"), training)
        assert ("forward hooks" in said) is (name == "data_parallel" and hooks), said


@pytest.mark.ranks
def test_sparse_buffers_are_left_to_strategies_that_send_none() -> None:
    names = ["SparseGraph", "SparseRows"]
    for found in run_ranks(each_ended, 2, names, ["ddp", "zero1", "master", "fsdp"]):
        for (name, strategy), (status, reason) in found.items():
            if strategy == "fsdp":
                assert (status, reason) == ("ok", ""), name
            else:
                said = "the buffer neighbours is a sparse tensor, which cannot be sent" in reason
                assert (status, said) == ("skipped", True), (name, strategy, reason)
    (found,) = run_ranks(each_ended, 1, names, ["data_parallel", "single"])
    assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
def test_buffers_that_follow_the_samples_are_no_fault_of_a_strategys() -> None:
    names = ["Observes", "ObservesInStep", "ObservesInParts"]
    for found in run_ranks(each_ended, 2, names, ["ddp", "zero1", "fsdp", "master"]):
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}
    (found,) = run_ranks(each_ended, 1, names, ["data_parallel", "single"])
    assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


def unlike(
    rank: int, processes: int, name: str, strategy: str, options: dict[str, Any] | None = None
) -> list[tuple[str, bool, str]]:
    """Return each comparison of a case whose last rank trains on wrong samples."""
    from ddpbench.strategies.own_step import OwnStep
    from ddpbench.strategies.trees import map_tensors

    made = OwnStep._made

    def other(self: Any, batch: Any) -> Any:
        return made(self, map_tensors(lambda each: each * 1.5, batch) if rank == processes - 1 else batch)

    OwnStep._made = other  # type: ignore[method-assign]
    found, _ = proved(own_case(FILE, name, strategy, processes, options=options), rank, processes)
    return [(one.compared, one.passed, one.note) for one in found]


@pytest.mark.ranks
def test_buffers_that_follow_the_samples_hide_no_fault() -> None:
    for found in run_ranks(unlike, 2, "ObservesInStep", "ddp"):
        assert not next(passed for compared, passed, _ in found if compared == "parameters, same samples")


ROUNDED = ["ddp compression=fp16", "ddp compression=bf16"]


@pytest.mark.ranks
def test_gradients_sent_in_a_narrower_type_pass_in_own_steps_too() -> None:
    for found in run_ranks(each_ended, 2, ["StepsPlainly", "StepsByAdam"], ROUNDED):
        assert {key: value for key, value in found.items() if value != ("ok", "")} == {}


@pytest.mark.ranks
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_gradients_sent_in_a_narrower_type_hide_no_fault(compression: str) -> None:
    for name in ("StepsPlainly", "StepsByAdam"):
        for found in run_ranks(unlike, 2, name, "ddp", {"compression": compression}):
            assert not next(passed for compared, passed, _ in found if compared == "parameters, same samples")


@pytest.mark.ranks
def test_a_scalar_of_each_replica_is_named_with_what_to_do() -> None:
    (found,) = run_ranks(each_ended, 1, ["ReturnsScalar", "TakesMeanOfScalar"], ["data_parallel", "single"])
    status, reason = found.pop(("ReturnsScalar", "data_parallel"))
    assert (status, reason.endswith("from each replica: take the mean() of what the model returns")) == (
        "failed",
        True,
    ), reason
    assert {key: value for key, value in found.items() if value != ("ok", "")} == {}
