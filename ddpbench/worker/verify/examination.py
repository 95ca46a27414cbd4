"""Examine a model before comparisons: whether it draws random numbers, writes to parameters, or leaves some unused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ddpbench.collectives.exchange import gather_values, texts
from ddpbench.worker.training.randomness import have_drawn, random_state
from ddpbench.worker.verify.one_process import Drawn, OneProcess
from ddpbench.worker.verify.optimizers import in_words
from ddpbench.worker.verify.tolerances import TOLERANCES, relative_error
from ddpbench.worker.verify.values import Tensors, has_numbers, infinite_of
from ddpbench.worker.verify.written import changed_since


@dataclass(slots=True)
class _Examined:
    differs: bool = False
    """True if the model's gradient depends on the seed."""
    writes: list[str] = field(default_factory=list)
    """Names of the parameters that the model's forward pass overwrites."""
    reached: list[set[str]] = field(default_factory=list)
    """For each of the two seeds, the names of the parameters that get a gradient."""
    infinite: list[str] = field(default_factory=list)
    """Names of the parameters whose gradient is not finite."""


def _examined(sent: Any) -> _Examined:
    """Parse a rank's findings (for `gather_values`).

    Raises:
        TypeError: a value has a wrong type.
        ValueError: the number of values is wrong.
    """
    differs, writes, reached, infinite = sent
    if not isinstance(differs, bool):
        raise TypeError("expected true or false")
    return _Examined(differs, texts(writes), [set(texts(each)) for each in reached], texts(infinite))


class Examination:
    """Findings about a model from the samples of all ranks."""

    def __init__(self, one: OneProcess, later: Sequence[Drawn] = ()) -> None:
        self._one, self._later = one, later
        self.draws = False
        """True if a step's gradient depends on the random seed, for example because of dropout."""
        self.writes: list[str] = []
        """Names of the parameters that the model's forward pass overwrites."""
        self.dropped: list[str] = []
        """Names of the parameters that get a gradient only on some ranks or only under some seeds."""
        self._infinite = ""

    def examine(self, model: torch.nn.Module) -> None:
        """Run `model` on this rank's shard under two seeds, exchange findings between ranks, and set the attributes."""
        number = self._one.own_shard
        trials: list[Tensors] = []
        found = _Examined()
        before = {name: each.detach() for name, each in model.named_parameters()}
        for turn in range(2):
            # In a copy, since a forward may change buffers such as running statistics.
            trial = self._one.copied(model)
            self._one.seed(number + turn * len(self._one.shards))
            start = random_state()
            trials.append(self._one.prover.gradient(trial, self._one.shards[number], self._one.precision))
            found.differs = found.differs or have_drawn(start, random_state())
            found.reached.append({name for name, each in trial.named_parameters() if each.grad is not None})
            found.writes += [name for name in changed_since(before, trial) if name not in found.writes]
        first, second = (list(each.values()) for each in trials)
        # Draws may come out alike under both seeds, and draws from a model's own generator are not seen.
        found.differs = found.differs or relative_error(first, second) > TOLERANCES[torch.float32]
        found.infinite = infinite_of(trials[0])
        # All ranks must make the same comparisons next.
        every = self._of_all_ranks(found)
        self.draws = any(each.differs for each in every)
        written, reached = (
            {name for each in every for name in each.writes},
            [one for each in every for one in each.reached],
        )
        used: set[str] = set().union(*reached)
        self.writes = [name for name in before if name in written]
        self.dropped = [name for name in before if name in used and any(name not in one for one in reached)]
        self._infinite = next(
            (self._on_infinite(rank, each.infinite) for rank, each in enumerate(every) if each.infinite), ""
        )

    def _of_all_ranks(self, own: _Examined) -> list[_Examined]:
        prover = self._one.prover
        if prover.processes == 1:
            return [own]
        sent = [own.differs, own.writes, [sorted(each) for each in own.reached], own.infinite]
        return gather_values(sent, _examined, prover.group)

    def _on_infinite(self, number: int, names: Sequence[str]) -> str:
        who = "replica" if self._one.training.strategy.one_process else "rank"
        why = (
            "its samples hold NaN or infinite values"
            if number in self.spoiled()
            else "have loss() give a finite one"
        )
        return (
            f"on {who} {number} the gradient of {in_words(names)} is not finite even without the strategy, so "
            f"nothing can be compared with it: {why}"
        )

    def spoiled(self) -> list[int]:
        """Return the numbers of the ranks or replicas whose samples contain NaN or infinite values."""
        batches = [self._one.shards, *(drawn.shards for drawn in self._later)]
        numbers = {
            number for batch in batches for number, shard in enumerate(batch) if not has_numbers(shard)
        }
        return sorted(
            number + self._one.training.case.world_size - len(self._one.shards) for number in numbers
        )

    @property
    def is_infinite(self) -> bool:
        """Return whether `examine` found a gradient that is not finite, on any rank."""
        return bool(self._infinite)

    def fault_of_infinite(self) -> str:
        """Return a sentence that names a gradient which is not finite even without the strategy, or `""`."""
        if not self._infinite and self._one.prover.processes == 1:
            for number, shard in enumerate(self._one.shards):
                if names := infinite_of(
                    self._one.prover.gradient(self._one.fresh(), shard, self._one.precision)
                ):
                    self._infinite = self._on_infinite(number, names)
                    break
        return self._infinite
