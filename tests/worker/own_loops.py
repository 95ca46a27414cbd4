"""Users' classes with common parts of training loops, and with optimizers that train nothing; named by this path."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset, TensorDataset


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(64, 6, generator=generator), torch.randint(3, (64,), generator=generator)
    )


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    features, label = batch
    return nn.functional.cross_entropy(model(features), label)


class Functions:
    """A class whose parts are all functions of the script."""

    model = build
    dataset = data
    loss = loss_of


class Hollow(Functions):
    """A parameter without an element, such as a mask of no classes."""

    def model(self) -> nn.Module:
        model = build()
        model.register_parameter("none", nn.Parameter(torch.empty(0, 4)))
        return model


class OneMemory(Functions):
    """Two parameters over one memory."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
        model[2].weight.data = model[0].weight.data
        return model


class OneBuffer(Functions):
    """All parameters in one memory, each at a separate place."""

    def model(self) -> nn.Module:
        model = build()
        whole = torch.cat([each.detach().flatten() for each in model.parameters()])
        for each, part in zip(
            model.parameters(), whole.split([each.numel() for each in model.parameters()]), strict=True
        ):
            each.data = part.view_as(each)
        return model


class Streams(Functions):
    """An iterable dataset of which each rank takes its share."""

    def dataset(self, rank: int, world_size: int) -> Any:
        return Every(rank, world_size)


class Every(IterableDataset[Any]):
    """Every sample whose number is the rank's, and again from the first."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Any:
        samples = data()
        return (samples[number] for number in range(self.rank, len(samples), self.world_size))


class TakesOut(Functions):
    """Its loss takes the labels out of the batch, as HF Trainers do, and scales the features in place."""

    def dataset(self) -> Any:
        return [{"features": features, "label": label} for features, label in data()]

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        label = batch.pop("label")
        return nn.functional.cross_entropy(model(batch["features"].sub_(0.5).div_(2)), label)


class TakesOutInStep(TakesOut):
    """Takes them out in a step."""

    loss = None  # type: ignore[assignment]

    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = TakesOut.loss(self, model, batch)
        loss.backward()
        optimizer.step()
        return loss


class Pretrained(Functions):
    """A model as transformers' `from_pretrained` returns it."""

    def model(self) -> nn.Module:
        return build().eval()


class Clipped(Functions):
    """Gradients are clipped far below their size, and the learning rate falls with every update."""

    def optimizer(self, model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def before_update(self, model: nn.Module) -> Any:
        return nn.utils.clip_grad_norm_(model.parameters(), 1e-2)


class Groups(Functions):
    """minGPT's way: the model makes its optimizer, with decay for matrices alone."""

    class Net(nn.Module):
        """A model that knows its optimizer."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = build()

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layers(features)
            return out

        def configure_optimizers(self, rate: float) -> torch.optim.Optimizer:
            decay = [each for each in self.parameters() if each.dim() > 1]
            rest = [each for each in self.parameters() if each.dim() <= 1]
            groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
            return torch.optim.AdamW(groups, lr=rate)

    model = Net

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = model.configure_optimizers(1e-2)
        return made


class Outputs(Functions):
    """The loss comes with other outputs, as in the transformers library."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": loss_of(model, batch), "logits": None}


class WarmsUp(Functions):
    """A schedule that starts with a learning rate of zero."""

    def optimizer(self, parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))


class Narrow(Functions):
    """Enters autocast itself."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, batch)


class AnotherModels(Groups):
    """The natural code, and wrong: it makes another model, and that model's optimizer."""

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return self.model().configure_optimizers(1e-2)


class Part(Functions):
    """Only the last layer."""

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[2].parameters(), lr=0.1)


class Strange(Functions):
    """A weight of the loss is trained in addition to the model."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(()))

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([*parameters, self.weight], lr=0.1)


class Still(Functions):
    """A group with a learning rate of 0."""

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        first, last = model[0].parameters(), model[2].parameters()
        return torch.optim.SGD([{"params": first, "lr": 0.0}, {"params": last}], lr=0.1)


class Frozen(Functions):
    """A part is frozen, and the optimizer has the rest: nothing is wrong."""

    def model(self) -> nn.Module:
        model = build()
        model[0].requires_grad_(False)
        return model

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[2].parameters(), lr=0.1)


class Cached(Functions):
    """A single model for all calls."""

    def __init__(self) -> None:
        self.made = build()

    def model(self) -> nn.Module:
        return self.made


class Backbone(Cached):
    """A fresh head on one backbone for all."""

    def model(self) -> nn.Module:
        return nn.Sequential(self.made, nn.Linear(3, 3))


class Wraps(Functions):
    """Wraps its model in DDP itself."""

    def model(self) -> nn.Module:
        return DistributedDataParallel(build())


class WrapsLightly(Functions):
    """Wraps its model in DataParallel itself."""

    def model(self) -> nn.Module:
        return nn.DataParallel(build())


class Two(Functions):
    """Two optimizers, without saying which updates when."""

    def optimizer(self, model: Any) -> Any:
        return torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)


class NoOptimizer(Functions):
    """Forgets to return the optimizer."""

    def optimizer(self, parameters: Any) -> Any:
        torch.optim.SGD(parameters, lr=0.1)


class Gan:
    """Two networks, two optimizers, steps in turn: the generator's every second time."""

    def __init__(self) -> None:
        self.steps = 0

    def model(self) -> dict[str, nn.Module]:
        maker = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6))
        return {"maker": maker, "judge": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))}

    def dataset(self) -> TensorDataset:
        return data()

    def optimizer(self, model: Any) -> Any:
        judge = torch.optim.Adam(model["judge"].parameters(), lr=1e-2, betas=(0.5, 0.9))
        return {"maker": torch.optim.SGD(model["maker"].parameters(), lr=0.1), "judge": judge}

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        real, _ = batch
        made = model["maker"](torch.randn(len(real), 4, dtype=real.dtype))
        judged = torch.cat([model["judge"](real), 1 - model["judge"](made.detach())])
        loss = nn.functional.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
        optimizer["judge"].zero_grad()
        loss.backward()
        optimizer["judge"].step()
        self.steps += 1
        if self.steps % 2:
            fooled = nn.functional.softplus(-model["judge"](made)).mean()
            optimizer["maker"].zero_grad()
            fooled.backward()
            optimizer["maker"].step()
        return loss


class LeavesOut(Functions):
    """A step that skips an update if its loss is low, which it is from the start."""

    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if loss > 100:
            optimizer.step()
        return loss


class Loop(Functions):
    """A single network: gradients of two halves added up, clipped, and a schedule, all by its own code."""

    loss = None  # type: ignore[assignment]

    def optimizer(self, model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer, schedule = optimizer
        optimizer.zero_grad()
        total = torch.zeros(())
        for features, label in zip(batch[0].chunk(2), batch[1].chunk(2), strict=True):
            loss = loss_of(model, (features, label)) / 2
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        return total


class ScaledLoop(Functions):
    """Autocast and a scaler by its own code."""

    loss = None  # type: ignore[assignment]
    factor = 1.0

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.factor * loss_of(model, batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
        return loss


class NeverSteps(Loop):
    """Forgets the update."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        loss.backward()
        return loss


class OtherNets(Gan):
    """Its optimizers are of networks that nobody trains."""

    def optimizer(self, model: Any) -> Any:
        return super().optimizer(self.model())


class ReturnsNothing(Loop):
    """Forgets to return the loss."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> Any:
        super().step(model, batch, optimizer)


class Uneven(Loop):
    """The second rank makes one more backward, and would wait forever."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        if batch[1].sum() % 2:
            loss_of(model, batch).backward()
        return super().step(model, batch, optimizer)


class GradientOfEach(Loop):
    """Takes the gradient of each of two losses of one forward, as methods for several tasks do."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer, _ = optimizer
        scores = model(batch[0])
        gradients = []
        for loss in (nn.functional.cross_entropy(scores, batch[1]), scores.square().mean()):
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            gradients.append([each.grad.clone() for each in model.parameters()])
        for each, *grads in zip(model.parameters(), *gradients, strict=True):
            each.grad = sum(grads)
        optimizer.step()
        return loss


class Accumulates(Loop):
    """Updates every fourth time."""

    def __init__(self) -> None:
        self.count = 0

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer, _ = optimizer
        loss = self.value(model, batch)
        loss.backward()
        self.count += 1
        if self.count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def value(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return loss_of(model, batch)


class AccumulatesAndWarmsUp(Accumulates):
    """Updates every fourth time, first with a learning rate of zero."""

    def optimizer(self, model: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer, schedule


class ByHand(Accumulates):
    """Updates the parameters itself, as plain gradient descent."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = self.value(model, batch)
        model.zero_grad()
        loss.backward()
        for each in model.parameters():
            each.data.add_(each.grad, alpha=-0.1)
        return loss


class NeverWarmsUp(Accumulates):
    """Updates every fourth time with a learning rate of zero."""

    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.0), None


class AdamAccumulates(Accumulates):
    """With Adam, whose first update of a number shows only the sign of its gradient."""

    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.Adam(model.parameters(), lr=0.01), None

    def value(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).exp().mean()  # lowers the last layer's biases, whichever the samples


class Overflows(ScaledLoop):
    """A scaler whose first scale is too large: it skips the first steps."""

    factor = 16.0

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)


class Critic(Gan):
    """The generator has its turn every fifth time."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        real, _ = batch
        made = model["maker"](real[:, :4])
        loss = nn.functional.softplus(model["judge"](made.detach())).mean()
        optimizer["judge"].zero_grad()
        loss.backward()
        optimizer["judge"].step()
        self.steps += 1
        if self.steps % 5 == 0:
            optimizer["maker"].zero_grad()
            nn.functional.softplus(-model["judge"](made)).mean().backward()
            optimizer["maker"].step()
        return loss


class CriticFirst(Critic):
    """The generator has its turn in the first step of five; the others only take samples from it."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        real, _ = batch
        with torch.no_grad():
            made = model["maker"](real[:, :4])
        loss = nn.functional.softplus(model["judge"](made) - model["judge"](real)).mean()
        optimizer["judge"].zero_grad()
        loss.backward()
        optimizer["judge"].step()
        if self.steps % 5 == 0:
            optimizer["maker"].zero_grad()
            nn.functional.softplus(-model["judge"](model["maker"](real[:, :4]))).mean().backward()
            optimizer["maker"].step()
        self.steps += 1
        return loss


class Slowly(Functions):
    """The usual warm-up of a transformer: its first updates are smaller than float32 can add to 1."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))

    def optimizer(self, parameters: Any) -> Any:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10_000))


class ScheduleFirst(Loop):
    """Its schedule steps before the first update."""

    def optimizer(self, model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1**step)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer, schedule = optimizer
        optimizer._opt_called = True  # torch warns of the order otherwise
        schedule.step()
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss


class Checkpointed(Loop):
    """Activations are recomputed in backward, by a second backward."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        features, label = batch
        optimizer, _ = optimizer
        optimizer.zero_grad()
        features = features.detach().requires_grad_()
        outputs = torch.utils.checkpoint.checkpoint(model, features, use_reentrant=True)
        loss = nn.functional.cross_entropy(outputs, label)
        loss.backward()
        optimizer.step()
        return loss


class Closure(Loop):
    """An optimizer that calls a closure several times per step."""

    def optimizer(self, model: Any) -> Any:
        return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        loss: torch.Tensor = optimizer.step(closure)
        return loss


class OneCycle(Functions):
    """A schedule with an end, beyond which a benchmark goes."""

    def optimizer(self, parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)


class Number(Loop):
    """Returns the loss's value instead of the loss."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> Any:
        return super().step(model, batch, optimizer).item()


class ReachesThrough(Functions):
    """Uses attributes of its model that a wrapper lacks."""

    loss = None  # type: ignore[assignment]

    class Net(nn.Module):
        """A network that knows its cost."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = build()

        def cost(self, batch: Any) -> torch.Tensor:
            return loss_of(self.layers, batch)

    model = Net

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss: torch.Tensor = model.cost(batch)
        return loss


class OtherBranch(Loop):
    """The parameters that a rank's loss reaches depend on its samples."""

    def model(self) -> nn.Module:
        return nn.ModuleDict({"left": build(), "right": build()})

    def optimizer(self, model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model["left" if batch[1].sum() % 2 else "right"], batch)
        loss.backward()
        optimizer.step()
        return loss


class Evaluated(Loop):
    """A step, and the loss that evaluation computes."""

    loss = loss_of


class EvaluatesWrongly(Loop):
    """Its step is sound, but evaluation cannot compute its loss."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0])


class ClosureWithoutStep(Functions):
    """An optimizer that recomputes the loss itself, without a step that would let it."""

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.1)


class Sparse(Functions):
    """An embedding whose gradient holds a few rows per batch."""

    class Net(nn.Module):
        """Words to a number."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, 3, sparse=True)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.words((features[:, 0].abs() * 10).long().clamp(max=49))

    model = Net

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)


class SparseRows(Sparse):
    """A sparse embedding with an optimizer that takes only sparse gradients, and updates only their rows."""

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam(list(parameters), lr=0.1)


class SparseLoop(Sparse):
    """A sparse embedding in a class that makes its own step."""

    def optimizer(self, model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss


class FreezesInTurn(Gan):
    """Freezes the judge while the maker trains, as pix2pix does: a step ends with it frozen."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        real, _ = batch
        made = model["maker"](real[:, :4])
        for each in model["judge"].parameters():
            each.requires_grad_(True)
        loss = nn.functional.softplus(model["judge"](made.detach()) - model["judge"](real)).mean()
        optimizer["judge"].zero_grad()
        loss.backward()
        optimizer["judge"].step()
        for each in model["judge"].parameters():
            each.requires_grad_(False)
        optimizer["maker"].zero_grad()
        nn.functional.softplus(-model["judge"](made)).mean().backward()
        optimizer["maker"].step()
        return loss


class Plain(Functions):
    """A step that is forward, backward, update."""

    loss = None  # type: ignore[assignment]

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss


class DecaysByItsBatch(Plain):
    """Weights decay by a factor that the rank's own samples decide."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = super().step(model, batch, optimizer)
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(1 - 0.01 * batch[0].mean().abs().to(each.dtype))
        return loss


class GoesAround(Plain):
    """Calls the bare module, so that nothing is averaged."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        return super().step(getattr(model, "module", model), batch, optimizer)


class NeverAverages(Plain):
    """Keeps ddp from averaging where possible."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        waits = getattr(model, "no_sync", nullcontext)
        with waits():
            return super().step(model, batch, optimizer)


class Penalised(Plain):
    """A penalty on the slope of the outputs: gradients of gradients."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        features = batch[0].clone().requires_grad_(True)
        outputs = model(features)
        (slope,) = torch.autograd.grad(outputs.sum(), features, create_graph=True)
        loss = (outputs**2).mean() + (slope**2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss


class Drops(Functions):
    """Draws random numbers in every forward."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 3))


class Recomputes(Drops):
    """Draws them again in its backward."""

    def model(self) -> nn.Module:
        return Recomputed(Drops().model())


class Recomputed(nn.Module):
    """A module whose activations are recomputed."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, features: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(self.layers, features, use_reentrant=False)


class OfTheLastModel(Functions):
    """Computes with the model that was made last, not the one it is given."""

    made: nn.Module

    def model(self) -> nn.Module:
        OfTheLastModel.made = build()
        return OfTheLastModel.made

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return loss_of(OfTheLastModel.made, batch)


class Infinite(Functions):
    """A loss that is finite, and whose gradient is not."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return loss_of(model, batch) + (0 * model(batch[0])).square().sum().sqrt()


class Mends(Infinite):
    """Sets infinite and NaN values of a gradient to zero before the update."""

    def before_update(self, model: nn.Module) -> None:
        for each in model.parameters():
            if each.grad is not None:
                each.grad.nan_to_num_(0.0, 0.0, 0.0)


class Explodes(Functions):
    """Its second update exceeds float32's range."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).square().mean()

    def model(self) -> nn.Module:
        return nn.Linear(6, 3)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e20)
