"""Text in templates: intervals are kept on one line, and everything else is escaped."""

from __future__ import annotations

import pytest

from ddpbench.report.templates import environment, unbroken


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1.8 [1.7, 1.9] times", '1.8 <span class="interval">[1.7, 1.9]</span> times'),
        ("11 at most [just above 0, 23]", '11 at most <span class="interval">[just above 0, 23]</span>'),
        ("<b>[1, 2]</b>", '&lt;b&gt;<span class="interval">[1, 2]</span>&lt;/b&gt;'),
        ("[<script>x</script>]", "[&lt;script&gt;x&lt;/script&gt;]"),
        (f"[{'a' * 29}]", f"[{'a' * 29}]"),
    ],
)
def test_an_interval_does_not_break(text: str, shown: str) -> None:
    assert unbroken(text) == shown
    assert environment().from_string("{{ text|unbroken }}").render(text=text) == shown
