"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

from cyclopts import Parameter, Token

from saveslot.cli.words import duration


def _duration(_type: Any, tokens: Sequence[Token]) -> timedelta:
    return duration(tokens[0].value)


def _some_time(_type: Any, value: timedelta) -> None:
    if not value:
        raise ValueError("It must be more than 0.")


def positive(_type: Any, value: float) -> None:
    if value <= 0:
        raise ValueError("It must be more than 0.")


def _not_negative(_type: Any, value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError("It must be 0 (all) or more.")


SessionArg = Annotated[str, Parameter(name="ID", help="A session's id, or the beginning of it.")]
WholeArg = Annotated[str, Parameter(name="ID", help="A session's whole id.")]
CheckpointArg = Annotated[
    str,
    Parameter(name="ID", help="A session's id or its beginning; behind an @ a checkpoint's name, 17, ~2 or latest."),
]
Duration = Annotated[timedelta | None, Parameter(converter=_duration)]
SomeTime = Annotated[timedelta, Parameter(converter=_duration, validator=_some_time)]
Limit = Annotated[
    int | None,
    Parameter(
        name=["--limit", "-n"],
        validator=_not_negative,
        help="At most so many, 0 for all. On a terminal 50, in a pipe all.",
    ),
]
