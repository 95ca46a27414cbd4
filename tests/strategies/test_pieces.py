"""Models cut into pieces, one per rank, against the same training of the complete model in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from ddpbench.formulas import bubble_share
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder, Recorder, StepRecorder
from ddpbench.records import CommRecord, StepRecord
from ddpbench.spec import Case
from ddpbench.strategies import Job, Replica, load_strategy
from ddpbench.strategies.messages import Message
from ddpbench.strategies.pipeline.replica import NotedStage, TimedSends, dealt, sends_are_timed
from tests.fake_clock import FakeClock
from tests.ranks import run_ranks
from tests.strategies.training import bit_equal, relative_error

pytestmark = pytest.mark.ranks

BATCH, FEATURES, CLASSES, STEPS = 16, 6, 5, 4
LAYER_WIDTHS = (24, 16, 12, 8)
MICROBATCHES = {2: 4, 3: 8, 4: 4}
"""Options by world size."""
WORLD_SIZES = (2, 3, 4)
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
ORDERS = tuple(SCHEDULES)
BETWEEN_HOSTS = "pipeline between hosts"
"""Each rank on a separate host; hosts share no clock."""

every_world = pytest.mark.parametrize("world_size", WORLD_SIZES)
every_order = pytest.mark.parametrize("order", ORDERS)


class Row(nn.Module):
    """Five layers in a row: one with BatchNorm, one frozen, and the last with dropout, which draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d = LAYER_WIDTHS
        self.first = nn.Sequential(nn.Linear(FEATURES, a, bias=False), nn.BatchNorm1d(a), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(a, b), nn.Tanh())
        self.third = nn.Sequential(nn.Linear(b, c, bias=False), nn.BatchNorm1d(c), nn.ReLU(inplace=True))
        self.fourth = nn.Linear(c, d).requires_grad_(False)
        self.last = nn.Sequential(nn.Dropout(0.3), nn.Linear(d, CLASSES))

    def stages(self) -> list[nn.Module]:
        return [self.first, self.second, self.third, self.fourth, self.last]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.stages():
            x = layer(x)
        return x


class Sides(nn.Module):
    """Branches of different widths, and a head that adds a part of each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        widths = [7 + 2 * number for number in range(count)]
        self.sides = nn.ModuleList(nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh()) for width in widths)
        self.joint = Joint(widths)

    def branches(self) -> tuple[list[nn.Module], nn.Module]:
        return list(self.sides), self.joint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joint([side(x) for side in self.sides])


class Joint(nn.Module):
    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.takes = nn.ModuleList(nn.Linear(width, CLASSES) for width in widths)

    def forward(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([take(output) for take, output in zip(self.takes, outputs, strict=True)]).sum(0)


def make_model(kind: str, count: int) -> nn.Module:
    torch.manual_seed(5)
    return (Sides(count) if kind == "branches" else Row()).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (BATCH,), generator=generator)


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@dataclass
class Seen:
    """Observations of one rank, or one process: lists are by step, dictionaries by the model's names."""

    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    held: tuple[int, int, int] = (0, 0, 0)
    kept: int = 0
    """Return the elements of parameters in the process's memory."""
    draws: bool = True
    knows_loss: bool = True
    steps: list[StepRecord] = field(default_factory=list)
    transfers: list[CommRecord] = field(default_factory=list)
    stage: str = ""
    """Return the recorder of a pipeline's stage."""


def build(
    kind: str, model: nn.Module, rank: int, count: int, options: dict[str, Any], recorder: Recorder
) -> Replica:
    name, nodes = ("pipeline", count) if kind == BETWEEN_HOSTS else (kind, 1)
    strategy = load_strategy(name)
    job = Job(
        case=Case(workload="tests", strategy=name, world_size=count, nodes=nodes, local_batch=BATCH // count),
        model=model,
        loss=nn.functional.cross_entropy,
        make_optimizer=make_optimizer,
        device=torch.device("cpu"),
        rank=rank,
        local_rank=rank,
        world_size=count,
        distributed=dist.is_initialized(),
        recorder=recorder,
    )
    return strategy.build(job, strategy.options(**options))


def train(
    kind: str, model: nn.Module, rank: int, count: int, options: dict[str, Any], recorder: Recorder
) -> Seen:
    replica = build(kind, model, rank, count, options, recorder)
    stage = type(getattr(replica, "_stage", None)).__name__
    seen = Seen(draws=replica.draws, knows_loss=replica.knows_loss, stage=stage)
    for step in range(STEPS):
        torch.manual_seed(step)
        if isinstance(recorder, StepRecorder):
            recorder.begin_step(step)
        loss = replica.gradients_of(*(batch(step) if replica.draws else (None, None)))
        if isinstance(recorder, StepRecorder):
            recorder.end_step()
        seen.losses.append(float(loss))
        seen.gradients.append({name: each.clone() for name, each in replica.own_gradients().items()})
        seen.held = replica.held_bytes()
        replica.apply()
    seen.parameters = replica.own_parameters()
    seen.kept = sum(parameter.numel() for parameter in model.parameters())
    seen.buffers = {name: each.clone() for name, each in model.named_buffers()}
    if isinstance(recorder, StepRecorder):
        records = recorder.records()
        seen.steps = [each for each in records if isinstance(each, StepRecord)]
        seen.transfers = [each for each in records if isinstance(each, CommRecord)]
    replica.close()
    return seen


def plain_and_noted(rank: int, count: int, kind: str, options: dict[str, Any]) -> tuple[Seen, Seen]:
    """Train twice, the second time instrumented and on the first one's model, as in a launch."""
    model = make_model(kind, count)
    start = {name: each.clone() for name, each in model.state_dict().items()}
    plain = train(kind, model, rank, count, options, NullRecorder())
    with torch.no_grad():
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            if each.shape == start[name].shape:
                each.copy_(start[name])
    return plain, train(kind, model, rank, count, options, StepRecorder(HostClock()))


@cache
def pipeline(world_size: int, order: str, kind: str = "pipeline") -> list[tuple[Seen, Seen]]:
    options = {"order": order, "microbatches": MICROBATCHES[world_size]}
    return run_ranks(plain_and_noted, world_size, kind, options)


@cache
def branches(world_size: int) -> list[tuple[Seen, Seen]]:
    return run_ranks(plain_and_noted, world_size, "branches", {})


@cache
def alone(kind: str, count: int, parts: int) -> Seen:
    """Train the complete model in this process, its gradient the mean of the parts' gradients, with SGD's formula."""
    model = make_model(kind, count)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    momenta = {name: torch.zeros_like(each) for name, each in trained.items()}
    seen = Seen()
    for step in range(STEPS):
        torch.manual_seed(step)
        inputs, targets = batch(step)
        sums = {name: torch.zeros_like(each) for name, each in trained.items()}
        losses = []
        size = BATCH // parts
        for start in range(0, BATCH, size):
            mine = slice(start, start + size)
            loss = nn.functional.cross_entropy(model(inputs[mine]), targets[mine])
            losses.append(float(loss.detach()))
            for name, gradient in zip(
                trained, torch.autograd.grad(loss, list(trained.values())), strict=True
            ):
                sums[name] += gradient / parts
        seen.gradients.append(sums)
        seen.losses.append(sum(losses) / parts)
        with torch.no_grad():
            for name, parameter in trained.items():
                momenta[name].mul_(0.9).add_(sums[name])
                parameter -= 0.1 * momenta[name]
    seen.parameters = {name: each.detach() for name, each in trained.items()}
    seen.buffers = dict(model.named_buffers())
    return seen


def assert_equal(own: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in own.items():
        assert relative_error([value], [expected[name]]) <= 1e-10, name


def cases() -> list[Any]:
    row = [("pipeline", world, order) for world in WORLD_SIZES for order in ORDERS]
    row += [("branches", world, "") for world in WORLD_SIZES]
    row += [(BETWEEN_HOSTS, 2, order) for order in ORDERS]
    largest = max(WORLD_SIZES)
    return [pytest.param(*one, marks=pytest.mark.thorough) if one[1] == largest else one for one in row]


def runs(kind: str, world_size: int, order: str) -> tuple[list[tuple[Seen, Seen]], Seen]:
    if kind == "branches":
        return branches(world_size), alone(kind, world_size, 1)
    return pipeline(world_size, order, kind), alone("pipeline", 1, MICROBATCHES[world_size])


every_case = pytest.mark.parametrize(("kind", "world_size", "order"), cases())


@every_case
def test_pieces_together_train_as_one_process_does(kind: str, world_size: int, order: str) -> None:
    ranks, expected = runs(kind, world_size, order)
    for plain, _ in ranks:
        for own, correct in zip(plain.gradients, expected.gradients, strict=True):
            assert_equal(own, correct)
        assert_equal(plain.parameters, expected.parameters)
    names = [name for plain, _ in ranks for name in plain.parameters]
    assert sorted(names) == sorted(expected.parameters)  # each has one rank


@every_case
def test_the_loss_is_the_whole_batchs_where_it_is_known(kind: str, world_size: int, order: str) -> None:
    ranks, expected = runs(kind, world_size, order)
    knowing = 0 if kind == "branches" else world_size - 1
    assert [plain.knows_loss for plain, _ in ranks] == [rank == knowing for rank in range(world_size)]
    assert ranks[knowing][0].losses == pytest.approx(expected.losses, rel=1e-10)


@every_case
def test_noting_changes_no_bit(kind: str, world_size: int, order: str) -> None:
    for plain, noted in runs(kind, world_size, order)[0]:
        assert plain.losses == noted.losses
        for own, other in zip(plain.gradients, noted.gradients, strict=True):
            assert own.keys() == other.keys()
            assert bit_equal(list(own.values()), list(other.values()))


@every_case
def test_a_rank_holds_its_own_piece_alone(kind: str, world_size: int, order: str) -> None:
    ranks, expected = runs(kind, world_size, order)
    whole = sum(each.numel() for each in make_model(kind, world_size).parameters())
    assert sum(plain.kept for plain, _ in ranks) == whole
    assert sum(plain.held[0] for plain, _ in ranks) == 8 * whole
    for plain, _ in ranks:
        trained = 8 * sum(expected.parameters[name].numel() for name in plain.parameters)
        assert plain.held[1:] == (trained, trained)  # gradients, and SGD's momenta


@every_order
@every_world
def test_running_statistics_are_those_of_the_microbatches_and_of_nothing_else(
    world_size: int, order: str
) -> None:
    ranks, expected = runs("pipeline", world_size, order)
    layers = ["first", "second", "third", "fourth", "last"]
    for (plain, _), numbers in zip(ranks, dealt(len(layers), world_size), strict=True):
        own = tuple(layers[number] for number in numbers)
        assert_equal(
            {name: value.double() for name, value in plain.buffers.items() if name.startswith(own)},
            {name: value.double() for name, value in expected.buffers.items()},
        )


@every_world
def test_only_the_ends_of_a_pipeline_take_batches(world_size: int) -> None:
    ends = [plain.draws for plain, _ in pipeline(world_size, "gpipe")]
    assert ends == [rank in (0, world_size - 1) for rank in range(world_size)]


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(5, 2, [3, 2]), (5, 3, [2, 2, 1]), (5, 4, [2, 1, 1, 1]), (5, 5, [1] * 5), (10, 4, [3, 3, 2, 2])],
)
def test_layers_are_dealt_out_in_a_row(layers: int, stages: int, sizes: list[int]) -> None:
    found = dealt(layers, stages)
    assert [len(numbers) for numbers in found] == sizes
    assert [number for numbers in found for number in numbers] == list(range(layers))


@pytest.mark.parametrize("microbatches", [1, 4])
def test_one_stage_trains_in_microbatches(microbatches: int) -> None:
    expected = alone("pipeline", 1, microbatches)
    options = {"microbatches": microbatches}
    seen = train("pipeline", make_model("pipeline", 1), 0, 1, options, NullRecorder())
    assert seen.losses == pytest.approx(expected.losses, rel=1e-10)
    assert_equal(seen.parameters, expected.parameters)


def actions(noted: Seen, last: bool) -> list[list[str]]:
    """Return for each step the order in which a stage computed: F and B, one each for a microbatch."""
    found = []
    for step in noted.steps:
        computed = [name[0].upper() for name, _, _ in step.spans if name != "synchronize"]
        *computed, scaled = computed
        assert scaled == "B"
        if last:  # after a microbatch's forward comes its loss
            pairs = "".join(computed).replace("FF", "F")
            computed = list(pairs)
        found.append(computed)
    return found


@every_order
@every_world
def test_a_stage_computes_in_the_order_asked_for(world_size: int, order: str) -> None:
    count = MICROBATCHES[world_size]
    for rank, (_, noted) in enumerate(pipeline(world_size, order)):
        for computed in actions(noted, rank == world_size - 1):
            assert sorted(computed) == ["B"] * count + ["F"] * count
            alive = [
                computed[: end + 1].count("F") - computed[: end + 1].count("B") for end in range(2 * count)
            ]
            assert max(alive) == (count if order == "gpipe" else min(count, world_size - rank))


def idle_share(orders: list[list[str]], forward: int = 1, backward: int = 2) -> float:
    """Return the idle share of a step whose stages compute in these orders, and do nothing else."""
    ends: dict[tuple[str, int, int], int] = {}
    free, position = [0] * len(orders), [0] * len(orders)
    while any(position[stage] < len(order) for stage, order in enumerate(orders)):
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind = order[position[stage]]
                number = order[: position[stage]].count(kind)
                neighbour = stage - 1 if kind == "F" else stage + 1
                before = 0
                if 0 <= neighbour < len(orders):
                    if (kind, neighbour, number) not in ends:
                        break
                    before = ends[kind, neighbour, number]
                free[stage] = max(free[stage], before) + (forward if kind == "F" else backward)
                ends[kind, stage, number] = free[stage]
                position[stage] += 1
    busy = len(orders[0]) // 2 * (forward + backward)
    return 1 - busy / max(free)


@every_order
@every_world
def test_the_order_has_the_bubble_of_the_formula(world_size: int, order: str) -> None:
    noted = [noted for _, noted in pipeline(world_size, order)]
    orders = [actions(one, rank == world_size - 1)[0] for rank, one in enumerate(noted)]
    assert idle_share(orders) == pytest.approx(bubble_share(world_size, MICROBATCHES[world_size]))


@every_case
def test_spans_follow_each_other_within_their_step(kind: str, world_size: int, order: str) -> None:
    for _, noted in runs(kind, world_size, order)[0]:
        assert len(noted.steps) == STEPS
        for step in noted.steps:
            assert {name for name, _, _ in step.spans} == {"forward", "backward", "synchronize"}
            moments = [step.start_ns, *(t for _, start, end in step.spans for t in (start, end)), step.end_ns]
            assert moments == sorted(moments)


def sent_bytes(kind: str, world_size: int) -> dict[tuple[int, int], int]:
    """Return what ranks send each other in a step, computed from the widths of what is sent."""
    if kind == "branches":
        widths = [7 + 2 * rank for rank in range(world_size)]
        return {
            (a, b): 8 * BATCH * widths[max(a, b)] for r in range(1, world_size) for a, b in ((r, 0), (0, r))
        }
    numbers = dealt(5, world_size)
    return {
        (a, b): 8 * BATCH * LAYER_WIDTHS[numbers[min(a, b)][-1]]
        for low in range(world_size - 1)
        for a, b in ((low, low + 1), (low + 1, low))
    }


@every_case
def test_every_message_is_noted_by_both_its_ranks(kind: str, world_size: int, order: str) -> None:
    ranks = [noted for _, noted in runs(kind, world_size, order)[0]]
    stage = {"pipeline": "NotedStage", BETWEEN_HOSTS: "TimedSends", "branches": "NoneType"}[kind]
    assert {noted.stage for noted in ranks} == {stage}
    parts = 1 if kind == "branches" else MICROBATCHES[world_size]
    expected = sent_bytes(kind, world_size)
    for step in range(STEPS):
        ends: dict[int, list[tuple[int, CommRecord]]] = {}
        for rank, noted in enumerate(ranks):
            for record in noted.transfers:
                if record.step == step:
                    ends.setdefault(record.bucket, []).append((rank, record))
        assert len(ends) == parts * len(expected)
        moved: dict[tuple[int, int], int] = {}
        for pair in ends.values():
            (sender, sent), (receiver, received) = sorted(pair, key=lambda end: end[1].sent_bytes is None)
            assert received.sent_bytes is None
            assert sent.op == received.op == "send"
            assert sent.ranks == received.ranks == 2
            assert sent.bytes == sent.sent_bytes == received.bytes
            assert sent.start_ns <= received.end_ns
            moved[sender, receiver] = moved.get((sender, receiver), 0) + sent.bytes
        assert moved == expected


@every_order
@every_world
def test_a_stage_has_a_message_when_it_starts_to_compute_with_it(world_size: int, order: str) -> None:
    parts = MICROBATCHES[world_size]
    for rank, (_, noted) in enumerate(pipeline(world_size, order)):
        for step in noted.steps:
            starts = {
                name: [start for span, start, _ in step.spans if span == name]
                for name in ("forward", "backward")
            }
            if rank == world_size - 1:  # after each forward it computes a loss
                starts["forward"] = starts["forward"][::2]
            blocked = [(start, end) for name, start, end in step.spans if name == "synchronize"]
            mine = [message for message in noted.transfers if message.step == step.step]
            ends: dict[str, dict[int, int]] = {"forward": {}, "backward": {}}
            for message in mine:
                assert any(start <= message.start_ns <= end for start, end in blocked)
                place, microbatch = divmod(message.bucket, parts)
                if message.sent_bytes is None:
                    ends[("forward", "backward")[place % 2]][microbatch] = message.end_ns
                else:
                    assert message.end_ns == message.start_ns
            for name, neighbour in (("forward", rank > 0), ("backward", rank < world_size - 1)):
                expected = starts[name][:parts] if neighbour else []  # scaling the gradients comes after
                assert [ends[name][microbatch] for microbatch in sorted(ends[name])] == expected


@pytest.mark.parametrize(
    ("nodes", "fabric", "themselves"), [(1, "", False), (2, "", True), (2, "2x1@1gbit", False)]
)
def test_sends_note_themselves_where_nobody_else_knows_when(
    nodes: int, fabric: str, themselves: bool
) -> None:
    case = Case(workload="tests", strategy="pipeline", world_size=2, nodes=nodes, fabric=fabric)
    assert sends_are_timed(case) is themselves


class LoggedStage(PipelineStage):
    """Logs what torch asks of it, and does with the messages that it is given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log: list[str] = []

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        self.log.append("computes")
        return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        self.log.append("computes")
        return super().backward_one_chunk(*args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._sends(super().get_fwd_send_ops(fwd_chunk_id), f"forward {fwd_chunk_id}")

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._sends(super().get_bwd_send_ops(bwd_chunk_id), f"backward {bwd_chunk_id}")

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._logged(super().get_fwd_recv_ops(fwd_chunk_id), "begins to receive")

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._logged(super().get_bwd_recv_ops(bwd_chunk_id), "begins to receive")

    def _sends(self, ops: list[dist.P2POp], name: str) -> list[dist.P2POp]:
        self.log += [f"asked for {name}"] * bool(ops)
        return self._logged(ops, f"hands over {name}")

    def _logged(self, ops: list[dist.P2POp], name: str) -> list[dist.P2POp]:
        for op in ops:
            own = (op.tensor, op.peer, op.group, op.tag)
            op.op = partial(self._act, op.op, own, name)  # type: ignore[assignment]
        return ops

    def _act(self, act: Any, own: tuple[Any, ...], name: str, *_: Any, **__: Any) -> Any:
        self.log.append(name)
        return LoggedWork(self.log, act(*own))


@dataclass
class LoggedWork:
    log: list[str]
    work: dist.Work

    def wait(self) -> None:
        self.log.append("waits")
        self.work.wait()


def log_of_a_step(rank: int, count: int, order: str) -> list[str]:
    """Return what a stage logs in a step: in its first one torch finds out what stages send one another."""
    layers = make_model("pipeline", count).stages()
    own = nn.Sequential(*(layers[number] for number in dealt(len(layers), count)[rank]))
    stage = LoggedStage(own, rank, count, torch.device("cpu"))
    schedule = SCHEDULES[order](stage, MICROBATCHES[count], loss_fn=nn.functional.cross_entropy)
    inputs, targets = batch(0)
    for _ in range(2):
        stage.log = []
        schedule.step(*([inputs] if stage.is_first else []), target=targets if stage.is_last else None)
    return stage.log


@cache
def logs(world_size: int, order: str) -> list[list[str]]:
    return run_ranks(log_of_a_step, world_size, order)


@every_order
@every_world
def test_torch_hands_over_what_it_has_asked_a_stage_for_before_anything_else(
    world_size: int, order: str
) -> None:
    """The time at which torch asks is when a message leaves, which is what a stage notes."""
    for rank, log in enumerate(logs(world_size, order)):
        asked = [number for number, entry in enumerate(log) if entry.startswith("asked for ")]
        assert len(asked) == MICROBATCHES[world_size] * ((rank > 0) + (rank < world_size - 1))
        for number in asked:
            assert log[number + 1] == log[number].replace("asked for", "hands over")
        assert log.count("computes") == 2 * MICROBATCHES[world_size]
        assert log.count("waits") == 2 * len(asked)


@every_order
@every_world
def test_torch_asks_for_a_message_right_after_what_it_did_last(world_size: int, order: str) -> None:
    """A stage then knows when, and receiving need not note itself."""
    for rank, log in enumerate(logs(world_size, order)):
        received = [number for number, entry in enumerate(log) if entry == "begins to receive"]
        assert len(received) == MICROBATCHES[world_size] * ((rank > 0) + (rank < world_size - 1))
        late = [number for number in received if number and log[number - 1] == "waits"]
        if order == "gpipe" and rank < world_size - 1:
            # once all activations are sent, and with them have arrived
            assert log[late.pop() :: -1].count("computes") == MICROBATCHES[world_size]
        assert not late


@pytest.mark.parametrize("themselves", [False, True])
def test_a_part_to_receive_begins_with_what_was_done_before_it(themselves: bool) -> None:
    """A middle stage's two microbatches by hand: its computations, and the times at which torch asked for messages."""
    stage = NotedStage.__new__(NotedStage)
    stage.stage_index, stage.chunks = 1, 2
    stage._pipeline, stage._pipelines = 0, 1
    stage._sent, stage._received = {0: [8], 1: [8]}, {0: [8], 1: [8]}
    sends: list[tuple[int, int] | None] = [None] * 4 if themselves else [(0, 0), (0, 1), (1, 0), (1, 1)]
    noted: list[Any] = [
        ("forward", (0, 0), 10, 20),
        ("sends", sends[0], 21, 21),
        ("forward", (0, 1), 30, 40),
        ("sends", sends[1], 70, 70),  # once the previous message was over
        ("backward", (1, 0), 90, 100),
        ("sends", sends[2], 103, 103),
        ("backward", (1, 1), 120, 130),
        ("sends", sends[3], 131, 131),
        ("backward", None, 140, 150),
    ]
    recorder = StepRecorder(FakeClock())
    recorder.begin_step(0)
    stage._note(recorder, noted, 2, 155)
    transfers = [one for one in recorder.records() if isinstance(one, CommRecord)]
    received = [(one.start_ns, one.end_ns) for one in transfers if one.sent_bytes is None]
    assert received == [(2, 10), (21, 30), (70, 90), (103, 120)]
    sent = [(one.start_ns, one.end_ns) for one in transfers if one.sent_bytes == 8]
    assert sent == ([] if themselves else [(21, 21), (70, 70), (103, 103), (131, 131)])
    assert len({one.bucket for one in transfers}) == len(transfers)


def test_a_message_that_notes_itself_tells_when_the_next_may_be_asked_for() -> None:
    clock = FakeClock(7)
    stage = TimedSends.__new__(TimedSends)
    stage.stage_index, stage.chunks = 1, 2
    stage._pipeline, stage._pipelines, stage._noted, stage._notes_messages = 0, 1, [], True
    stage._recorder = StepRecorder(clock)
    stage._mark = clock.mark
    assert stage._timed([], (0, 0)) == []
    assert stage._noted == []
    op: Any = SimpleNamespace(tensor=torch.zeros(2), peer=1, group=None, tag=0, op=dist.isend)
    assert stage._timed([op], (0, 0)) == [op]
    assert isinstance(op.op, Message)
    assert stage._noted == [("sends", None, 7, 7)]


def test_a_parameter_of_two_stages_is_refused() -> None:
    model = Row()
    model.last[1].bias = model.first[1].weight
    with pytest.raises(ValueError, match=r"first\.1\.weight is in two pieces"):
        build("pipeline", model, 0, 2, {}, NullRecorder())
