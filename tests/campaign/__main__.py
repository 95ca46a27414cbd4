"""The campaign: inputs that nobody should give and faults that nobody wants, each checked by `oracle.py`.

`python -m tests.campaign` tries 1,000 inputs and every fault, some at once, and prints a table. Failures are
printed by name; `--only NAME` tries one again, and a name in `corpus.txt` is tried by every `make test`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from tests.campaign import faults, inputs, job

CORPUS = Path(__file__).with_name("corpus.txt")
LONG = ("class:", "model:", "script:")
"""Kinds of input that start ranks or train: their trials take seconds."""


def corpus() -> list[str]:
    """Return the names that are always tried."""
    lines = CORPUS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def chosen(*, inputs_wanted: int, share_of_faults: float, seed: int) -> list[str]:
    """Return the names of a campaign: the corpus, then drawn inputs and faults, long ones first."""
    drawn = inputs.drawn(inputs_wanted, seed) if inputs_wanted else []
    names = dict.fromkeys([*faults.drawn(share_of_faults, seed), *corpus(), *drawn])
    return sorted(names, key=lambda name: (not name.startswith("fault:"), not name.startswith(LONG)))


def run(names: Sequence[str], *, jobs: int, isolated: bool, tell: Any = None) -> list[dict[str, Any]]:
    """Return what was wrong with each, in the order in which they ended."""
    queue: Queue[str] = Queue()
    for name in names:
        queue.put(name)
    answers: list[dict[str, Any]] = []

    def work() -> None:
        process = job.start(isolated=isolated)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while True:
                name = queue.get_nowait()
                process.stdin.write(name + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    answers.append(
                        {"name": name, "wrong": ["it ended the campaign's own process"], "seconds": 0}
                    )
                    process.wait()
                    process = job.start(isolated=isolated)
                    assert process.stdin is not None
                    assert process.stdout is not None
                else:
                    answers.append(json.loads(line))
                if tell is not None:
                    tell(answers)
        except Empty:
            process.stdin.close()
        finally:
            process.stdout.close()
            process.wait()

    threads = [Thread(target=work) for _ in range(min(jobs, max(1, len(names))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def table(answers: Iterable[dict[str, Any]]) -> str:
    """Return how many of each kind were tried, and how many passed."""
    tried: Counter[str] = Counter()
    held: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for answer in answers:
        kind = kind_of(answer["name"])
        count = faults.count(answer["name"])
        tried[kind] += count
        held[kind] += count if not answer["wrong"] else max(0, count - len(answer["wrong"]))
        seconds[kind] += answer["seconds"]
    rows = ["| kind | tried | as promised | time |", "|---|---|---|---|"]
    rows += [
        f"| {kind} | {tried[kind]:,} | {held[kind]:,} | {seconds[kind] / 60:.1f} min |" for kind in tried
    ]
    return "\n".join(
        [*rows, f"| all | {tried.total():,} | {held.total():,} | {seconds.total() / 60:.1f} min |"]
    )


def kind_of(name: str) -> str:
    """Return the row of the table that a name belongs to."""
    kind, _, rest = name.partition(":")
    return f"fault, {rest.partition(':')[0]}" if kind == "fault" else kind


def main() -> None:
    """Try the inputs and faults, print the table, and exit with 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--faults", type=float, default=1.0, help="share of all faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--json", type=Path, help="write all answers here")
    given = parser.parse_args()
    isolated = job.can_isolate()
    if not isolated:
        print(
            "without root: what is left in /tmp and /dev/shm is not looked at, nor are ports", file=sys.stderr
        )
    names = given.only or chosen(inputs_wanted=given.inputs, share_of_faults=given.faults, seed=given.seed)
    began = time.monotonic()

    def tell(answers: list[dict[str, Any]]) -> None:
        last = answers[-1]
        minutes = (time.monotonic() - began) / 60
        if last["wrong"]:
            print(f"{last['name']}\n  " + "\n  ".join(last["wrong"]), flush=True)
        if sys.stderr.isatty():
            print(f"\r{len(answers)} of {len(names)}, {minutes:.1f} min", end="", file=sys.stderr, flush=True)

    answers = run(names, jobs=given.jobs, isolated=isolated, tell=tell)
    if given.json:
        given.json.write_text(json.dumps(answers, indent=1), encoding="utf-8")
    print(table(answers))
    print(f"seed {given.seed}, {given.jobs} at once, {(time.monotonic() - began) / 60:.0f} min")
    sys.exit(any(answer["wrong"] for answer in answers))


if __name__ == "__main__":
    main()
