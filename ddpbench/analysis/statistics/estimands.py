"""Names of the estimands, which are the printed summaries of several launches or rounds.

All tables and sentences use them.

- A case's own step time, and everything per launch: the median over launches (`stats.median_launch`).
- Two cases of one sweep: the geometric mean of the ratios within rounds (`stats.compare`).
- Two runs, and the runs of a history: the geometric mean over launches (`stats.geometric_mean`), and its quotients.
- Two interleaved sides: the geometric mean for each side, and the typical round for their change
  (`sequential.middle_of`).
- The parts of a step: the median over launches too, each part by itself (`read.overlap`). Their change between two
  runs: the difference of the medians (`stats.median_difference`), and, if interleaved, the typical round.
- Costs that add up over a job, such as those of snapshots, failures and checkpoints: the arithmetic mean over launches
  (`stats.mean_step_s`). Their share of time and the best interval between saves are computed from this mean.
"""

from __future__ import annotations

MEDIAN = "median over launches"
"""Estimand of a step time or a rate in a table, a figure or a sentence."""
MEDIAN_LAUNCH = "median launch"
"""Name of the launch whose step time is the median."""
MEDIAN_INTERVALS = "the median's 95 % intervals"
"""Meaning of the whiskers and brackets around a median."""
WITHIN_ROUNDS = "geometric mean of the ratios within rounds"
GEOMETRIC_MEANS = "geometric means over launches"
TYPICAL_ROUND = "that of the typical round (Huber's location of the rounds' log ratios)"
