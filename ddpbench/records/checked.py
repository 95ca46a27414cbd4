"""Read JSON files of a run directory, and check them against a model of their fields, by file and field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ddpbench.errors import IdentityError, UnreadableError
from ddpbench.records.files import damaged, parse_json, read_bytes
from ddpbench.records.schema import SCHEMA_VERSION
from ddpbench.text_safety import shortened

_Model = TypeVar("_Model", bound=BaseModel)
_TRIED_AS = re.compile(r"bool|float|int|str|[\w-]+\[.*\]", re.DOTALL)
"""Pattern of those parts of a value's path with which pydantic names the types that it tried."""


def read_json(path: Path, most: int) -> dict[str, Any]:
    """Read the JSON object in a file of at most `most` bytes.

    Raises:
        FileNotFoundError: the file does not exist.
        NotADirectoryError: a part of its path is a file.
        IdentityError: the file cannot be read, is damaged, or has a different schema.
    """
    try:
        data = parse_json(read_bytes(path, most))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except UnreadableError as error:
        raise IdentityError(str(error)) from None
    except (OSError, ValueError) as error:
        raise IdentityError(f"{path} cannot be read: {error}; restore it from a copy") from None
    if not isinstance(data, dict):
        raise damaged(path, "an object was expected")
    check_schema(path, data.get("schema_version"))
    return data


def check_schema(where: object, version: object) -> None:
    """Check the schema version of a file. `where` names the file in the message.

    Raises:
        IdentityError: the version is not `SCHEMA_VERSION`.
    """
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        reads = f"this ddpbench reads schema {SCHEMA_VERSION}: use the version that wrote it"
        raise IdentityError(f"{where} has schema {shortened(version)}; {reads}")


def read_checked(model: type[_Model], path: Path, most: int) -> _Model:
    """Read a file of at most `most` bytes as an instance of the model.

    Raises:
        FileNotFoundError, NotADirectoryError: as in `read_json`.
        IdentityError: as in `read_json`, or a field is missing or wrong.
    """
    return check(model, path, read_json(path, most))


def check(model: type[_Model], path: Path, data: object) -> _Model:
    """Validate `data`, the contents of the file `path`, and return the contents as an instance of the model.

    Raises:
        IdentityError: a field is missing or wrong; the message names the file.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise damaged(path, first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """Describe the first problem and its field in words.

    If the field may have several types, the text states what each type requires.
    """
    problems = error.errors(include_url=False)
    where = _field(problems[0])
    if problems[0]["type"] == "missing":
        return f"{where} is missing"
    first, *others = dict.fromkeys(
        problem["msg"].removeprefix("Value error, ") for problem in problems if _field(problem) == where
    )
    more = "".join(f", or {re.sub('^(Input should|must) be ', '', other)}" for other in others)
    return f"{where}: {first[:1].lower()}{first[1:]}{more}"


def _field(problem: ErrorDetails) -> str:
    """Return a field's dotted path, without the names of types that pydantic tried."""
    return ".".join(str(part) for part in problem["loc"] if not _TRIED_AS.fullmatch(str(part)))
