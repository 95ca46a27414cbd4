"""JSON files with a model of their fields: read and checked, or refused in a message with the file and the
field.

Every JSON document that a command reads is read by `read_json`; those with a model here by `read_checked`.
"""

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
"""Parts that pydantic adds to a value's path for the types it was tried as."""


def read_json(path: Path, most: int) -> dict[str, Any]:
    """Return the JSON object of a file of `most` bytes or fewer.

    Raises:
        FileNotFoundError: the file does not exist; NotADirectoryError: a part of its path is a file.
        IdentityError: it cannot be read, is damaged, or has another schema.
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
    """Refuse a file that another version of ddpbench wrote.

    Raises:
        IdentityError: the schema is another one; the message names `where` it was found.
    """
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        reads = f"this ddpbench reads schema {SCHEMA_VERSION}: use the version that wrote it"
        raise IdentityError(f"{where} has schema {shortened(version)}; {reads}")


def read_checked(model: type[_Model], path: Path, most: int) -> _Model:
    """Return a file's contents, checked by the model.

    Raises:
        FileNotFoundError, NotADirectoryError, IdentityError: as `read_json`, or a field is wrong.
    """
    return check(model, path, read_json(path, most))


def check(model: type[_Model], path: Path, data: object) -> _Model:
    """Return a file's contents as an instance of the model.

    Raises:
        IdentityError: a field is missing or wrong.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise damaged(path, first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """Return the first problem and its place; for a value of several possible types, what each type requires."""
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
    """Return the place of a value, without the types that it was tried as, such as `literal['default']`."""
    return ".".join(str(part) for part in problem["loc"] if not _TRIED_AS.fullmatch(str(part)))
