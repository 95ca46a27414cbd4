"""A workload made from a user's class without a base class, so that a training script can be measured as it is.

    class Mine:
        def __init__(self, width: int = 64) -> None: ...    # the keywords are the workload's options
        def model(self): ...                                # returns a torch module
        def dataset(self): ...                              # or loader(self, rank, world_size, batch)
        def loss(self, model, batch): ...                   # returns the scalar to call backward on
        def optimizer(self, parameters): ...                # optional; default: SGD with momentum
        def before_update(self, model): ...                 # optional, with loss; for example, clips gradients
        def collate(self, samples): ...                     # optional; makes a batch of samples
        def samples(self, batch): ...                       # optional; counts the samples in a loader's batch
        def step(self, model, batch, optimizer): ...        # instead of loss: makes a full step, returns the loss
                                                            # (if there is also loss, evaluation uses that)
        batch = 32                                          # optional; default local batch of experiments

`dataset` may also take `rank` and `world_size`, to shard an iterable dataset. Both count processes: under a strategy
with all replicas in one process, the rank is 0 of 1, and the strategy splits each batch itself. The parameter of
`optimizer` may be named `model` (or `net`, `module`), to get the model instead of its parameters. `optimizer` may
return a pair of an optimizer and a scheduler, which then steps after every update. A method may also be a function:
`model = build_model`.

With `step`, `model` may return a dict of modules, and `optimizer` takes the model and returns the last argument of
`step`. Each model gets its own object of the class, so that state that `loss`, `before_update` or `step` store belongs
to that model. The methods that load data (`dataset`, `loader`, `collate`, `samples`) do not see this state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import CodeType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, create_model

from ddpbench.workloads.base import Workload
from ddpbench.workloads.plain_methods import method_of

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset


def lacks(found: type[Any]) -> str:
    """Name, in words, the methods that a class still needs to be a workload; `""` if it has them all."""
    missing = [] if callable(getattr(found, "model", None)) else ["model"]
    if not any(callable(getattr(found, name, None)) for name in ("loss", "step")):
        missing.append("loss (or step)")
    if not any(callable(getattr(found, name, None)) for name in ("dataset", "loader")):
        missing.append("dataset (or loader)")
    return " and ".join(missing)


def batch_of(found: type[Any]) -> int | None:
    """Return the local batch size in a class's attribute `batch`; None for a method, or without it.

    Raises:
        ValueError: the value is not a positive int.
    """
    batch = getattr(found, "batch", None)
    if batch is None or callable(batch) or hasattr(batch, "__get__"):
        return None
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch = {batch!r} is not a number of samples; use one, such as batch = 32")
    return batch


def check_updates(found: type[Any]) -> None:
    """Refuse a class with `step` and `before_update` if none of its methods mentions `before_update`.

    Such a class must call it itself.

    Raises:
        ValueError: the class is refused.
    """
    if not all(callable(getattr(found, name, None)) for name in ("step", "before_update")):
        return
    own = [value for each in found.__mro__ for value in vars(each).values()]
    if not any(_names(getattr(each, "__code__", None), "before_update") for each in own):
        raise ValueError(
            "before_update() is never called in a class with step(): move its code into step(), between "
            "backward() and the update, and remove before_update()"
        )


def _names(code: CodeType | None, name: str) -> bool:
    """Return whether code, with nested functions, uses an attribute or global `name`."""
    if code is None:
        return False
    return name in code.co_names or any(
        _names(each, name) for each in code.co_consts if isinstance(each, CodeType)
    )


class PlainWorkload(Workload[BaseModel]):
    """Adapts a user's class to `Workload`. The model's forward computes the loss, so that any strategy can train it."""

    name = "plain"
    whole_batches = True

    def __init__(self, own: type[Any]) -> None:
        super().__init__()
        check_updates(own)
        self._own = own
        self.options = options_of(own)
        self.owns_step = callable(getattr(own, "step", None))
        self.evaluates = callable(getattr(own, "loss", None))
        self.default_batch = batch_of(own)
        self._made: tuple[BaseModel, Any] | None = None

    def instance(self, options: BaseModel) -> Any:
        """Return the user's object for these options. The object is made once, so that its methods share attributes."""
        if self._made is None or self._made[0] != options:
            self._made = (options, self._own(**dict(options)))
        return self._made[1]

    def model(self, options: BaseModel) -> torch.nn.Module:
        import torch

        from ddpbench.workloads.plain_model import ModelWithLoss, ModelWithStep

        own = self._own(**dict(options)) if self.owns_step else self.instance(options)
        if isinstance(getattr(own, "model", None), torch.nn.Module):
            raise TypeError(
                f"{self._own.__name__}.model is a module, not a class: give its class, or a function or method "
                "that makes a new one on each call"
            )
        try:
            model = method_of(own, "model")()
        except (RuntimeError, ValueError) as error:
            if "process group" not in str(error):
                raise
            raise ValueError(
                f"{self._own.__name__}.model() needs a process group, but none exists yet: return the "
                "bare module, which the strategy wraps"
            ) from error
        return (ModelWithStep if self.owns_step else ModelWithLoss)(model, own)

    def step(
        self, model: torch.nn.Module, network: torch.nn.Module, batch: Any, optimizers: Any
    ) -> torch.Tensor:
        made: Any = model
        loss: torch.Tensor = made.step(network, batch, optimizers)
        return loss

    def dataset(self, options: BaseModel) -> Dataset[Any]:
        import os

        from torch.utils.data import IterableDataset

        from ddpbench.workloads.plain_model import what

        make = method_of(self.instance(options), "dataset")
        if missing := {"RANK", "WORLD_SIZE"} - os.environ.keys():
            raise ValueError(
                f"the environment lacks {' and '.join(sorted(missing))}: the class must not remove these variables"
            )
        place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        wanted = inspect.signature(make).parameters
        given = {name: value for name, value in place.items() if name in wanted}
        found: Dataset[Any] = make(**given)
        if given and not isinstance(found, IterableDataset):
            raise ValueError(
                f"{self._own.__name__}.dataset({', '.join(given)}) gave a map-style dataset, which would be divided "
                "among the ranks a second time: leave out these arguments, or give an IterableDataset"
            )
        kind = type(found)
        if not (
            isinstance(found, IterableDataset) or (hasattr(kind, "__len__") and hasattr(kind, "__getitem__"))
        ):
            raise TypeError(
                f"dataset() returned {what(found)}; it must return an IterableDataset, or a map-style dataset with "
                "`__getitem__` and `__len__`"
            )
        return found

    def loader(self, options: BaseModel, rank: int, world_size: int, batch: int) -> Iterable[Any] | None:
        from ddpbench.workloads.plain_model import what

        own = self.instance(options)
        if not callable(getattr(own, "loader", None)):
            return None
        found: Iterable[Any] = method_of(own, "loader")(rank, world_size, batch)
        if not hasattr(type(found), "__iter__"):
            raise TypeError(
                f"loader() returned {what(found)}; it must return an iterable of batches, such as a DataLoader"
            )
        return found

    def samples_in(self, batch: Any) -> int | None:
        own = self._made[1] if self._made is not None else None
        if not callable(getattr(own, "samples", None)):
            return super().samples_in(batch)
        count = method_of(own, "samples")(batch)
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(
                f"{self._own.__name__}.samples(batch) returned {count!r}: it must return a whole number"
            )
        return count

    def collate(self, samples: list[Any]) -> Any:
        own = self._made[1] if self._made is not None else None
        return method_of(own, "collate")(samples) if hasattr(own, "collate") else super().collate(samples)

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        mean: torch.Tensor = outputs.mean()
        return mean

    def optimizer(self, parameters: Any, options: BaseModel) -> torch.optim.Optimizer:
        from ddpbench.workloads.plain_updates import noting_optimizer

        return noting_optimizer(self.instance(options), list(parameters), super().optimizer, options)

    def optimizers(self, parameters: Any, options: BaseModel) -> Any:
        from ddpbench.workloads.plain_updates import own_optimizers

        return own_optimizers(list(parameters), super().optimizer, options)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class of options is made at run time, so pickle cannot find it; a loader worker needs only `collate`.
        return _unpickled, (self._own, self._made[1] if self._made is not None else None)


def _unpickled(own: type[Any], instance: Any) -> PlainWorkload:
    workload = PlainWorkload(own)
    workload._made = (workload.options.model_construct(), instance)
    return workload


def options_of(own: type[Any]) -> type[BaseModel]:
    """Return a pydantic model of the keyword arguments of a class's constructor, with their types and defaults.

    An argument without a default is required. `**others` allows any name. A type that cannot be evaluated allows any
    value.
    """
    fields: dict[str, Any] = {}
    others = False
    for parameter in inspect.signature(own).parameters.values() if _has_constructor(own) else ():
        if parameter.kind is parameter.VAR_KEYWORD:
            others = True
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            kind = Any if parameter.annotation is parameter.empty else _evaluated(parameter.annotation, own)
            fields[parameter.name] = (
                kind,
                ... if parameter.default is parameter.empty else parameter.default,
            )
    config = ConfigDict(
        extra="allow" if others else "forbid",
        frozen=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    made: type[BaseModel] = create_model("Options", __config__=config, **fields)
    return made


def _evaluated(annotation: Any, own: type[Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(inspect.unwrap(own.__init__), "__globals__", {}), dict(vars(own)))
    except Exception:  # an annotation that was never evaluated may raise anything
        return Any


def _has_constructor(own: type[Any]) -> bool:
    return own.__init__ is not object.__init__
