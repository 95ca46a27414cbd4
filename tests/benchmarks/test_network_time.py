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
from tests.benchmarks.conftest import Say
from tests.failures.conftest import ROOT, command
from tests.workloads.test_profile import data

pytestmark = [pytest.mark.multiprocess, pytest.mark.root, pytest.mark.links]
if os.geteuid():
    pytestmark.append(pytest.mark.skip(reason="needs root: makes network namespaces"))

NODES = 4
GRADIENT_BYTES = {True: 8 * 2**20, False: 2**16}
RATE = {True: "200 Mbit/s", False: "20 Mbit/s"}
"""With `--ratios` or without."""
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
bandwidth = "{rate}"
[budget]
rounds_min = {rounds}
rounds_max = {rounds}
measured_s = 0.5
total = "1 h"
"""
SWEEPS = {
    "ddp": (
        'strategy = "ddp"\nschedule = "after_backward"\nbucket_cap_mb = 1000',
        f"algorithm = {json.dumps(['all_reduce', *COLLECTIVES])}",
    ),
    "master": ("", 'strategy = ["master"]'),
}


def swept(folder: Path, name: str, full: bool) -> tuple[pd.DataFrame, float]:
    """The cases that use links, by algorithm, and the rate their links were proved at, bytes/s."""
    settings, axes = SWEEPS[name]
    shape = [1024, GRADIENT_BYTES[full] // 4096]
    gradient = [{"name": "weight", "shape": shape, "dtype": "float32", "ready_s": 0.02}]
    profile = folder / f"{name}.json"
    profile.write_text(json.dumps(data(parameters=gradient)), encoding="utf-8")
    experiment = folder / f"{name}.toml"
    chosen = {"rate": RATE[full], "rounds": 1}
    text = TEXT.format(profile=profile, settings=settings, axes=axes, **chosen)
    experiment.write_text(text, encoding="utf-8")
    done = subprocess.run(
        command("sweep", experiment, "--out", folder / name),
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (fabric,) = json.loads((folder / name / "fabric.json").read_text(encoding="utf-8"))
    frame = ddpbench.load(folder / name)
    return frame[frame["nodes"] == NODES].set_index("algorithm"), min(fabric["reached_bit_per_s"]) / 8


@pytest.mark.parametrize("name", SWEEPS)
def test_communication_takes_what_the_busiest_link_needs(
    name: str, full: bool, say: Say, tmp_path: Path
) -> None:
    """Bound: exposed and overlapped communication is at most 1.05 of what the busiest link's counted bytes need at the
    rate its links were proved at; never less, but for acknowledgements and the shaper's burst. Waiting is under 0.05.
    """
    frame, rate = swept(tmp_path, name, full)
    assert set(frame.index) == ({"all_reduce", *COLLECTIVES} if name == "ddp" else {"master"})
    over: list[str] = []
    for algorithm, row in frame.iterrows():
        sent, received = row["node_sent_bytes"], row["node_received_bytes"]
        phases = 2 if algorithm in ONE_AFTER_THE_OTHER else 1
        needed = (sent + received if phases == 2 else max(sent, received)) / rate
        found = row["comm_time_s"]  # exposed and overlapped, mean over ranks
        most = 1.05
        if algorithm == "tree":
            # No link is busy all the time: the root waits for rank 2 while that has rank 3's gradient to receive, and
            # rank 3, which has the result last, starts the next step last.
            needed, most = tree_s(NODES, GRADIENT_BYTES[full], PAYLOAD * rate), 1.35
        line = (
            f"communication of {algorithm} ({name}) over what the busiest link needs: {found / needed:.3f}, at most "
            f"{most}; waiting {row['wait_time_s'] / needed:.3f} of it"
        )
        least = needed * (1 - ACKNOWLEDGED) if phases == 2 else needed
        assert found > 0
        if not full:
            continue
        assert found > least - phases * BURST_S, line
        say(line)
        # The replay's ranks compute equally long: none waits for another but for the moments by which they are apart.
        if found > most * needed or row["wait_time_s"] > 0.05 * needed:
            over.append(line)
    assert not over
