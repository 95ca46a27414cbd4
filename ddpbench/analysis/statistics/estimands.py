"""What a number of several launches or rounds is, in words: the same words wherever such a number is printed.

- A case's own step time, and all that is per launch: the median launch (`stats.median_launch`).
- Two cases of one sweep: the geometric mean of the ratios within rounds (`stats.compare`).
- Two sides in turn: the typical round, Huber's location of the rounds' log ratios (`sequential.middle_of`).
- Two runs, and a history's runs: the geometric mean of a run's launches (`apart.within`).
- The parts of a step: means over launches, which add up (`read.overlap`).
"""

from __future__ import annotations

MEDIAN = "median over launches"
"""Of a step time or a rate in a table, a figure or a sentence."""
MEDIAN_LAUNCH = "median launch"
"""The same, as what has a step time."""
MEDIAN_INTERVALS = "the median's 95 % intervals"
"""What whiskers and brackets around it are."""
WITHIN_ROUNDS = "geometric mean of the ratios within rounds"
TYPICAL_ROUND = "the typical round's (Huber's location of the rounds' log ratios)"
GEOMETRIC_MEANS = "the ratio of the launches' geometric means"
