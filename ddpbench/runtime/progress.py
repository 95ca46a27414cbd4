"""Keep track of which launches of a plan are done and which are left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ddpbench.errors import IdentityError, RecordError
from ddpbench.naming import Namer
from ddpbench.records import Address, LaunchDir, LaunchOutcome, RunDir
from ddpbench.records.machine import read_machine
from ddpbench.records.reader import read_outcome
from ddpbench.records.rundir import Purpose
from ddpbench.removal import remove_tree
from ddpbench.runtime.finished import Endings, LaunchKey, finished_launches
from ddpbench.spec import Budget, Case, PlannedCase
from ddpbench.units import counted, format_seconds


class Launches(Protocol):
    """Interface of a plan of launches, either new or read from a run directory."""

    @property
    def run_id(self) -> str:
        """Return the run's id, as in its records; `""` in runs of older versions."""

    @property
    def budget(self) -> Budget:
        """Return the budget, which says how long and how often to launch."""

    @property
    def runnable(self) -> tuple[PlannedCase, ...]:
        """Return the cases that are not skipped."""

    @property
    def order(self) -> Sequence[tuple[int, str]]:
        """Return the (round, case id) of every measuring launch, in launch order."""


def to_prove(entries: Iterable[PlannedCase]) -> list[Case]:
    """Return the cases to prove: the first case of each set that can share a proof."""
    first: dict[str, Case] = {}
    for entry in entries:
        first.setdefault(entry.case.proof_key, entry.case)
    return list(first.values())


class Done:
    """Keeps track of the finished launches of a plan."""

    def __init__(self, run: RunDir, plan: Launches) -> None:
        self._run, self._plan = run, plan
        self._damaged: set[LaunchKey] = set()
        self.endings = Endings((entry.case.case_id for entry in plan.runnable), plan.budget.rounds_max)

    def read(self) -> Mapping[LaunchKey, LaunchOutcome]:
        """Record the launches that earlier sessions finished, and return their outcomes."""
        cases = [entry.case for entry in self._plan.runnable]
        outcomes, self._damaged = finished_launches(self._run, cases, self._plan.run_id)
        for key, outcome in outcomes.items():
            self.endings[key] = outcome.status
        return {key: outcome for key, outcome in outcomes.items() if self.endings[key] is not None}

    def set_failed_aside(self) -> None:
        """Move away the records of failed or damaged launches, so that they are repeated."""
        for key in list(self.endings.finished()):
            if self.endings[key] != "ok" or key in self._damaged:
                self._run.set_aside(self._run.launch(*key))
                self.endings[key] = None

    def set_aside(self, entries: Iterable[PlannedCase], number: int) -> None:
        """Move away the records of these cases' successful launches of round `number`, so that they are repeated."""
        for entry in entries:
            key: LaunchKey = entry.case.case_id, "measure", number
            if self.endings[key] == "ok":
                self._run.set_aside(self._run.launch(*key))
                self.endings[key] = None

    def finished(self, entry: PlannedCase, purpose: Purpose, number: int) -> bool:
        """Return whether a launch is finished."""
        return self.endings[entry.case.case_id, purpose, number] is not None

    @property
    def unproved(self) -> list[PlannedCase]:
        """Return the cases whose proof has not run."""
        return [entry for entry in self._plan.runnable if not self.finished(entry, "proof", 0)]

    @property
    def worthwhile(self) -> list[PlannedCase]:
        """Return the cases that are still worth launching (not `given_up`)."""
        return [entry for entry in self._plan.runnable if not self.given_up(entry)]

    def given_up(self, entry: PlannedCase) -> bool:
        """Return whether a case's proof failed, or several of its launches failed and none succeeded.

        Such a case is not launched again.
        """
        return self.endings.given_up(entry.case.case_id)

    def of_round(self, number: int) -> list[PlannedCase]:
        """Return all cases of round `number`, finished or not, in launch order."""
        known = {entry.case.case_id: entry for entry in self._plan.runnable}
        return [known[case_id] for at, case_id in self._plan.order if at == number]

    def left_of_round(self, number: int) -> list[PlannedCase]:
        """Return the cases of round `number` that are still to be launched, in launch order."""
        return [
            entry
            for entry in self.of_round(number)
            if not self.finished(entry, "measure", number) and not self.given_up(entry)
        ]

    def unfinished(self, entry: PlannedCase, rounds: int) -> int:
        """Return how many of a case's launches in the first `rounds` rounds are not finished."""
        return self.endings.unfinished(entry.case.case_id, rounds)

    def rounds_todo(self, rounds: int) -> int:
        """Return how many launches are left in the first `rounds` rounds. Cases that were given up don't count."""
        return sum(self.unfinished(entry, rounds) for entry in self.worthwhile)

    def take_proof(self, entry: PlannedCase) -> bool:
        """Copy a successful proof of this run with the same proof key; return whether one exists.

        The cases differ only in link rates, time dilation or recovery settings. The copy keeps the launched case's
        name.
        """
        case_id = entry.case.case_id
        for other in self._plan.runnable:
            proof = self.endings[other.case.case_id, "proof", 0]
            if proof != "ok" or other.case.proof_key != entry.case.proof_key:
                continue
            self._copy_proof(case_id, self._run.launch(other.case.case_id, "proof"))
            return True
        return False

    def borrow_proof(self, entry: PlannedCase, lenders: Iterable[RunDir]) -> bool:
        """Copy a successful proof of the same case from the first of `lenders` that has it; return whether one has.

        Both runs must have the same run id, machine, code, workload and torch.
        """
        case_id = entry.case.case_id
        for lender in lenders:
            launch = lender.launch(case_id, "proof")
            with contextlib.suppress(FileNotFoundError, RecordError, IdentityError, OSError):
                outcome = read_outcome(launch)
                fits = not Address(entry.case, case_id, "proof", 0, self._plan.run_id).misfit(outcome, launch)
                if fits and outcome.status == "ok" and _conditions(lender) == _conditions(self._run):
                    self._copy_proof(case_id, launch)
                    return True
        return False

    def _copy_proof(self, case_id: str, proof: LaunchDir) -> None:
        target = self._run.launch(case_id, "proof").path
        copy = target.with_name(".proof")
        remove_tree(copy)  # left by a sweep that was killed right here
        proof.copy_to(copy)
        if target.exists():
            self._run.set_aside(self._run.launch(case_id, "proof"))
        copy.rename(target)
        self.endings[case_id, "proof", 0] = "ok"


def _conditions(run: RunDir) -> dict[str, object]:
    return {key: value for key, value in read_machine(run)["identity"].items() if key != "experiment_digest"}


def left_out_words(names: Namer, done: Done, budget: Budget) -> str:
    """Describe planned launches that were not run because the time budget was spent; `""` if all were run."""
    left = {
        entry.case: count for entry in done.worthwhile if (count := done.unfinished(entry, budget.rounds_min))
    }
    if not left:
        return ""
    whole = budget.rounds_min - max(left.values())
    total = f"budget.total, {format_seconds(budget.total)}, is spent"
    launches = counted(sum(left.values()), "launch", "launches")
    text = f"{total} after {whole} of {counted(budget.rounds_min, 'round')}: {launches} not run"
    behind = [names.full(case) for case, count in left.items() if budget.rounds_min - count == whole]
    if len(behind) < len(done.worthwhile):
        text += f" (of round {whole + 1} those of {', '.join(behind)})"
    return text
