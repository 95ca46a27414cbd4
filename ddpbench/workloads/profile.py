"""Profiles: how long one device takes for a batch, and when each parameter's gradient is ready. Needs no torch.

A profile is a small JSON file, which `ddpbench profile` measures or a script makes. A replay follows it:

    schema       {"name": "ddpbench profile", "version": 1}
    source       "measured" or "synthetic"
    workload     what was measured, such as "gpt:nano"
    local_batch  samples
    device       "cpu", or the device's model name
    precision    "full", or the type of autocast
    provenance   machine, torch, threads, date; publication and assumptions if it is synthetic
    sample_bytes bytes of one sample's inputs and targets
    steps        number of measured steps; 0 if it is synthetic
    forward_s, backward_s, optimizer_s
    parameters   in the order of model.parameters(): name, shape, dtype, ready_s since the start of backward

A time is the mean in seconds, or `[mean, low, high]` with the 95 % interval of the mean over steps. The interval does
not include the machine's drift.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_serializer, model_validator

from ddpbench.records.files import parse_json
from ddpbench.spec import limits
from ddpbench.text_safety import shortened

SCHEMA_NAME = "ddpbench profile"
SCHEMA_VERSION = 1
MAX_BYTES = 64 << 20
MAX_PARAMETERS = 100_000
MAX_DIMENSIONS = 16
"""Maximum number of dimensions of a parameter's shape."""
_SLACK = 1e-6
"""Relative amount by which a gradient's rounded time may exceed the end of backward."""


class Seconds(BaseModel, frozen=True):
    """A mean time (s) and, if known, its confidence interval."""

    mean: Annotated[float, limits.PROFILE_S]
    low: Annotated[float, limits.INTERVAL_S] | None = None
    high: Annotated[float, limits.INTERVAL_S] | None = None

    @model_validator(mode="before")
    @classmethod
    def _parts(cls, value: Any) -> Any:
        if isinstance(value, list):
            if len(value) != 3:
                raise ValueError("a time must be a number of seconds, or [mean, low, high]")
            return dict(zip(("mean", "low", "high"), value, strict=True))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"mean": value}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Seconds:
        if self.low is not None and self.high is not None and not self.low <= self.mean <= self.high:
            raise ValueError(
                f"the interval [{self.low:g}, {self.high:g}] does not hold its mean {self.mean:g}"
            )
        return self

    @model_serializer
    def _written(self) -> float | list[float]:
        if self.low is None or self.high is None:
            return _rounded(self.mean)
        return [_rounded(self.mean), _rounded(self.low), _rounded(self.high)]


def _rounded(seconds: float) -> float:
    """Round to five significant digits, but not finer than a tenth of a microsecond (s)."""
    return round(float(f"{seconds:.5g}"), 7)


def _never_ready(value: Any) -> Any:
    if value is None:
        raise ValueError(
            "it never gets a gradient, but a replay gives every parameter one: freeze it "
            "(requires_grad = False) and profile again"
        )
    return value


class Parameter(BaseModel, extra="forbid", frozen=True):
    """A trained parameter, and when its gradient is ready (s since the start of backward)."""

    name: str
    shape: Annotated[tuple[Annotated[int, limits.DIMENSION], ...], Field(max_length=MAX_DIMENSIONS)]
    dtype: Literal["float32", "float64", "float16", "bfloat16"]
    ready_s: Annotated[Seconds, BeforeValidator(_never_ready)]

    @property
    def elements(self) -> int:
        """Return the parameter's number of elements."""
        return math.prod(self.shape)


class Provenance(BaseModel, extra="forbid", frozen=True):
    """The origin of a profile's times: measured on a machine, or derived from a publication or assumptions."""

    machine: str = ""
    torch: str = ""
    threads: Annotated[int, limits.THREADS] | None = None
    date: str = ""
    publication: str = ""
    assumptions: tuple[str, ...] = ()


class Profile(BaseModel, extra="forbid", frozen=True):
    """A complete profile with valid values."""

    source: Literal["measured", "synthetic"]
    workload: str
    local_batch: Annotated[int, limits.LOCAL_BATCH]
    device: str
    precision: str = "full"
    provenance: Provenance
    sample_bytes: Annotated[int, limits.SAMPLE_BYTES]
    steps: Annotated[int, limits.STEPS] = 0
    forward_s: Seconds
    backward_s: Seconds
    optimizer_s: Seconds
    parameters: tuple[Parameter, ...]

    @model_validator(mode="after")
    def _whole(self) -> Profile:
        if not self.parameters:
            raise ValueError("parameters: empty; a replay needs gradients")
        if len(self.parameters) > MAX_PARAMETERS:
            raise ValueError(f"parameters: {len(self.parameters):,}; must be {MAX_PARAMETERS:,} at most")
        elements = sum(parameter.elements for parameter in self.parameters)
        if elements > limits.DIMENSION.high:
            raise ValueError(f"parameters: {shortened(elements)} numbers; {limits.DIMENSION.words}")
        twice = [name for name, count in Counter(p.name for p in self.parameters).items() if count > 1]
        if twice:
            raise ValueError(f"parameters: {_listed(twice)} is listed twice")
        end = self.backward_s.mean
        if end <= 0:
            raise ValueError("backward_s: 0 s; gradients need a backward that takes time")
        late = [p for p in self.parameters if p.ready_s.mean > end * (1 + _SLACK)]
        if late:
            moment = late[0].ready_s.mean
            raise ValueError(
                f"parameters: the gradient of {late[0].name} is ready after {moment:g} s, and must be by the end of "
                f"backward ({end:g} s)"
            )
        kinds = dict.fromkeys(p.dtype for p in self.parameters)
        if len(kinds) > 1:
            raise ValueError(f"parameters: of {_listed(list(kinds))}; a replay has parameters of one dtype")
        if self.source == "synthetic" and not (self.provenance.publication or self.provenance.assumptions):
            raise ValueError("provenance: a synthetic profile must name a publication or assumptions")
        return self

    @property
    def dtype(self) -> str:
        """Return the common dtype of all parameters."""
        return self.parameters[0].dtype

    @property
    def order(self) -> tuple[int, ...]:
        """Return the parameters' indices in the order in which their gradients become ready.

        Of equal times, the model's last parameter comes first, as in backward.
        """
        moments = [parameter.ready_s.mean for parameter in self.parameters]
        return tuple(sorted(range(len(moments)), key=lambda number: (moments[number], -number)))

    @property
    def step_s(self) -> float:
        """Return the mean time of a step, with forward, backward and update (s)."""
        return self.forward_s.mean + self.backward_s.mean + self.optimizer_s.mean

    def dumps(self) -> str:
        """Return the text of the profile's JSON file, with one line per parameter."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        parameters = data.pop("parameters")
        head = json.dumps({"schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION}, **data}, indent=1)
        rows = ",\n".join(f"  {json.dumps(parameter)}" for parameter in parameters)
        return f'{head[:-2]},\n "parameters": [\n{rows}\n ]\n}}\n'


_ADVICE = "restore the file from a copy, or profile again"


def parse_profile(text: str) -> Profile:
    """Parse the text of a profile's JSON file, and return the profile.

    Raises:
        ValueError: the text is truncated, has a different schema, or has impossible values; the message says which.
    """
    try:
        data = parse_json(text, finite=False)  # pydantic says which number is not finite
    except json.JSONDecodeError as error:
        ends = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        raise ValueError(f"it is {'truncated' if ends else 'not JSON'}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {_ADVICE}") from None
    found = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(found, dict) or found.get("name") != SCHEMA_NAME:
        raise ValueError(
            'it is not a profile: schema.name is not "ddpbench profile" (ddpbench profile WORKLOAD makes one)'
        )
    if found.get("version") != SCHEMA_VERSION:
        raise ValueError(
            f"schema version {shortened(found.get('version'))}; this ddpbench reads version {SCHEMA_VERSION}: "
            "profile again"
        )
    del data["schema"]
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        wrong = "; ".join(_sentences(error))
        raise ValueError(f"{wrong}; {_ADVICE}") from None


_MOST_SENTENCES = 3


def _sentences(error: ValidationError) -> list[str]:
    found: dict[str, str] = {}
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"])
        reason = item["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        if item["type"] == "missing":
            said = f"{where}: is missing"
        elif item["type"] == "extra_forbidden":
            said = f"{where}: unknown key"
        elif item["type"] == "value_error":
            given = f"{shortened(item['input'])} given; " if reason.startswith("must be") else ""
            said = f"{where}: {given}{reason}" if where else reason
        else:
            said = f"{where}: {shortened(item['input'])} given; should be {reason}"
        found.setdefault(where, said)
    all_of_them = list(found.values())
    more = len(all_of_them) - _MOST_SENTENCES
    return all_of_them if more <= 0 else [*all_of_them[:_MOST_SENTENCES], f"and {more} more"]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def read_profile(path: Path) -> Profile:
    """Return the profile in a file; the file is read again only if it has changed.

    Raises:
        ValueError: the file cannot be read, or is not a profile; the message names the file.
    """
    try:
        facts = path.stat()
        return _read(path, facts.st_mtime_ns, facts.st_size)
    except FileNotFoundError:
        raise ValueError(f"there is no profile {path} (looked for {path.absolute()})") from None
    except OSError as error:
        raise ValueError(f"profile {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"profile {path}: it is not text") from None
    except ValueError as error:
        raise ValueError(f"profile {path}: {error}") from None


@lru_cache(maxsize=64)
def _read(path: Path, _changed_ns: int, _size: int) -> Profile:
    return parse_profile(_content(path).decode("utf-8"))


def _content(path: Path) -> bytes:
    """Read a profile without blocking, at most `MAX_BYTES`.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is not a regular file, or is too large.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB, the limit of a profile")
    return content


def profile_digest(path: Path) -> str:
    """Return a short SHA-256 digest of a profile's file; `""` if the file cannot be read."""
    try:
        return hashlib.sha256(_content(path)).hexdigest()[:16]
    except (OSError, ValueError):
        return ""
