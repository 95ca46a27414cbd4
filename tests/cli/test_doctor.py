"""`ddpbench doctor` as its user sees it."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ddpbench.cli import run
from ddpbench.cli.doctor import show
from ddpbench.launch import doctor
from ddpbench.launch.doctor import CheckResult

LONG = "words " * 30
FINDINGS = [
    CheckResult(topic="Software", subject="torch", level="ok", found="2.13.0"),
    CheckResult(topic="Software", subject="cuda", level="problem", found=LONG, advice=LONG),
    CheckResult(
        topic="Limits", subject="/dev/shm", level="note", found="64 MiB", advice="docker run --shm-size=8g"
    ),
    CheckResult(topic="Limits", subject="A_VERY_LONG_VARIABLE", level="note", found="1", advice="unset it"),
]
GOOD = CheckResult(
    topic="Verdict", subject="training", level="ok", found="Training can run here: cpu with gloo, 2 ranks"
)
BAD = CheckResult(
    topic="Verdict",
    subject="training",
    level="problem",
    found="Training cannot run here: torch: not installed",
    advice="pip install torch",
    blocks=True,
)


def shown(width: int, encoding: str = "utf-8", *, verbose: bool = False) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    show([*FINDINGS, GOOD], Console(file=file, width=width, highlight=False), verbose=verbose)
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_and_says_level_and_remedy_in_words(width: int, verbose: bool) -> None:
    lines = shown(width, verbose=verbose).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)
    assert lines[:2] == ["Training can run here: cpu with gloo, 2 ranks", "1 problem, 2 notes"]
    assert lines[3] == "Software"
    remedy = next(line for line in lines if "--shm-size" in line)
    assert remedy.strip() == "→ docker run --shm-size=8g"
    if verbose:
        assert lines[4].split() == ["✓", "ok", "torch", "2.13.0"]
        assert not any(line.startswith("ok: ") for line in lines)
    else:
        assert not any("2.13.0" in line for line in lines)
        assert next(line for line in lines if line.startswith("ok: ")).startswith(
            "ok: torch (ddpbench doctor"
        )


def test_a_long_subject_stands_alone() -> None:
    lines = shown(80).splitlines()
    index = next(n for n, line in enumerate(lines) if "A_VERY_LONG_VARIABLE" in line)
    assert lines[index].endswith("A_VERY_LONG_VARIABLE")
    assert lines[index + 1].strip() == "1"


def test_where_the_terminal_has_no_such_characters() -> None:
    text = shown(80, encoding="ascii")
    assert "x problem" in text
    assert "-> docker run --shm-size=8g" in text


@pytest.mark.parametrize(("verdict", "code"), [(GOOD, 0), (BAD, 1)])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_exit_code_and_output(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    verdict: CheckResult,
    code: int,
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [*FINDINGS, verdict])
    assert run(["doctor", *arguments]) == code
    output = capsys.readouterr().out
    if not arguments:
        assert output.splitlines()[0] == verdict.found
        return
    findings = json.loads(output)
    assert [entry["level"] for entry in findings] == ["ok", "problem", "note", "note", verdict.level]
    assert findings[2] == {
        "topic": "Limits",
        "subject": "/dev/shm",
        "level": "note",
        "found": "64 MiB",
        "advice": "docker run --shm-size=8g",
        "blocks": False,
    }
