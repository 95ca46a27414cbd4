"""Check that records belong to the launch in whose folder they are; others are reported and not used.

Records of older versions name only some of case, round, rank, number of ranks and run. If a plan has a run id, all
records have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddpbench.records.outcome import LaunchOutcome
from ddpbench.records.request import LaunchRequest
from ddpbench.records.rundir import LaunchDir, Purpose
from ddpbench.records.schema import RankStart
from ddpbench.spec import Case
from ddpbench.text_safety import on_one_line

MisplacedKind = Literal["mixed up", "unplanned", "misnamed", "rank", "unknown case"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder in a run directory that does not belong where it is. The analysis leaves it out."""

    kind: MisplacedKind
    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class Address:
    """The identity of a launch within a run, with which the launch's records must agree."""

    case: Case
    case_id: str
    purpose: Purpose
    round: int
    run_id: str = ""

    def misfit(self, outcome: LaunchOutcome, directory: LaunchDir) -> str:
        """Return a clause that says why an outcome belongs to a different launch; empty if nothing differs."""
        if outcome.case_id != self.case_id and not self._lent(outcome.case_id, directory):
            return f"it is of case {outcome.case_id!r}"
        if outcome.purpose != self.purpose:
            return "it is of a proof" if outcome.purpose == "proof" else f"it is of round {outcome.round}"
        if outcome.round != self.round:
            return f"it is of round {outcome.round}"
        if self.run_id and outcome.run_id != self.run_id:
            return "it is of another run"
        if len(outcome.exit_codes) not in (0, 1, self.case.world_size):
            return f"it had {len(outcome.exit_codes)} ranks, and the case has {self.case.world_size}"
        return ""

    def _lent(self, case_id: str, directory: LaunchDir) -> bool:
        """Return whether the proof was copied from this other case, which its `launch.json` still names."""
        if self.purpose != "proof" or not (self.case.fabric or self.case.recovery != "off"):
            return False
        try:
            lender = LaunchRequest.read(directory.request).case
        except (OSError, ValueError):
            return False
        return lender.case_id == case_id and lender.proof_key == self.case.proof_key

    def misfit_rank(self, start: RankStart, path: Path, outcome: LaunchOutcome | None) -> str:
        """Return a clause that says why a rank's records belong to a different launch; empty if nothing differs.

        `start` is the first record of the rank, and `path` the file of its records.
        """
        rank, attempt = rank_of(path)
        if (start.rank, start.attempt) != (rank, attempt):
            return f"it is of rank {start.rank}, attempt {start.attempt}"
        if start.world_size != self.case.world_size:
            return f"it is of a job of {start.world_size} ranks, and the case has {self.case.world_size}"
        if not self.run_id and not start.run_id:
            return ""  # records of older versions name no run
        return self._misfit_job(start, outcome)

    def _misfit_job(self, start: RankStart, outcome: LaunchOutcome | None) -> str:
        if self.run_id and start.run_id != self.run_id:
            return "it is of another run"
        if start.case_id != (self.case_id if outcome is None else outcome.case_id):
            return f"it is of case {start.case_id!r}"
        if start.round != self.round:
            return f"it is of round {start.round}"
        elastic = self.case.recovery == "leave"  # there may have been fewer ranks for a while
        if (
            outcome is not None
            and outcome.exit_codes
            and not elastic
            and start.ranks != len(outcome.exit_codes)
        ):
            return f"it is of a launch of {start.ranks} ranks, not of {len(outcome.exit_codes)}"
        return ""


def rank_of(path: Path) -> tuple[int, int]:
    """Read the rank and the number of its attempt from the name of a rank's file."""
    name = path.name
    if name[10:19] == ".attempt-":  # a rank of five digits, as in nearly all names
        return int(name[5:10]), int(name[19 : name.index(".", 19)])
    rank, attempt = name.removeprefix("rank-").split(".")[:2]
    return int(rank), int(attempt.removeprefix("attempt-"))


_SENTENCES: dict[MisplacedKind, tuple[str, str]] = {
    "mixed up": (
        "launch is left out: its folder holds another launch's records",
        "launches are left out: their folders hold another launch's records",
    ),
    "unplanned": (
        "launch is left out: it is not in the plan",
        "launches are left out: they are not in the plan",
    ),
    "misnamed": (
        "folder is left out: its name is not the name of a launch",
        "folders are left out: their names are not names of launches",
    ),
    "rank": (
        "rank's file is left out: it does not belong to its launch",
        "ranks' files are left out: they do not belong to their launches",
    ),
    "unknown case": (
        "folder is left out: the plan has no such case",
        "folders are left out: the plan has no such cases",
    ),
}
"""By kind, the words for one file or folder that was left out, and the words for several, without their number."""


def left_out_sentences(left_out: Iterable[LeftOut], root: Path) -> list[str]:
    """Describe the misplaced files: one sentence for each kind, with the number of files and the path of the first."""
    found = list(left_out)
    counts = Counter(one.kind for one in found)
    sentences = []
    for kind, (single, many) in _SENTENCES.items():
        if counts[kind]:
            first = next(one for one in found if one.kind == kind)
            relative = first.path.relative_to(root) if first.path.is_relative_to(root) else first.path
            name = on_one_line(str(relative))
            why = f": {on_one_line(first.why)}" if first.why else ""
            head = f"1 {single}" if counts[kind] == 1 else f"{counts[kind]:,} {many}"
            where = f"({name}{why})" if counts[kind] == 1 else f"(the first: {name}{why})"
            sentences.append(f"{head} {where}.")
    return sentences
