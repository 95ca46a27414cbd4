"""Wait for a page by asking from outside: its policy lets nothing in it poll by evaluating a text."""

from __future__ import annotations

import time
from typing import Any

PATIENCE_S = 10.0


def until(page: Any, condition: str) -> None:
    """Return once a JavaScript expression is true on the page."""
    begun = time.monotonic()
    while not page.evaluate(condition):
        assert time.monotonic() - begun < PATIENCE_S, f"not so after {PATIENCE_S:g} s: {condition}"
        time.sleep(0.02)
