"""Users' models stay as they are: types, sources of randomness and settings are kept, or the change is reported."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.records import Proof
from ddpbench.runtime.trial import summary_of, within_own
from ddpbench.spec import Case, PlannedCase
from ddpbench.strategies.base import CannotTrainError
from tests.ranks import run_ranks
from tests.worker.own_cases import own_case

FILE = Path(__file__).parent / "odd_models.py"
THREADED = Path(__file__).parent / "own_threads.py"
DOUBLE = "float64 (cast from bfloat16 and float32)"
BOTH = "bfloat16 and float32"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the threads and variables of this process, which a file of classes changes."""
    threads, variables = torch.get_num_threads(), dict(os.environ)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    yield
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(variables)
    for file in (FILE, THREADED):
        sys.modules.pop(file.stem, None)


def case_of(name: str, strategy: str = "single", ranks: int = 1, dtype: str = "own", **options: Any) -> Case:
    return own_case(FILE, name, strategy, ranks, dtype=dtype, options=options)


def training_of(case: Case, rank: int = 0, processes: int = 1) -> Any:
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.training import Training

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes)}
    place = JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    return Training(case, place, torch.device("cpu"))


def proved(case: Case, rank: int = 0, processes: int = 1) -> tuple[list[Proof], str]:
    """Return a case's comparisons, and the sentence on the model."""
    from ddpbench.worker.training.control import AloneControl, GroupControl
    from ddpbench.worker.verify.proof import Prover

    control: Any = AloneControl() if processes == 1 else GroupControl(torch.distributed.new_group(), rank)
    prover = Prover(training_of(case, rank, processes), control, lambda: None)
    return [one for one in prover.run() if isinstance(one, Proof)], prover.fault_of_model


def of_two(
    rank: int, processes: int, name: str, strategy: str
) -> tuple[list[tuple[str, str, bool, str]], str]:
    proofs, fault = proved(case_of(name, strategy, processes), rank, processes)
    return [(one.compared, one.dtype, one.passed, one.note) for one in proofs], fault


def accumulating(rank: int, processes: int, name: str) -> list[tuple[str, bool, float]]:
    proofs, _ = proved(case_of(name, "ddp", processes, accumulate=2), rank, processes)
    return [(one.compared, one.passed, one.error) for one in proofs]


def inspected(name: str, **settings: Any) -> dict[str, Any]:
    from ddpbench.worker.verify.inspection import inspect_workload

    return inspect_workload(case_of(name, **settings))


def skipped(facts: dict[str, Any], *cases: Case) -> list[str | None]:
    """Return why each of these cases is skipped, once its class was tried; None for those that run."""
    name = cases[0].workload_with_options
    planned = [*(PlannedCase(case=case) for case in cases), PlannedCase(case=case_of("Mixed"))]
    return [one.skip_reason for one in within_own(planned, {name: facts})[:-1]]


@pytest.mark.parametrize(
    ("name", "types"),
    [("Complex", ["complex64", "float32"]), ("Mixed", ["bfloat16", "float32"]), ("Double", ["float64"])],
)
def test_a_model_keeps_the_types_that_its_class_gives_it(name: str, types: list[str]) -> None:
    training = training_of(case_of(name))
    model = training.fresh_model()
    assert sorted({str(each.dtype).removeprefix("torch.") for each in model.parameters()}) == types
    assert training.changes == ()
    inputs, _ = next(training.batches())
    assert inputs[0].dtype == (torch.float64 if name == "Double" else torch.float32)


def test_a_dtype_that_is_set_casts_and_is_told_and_complex_numbers_stay_complex() -> None:
    training = training_of(case_of("Complex", dtype="float64"))
    model = training.fresh_model()
    assert {each.dtype for each in model.parameters()} == {torch.complex128, torch.float64}
    next(training.batches())
    assert training.changes == (
        'dtype = "float64" casts the model\'s parameters from complex64 to complex128 and float32 to float64',
        'dtype = "float64" casts its batches from float32 to float64',
    )
    facts = inspected("Mixed", dtype="float32")
    assert facts["types"] == ("float32",)
    line = summary_of("own.py:Mixed", facts)
    assert line.endswith('\n  dtype = "float32" casts the model\'s parameters from bfloat16 to float32')


def test_the_types_of_a_model_are_in_the_line_on_it() -> None:
    facts = inspected("Mixed")
    assert summary_of("own.py:Mixed", facts).startswith(f"workload own.py:Mixed: 676 parameters ({BOTH}), ")


def test_a_batch_of_another_type_than_the_model_is_refused_with_what_to_do() -> None:
    problem = inspected("DoubleBatch")["problem"]
    assert "the model's parameters are float32 and its batch holds float64" in problem
    assert 'set dtype = "float32", which casts both' in problem
    assert "problem" not in inspected("DoubleBatch", dtype="float32")


def test_what_is_proved_says_in_which_types() -> None:
    proofs, _ = proved(case_of("Mixed"))
    assert {one.dtype for one in proofs} == {DOUBLE, BOTH}
    assert all(one.passed for one in proofs)
    limits = {one.dtype: one.tolerance for one in proofs if one.compared == "gradients, same shards"}
    assert limits == {DOUBLE: 1e-10, BOTH: 16 * 2**-8}  # of bfloat16: 8 bits of fraction, half a unit
    double, _ = proved(case_of("Double"))
    assert {one.dtype for one in double} == {"float64"}


def test_where_float64_cannot_be_computed_the_update_is_compared_in_the_types_there_are() -> None:
    proofs, _ = proved(case_of("OnlyNarrow"))
    left_out, *others = proofs
    assert left_out.note.startswith("the workload computes in bfloat16 only, so float64 is not compared (")
    (update,) = [one for one in others if one.compared == "update, same gradients"]
    assert (update.dtype, update.tolerance, update.note) == ("bfloat16", 0.5, "")


def half_the_gradient(rank: int, processes: int) -> list[tuple[str, str, bool]]:
    """Prove a strategy that forgets the imaginary part of its averages."""
    from ddpbench.strategies.master import MasterReplica

    right = MasterReplica.gradients_of

    def wrong(self: Any, inputs: Any, targets: Any) -> torch.Tensor:
        loss: torch.Tensor = right(self, inputs, targets)
        for each in self.job.model.parameters():
            if each.is_complex():
                each.grad.imag.zero_()
        return loss

    MasterReplica.gradients_of = wrong  # type: ignore[method-assign]
    proofs, _ = proved(case_of("Complex", "master", processes), rank, processes)
    return [(one.compared, one.dtype, one.passed) for one in proofs]


@pytest.mark.multiprocess
def test_complex_models_are_proved_as_complex() -> None:
    for strategy in ("ddp", "master"):
        for proofs, _ in run_ranks(of_two, 2, "Complex", strategy):
            assert all(passed for _, _, passed, _ in proofs)
            assert {dtype for _, dtype, _, _ in proofs} == {
                "complex128 and float64 (cast from complex64 and float32)",
                "complex64 and float32",
            }
    for proofs in run_ranks(half_the_gradient, 2):
        verdicts = {passed for compared, _, passed in proofs if compared == "gradients, same shards"}
        assert verdicts == {False}


@pytest.mark.parametrize(
    ("name", "strategy", "options", "said"),
    [
        (
            "Mixed",
            "zero1",
            {},
            r"ZeroRedundancyOptimizer takes parameters of one type, .* bfloat16 and float32: ",
        ),
        ("Mixed", "fsdp", {}, r"fsdp needs parameters of one type .*, or set dtype = \"float32\""),
        (
            "Complex",
            "fsdp",
            {},
            r"fsdp needs parameters of one type .* complex64 and float32 .*: use ddp or master$",
        ),
        ("Mixed", "ddp", {"compression": "powersgd"}, r"PowerSGD orthogonalizes .*: set another compression"),
        ("Frozen", "zero1", {}, ""),
        ("Frozen", "fsdp", {}, ""),
        ("Mixed", "master", {}, ""),
        ("Mixed", "data_parallel", {}, ""),
    ],
)
def test_what_cannot_train_such_types_is_skipped_with_the_reason(
    name: str, strategy: str, options: dict[str, Any], said: str
) -> None:
    (reason,) = skipped(inspected(name), case_of(name, strategy, 2, **options))
    assert re.search(said, reason or "") if said else reason is None


def test_autocast_of_a_class_without_float32_is_skipped_with_the_reason() -> None:
    narrow = replace(case_of("Double"), precision="bf16")
    (reason,) = skipped(inspected("Double"), narrow)
    assert str(reason).startswith(
        "autocast leaves float64 as it is: bf16 needs a model with float32 parameters"
    )
    mixed = replace(case_of("Mixed"), precision="bf16")
    assert skipped(inspected("Mixed"), mixed) == [None]


@pytest.mark.multiprocess
def test_zero1_leaves_frozen_parameters_of_another_type_out() -> None:
    for proofs, _ in run_ranks(of_two, 2, "Frozen", "zero1"):
        assert all(passed for _, _, passed, _ in proofs)
        assert "update, same gradients" in {compared for compared, *_ in proofs}


def threaded() -> Case:
    return replace(case_of("Double"), workload=f"{THREADED}:Threaded")


TOLD_OF_THREADS = [
    "the class's code asks torch for 2 threads: set back to threads_per_rank = 1, as the experiment says",
    "the class's code sets OMP_NUM_THREADS = 2: put back to 1",
]


def test_threads_that_a_class_sets_on_import_are_set_back_and_told() -> None:
    torch.set_num_threads(1)
    training = training_of(threaded())
    assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (1, "1")
    assert list(training.changes) == TOLD_OF_THREADS


def test_settings_that_a_class_has_changed_are_told_when_it_is_tried() -> None:
    from ddpbench.worker.verify.inspection import inspect_workload

    torch.set_num_threads(1)
    facts = inspect_workload(threaded())
    assert facts["changes"] == TOLD_OF_THREADS
    assert summary_of("own.py:Threaded", facts).endswith("\n  ".join(["", *TOLD_OF_THREADS]))


def test_cores_and_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpbench.worker.training.kept_settings import settings_kept

    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("ASKED", "yes")
    cores, said = os.sched_getaffinity(0), []
    with settings_kept(replace(case_of("Mixed"), env_json='{"ASKED": "yes"}'), said.append):
        os.sched_setaffinity(0, {min(cores)})
        os.environ["OPENBLAS_NUM_THREADS"] = "4"
        os.environ["MY_OWN"] = "1"
        del os.environ["ASKED"]
    assert os.sched_getaffinity(0) == cores
    assert (os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.pop("MY_OWN"), os.environ["ASKED"]) == (
        None,
        "1",
        "yes",
    )
    told_of = [one for one in said if "core" not in one]
    assert told_of == [
        "the class's code sets OPENBLAS_NUM_THREADS = 4: put back to unset",
        "the class's code removes ASKED: put back to yes",
    ]
    assert (len(cores) == 1) == (len(said) == 2)


@pytest.mark.parametrize("name", ["DrawsFromNumpy", "DrawsFromRandom"])
def test_what_a_forward_draws_from_random_or_numpy_is_seeded_as_torch_is(name: str) -> None:
    proofs, _ = proved(case_of(name))
    same = [one for one in proofs if one.compared == "gradients, same shards"]
    assert [(one.passed, one.note, one.error) for one in same] == [(True, "", 0.0)] * 2
    assert {one.passed for one in proofs} == {True}


@pytest.mark.multiprocess
def test_a_model_whose_gradients_differ_each_time_is_named_and_not_the_strategy() -> None:
    for proofs, fault in run_ranks(of_two, 2, "DrawsFromItsOwn", "ddp"):
        assert ({passed for _, _, passed, _ in proofs}, fault) == ({True}, "")
        (note,) = {note for compared, *_, note in proofs if compared == "gradients, same shards"}
        assert note.startswith(
            "the model gives different gradients from the same state, batch and seeds: it draws from a random "
        )


@pytest.mark.multiprocess
def test_what_accumulates_is_held_against_the_same_parts_of_a_batch() -> None:
    for proofs in run_ranks(accumulating, 2, "PartsMatter"):
        assert all(passed for _, passed, _ in proofs)
        assert [error < 1e-6 for compared, _, error in proofs if compared == "gradients, same shards"] == [
            True
        ] * 2


def test_an_update_after_a_rate_of_zero_is_compared_from_the_gradients_it_is_made_of() -> None:
    proofs, _ = proved(case_of("WarmedUp"))
    assert {one.passed for one in proofs} == {True}
    assert [one.error < 1e-5 for one in proofs if one.compared == "update, same gradients"] == [True] * 2


def test_a_step_whose_results_differ_each_time_is_named_and_its_base_case_is_not_lost() -> None:
    proofs, _ = proved(case_of("StepDraws"))
    (note,) = [
        one.note for one in proofs if (one.compared, one.dtype) == ("parameters, same samples", "float64")
    ]
    assert note.startswith(
        "the step gives different parameters from the same state, batch and seeds: it draws from a "
    )
    assert {one.passed for one in proofs} == {True}


def test_state_that_a_model_keeps_between_forwards_does_not_fail_a_proof() -> None:
    proofs, _ = proved(case_of("Stateful"))
    assert [one.note for one in proofs if one.note] == []
    assert {one.passed for one in proofs} == {True}
    assert [one.error < 1e-4 for one in proofs if one.compared == "gradients, whole batch"] == [True, True]


def test_state_that_changes_slowly_is_not_taken_for_a_loss_that_is_no_mean() -> None:
    proofs, _ = proved(case_of("SlowlyStateful", "data_parallel", 4))
    assert {one.passed for one in proofs} == {True}
    notes = {(one.compared, one.dtype): one.note for one in proofs}
    assert notes["gradients, whole batch", "float32"] == ""
    assert not [note for note in notes.values() if "not a mean over samples" in note]


def test_weights_that_a_forward_writes_are_named_and_the_base_case_is_not_lost() -> None:
    proofs, fault = proved(case_of("Renormalised"))
    assert ({one.passed for one in proofs}, fault) == ({True}, "")
    notes = {one.compared: one.note for one in proofs if one.note}
    assert list(notes) == ["update, same gradients"]
    assert notes["update, same gradients"].startswith(
        "the model's forward writes into its own parameters (0.weight), as nn.Embedding(max_norm=...) does"
    )
    facts = inspected("Renormalised")
    assert summary_of("own.py:Renormalised", facts).endswith("; its forward writes into 0.weight")
    assert facts["writes"] == ["network.0.weight"]


@pytest.mark.multiprocess
def test_replicas_that_differ_because_a_forward_writes_weights_are_the_models_fault() -> None:
    for proofs, fault in run_ranks(of_two, 2, "Renormalised", "ddp"):
        failed = [(compared, note) for compared, _, passed, note in proofs if not passed]
        assert [compared for compared, _ in failed] == ["final replicas"] * 2
        assert all(note == fault for _, note in failed)
        assert "(0.weight)" in fault


@pytest.mark.multiprocess
def test_initial_weights_of_numpy_are_alike_on_all_ranks_and_others_are_named() -> None:
    for proofs, _ in run_ranks(of_two, 2, "MadeByNumpy", "ddp"):
        assert all(passed for _, _, passed, _ in proofs)
    for proofs, fault in run_ranks(of_two, 2, "MadeByItsOwn", "ddp"):
        assert fault.startswith(
            "two calls of model() give different parameters under the same seeds: it draws from a "
        )
        assert (proofs[0][0], proofs[0][2], proofs[0][3]) == ("initial state", False, fault)


def test_a_model_that_drops_layers_is_skipped_under_fsdp_and_told() -> None:
    facts = inspected("Dropping")
    assert "problem" not in facts
    by_blocks, whole = case_of("Dropping", "fsdp", 2), case_of("Dropping", "fsdp", 2, wrap="whole")
    reason, other, ddp = skipped(facts, by_blocks, whole, case_of("Dropping", "ddp", 2))
    assert re.match(
        r"the model leaves out layers\.\d.* in some steps, but fsdp's ranks gather every block", str(reason)
    )
    assert other == reason  # as one block, gradients of different layers would be reduced as if of the same
    assert "whole" not in str(reason)
    assert ddp is None
    assert "; its steps leave out different parameters (layers." in summary_of("own.py:Dropping", facts)


def test_objects_in_batches_are_proved_with() -> None:
    for proofs, fault in run_ranks(of_two, 2, "Notes", "ddp"):
        assert proofs
        assert all(passed for _, _, passed, _ in proofs), proofs
        assert not fault


def not_to_be_pickled(rank: int, processes: int) -> str:
    with pytest.raises(CannotTrainError) as error:
        proved(case_of("NotesInPlace", "ddp", processes), rank, processes)
    return str(error.value)


def test_what_cannot_be_pickled_in_batches_is_said_on_all_ranks() -> None:
    for reason in run_ranks(not_to_be_pickled, 2):
        assert reason.startswith("its batches hold an object of builtins.function, which cannot be pickled: ")


@pytest.mark.parametrize("name", ["EndsInDouble", "EndsInDoubleInStep"])
def test_a_class_that_ends_the_process_in_float64_is_proved_in_its_own_type(name: str) -> None:
    proofs, _ = proved(case_of(name))
    assert any("SystemExit: float32 only" in one.note for one in proofs)
    assert all(one.passed for one in proofs)


def test_a_step_that_ends_the_process_among_two_ranks_is_blamed() -> None:
    problem = inspected("EndsAmongTwo")["problem"]
    assert ": its step as rank 0 of 2 failed: SystemExit: 3" in problem
    assert "your code ends the process" in problem


def test_a_step_that_waits_for_another_rank_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpbench.worker.verify import inspection

    monkeypatch.setattr(inspection, "STREAMS_S", 0.5)
    found = inspected("WaitsAmongTwo")
    assert found["group"]
    assert "problem" not in found
