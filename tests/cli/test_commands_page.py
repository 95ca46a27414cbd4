"""docs/commands.md: every argument of every command has its place there."""

from __future__ import annotations

import argparse
import re

from ddpbench.cli import make_parser
from ddpbench.cli.commands_page import page


def test_every_argument_is_in_the_section_of_its_command() -> None:
    (commands,) = (one for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction))
    sections = dict(re.findall(r"(?ms)^## (\S+)\n(.*?)(?=^## |\Z)", page()))
    assert {*commands.choices} <= {*sections}
    for name, parser in commands.choices.items():
        for action in parser._actions:
            if action.dest != "help":
                called = action.option_strings[-1] if action.option_strings else str(action.metavar)
                assert re.search(rf"[`\[ ]{re.escape(called)}\b", sections[name]), (name, called)


def test_a_repeated_argument_is_explained_once() -> None:
    text = page()
    assert text.count("- `--json`: ") == 1
    assert text.count("what two sides take turns in") == 1
    assert "- `--out FILE`: output file" in text, "a different help is kept"
