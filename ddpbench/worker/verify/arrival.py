"""Find the order in which a model's gradients become ready in a backward pass, and the gradients' sizes.

The backward pass runs on torch's meta device where possible, so that no numbers are computed.
"""

from __future__ import annotations

import traceback
from functools import partial
from typing import Any

import torch

from ddpbench.spec import Case
from ddpbench.worker.device import hide_gpus
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.training import Training


def gradient_order(case: Case) -> dict[str, Any]:
    """Return `{"gradients": sizes}`, the bytes of each gradient in the order in which they become ready.

    Or return `{"problem": sentence}`. The backward pass runs on torch's meta device, or else on the CPU.
    """
    problem = ""
    hide_gpus()
    for device in ("meta", "cpu"):
        try:
            return {"gradients": _order(case, torch.device(device))}
        except (Exception, SystemExit) as error:  # a model without numbers may raise anything
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
    return {"problem": problem}


def _order(case: Case, device: torch.device) -> list[int]:
    alone = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
    training = Training(case, alone, device)
    with device:
        model = training.fresh_model()
    order: list[int] = []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for number, parameter in enumerate(trained):
        parameter.register_post_accumulate_grad_hook(partial(_note, order, number))  # type: ignore[no-untyped-call]
    inputs, targets = next(training.batches())
    training.workload.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    if sorted(order) != list(range(len(trained))):
        raise ValueError("some parameter gets no gradient in a step, or more than one")
    if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in trained):
        raise ValueError("sparse gradients have separate buckets")
    return [trained[number].numel() * trained[number].element_size() for number in order]


def _note(order: list[int], number: int, _parameter: torch.Tensor) -> None:
    order.append(number)
