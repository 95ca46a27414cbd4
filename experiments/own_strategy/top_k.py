"""Top-k compression with error feedback, as a communication hook of DDP (Stich et al., NeurIPS 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from ddpbench.strategies import CompensatedHookStrategy

if TYPE_CHECKING:
    import torch


class Options(BaseModel, extra="forbid", frozen=True):
    """Keys of `[options."own_strategy/top_k.py:TopK"]`."""

    ratio: Annotated[float, Field(gt=0, le=1)] = 0.01


class TopK(CompensatedHookStrategy[Options]):
    """Each rank sends the largest numbers of a bucket with their places, and adds the others to the next step's."""

    options = Options
    display = "top-k"

    def state(self, job: Any, options: Options) -> dict[str, Any]:
        return {"ratio": options.ratio, "left": {}, "sent": 0}

    def hook(self, state: dict[str, Any], bucket: Any) -> torch.futures.Future[torch.Tensor]:
        import torch.distributed

        whole: torch.Tensor = bucket.buffer()
        left, ranks = state["left"], torch.distributed.get_world_size()
        left[bucket.index()] = rest = whole + left.get(bucket.index(), 0)
        places = rest.abs().topk(max(1, int(state["ratio"] * rest.numel()))).indices
        mine = torch.cat([places.view(rest.dtype), rest[places]])  # one message: places, then numbers
        rest[places] = 0
        state["sent"] = mine.numel() * mine.element_size()
        every = mine.new_empty(ranks * mine.numel())

        def averaged(_: Any) -> torch.Tensor:
            whole.zero_()
            for theirs in every.chunk(ranks):
                at, numbers = theirs[: -places.numel()].clone(), theirs[-places.numel() :]
                whole.index_add_(0, at.view(torch.int64), numbers / ranks)
            return whole

        work: Any = torch.distributed.all_gather_into_tensor(every, mine, async_op=True)
        average: torch.futures.Future[torch.Tensor] = work.get_future().then(averaged)
        return average

    def kept(self, state: dict[str, Any], index: int) -> torch.Tensor:
        left: torch.Tensor = state["left"][index]
        return left

    def sent_bytes(self, state: dict[str, Any], bucket: Any) -> int:
        return int(state["sent"])
