"""Read files of pytest-benchmark as sides of a comparison, from their `extra_info`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, JsonValue, ValidationError

from ddpbench.analysis.read.launches import CaseRun, Launch
from ddpbench.analysis.regression.sides import CODE, Side
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.errors import IdentityError, RequestError, UnreadableError
from ddpbench.records import SCHEMA_VERSION, CaseStatus
from ddpbench.records.checked import check_schema, first_problem
from ddpbench.records.files import MIB, check_finite, damaged, parse_json, read_text
from ddpbench.records.plan import checked_case
from ddpbench.spec import OWN_TYPES, Case, PlannedCase
from ddpbench.spec.limits import MAX_LAUNCHES
from ddpbench.strategies.traits import traits_of
from ddpbench.text_safety import on_one_line, shortened
from ddpbench.units import counted
from ddpbench.workloads import is_import_path

_OURS = ("case_id", "identity", "steps_s")
"""Keys that every benchmark written by ddpbench has in `extra_info`."""
_EMPTY_TEXTS = ("experiment", "algorithm", "schedule", "backend", "fabric", "checkpoint_dir")
"""Columns that `extra_info` does not contain if their text is empty."""
_MOST_BYTES, _MOST_VALUES = 128 * MIB, 1 << 23
"""Largest size and number of values of a file. Other benchmarks may have stored all of their times in it."""
_Time = Annotated[float, Field(ge=1e-9, le=1e7, allow_inf_nan=False)]
"""Seconds per step; the limits exclude values that cannot be measured."""
_Count = Annotated[int, Field(gt=0, lt=2**53)]
_ALIKE = 1e-6
"""Largest relative difference between numbers of one entry that state the same measurement."""
_LACKS = "Files of pytest-benchmark hold step times alone: in which part of a step a change sits is not known of them."


class _Extra(BaseModel, extra="allow", strict=True):
    """The keys of `extra_info` that are not settings of a case."""

    schema_version: int = SCHEMA_VERSION
    case_id: str
    identity: dict[str, JsonValue]
    steps_s: Annotated[list[_Time], Field(min_length=1)]
    launch_steps: list[_Count] = []
    launch_samples: list[_Count] = []
    sessions: list[int] = []
    status: CaseStatus = "ok"
    error: str = ""
    launches_failed: Annotated[int, Field(ge=0, le=MAX_LAUNCHES)] = 0


def read_saved(path: Path, name: str = "") -> Side:
    """Read ddpbench's cases from a file of pytest-benchmark, as a side. The file's other benchmarks are left out.

    Sentences call the side by its `name`, or else by its path.

    Raises:
        RequestError: the file does not exist.
        IdentityError: it is not a file of pytest-benchmark, has no case of ddpbench, is damaged, or has another schema.
    """
    data = _loaded(path)
    every = [one for one in data["benchmarks"] if isinstance(one, dict)]
    own = [one for one in every if not _missing(one)]
    if not own:
        raise IdentityError(f"{path} has no benchmark written by ddpbench: {_why_none(every)}")
    extras = [_checked(path, one) for one in own]
    if (failed := sum(extra.launches_failed for extra in extras)) > MAX_LAUNCHES:
        raise damaged(path, f"launches_failed: {failed:,} in total; must be {MAX_LAUNCHES:,} at most")
    left_out = len(every) - len(own)
    more = (
        f" {on_one_line(path.name)} has {counted(left_out, 'benchmark')} of others, left out."
        if left_out
        else ""
    )
    return Side(
        name=on_one_line(name or str(path)),
        path=path,
        cases=tuple(_case_run(path, one, extra) for one, extra in zip(own, extras, strict=True)),
        machine={"identity": _identity(path, extras), "context": {"started_utc": data.get("datetime")}},
        commit=on_one_line(_commit(data)),
        tests=tuple(str(one.get("fullname", "")) for one in own),
        lacks=_LACKS + more,
    )


def _loaded(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(read_text(path, _MOST_BYTES), finite=False, most=_MOST_VALUES)
    except FileNotFoundError:
        raise RequestError(f"{path} does not exist") from None
    except UnreadableError as error:
        link = path.is_symlink()
        raise IdentityError(
            f"{path} is a link: give the file that it leads to" if link else str(error)
        ) from None
    except (OSError, ValueError) as error:
        raise IdentityError(
            on_one_line(f"{path} is not a file of pytest-benchmark: {error}; restore it from a copy")
        ) from None
    if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list):
        raise IdentityError(
            on_one_line(f"{path} is not a file of pytest-benchmark: it has no benchmarks")
            + "; give one that pytest-benchmark has saved"
        )
    return data


def _missing(benchmark: Mapping[str, Any]) -> list[str]:
    extra = benchmark.get("extra_info")
    return [key for key in _OURS if not isinstance(extra, dict) or key not in extra]


def _why_none(every: Sequence[Mapping[str, Any]]) -> str:
    if not every:
        return "it is empty, as where no test was measured"
    nearest = min(every, key=lambda one: len(_missing(one)))
    return (
        f"{shortened(nearest.get('name'))} has no {', '.join(_missing(nearest))} in its extra_info; save it with the "
        "fixture ddp_benchmark, or write it with: ddpbench export RUN_DIR --format pytest-benchmark"
    )


def _checked(path: Path, benchmark: Mapping[str, Any]) -> _Extra:
    name, given = shortened(benchmark.get("name")), benchmark["extra_info"]
    check_schema(f"{path}: {name}", given.get("schema_version", SCHEMA_VERSION))
    try:
        check_finite(given)
        found = _Extra.model_validate(given)
    except ValidationError as error:
        raise damaged(path, f"{name}: {first_problem(error)}") from None
    except ValueError as error:
        raise damaged(path, f"{name}: {error}") from None
    for key in ("launch_steps", "launch_samples", "sessions"):
        values = getattr(found, key)
        if values and len(values) != len(found.steps_s):
            fault = f"{len(values)} {key} for {counted(len(found.steps_s), 'launch', 'launches')}"
            raise damaged(path, f"{name}: {fault}")
    return found


def _case_run(path: Path, benchmark: Mapping[str, Any], extra: _Extra) -> CaseRun:
    try:
        case = _case(benchmark["extra_info"])
    except ValueError as error:
        raise damaged(path, f"{shortened(benchmark.get('name'))}: {error}") from None
    if problem := _samples_problem(case, extra) or _times_problem(benchmark, extra):
        raise damaged(path, f"{shortened(benchmark.get('name'))}: {problem}")
    good = [
        Launch(case_id=extra.case_id, round=timing.round, status="ok", timing=timing, session=timing.session)
        for timing in _timings(extra, case)
    ]
    failed = [
        Launch(case_id=extra.case_id, round=len(good) + number, status="failed")
        for number in range(extra.launches_failed)
    ]
    return CaseRun(
        planned=PlannedCase(case=case),
        launches=(*good, *failed),
        proof=None,
        parts=None,
        status=extra.status,
        error=extra.error,
        case_id=extra.case_id,
        baseline_id=case.baseline().case_id,
    )


def _samples_problem(case: Case, extra: _Extra) -> str:
    """Describe a launch with a wrong number of samples; asynchronous workers may have any number."""
    if traits_of(case).promise in ("ordered", None):
        return ""
    steps = extra.launch_steps or [1] * len(extra.launch_samples)
    for samples, made in zip(extra.launch_samples, steps, strict=True):
        if samples != case.global_batch * made:
            fault = f"{samples} samples in {counted(made, 'step')}"
            return f"launch_samples: {fault}, of {case.global_batch} each by its settings"
    return ""


def _times_problem(benchmark: Mapping[str, Any], extra: _Extra) -> str:
    values = extra.steps_s
    mean = math.fsum(values) / len(values)
    stats = benchmark.get("stats")
    stats = stats if isinstance(stats, dict) else {}
    checked = {
        "stats.mean": (stats.get("mean"), mean),
        "stats.min": (stats.get("min"), min(values)),
        "stats.max": (stats.get("max"), max(values)),
        "step_time_s": (benchmark["extra_info"].get("step_time_s"), statistics.median(values)),
    }
    for name, (given, wanted) in checked.items():
        if name == "step_time_s" and isinstance(given, int | float) and _alike(given, mean):
            continue  # files of older versions have the mean
        if isinstance(given, int | float) and not _alike(given, wanted):
            return f"{name} is {shortened(given)}, where its steps_s have {wanted:.6g}"
    return ""


def _alike(given: float, wanted: float) -> bool:
    try:
        return not isinstance(given, bool) and math.isclose(given, wanted, rel_tol=_ALIKE)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _case(columns: Mapping[str, Any]) -> Case:
    """Return the case that the columns describe.

    Raises:
        ValueError: the columns describe no case, or a different one than their id.
    """
    raw = {**dict.fromkeys(_EMPTY_TEXTS, ""), **columns}
    cap = raw.pop("bucket_cap_mb", None)
    caps: list[Any] = [cap]
    if isinstance(cap, str) and cap != "default":  # 25 and 25.0 have the same text, but different ids
        caps = [float(cap), *([int(cap)] if cap.isdecimal() else [])]
    readings = [{**raw, "bucket_cap_mb": each} for each in caps]
    if is_import_path(str(raw.get("workload", ""))):  # for a class, the column has its model's types
        readings += [{**each, "dtype": OWN_TYPES} for each in readings]
    problem: ValueError | None = None
    for reading in readings:
        try:
            return checked_case(reading)
        except ValueError as error:
            problem = problem or error
    raise problem or ValueError("its columns do not describe a case")


def _timings(extra: _Extra, case: Case) -> list[Timing]:
    """Return the timings; a step has `global_batch` samples unless `launch_samples` says otherwise."""
    count = len(extra.steps_s)
    steps = extra.launch_steps or [1] * count
    samples = extra.launch_samples or [case.global_batch * each for each in steps]
    sessions = extra.sessions or [0] * count
    launches = zip(extra.steps_s, steps, samples, sessions, strict=True)
    return [
        Timing(round=number, time_s=step_s * made, steps=made, samples=many, session=str(session))
        for number, (step_s, made, many, session) in enumerate(launches)
    ]


def _identity(path: Path, extras: Sequence[_Extra]) -> dict[str, Any]:
    """Return the identity of the measuring machine.

    Raises:
        IdentityError: cases are of different machines; the message names a difference.
    """
    found: dict[str, Any] = {}
    for extra in extras:
        for key, value in extra.identity.items():
            if key not in CODE and found.setdefault(key, value) != value:
                difference = f"{key} is {shortened(found[key])} and {shortened(value)}"
                raise IdentityError(
                    f"{path} holds benchmarks of more than one machine: {difference}; save the benchmarks of each "
                    "machine in a separate file"
                )
    return found


def _commit(data: Mapping[str, Any]) -> str:
    commit_info = data.get("commit_info")
    commit_info = commit_info if isinstance(commit_info, dict) else {}
    commit = commit_info.get("id")
    if not isinstance(commit, str) or not all(letter in "0123456789abcdef" for letter in commit):
        return ""  # `unversioned`, `unknown`
    return commit[:12] + ("+" if commit and commit_info.get("dirty") else "")
