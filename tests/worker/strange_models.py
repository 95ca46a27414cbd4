"""Users' models that some strategy cannot train: named by this path, each sound in one process."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(256, 16, generator=generator), torch.randint(4, (256,), generator=generator)
    )


def layers(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), *between, nn.Tanh(), nn.Linear(16, 4))


class Sound:
    dataset = staticmethod(data)

    def model(self) -> nn.Module:
        return layers()

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)


class Around(nn.Module):
    """A network, and something else around it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = layers()


class Temperature(Around):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * self.temperature


class ZeroDim(Sound):
    def model(self) -> nn.Module:
        return Temperature()


class SyncBatchNorm(Sound):
    def model(self) -> nn.Module:
        return layers(nn.SyncBatchNorm(16))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 16), nn.Linear(16, 4)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for _ in range(2):
            x = x + checkpoint(self.block, x, use_reentrant=True)
        return self.leave(x)


class CheckpointedTwice(Sound):
    def model(self) -> nn.Module:
        return Block()


class Compiled(Sound):
    def model(self) -> nn.Module:
        compiled: Any = torch.compile(layers(), backend="eager")
        return compiled


class CompiledInPlace(Sound):
    def model(self) -> nn.Module:
        made = layers()
        made.compile(backend="eager")
        return made


class Scripted(Sound):
    def model(self) -> nn.Module:
        made: nn.Module = torch.jit.script(layers())
        return made


class NotContiguous(Sound):
    def model(self) -> nn.Module:
        made = layers()
        made[0].weight = nn.Parameter(torch.randn(16, 16).t())
        return made


class SlopeWithin(Around):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).square().sum(), x, create_graph=True)
        return slope[:, :4] + self.net(x)


class Forces(Sound):
    def model(self) -> nn.Module:
        return SlopeWithin()


class Decay(Sound):
    """Its loss reads a weight outside forward."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return super().loss(model, batch) + model[0].weight.square().mean()


class SpareHead(Around):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Unused(Sound):
    def model(self) -> nn.Module:
        return SpareHead()


class WeightNorm(Sound):
    """Its weight is computed, so that torch cannot copy the module."""

    def model(self) -> nn.Module:
        made = layers()
        made[0].weight_g = nn.Parameter(made[0].weight.detach().norm(dim=1, keepdim=True))
        made[0].weight_v = nn.Parameter(made[0].weight.detach().clone())
        del made[0]._parameters["weight"]
        compute(made[0], ())
        made[0].register_forward_pre_hook(compute)
        return made


def compute(module: Any, _inputs: Any) -> None:
    module.weight = module.weight_v * (module.weight_g / module.weight_v.norm(dim=1, keepdim=True))


class Hooked(Sound):
    """A hook of a weight doubles its gradient."""

    def model(self) -> nn.Module:
        made = layers()
        made[0].weight.register_hook(lambda slope: slope * 2)
        return made


class Lazy(Sound):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, 4))


class KeepsStatistics(nn.Sequential):
    """Batch normalisation stays in evaluation mode in training, as when detectors are fine-tuned."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        for each in self.modules():
            if isinstance(each, nn.BatchNorm1d):
                each.eval()
        return self


class NeverSet(Sound):
    def model(self) -> nn.Module:
        return KeepsStatistics(*layers(nn.BatchNorm1d(16)))


class SetToTrain(NeverSet):
    def model(self) -> nn.Module:
        return super().model().train()


class SetInStep(NeverSet):
    def step(self, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        model.train()
        optimizer.zero_grad()
        loss = self.loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss


class Plateau(Sound):
    def optimizer(self, parameters: Any) -> Any:
        made = torch.optim.SGD(parameters, lr=0.1)
        return made, torch.optim.lr_scheduler.ReduceLROnPlateau(made)


class Broken(Sound):
    """Raises an exception in forward if it has a process group; none of torch's messages on models."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        if torch.distributed.is_initialized():
            raise ValueError("the learning rate must not be negative")
        return super().loss(model, batch)


class Gathers(Sound):
    """Its loss compares a rank's samples with those of all ranks."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        own = nn.functional.normalize(model(batch[0]), dim=-1)
        count, rank = dist.get_world_size(), dist.get_rank()
        every = [torch.zeros_like(own) for _ in range(count)]
        dist.all_gather(every, own.detach())
        every[rank] = own
        return nn.functional.cross_entropy(
            5 * own @ torch.cat(every).t(), torch.arange(len(own)) + rank * len(own)
        )


class GathersHooked(Gathers):
    """Trains as well, with a hook that doubles a weight's gradient, which FSDP drops."""

    def model(self) -> nn.Module:
        return Hooked().model()


class AsksInStep(Gathers):
    """Gathers in its own step."""

    loss: Any = None

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = Gathers.loss(self, model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()


class Packed(Sound):
    """Several sequences in one row of tokens, with the offsets at which they begin."""

    def dataset(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(2, 7, (128,), generator=generator)
        return [torch.randint(9, (int(length),), generator=generator) for length in lengths]

    def collate(self, samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        ends = torch.tensor([len(each) for each in samples]).cumsum(0)
        return {"tokens": torch.cat(samples), "offsets": torch.cat([torch.zeros(1, dtype=torch.long), ends])}

    def model(self) -> nn.Module:
        return nn.EmbeddingBag(9, 4, include_last_offset=True)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch["tokens"], batch["offsets"]).square().mean()


class Images(Sound):
    """A list of images, as detectors take them: none of its tensors has a dimension for samples."""

    def dataset(self) -> Any:
        return [(features.reshape(4, 4)[:3], label) for features, label in data()]

    def model(self) -> nn.Module:
        return nn.Linear(4, 4)

    def collate(self, samples: Any) -> Any:
        return [image for image, _ in samples], [label for _, label in samples]

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        scores = torch.stack([model(image).mean(0) for image in batch[0]])
        return nn.functional.cross_entropy(scores, torch.stack(batch[1]))


class PackedLoader(Packed):
    """Packs them in its loader, which says how many there are."""

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        own = Packed().dataset()[rank::world_size]
        return torch.utils.data.DataLoader(own, batch_size=batch, collate_fn=self.collate, drop_last=True)

    def samples(self, batch: Any) -> int:
        return len(batch["offsets"]) - 1


class OneLength(torch.optim.Optimizer):
    """An optimizer that moves all parameters together by a vector of one length."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        length = torch.stack([each.grad.norm() for each in held]).norm()
        for each in held:
            each.sub_(0.1 * each.grad / length)


class MovesTogether(Sound):
    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return OneLength(parameters)


class StepsTogether(MovesTogether):
    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = self.loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss


class JoinedTargets(Sound):
    """Targets of several lengths in one row, as CTC takes them, next to samples along their first dimension."""

    def dataset(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, 4, (128,), generator=generator)
        return [
            (torch.randn(8, 4), torch.randint(1, 4, (int(each),), generator=generator)) for each in lengths
        ]

    def collate(self, samples: list[Any]) -> Any:
        rows, targets = zip(*samples, strict=True)
        return torch.stack(rows), torch.cat(targets), torch.tensor([len(each) for each in targets])

    def model(self) -> nn.Module:
        return nn.Linear(4, 4)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        rows, targets, lengths = batch
        likely = model(rows).log_softmax(-1).transpose(0, 1)
        return nn.functional.ctc_loss(likely, targets, torch.full((len(rows),), 8), lengths)


class PackedUnsaid(PackedLoader):
    samples: Any = None


class UnusedDecayed(Unused):
    """With weight decay an update with a gradient of zero differs from one without any."""

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)


class CarriesState(nn.Module):
    """A recurrent network that continues from its last batch's state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.RNN(4, 8, batch_first=True), nn.Linear(8, 4)
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, state = self.layer(x.view(len(x), 4, 4), self.state)
        self.state = state.detach()
        return self.out(seen[:, -1])


class Stateful(Sound):
    def model(self) -> nn.Module:
        return CarriesState()


class OfEight(nn.Module):
    """Takes only batches of 8, as code with a fixed batch size does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = layers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.view(8, 16))


class OneSize(Sound):
    def model(self) -> nn.Module:
        return OfEight()


class Thawed(Around):
    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.made += 1
        if self.made == 6:
            self.net[0].requires_grad_(False)
        return self.net(x)


class Freezes(Sound):
    def model(self) -> nn.Module:
        return Thawed()


class Thaws(Sound):
    """Trains its first layer from the third batch on."""

    def __init__(self) -> None:
        self.batches = 0

    def model(self) -> nn.Module:
        made = layers()
        made[0].requires_grad_(False)
        return made

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        self.batches += 1
        if self.batches == 3:
            model[0].requires_grad_(True)
        return super().loss(model, batch)


class ByRank(Sound):
    """Its loss differs between ranks."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return super().loss(model, batch) * (1 + int(os.environ["RANK"]))


class ByRankInStep(ByRank):
    """Makes its steps itself."""

    def step(self, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = self.loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss


class ByAskedRank(Sound):
    """Its loss differs between ranks, by the rank that it asks torch for."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return Sound.loss(self, model, batch) * (1 + dist.get_rank())


class CompiledByRank(Compiled, ByRank):
    """Compiles its model, for which torch asks for the group."""


class ByAskedRankInStep(ByAskedRank, ByRankInStep):
    """Makes its steps itself."""


class Logs(Sound):
    """Only its first rank logs, and the others wait for it."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        loss = Sound.loss(self, model, batch)
        if dist.is_initialized() and dist.get_rank() == 0:
            self.logged = loss.item()
        if dist.is_initialized():
            dist.barrier()
        return loss


class LogsInStep(Logs, ByRankInStep):
    """Makes its steps itself."""


class LogsUnguarded(Sound):
    """Only its first rank logs, without checking for a group."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        loss = super().loss(model, batch)
        if dist.get_rank() == 0:
            self.logged = loss.item()
        return loss


class SetsGradients(LogsUnguarded):
    """Sets gradients that no backward() made, each rank its own."""

    def step(self, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        loss = self.loss(model, batch)
        trained = list(model.parameters())
        for each, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            each.grad = self.of_all(gradient)
        optimizer.step()
        return loss

    def of_all(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class SetsAveragedGradients(SetsGradients):
    """Sets the mean over ranks as gradients."""

    def of_all(self, gradient: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()


class SetsGradientsAveragedInAGroup(SetsGradients):
    """Sets that mean if there is a group."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return Sound.loss(self, model, batch)

    def of_all(self, gradient: torch.Tensor) -> torch.Tensor:
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        return gradient


class SetsGradientsAveragedAmongSeveral(SetsGradientsAveragedInAGroup):
    """Sets that mean if there are several ranks."""

    def of_all(self, gradient: torch.Tensor) -> torch.Tensor:
        several = dist.is_initialized() and dist.get_world_size() > 1
        return super().of_all(gradient) if several else gradient


class LogsGuarded(Sound):
    """Logs the mean loss if there is a group."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        loss = super().loss(model, batch)
        if dist.is_initialized():
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            self.logged = float(mean) / dist.get_world_size()
        return loss


class GathersAmongSeveral(Gathers):
    """Compares a rank's samples with those of all ranks if there are several."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if dist.is_initialized() and dist.get_world_size() > 1:
            return super().loss(model, batch)
        return Sound.loss(self, model, batch)


class CompiledInStep(Compiled, ByRankInStep):
    """Makes its steps itself."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return Sound.loss(self, model, batch)


class FrozenByRank(Sound):
    """Trains different parameters on each rank."""

    def model(self) -> nn.Module:
        made = layers()
        made[0].requires_grad_(os.environ["RANK"] == "0")
        return made


class FrozenByRankInStep(FrozenByRank, ByRankInStep):
    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return Sound.loss(self, model, batch)


class InPlace(Around):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 0.1
        x *= 2
        return self.net(x)


class WritesInputs(Sound):
    def model(self) -> nn.Module:
        return InPlace()


class InBackward(Sound):
    """Saves memory: each parameter's optimizer steps in a hook, once its gradient is ready."""

    def optimizer(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        own = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            own[parameter].step()
            own[parameter].zero_grad()

        for each in own:
            each.register_post_accumulate_grad_hook(update)
        return list(own.values())

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss.detach()


@dataclasses.dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    wanted: torch.Tensor
    names: list[str]


class InDataclass(Sound):
    def collate(self, samples: list[Any]) -> Pair:
        x, wanted = zip(*samples, strict=True)
        return Pair(torch.stack(x), torch.stack(wanted), ["a"] * len(x))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch.x), batch.wanted)


class Unseen:
    """Holds tensors where no search finds them."""

    def __init__(self, x: torch.Tensor, wanted: torch.Tensor) -> None:
        self.x, self.wanted = x, wanted


class InObject(InDataclass):
    def collate(self, samples: list[Any]) -> Any:
        x, wanted = zip(*samples, strict=True)
        return Unseen(torch.stack(x), torch.stack(wanted))


class Meta(Sound):
    def model(self) -> nn.Module:
        with torch.device("meta"):
            return layers()


class TwoHeads(Around):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.net(x)
        return out, self.other(out)


class TwoBackwards(Sound):
    def model(self) -> nn.Module:
        return TwoHeads()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        out, other = model(batch[0])
        loss = nn.functional.cross_entropy(out, batch[1])
        loss.backward(retain_graph=True)
        other.square().mean().backward()
        optimizer.step()
        return loss.detach()


class NoSync(TwoBackwards):
    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        with model.no_sync():
            return super().step(model, batch, optimizer)


class Drawing(nn.Module):
    """Returns a distribution, as policies and probabilistic models do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = layers()

    def forward(self, x: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.net(x))


class Policy(Sound):
    """A step that draws random numbers, so that only the model's return value shows that replicas are lost."""

    def model(self) -> nn.Module:
        return Drawing()

    def step(self, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = -model(batch[0] + torch.randn_like(batch[0])).entropy().mean()
        loss.backward()
        optimizer.step()
        return loss
