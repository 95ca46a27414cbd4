"""A user's class that derives from nothing, as a workload."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.utils.data import IterableDataset

from ddpbench.workloads import load_workload
from ddpbench.workloads.plain import PlainWorkload, lacks, options_of
from ddpbench.workloads.plain_methods import method_of
from ddpbench.workloads.plain_model import ModelWithLoss, holder_of

if TYPE_CHECKING:
    from somewhere import Unimportable


class Stream(IterableDataset[Any]):
    """Stores its arguments."""

    def __init__(self, place: tuple[int, int, int]) -> None:
        self.place = place

    def __iter__(self) -> Any:
        return iter(self.place)


class Mine:
    """Doubles `width`; its loss is half the mean square."""

    def __init__(self, width: int = 3, *, name: str = "a") -> None:
        self.width, self.name = width, name
        self.large = torch.zeros(10)

    def model(self) -> nn.Module:
        return nn.Linear(self.width, 1)

    def dataset(self, rank: int, world_size: int) -> Any:
        return Stream((rank, world_size, self.width))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch["x"]).square().mean() / 2

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(parameters, lr=0.5)


class Loaded:
    """Has a loader and no other optional method."""

    model = nn.Identity

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        return [rank, world_size, batch]

    def collate(self, samples: list[Any]) -> Any:
        return sum(samples)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return batch


def test_options_are_the_constructors_keywords() -> None:
    options = options_of(Mine)
    assert options().model_dump() == {"width": 3, "name": "a"}
    assert options(width=5).width == 5  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match="wdith"):
        options.model_validate({"wdith": 5})
    with pytest.raises(ValidationError, match="valid integer"):
        options.model_validate({"width": "much"})
    assert options_of(Loaded).model_fields == {}


def test_a_keyword_without_a_default_is_required_and_others_may_be_let_through() -> None:
    class Strict:
        def __init__(self, needed: float, **others: Any) -> None: ...

    options = options_of(Strict)
    assert options.model_validate({"needed": 1, "more": 2}).model_dump() == {"needed": 1.0, "more": 2}
    with pytest.raises(ValidationError, match="needed"):
        options.model_validate({})


def test_an_annotation_that_exists_for_type_checkers_alone_is_any_type() -> None:
    class Typed:
        def __init__(self, callback: Unimportable | None = None, width: int = 3) -> None: ...

    options = options_of(Typed)
    assert options.model_validate({"callback": "anything", "width": 5}).model_dump() == {
        "callback": "anything",
        "width": 5,
    }
    with pytest.raises(ValidationError, match="valid integer"):
        options.model_validate({"width": "much"})


def test_what_is_missing_is_named() -> None:
    assert lacks(Mine) == ""
    assert lacks(Loaded) == ""
    assert lacks(nn.Linear) == "model and loss (or step) and dataset (or loader)"


def test_its_parts_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = PlainWorkload(Mine)
    options = workload.options.model_validate({"width": 4})
    model = workload.model(options)
    x = torch.randn(6, 4)
    expected = model.network(x).square().mean() / 2
    outputs = model({"x": x})
    assert outputs.shape == (1,)
    assert torch.equal(workload.loss(outputs, None), expected)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert workload.dataset(options).place == (2, 5, 4)  # type: ignore[attr-defined]
    optimizer = workload.optimizer(model.parameters(), options)
    assert isinstance(optimizer, torch.optim.Adagrad)
    assert workload.loader(options, 0, 1, 8) is None
    assert workload.collate([torch.zeros(2), torch.ones(2)]).tolist() == [[0, 0], [1, 1]]


def test_its_own_loader_gets_its_place_and_batch() -> None:
    workload = PlainWorkload(Loaded)
    options = workload.options()
    assert workload.loader(options, 1, 2, 8) == [1, 2, 8]
    assert workload.collate([1, 2, 3]) == 6
    optimizer = workload.optimizer([torch.zeros(1, requires_grad=True)], options)
    assert isinstance(optimizer, torch.optim.SGD)  # the package's own


def test_loader_workers_get_it_by_pickle() -> None:
    workload = PlainWorkload(Loaded)
    workload.model(workload.options())
    assert pickle.loads(pickle.dumps(workload)).collate([1, 2]) == 3


def test_the_mean_over_replicas_of_losses_is_the_loss() -> None:
    workload = PlainWorkload(Mine)
    assert float(workload.loss(torch.tensor([1.0, 4.0]), None)) == 2.5


def test_a_copy_of_the_model_has_a_copy_of_the_object_that_shares_its_data() -> None:
    own: Any = Mine()
    own.data = own.dataset(0, 1)
    model = ModelWithLoss(own.model(), own)
    twin = copy.deepcopy(model)
    assert len({id(each) for each in (own, model.own, twin.own)}) == 3
    assert twin.own.data is own.data
    assert twin.network is not model.network
    x = torch.randn(2, 3)
    with torch.no_grad():
        twin.network.weight.zero_()
        twin.network.bias.fill_(2.0)
    assert twin({"x": x}).item() == 2.0  # 2² / 2: the copy's own weights


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda model, batch: model(batch), r"returned a tensor of shape \[2, 1\]"),
        (lambda model, batch: 1.0, r"returned a float"),
        (lambda model, batch: None, r"returned None"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused(loss: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        ModelWithLoss(nn.Linear(3, 1), SimpleNamespace(loss=loss))(torch.zeros(2, 3))


def test_a_model_that_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model\(\) returned an int; it must return a torch\.nn\.Module"):
        ModelWithLoss(3, Mine())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("dataset", None, r"dataset\(\) returned None; it must return an IterableDataset"),
        ("dataset", iter([1]), r"dataset\(\) returned a list_iterator; it must return an IterableDataset"),
        ("loader", None, r"loader\(\) returned None; it must return an iterable of batches"),
    ],
)
def test_data_of_no_use_are_refused(
    name: str, given: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    workload = PlainWorkload(type("Wrong", (Mine,), {name: lambda self, *place: given}))
    with pytest.raises(TypeError, match=said):
        getattr(workload, name)(workload.options(), *((0, 1, 4) if name == "loader" else ()))


class Kept(Mine):
    """Makes its model once, and a map-style dataset that it has already divided."""

    def __init__(self) -> None:
        super().__init__()
        self.made = nn.Linear(1, 1)

    def model(self) -> nn.Module:
        return self.made

    def dataset(self, rank: int) -> Any:
        return [rank]


def test_data_divided_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    workload = PlainWorkload(Kept)
    options = workload.options()
    with pytest.raises(ValueError, match=r"Kept.dataset\(rank\) gave a map-style dataset"):
        workload.dataset(options)


def test_what_a_class_does_around_an_update_is_a_hook_of_its_optimizer() -> None:
    class Clipping(Mine):
        def optimizer(self, model: Any) -> Any:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)

        def before_update(self, model: nn.Module) -> Any:
            return nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    workload = PlainWorkload(Clipping)
    options = workload.options()
    first, model = workload.model(options), workload.model(options)
    optimizer = workload.optimizer(model.parameters(), options)
    before = [each.detach().clone() for each in model.parameters()]
    model({"x": torch.ones(2, 3)}).backward()
    optimizer.step()
    moved = [float((new.detach() - old).norm()) for new, old in zip(model.parameters(), before, strict=True)]
    assert sum(each**2 for each in moved) ** 0.5 == pytest.approx(0.5 * 1e-3, rel=1e-3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert all(each.grad is None for each in first.parameters())


def test_a_copied_model_is_known_by_its_parameters() -> None:
    workload = PlainWorkload(Mine)
    model = workload.model(workload.options())
    twin = copy.deepcopy(model)
    assert holder_of(twin.parameters()) is twin
    assert holder_of(list(model.parameters())) is model


def build_linear(width: int = 2) -> nn.Module:
    return nn.Linear(width, 1)


def test_a_function_of_the_script_does_for_a_method() -> None:
    class Takes:
        model = build_linear
        other = staticmethod(build_linear)

        def mine(self) -> Any:
            return self

    own = Takes()
    assert method_of(own, "model")().in_features == 2
    assert method_of(own, "other")().in_features == 2
    assert method_of(own, "mine")() is own
    own.model = lambda: "of the object itself"
    assert method_of(own, "model")() == "of the object itself"


def with_batch(**members: Any) -> type[Mine]:
    return type("Own", (Mine,), members)


@pytest.mark.parametrize(
    ("own", "batch"),
    [
        (Mine, None),
        (with_batch(batch=32), 32),
        (with_batch(batch=lambda self: 3), None),
        (with_batch(batch=property(lambda self: 3)), None),
    ],
)
def test_the_classes_batch_is_its_local_batch_where_an_experiment_gives_none(
    own: type[Mine], batch: int | None
) -> None:
    assert PlainWorkload(own).default_batch == batch


@pytest.mark.parametrize("batch", [0, -2, 2.5, True, "32"])
def test_a_batch_that_is_no_number_of_samples_is_refused(batch: object) -> None:
    with pytest.raises(ValueError, match="is not a number of samples; use one, such as batch = 32"):
        PlainWorkload(with_batch(batch=batch))


class UpdatesAnyhow(Mine):
    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> Any: ...
    def before_update(self, model: nn.Module) -> None: ...


class CallingItself(UpdatesAnyhow):
    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> Any:
        def clip() -> None:
            self.before_update(model)

        clip()


def test_a_before_update_that_nothing_would_call_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"never called in a class with step..: move its code into step"):
        PlainWorkload(UpdatesAnyhow)
    assert PlainWorkload(CallingItself).owns_step  # its step calls it
    assert PlainWorkload(type("Without", (UpdatesAnyhow,), {"before_update": None})).owns_step


def test_a_file_that_changes_directory_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "moves_away.py").write_text(
        f"import os\nos.chdir({str(elsewhere)!r})\n"
        "class Measured:\n    def model(self): ...\n    def dataset(self): ...\n    def loss(self, model, batch): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert load_workload("moves_away.py:Measured").name == "plain"
    assert load_workload("moves_away.py:Measured").name == "plain"


class Stepping:
    """Makes its own steps, and names its optimizer's argument for what it needs."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 1))

    def dataset(self) -> Any:
        return [torch.zeros(2)]

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5)

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["parameters", "params"])
def test_the_optimizer_of_a_step_is_given_parameters_where_it_asks_for_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "params":
        monkeypatch.setattr(Stepping, "optimizer", lambda self, params: torch.optim.SGD(params, lr=0.5))
    workload = PlainWorkload(Stepping)
    options = workload.options()
    model = workload.model(options)
    made = workload.optimizers(model.parameters(), options)
    assert {id(each) for each in made.param_groups[0]["params"]} == {id(each) for each in model.parameters()}


def test_a_model_that_is_made_already_is_refused_with_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stepping, "model", nn.Sequential(nn.Linear(2, 1)))
    workload = PlainWorkload(Stepping)
    with pytest.raises(TypeError, match="model is a module, not a class: give its class, or a function"):
        workload.model(workload.options())
