"""The ranks' knowledge of their passes over the data, and when that shows them uneven."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from ddpbench.worker.training import training
from ddpbench.worker.training.training import Training


class Stream:
    """Batches, the same again with each iteration, without a length."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.batches)


def rank_of(batches: int, taken: int, *, tells: bool) -> Training:
    """Return one of two ranks, whose pass has `batches` batches and which took some; its loader may tell its length."""
    loader = [torch.zeros(2)] * batches
    training = Training.__new__(Training)
    training.loader = loader if tells else Stream(loader)
    training.place = SimpleNamespace(processes=2)  # type: ignore[assignment]
    training.workload = SimpleNamespace(whole_batches=True, samples_in=lambda _: None)  # type: ignore[assignment]
    training._batch_types = set()
    training.samples, training.device, training.dtype = 2, torch.device("cpu"), torch.float32
    training._own_loader, training._passes, training._begun = True, [], 0
    for _ in itertools.islice(training.batches(), taken):
        pass
    return training


def verdict(monkeypatch: pytest.MonkeyPatch, *ranks: Training) -> str:
    """Return the message of the ranks' comparison: each contributes its numbers in turn, as in a collective."""
    lengths = [r._passes[0] if r._passes else training.steps_a_pass(r.loader) for r in ranks]
    gathered = iter([[-1 if n is None else n for n in lengths], [r._begun for r in ranks]])
    monkeypatch.setattr(training, "gather_number", lambda *_: next(gathered))
    try:
        ranks[0].check_even(None)  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)
    return ""


def test_passes_of_different_lengths_are_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    message = verdict(monkeypatch, rank_of(5, 0, tells=True), rank_of(4, 0, tells=True))
    assert "a pass over the data has 5 batches on rank 0 and 4 on rank 1" in message
    assert not verdict(monkeypatch, rank_of(5, 0, tells=True), rank_of(5, 0, tells=True))


def test_a_rank_that_went_beyond_anothers_end_is_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    message = verdict(monkeypatch, rank_of(4, 6, tells=False), rank_of(9, 6, tells=False))
    assert "a pass over the data has 4 batches on rank 0 and more on rank 1" in message


def test_a_rank_that_took_less_than_a_pass_is_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """With data in memory a rank with larger batches stops sooner: here at 3, while the other has been round."""
    assert not verdict(monkeypatch, rank_of(4, 6, tells=False), rank_of(4, 3, tells=False))
    assert not verdict(monkeypatch, rank_of(4, 6, tells=False), rank_of(4, 4, tells=False))
