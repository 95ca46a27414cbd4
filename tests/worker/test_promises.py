"""A strategy that breaks its promise does not pass its proof: each kind of promise, broken on purpose."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks

OPTIONS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero1": {},
    "powersgd": {"compression": "powersgd"},
    "post_local_sgd": {"period": 2, "start_local_sgd_iter": 1},
    "async_server": {"transport": "p2p"},
}


def proofs(rank: int, processes: int, kind: str, breaks: str) -> dict[str, bool]:
    """Return the comparisons of a case's proof, and whether each passed in every type."""
    _break(breaks)
    passed: dict[str, bool] = {}
    for record in every_proof(rank, processes, kind):
        passed[record.compared] = passed.get(record.compared, True) and record.passed
    return passed


def every_proof(rank: int, processes: int, kind: str) -> list[Any]:
    """Return all comparisons of a case's proof, in order."""
    from ddpbench.records import Proof
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.control import GroupControl
    from ddpbench.worker.training.training import Training
    from ddpbench.worker.verify.proof import Prover

    strategy = "ddp" if kind == "powersgd" else kind
    options = load_strategy(strategy).options.model_validate(OPTIONS[kind])
    case = Case(
        workload="mlp:small",
        strategy=strategy,
        algorithm="all_reduce",
        schedule="overlapped",
        options_json=json.dumps(options.model_dump(mode="json")),
        world_size=processes,
        bucket_cap_mb="default" if strategy == "ddp" else None,
        local_batch=4,
        global_batch=4 * processes,
    )
    place = JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    training = Training(case, place, torch.device("cpu"))
    control = GroupControl(torch.distributed.new_group(), rank)
    return [one for one in Prover(training, control, lambda: None).run() if isinstance(one, Proof)]


def out_of_memory(rank: int, processes: int) -> list[tuple[str, bool, str]]:
    """Return the comparisons if one rank cannot hold the whole batch of all."""
    from ddpbench.worker.verify.proof import Prover

    right = Prover.gradient

    def gradient(self: Prover, model: torch.nn.Module, shard: Any, *others: Any) -> Any:
        if rank == 1 and len(shard[0]) == 4 * processes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(self, model, shard, *others)

    Prover.gradient = gradient  # type: ignore[method-assign]
    return [(proof.compared, proof.passed, proof.note) for proof in every_proof(rank, processes, "ddp")]


def test_a_whole_batch_too_large_for_a_rank_is_left_out_on_all() -> None:
    for comparisons in run_ranks(out_of_memory, 2):
        whole = [note for compared, _, note in comparisons if compared == "gradients, whole batch"]
        assert len(whole) == 2
        assert all("does not fit into one GPU's memory" in note for note in whole)
        assert all(passed for _, passed, _ in comparisons)
        assert [note for compared, _, note in comparisons if compared == "gradients, same shards"] == ["", ""]


def _break(what: str) -> None:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    from ddpbench.strategies.async_server.p2p import P2pServer
    from ddpbench.strategies.async_server.replica import ServerReplica
    from ddpbench.strategies.ddp.powersgd import PowerSgdReplica
    from ddpbench.strategies.ddp.replica import DdpReplica

    if what == "update":
        right = DdpReplica.apply

        def twice(self: DdpReplica) -> None:
            for group in self.optimizer.param_groups:
                group["lr"] *= 2
            right(self)

        DdpReplica.apply = twice  # type: ignore[method-assign]
    elif what == "later steps":
        _average_once()
    elif what == "memory":
        kept = PowerSgdReplica.kept
        PowerSgdReplica.kept = lambda self: {name: 0 * part for name, part in kept(self).items()}  # type: ignore[method-assign]
    elif what in ("vectors", "matrices"):
        _send_none_of(what, PowerSgdReplica)
    elif what == "averaging":

        def counts_only(self: PeriodicModelAverager, params: Any) -> None:
            self.step += 1

        PeriodicModelAverager.average_parameters = counts_only  # type: ignore[method-assign]
    elif what == "answer":
        P2pServer.answer = _old_answer(P2pServer.answer)  # type: ignore[method-assign]
    elif what == "log":
        log = ServerReplica.log
        ServerReplica.log = lambda self: [(rank, 0) for rank, _ in log(self)]  # type: ignore[method-assign]


def _average_once() -> None:
    """Make DDP average only the first step's gradients."""
    from torch.nn.parallel import DistributedDataParallel

    averaged = DistributedDataParallel.forward
    seen: set[int] = set()

    def forward(self: Any, *inputs: Any) -> Any:
        if id(self) in seen:
            return self.module(*inputs)
        seen.add(id(self))
        return averaged(self, *inputs)

    DistributedDataParallel.forward = forward  # type: ignore[method-assign]


def _send_none_of(what: str, replica: Any) -> None:
    """Keep the gradients of some parameters back forever: with the kept part, the sums are still right."""
    right, kept = replica.gradients_of, replica.kept

    def gradients_of(self: Any, inputs: Any, targets: Any) -> torch.Tensor:
        loss: torch.Tensor = right(self, inputs, targets)
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > self.exact_steps:
            held = self.__dict__.setdefault("held", {})
            for name, parameter in self.job.model.named_parameters():
                if (parameter.dim() < 2) == (what == "vectors"):
                    held[name] = held.get(name, 0) + parameter.grad.clone()
                    parameter.grad.zero_()
        return loss

    replica.gradients_of = gradients_of
    replica.kept = lambda self: {name: part + self.held.get(name, 0) for name, part in kept(self).items()}


def _old_answer(right: Any) -> Any:
    """Return an answer of a server that sends the parameters which it had at the start."""
    first: list[torch.Tensor] = []

    def answer(self: Any, worker: int, parameters: list[torch.Tensor]) -> None:
        if not first:
            first.extend(each.detach().clone() for each in parameters)
        right(self, worker, first)

    return answer


@pytest.mark.parametrize(
    ("kind", "breaks", "broken"),
    [
        ("ddp", "", set()),
        ("ddp", "update", {"update, same gradients"}),
        ("zero1", "", set()),
        ("zero1", "later steps", {"parameters, same samples"}),
        ("powersgd", "", set()),
        ("powersgd", "memory", {"sums of gradients, with what is kept"}),
        ("powersgd", "vectors", {"share of gradients kept back"}),
        ("powersgd", "matrices", {"share of gradients kept back"}),
        ("post_local_sgd", "", set()),
        ("post_local_sgd", "averaging", {"parameters, averaged", "final replicas"}),
        ("async_server", "", set()),
        ("async_server", "answer", {"parameters, updates in the server's order"}),
        ("async_server", "log", {"parameters, updates in the server's order"}),
    ],
)
def test_a_broken_promise_is_seen_for_what_it_is(kind: str, breaks: str, broken: set[str]) -> None:
    for outcomes in run_ranks(proofs, 2, kind, breaks):
        assert {compared for compared, passed in outcomes.items() if not passed} == broken
        assert len(outcomes) >= 2
