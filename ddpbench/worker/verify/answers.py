"""Check what a strategy's replica returns, such as its loss or its update log, before a proof uses these values."""

from __future__ import annotations

from typing import Any

import torch

from ddpbench.strategies import Promise, Replica
from ddpbench.strategies.base import COARSEST_ROUNDOFF, CompensatedReplica, OrderedReplica, PeriodicReplica
from ddpbench.text_safety import shortened, with_article

_REPLICAS: dict[Promise, Any] = {
    "delayed": CompensatedReplica,
    "averaged": PeriodicReplica,
    "ordered": OrderedReplica,
}


def check_promised(replica: Replica, strategy: str, promise: Promise) -> None:
    """Refuse a replica whose class or attributes do not fit what its strategy promises.

    Raises:
        TypeError: the replica's class is wrong for the promise, its `unit_roundoff` is coarser than a proof allows, or
            it is a `CompensatedReplica` without a valid `exact_steps`.
    """
    wanted = _REPLICAS.get(promise, Replica)
    if not isinstance(replica, wanted):
        raise TypeError(
            f"{strategy} promises {promise!r}, but its build() returned {with_article(type(replica).__name__)}: "
            f"derive {type(replica).__name__} from ddpbench.strategies.base.{wanted.__name__}, or have promise() "
            "return another promise"
        )
    roundoff: Any = replica.unit_roundoff
    if not (isinstance(roundoff, int | float) and 0 <= roundoff <= COARSEST_ROUNDOFF):
        raise TypeError(
            f"{strategy}: its unit_roundoff is {shortened(roundoff)}; it must be a number from 0 to "
            f"{COARSEST_ROUNDOFF}. With a coarser one, wrong gradients would pass the proof"
        )
    steps = getattr(replica, "exact_steps", None)
    if isinstance(replica, CompensatedReplica) and not (isinstance(steps, int) and steps >= 0):
        raise TypeError(
            f"{type(replica).__name__}: its exact_steps is {shortened(steps)}; it must be a whole number, 0 or more"
        )


def loss_of(answer: Any) -> float:
    """Return `answer`, the return value of `gradients_of()`, as a float.

    Raises:
        TypeError: `answer` is neither a number nor a tensor with one element.
    """
    one = answer.numel() == 1 if isinstance(answer, torch.Tensor) else isinstance(answer, int | float)
    if not one:
        raise TypeError(
            f"gradients_of() returned {shortened(answer)}; it must return the rank's loss, detached, or its replica "
            "set knows_loss = False"
        )
    return float(answer)


def kept_of(replica: CompensatedReplica, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the replica's `kept()` tensors, checked to have the names and shapes of `gradients`.

    Raises:
        TypeError: `kept()` returned something other than tensors, or a tensor is missing or has a wrong shape.
    """
    answer: Any = replica.kept()
    problem = ""
    if not isinstance(answer, dict) or not all(torch.is_tensor(value) for value in answer.values()):
        problem = f"returned {_kind(answer)}"
    elif missing := [name for name in gradients if name not in answer]:
        problem = f"has no tensor for {missing[0]}"
    elif odd := [name for name, value in gradients.items() if answer[name].shape != value.shape]:
        name, given, wanted = odd[0], (*answer[odd[0]].shape,), (*gradients[odd[0]].shape,)
        problem = f"has a tensor of shape {given} for {name}, which has shape {wanted}"
    if problem:
        raise TypeError(
            f"{type(replica).__name__}: its kept() {problem}; it must return a dict with one tensor for each "
            "trained parameter, by the parameter's name and of its shape (zeros if nothing is kept)"
        )
    return {name: answer[name] for name in gradients}


def averaging_of(replica: PeriodicReplica, step: int, ranks: int) -> tuple[list[list[int]], bool]:
    """Check and return the result of the replica's `due(step)`.

    It is a list of groups of ranks, and whether parameters are averaged in this step.

    Raises:
        TypeError: `due()` returned something else, or a rank that is not from 0 to `ranks` - 1.
    """
    answer: Any = replica.due(step)
    fits = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], list | tuple)
    if fits:
        fits = all(
            isinstance(group, list | tuple)
            and all(isinstance(rank, int) and 0 <= rank < ranks for rank in group)
            for group in answer[0]
        )
    if not fits:
        raise TypeError(
            f"{type(replica).__name__}: its due({step}) returned {shortened(answer)}; it must return a pair: the "
            "groups of ranks, each a list, and whether parameters are averaged"
        )
    return answer[0], bool(answer[1])


def log_of(replica: OrderedReplica) -> list[tuple[int, int]]:
    """Check and return the replica's update log.

    Each pair is the rank whose gradient was applied, and the number of updates in the parameters that it used.

    Raises:
        TypeError: `log()` returned something else.
    """
    answer: Any = replica.log()
    fits = isinstance(answer, list) and all(
        isinstance(entry, tuple | list) and len(entry) == 2 and all(isinstance(each, int) for each in entry)
        for entry in answer
    )
    if not fits:
        raise TypeError(
            f"{type(replica).__name__}: its log() returned {shortened(answer)}; it must return a list with one "
            "pair per update: the rank that sent the gradient, and the number of updates in the parameters from "
            "which the rank computed it"
        )
    return [(int(rank), int(version)) for rank, version in answer]


def read_log(sent: Any) -> list[tuple[int, int]]:
    """Parse an update log that another rank has sent (for `gather_values`), and return its pairs of int.

    Raises:
        TypeError: the log has a value that is not an int.
        ValueError: an entry is not a pair.
    """
    pairs = [(rank, version) for rank, version in sent]
    if any(type(each) is not int for pair in pairs for each in pair):
        raise TypeError("whole numbers are expected")
    return pairs


def _kind(answer: Any) -> str:
    return "None" if answer is None else f"{with_article(type(answer).__name__)} that is not of tensors"
