"""Ranks unpickle nothing that another rank sends: every place of the package that unpickles is listed here."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import ddpbench
from ddpbench.strategies.branches.replica import _description
from ddpbench.strategies.frameworks.tensorflow.devices import _address
from ddpbench.strategies.pipeline.stage import CheckedStage, _described, _metadata
from ddpbench.worker.verify.answers import read_log
from ddpbench.worker.verify.examination import _examined
from tests.ranks import run_ranks

UNPICKLERS = {
    "helper_process.py:Helper.answer:pickle.load": "the pipe of its own child",
    "helper_process.py:serve:pickle.load": "the pipe of its parent",
    "cache.py:kept:pickle.load": "a file of the user's own cache, in a folder that nobody else can write",
    "worker/verify/sent_batches.py:_unpickled:torch.load": "a batch of which its HMAC says that a rank has sent it",
    "features/recovery/rank/snapshots.py:Snapshots.read:torch.load": "weights_only: tensors and containers alone",
    "worker/rank/checkpoints.py:Saver.run:torch.distributed.checkpoint": "torch's own, where checkpoints are measured",
    "worker/rank/checkpoints.py:Saver._dcp:torch.distributed.checkpoint": "the same: which rank writes what",
    "strategies/async_server/strategy.py:AsyncServer.build:torch.distributed.rpc": "torch's own: transport rpc",
    "strategies/async_server/rpc.py::torch.distributed.rpc": "the same",
    "strategies/async_server/rpc.py:RpcWorker.exchange:rpc.rpc_sync": "the same",
    "strategies/pipeline/replica.py::torch.distributed.pipelining": "none since torch 2.13: see the next",
    "strategies/pipeline/stage.py::torch.distributed.pipelining": "a stage that sends shapes as JSON",
    "strategies/pipeline/stage.py:_of_tensor:torch.distributed.pipelining": "a class",
    "strategies/pipeline/stage.py:_metadata:torch.distributed.pipelining": "classes",
}
"""`module:function:what`, and why no stranger's bytes are unpickled there, or whose code does it. Values that ranks
exchange go through `ddpbench/collectives/exchange.py`; batches are pickled, authenticated and only then unpickled by
`ddpbench/worker/verify/sent_batches.py`.
"""

OF_OBJECTS = re.compile(r"_?((all_)?gather|broadcast|scatter|send|recv)_object(_list)?")
PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
LOADERS = re.compile(
    r"(_?c?[pP]ickle|cloudpickle|dill|joblib|marshal|torch|np|numpy|shelve)\.(loads?|Unpickler|open)"
)
ANYWHERE = {"Unpickler", "read_pickle", "unpickle", "_tensor_to_object", "rpc_sync", "rpc_async"}
UNPICKLING_MODULES = ("torch.distributed.rpc", "torch.distributed.checkpoint", "torch.distributed.pipelining")
UNPICKLING_MODULES += ("torch.distributed.collective_utils", "torch.hub", "torch.distributed.elastic")


def found_in(tree: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield `function:what` of everything that unpickles, or has torch do so."""
    for child in ast.iter_child_nodes(tree):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for what in unpickles(child):
            yield f"{'.'.join(scope)}:{what}"
        yield from found_in(child, (*scope, child.name) if named else scope)  # type: ignore[attr-defined]


def unpickles(node: ast.AST) -> Iterator[str]:
    """Yield what a name, an import or a reference to a function unpickles with."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = getattr(node, "module", None) or ""
        for name in node.names:
            whole = f"{module}.{name.name}".strip(".")
            if OF_OBJECTS.fullmatch(name.name) or name.name in ANYWHERE or LOADERS.fullmatch(whole):
                yield name.name
            yield from (each for each in UNPICKLING_MODULES if f"{whole}.".startswith(f"{each}."))
            if whole in PICKLES and name.asname not in (None, whole):
                yield f"{whole} under another name"
        return
    if not isinstance(node, ast.Attribute | ast.Name):
        return
    whole = ast.unparse(node)
    name_alone = node.attr if isinstance(node, ast.Attribute) else node.id
    if OF_OBJECTS.fullmatch(name_alone) or name_alone in ANYWHERE or LOADERS.fullmatch(whole):
        yield whole


def in_package() -> set[str]:
    root = Path(ddpbench.__file__).parent
    return {
        f"{path.relative_to(root).as_posix()}:{found}"
        for path in root.rglob("*.py")
        for found in found_in(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_every_place_that_unpickles_is_listed() -> None:
    found = in_package()
    assert found - set(UNPICKLERS) == set(), (
        "exchange values by ddpbench/collectives/exchange.py, which unpickles none"
    )
    assert set(UNPICKLERS) - found == set(), "no longer there"


@pytest.mark.parametrize(
    "code",
    [
        "dist.all_gather_object(found, own)",
        "torch.distributed.broadcast_object_list(log, src=0)",
        "gather_object(own)",
        "exchange = dist.scatter_object_list",
        "from torch.distributed import recv_object_list",
        "from torch.distributed.distributed_c10d import send_object_list as send",
        "c10d._tensor_to_object(tensor, size, group)",
        "pickle.loads(data)",
        "pickle.Unpickler(file).load()",
        "from pickle import loads",
        "import pickle as p",
        "torch.load(file)",
        "numpy.load(file, allow_pickle=True)",
        "frame = pandas.read_pickle(path)",
        "import torch.distributed.rpc as rpc",
        "from torch.distributed import rpc",
        "from torch.distributed.checkpoint.state_dict_saver import save",
    ],
)
def test_what_unpickles_is_found(code: str) -> None:
    assert list(found_in(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "dist.all_gather(found, own)",
        "pickle.dumps(own)",
        "json.loads(text)",
        "tomllib.load(file)",
        "names = {'all_gather_object'}",
        "gather_values(own, texts)",
        "from torch.distributed import fsdp",
    ],
)
def test_what_unpickles_nothing_is_not(code: str) -> None:
    assert not list(found_in(ast.parse(code)))


@pytest.mark.parametrize(
    ("read", "sent"),
    [
        (read_log, [[0, 1.5]]),
        (read_log, [[0, 1, 2]]),
        (read_log, [["0", 1]]),
        (read_log, {"a": 1}),
        (_examined, [True, ["a"], [["a"], [1]], []]),
        (_examined, ["yes", [], [], []]),
        (_examined, [True, [], []]),
        (_description, ["float32", [-1]]),
        (_description, ["load", [1]]),
        (_description, ["float32"]),
        (_metadata, [True, [None]]),
        (_metadata, [1, []]),
        (_metadata, [False, [[[2], [1], "float32", 1]]]),
        (_metadata, [False, [[[2], [1, 1], "float32", True]]]),
        (_metadata, [False, [[[2], [-1], "float32", True]]]),
        (_metadata, [False, [[[2], [1], "load", True]]]),
        (_metadata, [True, 3]),
        (_address, "127.0.0.1:0"),
        (_address, "127.0.0.1:99999"),
        (_address, "localhost:80"),
        (_address, ["127.0.0.1:80"]),
        (_address, "127.0.0.1"),
    ],
)
def test_what_no_rank_sends_is_refused(read: Callable[[Any], Any], sent: Any) -> None:
    with pytest.raises((TypeError, ValueError, LookupError)):
        read(sent)


def test_what_ranks_send_is_read() -> None:
    assert read_log([[1, 0], [2, 0]]) == [(1, 0), (2, 0)]
    found = _examined([True, ["a"], [["a", "b"], []], ["c"]])
    assert (found.differs, found.writes, found.reached, found.infinite) == (
        True,
        ["a"],
        [{"a", "b"}, set()],
        ["c"],
    )
    assert _description(["bfloat16", [2, 0]]) == ([2, 0], torch.bfloat16)
    sent = [True, [[[2, 3], [3, 1], "float32", True]]]
    assert _described(_metadata(sent)) == sent
    sent = [False, [None, [[2, 3], [1, 2], "int64", False]]]
    assert _described(_metadata(sent)) == sent
    assert _address("127.0.0.1:8080") == "127.0.0.1:8080"


def _piped(rank: int, size: int, kind: type[PipelineStage]) -> float:
    """Return the norm of a stage's gradients after a step in which unpickling fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist.distributed_c10d, "_tensor_to_object", _no_object)
        torch.manual_seed(0)
        stages = [nn.Linear(3, 4), nn.Linear(4, 2)]
        stage = kind(stages[rank], rank, size, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
        given = (torch.ones(4, 3),) if rank == 0 else ()
        schedule.step(*given, target=torch.zeros(4, 2) if rank else None)
        return float(stages[rank].weight.grad.norm())  # type: ignore[union-attr]


def _no_object(*_: Any) -> Any:
    raise AssertionError("an object is unpickled")


@pytest.mark.skipif(
    not hasattr(PipelineStage, "_recv_meta"), reason="this torch pickles what stages exchange"
)
@pytest.mark.ranks
def test_stages_of_a_pipeline_exchange_no_objects() -> None:
    assert all(norm > 0 for norm in run_ranks(_piped, 2, CheckedStage))
    with pytest.raises(pytest.fail.Exception, match="an object is unpickled"):
        run_ranks(_piped, 2, PipelineStage)
