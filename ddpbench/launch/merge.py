"""Several runs made into one: launches copied under rounds of their own, where machine and program are alike.

What must agree is the kind of machine and what ran on it: every key of `identity` but those in `ALLOCATION`,
which say how much of that kind an allocation had: how many nodes, which cores and how large a quota, how many
GPUs, and which cases the experiment asked for. A round of one run is not a round of another: the second run's are
counted on from the first's, so that a verdict is only ever given on launches that one session ran in one round.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpbench.errors import IdentityError, OutputError, RequestError
from ddpbench.records import SCHEMA_VERSION, LaunchDir, RunDir, explain_os_error
from ddpbench.records.plan import read_plan
from ddpbench.records.sessions import UNKNOWN, Sessions
from ddpbench.version import VERSION
from ddpbench.workloads import is_import_path
from ddpbench.workloads.shipped import PREFIX

ALLOCATION = ("cores", "cpu_quota", "slots", "experiment_digest")
"""Keys of `identity` that may differ. Of `gpus` only the number may, not the kinds; `workload_digest`, which names
all of a run's workloads at once, is only compared where the runs have the same ones."""
_KEPT = (".json", ".jsonl", ".log")
"""What is copied of a launch's folder; the rest is scratch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A run to be merged. `first_round` is where its rounds begin in the merged run."""

    path: Path
    machine: Mapping[str, Any]
    plan: Mapping[str, Any]
    sessions: Sequence[Any]
    fingerprints: frozenset[str]
    """Digests of the run, or of the runs that it was itself merged from."""
    origins: Sequence[Mapping[str, Any]]

    @property
    def run(self) -> RunDir:
        """Its directory."""
        return RunDir(self.path)

    @property
    def identity(self) -> dict[str, Any]:
        """What it was measured on."""
        found = self.machine.get("identity")
        return found if isinstance(found, dict) else {}

    @property
    def context(self) -> dict[str, Any]:
        """What is worth knowing beside."""
        found = self.machine.get("context")
        return found if isinstance(found, dict) else {}

    @property
    def workloads(self) -> set[str]:
        """The names of its cases' workloads."""
        return {case["workload"] for case in self.plan["cases"]}


@dataclass(slots=True)
class Merged:
    """A finished merge: the new run, and what was not taken over, a sentence each."""

    run: RunDir
    launches: int = 0
    left_out: list[str] = field(default_factory=list)


def merge(paths: Sequence[Path], out: Path) -> Merged:
    """Makes a run directory of several, from which tables and reports are made as from any other.

    Raises:
        RequestError: fewer than two different runs, or something that is not a run directory.
        IdentityError: they were measured on unlike machines or by unlike programs; every difference is named.
        OutputError: `out` exists, or cannot be written.
    """
    if len(paths) < 2:
        raise RequestError(
            "a merge needs two run directories or more: ddpbench merge RUN_DIR RUN_DIR --out DIR"
        )
    sources = [_read(path) for path in paths]
    _check_different(sources)
    _check_alike(sources)
    if out.exists() or out.is_symlink():
        raise OutputError(f"{out} exists already; a merge makes a new directory: choose another --out")
    beside = out.with_name(f".{out.name}.merging-{os.getpid()}")
    try:
        (beside / "cases").mkdir(parents=True)
        merged = _write(sources, RunDir(beside), out)
        beside.rename(out)
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {explain_os_error(error)}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    merged.run = RunDir(out)
    return merged


def refuse_merged(run: RunDir) -> None:
    """A merged directory holds several sweeps, none of which can go on there.

    Raises:
        RequestError: it is one.
    """
    if run.merged.exists():
        origins = [str(origin["path"]) for origin in run.read_json(run.merged)["sources"]]
        raise RequestError(
            f"{run.path} was merged from {', '.join(origins)} and cannot be resumed; resume one of those and "
            "merge again, or give another --out"
        )


def _read(path: Path) -> Source:
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise RequestError(f"{path} {what}; a merge takes run directories")
    run = RunDir(path)
    read_plan(run)  # whole, or refused with what is wrong
    machine, plan = run.read_json(run.machine), run.read_json(run.plan)
    sessions = run.read_json(run.sessions)["sessions"] if run.sessions.exists() else []
    contents = json.dumps([machine, plan["cases"]], sort_keys=True)
    own = hashlib.sha256(contents.encode()).hexdigest()[:16]
    context = machine.get("context") or {}
    identity = machine.get("identity") or {}
    origins: list[dict[str, Any]] = [
        {
            "path": str(path),
            "fingerprint": own,
            "host": context.get("host"),
            "started_utc": context.get("started_utc"),
            "git_commit": context.get("git_commit"),
            "cores": len(_devices(identity.get("cores"))),
            "gpus": len(_devices(identity.get("gpus"))),
        }
    ]
    if run.merged.exists():
        origins = run.read_json(run.merged)["sources"]
    return Source(
        path=path,
        machine=machine,
        plan=plan,
        sessions=sessions,
        fingerprints=frozenset(str(origin["fingerprint"]) for origin in origins),
        origins=origins,
    )


def _check_different(sources: Sequence[Source]) -> None:
    for index, source in enumerate(sources):
        for other in sources[:index]:
            if source.path.samefile(other.path):
                raise RequestError(f"{source.path} is given twice; every launch may count once only")
            if source.fingerprints & other.fingerprints:
                raise RequestError(
                    f"{other.path} and {source.path} hold the same run, or a merge of it: the same host, start and "
                    "cases; every launch may count once only"
                )


def _check_alike(sources: Sequence[Source]) -> None:
    """Holds every run against the first, and names all that differs.

    Raises:
        IdentityError: something does.
    """
    first = sources[0]
    lines = [
        f"  {key}: {mine!r} in {first.path}, {theirs!r} in {other.path}"
        for other in sources[1:]
        for key, mine, theirs in _differences(first, other)
    ]
    if lines:
        listed = "\n".join(lines)
        raise IdentityError(
            "these runs were measured on unlike machines or by unlike programs, so that their results do not belong "
            f"in one curve\n{listed}"
        )


def _differences(first: Source, other: Source) -> list[tuple[str, object, object]]:
    found: list[tuple[str, object, object]] = []
    for key in dict.fromkeys([*first.identity, *other.identity]):
        mine, theirs = first.identity.get(key), other.identity.get(key)
        if key in ALLOCATION or mine == theirs:
            continue
        if key == "gpus":
            mine, theirs = sorted(set(_devices(mine))), sorted(set(_devices(theirs)))
        elif key == "workload_digest" and first.workloads != other.workloads:
            # with other workloads in the run the digest tells nothing; ddpbench's own are in rank_code_digest
            own = {
                name
                for name in first.workloads | other.workloads
                if is_import_path(name) or name.startswith(PREFIX)
            }
            if not own & first.workloads & other.workloads:
                continue
        if mine != theirs:
            found.append((key, mine, theirs))
    return found


def _write(sources: Sequence[Source], run: RunDir, out: Path) -> Merged:
    merged = Merged(run=run)
    cases = _cases(sources)
    order: list[dict[str, Any]] = []
    origins: list[Mapping[str, Any]] = []
    offset = 0
    for source in sources:
        rounds = [
            number
            for case_id in cases
            for number in _copy_case(source, case_id, cases[case_id], offset, merged)
        ]
        count = max(rounds, default=-1) + 1
        for launch in source.plan["launches"]:
            directory = run.launch(launch["case_id"], "measure", offset + launch["round"])
            if launch["case_id"] in cases and directory.path.exists():
                order.append({"round": offset + launch["round"], "case_id": launch["case_id"]})
        origins += source.origins
        offset += count
    _copy_proofs(sources, cases, run)
    _dump(run.machine, _machine(sources))
    _dump(run.merged, {"schema_version": SCHEMA_VERSION, "sources": origins, "left_out": merged.left_out})
    now = datetime.now(UTC).isoformat(timespec="seconds")
    end = {"session": "merge", "started_utc": now, "ended_utc": now, "wall_s": 0.0, "measured_s": 0.0}
    end |= {"launches": 0, "stop_reason": "merged"}
    sessions = [session for source in sources for session in source.sessions]
    _dump(run.sessions, {"schema_version": SCHEMA_VERSION, "sessions": [*sessions, end]})
    run.experiment.write_text(_experiments(sources, out), encoding="utf-8")
    names = dict.fromkeys(source.plan["experiment"] for source in sources)
    questions = dict.fromkeys(source.plan["question"] for source in sources if source.plan["question"])
    plan = {
        "schema_version": SCHEMA_VERSION,
        "experiment": "+".join(names),
        "question": " ".join(questions),
        "budget": _budget(sources, offset),
        "cases": list(cases.values()),
        "launches": order,
    }
    _dump(run.plan, plan)
    return merged


def _dump(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _cases(sources: Sequence[Source]) -> dict[str, dict[str, Any]]:
    """Return every case once, runnable where it was in some run, and oversubscribed only if it always was."""
    found: dict[str, dict[str, Any]] = {}
    for source in sources:
        for entry in source.plan["cases"]:
            known = found.get(entry["case_id"])
            if known is None or (known["skip_reason"] is not None and entry["skip_reason"] is None):
                found[entry["case_id"]] = dict(entry)
            elif entry["skip_reason"] is None:
                known["added_as_baseline"] &= entry["added_as_baseline"]
                known["oversubscribed"] &= entry["oversubscribed"]
    return found


def _copy_case(
    source: Source, case_id: str, entry: Mapping[str, Any], offset: int, merged: Merged
) -> list[int]:
    """Copies a case's finished launches; returns their rounds as the source counts them."""
    own = next((one for one in source.plan["cases"] if one["case_id"] == case_id), None)
    if own is None:
        return []
    launches = source.run.launches(case_id)
    finished = [launch for launch in launches if launch.outcome.exists()]
    if own["oversubscribed"] and not entry["oversubscribed"]:
        if finished:
            merged.left_out.append(
                f"{_launches(len(finished))} of {case_id} in {source.path}: more ranks than cores there, and in "
                "another run it had enough"
            )
        return []
    if len(finished) < len(launches):
        count = len(launches) - len(finished)
        merged.left_out.append(f"{_launches(count)} of {case_id} in {source.path}: unfinished")
    rounds = []
    sessions = Sessions.of(source.run)
    for launch in finished:
        number = int(launch.path.name.removeprefix("launch-"))
        _copy_launch(
            launch, merged.run.launch(case_id, "measure", offset + number), offset + number, sessions
        )
        rounds.append(number)
    merged.launches += len(finished)
    return rounds


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count != 1 else ''}"


def _copy_launch(source: LaunchDir, target: LaunchDir, number: int, sessions: Sessions = UNKNOWN) -> None:
    """Copies a launch under another round, and notes the session that ran it: `sessions` tell where it does not."""
    target.path.mkdir(parents=True)
    for path in source.path.iterdir():
        if path.is_file() and path.suffix in _KEPT:
            shutil.copyfile(path, target.path / path.name)
    for path in (target.request, target.outcome):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            data["round"] = number
            if path == target.outcome:
                data["session"] = sessions.session_of(data.get("session", ""), data.get("started_utc", ""))
        except (FileNotFoundError, ValueError, TypeError):
            continue  # a damaged one stays as it is, and is reported as damaged when it is read
        _dump(path, data)


def _copy_proofs(sources: Sequence[Source], cases: Mapping[str, Any], run: RunDir) -> None:
    """One proof a case: a failed one if there is any, so that no merge hides it."""
    for case_id in cases:
        proofs = [source.run.launch(case_id, "proof") for source in sources]
        proofs = [proof for proof in proofs if proof.outcome.exists()]
        proofs.sort(key=_passed)
        if proofs:
            _copy_launch(proofs[0], run.launch(case_id, "proof"), 0)


def _passed(proof: LaunchDir) -> bool:
    try:
        return bool(json.loads(proof.outcome.read_text(encoding="utf-8"))["status"] == "ok")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _budget(sources: Sequence[Source], rounds: int) -> dict[str, Any]:
    """No case that was ok becomes anything else: the fewest rounds asked for; and the narrowest target."""
    budgets = [source.plan["budget"] for source in sources]
    fewest = min(budget["rounds_min"] for budget in budgets)
    return {
        **budgets[0],
        "rounds_min": fewest,
        "rounds_max": max(rounds, fewest),
        "target_half_width": min(budget["target_half_width"] for budget in budgets),
        "total": sum(budget["total"] for budget in budgets),
    }


def _machine(sources: Sequence[Source]) -> dict[str, Any]:
    """Return the machine type's identity with the largest allocation; the context tells where the parts come from."""
    largest = max(
        sources,
        key=lambda source: (
            sum(source.identity.get("slots") or ()),
            len(_devices(source.identity.get("gpus"))),
            _cores(source),
        ),
    )
    contexts = [source.context for source in sources]
    origins = [origin for source in sources for origin in source.origins]

    def listed(key: str) -> str:
        return ", ".join(dict.fromkeys(str(context[key]) for context in contexts if context.get(key)))

    return {
        "schema_version": SCHEMA_VERSION,
        "identity": {
            **sources[0].identity,
            **{key: largest.identity.get(key) for key in ("cores", "cpu_quota", "gpus")},
            **({"slots": largest.identity["slots"]} if "slots" in largest.identity else {}),
            "experiment_digest": "merged",
        },
        "context": {
            "host": listed("host"),
            "started_utc": min(
                (str(c["started_utc"]) for c in contexts if c.get("started_utc")), default=None
            ),
            "command": shlex.join(["ddpbench", *sys.argv[1:]]),
            "ddpbench_version": VERSION,
            "git_commit": listed("git_commit"),
            "merged_from": [
                f"{o['path']} ({o['host']}, {o['started_utc']}, {o['cores']} cores, {o['gpus']} GPUs)"
                for o in origins
            ],
        },
    }


def _cores(source: Source) -> int:
    return len(_devices(source.identity.get("cores")))


def _devices(value: Any) -> list[Any]:
    """Cores or GPUs of a machine, or of all nodes where they differ and are listed by host."""
    if isinstance(value, Mapping):
        return [one for own in value.values() for one in own or ()]
    return list(value or ())


def _experiments(sources: Sequence[Source], out: Path) -> str:
    """Return the runs' experiments as comments: none of them is the merged directory's own."""
    parts = [f"# {out} was merged from {len(sources)} runs and cannot be resumed. Their experiments:\n"]
    for source in sources:
        try:
            text = source.run.experiment.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            text = "(not readable)"
        parts.append(
            f"#\n# {source.path}\n#\n" + "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())
        )
    return "".join(parts)
