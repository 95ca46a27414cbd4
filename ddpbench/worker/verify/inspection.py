"""Try a user's own workload for a few steps in a separate process, before a launch.

The result is a failure as a sentence with the file, the line and the exception, or facts about the workload, such as
its number of parameters, gradient bytes, batch shapes and first loss.
"""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from ddpbench.causes import environments_part, exception_words, users_line
from ddpbench.errors import nearest
from ddpbench.naming import ranks_of
from ddpbench.side_code import shared_module
from ddpbench.spec import Case
from ddpbench.strategies.own_step import each_part
from ddpbench.strategies.traits import traits_of
from ddpbench.strategies.trees import copied, describe, tensors
from ddpbench.worker.device import device_of
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.asked_group import first_of_two, formed_when_asked
from ddpbench.worker.training.batches import TooFewSamplesError
from ddpbench.worker.training.exchanges import noticing_exchanges
from ddpbench.worker.training.kept_settings import settings_kept
from ddpbench.worker.training.precision import entered_autocasts, widest
from ddpbench.worker.training.training import Training
from ddpbench.worker.training.types import mixed_words, names_of, types_in
from ddpbench.worker.verify.optimizers import (
    closure_name,
    in_backward,
    in_words,
    not_its_own,
    not_moved,
    not_moved_by_steps,
    sparse_seen,
    unreached_seen,
)
from ddpbench.worker.verify.values import trained_names
from ddpbench.worker.verify.written import written_by
from ddpbench.workloads import Workload, load_workload
from ddpbench.workloads.plain_model import OwnModel


class _UnfitError(Exception):
    """The workload cannot be used; the message is a sentence with the reason."""


ONE_PASS_S, ONE_PASS_BATCHES = 1.0, 1000
"""Limits on how long a loader that can be iterated over only once is tried: seconds, and number of batches."""
STREAMS_S = 5.0
"""Time limit for reading the first batch of every rank's part of a stream (s)."""


def inspect_workload(case: Case, largest: Case | None = None) -> dict[str, Any]:
    """Train a case's workload for a few steps with its batch size, and return facts about it.

    Or return `{"problem": sentence}`. Of a stream, each rank of the case `largest` must get a batch.
    """
    name = case.workload
    try:
        found = _inspect(case, largest)
    except _UnfitError as problem:
        traceback.print_exc()
        found = {"problem": f"{name}: {problem}"}
    shared = shared_module()  # first, because a mixture of two versions of the code can fail in any way
    return {"problem": shared} if shared else found


def _inspect(case: Case, largest: Case | None) -> dict[str, Any]:
    began = time.perf_counter()
    device = device_of(case)  # before the import, which may look for a GPU
    undone: list[str] = []
    try:
        with settings_kept(case, undone.append):
            workload = load_workload(case.workload)
    except ImportError as error:
        raise _UnfitError(_import_sentence(error)) from error
    _check_options(workload, case.workload_options)
    alone = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
    with _doing("its options or data", see="its __init__() and its data"):
        training = Training(case, alone, device)
    with _doing("model()"):
        model = training.fresh_model()  # the model made last may be held by a global of the class
        other = training.fresh_model()
        _check_fresh(model, other)
        _check_made(model)
        del other
    made_s = time.perf_counter() - began
    with _doing("its first batch"):
        batches = training.batches()
        batch = next(batches)
    if largest is not None and training.is_stream:
        _refuse(too_short(largest))
    # Only the steps get a process group. With one, datasets would be divided among ranks that don't exist,
    # and models might be wrapped.
    with formed_when_asked(device) as asked, noticing_exchanges() as seen:
        found = _inspect_steps(training, model, batch, batches, made_s)
        if asked.found and not seen.largest:
            _step_among_two(training, batch, STREAMS_S + 5 * (found["made_s"] + found["step_s"]))
    if isinstance(training.loader, Iterator):
        with _doing("its loader()"):
            _refuse(_exhausted(batches))
    with _doing("its model's train()"):
        _refuse(_never_set(model))
    found |= _changes(undone, training)
    in_group = {"group": asked.found, "exchanges": seen.largest > 0, "waits": seen.waited}
    return {**found, **{name: True for name, holds in in_group.items() if holds}}


def _inspect_steps(
    training: Training, model: torch.nn.Module, batch: Any, batches: Iterator[Any], made_s: float
) -> dict[str, Any]:
    inputs, targets = _pair(batch)
    if training.workload.owns_step:
        return _inspect_own_step(training, model, inputs, made_s)
    hint = partial(mixed_words, model, (inputs, targets))
    with _doing("its loss", hint), entered_autocasts() as autocasts:
        losses: list[torch.Tensor] = []

        def compute() -> None:
            own, wanted = copied((inputs, targets))
            losses.append(training.precision.value(training.workload.loss)(model(own), wanted))

        writes = written_by(model, compute)
        loss = losses[0]
        _check_loss(loss)
    with _doing("backward"), sparse_seen(model) as sparse:
        loss.backward()  # type: ignore[no-untyped-call]
    reached, trains = [_reached(model)], [trained_names(model)]
    if not reached[0]:
        raise _UnfitError(
            "no parameter got a gradient from the loss: does loss() use the model that it is given?"
        )
    if training.case.precision == "full":
        _refuse(_not_finite(model))
    with _doing("its optimizer"):
        optimizer = training.make_optimizer(model.parameters())
        _refuse(_wants_closure(closure_name([optimizer])))
        _refuse(not_its_own(model, [optimizer]))
        _refuse(not_moved(model, optimizer))
    with _doing("its second step"):
        began = time.perf_counter()
        more, wanted = _pair(next(batches))
        optimizer.zero_grad()
        model.zero_grad(set_to_none=True)
        training.precision.value(training.workload.loss)(model(more), wanted).backward()  # type: ignore[no-untyped-call]
        reached.append(_reached(model))
        trains.append(trained_names(model))
        optimizer.step()
        step_s = time.perf_counter() - began
    found = widest(autocasts) if training.case.precision == "full" else ""
    took: dict[str, Any] = {"made_s": made_s, "step_s": step_s, **({"sparse": True} if sparse else {})}
    took |= ({"writes": writes} if writes else {}) | (
        {"dropped": names, "dropped_blocks": blocks_of(model, names)}
        if (names := _dropped(reached, trains))
        else {}
    )
    whole = inputs if targets is None else (inputs, targets)
    facts = _facts(training, model, batch=whole, loss=loss, autocast=found)
    return took | facts


def _step_among_two(training: Training, batch: Any, within_s: float) -> None:
    """Try a step as rank 0 of 2, to see whether the class communicates only among several ranks.

    The other rank does not exist, so exceptions are ignored and the step ends after `within_s`.

    Raises:
        _UnfitError: the step ends the process.
    """
    inputs, targets = copied(_pair(batch))
    try:
        with first_of_two(), _ended_after(within_s):
            model: Any = training.fresh_model()
            optimizers: Any = training.make_optimizer(model.parameters())
            if training.workload.owns_step:
                training.workload.step(model, each_part(model.network, _Wrapped), inputs, optimizers.given)
            else:
                training.workload.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimizers.step()
    except SystemExit as error:
        raise _UnfitError(f"its step as rank 0 of 2 failed: {error_in_words(error)}") from error
    except (_TimeUpError, Exception):
        pass


def _exhausted(batches: Iterator[Any]) -> str:
    ends = time.monotonic() + ONE_PASS_S
    try:
        for _ in range(ONE_PASS_BATCHES):
            next(batches)
            if time.monotonic() > ends:
                break
    except TooFewSamplesError as error:
        return str(error)
    return ""


class _TimeUpError(BaseException):
    """The time limit has passed; a `BaseException`, so that users' code does not catch it by accident."""


@contextmanager
def _ended_after(limit_s: float) -> Iterator[None]:
    """Raise `_TimeUpError` in the enclosed code after `limit_s`, or at the end of a wait outside Python."""

    def time_is_up(_number: int, _frame: FrameType | None) -> None:
        raise _TimeUpError

    handler = signal.signal(signal.SIGALRM, time_is_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def too_short(case: Case, within_s: float = STREAMS_S) -> str:
    """Return a sentence if some rank's part of a stream has no batch; otherwise `""`.

    Also `""` if the dataset needs torch.distributed, or if the search takes longer than `within_s`. The last ranks'
    parts are the shortest, and tried first.
    """
    place = JobPlace(rank=0, processes=case.world_size, local_rank=0, attempt=0, cores=(), loader_cores=())
    if case.world_size == 1 or traits_of(case).one_process:
        return ""

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    here = {name: os.environ[name] for name in names if name in os.environ}
    try:
        with _ended_after(within_s):
            for rank in reversed(range(case.world_size)):
                local_rank = rank % case.ranks_per_node
                os.environ |= {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(case.world_size),
                    "LOCAL_RANK": str(local_rank),
                }
                for name in ("MASTER_ADDR", "MASTER_PORT"):  # this process cannot join other ranks
                    os.environ.pop(name, None)
                own = replace(place, rank=rank, local_rank=local_rank)
                try:
                    next(Training(replace(case, loader_workers=0), own, torch.device("cpu")).batches())
                except TooFewSamplesError as error:
                    return f"at {ranks_of(case)}, on rank {rank}, {error}"
    except (_TimeUpError, Exception, SystemExit):  # a dataset may raise anything outside a launch
        pass
    finally:
        os.environ.update(here)
    return ""


def _inspect_own_step(
    training: Training, model: torch.nn.Module, batch: Any, made_s: float
) -> dict[str, Any]:
    with _doing("its optimizer"):
        optimizers: Any = training.make_optimizer(model.parameters())
        if not optimizers.all:
            raise _UnfitError(
                "its optimizer() returned no optimizer of torch.optim, alone or in a tuple, list or dict"
            )
        _refuse(not_its_own(model, optimizers.all))
    held: Any = model
    network = each_part(held.network, _Wrapped)
    losses = []
    step_s = 0.0

    def step() -> None:
        nonlocal step_s
        began = time.perf_counter()
        losses.append(training.workload.step(model, network, copied(batch), optimizers.given))
        step_s = time.perf_counter() - began
        _check_loss(losses[-1], graph=False)

    within: list[bool] = []
    for one in optimizers.all:
        one.register_step_pre_hook(lambda *_: within.append(in_backward()))
    hint = partial(mixed_words, model, batch)
    watch = unreached_seen(model, optimizers.all)
    with (
        _doing("its step", hint),
        entered_autocasts() as autocasts,
        sparse_seen(model) as sparse,
        watch as unreached,
    ):
        _refuse(not_moved_by_steps(model, optimizers.all, step))
        step()  # the second step is the one that is timed
    if training.case.evaluation and training.workload.evaluates:
        with _doing("its loss(), which evaluation computes,"), torch.no_grad():
            _check_loss(training.workload.loss(model(copied(batch)), None), graph=False)
    closure = closure_name(optimizers.all)
    took: dict[str, Any] = {"made_s": made_s, "step_s": step_s, "step": True}
    took |= ({"sparse": True} if sparse else {}) | ({"closure": closure} if closure else {})
    took |= {"in_backward": True} if any(within) else {}
    took |= {"unreached": names} if (names := unreached()) else {}
    return took | _facts(training, model, batch=batch, loss=losses[0], autocast=widest(autocasts))


_FORWARDS = "have the model's forward do it"
_IN_PLACE_OF = {
    "module": "call the model itself",
    **dict.fromkeys(
        ("no_sync", "require_backward_grad_sync", "set_requires_gradient_sync"),
        "the strategy decides when gradients are averaged: leave this call out, or write loss() and set "
        "options.ddp.accumulate",
    ),
}
"""Advice for users' code that reads an attribute which wrapped modules may lack, by the attribute's name."""


class _Wrapped(torch.nn.Module):
    """A wrapper as strategies use: it can be called, but lacks the module's own attributes."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        return self.inner(*arguments, **settings)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            what = f"strategies wrap the model, and a wrapper has no {name!r}"
            raise AttributeError(f"{what}: {_IN_PLACE_OF.get(name, _FORWARDS)}") from None


def _facts(
    training: Training, model: torch.nn.Module, *, batch: Any, loss: torch.Tensor, autocast: str
) -> dict[str, Any]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    empty = [name for name, each in model.named_parameters() if each.requires_grad and not each.numel()]
    return {
        "local_batch": training.case.local_batch,
        "types": names_of(types_in(model.parameters())),
        "trained_types": names_of(types_in(trained)),
        **({"mixed_blocks": True} if _mixes_within_blocks(training, model) else {}),
        "parameters": sum(parameter.numel() for parameter in trained),
        "gradient_bytes": sum(parameter.numel() * parameter.element_size() for parameter in trained),
        "samples": _length(training),
        "dealt_samples": None if training.shards_itself else _length(training),
        "batch": describe(batch),
        "loss": loss.item(),
        **({"autocast": autocast} if autocast else {}),
        **({"empty": empty} if empty else {}),
        **({"one_memory": names} if (names := over_one_memory(model)) else {}),
        **({"stream": True} if training.is_stream else {}),
        **({"evaluation_mode": True} if _is_in_evaluation(model) else {}),
    }


def over_one_memory(model: torch.nn.Module) -> list[str]:
    """Return the names of two parameters that share memory, at least one of them trained, or `[]`."""
    seen: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, each in model.named_parameters():
        if each.layout != torch.strided or not each.numel():
            continue
        sharing = seen.setdefault(each.untyped_storage().data_ptr(), [])
        for other, one in sharing:
            if (each.requires_grad or one.requires_grad) and _overlap(one, each):
                return [other, name]
        sharing.append((name, each))
    return []


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    taken = torch.zeros(one.untyped_storage().nbytes(), dtype=torch.bool)
    of_one, of_other = (
        taken.as_strided(
            (*each.shape, each.element_size()),
            (*(step * each.element_size() for step in each.stride()), 1),
            each.storage_offset() * each.element_size(),
        )
        for each in (one, other)
    )
    of_one.fill_(True)
    return bool(of_other.any())


def _is_in_evaluation(model: torch.nn.Module) -> bool:
    parts: list[bool] = []

    def note(part: torch.nn.Module) -> torch.nn.Module:
        parts.append(part.training)
        return part

    each_part(model.network if isinstance(model, OwnModel) else model, note)
    return not all(parts)


def _changes(undone: Sequence[str], training: Training) -> dict[str, Any]:
    """Return `{"changes": sentences}` on casts and settings, or an empty dictionary.

    `undone` has the sentences on settings that importing the class changed.
    """
    found = [*undone, *training.changes]
    return {"changes": found} if found else {}


def _reached(model: torch.nn.Module) -> set[str]:
    return {name for name, each in model.named_parameters() if each.grad is not None}


def _dropped(reached: Sequence[set[str]], trains: Sequence[set[str]]) -> list[str]:
    """Return the parameters that only some steps reach, as under LayerDrop; not those frozen or thawed."""
    every: set[str] = set().union(*reached)
    steps = list(zip(reached, trains, strict=True))
    return sorted(name for name in every if any(name in own and name not in step for step, own in steps))


def blocks_of(model: torch.nn.Module, dropped: Sequence[str]) -> list[str]:
    """Return the names of the blocks that FSDP shards as a unit and whose trained parameters are all in `dropped`."""
    from ddpbench.strategies.fsdp.replica import blocks  # slow to import, and rarely needed

    names = {id(module): name for name, module in model.named_modules()}
    ids = {id(each) for name, each in model.named_parameters() if name in set(dropped)}
    dropped_blocks: list[str] = []
    for block in blocks(model):
        own = [id(each) for each in block.parameters() if each.requires_grad]
        if own and ids.issuperset(own):
            dropped_blocks.append(names[id(block)].removeprefix("network."))
    return dropped_blocks


def _mixes_within_blocks(training: Training, model: torch.nn.Module) -> bool:
    if len(types_in(each for each in model.parameters() if each.requires_grad)) < 2:
        return False
    from ddpbench.strategies.fsdp.replica import mixes_types  # slow to import, and rarely needed

    if not training.workload.owns_step:
        return mixes_types(model)
    held: Any = model
    found: list[bool] = []

    def noted(part: torch.nn.Module) -> torch.nn.Module:
        found.append(mixes_types(part))
        return part

    each_part(held.network, noted)
    return any(found)


def _wants_closure(optimizer: str) -> str:
    if not optimizer:
        return ""
    return (
        f"its optimizer {optimizer} computes the loss several times per step, which loss() does not support: "
        "write step(self, model, batch, optimizer), which calls optimizer.step(closure)"
    )


def _not_finite(model: torch.nn.Module) -> str:
    names = [
        name
        for name, each in model.named_parameters()
        if each.grad is not None and not bool(torch.isfinite(_values(each.grad)).all())
    ]
    return (
        f"the gradient of {in_words(names)} is not finite in the first step, so no strategy's gradient can be "
        "compared with it: have loss() give a finite one"
        if names
        else ""
    )


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _refuse(problem: str) -> None:
    if problem:
        raise _UnfitError(problem)


def _check_fresh(first: torch.nn.Module, second: torch.nn.Module) -> None:
    """Refuse models that share a parameter, because training one would train the other.

    Raises:
        _UnfitError: the models share a parameter.
    """
    before = {id(parameter) for parameter in first.parameters()}
    kept = [name for name, parameter in second.named_parameters() if id(parameter) in before]
    if kept:
        raise _UnfitError(
            f"two calls of model() returned models that share parameters ({in_words(kept)}): create every part of "
            "the model inside model(), so that each call returns a new model"
        )


def _check_made(model: torch.nn.Module) -> None:
    """Refuse lazy parameters, because strategies need all of them before the first forward pass.

    Raises:
        _UnfitError: the model has a lazy parameter.
    """
    unmade = [name for name, each in model.named_parameters() if torch.nn.parameter.is_lazy(each)]
    if unmade:
        raise _UnfitError(
            f"its model has uninitialised lazy parameters ({in_words(unmade)}): have model() pass a batch through "
            "the model, or give the lazy modules their sizes"
        )


def _never_set(model: torch.nn.Module) -> str:
    """Name modules that the model's own `train()` puts into evaluation mode, or return `""`.

    Training loops call `train()`, but strategies do not. The call is not undone.
    """
    modules = list(model.modules())
    if not all(each.training for each in modules) or all(
        type(each).train is torch.nn.Module.train for each in modules
    ):
        return ""
    model.train()
    kept = [name for name, each in model.named_modules() if not each.training]
    return (
        f"its model's train() puts {in_words(kept)} into evaluation mode, but ddpbench does not call train(): "
        "have model() call it before returning the model, as a training loop does"
        if kept
        else ""
    )


def error_in_words(error: BaseException) -> str:
    """Describe an exception in words, with the line of the user's code that led to it."""
    words, place = exception_words(error), users_line(error)
    return words if place.strip(" ()") in words else f"{words}{place}"


@contextmanager
def _doing(what: str, hint: Callable[[], str] = str, *, see: str = "") -> Iterator[None]:
    """Turn an exception into an `_UnfitError` that begins with `what`, the activity.

    `hint()` is appended for number types, and `see` if none of the user's lines led to the exception.

    Raises:
        _UnfitError: the enclosed code has failed.
    """
    try:
        yield
    except _UnfitError:
        raise
    except (Exception, SystemExit) as error:
        more = hint() if isinstance(error, RuntimeError) and "dtype" in str(error) else ""
        if see and not users_line(error):
            more = f"{more}; see {see}"
        raise _UnfitError(f"{what} failed: {error_in_words(error)}{more}") from error


def _import_sentence(error: ImportError) -> str:
    cause = error.__cause__
    if isinstance(cause, SyntaxError) and cause.filename:
        return f"{error} ({os.path.relpath(cause.filename)}:{cause.lineno})"
    if cause is None:
        return str(error)
    part = "" if isinstance(cause, SystemExit) else environments_part(cause)  # otherwise in `error` already
    return f"{error}{part}{users_line(cause)}"


def _check_options(workload: Workload[Any], given: Mapping[str, Any]) -> None:
    model: type[BaseModel] = workload.options
    try:
        model.model_validate(dict(given))
    except ValidationError as error:
        problems: list[str] = []
        for item in error.errors():
            where = ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                problems.append(f"{where}: unknown key; {nearest(where, model.model_fields)}")
            elif item["type"] == "missing":
                problems.append(f"{where}: is missing")
            else:
                problems.append(
                    f"{where}: {item['input']!r} given; {item['msg'].removeprefix('Value error, ')}"
                )
        raise _UnfitError(f"its options: {'; '.join(problems)}") from error


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise _UnfitError(
            f"its dataset gives batches of {describe(batch)}; a class derived from Workload needs (inputs, "
            "targets) pairs, each of one or several tensors. A class without a base class takes any batch"
        )
    if next(tensors(batch), None) is None:
        whole = batch if batch[1] is not None else batch[0]
        raise _UnfitError(
            f"its batches hold no tensor that can be found: {describe(whole)}; have the dataset, or collate(self, "
            "samples), give a tensor, or a tuple, list, dictionary or dataclass of tensors"
        )
    return batch[0], batch[1]


def _check_loss(loss: Any, *, graph: bool = True) -> None:
    if isinstance(loss, int | float):
        raise _UnfitError(f"its loss is the number {loss!r}: return the tensor, and not its item()")
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"{loss!r}"
        raise _UnfitError(f"its loss is {found}; it must be a scalar: the mean over the batch's samples")
    if graph and not loss.requires_grad:
        raise _UnfitError(
            "its loss has no graph for backward(): remove what detaches the loss, such as detach() or no_grad()"
        )
    if not math.isfinite(loss.item()):
        raise _UnfitError(f"its loss is {loss.item()} in the first step")


def _length(training: Training) -> int | None:
    try:
        data: Any = getattr(training.loader, "dataset", training.loader)
        return len(data)
    except (TypeError, NotImplementedError):
        return None
