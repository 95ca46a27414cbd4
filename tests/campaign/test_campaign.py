"""Some of the campaign, and its corpus; `make campaign` tries all of it."""

from __future__ import annotations

import os
import sys

import pytest

from tests.campaign import faults, job
from tests.campaign.__main__ import chosen, run

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or not job.can_isolate(),
        reason="needs root to give each trial its own network, processes and /tmp",
    ),
]


def test_some_of_the_inputs_and_the_corpus() -> None:
    hold(chosen(inputs_wanted=6, share_of_faults=0.0, seed=19))


@pytest.mark.thorough
def test_a_hundredth_of_the_faults() -> None:
    hold(faults.drawn(0.01, seed=19))


def hold(names: list[str]) -> None:
    """Try all of these; none may go wrong."""
    answers = run(names, jobs=1, isolated=True)
    assert sorted(answer["name"] for answer in answers) == sorted(names)
    assert not (wrong := {answer["name"]: answer["wrong"] for answer in answers if answer["wrong"]}), wrong
