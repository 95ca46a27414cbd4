"""Run, under a strategy, training steps that a user's class makes itself.

The class calls forward, `backward()` and its optimizers as in the user's own loop. The strategy provides the network,
and acts at the end of each backward. Recorded time outside backward and optimizers' steps counts as forward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddpbench.measure.clock import Mark
from ddpbench.strategies.base import Job
from ddpbench.text_safety import with_article


class Optimizers:
    """All optimizers of a class that makes its own steps, with the interface of a single optimizer for strategies.

    `given` is what the class's `optimizer` returned: an optimizer, or a tuple, list or dict of optimizers and their
    schedulers.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.all: list[torch.optim.Optimizer] = [
            each for each in _parts(given) if isinstance(each, torch.optim.Optimizer)
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for one in self.all for group in one.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        """The state of all optimizers, by parameter."""
        return {key: value for one in self.all for key, value in one.state.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state dicts of all optimizers, by the optimizer's number as text."""
        return {str(number): one.state_dict() for number, one in enumerate(self.all)}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients of all optimizers' parameters."""
        for one in self.all:
            one.zero_grad(set_to_none=set_to_none)

    def replaced(self, make: Callable[[torch.optim.Optimizer], torch.optim.Optimizer]) -> Optimizers:
        """Return a copy with the same structure, in which `make(optimizer)` replaces each optimizer."""
        return Optimizers(
            _mapped(self.given, lambda each: make(each) if isinstance(each, torch.optim.Optimizer) else each)
        )


def _parts(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        return [part for value in given.values() for part in _parts(value)]
    return [part for value in given for part in _parts(value)] if isinstance(given, tuple | list) else [given]


def _mapped(given: Any, act: Callable[[Any], Any]) -> Any:
    if isinstance(given, Mapping):
        return {key: _mapped(value, act) for key, value in given.items()}
    if isinstance(given, tuple | list):
        parts = [_mapped(value, act) for value in given]
        return type(given)(*parts) if hasattr(given, "_fields") else type(given)(parts)
    return act(given)


def network_of(job: Job) -> nn.Module:
    """Return the network for a workload's own step, before a strategy wraps it."""
    network: Any = job.model.network
    return network  # type: ignore[no-any-return]


def each_part(network: nn.Module, wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Wrap the network, or each part of a ModuleDict or ModuleList, by `wrap`.

    A part without trained parameters stays as it is, because it has no gradients to aggregate.
    """

    def wrapped(part: nn.Module) -> nn.Module:
        return wrap(part) if any(each.requires_grad for each in part.parameters()) else part

    if type(network) is nn.ModuleDict:
        return nn.ModuleDict({name: wrapped(part) for name, part in network.items()})
    if type(network) is nn.ModuleList:
        return nn.ModuleList(wrapped(part) for part in network)
    return wrapped(network)


class OwnStep:
    """Calls the user's own step in one rank, aggregates gradients and records spans."""

    def __init__(
        self,
        job: Job,
        network: nn.Module,
        optimizers: Optimizers,
        *,
        after_backward: Callable[[], None] | None = None,
        last_sent: Callable[[], Mark] = lambda: None,
    ) -> None:
        """Prepare the step. If the recorder is active, the optimizers' steps are recorded too.

        `network` is what the class calls, with the strategy's wrapper. `after_backward`, if given, aggregates gradients
        after each backward. `last_sent` returns the time of a backward's last sent bucket; from then on the rank only
        waits. It returns None without buckets.
        """
        assert job.step is not None
        self._job, self._make, self.network, self._optimizers = job, job.step, network, optimizers
        self._after_backward, self._last_sent = after_backward, last_sent
        self._at: Mark = None
        """Start of the time that no span covers yet."""
        self._begun: Mark = None
        self._updating = False
        if job.recorder.active:
            for one in optimizers.all:
                one.register_step_pre_hook(self._begin_update)
                one.register_step_post_hook(self._end_update)

    def __call__(self, batch: Any) -> torch.Tensor:
        """Make a step and return its loss, detached.

        Raises:
            TypeError: the user's step did not return a tensor with one number.
        """
        if self._after_backward is None and not self._job.recorder.active:
            return self._made(batch)
        with around_backward(self._backward, (threading.get_ident(),)):
            self._at = self._job.recorder.mark()
            loss = self._made(batch)
            self._close_forward()
        return loss

    def _made(self, batch: Any) -> torch.Tensor:
        loss = self._make(self.network, batch, self._optimizers.given)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError(
                f"step(model, batch) returned {with_article(type(loss).__name__)}; it must return the loss, a tensor "
                "with one number"
            )
        return loss.detach()

    def _backward(self, backward: Callable[[], None]) -> None:
        recorder = self._job.recorder
        if self._updating:  # in a closure that the optimizer calls: the time before belongs to the optimizer
            start = recorder.mark()
            recorder.add_span("optimizer", self._begun, start)
        else:
            start = self._close_forward()
        before = self._last_sent()
        backward()
        returned, sent = recorder.mark(), self._last_sent()
        if sent is not before:
            recorder.add_span("backward", start, sent)
            recorder.add_span("synchronize", sent, returned)
        else:
            recorder.add_span("backward", start, returned)
        if self._after_backward is not None:
            with recorder.span("synchronize"):
                self._after_backward()
        self._at = self._begun = recorder.mark()

    def _close_forward(self) -> Mark:
        now = self._job.recorder.mark()
        self._job.recorder.add_span("forward", self._at, now)
        return now

    def _begin_update(self, *_: Any) -> None:
        self._begun, self._updating = self._close_forward(), True

    def _end_update(self, *_: Any) -> None:
        self._at, self._updating = self._job.recorder.mark(), False
        self._job.recorder.add_span("optimizer", self._begun, self._at)


@contextmanager
def around_backward(
    act: Callable[[Callable[[], None]], None], threads: Container[int], factor: float = 1.0
) -> Iterator[None]:
    """While the enclosed code runs, call `act(run)` for each backward that one of these threads starts.

    `act` must call `run()`, the backward. This covers `Tensor.backward`, `torch.autograd.backward` and a scaled loss's
    backward; nested backwards belong to the outer one. `factor` multiplies all gradients that the backward adds.
    """
    original = torch.autograd.backward
    within: set[int] = set()

    def backward(*arguments: Any, **settings: Any) -> None:
        thread = threading.get_ident()
        if thread in within or thread not in threads:
            original(*arguments, **settings)
            return
        within.add(thread)
        try:
            act(lambda: _multiplied(original, factor)(*arguments, **settings))
        finally:
            within.discard(thread)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


def _multiplied(original: Callable[..., None], factor: float) -> Callable[..., None]:
    def backward(tensors: Any, grad_tensors: Any = None, *others: Any, **settings: Any) -> None:
        roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        given = (grad_tensors,) if isinstance(grad_tensors, torch.Tensor) else grad_tensors
        slopes = [
            factor * (torch.ones_like(root) if slope is None else slope)
            for root, slope in zip(roots, given or [None] * len(roots), strict=True)
        ]
        original(roots, slopes, *others, **settings)

    return original if factor == 1 else backward
