"""Unusual experiment files: each shipped one with values that make no sense."""

from __future__ import annotations

import copy
import functools
import math
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddpbench.cli import run
from ddpbench.launch import own_batches
from ddpbench.launch.experiments import known_experiments
from ddpbench.spec import Base, Budget, FabricSettings
from ddpbench.text_safety import unprintable

SHIPPED = known_experiments()
Keys = tuple[str, ...]
KNOWN: list[Keys] = [
    *(("base", name) for name in Base.model_fields),
    *(("axes", name) for name in Base.model_fields),
    *(("budget", name) for name in Budget.model_fields),
    *(("fabric", name) for name in FabricSettings.model_fields),
    *(("axes", f"fabric.{name}") for name in FabricSettings.model_fields),
    *((name,) for name in ("name", "question", "base", "axes", "exclude", "options", "fabric", "budget")),
    *(("options", "ddp", name) for name in ("accumulate", "compression", "static_graph")),
    *(("options", name) for name in ("ddp", "replay", "gpt", "nothing")),
    *(("axes", f"options.{name}") for name in ("ddp.accumulate", "replay.slow_factor", "gpt.block_size")),
]
"""Every key that an experiment may have, including keys that no shipped one has."""
NESTED: Any = functools.reduce(lambda inner, _: [inner], range(200), 1)
NASTY: list[Any] = [
    *(0, -1, 1, 2, 1.5, -0.5, 1e-9, 1e308, math.nan, math.inf, -math.inf),
    *(2**31, 2**63, 10**18, -(10**18), 10**400, 10**4000),
    *("", " ", "x", "auto", "default", "none", "1 Gbit/s", "1e400 h", "-5 min", "100 %", "nan%", "9" * 4000),
    *(
        "\0",
        "a\0b.py:X",
        "\x1b[2J",
        "a\nb",
        "\u202egnp",
        "größe",
        "\U0001f600",
        "../../x",
        "x.py:Y",
        "replay:x.json",
    ),
    *("x" * 100_000, "gpt:", ":", "replay:", "{markup}[bold]", "%s%n", "$(reboot)"),
    *(True, False, [], {}, [[]], [{}], {"a": {}}, [None], [1, "a", 2.5], [1, 1], ["auto"], [math.nan]),
    *(list(range(1, 60)), list(range(100_000)), [0, -1], [10**400], [{"a": 1}], {"a": [1]}, NESTED),
]
"""Values of wrong types, and at and beyond sensible limits."""


def keys_of(data: Any, above: Keys = ()) -> Iterator[Keys]:
    for key, value in data.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from keys_of(value, (*above, key))


def changed(data: dict[str, Any], keys: Keys, value: Any) -> None:
    """Set a value; replace anything in its way by a table."""
    *tables, last = keys
    for table in tables:
        if not isinstance(data.get(table), dict):
            data[table] = {}
        data = data[table]
    data[last] = value


def without_none(value: Any) -> Any:
    """Remove None, because TOML has no null."""
    return [one for one in value if one is not None] if isinstance(value, list) else value


@functools.cache
def shipped(name: str) -> dict[str, Any]:
    return tomllib.loads(SHIPPED[name].read_text(encoding="utf-8"))


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(sorted(SHIPPED)))
    data = copy.deepcopy(shipped(name))
    for _ in range(draw(st.integers(1, 3))):
        keys = draw(st.sampled_from([*keys_of(data), *KNOWN]))
        value = draw(
            st.sampled_from(NASTY)
            | st.integers(-(2**70), 2**70)
            | st.floats()
            | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
            | st.lists(st.sampled_from(NASTY[:30]), max_size=4)
        )
        changed(data, keys, copy.deepcopy(without_none(value)))
    return name, data


def dry_run(name: str, text: str, *flags: str) -> tuple[int, str, str]:
    """Run in a folder with a copy of the shipped experiments, so that files they name are found."""
    out, err = StringIO(), StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(out), redirect_stderr(err):
        path = Path(folder) / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        code = run(["sweep", str(path), "--dry-run", "--out", str(Path(folder) / "run"), *flags])
        assert [entry.name for entry in Path(folder).iterdir()] == [path.name]
    return code, out.getvalue(), err.getvalue()


def check(code: int, out: str, err: str) -> None:
    """Check that it ran or was refused in sentences: anything else is an exception that the caller sees."""
    assert code in (0, 2)
    assert (code == 0) is (err == ""), err
    assert not unprintable(out)
    assert not unprintable(err)
    if code == 2:
        assert err.startswith("ddpbench: ")
        assert "Traceback" not in err
        assert all(len(line) < 1_500 for line in err.splitlines())


@pytest.fixture(autouse=True, scope="module")
def _no_ranks() -> Iterator[None]:
    """Skip asking a rank for the batch that a user's class states, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_batches, "may_state_batch", lambda _: False)
        yield


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(documents())
@example(("quick", {"budget": {"hang_timeout": 1e-9}}))
@example(("quick", {"budget": {"rounds_max": 10**9}}))
@example(("quick", {"base": {"local_batch": 10**400}}))
def test_any_document_is_run_or_refused_in_sentences(document: tuple[str, dict[str, Any]]) -> None:
    name, data = document
    check(*dry_run(name, tomli_w.dumps(data)))


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    st.sampled_from(KNOWN),
    st.sampled_from([value for value in NASTY if isinstance(value, str | int | float)])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
@example(("base", "seed"), "[" * 3000 + "]" * 3000)
@example(("base", "local_batch"), "9" * 5000)
def test_any_override_is_taken_or_refused_in_sentences(keys: Keys, value: object) -> None:
    word = f"--set={'.'.join(keys)}={value}"
    text = SHIPPED["quick"].read_text(encoding="utf-8")
    code, out, err = dry_run("quick", text, word)
    check(code, out, err)


@pytest.mark.parametrize("value", NASTY[:12], ids=repr)
def test_a_refused_number_is_told_with_its_key_and_what_it_may_be(value: float) -> None:
    for section, key in (("budget", "hang_timeout"), ("base", "loader_workers"), ("base", "local_batch")):
        code, _, err = dry_run("quick", tomli_w.dumps({section: {key: value}}))
        if code == 2:
            assert f"{section}.{key}: {value!r} given; must be " in err
            assert " to 1" in err
