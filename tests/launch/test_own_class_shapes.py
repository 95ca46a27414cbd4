"""`ddpbench init` on scripts whose parts are made, named or passed in ways that many scripts use."""

from __future__ import annotations

import ast
import copy
import runpy
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from ddpbench.launch.own_class import Written, read_script, written_class
from ddpbench.launch.own_class.trial import trial_of

HEAD = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def net(width):
        return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))

    def rows():
        return TensorDataset(torch.randn(64, 6), torch.randn(64, 2))

"""


def written(tmp_path: Path, source: str) -> Written:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(source), encoding="utf-8")
    return written_class(read_script(path))


def methods(found: Written) -> dict[str, str]:
    """Return the content of the class by name, without its layout."""
    (made,) = ast.parse(found.text).body
    assert isinstance(made, ast.ClassDef)
    return {
        each.name if isinstance(each, ast.FunctionDef) else ast.unparse(each.targets[0]): ast.unparse(each)
        for each in made.body
        if isinstance(each, ast.FunctionDef | ast.Assign)
    }


PARTS = """
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = nn.Linear(6, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.backbone(x))

    def main():
        model = Detector()
        optimizer = torch.optim.SGD(
            [{"params": model.backbone.parameters(), "lr": 1e-4}, {"params": model.head.parameters()}], lr=1e-2
        )
        for x, y in DataLoader(rows(), batch_size=8):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if __name__ == "__main__":
        main()
"""


def test_rates_for_parts_of_a_model_are_over_the_model_that_is_called(tmp_path: Path) -> None:
    found = methods(written(tmp_path, PARTS))
    assert found["model"] == "model = Detector"
    assert "model(x)" in found["loss"]
    assert "model.backbone.parameters()" in found["optimizer"]


def test_networks_of_one_module_that_are_called_one_by_one_stay_apart(tmp_path: Path) -> None:
    calls = PARTS.replace("model(x)", "model.head(model.backbone(x))")
    assert methods(written(tmp_path, calls))["model"].count("nn.Linear") == 2


KEPT = """
    class Penalty(nn.Module):
        def forward(self, x):
            return x.square().mean()

    def train(network, others):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        dataset = Penalty()
        for x, y in DataLoader(rows(), batch_size=8):
            optimizer.zero_grad()
            loss = dataset(network(x) - y)
            loss.backward()
            optimizer.step()

    if __name__ == "__main__":
        train(net(4), None)
"""


def test_what_the_class_keeps_hides_none_of_its_methods(tmp_path: Path) -> None:
    found = written(tmp_path, KEPT)
    assert "self.dataset_ = Penalty()" in found.text
    assert "self.dataset_(model(x) - y)" in found.text
    assert "self.dataset = " not in found.text


TEACHER = """
    def train(teacher, student, loader, optimizer):
        teacher.eval()
        for x, y in loader:
            with torch.no_grad():
                wanted = teacher(x)
            loss = nn.functional.mse_loss(student(x), wanted + y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if __name__ == "__main__":
        teacher, student = net(16), net(4)
        for p in teacher.parameters():
            p.requires_grad_(False)
        train(teacher, student, DataLoader(rows(), batch_size=8), torch.optim.SGD(student.parameters(), lr=0.1))
"""


@pytest.mark.parametrize("frozen", [True, False])
def test_a_second_module_stays_as_the_script_sets_it(tmp_path: Path, frozen: bool) -> None:
    source = TEACHER if frozen else TEACHER.replace("p.requires_grad_(False)", "print(p.shape)")
    found = written(tmp_path, source)
    wanted = (
        "self.teacher = net(16).eval().requires_grad_(False)" if frozen else "self.teacher = net(16).eval()"
    )
    assert wanted in [line.strip() for line in found.text.splitlines()]
    lines = (tmp_path / "train.py").read_text().splitlines()
    left = {lines[each.line - 1].strip() for each in found.dropped}
    assert not left & {"teacher.eval()", "p.requires_grad_(False)"}


HELPER = """
    def progress(items, title=""):
        for each in items:
            yield each

    def update(loss, opt, model):
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    def main():
        network = net(4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for x, y in progress(DataLoader(rows(), batch_size=8), title="epoch"):
            mean, spread = network(x).chunk(2, dim=1)
            near = (y - mean).square().mean()
            loss = near + spread.square().mean()
            update(loss, optimizer, network)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("bar", [True, False])
def test_a_function_that_only_updates_leaves_the_loss_in_the_loop(tmp_path: Path, bar: bool) -> None:
    found = written(
        tmp_path, HELPER if bar else HELPER.replace("progress(D", "(D").replace(', title="epoch")', ")")
    )
    assert found.left == []
    made = methods(found)
    assert made["batch"] == "batch = 8"
    assert "rows" in made["dataset"]
    assert "mean, spread = model(x).chunk(2, dim=1)" in made["loss"].replace("(mean, spread)", "mean, spread")
    assert "clip_grad_norm_(model.parameters(), 1.0)" in made["before_update"]


def test_a_step_is_tried_with_the_batch_that_the_class_computes(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    source = textwrap.dedent(HEAD) + textwrap.dedent(PARTS).replace("batch_size=8", "batch_size=2 * 6")
    path.write_text(source)
    made = written_class(read_script(path))
    assert "batch = 2 * 6" in made.text
    works, output = trial_of(path, (source + "\n" + made.text).encode())
    assert works
    assert "float32 [12, 6]" in output


COUNTED = """
    def main():
        network = net(4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        step = 0
        for x, y in DataLoader(rows(), batch_size=8):
            loss = nn.functional.mse_loss(network(x), y) / 2
            loss.backward()
            step += 1
            if step % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    if __name__ == "__main__":
        main()
"""


def test_a_counter_named_as_a_method_hides_it_not(tmp_path: Path) -> None:
    found = written(tmp_path, COUNTED)
    assert "self.step_ += 1" in found.text
    assert "self.step = " not in found.text


NAMED_TWICE = """
    def fit(network, inputs, wanted, optimizer):
        optimizer.zero_grad()
        nn.functional.mse_loss(network(inputs), wanted).backward()
        optimizer.step()

    def main():
        x = torch.randn(64, 6)
        loader = DataLoader(TensorDataset(x, x[:, :2].abs()), batch_size=8)
        network = net(4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for x, y in loader:
            STEP

    if __name__ == "__main__":
        main()
"""
STEPS = {
    "in the loop": "optimizer.zero_grad(); nn.functional.mse_loss(network(x), y).backward(); optimizer.step()",
    "in a function": "fit(network, x, y, optimizer)",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_name_of_the_data_is_the_batch_within_the_loop(tmp_path: Path, step: str) -> None:
    found = written(tmp_path, NAMED_TWICE.replace("STEP", STEPS[step]))
    made = methods(found)
    assert found.left == []
    assert "self.x" not in found.text
    assert "model(x), y" in made["loss"]
    assert "x, y = batch" in made["loss"].replace("(x, y)", "x, y")
    assert "x = torch.randn(64, 6)" in made["dataset"]


EVERY = """
    def main():
        network = net(4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        every = 1
        loader = DataLoader(rows(), batch_size=8)
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(network(x), y) / every
            loss.backward()
            if (step + 1) % every == 0 or step == len(loader) - 1:
                optimizer.step()
                optimizer.zero_grad()

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(("every", "method"), [(1, "loss"), (2, "step")])
def test_accumulation_over_one_batch_is_none(tmp_path: Path, every: int, method: str) -> None:
    found = written(tmp_path, EVERY.replace("every = 1", f"every = {every}"))
    assert method in methods(found)
    assert (found.left == []) is (every == 1)  # with more, the user must decide on the last batch of an epoch


STREAM = """
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            for number in range(64):
                yield torch.full((6,), float(number)), torch.ones(2)

    def main():
        network = net(4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for x, y in DataLoader(Stream(), batch_size=8):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(x), y).backward()
            optimizer.step()

    if __name__ == "__main__":
        main()
"""


def test_a_stream_that_looks_at_no_rank_is_to_be_divided(tmp_path: Path) -> None:
    (line,) = written(tmp_path, STREAM).left
    assert line.startswith("Stream gives every rank the same samples")
    divided = STREAM.replace("range(64)", "range(int(os.environ['RANK']), 64, 2)")
    assert written(tmp_path, divided).left == []


STATEFUL = """
    class Rnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = nn.GRUCell(6, 4), nn.Linear(4, 2)

        def forward(self, x, state):
            state = self.cell(x, state)
            return self.out(state), state

    def main():
        network = Rnn()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for epoch in range(2):
            state = BEGIN
            seen = 0
            for x, y in DataLoader(rows(), batch_size=8):
                optimizer.zero_grad()
                BEFORE
                out, state = network(x, state)
                loss = nn.functional.mse_loss(out, y)
                loss.backward()
                optimizer.step()
                AFTER

    if __name__ == "__main__":
        main()
"""
DETACH = "state = state.detach()"


@pytest.mark.parametrize("begin", ["None", "torch.zeros(8, 4)"])
@pytest.mark.parametrize(("before", "after"), [("if state is not None: " + DETACH, "pass"), ("pass", DETACH)])
def test_a_state_that_a_batch_leaves_to_the_next_one_is_kept(
    tmp_path: Path, begin: str, before: str, after: str
) -> None:
    source = STATEFUL.replace("BEGIN", begin).replace("BEFORE", before).replace("AFTER", after)
    found = written(tmp_path, source)
    assert found.left == []
    path = tmp_path / "class.py"
    path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(source) + found.text, encoding="utf-8")
    module = runpy.run_path(str(path))
    torch.manual_seed(0)
    measured = module["Measured"]()
    model = measured.model()
    optimizer = measured.optimizer(model)
    x, y = torch.ones(8, 6), torch.ones(8, 2)
    by_hand, state = copy.deepcopy(model), torch.zeros(8, 4)
    own = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(3):
        own.zero_grad()
        out, state = by_hand(x, state.detach())
        expected = nn.functional.mse_loss(out, y)
        expected.backward()
        own.step()
        assert measured.step(model, (x, y), optimizer).item() == expected.item()
    assert any("The script keeps `state` from one batch to the next" in note for note in found.notes)


def test_a_step_that_keeps_a_state_clips_and_takes_its_schedule_itself(tmp_path: Path) -> None:
    source = STATEFUL.replace("BEGIN", "None").replace("BEFORE", "if state is not None: " + DETACH)
    clips = "nn.utils.clip_grad_norm_(network.parameters(), 1.0)"
    source = source.replace("optimizer.step()", f"{clips}; optimizer.step(); sched.step()")
    source = source.replace("seen = 0", "sched = torch.optim.lr_scheduler.StepLR(optimizer, 2)")
    found = methods(written(tmp_path, source.replace("AFTER", "pass")))
    assert "before_update" not in found
    assert "clip_grad_norm_(model.parameters(), 1.0)" in found["step"]
    assert "optimizer, sched = optimizer" in found["step"]


def test_what_a_step_clips_beside_the_model_is_not_asked_for_twice(tmp_path: Path) -> None:
    source = STATEFUL.replace("BEGIN", "None").replace("BEFORE", "if state is not None: " + DETACH)
    source = source.replace("optimizer.step()", "nn.utils.clip_grad_norm_([other], 1); optimizer.step()")
    found = written(tmp_path, source.replace("AFTER", "pass"))
    assert "before_update" not in methods(found)
    assert not any("before_update" in each for each in found.left)


def test_a_state_that_only_the_model_can_begin_is_for_a_person_to_say(tmp_path: Path) -> None:
    source = STATEFUL.replace("BEGIN", "network.begun(8)").replace("BEFORE", "pass").replace("AFTER", DETACH)
    found = written(tmp_path, source)
    assert any("`model` is a name that the module does not have" in each for each in found.left)


ANNEALED = """
    def main():
        network = net(4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        seen = 0
        for x, y in DataLoader(rows(), batch_size=8):
            weight = min(1.0, seen / 10)
            loss = weight * nn.functional.mse_loss(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += 1

    if __name__ == "__main__":
        main()
"""


def test_a_count_that_ends_the_loop_and_weighs_the_loss_goes_on(tmp_path: Path) -> None:
    made = methods(written(tmp_path, ANNEALED))
    assert "min(1.0, self.seen / 10)" in made["step"]
    assert made["step"].index("self.seen += 1") > made["step"].index("optimizer.step()")


def test_a_name_that_each_batch_sets_before_it_reads_it_is_not_kept(tmp_path: Path) -> None:
    loop = ANNEALED.replace("min(1.0, seen / 10)", "1.0").replace("seen += 1", "seen = loss.item()")
    assert "loss" in methods(written(tmp_path, loop))


TRAINER = """
    class Trainer:
        def __init__(self, model, every=2):
            self.model, self.every = model, every
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.seen = 0
            self.total = 0.0

        def fit(self):
            for x, y in DataLoader(rows(), batch_size=8):
                weight = min(1.0, self.seen / 10)
                total = weight * nn.functional.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                total.backward()
                self.optimizer.step()
                self.seen += 1
                self.total += total.item()

    if __name__ == "__main__":
        Trainer(net(4)).fit()
"""


def test_a_count_in_an_attribute_of_a_trainer_goes_on(tmp_path: Path) -> None:
    made = methods(written(tmp_path, TRAINER))
    assert "self.seen = 0" in made["__init__"]
    assert "min(1.0, self.seen / 10)" in made["step"]
    assert "self.seen += 1" in made["step"]
    assert "item()" not in made["step"]


def test_a_state_in_an_attribute_of_a_trainer_goes_on(tmp_path: Path) -> None:
    loop = TRAINER.replace("self.seen = 0", "self.seen = None").replace(
        "self.seen += 1", "self.seen = total.detach()"
    )
    made = methods(
        written(tmp_path, loop.replace("self.seen / 10", "1.0 if self.seen is None else self.seen"))
    )
    assert "self.seen = None" in made["__init__"]
    assert "self.seen = total.detach()" in made["step"]


WEIGHTED = """
    def main():
        network = net(4)
        weights = torch.tensor([1.0, 2.0])
        criterion = nn.CrossEntropyLoss(weight=weights, ignore_index=1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for x, y in DataLoader(rows(), batch_size=8):
            optimizer.zero_grad()
            criterion(network(x), y.argmax(1)).backward()
            optimizer.step()

    if __name__ == "__main__":
        main()
"""


def test_what_the_class_keeps_may_be_made_of_what_it_keeps_already(tmp_path: Path) -> None:
    found = written(tmp_path, WEIGHTED)
    assert found.left == []
    assert "weight=self.weights" in methods(found)["__init__"]


FITTED = """
    def fit(model, loader, optimizer):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()

    class Config:
        width = 8

    def build(config):
        return net(config.width)

    class Rows(TensorDataset):
        pass

    def main():
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        args = parser.parse_args()
        config = Config()
        width, data = 8, rows()
        given = {"lr": 0.1}
        layers = [nn.Linear(6, 2)]
        model, loader = MODEL, None
        CHANGE
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        fit(model, DataLoader(data, batch_size=8), optimizer)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("change", "rate", "name"),
    [
        ("args.lr = args.lr * 2", "lr=args.lr", "lr"),
        ("args.lr *= 2", "lr=args.lr", "lr"),
        ("lr = 0.1; lr *= 2", "lr=lr", "lr"),
        ("lr = 0.1\n        for _ in range(3):\n            lr = lr / 2", "lr=lr", "lr"),
        ("given['momentum'] = 0.9", "**given", "given"),
        ("given.update(momentum=0.9)", "**given", "given"),
    ],
)
def test_a_value_that_changes_before_it_is_used_is_to_be_said(
    tmp_path: Path, change: str, rate: str, name: str
) -> None:
    source = FITTED.replace("MODEL", "net(8)").replace("CHANGE", change).replace("RATE", rate)
    found = written(tmp_path, source)
    assert found.is_open
    assert f"{name} = ..." in methods(found)["optimizer"]
    assert any(
        f"say what `{name}` is (in the script, " in each and "changed in line" in each for each in found.left
    )


@pytest.mark.parametrize(
    ("change", "rate", "made"),
    [
        ("args.lr = 0.4", "lr=args.lr", "lr=0.4"),
        (
            "if args.lr == 7:\n            args.lr *= 2",
            "lr=args.lr",
            "lr=0.1",
        ),  # a branch that the defaults do not take
        ("lr = 0.3", "lr=lr", "lr=0.3"),
    ],
)
def test_a_value_that_is_set_anew_is_the_new_one(tmp_path: Path, change: str, rate: str, made: str) -> None:
    source = FITTED.replace("MODEL", "net(8)").replace("CHANGE", change).replace("RATE", rate)
    found = written(tmp_path, source)
    assert not found.is_open
    assert made in methods(found)["optimizer"]


def test_a_value_that_changes_after_it_was_used_is_the_first_one(tmp_path: Path) -> None:
    source = FITTED.replace("MODEL", "net(8)").replace("CHANGE", "lr = 0.3").replace("RATE", "lr=lr")
    found = written(tmp_path, source.replace("optimizer)\n\n", "optimizer)\n        lr *= 2\n\n"))
    assert not found.is_open
    assert "lr=0.3" in methods(found)["optimizer"]


def test_a_list_that_is_filled_is_not_the_empty_one(tmp_path: Path) -> None:
    source = FITTED.replace("model, loader = MODEL, None", "layers.append(nn.Linear(2, 2))")
    found = written(
        tmp_path, source.replace("CHANGE", "model = nn.Sequential(*layers)").replace("RATE", "lr=0.1")
    )
    assert found.is_open
    assert "layers = ..." in methods(found)["model"]


def test_an_option_that_a_caller_sets_is_what_its_function_reads(tmp_path: Path) -> None:
    call = "train(args, config)\n\n    def train(options, settings):\n        data, model = rows(), build(settings)"
    source = FITTED.replace("model, loader = MODEL, None", f"args.lr, config.width = 0.7, 32\n        {call}")
    found = written(tmp_path, source.replace("CHANGE", "pass").replace("RATE", "lr=options.lr"))
    assert not found.is_open
    assert "lr=0.7" in methods(found)["optimizer"]
    assert "config.width = 32" in methods(found)["model"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("model.head = nn.Linear(6, 2)", "model"),
        ("model[2] = nn.Linear(8, 2)", "model"),
        ("model.hidden = 3", "model"),
        ("model = adapted(model, 4)", "model"),
        ("model.add_module('more', nn.ReLU())", "model"),
        ("model[0].requires_grad_(False)", "model"),
        ("model[0].weight.requires_grad = False", "model"),
        ("for p in model[0].parameters():\n            p.requires_grad = False", "model"),
        ("model = model.double()", "model"),
        ("data.transform = len", "dataset"),
        ("data = shuffled(data)", "dataset"),
    ],
)
def test_a_model_or_a_dataset_that_is_changed_once_made_is_not_finished(
    tmp_path: Path, change: str, part: str
) -> None:
    source = FITTED.replace("MODEL", "net(8)").replace("CHANGE", change).replace("RATE", "lr=0.1")
    found = written(tmp_path, source)
    assert found.is_open
    assert f"...  # what line {_line_of(source, change)} does: " in found.text
    assert any(each.startswith(f"{part}(): do there what line ") for each in found.left)


def _line_of(source: str, change: str) -> int:
    whole = textwrap.dedent(HEAD) + textwrap.dedent(source)
    last = change.splitlines()[-1].strip()
    return whole[: whole.index(last)].count("\n") + 1


@pytest.mark.parametrize(
    "change",
    ["model = model.to('cpu')", "model = torch.compile(model)", "model = model.float()"],
)
def test_a_model_that_stays_what_it_is_is_finished(tmp_path: Path, change: str) -> None:
    source = FITTED.replace("MODEL", "net(8)").replace("CHANGE", change).replace("RATE", "lr=0.1")
    assert not written(tmp_path, source).is_open


@pytest.mark.parametrize(
    ("change", "call"),
    [
        ("model = torch.compile(model)", "torch.compile(model)"),
        ("model.compile()", "model.compile()"),
        ("model = torch.jit.script(model)", "torch.jit.script(model)"),
        (
            "model = model.to(memory_format=torch.channels_last)",
            "model.to(memory_format=torch.channels_last)",
        ),
        ("if torch is not None:\n    model = torch.compile(model)", "torch.compile(model)"),
        ("model = model.to('cpu')", ""),
        ("if False:\n    model = torch.compile(model)", ""),
    ],
)
def test_what_makes_a_model_faster_is_noted(tmp_path: Path, change: str, call: str) -> None:
    source = FITTED.replace("MODEL", "net(8)").replace("RATE", "lr=0.1")
    found = written(tmp_path, source.replace("CHANGE", change.replace("\n", "\n            ")))
    notes = [each for each in found.notes if "how fast its model runs" in each]
    assert len(notes) == bool(call)
    assert not call or f"`{call}` (line " in notes[0]


def test_what_a_script_does_to_a_model_when_it_is_imported_is_told(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        """
        model = net(8)
        model.apply(nn.Module.requires_grad_)
        for p in model[0].parameters():
            p.requires_grad = False
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(rows(), batch_size=8):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        """,
    )
    assert found.is_open
    assert "p.requires_grad = False" in methods_text(found)
    assert [e.text for e in found.dropped if "apply" in e.text] == ["model.apply(nn.Module.requires_grad_)"]


def methods_text(found: Written) -> str:
    return "\n".join(line for line in found.text.splitlines() if line.strip().startswith("...  # what line"))


def test_each_of_two_networks_is_looked_at(tmp_path: Path) -> None:
    source = """
        def main():
            one, two = net(8), net(4)
            two.head = nn.Linear(2, 2)
            first = torch.optim.SGD(one.parameters(), lr=0.1)
            second = torch.optim.SGD(two.parameters(), lr=0.1)
            for x, y in DataLoader(rows(), batch_size=8):
                first.zero_grad()
                second.zero_grad()
                loss = nn.functional.mse_loss(one(x) + two(x), y)
                loss.backward()
                first.step()
                second.step()

        if __name__ == "__main__":
            main()
    """
    assert not written(tmp_path, source.replace("two.head = nn.Linear(2, 2)", "pass")).is_open
    assert "two.head = nn.Linear(2, 2)" in methods_text(written(tmp_path, source))


SETS_ANEW = """
    class Trainer:
        def __init__(self, config):
            self.rate = config["rate"]
            self.weight = 1.0
            CHANGE
            self.model = net(8)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)
            self.loader = DataLoader(rows(), batch_size=8)

        def train(self):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = self.weight * nn.functional.mse_loss(self.model(x), y)
                loss.backward()
                self.optimizer.step()

    if __name__ == "__main__":
        config = {"rate": 0.1}
        Trainer(config).train()
"""


@pytest.mark.parametrize(
    ("change", "part", "name"),
    [
        ("self.rate *= 4", "optimizer", "rate"),
        ("self.rate = self.rate / 2", "optimizer", "rate"),
        ("self.weight += 1", "loss", "weight"),
    ],
)
def test_an_attribute_that_changes_before_it_is_used_is_to_be_said(
    tmp_path: Path, change: str, part: str, name: str
) -> None:
    assert not written(tmp_path, SETS_ANEW.replace("CHANGE", "pass")).is_open
    found = written(tmp_path, SETS_ANEW.replace("CHANGE", change))
    assert f"{name} = ..." in methods(found)[part]


HELD = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(8, 8)
        def forward(self, x):
            return self.f(x)

    class Net(nn.Module):
        def __init__(self, encoder):
            super().__init__()
            self.body, self.width = encoder, 8
            self.enc = encoder
            self.head = nn.Linear(8, 1)
        def forward(self, x):
            return self.head(self.enc(x))

    def penalty(module):
        return sum(each.abs().sum() for each in module.parameters())

    def main():
        body, head = Body(), nn.Linear(8, 1)
        model = MODEL
        optimizer = torch.optim.SGD(PARAMETERS, lr=0.1)
        for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8):
            loss = (model(x) - y).square().mean() + MORE
            optimizer.zero_grad()
            loss.backward()
            CLIP
            optimizer.step()

    if __name__ == "__main__":
        main()
"""


def with_parts(
    tmp_path: Path,
    model: str = "nn.Sequential(body, head)",
    parameters: str = "model.parameters()",
    more: str = "penalty(body)",
    clip: str = "pass",
) -> Written:
    text = textwrap.dedent(HELD).replace("MODEL", model).replace("PARAMETERS", parameters)
    path = tmp_path / "train.py"
    path.write_text(text.replace("MORE", more).replace("CLIP", clip))
    return written_class(read_script(path))


@pytest.mark.parametrize(
    ("model", "more", "wanted"),
    [
        ("nn.Sequential(body, head)", "penalty(body)", "penalty(model[0])"),
        ("nn.Sequential(nn.Sequential(nn.ReLU(), body), head)", "body(x).mean()", "model[0][1](x).mean()"),
        ("nn.Sequential(*[nn.ReLU(), body], head)", "head.weight.sum()", "model[2].weight.sum()"),
        ("Net(body)", "body.f.weight.sum()", "model.enc.f.weight.sum()"),
        ("nn.Sequential(body.apply(print), head)", "penalty(body)", "penalty(model[0])"),
        ("Net(encoder=body)", "penalty(body)", "penalty(model.enc)"),
        (
            'nn.ModuleDict({"body": body, "heads": nn.ModuleList([head])})',
            "head(x).sum()",
            'model["heads"][0](x)',
        ),
    ],
)
def test_a_module_that_a_script_puts_into_its_model_is_taken_from_the_model(
    model: str, more: str, wanted: str, tmp_path: Path
) -> None:
    found = with_parts(tmp_path, model, more=more, clip="nn.utils.clip_grad_norm_(model.parameters(), 1)")
    assert wanted in found.text
    assert "self." not in found.text
    assert found.left == []


@pytest.mark.parametrize(
    "model", ["nn.Sequential(*[nn.ReLU() for _ in range(2)], body)", "nn.Sequential(wrap(body), head)"]
)
def test_a_module_of_which_nobody_sees_where_in_the_model_it_is_is_to_be_said(
    model: str, tmp_path: Path
) -> None:
    found = with_parts(tmp_path, model)
    assert (
        "        body = ...  # the part of the model that has this name in the script, not a copy"
        in found.text
    )
    assert found.is_open


def test_a_step_has_no_way_into_its_wrapped_model(tmp_path: Path) -> None:
    found = with_parts(tmp_path, clip="(penalty(body) * 0.1).backward()")
    assert "def step(self" in found.text
    assert "body = ...  # the part of the model" in found.text


def test_parts_of_a_model_are_clipped_as_its_own(tmp_path: Path) -> None:
    clipped = with_parts(tmp_path, clip="nn.utils.clip_grad_norm_(body.parameters(), 1)")
    assert "nn.utils.clip_grad_norm_(model[0].parameters(), 1)" in clipped.text


@pytest.mark.parametrize("rest", ["head.parameters()", "model[1].parameters()"])
def test_groups_of_parameters_of_a_model_and_of_its_parts_are_of_one_model(rest: str, tmp_path: Path) -> None:
    groups = '[{"params": body.parameters(), "lr": 0.01}, {"params": REST}]'.replace("REST", rest)
    found = with_parts(tmp_path, parameters=groups, more="0")
    assert "return nn.Sequential(Body(), nn.Linear(8, 1))" in found.text
    assert '"params": model[0].parameters(), "lr": 0.01' in found.text
    assert '"params": model[1].parameters()' in found.text
    assert found.left == []


@pytest.mark.parametrize(
    "change", ["body.eval()", "body.requires_grad_(False)", "nn.init.zeros_(body.f.weight)", "body.f = head"]
)
def test_what_is_done_to_a_part_of_a_model_is_to_be_filled_in(change: str, tmp_path: Path) -> None:
    found = with_parts(tmp_path, f"nn.Sequential(body, head)\n    {change}")
    assert f"does: {change}" in found.text
    assert "self." not in found.text
