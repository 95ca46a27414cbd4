"""The search for a slow commit, with made-up comparisons: how often it is right, and what it skips."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ddpbench.analysis.regression import Change
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.sequential import anytime_interval
from ddpbench.errors import LaunchError, RequestError
from ddpbench.launch.interleave.bisect import commits_between, found_words, search
from tests.synthetic import case_of

COMMITS = [f"{number:040x}" for number in range(1, 17)]
CASE = case_of("ddp", 2)


class Machine:
    """A machine whose rounds vary by 4 %: commits from `guilty` on take 8 % longer."""

    def __init__(
        self, guilty: int, *, change: float = 0.08, seed: int = 0, broken: tuple[int, ...] = ()
    ) -> None:
        self._slow = set(COMMITS[guilty:])
        self._change, self._broken = change, {COMMITS[index] for index in broken}
        self._dice = np.random.default_rng(seed)
        self.rounds = 0

    def measure(self, good: str, other: str, limit: float | None, alpha: float) -> Change:
        if other in self._broken:
            raise RequestError(f"{other} does not install")
        mean = math.log1p(self._change) if other in self._slow else 0.0
        logs: list[float] = []
        ratio = Interval(value=1.0)
        while len(logs) < 60:
            logs.append(self._dice.normal(mean, 0.04))
            ratio = anytime_interval(logs, alpha).exponential()
            if len(logs) < 5 or ratio.low is None or ratio.high is None:
                continue
            edge = 1 + (limit or 0.0)
            if ratio.low > edge or ratio.high < edge:
                break
        self.rounds += len(logs)
        assert ratio.low is not None
        verdict = "slower" if ratio.low > 1 else "cannot tell"
        return Change(label="ddp", case=CASE, verdict=verdict, ratio=ratio, rounds=len(logs))  # type: ignore[arg-type]


@pytest.mark.parametrize("searches", [16, pytest.param(48, marks=pytest.mark.thorough)])
def test_the_guilty_commit_of_sixteen_is_named_in_nine_of_ten(searches: int) -> None:
    right = 0
    for seed in range(searches):
        guilty = seed % 16
        found = search("good", COMMITS, Machine(guilty, seed=seed).measure)
        right += found.commits == (COMMITS[guilty],)
        assert found.ratio.low < 1.08 < found.ratio.high or seed > 0
    assert right >= 0.9 * searches, right


def test_what_does_not_run_is_skipped() -> None:
    found = search("good", COMMITS, Machine(9, broken=(6, 7, 8)).measure)
    assert COMMITS[9] in found.commits
    assert found.commits == tuple(COMMITS[6:10])  # the slow commit may be among the skipped ones
    assert {one.commit for one in found.tried if one.verdict == "skipped"} == set(COMMITS[6:9])
    assert "one of these 4 made it slower" in found_words(found)
    assert all(one.why for one in found.tried if one.verdict == "skipped")


def test_a_range_in_which_nothing_became_slower_is_said() -> None:
    with pytest.raises(LaunchError, match="is not shown to be slower"):
        search("good", COMMITS, Machine(3, change=0.0).measure)


def test_one_commit_needs_one_comparison() -> None:
    found = search("good", COMMITS[:1], Machine(0).measure)
    assert found.commits == (COMMITS[0],)
    assert found_words(found).startswith(f"{COMMITS[0]} made it slower: +")
    assert found.tried == ()


def test_commits_come_oldest_first_and_must_come_from_the_good_one(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        line = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    made = []
    for number in range(4):
        git("commit", "-q", "--allow-empty", "-m", str(number))
        made.append(git("rev-parse", "HEAD"))
    assert commits_between(tmp_path, made[0], "main") == made[1:]
    with pytest.raises(RequestError, match="does not come after"):
        commits_between(tmp_path, "main", made[0])
    with pytest.raises(RequestError, match="has no such commit"):
        commits_between(tmp_path, "nope", "main")
    with pytest.raises(RequestError, match="cannot start with -"):
        commits_between(tmp_path, "--all", "main")


def test_a_good_commit_may_lie_on_a_branch_that_was_merged(tmp_path: Path) -> None:
    """A release's tag, for example: the search covers the commits of the merged branch, from the merge on."""

    def git(*words: str) -> str:
        line = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    def commit(message: str) -> str:
        git("commit", "-q", "--allow-empty", "-m", message)
        return git("rev-parse", "HEAD")

    git("init", "-q", "-b", "main")
    start = commit("start")
    git("checkout", "-q", "-b", "release")
    good = commit("release")
    commit("on the branch")
    git("checkout", "-q", "main")
    before = commit("before the merge")
    git("merge", "-q", "--no-ff", "-m", "merge", "release")
    merge = git("rev-parse", "HEAD")
    last = commit("last")
    assert commits_between(tmp_path, good, "main") == [merge, last]
    assert commits_between(tmp_path, start, "main") == [before, merge, last]
    with pytest.raises(RequestError, match="does not come after"):
        commits_between(tmp_path, good, before)


def test_skipped_commits_cost_no_more_verdicts_than_are_corrected_for() -> None:
    """For every pattern of skips and every place, the search needs the answers of one without skips."""

    class Asked:
        def __init__(self, guilty: int, broken: int) -> None:
            self.guilty, self.broken, self.decided = guilty, broken, 0

        def measure(self, good: str, other: str, limit: float | None, alpha: float) -> Change:
            index = int(other)
            if limit is not None and self.broken >> index & 1:
                raise RequestError(f"{other} does not install")
            self.decided += 1
            slow = index >= self.guilty
            ratio = (
                Interval(value=1.08, low=1.07, high=1.09)
                if slow
                else Interval(value=1.0, low=0.99, high=1.01)
            )
            verdict = "slower" if slow else "equivalent"
            return Change(label="ddp", case=CASE, verdict=verdict, ratio=ratio, rounds=9)  # type: ignore[arg-type]

    for count in (2, 5, 8, 9):
        commits = [str(index) for index in range(count)]
        most = 1 + math.ceil(math.log2(count))
        for broken in range(2 ** (count - 1)):
            for guilty in range(count):
                asked = Asked(guilty, broken)
                search("good", commits, asked.measure)
                assert asked.decided <= most
