"""Recognise messages in which torch says that a strategy cannot train a model, and name ddpbench's settings in them.

Every model is tried in one process before a proof, so a refusal in the proof is due to the strategy, and the case is
skipped. Any other error is a failure.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from ddpbench.causes import exception_words, text_of, users_line
from ddpbench.strategies.base import CannotTrainError
from ddpbench.text_safety import toml_text
from ddpbench.units import series_of
from ddpbench.user_files import is_import_path
from ddpbench.worker.training.training import Training

_TORCH = Path(torch.__file__).resolve().parent
_REFUSING = tuple(
    f"{_TORCH / part}/"
    for part in (
        "distributed/fsdp",
        "distributed/_composable",
        "distributed/tensor",
        "distributed/optim",
        "distributed/pipelining",
        "distributed/algorithms",
        "nn/parallel",
        "nn/modules",
        "nn/utils",
        "_dynamo",
        "_functorch",
        "jit",
        "fx",
    )
)
"""Paths of the parts of torch that examine models. An exception from a `raise` or `assert` in these parts means that
the model cannot be trained in this way. Errors from elsewhere, such as the network, say nothing about the model.
"""
_KINDS = (ValueError, TypeError, RuntimeError, NotImplementedError, AssertionError)
_WAITS = "Expected to have finished reduction in the prior iteration"
_TWICE = "Expected to mark a variable ready only once"
_WITHOUT = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
_SHARDED = (
    (
        "out of bounds for storage of size 0",
        "a parameter was used after FSDP had freed it (torch.autograd.grad before backward()?)",
    ),
    (
        "got mixed torch.Tensor and DTensor",
        "a parameter was used outside its module's forward, where FSDP has only a shard of it",
    ),
    (
        "appears to not have been used in the graph",
        "torch.autograd.grad was asked for the gradient of a parameter that FSDP had exchanged for a gathered one",
    ),
)
"""Messages of torch's kernels about models that passed FSDP's own checks, and what the messages mean under FSDP."""
_NO_SCALAR = "grad can be implicitly created only for scalar outputs"
_FUNCTIONAL = "must override the setup_context staticmethod"
_REFUSES = ("raise ", "assert ")
_MOST_NAMES = 3


def refusal(error: BaseException, training: Training) -> str:
    """Return why the strategy cannot train the model, if the exception means that; otherwise `""`."""
    name, text = training.strategy.name, text_of(error)
    reason = next((str(each) for each in _chain(error) if isinstance(each, CannotTrainError)), "")
    if not reason and is_import_path(training.case.strategy) and users_line(error):
        return ""  # a mistake in the strategy's file is not a refusal
    reason = reason or _reason(error, text, training)
    if not reason and name == "fsdp":
        for words, meaning in _SHARDED:
            if words in text:
                return _of_shards(training, meaning, error)
    if not reason and training.undivided and _may_be_of_samples(error):
        other = "use ddp" if training.strategy.one_process else "leave out accumulate"
        reason = (
            f"its batches of {training.samples} samples hold a tensor of length {training.undivided[0]}, which "
            "cannot be divided among the parts of a batch (samples of several lengths, joined?): pad the tensor "
            f"to one row per sample, or {other} ({exception_words(error)})"
        )
    if not reason and training.strategy.one_process and _FUNCTIONAL in text:
        reason = "torch.func cannot differentiate what its replicas exchange"
    if not reason and isinstance(error, _KINDS) and _raised_in_torch(error) and _WAITS not in text:
        reason = exception_words(error)
    return f"{name} cannot train this model: {reason}" if reason else ""


def _may_be_of_samples(error: BaseException) -> bool:
    return isinstance(error, (*_KINDS, IndexError)) and not isinstance(error, torch.distributed.DistError)


def _reason(error: BaseException, text: str, training: Training) -> str:
    if _TWICE in text:
        return _twice(training)
    if _WAITS in text and _setting(training, "find_unused_parameters") is None:
        return _unused(training, text)
    if training.sparse_buffers and isinstance(error, RuntimeError) and "sparse" in text.lower():
        return (
            f"the buffer {training.sparse_buffers[0]} is a sparse tensor, which cannot "
            "be sent between ranks: keep it dense, or in an attribute that is not a buffer"
        )
    return ""


def failure(error: BaseException, training: Training | None) -> str:
    """Describe an exception in words. Advice from torch is changed to name this package's settings, not torch's."""
    text = text_of(error)
    if training is None:
        return exception_words(error)
    if _WAITS in text:
        return f"{type(error).__name__}: {_unused(training, text)}"
    words = exception_words(error)
    if _NO_SCALAR in text and training.strategy.one_process and training.case.world_size > 1:
        words += (
            f"; does forward return a scalar? {training.strategy.name} gathers one from each replica: take the mean() "
            "of what the model returns"
        )
    for key in type(training.options).model_fields:
        ours = _option(training, key)
        for pattern in (rf"`?\b{key}\s*=\s*(True|False)`?", rf"`?\b{key}`? set to (True|False)"):
            words = re.sub(pattern, partial(_assigned, ours), words)
    if training.strategy.one_process and training.case.world_size > 1 and training.hooks_see_outputs:
        words += (
            "; the model has forward hooks, which the replicas' threads call at the same time: values that hooks "
            "store in one place are mixed up"
        )
    place = users_line(error) if is_import_path(training.case.strategy) else ""
    return words if place.strip(" ()") in words else f"{words}{place}"


def _assigned(setting: str, assignment: re.Match[str]) -> str:
    return f"{setting} = {assignment[1].lower()}"


def _unused(training: Training, text: str) -> str:
    found = _WITHOUT.search(text)
    known = training.trained_names
    names = [known[number] for number in map(int, found[1].split()) if number < len(known)] if found else []
    what = f"DDP waits for the gradients of parameters that a step's loss does not use{_listed(names)}"
    setting = _setting(training, "find_unused_parameters")
    if setting:
        return f"{what}: set {setting} = true, or requires_grad = False for those that are never trained"
    if setting is None:
        return (
            f"{what}, and {training.strategy.name} has no setting for that: set requires_grad = False for those that "
            "are never trained, or use ddp with options.ddp.find_unused_parameters = true"
        )
    return f"{what}, although it searches for them: does forward return an object in which torch finds no tensors?"


def waits_for(training: Training, names: Sequence[str]) -> str:
    """Say that DDP waits for these parameters, which the losses of some ranks or steps do not use.

    `""` without DDP, or if it searches for unused parameters.
    """
    setting = _setting(training, "find_unused_parameters")
    fixed = bool(getattr(training.options, "static_graph", False))
    if setting is None or not (setting or fixed):
        return ""
    advice = f"set {setting} = true" if setting else ""
    advice += " and " if setting and fixed else ""
    advice += f"{'' if setting else 'set '}{_option(training, 'static_graph')} = false" if fixed else ""
    return (
        "DDP waits for the gradients of all parameters, and the losses of some ranks or steps do not use "
        f"{series_of([*names[:_MOST_NAMES], *_more(names)])}: {advice}, or have every loss use them"
    )


def _listed(names: Sequence[str]) -> str:
    return (
        f" ({', '.join(names[:_MOST_NAMES])}{''.join(f' and {each}' for each in _more(names))})"
        if names
        else ""
    )


def _more(names: Sequence[str]) -> list[str]:
    return [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []


def _of_shards(training: Training, meaning: str, error: BaseException) -> str:
    if "DTensor" in text_of(error) and _by_step(error):
        return (
            "fsdp cannot train this model: its step computes with parameters outside a forward, where FSDP has "
            "only a shard of each, together with tensors that are not sharded: use ddp or master"
        )
    if training.options.wrap == "whole":
        return f"fsdp cannot train this model: {meaning}"
    return f'fsdp cannot train this model in blocks: {meaning}; options.fsdp.wrap = "whole" may train it'


def _twice(training: Training) -> str:
    what = (
        "DDP takes one gradient for each parameter in a step, and got a second (a module that is used twice under "
        "reentrant activation checkpointing, a parameter that is used outside forward, or several backward() calls "
        "after one forward)"
    )
    if training.workload.owns_step:
        return f"{what}: add up the losses and call backward() once, and checkpoint with use_reentrant=False"
    setting = _setting(training, "static_graph")
    advice = "checkpoint with use_reentrant=False"
    return f"{what}: {advice}, or set {setting} = true" if setting else f"{what}: {advice}"


def _setting(training: Training, key: str) -> str | None:
    """Return a DDP option's name if off, `""` if on, and None if the strategy does not have it."""
    if key not in type(training.options).model_fields:
        return None
    return "" if getattr(training.options, key) else _option(training, key)


def _option(training: Training, key: str) -> str:
    owner = training.case.strategy
    return f"options.{toml_text(owner) if is_import_path(owner) else owner}.{key}"


def _raised_in_torch(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    path = os.path.realpath(trace.tb_frame.f_code.co_filename)
    return path.startswith(_REFUSING) and linecache.getline(path, trace.tb_lineno).strip().startswith(
        _REFUSES
    )


def _by_step(error: BaseException) -> bool:
    names = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not names & {"_call_impl", "_engine_run_backward"}


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
