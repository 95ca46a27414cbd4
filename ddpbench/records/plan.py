"""Read `plan.json`, which has a run's cases, budget and order of launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError, create_model

from ddpbench.errors import RequestError
from ddpbench.records.archive import unpack
from ddpbench.records.checked import first_problem
from ddpbench.records.files import damaged, parse_json
from ddpbench.records.request import LaunchRequest
from ddpbench.records.rundir import CASE_ID, RUN_ID, Purpose, RunDir
from ddpbench.spec import BucketCap, Budget, Case, Links, PlannedCase, StatedTraits, environment, limits
from ddpbench.spec.claims import ClaimKind, Of, Past, PlannedClaim, YesOrNo
from ddpbench.spec.documents import MAX_CHARACTERS, MAX_KEYS, odd_parts
from ddpbench.spec.limits import MAX_CLAIMS, MAX_HISTORY, MAX_NODES, MAX_PAIRS, MAX_RATE
from ddpbench.text_safety import shortened, unprintable

Starter = Literal["sweep", "submit", "plan"]
"""The command that started a run."""
MOST_MERGED = 1_000
"""Largest number of runs that a run may be merged from. Each of them is looked up for each case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedRun:
    """A run that was merged into another run, with its target and its rounds."""

    path: str
    """The run's directory, as given to the merge."""
    started_by: Starter
    first_round: int
    """The run's first round, as the merged run counts rounds."""
    end_round: int
    """The round after the run's last round."""
    rounds_min: int
    target_half_width: float
    spent: bool
    """True if `budget.total` ended the run."""
    cases: frozenset[str]
    """Ids of the cases that the run had planned and whose launches the merge used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPlan:
    """A run's plan, as read from its directory."""

    experiment: str
    question: str
    budget: Budget
    cases: tuple[PlannedCase, ...]
    ids: tuple[str, ...]
    """The cases' ids, which are also the names of their folders."""
    order: tuple[tuple[int, str], ...]
    """(round, case id) of every launch up to `rounds_max`, in the order in which they run."""
    run_id: str = ""
    """The run's id, which its records name; empty in runs of older versions."""
    claims: tuple[PlannedClaim, ...] = ()
    """The claims that the run is to decide."""
    scope: str = ""
    """Reason why the run has exactly these cases, if the experiment gives one."""
    merged: tuple[MergedRun, ...] = ()
    """Runs that were merged into this run; empty if this run is not merged, or if an old version merged it."""

    def merged_of(self, case_id: str) -> list[MergedRun]:
        """Return the runs in `merged` that had planned this case."""
        return [run for run in self.merged if case_id in run.cases]

    def target_half_widths(self) -> dict[str, float]:
        """Return the target half-width of each case's interval, by case id.

        A merged run has the smallest target of its sources.
        """
        half_widths = dict.fromkeys(self.ids, self.budget.target_half_width)
        asked: dict[str, float] = {}
        for run in self.merged:
            for case_id in run.cases:
                asked[case_id] = min(run.target_half_width, asked.get(case_id, run.target_half_width))
        return half_widths | asked

    def case(self, case_id: str) -> PlannedCase | None:
        """Return the planned case with this id; None if the plan lacks it."""
        return next((entry for entry in self.cases if entry.case.case_id == case_id), None)

    def request(self, case: Case, purpose: Purpose, round_number: int) -> LaunchRequest:
        """Return the request for one launch of a case. The launch's ranks read the request."""
        return LaunchRequest(
            case=case,
            purpose=purpose,
            round=round_number,
            measured_s=self.budget.measured_s,
            target_loss=self.budget.target_loss,
            run_id=self.run_id,
        )

    @property
    def runnable(self) -> tuple[PlannedCase, ...]:
        """Return the cases that are not skipped."""
        return tuple(entry for entry in self.cases if entry.skip_reason is None)


def planned_json(entry: PlannedCase) -> dict[str, Any]:
    """Return a planned case as a JSON object for `plan.json`."""
    merged = {"stands_for": list(entry.stands_for), "caps_worth": list(entry.caps_worth)}
    return {
        **entry.case.to_json(),
        "skip_reason": entry.skip_reason,
        "added_as_baseline": entry.added_as_baseline,
        "oversubscribed": entry.oversubscribed,
        **(merged if entry.stands_for else {}),
    }


def launches_json(order: Iterable[tuple[int, str]]) -> list[dict[str, Any]]:
    """Return the order of launches as a JSON list for `plan.json`."""
    return [{"round": number, "case_id": case_id} for number, case_id in order]


def merged_json(runs: Iterable[MergedRun]) -> list[dict[str, Any]]:
    """Describe, as a JSON list for `plan.json`, the runs from which a run was merged."""
    return [{**asdict(run), "cases": sorted(run.cases)} for run in runs]


def claims_json(claims: Iterable[PlannedClaim]) -> dict[str, Any]:
    """Return an object whose key `claims` has the claims for `plan.json`; an empty object if `claims` is empty."""
    entries = [
        {
            "says": one.says,
            **({"number": one.number} if one.number is not None else {}),
            **({"history": [asdict(entry) for entry in one.history]} if one.history else {}),
            "source": one.source,
            **({"answers": one.answers} if one.answers is not None else {}),
            "kind": one.kind,
            "margin": one.margin,
            "of": one.of,
            "pairs": [list(pair) for pair in one.pairs],
        }
        for one in claims
    ]
    return {"claims": entries} if entries else {}


def _table(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: the text is not an object, or exceeds the limits of a table in an experiment's file.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("a JSON object was expected")  # noqa: TRY004  pydantic's
    if odd := odd_parts(value):
        raise ValueError(f"{odd[0].path} {odd[0].message}".lstrip())
    return value


def _options(text: str) -> str:
    _table(text)
    return text


def _env(text: str) -> str:
    for name, value in _table(text).items():
        if not isinstance(value, str) or unprintable(value):
            raise ValueError(f"{name!r} must be a text without control characters")
        if why := environment.refused(name):
            raise ValueError(f"{name!r} {why}")
    return text


def _stated(text: str) -> str:
    if text:
        try:
            StatedTraits.model_validate(_table(text))
        except ValidationError as error:
            raise ValueError(first_problem(error)) from None
    return text


def _printable(text: str) -> str:
    if unprintable(text) or "\n" in text:
        raise ValueError("a line without control characters was expected")
    return text


def _links(text: str) -> str:
    if text:
        try:
            links = Links.parse(text)
        except (RequestError, LookupError, ArithmeticError) as error:
            raise ValueError(f"{text!r} is not a valid description of network links: {error}") from None
        rates = [*links.bandwidth, links.uplink, links.local_bandwidth]
        if not all(rate is None or 0 < rate <= MAX_RATE for rate in rates) or links.racks < 1:
            raise ValueError(f"{text!r} has a link rate or a number of racks that is out of range")
        for what, number, limit in (
            ("racks", links.racks, limits.RACKS),
            ("a latency", links.latency_s, limits.LATENCY_S),
            ("losses", links.loss, limits.LOSS),
        ):
            try:
                limit.checked(number)
            except ValueError as error:
                raise ValueError(f"{shortened(text)} names links with {what} out of range: {error}") from None
    return text


_CHECKS: dict[str, Callable[[str], str]] = {
    "options_json": _options,
    "workload_options_json": _options,
    "fabric": _links,
    "env_json": _env,
    "strategy_traits": _stated,
}
"""Checks for some of a case's text fields, in addition to the type and the limits that `Case` declares."""
_Positive = Annotated[int, Field(ge=1, le=2**53)]
"""A positive whole number that a float represents exactly."""


def _case_fields() -> type[BaseModel]:
    """Return a pydantic model with the fields of `Case` and the checks in `_CHECKS`."""
    hints = get_type_hints(Case, include_extras=True)
    made: dict[str, Any] = {}
    for one in fields(Case):
        check = _CHECKS.get(one.name)
        kind = hints[one.name] if check is None else Annotated[hints[one.name], AfterValidator(check)]
        made[one.name] = (kind, ... if one.default is MISSING else one.default)
    return create_model("_CaseFields", **made)


if TYPE_CHECKING:
    _CaseFields = BaseModel
else:
    _CaseFields = _case_fields()


class _Entry(_CaseFields, strict=True, frozen=True):
    """An entry of `cases` in `plan.json`, checked strictly enough to be used like a new plan's."""

    case_id: str
    skip_reason: str | None
    added_as_baseline: bool
    oversubscribed: bool
    stands_for: list[BucketCap] = Field(default_factory=list)
    caps_worth: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=list)


class _Launch(BaseModel, strict=True):
    round: Annotated[int, Field(ge=0, lt=10**9, strict=True)]
    case_id: str


_Two = Annotated[list[str], Field(min_length=2, max_length=2)]
_MOST_CLAIMS, _MOST_PAIRS = 20 * MAX_CLAIMS, 20 * MAX_PAIRS
"""Limits for claims and pairs, above an experiment's limits, because a merged run has the claims of all its sources."""
_Words = Annotated[str, Field(max_length=MAX_CHARACTERS), AfterValidator(_printable)]


class _Past(BaseModel, strict=True, extra="forbid"):
    number: _Positive
    says: _Words
    settings: _Words
    run: _Words = ""
    commit: _Words = ""
    date: _Words
    verdict: _Words
    why: _Words = ""


class _Claim(BaseModel, strict=True, extra="forbid"):
    says: Annotated[_Words, Field(min_length=1)]
    number: _Positive | None = None
    history: Annotated[list[_Past], Field(max_length=20 * MAX_HISTORY)] = []
    source: _Words = ""
    answers: YesOrNo | None = None
    kind: ClaimKind
    margin: Annotated[float, Field(ge=0, lt=1e6)] = 0.0
    of: Of
    pairs: Annotated[list[_Two], Field(max_length=_MOST_PAIRS)]


class _MergedRun(BaseModel, strict=True, extra="forbid"):
    path: str
    started_by: Starter
    first_round: Annotated[int, Field(ge=0, lt=10**9)]
    end_round: Annotated[int, Field(ge=0, lt=10**9)]
    rounds_min: Annotated[int, limits.ROUNDS]
    target_half_width: Annotated[float, limits.HALF_WIDTH]
    spent: bool
    cases: list[str]


class _Plan(BaseModel, strict=True):
    experiment: str
    question: str
    budget: dict[str, Any]
    cases: list[_Entry]
    launches: list[_Launch] = []
    run_id: Annotated[str, Field(pattern=f"^{RUN_ID.pattern}$")] = ""
    scope: str = ""
    claims: Annotated[list[_Claim], Field(max_length=_MOST_CLAIMS)] = []
    merged: Annotated[list[_MergedRun], Field(max_length=MOST_MERGED)] = []


_PLAN: TypeAdapter[_Plan] = TypeAdapter(_Plan)


def count_cases(run: RunDir) -> int:
    """Return the number of cases in a run's plan, without checking the cases.

    Raises:
        IdentityError: the plan is missing, damaged, or has a different schema.
    """
    cases = run.read_json(run.plan).get("cases")
    if not isinstance(cases, list):
        raise damaged(run.plan, "cases: a list was expected")
    return len(cases)


def repeated(ids: Iterable[str]) -> str | None:
    """Return the first id that occurs more than once; None if all are different."""
    return next((one for one, times in Counter(ids).items() if times > 1), None)


def read_plan(run: RunDir) -> StoredPlan:
    """Read and check a run's plan, and unpack the records of a packed run.

    Every command that reads a run calls this first. Afterwards no link leads out of the directory, and each case's id
    fits its contents.

    Raises:
        IdentityError: the plan is missing, damaged, or has a different schema; or a link leads out of the directory.
        UnreadableError: the archive is damaged, or contains something other than records.
        OutputError: the archive cannot be unpacked here.
    """
    run.check()
    data = run.read_json(run.plan)
    try:
        found = _PLAN.validate_python(data)
        budget = Budget.model_validate(found.budget)
    except ValidationError as error:
        raise damaged(run.plan, first_problem(error)) from None
    ids = tuple(entry.case_id for entry in found.cases)
    cases = tuple(_planned(run, entry, raw) for entry, raw in zip(found.cases, data["cases"], strict=True))
    _check_names(run, cases)
    _check_ids(run, found)
    unpack(run)
    return StoredPlan(
        experiment=found.experiment,
        question=found.question,
        scope=found.scope,
        budget=budget,
        cases=cases,
        ids=ids,
        order=tuple((launch.round, launch.case_id) for launch in found.launches),
        run_id=found.run_id,
        claims=tuple(
            PlannedClaim(
                says=claim.says,
                number=claim.number,
                history=tuple(Past(**entry.model_dump()) for entry in claim.history),
                source=claim.source,
                answers=claim.answers,
                kind=claim.kind,
                margin=claim.margin,
                of=claim.of,
                pairs=tuple((a, b) for a, b in claim.pairs),
            )
            for claim in found.claims
        ),
        merged=tuple(
            MergedRun(**{**one.model_dump(), "cases": frozenset(one.cases)}) for one in found.merged
        ),
    )


def _check_ids(run: RunDir, found: _Plan) -> None:
    """Check that a plan has each case once, and refers only to its own cases.

    Raises:
        IdentityError: the plan has a case twice, or refers to a case that it lacks.
    """
    ids = [entry.case_id for entry in found.cases]
    known = frozenset(ids)
    launched = (launch.case_id for launch in found.launches)
    if (twice := repeated(ids)) is not None:
        raise damaged(run.plan, f"it has the case {twice} twice")
    if stray := next((case_id for case_id in launched if case_id not in known), None):
        raise damaged(run.plan, f"it launches {shortened(stray)}, which is not one of its cases")
    pairs = (case_id for claim in found.claims for pair in claim.pairs for case_id in pair)
    if stray := next((case_id for case_id in pairs if case_id not in known), None):
        raise damaged(run.plan, f"a claim is about {shortened(stray)}, which is not one of its cases")
    if stray := next(
        (case_id for one in found.merged for case_id in one.cases if case_id not in known), None
    ):
        raise damaged(
            run.plan, f"it was merged from a run of {shortened(stray)}, which is not one of its cases"
        )


def _check_names(run: RunDir, cases: Iterable[PlannedCase]) -> None:
    """Check the number of options and variables, each of which may become a column of a report.

    Raises:
        IdentityError: there are more than in a single table of an experiment's file.
    """
    options, of_workloads, variables = set[str](), set[str](), set[str]()
    for entry in cases:
        options.update(entry.case.options)
        of_workloads.update(entry.case.workload_options)
        variables.update(entry.case.env)
    for names, what in (
        (options, "options of strategies"),
        (of_workloads, "options of workloads"),
        (variables, "environment variables"),
    ):
        if len(names) > MAX_KEYS:
            raise damaged(
                run.plan, f"its cases have {len(names):,} different {what}; must be {MAX_KEYS:,} at most"
            )


def checked_case(raw: Mapping[str, Any]) -> Case:
    """Parse a case from a JSON object that is not part of a plan, with the same checks as for the cases of a plan.

    Raises:
        ValueError: the object is not a case, or its id does not fit its contents.
    """
    try:
        entry = _Entry.model_validate(
            {**raw, "skip_reason": None, "added_as_baseline": False, "oversubscribed": False}
        )
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    case = Case.from_json(dict(raw))
    if case.case_id != entry.case_id:
        raise ValueError(
            f"the case called {shortened(entry.case_id)} has the contents of {shortened(case.case_id)}"
        )
    return case


def _planned(run: RunDir, entry: _Entry, raw: Mapping[str, Any]) -> PlannedCase:
    """Build the planned case from `raw`, because 5 and 5.0 give different ids.

    Raises:
        IdentityError: the id is malformed or does not fit the contents, or the case's network is impossible.
    """
    case = Case.from_json(dict(raw))
    if case.fabric and case.nodes > MAX_NODES:
        raise damaged(
            run.plan, f"a network of {case.nodes:,} nodes; must be {MAX_NODES} at most on one machine"
        )
    if case.fabric and len(Links.parse(case.fabric).bandwidth) not in (1, case.nodes):
        raise damaged(run.plan, f"{shortened(case.fabric)} lacks a rate for each of {case.nodes} nodes")
    if case.case_id != entry.case_id:
        ids = [shortened(one) for one in (entry.case_id, case.case_id)]
        raise damaged(run.plan, f"the case called {ids[0]} has the contents of {ids[1]}")
    if not CASE_ID.fullmatch(entry.case_id):
        raise damaged(run.plan, f"{shortened(entry.case_id)} is not a case's id")
    return PlannedCase(
        case=case,
        skip_reason=entry.skip_reason,
        added_as_baseline=entry.added_as_baseline,
        oversubscribed=entry.oversubscribed,
        stands_for=tuple(entry.stands_for),
        caps_worth=tuple(entry.caps_worth),
    )
