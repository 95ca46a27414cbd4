"""Descriptions of another run's case are never empty where the two differ in one setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpbench.analysis.regression.near import as_other_has_it
from ddpbench.naming import EVERY
from ddpbench.spec import Case
from ddpbench.spec.grouping import differing
from tests.spec.test_grouping import AXES, BASE, pair
from tests.test_naming import SETTINGS


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        ({"env_json": '{"FOO": "1"}'}, {}, "without FOO"),
        ({}, {"env_json": '{"FOO": "1"}'}, "with FOO=1"),
        ({}, {"env_json": '{"FOO": ""}'}, "with FOO unset"),
        ({"env_json": '{"A": "1", "B": "1"}'}, {"env_json": '{"A": "2"}'}, "with A=2 and without B"),
        ({"options_json": '{"accumulate": 2}'}, {}, "without accumulate"),
        ({"options_json": '{"decay": 0.05}'}, {"options_json": '{"decay": "0.05"}'}, 'with decay="0.05"'),
        ({"bucket_cap_mb": 5.0}, {"bucket_cap_mb": "default"}, "with default buckets"),
        ({"bucket_cap_mb": 5.0}, {"bucket_cap_mb": None}, "without buckets"),
        ({"bucket_cap_mb": 25.0}, {"bucket_cap_mb": 25.0000001}, "with buckets 25.0000001"),
        ({"schedule": "after_backward"}, {}, "with schedule overlapped"),
        ({"algorithm": "a.py:Mine"}, {"algorithm": "b.py:Mine"}, "with algorithm b.py:Mine"),
        ({}, {"algorithm": ""}, "without algorithm"),
        ({}, {"launcher": "torchrun"}, "launched by torchrun"),
        ({}, {"evaluation": True}, "with evaluation"),
        ({}, {"threads_per_rank": 2}, "with 2 threads per rank"),
        ({}, {"nodes": 2, "ranks_per_node": 1}, "with layout 2 x 1"),
        ({}, {"scaling": "strong"}, "with strong scaling"),
        ({}, {"collective_timeout": 30.0}, "where collectives time out after 30 s"),
        ({}, {"recovery": "SIGKILL"}, "with recovery SIGKILL"),
        ({}, {"seed": 1, "dtype": "float64"}, ""),
        ({}, {}, ""),
    ],
)  # fmt: skip
def test_the_setting_is_named_as_the_other_has_it(
    own: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    assert as_other_has_it(replace(BASE, **own), replace(BASE, **other)) == words


@pytest.mark.parametrize("name", AXES)
def test_every_field_is_told_both_ways(name: str) -> None:
    one, two = pair(name)
    words = {as_other_has_it(one, two), as_other_has_it(two, one)}
    assert len(words) == 2
    assert all(
        text.split()[0] in ("with", "without", "where", "launched", "dilated", "shrunk", "not")
        for text in words
    )


def changed(name: str) -> st.SearchStrategy[tuple[Case, Case]]:
    values = st.sampled_from(SETTINGS[name])
    others = st.fixed_dictionaries(
        {}, optional={one: st.sampled_from(SETTINGS[one]) for one in SETTINGS if one != name}
    )
    return st.tuples(values, values, others).map(
        lambda drawn: (
            replace(BASE, **drawn[2], **{name: drawn[0]}),
            replace(BASE, **drawn[2], **{name: drawn[1]}),
        )
    )


@given(st.sampled_from(sorted(SETTINGS)).flatmap(changed))
def test_the_end_is_missing_of_no_setting(cases: tuple[Case, Case]) -> None:
    own, other = cases
    words = as_other_has_it(own, other)
    assert bool(words) == bool(differing(cases, EVERY))
    assert len(words.split()) != 1
    assert not words.startswith(("with with", "with without")), words
