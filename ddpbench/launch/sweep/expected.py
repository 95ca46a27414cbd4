"""How long what is left of a sweep will take: as was guessed, put right by what launches took."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.launch.estimate import SERVER_START_S
from ddpbench.launch.plan import Plan, to_prove
from ddpbench.launch.sweep.done import Done
from ddpbench.records import LaunchOutcome
from ddpbench.spec import Case, PlannedCase


class Expected:
    """What is left of a plan, seconds."""

    def __init__(self, plan: Plan, done: Done, *, shared: bool) -> None:
        """`shared`: sweeps share the machine, so that all rounds have the same fork servers."""
        self._plan, self._done, self._shared = plan, done, shared
        self._rounds_min = plan.experiment.budget.rounds_min
        self._took_s = self._guessed_s = 0.0
        self._own_s: dict[str, list[float]] = {}
        """How long each case's launches took, by its id."""

    def note(self, case: Case, outcome: LaunchOutcome, took_s: float) -> None:
        """Notes what a measuring launch took, for what later ones will take."""
        self._took_s += took_s
        self._guessed_s += self._plan.launch_s(case)
        if outcome.status == "ok":
            self._own_s.setdefault(case.case_id, []).append(took_s)

    def launch_s(self, entry: PlannedCase) -> float:
        """A launch of the case: as its own took; before there are any as was guessed, put right by others'."""
        if own := self._own_s.get(entry.case.case_id):
            return sum(own) / len(own)
        return self._plan.launch_s(entry.case) * (self._took_s / self._guessed_s if self._guessed_s else 1.0)

    def round_s(self, launches: Sequence[PlannedCase]) -> float:
        """One more round, of a launch of each of these cases."""
        return sum(self.launch_s(entry) for entry in launches) + self._starts_s(1)

    def left_s(self, number: int) -> float:
        """The proofs and launches of the promised rounds, from a launch of that round on."""
        return self._needed_s(max(self._rounds_min, number + 1), self._rounds_min - number - 1)

    def rounds_within(self, seconds: float, number: int) -> int:
        """Return how many of the promised rounds will be whole after so long, where round `number` is next."""
        for rounds in range(self._rounds_min, 0, -1):
            if self._needed_s(rounds, rounds - max(number, 1)) <= seconds:
                return rounds
        return 0

    def _needed_s(self, rounds: int, starts: int) -> float:
        """Return what is left of so many rounds, with the proofs before them and so many starts of servers."""
        needed_s = sum(self._plan.proof_s(case) for case in to_prove(self._done.unproved))
        needed_s += self._starts_s(starts)
        return needed_s + sum(
            self._done.unfinished(entry, rounds) * self.launch_s(entry) for entry in self._done.worthwhile
        )

    def _starts_s(self, rounds: int) -> float:
        """Starting fork servers for so many rounds that are not begun; those that serve all rounds run by now."""
        return 0.0 if self._shared else max(0, rounds) * SERVER_START_S
