"""Typed results as frames, for tests that look at many of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from ddpbench.analysis.results import columns_of


def framed(results: Iterable[Any]) -> pd.DataFrame:
    """Return results of one kind as one row each; an empty frame without results."""
    found = list(results)
    return pd.DataFrame(**columns_of(type(found[0]), found)) if found else pd.DataFrame()
