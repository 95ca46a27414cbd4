"""The outcome of a launch, and the machine's other activity during the launch, as the controlling side records them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from ddpbench.records.schema import SCHEMA_VERSION, Number, Status, Whole, check_digits

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, lt=1e9)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Other activity of the machine during a launch. Fractions are shares of the time of cores that ranks may use."""

    steal_fraction: _Finite = 0.0
    """Fraction that the hypervisor gave to other guests."""
    foreign_fraction: _Finite = 0.0
    """Fraction used by processes outside this launch."""
    clock_change: _Finite | None = None
    """Largest relative change of a core's reported frequency; None if the system reports no frequency."""
    throttled_s: _Finite = 0.0
    """Seconds for which a CPU quota held the ranks back."""
    shared_machine: bool = False
    """True if a different sweep was allowed to run at the same time."""
    in_turn: bool = False
    """True if this launch waited while other launches, interleaved with it, computed. Their time does not count as
    foreign.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOutcome:
    """The outcome of a launch, written when all its ranks have ended.

    `wall_s` is the time from the request to the last rank's end, and `measured_s` the part in warm-up and measured
    steps. `server_s` is the launch's share of its fork server's start-up, with imports for it.
    """

    kind: Literal["launch"] = "launch"
    schema_version: Number = SCHEMA_VERSION
    case_id: str
    round: Whole
    purpose: Literal["proof", "measure"]
    status: Status
    error: str = ""
    failed_rank: Whole | None = None
    phase: str = ""
    last_log_line: str = ""
    exit_codes: tuple[Number | None, ...] = ()
    started_utc: str = ""
    wall_s: _Seconds = 0.0
    measured_s: _Seconds = 0.0
    server_s: _Seconds = 0.0
    noise: Noise = field(default_factory=Noise)
    session: str = ""
    """The id of the sweep that ran the launch, as in `sessions.json`; empty in records of older versions."""
    run_id: str = ""
    """The id of the run, as in `plan.json`; empty in records of older versions."""
    alternated: tuple[tuple[str, ...], ...] = ()
    """The groups of launches with which this launch's timed blocks alternated, each as the other launches' case ids.

    Only the anchor of several groups alternated in more than one. Empty for a launch that ran alone.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as a JSON object."""
        return asdict(self)


# Texts differ from launch to launch. If pydantic cached them, as it does short ones, a long sweep's memory would grow.
_OUTCOME = SchemaValidator(TypeAdapter(LaunchOutcome).core_schema, {"cache_strings": "keys"})


def outcome_from_json(text: bytes) -> LaunchOutcome:
    """Parse a launch's outcome from the text of its `outcome.json`.

    Raises:
        ValueError: the text is not an outcome of this schema.
    """
    check_digits(text)
    try:
        outcome: LaunchOutcome = _OUTCOME.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else str(first["msg"])) from None
    if outcome.schema_version != SCHEMA_VERSION:
        raise ValueError(f"schema {outcome.schema_version}; this ddpbench reads schema {SCHEMA_VERSION}")
    return outcome
