"""Load a strategy from a user's file, check it, and make its methods raise clear errors for unusable results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from ddpbench.causes import users_line
from ddpbench.errors import StrategyError
from ddpbench.spec import Pieces
from ddpbench.strategies.base import COARSEST_ROUNDOFF, PROMISES, Strategy
from ddpbench.text_safety import on_one_line, shortened
from ddpbench.user_files import load_class, process_kept, sentence_of, short_name

_MADE: dict[str, Strategy[Any]] = {}


def _number(value: object) -> object:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise PydanticCustomError("number", "input should be a number")
    return value


class _Declared(BaseModel):
    """The class attributes that a user's strategy may declare; not launcher, framework or engine."""

    model_config = ConfigDict(strict=True, from_attributes=True)

    options: type[BaseModel]
    algorithm: str
    schedule: Literal["", "overlapped", "after_backward"]
    algorithms: tuple[str, ...]
    own_algorithms: bool
    schedules: tuple[Literal["overlapped", "after_backward"], ...]
    uses_buckets: bool
    uses_backend: bool
    one_process: bool
    aggregates: bool
    replicas_equal: bool
    in_step: bool | None
    sends_parameters: bool
    whole_batches: bool
    whole_state: bool
    shows_transfers_on_gpus: bool
    pieces: Pieces
    variants: tuple[dict[str, Any], ...]
    imports: tuple[str, ...]
    framework: Literal[""]
    launcher: Literal[""]
    engine: Literal["torch"]
    unit_roundoff: Annotated[float, BeforeValidator(_number), Field(ge=0, le=COARSEST_ROUNDOFF)] = 0.0
    exact_steps: Annotated[int, Field(ge=0, lt=1000)] = 0


def own_strategy(name: str) -> Strategy[Any]:
    """Import a user's file and return the strategy of an import path such as `mine.py:TopK`.

    Raises:
        StrategyError: the file cannot be imported, or the class is not a strategy.
    """
    try:
        found = load_class(name, _is_strategy, first=False)
    except ImportError as error:
        raise StrategyError(sentence_of(error)) from error
    made = _MADE.get(name)
    if made is None or type(made) is not found:
        made = _MADE[name] = _made(name, found)
    return made


def _is_strategy(value: object, module: ModuleType) -> bool:
    return inspect.isclass(value) and issubclass(value, Strategy) and value.__module__ == module.__name__


def _made(name: str, found: type) -> Strategy[Any]:
    head, _, attribute = name.rpartition(":")
    if not issubclass(found, Strategy):
        raise StrategyError(
            f"class {attribute} in {head} is not a strategy: derive it from ddpbench.strategies.Strategy, or from "
            "HookStrategy there"
        )
    lacking = sorted(getattr(found, "__abstractmethods__", ()))
    if lacking or not hasattr(found, "options"):
        listed = ", ".join(
            [*(f"{each}()" for each in lacking), *([] if hasattr(found, "options") else ["options"])]
        )
        raise StrategyError(f"class {attribute} in {head} lacks {listed}")
    try:
        with process_kept():
            made: Strategy[Any] = found()
            _Declared.model_validate(made)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where, message = problem["loc"][0], problem["msg"]
        given = shortened(problem["input"])
        raise StrategyError(
            f"class {attribute} in {head}: {where} = {given}: {message[:1].lower()}{message[1:]}"
        ) from None
    except (Exception, SystemExit) as error:
        raise StrategyError(f"class {attribute} in {head} cannot be made: {_raised(error)}") from error
    if not isinstance(getattr(made, "name", None), str):
        made.name = attribute  # type: ignore[misc]  # for sentences; a plan names the file too
    for method, (fits, wanted) in _ANSWERS.items():
        setattr(
            made, method, _asked(f"{short_name(name)} in {head}", method, getattr(made, method), fits, wanted)
        )
    return made


def _raised(error: BaseException) -> str:
    return on_one_line(f"{type(error).__name__}: {error}{users_line(error)}")


def _asked(
    who: str, method: str, ask: Callable[..., Any], fits: Callable[[Any], bool], wanted: str
) -> Callable[..., Any]:
    def asked(*given: Any, **named: Any) -> Any:
        try:
            with process_kept():
                answer = ask(*given, **named)
        except StrategyError:
            raise
        except (Exception, SystemExit) as error:
            raise StrategyError(f"class {who}: its {method}() failed: {_raised(error)}") from error
        if not fits(answer):
            raise StrategyError(
                f"class {who}: its {method}() returned {shortened(answer)}; it must return {wanted}"
            )
        return answer

    return asked


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_reason(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(value))


def _is_share(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(_is_count(each, 0) for each in value)
        and value[0] < value[1]
    )


_REASON = (_is_reason, "why it cannot, a text, or None")
_COUNT = (lambda value: _is_count(value, 1), "a whole number above 0")
_ANSWERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "check": _REASON,
    "step_reason": _REASON,
    "model_reason": _REASON,
    "found_reason": _REASON,
    "float64_reason": (lambda value: isinstance(value, str), "a text, empty where it can"),
    "promise": (
        lambda value: isinstance(value, str) and value in PROMISES,
        f"one of {', '.join(map(repr, PROMISES))}",
    ),
    "period": _COUNT,
    "parts": _COUNT,
    "accumulated": _COUNT,
    "piece_count": _COUNT,
    "trainers": (lambda value: _is_count(value, 0), "a whole number, 0 or more"),
    "dealt": (_is_share, "two whole numbers: which share, and of how many"),
}
"""A function that tests whether an answer is valid, and words for valid answers, by the method's name."""
