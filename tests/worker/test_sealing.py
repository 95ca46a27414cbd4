"""Values that slots accept as their own, and those they take for a stranger's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ddpbench.worker.slot.messages import read_message
from ddpbench.worker.slot.sealing import MAX_BYTES, OtherKeyError, Seals, StrangerError
from tests.worker.test_roster import card

KEY = b"k" * 32


def seals(key: bytes = KEY, scope: str = "ddpbench/job/0", agreed: bytes | None = b"two numbers") -> Seals:
    seals = Seals(key, scope)
    if agreed is not None:
        seals.begin_job(agreed)
    return seals


def test_what_a_slot_has_written_another_reads() -> None:
    assert seals().open("job/3", seals().seal("job/3", b"\x00\xff\n")) == b"\x00\xff\n"
    early = Seals(KEY, "x").seal("card/0", b"{}", any_job=True)
    assert Seals(KEY, "x").open("card/0", early, any_job=True) == b"{}"


def test_slots_have_a_secret_for_each_launch_if_their_key_is_private() -> None:
    one, other, later = seals(), seals(), seals(agreed=b"other numbers")
    assert one.secret("1") == ""
    for each in (one, other, later):
        each.private = True
    assert one.secret("1") == other.secret("1")
    assert len({each.secret(number) for each in (one, later) for number in ("1", "2")}) == 4


SEALED: dict[str, Callable[[], bytes]] = {
    "no seal": lambda: b'{"do":"end","code":0}',
    "nothing": lambda: b"",
    "another value under its seal": lambda: seals().seal("job/3", b"{}") + b" ",
    "another key of the store": lambda: seals().seal("job/2", b"{}"),
    "another key": lambda: seals(b"s" * 32).seal("job/3", b"{}"),
    "the key's name alone": lambda: (
        seals().seal("job/3", b"")[:19] + seals(b"s" * 32).seal("job/3", b"{}")[19:]
    ),
    "no key": lambda: seals(b"").seal("job/3", b"{}"),
    "another job": lambda: seals(agreed=b"other numbers").seal("job/3", b"{}"),
    "before the job": lambda: seals().seal("job/3", b"{}", any_job=True),
    "another attempt": lambda: seals(scope="ddpbench/job/1").seal("job/3", b"{}"),
    "too long": lambda: seals().seal("job/3", b" " * (MAX_BYTES + 1)),
}


@pytest.mark.parametrize("what", SEALED)
def test_what_no_slot_of_this_job_has_written_is_refused_in_a_sentence(what: str) -> None:
    with pytest.raises(StrangerError, match="job/3 in the store was not written by a slot of this job"):
        seals().open("job/3", SEALED[what]())


def test_an_older_value_put_there_again_is_refused() -> None:
    writer, reader = seals(), seals()
    old, new = writer.seal("state/1", b"{}"), writer.seal("state/1", b"{}")
    for value in (old, new, new):  # nothing new may be read twice
        reader.open("state/1", value)
    with pytest.raises(StrangerError, match="an older value"):
        reader.open("state/1", old)


def test_a_slot_with_another_key_is_told_which_file_to_copy() -> None:
    for other in (b"s" * 32, b""):
        card = Seals(other, "x").seal("card/1", b"{}", any_job=True)
        with pytest.raises(OtherKeyError, match=r"copy job\.key .* or set the same DDPBENCH_KEY"):
            Seals(KEY, "x").open("card/1", card, any_job=True)


STATE = {"tick": 3, "job": 1}
HOSTILE: list[tuple[str, Any]] = [
    ("job/1", {"do": "launch", "case": "ddp-w2-0", "purpose": "measure", "round": -1}),
    ("job/1", {"do": "launch", "case": "ddp-w2-0", "purpose": "other", "round": 1}),
    ("job/1", {"do": "launch", "case": {"workload": "/tmp/x.py:X"}, "purpose": "measure", "round": 1}),
    (
        "job/1",
        {"do": "launch", "case": "ddp-w2-0", "purpose": "measure", "round": 1, "env": {"LD_PRELOAD": "x"}},
    ),
    ("job/1", {"do": "round", "envs": [{"LD_PRELOAD": "x"}], "fresh": True}),
    ("job/1", {"do": "round", "cases": ["a"], "fresh": True, "envs": [{"LD_PRELOAD": "x"}]}),
    ("job/1", {"do": "round", "cases": [], "fresh": True}),
    ("job/1", {"do": "end", "code": 99}),
    ("job/1", {"do": "exec", "code": "import os"}),
    ("job/1", {}),
    ("job/1", []),
    ("job/1", None),
    ("nonce", {"nonce": "../../etc/passwd"}),
    ("nonce", {"nonce": ".meeting-0123456789abcdef\n"}),
    ("nonce", {}),
    ("go", {"refusal": "", "unshared": [-1]}),
    ("go", {"refusal": "", "unshared": "all"}),
    ("order", {"end": "1"}),
    ("stop", {"why": "so", "code": 0}),
    ("stop", {"why": "x" * 100_000, "code": 1}),
    ("stop", {}),
    ("shared/1", {"sees": 1, "problem": ""}),
    ("state/1", {}),
    ("state/1", STATE | {"code": True}),
    ("state/1", STATE | {"phase": "\x1b[2J"}),
    ("state/1", STATE | {"cpu_s": -1.0}),
    ("state/1", STATE | {"cpu_s": 10**400}),
    ("state/1", STATE | {"totals": {"available_s": 1.0}}),
    ("state/1", STATE | {"files": {"records": 10**9, "log": 1}}),
    ("card/1", {"rank": 1}),
    ("card/1", card(1).to_json() | {"cores": []}),
    ("card/1", card(1).to_json() | {"cores": [-1]}),
    ("card/1", card(1).to_json() | {"rank": "1"}),
    ("card/1", card(1).to_json() | {"local_rank": -1}),
    ("verdict", {"refusal": "", "leader": -1, "cards": []}),
]


@pytest.mark.parametrize(("name", "value"), HOSTILE)
def test_what_is_no_message_is_refused_in_a_sentence(name: str, value: Any) -> None:
    """A stranger can write like this without a key; with a key its seal is refused before."""
    with pytest.raises(
        StrangerError, match=f"{name} in the store is not a message from this version of ddpbench"
    ):
        read_message(name, json.dumps(value).encode())


@pytest.mark.parametrize(
    "value", [b"", b"\x80\x04K\x01.", b"[" * 1_000_000, b'{"tick":' + b"9" * 5000 + b"}", b"\xff\xfe", b"NaN"]
)
def test_what_is_no_json_is_refused_the_same_way(value: bytes) -> None:
    with pytest.raises(StrangerError, match="state/1 in the store is not a message"):
        read_message("state/1", value)


def test_messages_come_whole_with_defaults_for_what_was_not_said() -> None:
    assert read_message("order", b"{}") == {"end": None, "stacks": False}
    assert read_message("state/1", b'{"tick":3,"job":1}')["ready_s"] == 0.0
    fields = card(3, "1", 1, gpus=("A",)).to_json()
    (again,) = read_message("verdict", json.dumps({"refusal": "", "leader": 0, "cards": [fields]}).encode())[
        "cards"
    ]
    assert again == fields
    assert read_message("card/3", json.dumps(fields | {"later": 1}).encode()) == fields
