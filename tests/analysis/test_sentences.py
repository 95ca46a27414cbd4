"""Sentences leave out conditions that a page shows nearby."""

from __future__ import annotations

import copy
import pickle

import pytest

from ddpbench.analysis.sentences import Sentence, but

SHARED = ("gpt:micro", "weak scaling with a local batch of 4", "CPU", "emulated 1 Gbit/s link")


@pytest.mark.parametrize(
    ("sentence", "whole", "short"),
    [
        (Sentence("", ["gpt:micro", "CPU"], after="Base case: single."), "gpt:micro, CPU. Base case: single.",
         "Base case: single."),
        (Sentence("DDP, 2 ranks", ["gpt:micro", "CPU"], joint="; "), "DDP, 2 ranks; gpt:micro, CPU.",
         "DDP, 2 ranks."),
        (Sentence("DDP", ["gpt:micro", "GPU"], ", gloo", "Dots."), "DDP, gpt:micro, GPU, gloo. Dots.",
         "DDP, GPU, gloo. Dots."),
        (Sentence("DDP at 2 ranks", ["gpt:micro", "emulated 1 Gbit/s link"], ": speed-up 1.61"),
         "DDP at 2 ranks, gpt:micro, emulated 1 Gbit/s link: speed-up 1.61.", "DDP at 2 ranks: speed-up 1.61."),
        (Sentence("Made on a CPU, gpt:micro, CPU"), "Made on a CPU, gpt:micro, CPU.",
         "Made on a CPU, gpt:micro, CPU."),
    ],
)  # fmt: skip
def test_a_sentence_leaves_out_conditions_that_are_shown_nearby(
    sentence: Sentence, whole: str, short: str
) -> None:
    assert sentence == whole
    assert sentence.but(()) == whole
    assert sentence.but(SHARED) == but(sentence, SHARED) == short
    assert but(whole, SHARED) == whole, "a text that knows no conditions stays as it is"


def test_what_qualifies_a_sentence_stands_before_its_full_stop() -> None:
    sentence = Sentence("DDP at 2 ranks", ["gpt:micro"], ": no")
    assert (
        sentence.qualified(["8 launches each", "CPU"])
        == "DDP at 2 ranks, gpt:micro: no (8 launches each; CPU)."
    )
    assert sentence.qualified([]) == sentence


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_knows_its_conditions(copied) -> None:  # type: ignore[no-untyped-def]
    """Another process makes the summary, and the cache keeps it."""
    sentence = copied(Sentence("DDP", ["gpt:micro"]))
    assert sentence == "DDP, gpt:micro."
    assert sentence.but(SHARED) == "DDP."
