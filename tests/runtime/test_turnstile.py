"""The turn of two sides: one side at a time, the other at each offer, and no side left waiting by an ended one."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpbench.runtime.turnstile import Turn, Turnstile, TurnstileGoneError, _allow_more_descriptors, _Shares

PATIENCE_S = 30.0


_TURNS: list[Turn] = []


@pytest.fixture
def turnstile() -> Iterator[Turnstile]:
    made = Turnstile()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _TURNS:
        _TURNS.pop().close()


def turn_of(turnstile: Turnstile, name: str) -> Turn:
    _TURNS.append(Turn(turnstile.address(name)))
    return _TURNS[-1]


class Side:
    """A side whose steps a thread makes, in a log that both share."""

    def __init__(self, turnstile: Turnstile, name: str, log: list[str], work: Callable[[Turn], None]) -> None:
        self.turn = turn_of(turnstile, name)
        self._log, self._name, self._work = log, name, work
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._work(self.turn)
        self._log.append(f"{self._name} ends")

    def start(self) -> Side:
        self._thread.start()
        return self

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert self.ended


def blocks(log: list[str], name: str, count: int, together: threading.Barrier) -> Callable[[Turn], None]:
    def work(turn: Turn) -> None:
        together.wait(PATIENCE_S)
        with turn.held():
            for number in range(count):
                turn.offer()
                log.append(f"{name} begins {number}")
                log.append(f"{name} is done with {number}")

    return work


def test_blocks_of_two_sides_follow_each_other_and_the_longer_one_goes_on_alone(turnstile: Turnstile) -> None:
    log: list[str] = []
    together = threading.Barrier(2)
    turnstile.begin(["base", "new"])
    sides = [
        Side(turnstile, name, log, blocks(log, name, count, together)).start()
        for name, count in (("new", 5), ("base", 3))
    ]
    for side in sides:
        side.join()
    done = [line for line in log if "ends" not in line]
    assert all(a.replace("begins", "is done with") == b for a, b in zip(done[::2], done[1::2], strict=True))
    began = [line.split()[0] for line in done[::2]]
    assert began == ["base", "new", "base", "new", "base", "new", "new", "new"]


def test_who_is_to_begin_begins_however_late_it_comes(turnstile: Turnstile) -> None:
    log: list[str] = []
    turnstile.begin(["new", "base"])
    early = Side(turnstile, "base", log, lambda turn: log.append(f"base waited {turn.take() > 0}")).start()
    late = turn_of(turnstile, "new")
    late.take()
    assert log == []
    late.give()
    early.join()
    assert log == ["base waited True", "base ends"]


def test_a_side_that_takes_no_turn_holds_nobody_up(turnstile: Turnstile) -> None:
    turnstile.begin(["base", "new"])
    other = Side(turnstile, "new", [], lambda turn: turn.take() and None).start()
    assert not other.ended
    turnstile.leave("base")
    other.join()
    turnstile.begin(["base", "new"])
    turnstile.leave("base")  # before the other asks
    assert turn_of(turnstile, "new").take() >= 0


def test_nobody_begins_before_the_other_side_is_there(
    turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpbench.runtime.turnstile._LOOK_S", 0.01)
    turnstile.begin(["base", "new"])
    base, new, waited = turn_of(turnstile, "base"), turn_of(turnstile, "new"), threading.Event()
    begun: list[str] = []

    def work() -> None:
        with base.held(waited.set):
            begun.append("base")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert waited.wait(PATIENCE_S)
    assert not begun
    with new.held():
        assert begun == ["base"]
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("when", ["while it waits", "while it has the turn"])
def test_a_rank_that_is_killed_holds_nobody_up_once_its_side_gives_the_turn_back(
    turnstile: Turnstile, when: str
) -> None:
    base, new = turn_of(turnstile, "base"), turn_of(turnstile, "new")
    rank = turn_of(turnstile, "base")
    base.take()
    other = Side(turnstile, "new", [], lambda turn: turn.take() and None).start()
    _until(lambda: [entry.side for entry in turnstile._waiting] == ["new"])
    if when == "while it waits":
        offering = threading.Thread(target=lambda: _offered(rank), daemon=True)
        offering.start()
        other.join()  # it has the turn now
        rank._socket.shutdown(2)
        offering.join(PATIENCE_S)
        base.give()  # though it does not have the turn
        new.give()
        assert new.take() >= 0
        return
    rank.close()
    base.give()
    other.join()


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def _offered(rank: Turn) -> None:
    with pytest.raises(TurnstileGoneError):
        rank.offer()


def test_nobody_else_is_let_in_by_a_side_that_gives_what_it_has_not(turnstile: Turnstile) -> None:
    base, new = turn_of(turnstile, "base"), turn_of(turnstile, "new")
    base.take()
    waiting = Side(turnstile, "third", [], lambda turn: turn.take() and None).start()
    _until(lambda: len(turnstile._waiting) == 1)
    new.give()
    assert not waiting.ended
    base.give()
    waiting.join()


def test_launches_meet_before_the_first_block_that_counts(turnstile: Turnstile) -> None:
    log: list[str] = []
    base_side, new_side = turn_of(turnstile, "base"), turn_of(turnstile, "new")
    base, new = turn_of(turnstile, "base"), turn_of(turnstile, "new")
    base_side.take()
    taking = threading.Thread(target=new_side.take, daemon=True)
    taking.start()
    _until(lambda: len(turnstile._waiting) == 1)

    def meet(turn: Turn, name: str) -> None:
        turn.meet()
        log.append(name)

    early = threading.Thread(target=meet, args=(base, "base"), daemon=True)
    early.start()
    taking.join(PATIENCE_S)  # the other side has the turn, and keeps it
    new.offer()
    new.offer()
    assert log == []
    late = threading.Thread(target=meet, args=(new, "new"), daemon=True)
    late.start()
    early.join(PATIENCE_S)
    assert log == ["base"]
    base_side.give()
    late.join(PATIENCE_S)
    assert log == ["base", "new"]


def test_a_launch_that_is_over_or_never_comes_is_not_met(turnstile: Turnstile) -> None:
    base_side, new_side = turn_of(turnstile, "base"), turn_of(turnstile, "new")
    base = turn_of(turnstile, "base")
    base_side.take()
    base.meet()  # the other side has no launch
    taking = Side(turnstile, "new", [], lambda turn: turn.take() and None).start()
    _until(lambda: len(turnstile._waiting) == 1)
    meeting = threading.Thread(target=base.meet, daemon=True)
    meeting.start()
    taking.join()
    assert meeting.is_alive()
    new_side.give()
    meeting.join(PATIENCE_S)
    assert not meeting.is_alive()


@pytest.mark.parametrize("how", ["reaches its place", "leaves it out", "has no more of them"])
def test_a_side_that_is_ahead_after_a_failed_launch_waits_for_the_other_to_come_to_its_place(
    turnstile: Turnstile, how: str
) -> None:
    turnstile.begin(["base", "new"])
    base_side, new_side = turn_of(turnstile, "base"), turn_of(turnstile, "new")
    taking = Side(turnstile, "base", [], lambda turn: turn.take(place=0) and None).start()
    other = Side(turnstile, "new", [], lambda turn: turn.take(place=0) and None).start()
    taking.join()
    base_side.give()  # it has failed before the two have met
    other.join()
    again = Side(turnstile, "base", [], lambda turn: turn.take(place=1) and None).start()
    _until(lambda: bool(turnstile._waiting))
    alone = Side(turnstile, "new", [], lambda turn: turn.meet() and None).start()
    again.join()  # it was there first, and warms up
    meeting = Side(turnstile, "base", [], lambda turn: turn.meet() and None).start()
    alone.join()  # no side is at its place any more
    Side(turnstile, "new", [], lambda turn: turn.offer() and None).start().join()
    assert not meeting.ended  # though base has warmed up
    new_side.give()
    time.sleep(0.05)
    assert not meeting.ended
    if how == "has no more of them":
        turnstile.leave("new")
        meeting.join()
        return
    if how == "leaves it out":
        other = Side(turnstile, "new", [], lambda turn: turn.take(place=2) and None).start()
    else:
        new_side.take(place=1)
        Side(turnstile, "new", [], lambda turn: turn.offer() and None).start().join()
        assert not meeting.ended
        other = Side(turnstile, "new", [], lambda turn: turn.meet() and None).start()
    meeting.join()
    base_side.give()
    other.join()


def test_launches_of_one_place_that_have_met_do_not_wait_for_each_other_again(turnstile: Turnstile) -> None:
    log: list[str] = []

    def launches(name: str) -> Callable[[Turn], None]:
        def work(turn: Turn) -> None:
            for place in range(3):
                with turn.held(place=place):
                    turn.offer()
                    turn.meet()
                    for _ in range(2):
                        log.append(f"{name} {place}")
                        turn.offer()

        return work

    turnstile.begin(["base", "new"])
    sides = [Side(turnstile, name, [], launches(name)).start() for name in ("base", "new")]
    for side in sides:
        side.join()
    places = [line.split()[1] for line in log]
    assert places == sorted(places)
    assert sorted(log[:4]) == ["base 0", "base 0", "new 0", "new 0"]
    assert log[0].split()[0] != log[1].split()[0]


@pytest.mark.parametrize(
    "line", ["take new", "take new x", "take new -1", "steal new", "meet", "\n", "take new 0 1"]
)
def test_who_does_not_know_how_to_ask_is_sent_away_alone(turnstile: Turnstile, line: str) -> None:
    base, new = turn_of(turnstile, "base"), turn_of(turnstile, "new")
    base.take()
    waiting = Side(turnstile, "third", [], lambda turn: turn.take() and None).start()
    _until(lambda: len(turnstile._waiting) == 1)
    new._socket.settimeout(PATIENCE_S)
    new._socket.sendall(f"{line}\n".encode())
    assert new._socket.recv(1) == b""
    base.give()
    waiting.join()


def test_whoever_waits_hears_that_the_comparison_has_ended(tmp_path: Path) -> None:
    turnstile = Turnstile()
    folder = turnstile.path.parent
    turn_of(turnstile, "base").take()
    found: list[str] = []

    def wait(turn: Turn) -> None:
        try:
            turn.take()
        except TurnstileGoneError as error:
            found.append(str(error))

    waiting = Side(turnstile, "new", [], wait).start()
    turnstile.close()
    waiting.join()
    assert found == ["the process that says whose turn it is has ended"]
    assert not folder.exists()
    with pytest.raises(TurnstileGoneError, match="does not say whose turn it is"):
        Turn(f"{tmp_path}/nothing base")


def test_a_wait_says_now_and_then_that_it_goes_on(
    turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpbench.runtime.turnstile._LOOK_S", 0.01)
    base, said = turn_of(turnstile, "base"), []
    base.take()

    def while_waiting() -> None:
        said.append(len(said))
        if len(said) == 3:
            base.give()

    other = turn_of(turnstile, "new")
    assert other.take(while_waiting) > 0.02e9
    assert len(said) >= 3


def test_a_rank_that_is_dying_while_its_side_goes_on_is_not_given_the_turn(turnstile: Turnstile) -> None:
    base, new, rank = (turn_of(turnstile, name) for name in ("base", "new", "base"))
    base.take()
    other = threading.Thread(target=new.take, daemon=True)
    other.start()
    _until(lambda: len(turnstile._waiting) == 1)
    offering = threading.Thread(target=lambda: _offered(rank), daemon=True)
    offering.start()
    other.join(PATIENCE_S)
    base.give()  # while its rank, which is to die, still waits
    again = threading.Thread(target=base.take, daemon=True)
    again.start()
    _until(lambda: [entry.side for entry in turnstile._waiting] == ["base"] and again.is_alive())
    time.sleep(0.05)
    new.give()
    again.join(PATIENCE_S)
    assert not again.is_alive()
    rank._socket.shutdown(2)
    offering.join(PATIENCE_S)


def test_no_turn_is_given_while_a_further_side_is_expected(turnstile: Turnstile) -> None:
    log: list[str] = []
    turnstile.begin(["base", "new"])
    base = turn_of(turnstile, "base")
    new = Side(turnstile, "new", log, lambda turn: log.append(f"new waited {turn.offer() > 0}")).start()
    base.offer()
    turnstile.expect("sweep")
    again = Side(turnstile, "base", log, lambda _: log.append(f"base waited {base.offer() > 0}")).start()
    deadline = time.monotonic() + PATIENCE_S
    while turnstile.holder:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    turnstile.leave("nobody")
    time.sleep(0.1)
    assert (turnstile.holder, log) == ("", [])
    turnstile.leave("sweep")
    new.join()
    turnstile.leave("new")
    again.join()
    assert log == ["new waited True", "new ends", "base waited True", "base ends"]


def test_the_anchor_of_two_groups_takes_turns_only_with_others_in_their_timed_blocks() -> None:
    turnstile = Turnstile(random.Random(3))
    log: list[tuple[str, int]] = []

    def launch(name: str, blocks: int) -> threading.Thread:
        turnstile.enter(name)

        def work() -> None:
            turn = turn_of(turnstile, name)
            for _ in range(3):  # the warm-up
                turn.offer()
                log.append((f"{name} warms up", turn.group))
            turn.meet()
            log.append((name, turn.group))
            for _ in range(blocks - 1):
                turn.offer()
                log.append((name, turn.group))
            turnstile.leave(name)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    turnstile.begin(["base", "a", "b"], anchor="base", anchor_turns=4)
    base, *first = [launch(name, count) for name, count in (("base", 10), ("a", 9), ("b", 9))]
    for thread in first:
        thread.join(PATIENCE_S)
    time.sleep(0.2)
    assert log.count(("base", 0)) == 4, "no more than its turns, and none when the others have ended"
    assert base.is_alive()
    assert turnstile.alternated("a") == (("b", "base"),)
    turnstile.go_on_with(["c"])
    launch("c", 5).join(PATIENCE_S)
    base.join(PATIENCE_S)
    assert log.count(("base", 1)) == 6
    at = [entry for entry, _ in log]
    assert at[at.index("c") - 1 - (log[at.index("c") - 1][0] == "base")] == "c warms up", (
        "the anchor waited meanwhile"
    )
    assert turnstile.alternated("base") == (("a", "b"), ("c",))
    assert turnstile.alternated("c") == (("base",),)
    assert turnstile.alternated("nobody") == ()
    turnstile.close()


def test_an_anchor_with_long_turns_keeps_time_for_the_next_group() -> None:
    turnstile = Turnstile(random.Random(3))
    log: list[tuple[str, int]] = []

    def launch(name: str, blocks: int, block_s: float) -> threading.Thread:
        turnstile.enter(name)

        def work() -> None:
            turn = turn_of(turnstile, name)
            turn.offer()
            time.sleep(4 * block_s)  # the warm-up, which does not count
            turn.meet()
            for number in range(blocks):
                log.append((name, turn.group))
                time.sleep(block_s)
                if number < blocks - 1:
                    turn.offer()
            turnstile.leave(name)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    turnstile.begin(["base", "a"], anchor="base", anchor_turns=24, anchor_s=0.05)
    base = launch("base", 5, 0.03)
    launch("a", 9, 0.001).join(PATIENCE_S)
    assert 1 <= log.count(("base", 0)) <= 2
    assert base.is_alive()
    turnstile.go_on_with(["b"], anchor_turns=24)
    launch("b", 9, 0.001).join(PATIENCE_S)
    assert 1 <= log.count(("base", 1)) <= 2, "each group has the same time"
    turnstile.go_on_with([])
    base.join(PATIENCE_S)
    assert not base.is_alive(), "among the last group it is not limited"
    turnstile.close()


def test_the_time_of_the_turn_in_which_a_side_meets_the_others_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([0, 100, 100, 200, 230])
    monkeypatch.setattr("ddpbench.runtime.turnstile.time.perf_counter_ns", lambda: next(now))
    shares = _Shares()
    shares.begin_turn("a")
    shares.count_again("a", "b", holder="a")
    shares.end_turn("a")
    assert shares.counted("a") == (0, 0)
    shares.begin_turn("a")
    shares.end_turn("a")
    assert shares.counted("a") == (1, 30)
    assert shares.held_ns("a") == 130
    assert shares.counted("b") == (0, 0)


def test_an_anchor_whose_next_group_never_comes_goes_on_alone() -> None:
    turnstile = Turnstile()
    turnstile.begin(["base"], anchor="base", anchor_turns=4)
    turnstile.enter("base")
    base = turn_of(turnstile, "base")
    base.meet()
    ended = threading.Event()

    def work() -> None:
        base.offer()
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    assert not ended.wait(0.2)
    turnstile.go_on_with(["c"])
    turnstile.leave("c")
    assert ended.wait(PATIENCE_S)
    turnstile.close()


def test_the_folder_of_a_killed_process_is_removed_by_the_next_turnstile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, lives = tmp_path / "ddpbench-turns-left", Turnstile()
    left.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left / "turnstile"))
    for folder in (left, lives.path.parent):
        os.utime(folder, (0, 0))
    (tmp_path / "ddpbench-turns-young").mkdir()
    Turnstile().close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["ddpbench-turns-young", lives.path.parent.name]
    )
    assert lives.serves
    lives.close()


def test_a_folder_whose_socket_answers_nobody_holds_no_turnstile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may have made it, because its folder is open to all users."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "ddpbench-turns-full"
    folder.mkdir()
    made: list[Turnstile] = []
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as waiting:
        listening.bind(str(folder / "turnstile"))
        listening.listen(0)
        os.utime(folder, (1, 1))
        with contextlib.suppress(BlockingIOError):
            while True:
                one = waiting.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(str(folder / "turnstile"))
        making = threading.Thread(target=lambda: made.append(Turnstile()), daemon=True)
        making.start()
        making.join(10)
        assert len(made) == 1
        made[0].close()
        assert folder.exists()


@pytest.mark.parametrize(
    ("limits", "highest", "raised"),
    [
        ((1024, 4096), 511, None),
        ((1024, 4096), 512, (4096, 4096)),
        ((1024, 2048), 600, (2048, 2048)),
        ((1024, resource.RLIM_INFINITY), 600, (4096, resource.RLIM_INFINITY)),
        ((1024, 1024), 900, None),
    ],
)
def test_a_turnstile_of_many_ranks_may_open_more_files(
    limits: tuple[int, int],
    highest: int,
    raised: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: found.append(given))
    _allow_more_descriptors(highest)
    assert found == ([raised] if raised else [])


def test_many_ranks_may_ask_at_once(turnstile: Turnstile) -> None:
    with turnstile._lock:  # nobody is accepted meanwhile
        turnstile._heard = lambda _: True  # type: ignore[method-assign]
        connections = []
        for _ in range(200):
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(PATIENCE_S)
            one.connect(str(turnstile.path))
            connections.append(one)
    for one in connections:
        one.close()
