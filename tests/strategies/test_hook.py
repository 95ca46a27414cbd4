"""Communication hooks as strategies, on real ranks: proved, or refused with a message."""

from __future__ import annotations

import ast
import contextlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpbench.launch.verify import ProofVerdict, verification_cases, verify
from ddpbench.records.operations import flow_of, slots_of

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "tests/strategies/own_hooks.py"
COMPLEX = f"{ROOT / 'tests/worker/odd_models.py'}:Complex"
EXAMPLE = ROOT / "experiments/own_strategy/top_k.py"
SMALL = f"{ROOT / 'tests/worker/small_task.py'}:Sides"
LONG = {
    *("NeverSends", "OneRankSends", "SendsTheSame", "SendsAThousandth", "SendsHalfAThousandth"),
    *("SendsABitTooMuch", "Doubles"),
}
"""Hooks whose proof takes 200 steps, on a small model."""


def proved(
    names: list[str], worlds: tuple[int, ...] = (2,), *, on: str = "mlp"
) -> dict[str, list[ProofVerdict]]:
    found: dict[str, list[ProofVerdict]] = {}
    for verdict in verify(verification_cases(names, [on], worlds, "gloo")):
        found.setdefault(verdict.strategy.rpartition(":")[2], []).append(verdict)
    return found


@pytest.fixture(scope="module")
def hooks(request: pytest.FixtureRequest) -> dict[str, ProofVerdict]:
    """Return the verdicts on the hooks of the selected tests."""
    tree = ast.parse(HOOKS.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    about = [item for item in request.session.items if "hooks" in getattr(item, "fixturenames", ())]
    wanted = {item.callspec.params["name"] for item in about if item.path == request.path}  # type: ignore[attr-defined]
    chosen = [name for name in names if name in wanted]
    short, long = ([name for name in chosen if (name in LONG) == takes_long] for takes_long in (False, True))
    found: dict[str, list[ProofVerdict]] = {}
    for some, on in ((short, "mlp"), (long, SMALL)):
        if some:
            found |= proved([f"{HOOKS}:{name}" for name in some], on=on)
    return {name: verdicts[0] for name, verdicts in found.items()}


@pytest.mark.parametrize("name", ["Averages", "Waits", "Halves", "Eighths", "Truncates"])
def test_a_right_one_is_proved(hooks: dict[str, ProofVerdict], name: str) -> None:
    assert (hooks[name].result, hooks[name].promise) == ("ok", "gradients"), hooks[name]


@pytest.mark.parametrize("name", ["SendsHalf", "SendsAShare", "SendsSome"])
def test_one_that_keeps_some_and_sends_it_later_is_proved(hooks: dict[str, ProofVerdict], name: str) -> None:
    assert (hooks[name].result, hooks[name].promise) == ("ok", "delayed"), hooks[name]


@pytest.mark.parametrize(
    ("name", "result", "said"),
    [
        ("Negates", "diverged", r"error 4\.7, .* the kept remainder is 4\.667 times as large as all"),
        ("NegatesAHundredth", "diverged", r"the kept remainder is 1\.02 times as large as all"),
        ("Triples", "diverged", r"the kept remainder is 2 times as large as all"),
        ("NegatesTheNew", "diverged", r"the kept remainder is 1\.167 times as large as all"),
        (
            "SendsABitTooMuch",
            "diverged",
            r"the kept remainder does not shrink as it is sent: 1\d\d\.?\d* times",
        ),
        ("Doubles", "diverged", r"the kept remainder does not shrink as it is sent: 1 times as much is left"),
        ("SendsAThousandth", "unproved", r"the kept remainder is sent too slowly: 81\.9% of it is left"),
        pytest.param(
            "SendsHalfAThousandth",
            "unproved",
            r"too slowly: 90\.5% of it is left after 200 steps",
            marks=pytest.mark.thorough,
        ),
        ("OneRankSends", "diverged", r"the kept remainder is not sent later: 200 steps"),
        ("SendsTheSame", "diverged", r"the kept remainder.* is not sent later: 200 steps"),
    ],
)
def test_one_that_sends_what_it_keeps_wrongly_is_refused(
    hooks: dict[str, ProofVerdict], name: str, result: str, said: str
) -> None:
    assert hooks[name].result == result, hooks[name]
    assert re.search(said, hooks[name].reason + hooks[name].unproved), hooks[name]


@pytest.mark.parametrize(
    ("name", "result", "said"),
    [
        ("Sums", "diverged", r"the strategy does not train as one process does: gradients"),
        ("Uphill", "diverged", r"gradients, same shards \(float64\): error 1\.5, allowed 0\.4,"),
        ("SumsCoarsely", "diverged", r"gradients, same shards \(float64\): error 0\.9, allowed 0\.4,"),
        ("HalvesCoarsely", "diverged", r"gradients, same shards \(float64\): error 0\.5, allowed 0\.4,"),
        ("Lags", "diverged", r"parameters, same samples \(float64\)"),
        ("NotCleared", "diverged", r"parameters, same samples \(float64\)"),
        (
            "Shrinks",
            "diverged",
            r"size of rounding \(float64\): error 0\.2.*, as if unit_roundoff were 0\.1\d instead of 0\.125",
        ),
        ("WeighsUnevenly", "diverged", r"gradients, each rank's weight \(float64\): error 0\.[23]"),
        ("AddsNoise", "diverged", r"gradients, size of rounding \(float64\): error 0\.[23]"),
        ("GrowsFromTheSecondStep", "diverged", r"gradients, size of rounding \(float64\): error 0\.3"),
        (
            "GrowsInHalfPrecision",
            "diverged",
            r"gradients, later steps \(float64\): error 0\.3, allowed 0\.03",
        ),
        (
            "HalvesFromTheSecondStep",
            "diverged",
            r"gradients, later steps \(float64\): error 0\.5, allowed 0\.4",
        ),
        (
            "Freezes",
            "diverged",
            r"every parameter has a rank .* no rank trains layers\.0\.weight, which the model",
        ),
        ("SaysLess", "diverged", r"loss, same samples \(float64\): error 0.[45]"),
        ("NeverSends", "diverged", r"the kept remainder is not sent later: 200 steps"),
        (
            "NoFuture",
            "failed",
            r"NoFuture: its hook\(\) returned a Tensor; it must return a torch\.futures\.Future",
        ),
        (
            "Shorter",
            "failed",
            r"Shorter: the future of its hook\(\) holds a tensor of [\d,]+ numbers of type float64; ",
        ),
        ("RaisesLater", "failed", r"rank \d in proof: \w+Error: [^;]* \([^ ]*own_hooks\.py:\d+\)$"),
        ("Raises", "failed", r"KeyError: 'of mine' \(.*own_hooks\.py:\d+\)"),
        ("KeepsNothing", "failed", r"KeepsNothing: kept\(\) returned 3 numbers for bucket 0, which has"),
        (
            "KeepsNone",
            "failed",
            r"KeepsNone: its kept\(\) returned None for bucket 0; it must return a tensor",
        ),
        (
            "CountsNothing",
            "failed",
            r"CountsNothing: its sent_bytes\(\) returned None; it must return a whole",
        ),
        (
            "PromisesMore",
            "failed",
            r"PromisesMore promises 'averaged', but its build\(\) returned a Hook",
        ),
        (
            "BuildsNothing",
            "failed",
            r"BuildsNothing: its build\(\) returned None; it must return a .*Replica",
        ),
    ],
)
def test_a_wrong_one_is_reported(hooks: dict[str, ProofVerdict], name: str, result: str, said: str) -> None:
    assert hooks[name].result == result, hooks[name]
    assert re.search(said, hooks[name].reason), hooks[name]


def test_the_example_is_short_and_proved_and_without_its_memory_it_is_not(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 40
    forgets = tmp_path / "forgets.py"
    kept = "rest = whole + left.get(bucket.index(), 0)"
    assert kept in text
    forgets.write_text(text.replace("rest[places] = 0\n", "rest.zero_()\n"), encoding="utf-8")
    stale = tmp_path / "stale.py"
    stale.write_text(text.replace(kept, "rest = whole.clone()"), encoding="utf-8")
    every = [f"{EXAMPLE}:TopK", f"{forgets}:TopK", f"{stale}:TopK"]
    right, without, behind = proved(every, (3,))["TopK"]
    assert (right.result, right.promise) == ("ok", "delayed"), right
    for wrong in (without, behind):
        assert wrong.result == "diverged", wrong
        assert "sums of gradients, with what is kept" in wrong.reason


WITHOUT = """

class Without(TopK):
    def hook(self, state, bucket):
        import torch

        mask = torch.cat([torch.full((one.numel(),), float((one.dim() < 2) == KIND)) for one in bucket.parameters()])
        whole, never = bucket.buffer(), state.setdefault("never", {})
        never[bucket.index()] = never.get(bucket.index(), 0) + whole * mask
        whole.mul_(1 - mask)
        return super().hook(state, bucket)

    def kept(self, state, index):
        return state["left"][index] + state["never"][index]
"""


@pytest.mark.parametrize(
    ("workload", "name", "ratio", "ranks", "result", "said"),
    [
        ("OneLayer", "TopK", 0.3, 2, "ok", ""),
        ("OneLayer", "TopK", 0.12, 3, "ok", ""),  # one number per step: some rank's bias is the last
        ("OneLayer", "TopK", 0.12, 2, "ok", ""),  # one rank's bias is kept, and both nearly cancel
        (
            "FaintBias",
            "TopK",
            1e-4,
            2,
            "unproved",
            "it cannot be seen whether the kept remainder of vectors is sent later: 200 steps",
        ),
        (
            "Sound",
            "vectors",
            0.1,
            2,
            "diverged",
            r"the kept remainder of vectors is not sent later: \d+ steps",
        ),
        (
            "Sound",
            "matrices",
            0.1,
            2,
            "diverged",
            r"the kept remainder( of matrices)? is not sent later: \d+ steps",
        ),
    ],
)
def test_what_is_kept_may_be_sent_late_but_not_never(
    workload: str, name: str, ratio: float, ranks: int, result: str, said: str, tmp_path: Path
) -> None:
    own = tmp_path / "without.py"
    text = WITHOUT.replace("KIND", str(name == "vectors"))
    own.write_text(EXAMPLE.read_text(encoding="utf-8") + text, encoding="utf-8")
    strategy = f"{EXAMPLE}:TopK" if name == "TopK" else f"{own}:Without"
    on = f"{ROOT / 'tests/worker/update_models.py'}:{workload}"
    settings = [f'options."{strategy}".ratio={ratio}']
    (verdict,) = verify(verification_cases([strategy], [on], [ranks], "gloo", overrides=settings))
    assert verdict.result == result, verdict
    assert re.search(said, verdict.reason + verdict.unproved), verdict


def test_logs_of_what_failed_are_kept_at_an_interruption_too_and_others_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept: list[Path] = []

    def interrupt(verdict: ProofVerdict) -> None:
        raise KeyboardInterrupt

    def prove(name: str, on_verdict: Callable[[ProofVerdict], None]) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            verify(
                verification_cases([f"{HOOKS}:{name}"], ["mlp"], [2], "gloo"), on_verdict, on_logs=kept.append
            )

    prove("Averages", interrupt)
    assert not [*tmp_path.glob("ddpbench-verify-*")]
    prove("Raises", interrupt)
    assert [*tmp_path.glob("ddpbench-verify-*")] == kept
    assert "of mine" in "".join(log.read_text(encoding="utf-8") for log in kept[0].rglob("rank-*.log"))


def test_what_is_kept_of_complex_numbers_is_in_pairs_of_real_ones() -> None:
    (verdict,) = verify(verification_cases([f"{EXAMPLE}:TopK"], [COMPLEX], [2], "gloo"))
    assert (verdict.result, verdict.promise) == ("ok", "delayed"), verdict
    assert {proof.dtype for proof in verdict.proofs} >= {"complex64 and float32"}


def test_an_operation_of_ones_own_says_when_its_data_flow() -> None:
    assert (flow_of("top_k/together"), flow_of("mine/pair"), flow_of("hook")) == (
        "together",
        "pair",
        "together",
    )
    assert slots_of("top_k/together", "gloo") is None
    assert slots_of("hook", "gloo") is None
    assert slots_of("all_reduce", "gloo") == 2
