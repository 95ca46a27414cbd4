"""A stage of a pipeline that exchanges no pickled objects with its neighbours."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from ddpbench.collectives.exchange import decoded, name_of_type, shape_of, strides_of, type_of_numbers
from ddpbench.strategies.base import CannotTrainError

_MESSAGE_BYTES = 1 << 16
"""Length of a message on shapes in bytes, enough for a thousand tensors."""


class CheckedStage(PipelineStage):
    """A stage that sends its neighbours the shapes and dtypes of its tensors as JSON instead of pickles.

    It overrides two private methods of torch 2.13. Under older versions, stages still exchange pickles.
    """

    def _send_meta(self, meta: Any, dst_stage: int) -> None:
        text = json.dumps(_described(meta), separators=(",", ":")).encode()
        if len(text) > _MESSAGE_BYTES:
            raise CannotTrainError(
                f"a stage passes too many tensors to the next stage: their shapes take {len(text):,} bytes"
            )
        message = torch.frombuffer(bytearray(text.ljust(_MESSAGE_BYTES)), dtype=torch.uint8)
        self._exchange(dist.isend, message.to(self.device), dst_stage)

    def _recv_meta(self, src_stage: int) -> Any:
        message = torch.empty(_MESSAGE_BYTES, dtype=torch.uint8, device=self.device)
        sender = self._exchange(dist.irecv, message, src_stage)
        return decoded(sender, message.cpu(), _metadata)

    def _exchange(self, act: Any, message: torch.Tensor, stage: int) -> int:
        """Send or receive a message; return the other rank.

        As in torch, it is a batch of one, for which NCCL connects all ranks of the group.
        """
        peer: int = self._resolve_peer_global_rank(stage)
        for work in dist.batch_isend_irecv([dist.P2POp(act, message, peer, self.group)]):
            work.wait()
        return peer


def _described(meta: Any) -> list[Any]:
    """Return torch's metadata on outputs, or on inputs' gradients, as JSON.

    Raises:
        CannotTrainError: an output or a gradient is not a plain tensor.
    """
    is_forward = hasattr(meta, "forward_metas")
    return [
        is_forward,
        [_of_tensor(each) for each in (meta.forward_metas if is_forward else meta.backward_metas)],
    ]


def _of_tensor(meta: Any) -> Any:
    from torch.distributed.pipelining._utils import _TensorMeta

    if meta is None:
        return None
    if type(meta) is not _TensorMeta or not (name := name_of_type(meta.dtype)):
        raise CannotTrainError(
            "its stages exchange tensors that are not plain torch.Tensors (DTensors, for example)"
        )
    return [[*meta.shape], [*meta.stride], name, bool(meta.requires_grad)]


def _metadata(sent: Any) -> Any:
    """Rebuild torch's metadata from a neighbour's message. Raise errors that `decoded` handles."""
    from torch.distributed.pipelining._utils import _StageBackwardMeta, _StageForwardMeta, _TensorMeta

    is_forward, described = sent
    metas: list[Any] = []
    for each in described:
        if each is None:
            metas.append(None)
            continue
        shape, stride, name, requires_grad = each
        if not isinstance(requires_grad, bool) or len(shape) != len(stride):
            raise TypeError("a shape and its strides are expected")
        metas.append(
            _TensorMeta(
                shape=torch.Size(shape_of(shape)),
                stride=tuple(strides_of(stride)),
                dtype=type_of_numbers(name),
                requires_grad=requires_grad,
            )
        )
    if not isinstance(is_forward, bool) or (is_forward and None in metas):
        raise TypeError("tensors are expected")
    return _StageForwardMeta(tuple(metas)) if is_forward else _StageBackwardMeta(tuple(metas))
