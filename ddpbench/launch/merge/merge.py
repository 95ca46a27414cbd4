"""Merge several runs into one run directory if their machines and programs are the same."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ddpbench.command_line import command_line
from ddpbench.errors import OutputError, RequestError
from ddpbench.launch.merge.launches import (
    Merged,
    all_cases,
    cases_taken,
    copy_case,
    copy_proofs,
    write_json,
)
from ddpbench.launch.merge.sources import Source, check_alike, check_different, devices_of, read
from ddpbench.machine.identity import setup_of
from ddpbench.records import SCHEMA_VERSION, RunDir, explain_os_error
from ddpbench.records.files import write_anew
from ddpbench.records.held import MadeFolder, errors_naming, new_folder
from ddpbench.records.machine import read_merged
from ddpbench.records.plan import MOST_MERGED, MergedRun, claims_json, merged_json, read_plan
from ddpbench.spec import limits
from ddpbench.spec.claims import Past, PlannedClaim
from ddpbench.text_safety import clean, on_one_line
from ddpbench.units import utc_now
from ddpbench.version import VERSION


def merge(paths: Sequence[Path], out: Path) -> Merged:
    """Merge runs into one run directory, which can be read like any other. Raises like `merging`."""
    with merging(paths, out) as merged:
        return merged


@contextlib.contextmanager
def merging(paths: Sequence[Path], out: Path) -> Iterator[Merged]:
    """Merge runs into one run directory, `out`, and yield the result.

    The body of the `with` statement may remove the directory again with the result's `remove`.

    Raises:
        RequestError: there are fewer than two different runs or too many, or a path is not a run directory.
        TooLargeError: a run has more records and logs than an archive may have.
        IdentityError: machines or programs differ; every difference is named.
        OutputError: `out` exists, or cannot be written.
    """
    if len(paths) < 2:
        raise RequestError(
            "a merge needs at least two run directories: ddpbench merge RUN_DIR RUN_DIR --out DIR"
        )
    sources = [read(path) for path in paths]
    check_different(sources)
    check_alike(sources)
    if (count := sum(len(source.origins) for source in sources)) > MOST_MERGED:
        raise RequestError(f"{count:,} runs given; a merge takes {MOST_MERGED:,} at most")
    if out.exists() or out.is_symlink():
        raise OutputError(f"{out} exists already, but a merge makes a new directory: choose another --out")
    with contextlib.ExitStack() as held:
        try:
            parent = held.enter_context(new_folder(out.parent))
            folder = held.enter_context(
                contextlib.closing(MadeFolder(parent, f".{out.name}.merging-{secrets.token_hex(4)}"))
            )
            merged = _made(sources, folder, out)
        except OSError as error:
            raise OutputError(f"{out} cannot be written: {explain_os_error(error)}") from None
        yield merged


def _made(sources: Sequence[Source], folder: MadeFolder, out: Path) -> Merged:
    run = RunDir(folder.itself)
    try:
        with errors_naming(folder.itself, out):
            run.cases.mkdir()
            merged = _write(sources, run, out)
            read_plan(run)  # check that it is a run directory
        folder.rename(out.name)
    except BaseException:
        folder.remove()
        raise
    merged.run, merged.remove = RunDir(out), folder.remove
    return merged


def refuse_merged(run: RunDir) -> None:
    """Refuse to resume a merged run, because its launches belong to several runs.

    Raises:
        RequestError: the run is a merged one.
    """
    if run.merged.exists():
        origins = [str(origin["path"]) for origin in read_merged(run)["sources"]]
        raise RequestError(
            f"{run.path} was merged from {', '.join(origins)} and cannot be resumed; resume one of those and "
            "merge again, or give another --out"
        )


def _write(sources: Sequence[Source], run: RunDir, out: Path) -> Merged:
    merged = Merged(run=run, run_id=secrets.token_hex(6))
    cases = all_cases(sources)
    order: list[dict[str, Any]] = []
    origins: list[Mapping[str, Any]] = []
    joined: list[MergedRun] = []
    offset = 0
    for source in sources:
        planned = frozenset(source.stored.order)
        rounds = [
            number
            for case_id in cases
            for number in copy_case(source, case_id, cases[case_id], offset, merged, order=planned)
        ]
        count = max(rounds, default=-1) + 1
        for launch in source.plan["launches"]:
            directory = run.launch(launch["case_id"], "measure", offset + launch["round"])
            if launch["case_id"] in cases and directory.path.exists():
                order.append({"round": offset + launch["round"], "case_id": launch["case_id"]})
        origins += source.origins
        joined += source.merged_runs(offset, count, cases_taken(source, cases))
        offset += count
    copy_proofs(sources, cases, merged)
    write_json(run.machine, _machine(sources))
    write_json(
        run.merged, {"schema_version": SCHEMA_VERSION, "sources": origins, "left_out": merged.left_out}
    )
    now = utc_now()
    end = {"session": "merge", "started_utc": now, "ended_utc": now, "wall_s": 0.0, "measured_s": 0.0}
    end |= {"launches": 0, "stop_reason": "merged"}
    sessions = [session for source in sources for session in source.sessions]
    write_json(run.sessions, {"schema_version": SCHEMA_VERSION, "sessions": [*sessions, end]})
    write_anew(run.experiment, _experiments(sources, out))
    names = dict.fromkeys(source.plan["experiment"] for source in sources)
    plan = {
        "schema_version": SCHEMA_VERSION,
        "run_id": merged.run_id,
        "experiment": "+".join(names),
        "question": _each_once(sources, "question"),
        "scope": _each_once(sources, "scope"),
        "budget": _budget(sources, offset),
        "cases": list(cases.values()),
        "launches": order,
        "merged": merged_json(joined),
        **claims_json(_claims(sources)),
    }
    write_json(run.plan, plan)
    return merged


def _budget(sources: Sequence[Source], rounds: int) -> dict[str, Any]:
    """Return a budget within an experiment's limits; each merged run's own is in the plan's `merged`."""
    budgets = [source.stored.budget for source in sources]
    asked = max(budget.rounds_min for budget in budgets)
    return {
        **sources[0].plan["budget"],
        "rounds_min": asked,
        "rounds_max": min(max(rounds, asked), int(limits.ROUNDS.high)),
        "target_half_width": min(budget.target_half_width for budget in budgets),
        "total": min(sum(budget.total for budget in budgets), limits.TOTAL_S.high),
    }


def _claims(sources: Sequence[Source]) -> list[PlannedClaim]:
    claims: dict[PlannedClaim, dict[tuple[str, str], None]] = {}
    history: dict[PlannedClaim, dict[Past, None]] = {}
    for source in sources:
        for claim in source.stored.claims:
            bare = replace(claim, pairs=(), history=())
            claims.setdefault(bare, {}).update(dict.fromkeys(claim.pairs))
            history.setdefault(bare, {}).update(dict.fromkeys(claim.history))
    return [
        replace(claim, pairs=tuple(pairs), history=tuple(history[claim])) for claim, pairs in claims.items()
    ]


def _machine(sources: Sequence[Source]) -> dict[str, Any]:
    """Return machine.json: `identity` is common to all runs except for the largest run's cores and GPUs."""
    largest = max(
        sources,
        key=lambda source: (
            sum(source.identity.get("slots") or ()),
            len(devices_of(source.identity.get("gpus"))),
            _cores(source),
        ),
    )
    contexts = [source.context for source in sources]
    origins = [origin for source in sources for origin in source.origins]

    jobs = [job for context in contexts for job in context.get("slurm_jobs", [])]

    def listed(key: str) -> str:
        return ", ".join(dict.fromkeys(str(context[key]) for context in contexts if context.get(key)))

    return {
        "schema_version": SCHEMA_VERSION,
        "identity": {
            **sources[0].identity,
            **{key: largest.identity.get(key) for key in ("cores", "cpu_quota", "gpus")},
            **{key: largest.identity[key] for key in ("slots", "physical_cores") if key in largest.identity},
            "experiment_digest": "merged",
        },
        "context": {
            "host": listed("host"),
            "started_utc": min(
                (str(c["started_utc"]) for c in contexts if c.get("started_utc")), default=None
            ),
            "command": command_line(),
            "ddpbench_version": VERSION,
            "git_commit": listed("git_commit"),
            **({"slurm_jobs": jobs} if jobs else {}),
            **({"setup": setup} if (setup := setup_of(contexts)) else {}),
            "merged_from": [
                f"{o['path']} ({o['host']}, {o['started_utc']}, {o['cores']} cores, {o['gpus']} GPUs)"
                for o in origins
            ],
        },
    }


def _each_once(sources: Sequence[Source], what: Literal["question", "scope"]) -> str:
    said: list[str] = []
    for source in sources:
        originals = [str(origin[what] or "") for origin in source.origins if what in origin]
        said += originals or [getattr(source.stored, what)]
    return " ".join(dict.fromkeys(filter(None, said)))


def _cores(source: Source) -> int:
    return len(devices_of(source.identity.get("cores")))


def _experiments(sources: Sequence[Source], out: Path) -> str:
    head = f"was merged from {len(sources)} runs and cannot be resumed. Their experiments:"
    parts = [f"# {_in_comment(out)} {head}\n"]
    for source in sources:
        lines = ("(not readable)" if source.experiment is None else source.experiment).splitlines()
        parts.append(
            f"#\n# {_in_comment(source.path)}\n#\n" + "".join(f"# {line}".rstrip() + "\n" for line in lines)
        )
    return "".join(parts)


def _in_comment(path: Path) -> str:
    return clean(on_one_line(str(path)))
