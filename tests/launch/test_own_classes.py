"""What the text of a user's file tells of a class: whether it makes its steps itself, and then what is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.launch.own_classes import has_own_step
from tests.failures.conftest import run_cli

TEXT = """
class Plain:
    model = dataset = loss = dict
    class Inner:
        def step(self): ...
class Steps(Plain):
    def step(self, model, batch): ...
class Takes:
    step = print
class Inherits(Steps):
    pass
"""


@pytest.mark.parametrize(
    ("name", "own"), [("Plain", False), ("Steps", True), ("Takes", True), ("Inherits", True)]
)
def test_a_step_is_found_in_the_text(tmp_path: Path, name: str, own: bool) -> None:
    (tmp_path / "loops.py").write_text(TEXT, encoding="utf-8")
    assert has_own_step(f"{tmp_path}/loops.py:{name}") is own
    assert not has_own_step(f"{tmp_path}/none.py:{name}")


def test_what_cannot_run_an_own_step_is_skipped_with_its_reason() -> None:
    done = run_cli(
        *("sweep", "quick", "--dry-run", "--workload", "experiments/own_script/gan_after.py:Measured"),
        *("--set", "axes.strategy=['single', 'ddp', 'post_local_sgd', 'async_server']"),
        *("--set", "axes.world_size=[1, 2]"),
    )
    assert done.returncode == 0, done.stderr
    told = " ".join((done.stdout + done.stderr).split())
    assert "post_local_sgd aggregates between a backward and an update of its own: it needs loss()" in told
    assert "async_server aggregates" in told
    assert "ddp aggregates" not in told
