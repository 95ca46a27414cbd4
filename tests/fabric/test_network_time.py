"""Communication as ranks note it against the link that limits it: what it carried, over the rate it was proved at."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

import ddpbench
from ddpbench.collectives import TABLE as COLLECTIVES
from ddpbench.formulas import PAYLOAD, tree_s
from tests.failures.conftest import ROOT, command
from tests.workloads.test_profile import data

pytestmark = [pytest.mark.multiprocess, pytest.mark.root, pytest.mark.alone]
if os.geteuid():
    pytestmark.append(pytest.mark.skip(reason="needs root: makes network namespaces"))

NODES = 4
GRADIENT_BYTES = 2 * 2**20
BURST_S = 0.002
"""What a shaper lets pass at once after a pause (`ddpbench/fabric/topology.py`)."""
ACKNOWLEDGED = 66 / (2 * 1514)
"""Of a link's bytes at most that many pass the other way meanwhile: an acknowledgement for every two segments.

Of phases one after the other they are counted in the sum, and take no time of their own."""
ONE_AFTER_THE_OTHER = {"master", "tree"}
"""Of these the root's link is the busiest: it first receives, and then it sends. All others do both at once."""

TEXT = """
[base]
workload = "replay:{profile}"
{settings}
[axes]
{axes}
[fabric]
nodes = 4
bandwidth = "100 Mbit/s"
[budget]
rounds_min = 1
rounds_max = 1
measured_s = 0.5
"""
SWEEPS = {
    "ddp": (
        'strategy = "ddp"\nschedule = "after_backward"\nbucket_cap_mb = 1000',
        f"algorithm = {json.dumps(['all_reduce', *COLLECTIVES])}",
    ),
    "master": ("", 'strategy = ["master"]'),
}


def swept(folder: Path, name: str) -> tuple[pd.DataFrame, float]:
    """The cases that use links, by algorithm, and the rate their links were proved at, bytes/s."""
    settings, axes = SWEEPS[name]
    gradient = [
        {"name": "weight", "shape": [1024, GRADIENT_BYTES // 4096], "dtype": "float32", "ready_s": 0.02}
    ]
    profile = folder / f"{name}.json"
    profile.write_text(json.dumps(data(parameters=gradient)), encoding="utf-8")
    experiment = folder / f"{name}.toml"
    experiment.write_text(TEXT.format(profile=profile, settings=settings, axes=axes), encoding="utf-8")
    done = subprocess.run(
        command("sweep", experiment, "--out", folder / name),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (fabric,) = json.loads((folder / name / "fabric.json").read_text(encoding="utf-8"))
    frame = ddpbench.load(folder / name)
    return frame[frame["nodes"] == NODES].set_index("algorithm"), min(fabric["reached_bit_per_s"]) / 8


@pytest.mark.parametrize("name", SWEEPS)
def test_communication_takes_what_the_busiest_link_needs(tmp_path: Path, name: str) -> None:
    frame, rate = swept(tmp_path, name)
    assert set(frame.index) == ({"all_reduce", *COLLECTIVES} if name == "ddp" else {"master"})
    for algorithm, row in frame.iterrows():
        sent, received = row["node_sent_bytes"], row["node_received_bytes"]
        phases = 2 if algorithm in ONE_AFTER_THE_OTHER else 1
        needed = (sent + received if phases == 2 else max(sent, received)) / rate
        found = row["comm_time_s"]  # exposed and overlapped, mean over ranks
        told = f"{name}, {algorithm}: {found:.4f} s, the link needs {needed:.4f} s; waiting: {row['wait_time_s']:.4f} s"
        least = needed * (1 - ACKNOWLEDGED) if phases == 2 else needed
        assert found > least - phases * BURST_S, told
        if algorithm == "tree":
            # No link is busy all the time: the root waits for rank 2 while that has rank 3's gradient to receive, and
            # rank 3, which has the result last, starts the next step last.
            formula = tree_s(NODES, GRADIENT_BYTES, PAYLOAD * rate)
            assert 0.95 * formula < found < 1.35 * formula, told
        else:
            assert found < 1.05 * needed, told
        # The replay's ranks compute equally long: none waits for another but for the moments by which they are apart.
        assert row["wait_time_s"] < 0.05 * needed, told
