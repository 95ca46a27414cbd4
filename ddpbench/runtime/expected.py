"""Estimate how long the rest of a sweep will take, corrected by the times of the launches so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpbench.records import LaunchOutcome
from ddpbench.runtime.estimate import Tried, crowded_ids, launch_s, proof_s, server_starts_s
from ddpbench.runtime.finished import LaunchKey
from ddpbench.runtime.progress import Done, Launches, to_prove
from ddpbench.spec import Case, PlannedCase


class Expected:
    """Estimates how long the rest of a plan will take (s), corrected by the times of the launches so far."""

    def __init__(
        self, plan: Launches, done: Done, *, shared: bool, tried: Mapping[str, Tried] | None = None
    ) -> None:
        """Set up the estimates.

        With `shared`, sweeps share the machine and start fork servers only once. `tried` has the measured times of
        users' own workloads, by workload name with options.
        """
        self._budget, self._done, self._shared = plan.budget, done, shared
        self._tried = tried or {}
        self._rounds_min = plan.budget.rounds_min
        self._took_s = self._guessed_s = 0.0
        self._own_s: dict[str, tuple[float, int]] = {}
        """Each case's total launch time and number of launches, by its id."""
        self._cases = {entry.case.case_id: entry.case for entry in plan.runnable}
        self._crowded = crowded_ids(plan.runnable)
        self.server_start_s = server_starts_s(1, self._cases.values(), shared=shared)
        """Estimated time to start the fork servers of one round (s)."""

    def note(self, case: Case, outcome: LaunchOutcome, took_s: float) -> None:
        """Record how long a measuring launch took, to correct later estimates."""
        self._took_s += took_s
        self._guessed_s += self._guess_s(case)
        if outcome.status == "ok":
            own_s, launches = self._own_s.get(case.case_id, (0.0, 0))
            self._own_s[case.case_id] = own_s + took_s, launches + 1

    def note_finished(self, outcomes: Mapping[LaunchKey, LaunchOutcome]) -> None:
        """Record how long the successful measuring launches of earlier sessions took."""
        for (case_id, purpose, _), outcome in outcomes.items():
            if purpose == "measure" and outcome.status == "ok":
                self.note(self._cases[case_id], outcome, outcome.wall_s)

    def launch_s(self, entry: PlannedCase) -> float:
        """Return the expected time of a launch (s): the mean of its launches so far, if there are any.

        Otherwise the estimate is corrected by the ratio of other cases' times to their estimates.
        """
        if own := self._own_s.get(entry.case.case_id):
            return own[0] / own[1]
        return self._guess_s(entry.case) * (self._took_s / self._guessed_s if self._guessed_s else 1.0)

    def _guess_s(self, case: Case) -> float:
        tried, crowded = self._tried.get(case.workload_with_options), case.case_id in self._crowded
        return launch_s(case, self._budget, tried, crowded=crowded)

    def proof_s(self, case: Case) -> float:
        """Return the estimated time of the case's proof (s)."""
        tried, crowded = self._tried.get(case.workload_with_options), case.case_id in self._crowded
        return proof_s(case, tried, crowded=crowded)

    def round_s(self, launches: Sequence[PlannedCase]) -> float:
        """Return the expected time of one more round that launches each of these cases once (s)."""
        return sum(self.launch_s(entry) for entry in launches) + self._starts_s(1)

    def left_s(self, number: int) -> float:
        """Return the expected time of all proofs and launches left in the first `rounds_min` rounds (s).

        Round `number` is running.
        """
        return self._needed_s(max(self._rounds_min, number + 1), self._rounds_min - number - 1)

    def rounds_within(self, seconds: float, number: int) -> int:
        """Return how many of the first `rounds_min` rounds will be complete after another `seconds`.

        Round `number` is the next to run.
        """
        for rounds in range(self._rounds_min, 0, -1):
            if self.whole_s(rounds, number) <= seconds:
                return rounds
        return 0

    def whole_s(self, rounds: int, number: int) -> float:
        """Return the expected time to complete `rounds` rounds and all proofs (s), if round `number` is next."""
        return self._needed_s(rounds, rounds - max(number, 1))

    def _needed_s(self, rounds: int, starts: int) -> float:
        """Return the time left for `rounds` rounds, all proofs and `starts` server starts (s)."""
        needed_s = sum(self.proof_s(case) for case in to_prove(self._done.unproved))
        needed_s += self._starts_s(starts)
        return needed_s + sum(
            self._done.unfinished(entry, rounds) * self.launch_s(entry) for entry in self._done.worthwhile
        )

    def _starts_s(self, rounds: int) -> float:
        """Return the time to start servers for `rounds` rounds (s); 0 if they keep running."""
        return 0.0 if self._shared else max(0, rounds) * self.server_start_s
