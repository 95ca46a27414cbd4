"""Places from environments: whole, half, wrong."""

from __future__ import annotations

import pytest

from ddpbench.worker.place import JobPlace, SlotPlace

WHOLE = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}


def test_torchruns_environment_gives_a_slot() -> None:
    torchrun = {
        "GROUP_RANK": "1",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    place = SlotPlace.from_environment({**WHOLE, **torchrun})
    assert place == SlotPlace(
        rank=3,
        slots=4,
        local_rank=1,
        node="1",
        master_addr="a",
        master_port=29500,
        agent_store=True,
        prefix="ddpbench/job/2",
    )
    assert not SlotPlace.from_environment({**WHOLE, "TORCHELASTIC_USE_AGENT_STORE": "False"}).agent_store
    assert SlotPlace.from_environment({**WHOLE, "NODE_RANK": "7"}).node == "7"


@pytest.mark.parametrize("name", list(WHOLE))
def test_what_is_missing_is_named_and_what_is_there(name: str) -> None:
    half = {key: value for key, value in WHOLE.items() if key != name}
    for kind in (SlotPlace, JobPlace):
        with pytest.raises(ValueError, match=f"{name} is missing in the environment, where .* are set"):
            kind.from_environment(half)


def test_a_rank_needs_no_master_where_it_meets_nobody_or_in_a_file() -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    assert JobPlace.from_environment(alone).processes == 1
    JobPlace.from_environment({**alone, "WORLD_SIZE": "2", "DDPBENCH_RENDEZVOUS": "/x"})
    with pytest.raises(ValueError, match="MASTER_ADDR and MASTER_PORT are missing"):
        JobPlace.from_environment({**alone, "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"RANK": "x"}, "RANK='x' in the environment is not a number"),
        ({"RANK": "-1"}, "RANK='-1' in the environment is not a number"),
        ({"RANK": "4"}, "RANK=4 and WORLD_SIZE=4"),
        (
            {"MASTER_ADDR": "node1..cluster"},
            "MASTER_ADDR='node1..cluster' in the environment is not a host name: a name",
        ),
        (
            {"MASTER_ADDR": "n\udcff"},
            "MASTER_ADDR=.* in the environment is not a host name: it has characters",
        ),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 in the environment is not a port"),
    ],
)
def test_wrong_values_are_told(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SlotPlace.from_environment({**WHOLE, **wrong})


def test_a_hosts_name_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPBENCH_HOST", "pod-7")
    assert JobPlace.from_environment({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}).host == "pod-7"
