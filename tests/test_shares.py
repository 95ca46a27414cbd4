"""The shares of the long tests: together they have each test once, and nothing else is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Share


def chosen(names: list[str], share: str) -> tuple[list[str], list[str]]:
    deselected: list[str] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(item.nodeid for item in items))
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    Share(share).pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)  # type: ignore[arg-type]
    return [item.nodeid for item in items], deselected


def test_shares_have_each_test_once_and_keep_its_order() -> None:
    names = [f"tests/{file}.py::test_{number}" for file in "zay" for number in range(7)]
    shares = [chosen(names, f"{number}/4") for number in range(4)]
    assert sorted(name for kept, _ in shares for name in kept) == sorted(names)
    for kept, deselected in shares:
        assert kept == [name for name in names if name in kept]
        assert sorted(kept + deselected) == sorted(names)
        assert len(kept) in (5, 6)


@pytest.mark.parametrize("text", ["", "1", "4/4", "-1/4", "0/0", "a/b", "1/4/2"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="give K/N, such as 0/8"):
        Share(text)
