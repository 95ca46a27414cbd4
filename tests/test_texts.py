"""Texts of others as they are shown, and command lines as they are pasted."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from ddpbench.errors import nearest
from ddpbench.text_safety import clean, command, shortened, toml_text, unprintable, whole_number, with_article


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (16, "16"),
        (10**5000, "a whole number of about 5,000 digits"),
        (-(10**400), "a whole number of about 400 digits"),
        ([10**5000], "a list"),
        ("a\x1b[2Jb", r"'a\x1b[2Jb'"),
        ("x" * 500, f"'{'x' * 56}...{'x' * 11}'"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_value_is_shown_in_a_few_words(value: object, shown: str) -> None:
    assert shortened(value) == shown


def test_a_deeply_nested_value_is_shown_by_its_type() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert shortened(value) == "a list"
    while value:  # taken apart here: the interpreter would recurse
        value = value[0]  # type: ignore[assignment]


@pytest.mark.parametrize("digits", ["0", "-12", "1_000", "9" * 400])
def test_a_whole_number_is_read(digits: str) -> None:
    assert whole_number(digits) == int(digits)


def test_a_number_of_too_many_digits_stays_as_large() -> None:
    assert shortened(whole_number("9" * 5000)) == "a whole number of about 5,000 digits"
    assert whole_number("-" + "9" * 5000) < -(10**4990)


def test_what_clean_changes_is_unprintable() -> None:
    for text in ("\x1b[31mred", "a\x00b", "\u202egnp", "\ud800", "\x9b2J"):
        assert unprintable(text)
        assert not unprintable(clean(text))
    for text in ("plain", "two\nlines\tand a tab", "größer ±3 %"):
        assert clean(text) == text
        assert not unprintable(text)


def test_a_command_is_what_a_shell_reads_back() -> None:
    words = ["ddpbench", "report", "a run's dir/$(x)"]
    assert shlex.split(command(*words)) == words


@pytest.mark.parametrize("name", ["a Tensor", "an AveragedReplica", "an _Odd"])
def test_a_class_has_its_article(name: str) -> None:
    assert with_article(name.partition(" ")[2]) == name


def test_each_known_name_is_named_once() -> None:
    assert nearest("nope", ["gpt", "mlp", "gpt"]) == "known: gpt, mlp"


def test_a_near_name_hides_a_list_only_if_the_list_is_long() -> None:
    few = [f"name{number:02}" for number in range(12)]
    assert nearest("naem03", few) == f"did you mean 'name03'? known: {', '.join(few)}"
    many = [*few, "name12"]
    assert nearest("naem03", many) == "did you mean 'name03'?"
    assert nearest("else", many) == f"known: {', '.join(many)}"


@pytest.mark.parametrize("text", ["\U0001f680/train.py:Mine", 'a "b" \\ \x7f\x01\n\t', "é\u2028", ""])
def test_a_text_is_written_as_toml_reads_it(text: str) -> None:
    assert tomllib.loads(f"a = {toml_text(text)}") == {"a": text}


def test_toml_is_not_written_by_json() -> None:
    """Its escapes of characters above U+FFFF are not TOML's."""
    package = Path(__file__).parents[1] / "ddpbench"
    written = re.compile(r"\w ?= ?\{json\.dumps\(|\}=\{json\.dumps\(")
    known = {"spec/fabric.py", "launch/verify.py", "runtime/estimate.py"}  # a rate, what is shown, a set
    known |= {"analysis/regression/near.py"}  # what is shown
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if written.search(path.read_text(encoding="utf-8"))
    }
    assert found <= known
