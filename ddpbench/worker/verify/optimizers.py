"""Check optimizers, for example whether their parameters are exactly the trained parameters of their model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddpbench.strategies.trees import tensors
from ddpbench.worker.training.randomness import noticing_draws, seed_all
from ddpbench.worker.training.types import name_of

_APART = 0.01
"""Two updates count as equal if they differ by at most this fraction of their change."""
_SIZES = (1.0, 0.3, 3.0)
"""Factors by which a given gradient is multiplied, to try it at several sizes."""
_SAME_UPDATES = 8
"""Number of updates from one gradient. An optimizer's estimates from gradients affect updates only after several steps.
"""
UPDATES = 3
"""Number of updates in a check. One is too few, because a schedule may start with a learning rate of zero."""
MOST_STEPS = 64
"""Largest number of a class's own steps that are tried until every optimizer has updated. An optimizer may step only
every fifth time, and a gradient scaler skips steps until its scale is low enough.
"""


def not_its_own(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Return a sentence if the optimizers' parameters are not exactly the model's trainable parameters; or `""`."""
    given = [each for one in optimizers for group in one.param_groups for each in group["params"]]
    held = {id(each) for each in given}
    names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    frozen = {id(each) for each in model.parameters() if not each.requires_grad}
    strange = [each for each in given if id(each) not in names and id(each) not in frozen]
    left_out = [name for key, name in names.items() if key not in held]
    if strange and len(left_out) == len(names):
        return (
            "its optimizer has the parameters of another model than the one in training: use the parameters that "
            "optimizer() is given, or those of the model in optimizer(self, model)"
        )
    if strange:
        return (
            f"its optimizer has {_many(len(strange), 'parameter')} that the model does not have: put all trained "
            "parameters into the model, because no strategy aggregates gradients of others"
        )
    if left_out:
        return (
            f"its optimizer leaves out {len(left_out)} of the model's {_many(len(names), 'trained parameter')} "
            f"({in_words(left_out)}): give it all of them, or set requires_grad = False for those that are not to "
            "be trained"
        )
    return ""


def closure_name(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Return the class name of the first optimizer whose step requires a closure; `""` if none does.

    Such an optimizer recomputes the loss within its step.
    """
    wanting = (
        type(one).__name__
        for one in optimizers
        if (closure := inspect.signature(type(one).step).parameters.get("closure")) is not None
        and closure.default is closure.empty
    )
    return next(wanting, "")


def computed_together(
    fresh: Callable[[], nn.Module],
    make: Callable[[Any], Any],
    gradient: Mapping[str, torch.Tensor] | None = None,
) -> str:
    """Return the class name of an optimizer in which one parameter's update depends on others, or `""`.

    For example, it may divide by the norm of all gradients. The test leaves out some parameters (or, if updates draw
    random numbers, changes some gradients) and looks at the other updates. If an update fails, the result is `""`.
    `fresh` returns a model in its initial state, and `make` its optimizer.

    Gradients are random, and new in each update. The test is repeated with multiples of `gradient` if given: some
    optimizers raise a learning rate only while gradients keep their direction.
    """
    given: list[Mapping[str, torch.Tensor] | None] = [None]
    given += [{name: each * factor for name, each in (gradient or {}).items()} for factor in _SIZES]
    found = (_computed_together(fresh, make, one) for one in (given if gradient else given[:1]))
    return next(filter(None, found), "")


def _computed_together(
    fresh: Callable[[], nn.Module], make: Callable[[Any], Any], gradient: Mapping[str, torch.Tensor] | None
) -> str:
    updated = partial(_Updated, fresh, make, gradient=gradient)
    try:
        whole = updated()
        if whole.drew:
            still = updated(factors=(0.0, 0.0)).ends
            others = [updated(factors=(1.0, factor)) for factor in (0.0, 10.0)]
        else:
            began = dict(fresh().named_parameters())
            still = [{name: began[name].detach() for name in end} for end in whole.ends]
            others = [updated(leaves_out=True)]
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit):  # such as an optimizer of sparse gradients only
        return ""
    for other in others:
        for kind, end, changed, before in zip(whole.kinds, whole.ends, other.ends, still, strict=True):
            if _square(end, changed) > _APART**2 * _square(end, before):
                return kind
    return ""


def narrower_type(fresh: Callable[[], nn.Module], make: Callable[[Any], Any]) -> str:
    """Return the coarsest number type in which updates compute; `""` if not coarser than the parameters' types.

    `fresh` and `make` are as in `computed_together`. Single numbers, such as a step count, are ignored.
    """
    model = fresh()
    finest = min((_eps(each.dtype) for each in model.parameters() if each.is_floating_point()), default=0.0)
    seen = _TypesSeen()
    try:
        _Updated(lambda: model, make, within=seen)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit):
        return ""
    coarsest = max(seen.found, key=_eps, default=None)
    return name_of(coarsest) if coarsest is not None and _eps(coarsest) > finest else ""


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


class _TypesSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.found |= {each.dtype for each in tensors(made) if each.is_floating_point() and each.numel() > 1}
        return made


def draws(fresh: Callable[[], nn.Module], make: Callable[[Any], Any]) -> bool:
    """Return whether updates draw random numbers, including from a private generator; False if the updates fail.

    `fresh` and `make` are as in `computed_together`.
    """
    try:
        return _Updated(fresh, make).drew
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit):
        return False


class _Updated:
    """Makes a few seeded updates, and holds the resulting parameters except each optimizer's largest one."""

    def __init__(
        self,
        fresh: Callable[[], nn.Module],
        make: Callable[[Any], Any],
        *,
        factors: tuple[float, float] = (1.0, 1.0),
        leaves_out: bool = False,
        gradient: Mapping[str, torch.Tensor] | None = None,
        within: AbstractContextManager[object] | None = None,
    ) -> None:
        """Make the updates within `within`, from `gradient` by name, or from random gradients if None.

        The second of `factors` scales the gradient of each optimizer's largest parameter, which `leaves_out` removes.
        """
        model = fresh()
        made = make(model.parameters())
        optimizers: list[torch.optim.Optimizer] = getattr(made, "all", [made])
        largest = {id(max(_held(one), key=lambda each: each.numel())) for one in optimizers}
        if leaves_out:
            for group in (group for one in optimizers for group in one.param_groups):
                group["params"] = [each for each in group["params"] if id(each) not in largest]
        self.drew = False
        """True if an update has drawn random numbers."""
        for number in range(UPDATES if gradient is None else _SAME_UPDATES):
            if gradient is None:
                _set_gradients(model, number)
            else:
                for name, each in model.named_parameters():
                    each.grad = gradient[name].clone() if name in gradient else None
            for each in model.parameters():
                if each.grad is not None:
                    each.grad.mul_(factors[id(each) in largest])
            seed_all(number)
            with noticing_draws() as draws, within or nullcontext():
                for one in optimizers:
                    one.step()
            self.drew |= draws.found
        names = {id(each): name for name, each in model.named_parameters()}
        self.kinds = [type(one).__name__ for one in optimizers]
        self.ends = [
            {names[id(each)]: each.detach() for each in _held(one) if id(each) not in largest}
            for one in optimizers
        ]


def _square(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    return sum(float((each - other[name]).abs().square().sum()) for name, each in one.items())


def _held(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _set_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for each in model.parameters():
        if each.requires_grad:
            each.grad = torch.randn(each.shape, generator=generator).to(each)


@contextmanager
def sparse_seen(model: nn.Module) -> Iterator[list[bool]]:
    """Yield a list that becomes non-empty once a backward pass computes a sparse gradient."""
    seen: list[bool] = []

    def note(parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            seen.append(True)

    hooks: list[Any] = [
        each.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
        for each in model.parameters()
        if each.requires_grad
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def unreached_seen(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns the names of parameters updated with gradients that no backward pass accumulated.

    Such gradients come, for example, from `torch.autograd.grad` or `torch.func`. Strategies do not average them,
    because they average at the end of a backward pass.
    """
    watched = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    reached: set[int] = set()
    stepped: set[int] = set()

    def step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        stepped.update(id(each) for each in parameters if id(each) in watched and _has_gradient(each))

    def reach(parameter: torch.Tensor) -> None:
        reached.add(id(parameter))

    hooks: list[Any] = [
        each.register_post_accumulate_grad_hook(reach)  # type: ignore[no-untyped-call]
        for each in model.parameters()
        if each.requires_grad
    ]
    hooks += [one.register_step_pre_hook(step) for one in optimizers]
    try:
        yield lambda: [name for key, name in watched.items() if key in stepped - reached]
    finally:
        for hook in hooks:
            hook.remove()


def not_moved(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Make a few updates; name parameters that have a gradient but do not change, or return `""`.

    Rounding may hide a small change. So a parameter counts only if its learning rate was always 0, or if no parameter
    changed.
    """
    watch = _Watch(model, [optimizer])
    for _ in range(UPDATES):
        optimizer.step()
    return watch.problem(UPDATES)


def not_moved_by_steps(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: Callable[[], object]
) -> str:
    """Do as `not_moved`, but call `step`, which calls the optimizers, until all have updated with a positive rate."""
    watch = _Watch(model, optimizers)
    made = 0
    while made < UPDATES or (watch.waits_for and made < MOST_STEPS):
        step()
        made += 1
    return watch.problem(made)


class _Watch:
    def __init__(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model = model
        self._names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
        self._before = {
            name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad
        }
        self._rates: dict[str, float] = {}
        """Largest learning rate so far of each parameter that had a gradient when its optimizer stepped, by name."""
        self.waits_for = set(range(len(optimizers)))
        """Indices of the optimizers that have not yet stepped with a gradient and a learning rate above 0."""
        self._updates = [0] * len(optimizers)
        self._hooks = [
            one.register_step_pre_hook(partial(self._look, number)) for number, one in enumerate(optimizers)
        ]

    def _look(self, number: int, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._updates[number] += 1
        for group in optimizer.param_groups:
            rate = float(group.get("lr", 1.0))
            for each in group["params"]:
                if id(each) in self._names and _has_gradient(each):
                    if rate > 0:  # a schedule may start with a rate of zero
                        self.waits_for.discard(number)
                    name = self._names[id(each)]
                    self._rates[name] = max(rate, self._rates.get(name, 0.0))

    def problem(self, made: int) -> str:
        """Name parameters that `made` steps should have changed but did not, or return `""`."""
        for hook in self._hooks:
            hook.remove()
        after = {name: each.detach() for name, each in self._model.named_parameters()}
        if not self._rates:
            changed = [name for name, each in self._before.items() if not torch.equal(each, after[name])]
            if changed:
                return (
                    f"{_many(made, 'step')} changed parameters ({in_words(changed)}), but called step() of no "
                    "optimizer that optimizer() returned: return also the optimizer that makes the update, such as the "
                    "inner one of a wrapper, or torch.optim.SGD in place of an update by hand"
                )
            return f"{_many(made, 'step')} called no optimizer with a gradient to apply: the model would not train"
        as_before = [name for name in self._rates if torch.equal(self._before[name], after[name])]
        still = [name for name in as_before if self._rates[name] == 0]
        if still or len(as_before) == len(self._rates):
            return (
                f"{_many(max(self._updates), 'update')} of its optimizer did not change "
                f"{len(still or as_before)} of the model's {_many(len(self._rates), 'parameter')} that have a "
                f"gradient ({in_words(still or as_before)}): is their learning rate 0?"
            )
        return ""


def _has_gradient(parameter: torch.Tensor) -> bool:
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return gradient is not None and bool(gradient.any())


def in_backward() -> bool:
    """Return whether this thread is inside a backward pass, as in a parameter's hook."""
    return bool(torch._C._current_graph_task_id() != -1)


def in_words(names: Sequence[str], most: int = 2) -> str:
    """Return the first `most` names as text, and how many more there are."""
    shown = [name.removeprefix("network.") for name in names[:most]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
