"""The line on a user's class once it was tried."""

from __future__ import annotations

from ddpbench.runtime.trial import summary_of

FACTS = {"parameters": 1, "gradient_bytes": 4, "batch": "float32 [8]", "step": True}


def test_an_optimizer_that_calls_a_closure_is_said_to_need_one_loss_on_all_ranks() -> None:
    assert "LBFGS" not in summary_of("a.py:A", FACTS)
    line = summary_of("a.py:A", {**FACTS, "closure": "LBFGS"})
    assert "its LBFGS decides by the loss that its closure returns: average this loss over ranks" in line
    assert "updates parameters during backward" in summary_of("a.py:A", {**FACTS, "in_backward": True})
