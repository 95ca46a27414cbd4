"""Read the history of claims from git: each wording and verdict of a kept page, and each numbered claim.

`git cat-file --batch` reads all versions of a file at once, each once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kept import KEPT, REPORTS, ROOT, summary_of

EXPERIMENTS = ROOT / "experiments"
_SUMMARY = re.compile(rb'href="data:application/json;base64,([\w+/=]+)"')
_ROW = re.compile(r"^\| \[([\w.-]+)\]\([^)]*\) \| ([^|]+?) \| ([^|:]+?)(?:: [^|]*)? \|", re.MULTILINE)
_GUARDS = ("total", "hang_timeout", "target_half_width")
"""Keys of [budget] that change nothing that is measured if the number of rounds is fixed."""


@dataclass(frozen=True, order=True, kw_only=True, slots=True)
class Standing:
    """A claim's wording with its verdict on a kept page."""

    report: str
    says: str
    verdict: str
    run: str
    """Empty if the page did not state it, as in a table of docs/claims.md or reports/README.md."""


def git(*arguments: str) -> str:
    """Return git's output here.

    Raises:
        subprocess.CalledProcessError: git failed.
    """
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def without_history() -> str:
    """Return why git's history cannot be read; empty if all of it is here."""
    try:
        if Path(git("rev-parse", "--show-toplevel").strip()) != ROOT:
            return "the checkout is in another repository"
        return "the clone is shallow" if git("rev-parse", "--is-shallow-repository").strip() == "true" else ""
    except (OSError, subprocess.CalledProcessError):
        return "no git repository is here"


def contents(names: Sequence[str]) -> dict[str, bytes]:
    """Return git's objects by their names, `COMMIT:PATH` or a blob's id, without those that do not exist."""
    asked = "".join(f"{name}\n" for name in names).encode()
    message = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=ROOT, check=True, capture_output=True, input=asked
    ).stdout
    found, at = {}, 0
    for name in names:
        head, at = message[at : (end := message.index(b"\n", at))], end + 1
        if head.endswith(b" missing"):
            continue
        size = int(head.split()[2])
        found[name], at = message[at : at + size], at + size + 1
    return found


def versions(*paths: str) -> list[tuple[str, str]]:
    """Return (commit, path) of every version of these files in git's history, oldest first."""
    found, commit = [], ""
    which = ("-m", "--reverse", "--no-renames", "--diff-filter=AM", "--name-only", "--format=commit %H")
    message = git("log", *which, "HEAD", "--", *paths)
    for line in message.splitlines():
        if line.startswith("commit "):
            commit = line.partition(" ")[2]
        elif line:
            found.append((commit, line))
    return list(dict.fromkeys(found))


def claims_of_page(page: bytes) -> list[dict[str, Any]]:
    """Return the claims of a report's page, each with its `text`, the finding on it."""
    (data,) = _SUMMARY.findall(page)
    summary = json.loads(base64.b64decode(data))
    texts = [finding["text"] for finding in summary["findings"]]
    return [
        {**one, "text": " ".join(text for text in texts if f": {one['says']}" in text)}
        for one in summary.get("claims", ())
    ]


def standings() -> dict[Standing, list[str]]:
    """Return every wording with its verdict that any version of a page has had, each with the sentences on it."""
    pages = versions("reports/*/report.html")
    read = contents([f"{commit}:{path}" for commit, path in pages])
    plans = contents([f"{commit}:{Path(path).parent}/plan.json" for commit, path in pages])
    found: dict[Standing, list[str]] = {}
    for commit, path in pages:
        page = read[f"{commit}:{path}"]
        if b'id="claims"' not in page:
            continue
        plan = json.loads(plans[f"{commit}:{Path(path).parent}/plan.json"])
        for one in claims_of_page(page):
            standing = Standing(
                report=Path(path).parent.name, says=one["says"], verdict=one["verdict"], run=plan["run_id"]
            )
            found.setdefault(standing, []).append(one["text"])
    tables = versions("docs/claims.md", "reports/README.md")
    for text in contents([f"{commit}:{path}" for commit, path in tables]).values():
        for report, says, verdict in _ROW.findall(text.decode()):
            found.setdefault(Standing(report=report, says=says, verdict=verdict, run=""), [])
    return found


def present() -> set[Standing]:
    """Return the claims on the pages of this tree."""
    found = set()
    for name in KEPT:
        run = json.loads((REPORTS / name / "plan.json").read_text(encoding="utf-8")).get("run_id", "")
        for one in summary_of(name).get("claims", ()):
            found.add(Standing(report=name, says=one["says"], verdict=one["verdict"], run=run))
    return found


def histories(folder: Path = EXPERIMENTS) -> dict[str, list[dict[str, Any]]]:
    """Return all entries of the histories of each experiment's claims."""
    read = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.toml")}
    return {
        name: [entry for claim in data.get("claims", ()) for entry in claim.get("history", ())]
        for name, data in read.items()
    }


def forgotten(
    stood: Iterable[Standing], now: Iterable[Standing], message: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Standing]:
    """Return earlier claims that are neither in a history nor among the current ones."""
    known = {
        Standing(report=name, says=entry["says"], verdict=entry["verdict"].partition(":")[0], run=run)
        for name, entries in message.items()
        for entry in entries
        for run in (entry.get("run", ""), "")
    }
    known |= {
        Standing(report=one.report, says=one.says, verdict=one.verdict, run=run)
        for one in now
        for run in (one.run, "")
    }
    return sorted(set(stood) - known)


def digest(experiment: Mapping[str, Any], claim: Mapping[str, Any]) -> str:
    """Return what defines a claim's number: wording, selections, margins, and the measured settings."""
    settings = {
        key: value for key, value in experiment.items() if key not in ("name", "question", "scope", "claims")
    }
    settings["budget"] = {
        key: value for key, value in settings.get("budget", {}).items() if key not in _GUARDS
    }
    own = {
        key: value for key, value in claim.items() if key not in ("number", "history", "source", "answers")
    }
    text = json.dumps([settings, own], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]  # fmt: skip


def numbered(texts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, int, str]]:
    """Yield (file, number, digest) of every numbered claim of these versions of files."""
    for name, text in texts:
        experiment = tomllib.loads(text)
        for claim in experiment.get("claims", ()):
            if "number" in claim:
                yield name, claim["number"], digest(experiment, claim)


def reused(claims: Iterable[tuple[str, int, str]]) -> list[str]:
    """Return the numbers that have been used for more than one claim."""
    found: dict[tuple[str, int], set[str]] = {}
    for name, number, what in claims:
        found.setdefault((name, number), set()).add(what)
    return [
        f"{name}: claim {number}" for (name, number), digests in sorted(found.items()) if len(digests) > 1
    ]


def every_version_of_experiments() -> list[tuple[str, str]]:
    """Return (path, text) of every version of an experiment in git's history, and in this tree."""
    found = versions("experiments/*.toml")
    read = contents([f"{commit}:{path}" for commit, path in found])
    old = [(path, read[f"{commit}:{path}"].decode()) for commit, path in found]
    new = [
        (f"experiments/{path.name}", path.read_text(encoding="utf-8")) for path in EXPERIMENTS.glob("*.toml")
    ]
    return [(path, text) for path, text in [*old, *new] if "\nnumber = " in text]  # fmt: skip
