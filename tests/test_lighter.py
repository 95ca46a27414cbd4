"""What tests start does less, and becomes whole where it is asked for."""

from __future__ import annotations

import subprocess
import sys

LINES = """
import sys, torch
model = torch.nn.Linear(2, 1)
torch.nn.init.zeros_(model.weight)  # less half is half, without rounding
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model(torch.ones(1, 2)).sum().backward()
before = model.weight.clone()
optimizer.step()
compiler = sys.modules["torch._dynamo"]
print(type(compiler).__name__, (before - model.weight).tolist())
compiled = torch.compile(model, backend="eager")
print(bool((compiled(torch.ones(1, 2)) == model(torch.ones(1, 2))).all()), type(compiler).__name__)
"""


def test_the_compiler_is_left_out_until_something_is_compiled() -> None:
    done = subprocess.run([sys.executable, "-c", LINES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["_Late [[0.5, 0.5]]", "True module"]
