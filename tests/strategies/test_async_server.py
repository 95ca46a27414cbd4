"""The asynchronous server on real ranks: its log replayed in one process, gradients' ages, and recorded transfers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddpbench.analysis.read.overlap import breakdown
from ddpbench.analysis.read.parts import RankSteps
from ddpbench.formulas import busiest_rank_bytes
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import StepRecorder
from ddpbench.records import CommRecord, Staleness, StepRecord
from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.strategies.async_server import strategy as async_server
from ddpbench.strategies.base import OrderedReplica
from tests.ranks import run_ranks
from tests.strategies.training import (
    LEARNING_RATE,
    MOMENTUM,
    STEPS,
    bit_equal,
    build,
    make_model,
    relative_error,
    shard,
    train,
)

TRANSPORTS = ("rpc", "p2p")
GRADIENT_BYTES = 8 * sum(each.numel() for each in make_model().parameters() if each.requires_grad)

every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
every_world = pytest.mark.parametrize("world_size", [2, 3, pytest.param(4, marks=pytest.mark.thorough)])


@dataclass
class Served:
    """Observations of one rank in `STEPS` steps."""

    parameters: list[torch.Tensor]
    log: list[tuple[int, int]]
    losses: list[float]
    notes: list[Staleness]
    held: tuple[int, int, int] = (0, 0, 0)
    end: str = ""
    records: list[StepRecord | CommRecord] = field(default_factory=list)


def serve(
    rank: int, model: nn.Module, world_size: int, transport: str, *, noted: bool = False, turns: str = ""
) -> Served:
    """Train as the worker's loop does. With turns, workers wait for each other, never for the server."""
    recorder = StepRecorder(HostClock()) if noted else None
    options = {"transport": transport}
    replica = build("async_server", model, recorder, rank=rank, world_size=world_size, options=options)
    assert isinstance(replica, OrderedReplica)
    workers = dist.new_group(list(range(1, world_size))) if turns else None
    losses, held = [], (0, 0, 0)
    for step in range(STEPS):
        if recorder is not None:
            recorder.begin_step(step)
        batch = shard(rank, step) if replica.draws else (None, None)
        loss = _in_turn(turns, rank, step, workers, lambda batch=batch: replica.gradients_of(*batch))
        held = replica.held_bytes()
        replica.apply()
        if recorder is not None:
            recorder.end_step()
        losses.append(float(loss) if replica.knows_loss else float("nan"))
    if turns == "first last" and rank == 2:
        dist.barrier(workers)
    found = Served(
        parameters=[each.detach().clone() for each in model.parameters()],
        log=replica.log(),
        losses=losses,
        notes=[*replica.notes(), *replica.notes()],
        held=held,
        end=type(replica._end).__name__,  # type: ignore[attr-defined]
        records=recorder.records() if recorder is not None else [],
    )
    replica.close()
    return found


def _in_turn(turns: str, rank: int, step: int, workers: Any, act: Any) -> Any:
    """Order workers: `alternating` (1, 2, 1 ...), or `first last` (worker 1 sends once worker 2 is done)."""
    if rank == 0 or not turns:
        return act()
    if turns == "first last":
        if rank == 1 and step == 0:
            dist.barrier(workers)
        return act()
    if rank == 2:
        dist.barrier(workers)
    found = act()
    if rank == 1:
        dist.barrier(workers)
    dist.barrier(workers)
    return found


def three_runs(rank: int, processes: int, transport: str) -> list[Served]:
    """Train plain; instrumented; plain again on the instrumented run's module, which it has trained."""
    plain = serve(rank, make_model(), processes, transport)
    model = make_model()
    noted = serve(rank, model, processes, transport, noted=True)
    return [plain, noted, serve(rank, model, processes, transport)]


@cache
def runs(transport: str, world_size: int) -> list[list[Served]]:
    return run_ranks(three_runs, world_size, transport)


def versions_of(log: list[tuple[int, int]], start: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the parameters after every update of a log, computed in one process with SGD's formula."""
    model = make_model()
    parameters = list(model.parameters())
    trained = [number for number, each in enumerate(parameters) if each.requires_grad]
    momenta = [torch.zeros_like(parameters[number]) for number in trained]
    versions, made = [start], dict.fromkeys(range(10), 0)
    for worker, version in log:
        with torch.no_grad():
            for parameter, value in zip(parameters, versions[version], strict=True):
                parameter.copy_(value)
        inputs, targets = shard(worker, made[worker])
        made[worker] += 1
        loss = nn.functional.cross_entropy(model(inputs), targets)
        gradients = torch.autograd.grad(loss, [parameters[number] for number in trained])
        newest = [each.clone() for each in versions[-1]]
        for number, momentum, gradient in zip(trained, momenta, gradients, strict=True):
            momentum.mul_(MOMENTUM).add_(gradient)
            newest[number] -= LEARNING_RATE * momentum
        versions.append(newest)
    return versions


@pytest.mark.ranks
@every_transport
@every_world
def test_the_log_redone_in_one_process_gives_every_rank_s_parameters(transport: str, world_size: int) -> None:
    start = [each.detach() for each in make_model().parameters()]
    for number in range(3):
        server, *workers = (rank[number] for rank in runs(transport, world_size))
        assert sorted(worker for worker, _ in server.log) == sorted(list(range(1, world_size)) * STEPS)
        versions = versions_of(server.log, start)
        assert relative_error(server.parameters[:-2], versions[-1][:-2]) <= 1e-12  # the last two are frozen
        for rank, worker in enumerate(workers, start=1):
            last = max(at for at, (whose, _) in enumerate(server.log, start=1) if whose == rank)
            assert relative_error(worker.parameters[:-2], versions[last][:-2]) <= 1e-12
            assert not worker.log
        if number == 1:
            start = server.parameters  # all ranks of a new replica start there


@pytest.mark.ranks
@every_transport
def test_one_worker_is_one_process_bit_for_bit(transport: str) -> None:
    alone = train(build("single", make_model()), [shard(1, step) for step in range(STEPS)])
    (server, *_), (worker, *_) = runs(transport, 2)
    assert server.log == [(1, version) for version in range(STEPS)]
    assert server.notes == [Staleness(counts=(STEPS,))]
    assert bit_equal(server.parameters, alone.parameters)
    assert bit_equal(worker.parameters, alone.parameters)
    assert worker.losses == alone.losses


@pytest.mark.ranks
@every_transport
def test_staleness_is_the_updates_made_meanwhile(transport: str) -> None:
    server = runs(transport, 4)[0][0]
    (noted,) = server.notes
    ages = [number - version for number, (_, version) in enumerate(server.log)]
    assert noted.counts == tuple(ages.count(age) for age in range(max(ages) + 1))
    assert sum(noted.counts) == 3 * STEPS
    # a worker's own updates never come between, so all its gradients' ages add up to the number of others' updates
    for worker in (1, 2, 3):
        own = [number for number, (whose, _) in enumerate(server.log) if whose == worker]
        assert sum(ages[number] for number in own) == own[-1] - (STEPS - 1)


def turns(rank: int, processes: int, transport: str, how: str) -> Served:
    return serve(rank, make_model(), processes, transport, turns=how)


@pytest.mark.ranks
@every_transport
def test_two_workers_in_turn_are_one_update_behind(transport: str) -> None:
    server, *_ = run_ranks(turns, 3, transport, "alternating")
    assert [worker for worker, _ in server.log] == [1, 2] * STEPS
    assert server.notes == [Staleness(counts=(1, 2 * STEPS - 1))]  # n - 2, except for the very first


@pytest.mark.ranks
@every_transport
def test_no_worker_waits_for_another(transport: str) -> None:
    """Worker 2 makes all its steps before worker 1 sends its first gradient, whose age is then that many updates."""
    server, *_ = run_ranks(turns, 3, transport, "first last")
    late = [(1, 0), *((1, STEPS + made) for made in range(1, STEPS))]
    assert server.log == [*((2, made) for made in range(STEPS)), *late]
    assert server.notes == [Staleness(counts=(2 * STEPS - 1, *[0] * (STEPS - 1), 1))]


@pytest.mark.ranks
@every_transport
@every_world
def test_what_is_noted_is_whole(transport: str, world_size: int) -> None:
    ranks = {}
    for rank, (_, noted, _) in enumerate(runs(transport, world_size)):
        steps = [record for record in noted.records if isinstance(record, StepRecord)]
        moved = [record for record in noted.records if isinstance(record, CommRecord)]
        ranks[rank] = RankSteps(steps, moved)
        names = [name for step in steps for name, _, _ in step.spans]
        if rank == 0:
            assert names.count("optimizer") == (world_size - 1) * STEPS
        else:
            assert names == ["forward", "backward", "synchronize"] * STEPS
        assert {record.bytes for record in moved} == {GRADIENT_BYTES}
    # the same numbers on both sides: the server and one worker know each exchange
    messages = [
        sorted((record.op, record.message) for record in ranks[0].transfers),
        sorted((each.op, each.message) for rank in range(1, world_size) for each in ranks[rank].transfers),
    ]
    assert messages[0] == messages[1]
    assert (
        len(set(messages[0]))
        == len(messages[0])
        == (world_size - 1) * STEPS * (1 if transport == "rpc" else 2)
    )
    found = breakdown([ranks], world_size)
    assert found is not None
    assert found.has_transfers
    assert not found.dropped_transfers
    assert sum(count.count for count in found.transfers[0].values()) == len(messages[0])
    assert sum(found.parts.values()) == pytest.approx(found.step_s)
    if transport == "p2p":  # the server's answers, byte for byte
        assert found.sent_bytes == busiest_rank_bytes("async_server", world_size, GRADIENT_BYTES)


@pytest.mark.ranks
@every_transport
def test_only_the_server_holds_the_optimizer_s_state(transport: str) -> None:
    (server, *_), *workers = runs(transport, 3)
    trained = GRADIENT_BYTES
    frozen = sum(8 * each.numel() for each in make_model().parameters() if not each.requires_grad)
    assert server.held == (trained + frozen, trained, trained)  # SGD's momentum
    for worker, *_ in workers:
        assert worker.held == (trained + frozen, trained, 0)


def without_rpc(rank: int, processes: int) -> Served:
    from torch.distributed import rpc

    rpc.is_available = lambda: False
    with pytest.raises(RuntimeError, match="built without torch"):
        build("async_server", make_model(), rank=rank, world_size=processes, options={"transport": "rpc"})
    return serve(rank, make_model(), processes, "auto")


@pytest.mark.ranks
def test_where_torch_carries_no_rpc_messages_go_point_to_point() -> None:
    assert [found.end for found in run_ranks(without_rpc, 2)] == ["P2pServer", "P2pWorker"]


def case_of(**changes: Any) -> Case:
    return Case(**{"workload": "mlp", "strategy": "async_server", "world_size": 2} | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world_size": 1}, "world_size to 2 or more"),
        ({"device": "cuda"}, 'set device = "cpu"'),
        ({"precision": "fp16"}, 'set precision = "full" or "bf16"'),
    ],
)
def test_what_it_cannot_run_is_reported_in_the_plan(changes: dict[str, Any], words: str) -> None:
    reason = load_strategy("async_server").check(case_of(**changes))
    assert reason is not None
    assert words in reason


def test_rpc_is_asked_for_in_the_plan_where_torch_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import rpc

    strategy = load_strategy("async_server")
    asked = case_of(options_json='{"transport": "rpc"}')
    assert async_server.carries_rpc() == rpc.is_available()
    monkeypatch.setattr(async_server, "carries_rpc", lambda: False)
    assert strategy.check(asked) == async_server.NO_RPC
    for other in ("auto", "p2p"):
        assert strategy.check(case_of(options_json=f'{{"transport": "{other}"}}')) is None
