"""Find the commit that made training slower, by a binary search in which each commit is compared with the good end.

A commit's ratio is its step time divided by the good end's. It is slow or fast if the ratio is shown to be above or
below the geometric mean of 1 and the bad end's ratio. A commit that stays undecided or does not run is skipped as by
`git bisect skip`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from ddpbench.errors import DdpbenchError, LaunchError, RequestError
from ddpbench.launch.interleave.sides import commit_named, git, is_in_repository, why_no_repository

if TYPE_CHECKING:
    from ddpbench.analysis.regression import Change
    from ddpbench.analysis.statistics.interval import Interval


class Measure(Protocol):
    """A function that compares two commits."""

    def __call__(self, good: str, other: str, limit: float | None, alpha: float) -> Change:
        """Return how the other commit's step time compares with the good commit's.

        Rounds end once the change's interval at confidence `1 - alpha` is entirely above or below `limit` (a fraction).
        If `limit` is None, rounds end once the change's verdict is clear.

        Raises:
            DdpbenchError: a commit cannot be measured.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedCommit:
    """A commit that was measured or skipped. `ratio` is its step time divided by the good commit's."""

    commit: str
    verdict: Literal["fast", "slow", "skipped"]
    ratio: float | None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """The result of a search. `commits` has the first slow commit, or several candidates if commits were skipped.

    `ratio` is the bad end's step time divided by the good end's, with its interval.
    """

    commits: tuple[str, ...]
    ratio: Interval
    tried: tuple[TriedCommit, ...]


def commits_between(folder: Path, good: str, bad: str) -> list[str]:
    """Return the commits after `good` up to `bad`, oldest first, along the first parents of `bad`.

    Raises:
        RequestError: a name is not a commit, or the bad commit does not descend from the good one.
    """
    if not is_in_repository(folder):
        raise RequestError(f"bisect searches the commits of a repository: {why_no_repository(folder)}")
    for name in (good, bad):
        try:
            commit_named(folder, name)
        except RequestError as error:
            raise RequestError(f"{name}: {error}") from None
    between = f"{good}..{bad}"
    # With both flags together, git finds nothing if the good commit is on a merged branch.
    later = set(git(folder, "rev-list", "--ancestry-path", between).split())
    line = git(folder, "rev-list", "--reverse", "--first-parent", between).split()
    commits = [commit for commit in line if commit in later]
    if not commits:
        raise RequestError(f"{bad} does not come after {good}")
    return commits


def search(
    good: str,
    commits: Sequence[str],
    measure: Measure,
    *,
    alpha: float = 0.05,
    event: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Find the first slow commit in `commits`. The commits follow `good`, the good end; the last one is the bad end.

    All verdicts together are right with confidence `1 - alpha`.

    Raises:
        LaunchError: the bad end is not shown to be slower, so that there is nothing to find.
        DdpbenchError: one of the ends cannot be measured.
    """
    steps = 1 + math.ceil(math.log2(len(commits))) if len(commits) > 1 else 1
    level = alpha / steps
    ends = measure(good, commits[-1], None, level)
    ratio = ends.ratio
    if ends.verdict != "slower" or ratio is None or ratio.low is None or ratio.high is None:
        raise LaunchError(
            f"{_short(commits[-1])} is not shown to be slower than {_short(good)} "
            f"({ends.verdict}{_seen(ends)}): to decide, give each comparison more time with --total"
        )
    event(f"{_short(commits[-1])} against {_short(good)}: {100 * (ratio.value - 1):+.1f} % time")
    limit = math.sqrt(ratio.value) - 1
    tried: list[TriedCommit] = []
    skipped: set[int] = set()
    fast, slow = -1, len(commits) - 1
    while open_ := [index for index in range(fast + 1, slow) if index not in skipped]:
        # Choose the middle of the measurable commits, so that `steps` verdicts are enough.
        index = open_[len(open_) // 2]
        one = _look(good, commits[index], measure, limit, level)
        tried.append(one)
        difference = f" ({100 * (one.ratio - 1):+.1f} %)" if one.ratio is not None else ""
        event(f"{_short(one.commit)}: {one.verdict}{difference}{f': {one.why}' if one.why else ''}")
        if one.verdict == "skipped":
            skipped.add(index)
        elif one.verdict == "slow":
            slow = index
        else:
            fast = index
    return SearchResult(
        commits=tuple(commits[fast + 1 : slow + 1]),
        ratio=ratio,
        tried=tuple(tried),
    )


def _look(good: str, commit: str, measure: Measure, limit: float, alpha: float) -> TriedCommit:
    try:
        change = measure(good, commit, limit, alpha)
    except DdpbenchError as error:  # other commits may still run
        return TriedCommit(commit=commit, verdict="skipped", ratio=None, why=str(error))
    ratio = change.ratio
    if ratio is None:
        return TriedCommit(commit=commit, verdict="skipped", ratio=None, why=change.reason)
    if change.beyond(limit):
        return TriedCommit(commit=commit, verdict="slow", ratio=ratio.value)
    if change.within(limit):
        return TriedCommit(commit=commit, verdict="fast", ratio=ratio.value)
    return TriedCommit(
        commit=commit, verdict="skipped", ratio=ratio.value, why=change.reason or "undecided in its time"
    )


def _seen(change: Change) -> str:
    if change.resolvable is None:
        return ""
    from ddpbench.analysis.regression.wording import seen_words

    return f"; {seen_words(change.resolvable)}"


def _short(commit: str) -> str:
    return commit[:12] if len(commit) == 40 else commit


def found_words(found: SearchResult) -> str:
    """Return sentences that name the commits that a search found, and give the change over the whole range."""
    ratio = found.ratio
    value, low, high = (f"{100 * (one - 1):+.1f}" for one in (ratio.value, ratio.low, ratio.high) if one)
    change = f"{value} % ({low} to {high})"
    if len(found.commits) == 1:
        return f"{found.commits[0]} made it slower: {change} over the whole range"
    listed = "\n".join(f"  {commit}" for commit in found.commits)
    return f"one of these {len(found.commits)} made it slower, {change} over the whole range:\n{listed}"
