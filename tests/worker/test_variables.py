"""The variables of torchrun that a user's code finds, and the process group that it may form or ask for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from ddpbench.collectives.exchange import gather_values, whole
from ddpbench.machine.ports import free_port
from ddpbench.runtime.trial import within_own
from ddpbench.spec import Case, PlannedCase
from ddpbench.worker.place import JobPlace
from ddpbench.worker.server import _found
from ddpbench.worker.training import control
from ddpbench.worker.training.asked_group import formed_when_asked
from ddpbench.worker.training.exchanges import noticing_exchanges
from ddpbench.worker.variables import STORE_AT, complete, complete_alone, slots_store
from tests.ranks import run_ranks
from tests.worker.test_refusals import FILE, case_of

TORCHRUNS = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
}
"""Variables that torch.distributed.elastic sets in torch 2.13 (`_start_workers`), without the error file,
OMP_NUM_THREADS and those of NCCL."""


def place_of(rank: int, processes: int) -> JobPlace:
    return JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )


def test_all_variables_are_there_and_a_launchers_own_are_kept() -> None:
    env = {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "job",
    }
    complete(env, place_of(3, 4), case_of("Sound", "ddp", 4))
    assert env.keys() == TORCHRUNS
    wanted = {"RANK": "3", "WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "3"}
    wanted |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job"}
    assert {name: env[name] for name in wanted} == wanted


def test_a_workload_of_the_table_finds_what_its_launcher_set() -> None:
    env: dict[str, str] = {}
    complete(env, place_of(0, 1), Case(workload="mlp", strategy="single", local_batch=4, global_batch=4))
    assert env == {}


FORMS = """
import os
import torch
import torch.distributed as dist

if int(os.environ.get("RANK", -1)) != -1:
    dist.init_process_group("gloo")
    assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])


class Measured:
    batch = 8 * dist.get_world_size()

    def dataset(self): return torch.utils.data.TensorDataset(torch.randn(64, 4))
    def model(self): return torch.nn.Linear(4, 1)
    def loss(self, model, batch): return model(batch[0]).square().mean()
"""


@pytest.mark.ranks
def test_a_script_that_forms_its_process_group_when_it_is_imported_is_tried(tmp_path: Path) -> None:
    script = tmp_path / "forms.py"
    script.write_text(FORMS, encoding="utf-8")
    (found,) = run_ranks(tried, 1, f"{script}:Measured")
    assert found == [8, 5]


def tried(_rank: int, _processes: int, workload: str) -> list[int]:
    """Return the batch that the class states, and its number of parameters, from the trial before a launch."""
    dist.destroy_process_group()  # the group of these tests
    for name in TORCHRUNS:
        os.environ.pop(name, None)
    stated = _found({"case": None, "workload": workload})
    case = Case(workload=workload, strategy="single", local_batch=8, global_batch=8)
    return [stated["local_batch"], _again(case)]


def _again(case: Case) -> int:
    from ddpbench.worker.verify.inspection import inspect_workload

    found = inspect_workload(case)
    assert "problem" not in found, found
    dist.barrier()  # `run_ranks` ends with one more
    return int(found["parameters"])


@pytest.mark.ranks
@pytest.mark.parametrize("processes", [1, 2])
def test_other_hosts_do_not_reach_the_store_of_a_group_that_a_script_forms(processes: int) -> None:
    """torch itself listens on all interfaces."""
    found = run_ranks(store_listens_at, processes)
    assert found[0] == ["0100007F"]


def store_listens_at(rank: int, processes: int) -> list[str]:
    """Return the addresses, as the kernel writes them, at which the store of a group that a script forms listens."""
    (port,) = gather_values(free_port(), lambda value: whole(value, 65_535))[:1]
    dist.destroy_process_group()  # the group of these tests
    for name in TORCHRUNS:
        os.environ.pop(name, None)
    if processes == 1:
        complete_alone(os.environ)
    else:
        os.environ |= {"DDPBENCH_RENDEZVOUS": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        complete(os.environ, place_of(rank, processes), case_of("Sound", "ddp"))
    dist.init_process_group("gloo")
    dist.barrier()
    lines = [
        line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text("ascii").splitlines()
    ]
    listening = [fields[1].split(":") for fields in map(str.split, lines) if fields[3] == "0A"]
    dist.barrier()  # and `run_ranks` ends with one more
    return [address for address, number in listening if int(number, 16) == int(os.environ["MASTER_PORT"])]


@pytest.mark.ranks
@pytest.mark.parametrize("timeout_s", [None, 5])
def test_a_group_that_the_users_code_formed_is_kept_unless_the_launch_needs_another(
    timeout_s: int | None,
) -> None:
    assert run_ranks(kept, 2, timeout_s) == [timeout_s is None] * 2


def kept(rank: int, processes: int, timeout_s: int | None) -> bool:
    from dataclasses import replace

    from ddpbench.worker.training.control import meet

    before = dist.group.WORLD
    os.environ["DDPBENCH_RENDEZVOUS"] = f"/tmp/ddpbench-test-{os.getppid()}-{timeout_s}"
    case = case_of("Sound", "ddp")
    if timeout_s is not None:  # ranks that are to notice a failure themselves
        case = replace(case, recovery="restart", collective_timeout=float(timeout_s))
    try:
        control = meet(case, place_of(rank, processes), uses_backend=True, device=torch.device("cpu"))
        assert control.agree(7 * (1 - rank)) == 7
        return dist.group.WORLD is before
    finally:
        Path(os.environ["DDPBENCH_RENDEZVOUS"]).unlink(missing_ok=True)


@pytest.mark.ranks
def test_ranks_of_slots_meet_at_a_port_of_their_launch_and_keep_the_slots_store() -> None:
    found = run_ranks(met, 2)
    assert found[0] == found[1]
    (store, user) = found[0]
    assert store != user


def met(rank: int, processes: int) -> tuple[Any, Any]:
    from ddpbench.machine.ports import free_port

    port: list[Any] = [free_port() if rank == 0 else None]
    dist.broadcast_object_list(port)
    if rank == 0:
        served = dist.TCPStore("127.0.0.1", port[0], is_master=True, wait_for_workers=False)
        assert served
    dist.barrier()
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port[0]), "DDPBENCH_STORE": "job/launch/3"}
    env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    complete(env, place_of(rank, processes), case_of("Sound", "ddp"))
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert slots_store(env) == ("127.0.0.1", port[0])
    assert STORE_AT in env
    dist.barrier()
    return slots_store(env), (env["MASTER_ADDR"], int(env["MASTER_PORT"]))


@pytest.mark.ranks
def test_a_group_is_formed_when_it_is_asked_for_and_not_before() -> None:
    assert run_ranks(formed, 1) == [(False, 1, True, [3.0])]


def formed(_rank: int, _processes: int) -> tuple[bool, int, bool, list[float]]:
    dist.destroy_process_group()
    with formed_when_asked(torch.device("cpu")) as asked:
        before = asked.found
        size = dist.get_world_size()
        values = torch.tensor([3.0])
        dist.all_reduce(values)
    return before, size, asked.found, values.tolist()


@pytest.mark.ranks
def test_a_users_question_whether_there_is_a_group_forms_one_and_torchs_own_does_not() -> None:
    assert run_ranks(questioned, 1) == [[False, True, True]]


def questioned(_rank: int, _processes: int) -> list[bool]:
    from torch.distributed import is_initialized

    dist.destroy_process_group()
    normalise = torch.nn.SyncBatchNorm(2)
    with formed_when_asked(torch.device("cpu")) as asked:
        normalise(torch.zeros(2, 2, requires_grad=True))
        return [asked.found, is_initialized(), asked.found]


@pytest.mark.ranks
def test_exchanges_are_noticed_and_questions_and_waits_are_not() -> None:
    expected = {
        "questions": False,
        "waits": False,
        "a group of one": False,
        "a sum": True,
        "another group's": True,
        "objects": True,
        "a message": True,
        "compiled": True,
    }
    assert run_ranks(noticed, 2) == [expected] * 2


def noticed(rank: int, _processes: int) -> dict[str, bool]:
    both = dist.new_group([0, 1])
    alone = [dist.new_group([each]) for each in (0, 1)][rank]
    values = torch.zeros(1)
    compiled = torch.compile(lambda given: funcol.all_reduce(given, "sum", both) + 1, backend="aot_eager")
    forms: dict[str, Callable[[], Any]] = {
        "questions": lambda: (dist.is_initialized(), dist.get_rank(), dist.get_world_size(both)),
        "waits": lambda: (dist.barrier(), dist.monitored_barrier(both)),
        "a group of one": lambda: dist.all_reduce(values, group=alone),
        "a sum": lambda: dist.all_reduce(values),
        "another group's": lambda: dist.broadcast(values, 0, group=both),
        "objects": lambda: dist.all_gather_object([None, None], rank),
        "a message": lambda: dist.recv(values, 0) if rank else dist.send(values, 1),
        "compiled": lambda: compiled(values),
    }
    found = {}
    for name, form in forms.items():
        with noticing_exchanges() as seen:
            form()
        found[name] = seen.found
    dist.all_reduce(values)  # as before
    return found


def facts_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Inspect a class in a process alone; it asks for a group, which is ended."""
    from ddpbench.worker.verify.inspection import inspect_workload

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    try:
        return inspect_workload(case_of(name, "single", 1))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "exchanges"),
    [("Gathers", True), ("LogsUnguarded", False), ("LogsGuarded", True), ("GathersAmongSeveral", True)],
)
def test_a_loss_that_asks_for_the_group_is_tried_and_skipped_where_a_rank_that_serves_would_be_missed(
    name: str, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_alone(name, monkeypatch)
    assert facts.get("group"), facts
    cases = [PlannedCase(case=case_of(name, each)) for each in ("ddp", "async_server")]
    ddp, server = within_own(cases, {f"{FILE}:{name}": json.loads(json.dumps(facts))})
    assert ddp.skip_reason is None
    assert ("the serving rank of async_server computes no loss" in (server.skip_reason or "")) is exchanges


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("SetsGradients", True),
        ("SetsAveragedGradients", False),
        ("SetsGradientsAveragedInAGroup", False),
        ("SetsGradientsAveragedAmongSeveral", False),
    ],
)
def test_a_step_that_sets_gradients_and_asks_for_its_rank_alone_averages_none(
    name: str, skipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_alone(name, monkeypatch)
    cases = [PlannedCase(case=case_of(name, each)) for each in ("ddp", "data_parallel")]
    ddp, _ = within_own(cases, {f"{FILE}:{name}": facts})
    assert ("sets gradients without backward()" in (ddp.skip_reason or "")) is skipped, ddp.skip_reason


def test_ranks_meet_in_a_file_whose_path_is_no_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff"))
    folder.mkdir()
    monkeypatch.setenv("DDPBENCH_RENDEZVOUS", str(folder / "rendezvous"))
    store = control._store(JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=()))
    assert store is not None
    store.set("key", "value")
    assert (folder / "rendezvous").stat().st_size > 0
