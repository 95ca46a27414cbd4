"""The measurement of one launch, from which statistics are computed."""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[int, str]
"""A round's number and the session that ran that part of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The measurement of one launch: seconds for a number of steps and samples of the job."""

    round: int
    """Its number, which is told; what is compared is matched by `pair`."""
    time_s: float
    steps: int
    samples: int
    session: str = ""
    """The sweep that ran it: a round may be completed by another one, hours later."""
    correlation: float = 0.0
    """The lag-1 correlation of its run's rounds that its intervals reckon with (`statistics/correlation.py`)."""

    @property
    def pair(self) -> Pair:
        """The key that two paired launches share: one session ran them in one round."""
        return self.round, self.session

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.time_s / self.steps

    @property
    def sample_s(self) -> float:
        """Seconds per sample of the whole job."""
        return self.time_s / self.samples
