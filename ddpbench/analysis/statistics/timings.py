"""The measurement of one launch, from which all statistics are computed."""

from __future__ import annotations

from dataclasses import dataclass

TimingKey = tuple[int, str]
"""Number of a round, and the session that ran the launch; two sessions may run parts of one round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The measurement of one launch: the seconds that a number of steps and samples of the job took."""

    round: int
    """Number of the launch's round, for display; comparisons match launches by `pair`."""
    time_s: float
    steps: int
    samples: int
    session: str = ""
    """The sweep session that ran the launch; a different session may complete a round hours later."""
    correction: float = 1.0
    """Factor of the time in comparisons with launches of other groups of its round (`read/alternation.py`)."""
    correlation: float = 0.0
    """The lag-1 correlation of the run's rounds for which intervals are widened (`statistics/correlation.py`)."""

    @property
    def pair(self) -> TimingKey:
        """Return the key that two launches of one session have in common if they ran in one round."""
        return self.round, self.session

    @property
    def step_s(self) -> float:
        """Return seconds per step of this launch alone; comparisons with other cases use `compared_s`."""
        return self.time_s / self.steps

    @property
    def sample_s(self) -> float:
        """Return seconds per sample of this launch alone, where samples are those of all ranks together."""
        return self.time_s / self.samples

    @property
    def compared_s(self) -> float:
        """Return seconds per sample as compared with other launches of the round."""
        return self.sample_s * self.correction
