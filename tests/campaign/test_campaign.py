"""A hundredth of the campaign: of its inputs, with its corpus, and, as a thorough test, of its faults."""

from __future__ import annotations

import os
import sys

import pytest

from tests.campaign import job
from tests.campaign.__main__ import chosen, run

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or not job.can_isolate(),
        reason="needs root to give each trial its own network, processes and /tmp",
    ),
]


@pytest.mark.parametrize(
    ("inputs_wanted", "share_of_faults"),
    [
        pytest.param(10, 0.0, id="inputs and corpus"),
        pytest.param(0, 0.01, id="faults", marks=pytest.mark.thorough),
    ],
)
def test_a_hundredth_of_the_campaign(inputs_wanted: int, share_of_faults: float) -> None:
    names = chosen(
        inputs_wanted=inputs_wanted, share_of_faults=share_of_faults, seed=19, with_corpus=inputs_wanted > 0
    )
    answers = run(names, jobs=1, isolated=True)
    assert sorted(answer["name"] for answer in answers) == sorted(names)
    assert not (wrong := {answer["name"]: answer["wrong"] for answer in answers if answer["wrong"]}), wrong
