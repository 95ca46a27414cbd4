"""The request for a launch, which the controlling side writes to a file and every rank of the launch reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ddpbench.errors import UnreadableError
from ddpbench.records.files import MOST_OUTCOME, field_lines, parse_json, read_bytes, write_anew
from ddpbench.records.rundir import RUN_ID
from ddpbench.records.schema import SCHEMA_VERSION
from ddpbench.spec import Case, TargetLoss
from ddpbench.text_safety import shortened

INTERLEAVED_BLOCKS = 24
"""Blocks of a launch that alternates with other launches. Short blocks let a disturbance that lasts a second affect all
of them.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRequest:
    """The request for one launch.

    `measured_s` is the time for timed steps (seconds), which a proof ignores. With `target_loss`, the launch also
    trains down to that loss. `run_id` is the run's id in `plan.json`. With `short_blocks`, blocks are as short as those
    of alternating launches. A launch that alternates with several groups has `groups` times as many blocks and
    `measured_s`.
    """

    case: Case
    purpose: Literal["proof", "measure"]
    round: int = 0
    measured_s: float = 2.0
    target_loss: TargetLoss | None = None
    run_id: str = ""
    short_blocks: bool = False
    groups: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the request as a JSON object."""
        return {
            "schema_version": SCHEMA_VERSION,
            "case": self.case.to_json(),
            "purpose": self.purpose,
            "round": self.round,
            "measured_s": self.measured_s,
            "target_loss": None if self.target_loss is None else asdict(self.target_loss),
            "run_id": self.run_id,
            "short_blocks": self.short_blocks,
            "groups": self.groups,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LaunchRequest:
        """Return the request that a JSON object describes.

        Raises:
            ValueError, TypeError, KeyError: the object is not a request.
        """
        target_loss = data.get("target_loss")
        run_id = data.get("run_id", "")
        if not RUN_ID.fullmatch(run_id):
            raise ValueError(f"{shortened(run_id)} is not the id of a run")
        return cls(
            case=Case.from_json(data["case"]),
            purpose=data["purpose"],
            round=data["round"],
            measured_s=data["measured_s"],
            target_loss=None if target_loss is None else TargetLoss(**target_loss),
            run_id=run_id,
            short_blocks=bool(data.get("short_blocks", False)),
            groups=int(data.get("groups", 1)),
        )

    def write(self, path: Path) -> None:
        """Write the request to a file, as JSON."""
        # Not atomically, because a launch without an outcome is repeated in any case.
        write_anew(path, field_lines(self.to_json()))

    @classmethod
    def read(cls, path: Path) -> LaunchRequest:
        """Read the request from its file.

        Raises:
            ValueError: the file is damaged, not a regular file, or has a different schema.
            OSError: the file cannot be read.
        """
        try:
            data = parse_json(read_bytes(path, MOST_OUTCOME))
            version = data["schema_version"]
            found = cls.from_json(data) if version == SCHEMA_VERSION else None
        except (UnreadableError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if found is None:
            raise ValueError(f"{path} has schema {version!r}, not {SCHEMA_VERSION}")
        return found
