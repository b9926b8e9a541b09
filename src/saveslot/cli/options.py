"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from cyclopts import Parameter, Token

from saveslot.cli.candidates import agents, ids, refs
from saveslot.cli.exits import Misuse
from saveslot.cli.words import duration
from saveslot.codec import decode
from saveslot.errors import Corrupt, InvalidInput
from saveslot.session.retention import Retention, from_json


def _duration(_type: Any, tokens: Sequence[Token]) -> timedelta:
    return duration(tokens[0].value)


def _rules(_type: Any, tokens: Sequence[Token]) -> dict[str, Retention | None]:
    text = tokens[0].value
    try:
        given = decode(
            (text if text.lstrip()[:1] in {"{", "["} else Path(text).read_text(encoding="utf-8")).encode(), tagged=False
        )
    except Corrupt:
        raise ValueError("It is not JSON.") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(f"It cannot be read ({exc}).") from None
    try:
        return from_json(_with_ages(given))
    except InvalidInput as exc:
        raise ValueError(f"{exc.path.partition('.')[2] or 'It'} {exc.reason}.") from None


def _with_ages(rules: Any) -> Any:
    """Rules whose ages, such as "90d", are time spans."""
    if isinstance(rules, dict):
        for rule in cast("dict[str, Any]", rules).values():
            for name in ("max_age", "after_end"):
                if isinstance(rule, dict) and isinstance(age := cast("dict[str, Any]", rule).get(name), str):
                    rule[name] = duration(age)
    return cast("Any", rules)


def _some_time(_type: Any, value: timedelta) -> None:
    if not value:
        raise ValueError("It must be greater than 0.")


def positive(_type: Any, value: float) -> None:
    if value <= 0:
        raise ValueError("It must be greater than 0.")


def port_number(_type: Any, value: int) -> None:
    if value not in range(2**16):  # getaddrinfo keeps the last 16 bits of a larger one
        raise ValueError("It must be from 0 to 65535.")


def _not_negative(_type: Any, value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError("It must be 0 (no limit) or more.")


def Flag(help: str, name: list[str] | str | None = None) -> Parameter:  # noqa: N802  (it stands where Parameter does)
    """An option without a value, and without a --no- form."""
    return Parameter(name=name, negative="", show_default=False, help=help)


SessionArg = Annotated[
    str, Parameter(name="ID", completer=ids, help="A session's id, or a unique beginning or end of it.")
]
WholeArg = Annotated[str, Parameter(name="ID", completer=ids, help="A session's full id.")]
CheckpointArg = Annotated[
    str,
    Parameter(
        name="ID",
        completer=refs,
        help="A session's id, or a unique beginning or end of it; after an @, a checkpoint's name, 17, ~2 or latest.",
    ),
]
Seen = Annotated[
    str | None,
    Parameter(metavar="VERSION", help="Refuse unless this is the session's version, as `show --json` gives it."),
]
Duration = Annotated[timedelta | None, Parameter(converter=_duration, metavar="AGE")]
SomeTime = Annotated[timedelta, Parameter(converter=_duration, validator=_some_time, metavar="AGE")]
Limit = Annotated[
    int | None,
    Parameter(
        name=["--limit", "-n"],
        metavar="N",
        validator=_not_negative,
        help="Maximum rows (default: 50 on a terminal, all when piped; 0 = no limit).",
    ),
]
Rules = Annotated[
    dict[str, Retention | None] | None,
    Parameter(
        converter=_rules,
        accepts_keys=False,
        n_tokens=1,
        metavar="RULES",
        help="Retention rules by agent type, * for all others: JSON, or a file of it. "
        """'{"tutor": {"keep_last": 20}, "*": {"max_age": "90d"}}'""",
    ),
]
Full = Annotated[bool, Flag("Show everything, without folding.")]
Apply = Annotated[bool, Flag("Apply the changes; default is a dry run.")]
# What a dry run ends with.
NOTHING = "nothing was changed; pass --apply to do it"
# Filters of sessions.
States = Annotated[
    list[Literal["active", "paused", "completed", "failed"]] | None,
    Parameter(negative="", metavar="STATE", help="Only sessions in this state; repeatable."),
]
Agent = Annotated[str | None, Parameter(metavar="AGENT", completer=agents, help="Only this agent type.")]
User = Annotated[str | None, Parameter(metavar="USER", help="Only this user.")]
Labels = Annotated[
    list[str] | None,
    Parameter(name="--label", negative="", metavar="NAME=VALUE", help="Only sessions with this label; repeatable."),
]
NewerThan = Annotated[Duration, Parameter(help="Created within the last 12h, 30d, …")]
OlderThan = Annotated[Duration, Parameter(help="Created longer ago than 12h, 30d, …")]


def labelled(texts: Sequence[str], option: str = "--label") -> dict[str, str]:
    pairs = [item.partition("=") for item in texts]
    for (_, equals, _), item in zip(pairs, texts, strict=True):
        if not equals:
            raise Misuse(f"{option} {item}: write it as name=value")
    return {name: value for name, _, value in pairs}


def json_value(text: str, option: str) -> Any:
    """JSON as typed; types that JSON lacks in the tagged form of an export."""
    try:
        return decode(text.encode(), tagged=True)
    except Corrupt:
        raise Misuse(f"{option} {text}: is not JSON; a text needs its own quotes, as in '\"done\"'") from None


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    value = None if text is None else json_value(text, option)
    if value is not None and not isinstance(value, dict):
        raise Misuse(f'{option} {text}: write a JSON object, as in \'{{"topic": "fractions"}}\'')
    return cast("dict[str, Any] | None", value)


def before_now(span: timedelta | None) -> datetime | None:
    return None if span is None else datetime.now(UTC) - span
