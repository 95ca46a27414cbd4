"""The fork server as users have it: the one that all other tests start imports less (`tests/lighter`)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.failures.conftest import run_cli

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("whole_torch", "nothing_left_behind")]

LINES = """
import sys
from ddpbench.worker import server
server.preload()
server._assert_forkable()
own = list(server._own_modules())
unnamed = [name for name in own if name not in sys.modules]
compiler = sys.modules["torch._dynamo"]
print(type(compiler).__name__, "torch._decomp" in sys.modules, len(own) > 60, unnamed)
"""


def test_it_imports_all_strategies_and_can_fork() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as a server is started
    done = subprocess.run(
        [sys.executable, "-c", LINES], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "module True True []"


@pytest.mark.framework("accelerate")
def test_a_framework_is_imported_besides_and_proved() -> None:
    done = run_cli("verify", "--strategy", "accelerate", "--workload", "mlp:small", "--world-size", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " proved, 0 not, " in done.stdout


@pytest.mark.thorough
def test_strategies_that_import_most_are_proved_in_it() -> None:
    strategies = ("zero1", "fsdp", "pipeline")
    done = run_cli("verify", "--strategy", *strategies, "--workload", "mlp:small", "--world-size", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " proved, 0 not, " in done.stdout
