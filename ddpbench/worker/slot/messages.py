"""Schemas of the messages between slots, one for each key in the store.

No message contains settings of a case, a path or an environment: a slot takes these from its own copy of the plan.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ddpbench.machine.disturbance import Totals
from ddpbench.records.heartbeat import PHASES
from ddpbench.spec.limits import MAX_RANKS
from ddpbench.worker.slot.roster import Card
from ddpbench.worker.slot.sealing import StrangerError

MAX_PARTS = 1024
"""Largest number of parts in which a rank's records are sent through the store."""
_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Rank = Annotated[int, Field(ge=0, lt=MAX_RANKS)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _sane(card: Card) -> Card:
    counts = (card.rank, card.local_rank, card.physical, card.finished, *card.cores, *card.gpu_cores)
    if not all(0 <= number < 1 << 32 for number in counts) or not (card.problem or card.cores):
        raise ValueError("no slot says this")
    return card


_Card = Annotated[Card, AfterValidator(_sane)]


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Verdict(_Message):
    """Slot 0's decision on whether the slots can work together; `refusal` is empty if they can."""

    refusal: str
    leader: _Rank = 0
    cards: list[_Card] = Field(default=[], max_length=MAX_RANKS)


class _Nonce(_Message):
    """The name of a file in the leader's run directory, which only slots that share it can find."""

    nonce: str = Field(pattern=r"^\.meeting-[0-9a-f]{16}$")


class _Shared(_Message):
    sees: bool
    problem: str


class _Go(_Message):
    refusal: str
    unshared: list[_Rank] = Field(max_length=MAX_RANKS)


class _Round(_Message):
    do: Literal["round"]
    cases: list[str] = Field(min_length=1)
    fresh: bool


class _Launch(_Message):
    do: Literal["launch"]
    case: str
    purpose: Literal["proof", "measure"]
    round: _Count


class _End(_Message):
    do: Literal["end"]
    code: Literal[0, 1]


class _Order(_Message):
    """The launch whose ranks must end, or None; with `stacks`, they first log their stacks."""

    end: _Count | None = None
    stacks: bool = False


class _Stop(_Message):
    why: str = Field(max_length=1 << 16)
    code: Literal[1, 2]


class _Bye(_Message):
    pass


class _Files(_Message):
    records: int = Field(ge=0, le=MAX_PARTS)
    log: int = Field(ge=0, le=MAX_PARTS)


class _State(_Message):
    tick: _Count
    job: int = Field(ge=-1)
    ready_s: _Seconds = 0.0
    steps: _Count = 0
    phase: str = "starting"
    stopped: bool = False
    server_stopped: bool = False
    code: int | None = Field(default=None, ge=-64, le=255)
    gone: str = ""
    cpu_s: _Seconds = 0.0
    oom: bool = False
    totals: Totals | None = None
    files: _Files | None = None

    @model_validator(mode="after")
    def _known_phase(self) -> _State:
        if self.phase not in (*PHASES, "unknown"):
            raise ValueError("unknown phase")
        return self


_SCHEMAS: dict[str, TypeAdapter[Any]] = {
    r"card/\d+": TypeAdapter(_Card),
    "verdict": TypeAdapter(_Verdict),
    "nonce": TypeAdapter(_Nonce),
    r"shared/\d+": TypeAdapter(_Shared),
    "go": TypeAdapter(_Go),
    r"job/\d+": TypeAdapter(Annotated[_Round | _Launch | _End, Field(discriminator="do")]),
    "order": TypeAdapter(_Order),
    "stop": TypeAdapter(_Stop),
    r"bye/\d+": TypeAdapter(_Bye),
    r"state/\d+": TypeAdapter(_State),
}


def read_message(name: str, value: bytes) -> dict[str, Any]:
    """Parse and check the message under a store key, and return it with defaults for missing fields.

    Raises:
        StrangerError: the value does not match the schema.
    """
    schema = next(one for pattern, one in _SCHEMAS.items() if re.fullmatch(pattern, name))
    try:
        message = schema.validate_json(value)
    except (ValidationError, ValueError, RecursionError):
        raise StrangerError(
            f"{name} in the store is not a message from this version of ddpbench: another program can reach the "
            "store's port, or a node runs a different version; see docs/security.md"
        ) from None
    found: dict[str, Any] = schema.dump_python(message)
    return found
