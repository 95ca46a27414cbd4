"""Write the rounds of comparisons of equal sides as JSON; made tests/analysis/recorded/equal_sides_us.json by

for n in $(seq -w 15); do ddpbench compare --interleave equal_sides --total '85 s' \\
    --base set=base.seed=0 --new set=base.seed=1 --out equal/$n; sleep 60; done
python -m tests.analysis.collect_rounds "how it was measured" equal/* > tests/analysis/recorded/equal_sides_us.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ddpbench.analysis.regression import read_side
from ddpbench.launch.interleave.turns import read_comparison
from ddpbench.records import RunDir
from ddpbench.records.sessions import read_sessions

KEPT = ("torch", "python", "cpu")
"""Fields kept of a machine's identity."""


def session_of(folder: Path) -> dict[str, object]:
    """Return the rounds that both sides have of all cases: step times in microseconds, base and new, by case."""
    sides = [read_side(RunDir(folder / name)) for name in ("base", "new")]
    steps = [
        {run.case.strategy: {one.round: one.step_s for one in run.timings} for run in side.cases}
        for side in sides
    ]
    rounds = set.intersection(*(set(one) for side in steps for one in side.values()))
    return {
        "started_utc": read_sessions(sides[0].run)[0]["started_utc"],
        "first": [read_comparison(folder).order[number] for number in sorted(rounds)],
        "steps_us": {
            name: [[round(1e6 * side[name][number]) for side in steps] for number in sorted(rounds)]
            for name in steps[0]
        },
    }


def main() -> None:
    how, folders = sys.argv[1], [Path(word) for word in sys.argv[2:]]
    identity = read_side(RunDir(folders[0] / "base")).identity
    data = {
        "how": how,
        "machine": {name: identity[name] for name in KEPT if name in identity},
        "sessions": [session_of(folder) for folder in folders],
    }
    lines = (
        json.dumps(data).replace(', {"started', ',\n{"started').replace('"sessions": [', '"sessions": [\n')
    )
    print(lines.replace(', "steps_us"', ',\n "steps_us"'))


if __name__ == "__main__":
    main()
