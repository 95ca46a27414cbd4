"""Counts the lines that each script changes in its "before", and writes the table of README.md; `--check` compares."""

import argparse
import ast
import difflib
import io
import sys
import tokenize
from pathlib import Path

FOLDER = Path(__file__).parent
README = FOLDER / "README.md"
BEGIN, END = "<!-- counted -->\n", "<!-- /counted -->\n"
BEFORE = {"single.py": "torch", "tf_single.py": "TensorFlow"}
NO_SCRIPT = "count.py"


def code_lines(text):
    """Return the lines with code: without comments, docstrings, and lines that are then empty."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            number, column = token.start
            lines[number - 1] = lines[number - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            docstring = node.body[0]
            lines[docstring.lineno - 1 : docstring.end_lineno] = [""] * (
                docstring.end_lineno - docstring.lineno + 1
            )
    return [line.rstrip() for line in lines if line.strip()]


def changed(before, after):
    """Return how many lines are added, and how many removed; a line that is changed counts as both."""
    marks = [
        line[0] for line in difflib.unified_diff(code_lines(before), code_lines(after), lineterm="", n=0)
    ][2:]
    return marks.count("+"), marks.count("-")


def table():
    """Return the table of all scripts, in Markdown."""
    rows = [
        "| script | compared with | lines added | lines removed | lines in all |",
        "|---|---|---:|---:|---:|",
    ]
    for path in sorted(FOLDER.glob("*.py")):
        if path.name == NO_SCRIPT:
            continue
        text = path.read_text(encoding="utf-8")
        before = "tf_single.py" if path.name.startswith("tf_") else "single.py"
        if path.name == before:
            added, removed, compared = "", "", f"the before of {BEFORE[before]}"
        else:
            added, removed = changed((FOLDER / before).read_text(encoding="utf-8"), text)
            compared = f"`{before}`"
        rows.append(f"| `{path.name}` | {compared} | {added} | {removed} | {len(code_lines(text))} |")
    return "\n".join(rows) + "\n"


def main(args):
    old = README.read_text(encoding="utf-8")
    head, _, rest = old.partition(BEGIN)
    new = head + BEGIN + table() + END + rest.partition(END)[2]
    if args.check:
        return f"{README} is not what `python {NO_SCRIPT}` writes" if new != old else None
    README.write_text(new, encoding="utf-8")
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    sys.exit(main(parser.parse_args()))
