"""Malformed experiment files and overrides: each is answered with a sentence."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import load_experiment, parse_experiment
from ddpbench.spec.differences import settings_apart
from ddpbench.spec.documents import MAX_BYTES, TooMuchError, parse, stated_scope
from ddpbench.text_safety import has_long_key
from ddpbench.workloads.profile import parse_profile, read_profile

CATALOG = TableCatalog()


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(text, CATALOG, name="x", overrides=overrides)
    assert len(str(caught.value)) < 400
    return str(caught.value)


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize("text", [f"[base]\nseed = {DEEP}", "x = " + "{a=" * 3000 + "1" + "}" * 3000])
def test_what_is_nested_too_deeply(text: str) -> None:
    assert "is nested too deeply: tables and arrays may have 12 levels at most" in refusal(text)


def test_overrides_that_are_nested_too_deeply() -> None:
    assert "is nested too deeply" in refusal("", f"base.seed={DEEP}")
    assert "no setting has that many parts" in refusal("", f"{'a.' * 3000}b=1")
    assert "no setting has that many parts" in refusal("", f"axes.{'b.' * 3000}c=[1]")


@pytest.mark.parametrize(
    "text",
    [f"[base]\nseed = {'9' * 5000}", f"[base]\nseed = 0x{'f' * 5000}", f"base = {{seed = -{'9' * 5000}}}"],
)
def test_a_number_of_thousands_of_digits_is_told_with_its_key_and_limits(text: str) -> None:
    said = refusal(text)
    assert "base.seed: a whole number of " in said
    assert "must be a whole number, 0 to 4,294,967,295" in said
    assert "base.seed: a whole number of about 5,000 digits given; must" in refusal(
        "", f"base.seed={'9' * 5000}"
    )


def test_a_number_that_no_table_knows_has_the_bits_that_toml_has() -> None:
    text = f'[base]\nworkload = "train.py:Mine"\n[options."train.py"]\nsize = {"9" * 5000}'
    assert (
        "options.train.py.size: a whole number of about 5,000 digits given; must be a whole number of 64 bits"
        in refusal(text)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[base]\nworkload = "a\\u0000b.py:X"',
            r"base.workload: 'a\x00b.py:X' holds the control character '\x00'",
        ),
        ('question = "\\u001b[2J"', r"question: '\x1b[2J' holds the control character '\x1b'"),
        ('[axes]\nworkload = ["\\u009b"]', r"axes.workload: '\x9b' holds the control character '\x9b'"),
        ('["\\u0007"]', r"the key '\x07' holds the control character '\x07'"),
        ('[options.gpt]\ntext = ["a\\u0000"]', "options.gpt.text: "),
        (f'question = "{"x" * 5000}"', "has 5,000 characters; must be 4,096 at most"),
        (f'name = "{"n" * 101}"', "must be letters, digits, and . _ - after the first, 100 at most"),
        ("".join(f"k{n} = 1\n" for n in range(2000)), "has 2,000 keys; must be 1,000 at most"),
        ("[[exclude]]\nseed = 1\n" * 2000, "exclude: has 2,000 entries; must be 1,000 at most"),
        (f"[budget]\ntotal = '{'9' * 4000}x'", "budget.total: '9999"),
    ],
)
def test_texts_and_tables_that_are_refused(text: str, said: str) -> None:
    assert said in refusal(text)


def test_an_argument_of_bytes_that_are_no_text() -> None:
    assert "holds the control character '\\udcff'" in refusal("", "base.workload=a\udcff")


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a TiB of nothing
    with pytest.raises(ExperimentError, match=f"it must be {MAX_BYTES >> 20} MiB at most"):
        load_experiment(path, CATALOG)
    with pytest.raises(ValueError, match="is larger than 64 MiB, the limit of a profile"):
        read_profile(path)


def test_a_question_of_several_lines_is_one() -> None:
    assert parse_experiment('question = "a\\n\\tb"', CATALOG, name="x").question == "a\n\tb"


def test_a_profile_that_is_nested_too_deeply_or_has_a_number_of_thousands_of_digits() -> None:
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_profile("[" * 100_000)
    head = '{"schema": {"name": "ddpbench profile", "version": 1}, "local_batch": '
    with pytest.raises(ValueError, match=r"a whole number of 5,000 digits; restore the file from a copy"):
        parse_profile(f'{head}{"9" * 5000}, "source": "measured"}}')


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ('name = "x"\nscope = "Small ones."', "Small ones."),
        ('name = "x"', ""),
        ("scope = 3", ""),
        ("scope = [", ""),
        ("# scope = 'as a merged run has it'", ""),
        ("", ""),
        (DEEP, ""),
    ],
)
def test_a_scope_is_a_text_or_none(text: str, scope: str) -> None:
    assert stated_scope(text) == scope


def key(part: str, dot: str = ".") -> str:
    return dot.join([part] * 20_000)


@pytest.mark.parametrize(
    "text",
    [
        f"{key('a')} = 1",
        f"x = {{{key('b-1', ' . ')} = 1}}",
        "[" + key(r'"a.\""') + "]",
        "[a]\n'b c'." + key("'d'") + " = 1",
        f'x = {{a = """b"""", {key("c")} = 1}}',
        f"x = {{a = '''b''''', {key('c')} = 1}}",
    ],
)
def test_a_key_of_thousands_of_parts_is_not_read(text: str) -> None:
    """tomllib takes memory that grows with the square of the parts: gigabytes for these."""
    tracemalloc.start()
    try:
        assert "has a key with too many parts; a key must have 64 at most" in refusal(text)
        assert stated_scope(text) == settings_apart("a = 1", text) == ""
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


LONG = "a." * 64 + "b"


@pytest.mark.parametrize(
    "text",
    [
        f"# {LONG}",
        f'scope = "{LONG}"',
        f"scope = '{LONG}' # {LONG}",
        f"scope = '{LONG}#'",
        f'scope = """\n\'{LONG}"" \\""" {LONG}\n"""',
        f"scope = '''\n\"{LONG}'' # {LONG}\n'''''",
        f'scope = "\\"{LONG}"',
        f'"#" = 1\nscope = "{LONG}"',
    ],
)
def test_a_long_word_in_a_comment_or_a_text_is_no_key(text: str) -> None:
    assert parse(text).get("scope", "#")
    with pytest.raises(TooMuchError, match=r"^has a key with too many parts; a key must have 64 at most$"):
        parse(f"{text}\n{LONG} = 1")


def test_words_with_dots_in_texts_are_no_keys() -> None:
    text = "# " + "a." * 60 + "b\n" + f'scope = "{"..." * 1000} {"1.5 " * 100}{"a. " * 5}"'
    assert stated_scope(text).startswith("...")


@pytest.mark.parametrize(
    "part", ["a", "a ", '"', r"\"", "'", "a.\n", "a .", ". ", '"a"', '"a', "-", r'"""\"', "'''a", "#"]
)
def test_a_text_is_looked_through_once_for_keys(part: str) -> None:
    text = f"{LONG}\n".join(["# ", part * (MAX_BYTES // len(part))])  # so that its kind is searched for
    began = time.process_time()
    has_long_key(text)
    assert time.process_time() - began < 2


def test_an_experiment_of_a_run_is_no_larger_than_one_of_a_user() -> None:
    """A run directory's file may be larger: a merge adds those of all its runs as comments."""
    large = "\n".join(f"a{number} = 1" for number in range(MAX_BYTES // 8))
    assert stated_scope(f'scope = "s"\n{large}') == ""
    assert settings_apart("a = 1", large) == ""


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 3000 + "]" * 3000])
def test_an_experiment_with_what_python_does_not_read_ends_no_comparison(text: str) -> None:
    assert settings_apart(text, text) == ""


def test_a_setting_of_the_budget_that_an_older_version_lacks_does_not_differ_from_its_default() -> None:
    older = "[budget]\ntotal = 60.0\n"
    assert settings_apart(older, f'{older}turns = "launches"\n') == ""
    assert settings_apart(f'{older}turns = "launches"\n', older) == ""
    assert settings_apart(older, f'{older}turns = "blocks"\n') == "budget.turns: unset before, 'blocks' now"
