"""TensorFlow's strategies: twins equal the torch models, training equals one torch process's, and faults are seen.

TensorFlow is imported only in separate ranks: it sets up a process once, and keeps threads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.records import Proof
from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.strategies.frameworks import installed
from tests import ranks as real_ranks
from tests.ranks import run_ranks

STRATEGIES = ("tf_mirrored", "tf_multi_worker")
WORKLOADS = ("mlp:small", "cnn:small")
LOCAL_BATCH = 4
STEPS = 4
FLOAT64 = 1e-10
UPDATES = 1e-6
"""Error of Keras' learning rate and momentum, which are float32 in a float64 model too: each is off by up to 3e-8."""


def case_of(strategy: str, world_size: int, workload: str = "mlp:small", **options: Any) -> Case:
    chosen = load_strategy(strategy)
    return Case(
        workload=workload,
        strategy=strategy,
        algorithm=chosen.algorithm,
        schedule=chosen.schedule,
        options_json=json.dumps(chosen.options.model_validate(options).model_dump(mode="json")),
        backend="gloo" if chosen.uses_backend else "",
        world_size=world_size,
        local_batch=LOCAL_BATCH,
        global_batch=LOCAL_BATCH * world_size,
    )


def training_of(case: Case, rank: int, processes: int) -> Any:
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.training import Training

    place = JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    return Training(case, place, torch.device("cpu"))


def processes_of(strategy: str, world_size: int) -> int:
    return 1 if strategy == "tf_mirrored" else world_size


def proved(
    rank: int, processes: int, cases: list[Case], planted: tuple[str, ...] = ("",)
) -> list[dict[str, float]]:
    """Return the worst error relative to its bound, in every type, of each case under each planted fault."""
    from ddpbench.measure.blocks import AloneControl
    from ddpbench.worker.training.control import GroupControl
    from ddpbench.worker.verify.proof import Prover

    control = GroupControl(torch.distributed.new_group(), rank) if processes > 1 else AloneControl()
    found: list[dict[str, float]] = []
    for case in cases:
        training = training_of(case, rank, processes)
        for what in planted:
            with pytest.MonkeyPatch.context() as patch:
                PLANTS[what](patch)
                shares: dict[str, float] = {}
                for record in Prover(training, control, lambda: None).run():
                    if isinstance(record, Proof):
                        share = record.error / record.tolerance if record.tolerance else record.error
                        shares[record.compared] = max(shares.get(record.compared, 0.0), share)
                found.append(shares)
    return found


def _nothing(_: pytest.MonkeyPatch) -> None: ...


def _unscaled(patch: pytest.MonkeyPatch) -> None:
    """Do not scale a replica's mean loss to its share of the job's."""
    from ddpbench.strategies.frameworks.tensorflow.replica import TfReplica

    original = TfReplica._replica_loss

    def mean(self: Any, inputs: Any, targets: Any) -> Any:
        return original(self, inputs, targets) * self.job.world_size

    patch.setattr(TfReplica, "_replica_loss", mean)


def _whole_step_only(patch: pytest.MonkeyPatch) -> None:
    """Make timed steps compute another gradient than the parts that report it."""
    from ddpbench.strategies.frameworks.tensorflow.replica import TfReplica

    original = TfReplica._replica_gradients

    def more(self: Any, inputs: Any, targets: Any) -> Any:
        loss, gradients = original(self, inputs, targets)
        return loss, [1.01 * gradient for gradient in gradients]

    patch.setattr(TfReplica, "_replica_gradients", more)


def _other_momentum(patch: pytest.MonkeyPatch) -> None:
    from ddpbench.strategies.frameworks.tensorflow import replica

    original = replica.keras_sgd

    def other(optimizer: Any) -> Any:
        sgd = original(optimizer)
        sgd.momentum = 0.8
        return sgd

    patch.setattr(replica, "keras_sgd", other)


def _own_initial_values(patch: pytest.MonkeyPatch) -> None:
    from ddpbench.strategies.frameworks.tensorflow import replica

    patch.setattr(replica, "copy_to_keras", lambda model, twin: None)


def _handed(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    from ddpbench.strategies.frameworks.tensorflow.replica import TfReplica

    original = TfReplica._handed_over

    def handed(self: Any, inputs: Any, targets: Any) -> Any:
        return original(self, change(inputs), change(targets))

    patch.setattr(TfReplica, "_handed_over", handed)


def _dropped_sample(patch: pytest.MonkeyPatch) -> None:
    """Lose the last sample, and use the first twice."""
    _handed(patch, lambda values: torch.cat([values[:1], values[:-1]]))


def _reversed(patch: pytest.MonkeyPatch) -> None:
    """Give each replica other samples, but all of them: that is not a fault."""
    _handed(patch, lambda values: values.flip(0))


PLANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "": _nothing,
    "unscaled": _unscaled,
    "whole step only": _whole_step_only,
    "other momentum": _other_momentum,
    "own initial values": _own_initial_values,
    "dropped sample": _dropped_sample,
    "reversed": _reversed,
}
CAUGHT_BY = {
    "unscaled": {"gradients, same shards", "gradients, whole batch"},
    "whole step only": {"update, same gradients", "parameters, same samples"},
    "other momentum": {"parameters, same samples"},
    "own initial values": {"gradients, same shards", "gradients, whole batch"},
    "dropped sample": {"gradients, same shards", "gradients, whole batch"},
    "reversed": set(),
}
ranks = pytest.mark.ranks


@pytest.fixture(autouse=True)
def _time_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank imports TensorFlow, and traces each of its functions again."""
    monkeypatch.setattr(real_ranks, "TIMEOUT_S", 300.0)


tensorflow = pytest.mark.framework("tensorflow")


@tensorflow
@ranks
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_proved_to_train_as_one_process_does(strategy: str, world_size: int) -> None:
    cases = [case_of(strategy, world_size, workload) for workload in WORKLOADS]
    for result in run_ranks(proved, processes_of(strategy, world_size), cases):
        for shares in result:
            assert {"gradients, same shards", "update, same gradients", "parameters, same samples"} <= set(
                shares
            )
            assert all(share <= 1 for share in shares.values()), shares


@tensorflow
@ranks
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_proof_sees_what_is_planted(strategy: str) -> None:
    results = run_ranks(proved, processes_of(strategy, 2), [case_of(strategy, 2)], tuple(CAUGHT_BY))
    for result in results:
        for (what, caught_by), shares in zip(CAUGHT_BY.items(), result, strict=True):
            failed = {compared for compared, share in shares.items() if not share <= 1}
            assert failed >= caught_by, what
            assert bool(failed) == bool(caught_by), what


@tensorflow
@ranks
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("tf_mirrored", {"cross_device_ops": "reduction_to_one_device"}),
        ("tf_multi_worker", {"implementation": "ring", "bytes_per_pack": 65536}),
        ("tf_multi_worker", {"jit_compile": True}),
    ],
)
def test_options_train_alike(strategy: str, options: dict[str, Any]) -> None:
    (case,) = [case_of(strategy, 2, "cnn:small", **options)]
    for (shares,) in run_ranks(proved, processes_of(strategy, 2), [case]):
        assert all(share <= 1 for share in shares.values()), shares


def trained(rank: int, processes: int, case: Case) -> dict[str, Any]:
    """Return a few float64 steps, in full and in instrumented parts, with what both replicas report on the way."""
    from ddpbench.measure.clock import HostClock
    from ddpbench.measure.recorder import NullRecorder, StepRecorder
    from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
    from ddpbench.strategies.trees import cast
    from ddpbench.worker.training.training import StepLoop

    found: dict[str, Any] = {}
    for name, recorder in (("whole", NullRecorder()), ("parts", StepRecorder(HostClock()))):
        training = training_of(replace(case, dtype="float64"), rank, processes)
        model = training.fresh_model(torch.float64)
        replica = training.replica(model, recorder, distributed=processes > 1)
        batches = (cast(batch, torch.float64) for batch in training.batches())
        loop = StepLoop(replica, batches, recorder, Heartbeat(bytearray(PAGE_BYTES), 0))
        losses = []
        for number in range(STEPS):
            if isinstance(recorder, StepRecorder):
                recorder.begin_step(number)
            loop.step()
            if isinstance(recorder, StepRecorder):
                recorder.end_step()
            losses.append(loop.check_loss())
        records = recorder.records() if isinstance(recorder, StepRecorder) else []
        copies = [model.state_dict()[one].clone() for one in ("layers.0.weight", "head.bias")]
        replica.refresh_model()
        assert not torch.equal(copies[0], model.state_dict()["layers.0.weight"])
        replica.gradients_of(*next(batches))
        found[name] = {
            "losses": losses,
            "parameters": replica.own_parameters(),
            "held": replica.held_bytes(),
            "spans": [[span for span, _, _ in record.spans] for record in records],
            "reduces": _reduces(replica),
            "threads": _threads(),
        }
        replica.apply()
        replica.close()
        found[name]["closed"] = {key: value.clone() for key, value in model.state_dict().items()}
    return found


def _reduces(replica: Any) -> int:
    """Return how many all-reduces the full step's graph has on each device."""
    operations = replica._step.get_concrete_function(*replica._batch).graph.get_operations()
    return sum(one.type.startswith("CollectiveReduce") for one in operations) // replica._local


def _threads() -> tuple[int, int]:
    import tensorflow as tf

    threading = tf.config.threading
    return threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()


def in_one_process(case: Case) -> tuple[list[float], dict[str, torch.Tensor], dict[str, float]]:
    """Train in torch alone, over all processes' samples; return losses, parameters, and how far each moved."""
    from ddpbench.strategies.trees import cast

    processes = processes_of(case.strategy, case.world_size)
    trainings = [training_of(case, rank, processes) for rank in range(processes)]
    first = trainings[0]
    model = first.fresh_model(torch.float64)
    optimizer = first.make_optimizer(model.parameters())
    streams = [training.batches() for training in trainings]
    losses = []
    for _ in range(STEPS):
        shards = [cast(next(stream), torch.float64) for stream in streams]
        inputs, targets = (torch.cat(parts) for parts in zip(*shards, strict=True))
        loss = first.workload.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    before = dict(first.fresh_model(torch.float64).named_parameters())
    after = {name: each.detach() for name, each in model.named_parameters()}
    moved = {name: float(torch.linalg.vector_norm(after[name] - before[name].detach())) for name in after}
    return losses, after, moved


@tensorflow
@ranks
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_steps_are_those_of_one_torch_process(strategy: str) -> None:
    """Timed steps run in full, and instrumented ones run in parts."""
    case = case_of(strategy, 2, **({"bytes_per_pack": 1 << 16} if strategy == "tf_multi_worker" else {}))
    losses, parameters, moved = in_one_process(case)
    size = sum(each.numel() * 8 for each in parameters.values())
    for result in run_ranks(trained, processes_of(strategy, 2), case):
        for name, run in result.items():
            assert run["losses"][0] == pytest.approx(losses[0], rel=FLOAT64), name
            assert run["losses"] == pytest.approx(losses, rel=UPDATES), name
            for parameter, value in parameters.items():
                gap = torch.linalg.vector_norm(run["parameters"][parameter] - value)
                assert float(gap) <= UPDATES * moved[parameter], parameter
            replicas = 2 if strategy == "tf_mirrored" else 1
            assert run["held"] == (size * replicas,) * 3
            assert run["threads"] == (1, replicas)
            assert any(not torch.equal(run["closed"][key], run["parameters"][key]) for key in parameters)
        parts = ["data", "data", "forward", "backward", "synchronize", "optimizer"]
        assert result["parts"]["spans"] == [parts] * STEPS
        # Packs are of a layer each: from the last on, a bias does not fill one, and a weight (128 KiB or more) does.
        # If replicas are processes, the loss is summed by an all-reduce too.
        assert result["whole"]["reduces"] == (1 if strategy == "tf_mirrored" else 4 + 1)


def oom(rank: int, processes: int) -> str:
    from ddpbench.strategies.frameworks.tensorflow.devices import quiet_tensorflow
    from ddpbench.worker.rank.rank import out_of_memory

    tf = quiet_tensorflow()
    try:
        tf.zeros([1 << 46])
    except tf.errors.ResourceExhaustedError as error:
        return out_of_memory(error)
    return "there was room"


@tensorflow
@ranks
def test_a_rank_without_memory_says_so() -> None:
    (sentence,) = run_ranks(oom, 1)
    assert "use a smaller batch or model" in sentence, sentence


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make TensorFlow count as installed."""
    monkeypatch.setattr(installed, "_installed", lambda names: (names[0], "2.21.0"))
    monkeypatch.setattr(installed, "_importable", lambda module: True)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": "gpt:nano"}, ["cannot train a torch model", "mlp and cnn", "gpt:nano"]),
        ({"workload": "train.py:Mine"}, ["cannot train a torch model", "train.py:Mine"]),
        ({"device": "cuda"}, ['device = "cpu"']),
        ({"precision": "bf16"}, ["autocast", '"full"']),
        ({"dtype": "bfloat16"}, ["float32 and float64"]),
        ({"evaluation": True}, ["leave out evaluation"]),
        ({"checkpoint": True}, ["leave out checkpoint"]),
        ({"recovery": "rank"}, ["leave out recovery"]),
        ({"fabric": "1 Gbit/s"}, ["leave out [fabric]"]),
    ],
)
def test_what_it_cannot_run_is_refused(strategy: str, changes: dict[str, Any], words: list[str]) -> None:
    chosen = load_strategy(strategy)
    case = case_of(strategy, 2)
    assert chosen.check(case) is None
    reason = chosen.check(replace(case, **changes))
    assert reason is not None
    assert all(word in reason for word in words), reason


@pytest.mark.usefixtures("there")
def test_ranks_talk_by_grpc_alone() -> None:
    chosen = load_strategy("tf_multi_worker")
    reason = chosen.check(replace(case_of("tf_multi_worker", 2), backend="mpi"))
    assert reason is not None
    assert 'backend = "gloo"' in reason


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_tensorflow_the_pip_line_is_shown(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_installed", lambda names: (names[0], ""))
    reason = load_strategy(strategy).check(case_of(strategy, 2))
    assert reason is not None
    assert "pip install 'ddpbench[tensorflow]'" in reason


def test_a_step_of_the_class_is_refused() -> None:
    for strategy in STRATEGIES:
        assert "written for torch" in str(load_strategy(strategy).step_reason(case_of(strategy, 2)))


def test_layouts_are_undone_and_keep_what_is_computed() -> None:
    """A dense layer on an image of [height, width, channels] has torch's outputs on [channels, height, width]."""
    from ddpbench.strategies.frameworks.tensorflow.models import CONVOLUTION, DENSE, SAME, flattened

    generator = torch.Generator().manual_seed(0)
    weights = {
        SAME: torch.randn(5, generator=generator),
        DENSE: torch.randn(5, 7, generator=generator),
        CONVOLUTION: torch.randn(6, 3, 2, 2, generator=generator),
        flattened(3, 2): torch.randn(5, 12, generator=generator),
    }
    for layout, weight in weights.items():
        assert torch.equal(layout.to_torch(layout.to_keras(weight)), weight)
    image = torch.randn(1, 3, 2, 2, generator=generator)
    layout, weight = list(weights.items())[-1]
    last = image.permute(0, 2, 3, 1).flatten(1) @ layout.to_keras(weight)
    torch.testing.assert_close(last, image.flatten(1) @ weight.t())


def refused(rank: int, processes: int) -> list[str]:
    """Optimizers that Keras does not have in the same form are refused with a reason."""
    from ddpbench.strategies.frameworks.tensorflow.replica import keras_sgd

    parameters = [torch.nn.Parameter(torch.ones(1))]
    others: list[Any] = [
        torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1),
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.AdamW(parameters),
    ]
    found = []
    for optimizer in others:
        with pytest.raises(ValueError, match="use ddp for it") as error:
            keras_sgd(optimizer)
        found.append(str(error.value))
    return found


@tensorflow
@ranks
def test_another_optimizer_is_refused() -> None:
    (found,) = run_ranks(refused, 1)
    for words, sentence in zip(("weight_decay", "nesterov", "AdamW"), found, strict=True):
        assert words in sentence


EXPERIMENT = """
question = "What does TensorFlow's step cost?"
[base]
workload = "mlp:small"
local_batch = 4
[axes]
strategy = ["tf_mirrored", "tf_multi_worker"]
world_size = [{ranks}]
[budget]
rounds_min = 1
rounds_max = 1
measured_s = 0.1
total = "20 min"
"""


@tensorflow
@pytest.mark.multiprocess
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_sweep_measures_both_and_reports_them(ranks: int, tmp_path: Path) -> None:
    from ddpbench.analysis import load, summarize
    from ddpbench.launch.listener import Listener
    from ddpbench.launch.sweep.preparation import SweepRequest, prepare
    from ddpbench.launch.sweep.sweep import Sweep
    from ddpbench.records import RunDir
    from ddpbench.report import write_report

    path = tmp_path / "tensorflow.toml"
    path.write_text(EXPERIMENT.replace("{ranks}", str(ranks)), encoding="utf-8")
    run = RunDir(tmp_path / "run")
    Sweep(prepare(SweepRequest(experiment=path, out=run.path)), Listener()).run()
    table = load(run).set_index(["strategy", "world_size"])
    for strategy in STRATEGIES:
        row = table.loc[(strategy, ranks)]
        assert row["status"] == "ok", row["error"]
        parts = [row[f"{name}_time_s"] for name in ("data", "forward", "backward", "optimizer")]
        assert all(part > 0 for part in parts)
        assert math.isnan(row["comm_time_s"])
    assert ranks == 1 or table.loc[("tf_multi_worker", 2)]["params_equal"]
    page = write_report(summarize(run), run).read_text(encoding="utf-8")
    assert "TensorFlow trains an equivalent Keras model" in page
