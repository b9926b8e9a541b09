"""`saveslot quota`: `set`, `ls` and `rm`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from saveslot.cli.candidates import namespaces
from saveslot.cli.common import HERE, Place
from saveslot.cli.exits import Misuse
from saveslot.cli.screen import Column, Part, Screen, Table, line
from saveslot.cli.state import DIM
from saveslot.cli.token import registry_at
from saveslot.cli.words import ago
from saveslot.manager import SessionManager
from saveslot.server import quotas
from saveslot.server.limits import counted
from saveslot.server.minute import Minute
from saveslot.server.quotas import Quota
from saveslot.values.words import size

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d{1,12}) ?([KMGT]B|)")


def _size(_type: Any, tokens: Sequence[Token]) -> int:
    match = _SIZE.fullmatch(tokens[0].value.upper())
    if match is None:
        raise ValueError(f"{tokens[0].value!r} is not a size; write bytes, or a number and KB, MB, GB or TB")
    return int(match[1]) * UNITS[match[2]]


Action = Annotated[
    Literal["set", "ls", "rm"],
    Parameter(name="ACTION", help="set: limit a namespace; ls: list the quotas; rm: lift the limits of one."),
]


async def quota(
    action: Action,
    namespace: Annotated[str | None, Parameter(name="NAMESPACE", completer=namespaces, help="The namespace.")] = None,
    /,
    *,
    sessions: Annotated[int | None, Parameter(metavar="N", help="Sessions that it may have at a time.")] = None,
    bytes: Annotated[
        int | None, Parameter(converter=_size, metavar="SIZE", help="Bytes that they may take, such as 10GB.")
    ] = None,
    checkpoints_per_minute: Annotated[
        int | None, Parameter(metavar="N", help="Entries of any kind within a minute, at all servers together.")
    ] = None,
    place: Place = HERE,
) -> None:
    limits = {"sessions": sessions, "bytes": bytes, "checkpoints_per_minute": checkpoints_per_minute}
    limited = any(limit is not None for limit in limits.values())
    if (namespace is None) != (action == "ls"):
        raise Misuse("quota ls: takes no namespace" if action == "ls" else f"quota {action}: name the namespace")
    if limited != (action == "set"):
        options = "--sessions, --bytes and --checkpoints-per-minute"
        raise Misuse(
            f"quota set: give a limit: {options}" if action == "set" else f"quota {action}: takes no {options}"
        )
    async with registry_at(place, create=action == "set") as registry:
        if action == "rm":
            await quotas.remove(registry, namespace or "")
            return
        if action == "set":
            await quotas.put(registry, namespace or "", **limits)
            return
        listed = [(one, await _used(registry, one)) for one in await quotas.quotas_of(registry)]
    screen = place.common.screen
    screen.answer([{**one.to_dict(), "used": used} for one, used in listed], _rows(listed, screen))


async def _used(registry: SessionManager, quota: Quota) -> dict[str, int | None]:
    """What is used of each limit, as the store has it now."""
    store = registry.engine.metered
    used: dict[str, int | None] = dict.fromkeys(quotas.LIMITS)
    if quota.sessions is not None or quota.bytes is not None:
        sessions, size = await counted(store, quota)
        used |= {
            "sessions": None if quota.sessions is None else sessions,
            "bytes": None if quota.bytes is None else size,
        }
    if quota.checkpoints_per_minute is not None:
        used["checkpoints_per_minute"] = await Minute(store, quota.namespace).used()
    return used


def _rows(listed: list[tuple[Quota, dict[str, int | None]]], screen: Screen) -> Iterator[Part]:
    if not listed and screen.terminal:
        yield line(("no quotas; `saveslot quota set` limits a namespace", DIM))
        return
    columns = [Column("NAMESPACE", id=True), Column("SESSIONS", right=True), Column("BYTES", right=True)]
    columns += [Column("PER MINUTE", right=True), Column("SET")]
    yield Table(
        columns,
        [
            [
                (one.namespace, "bold"),
                _limit(used["sessions"], one.sessions, "{:,}".format),
                _limit(used["bytes"], one.bytes, size),
                _limit(used["checkpoints_per_minute"], one.checkpoints_per_minute, "{:,}".format),
                "" if one.set_at is None else ago(one.set_at),
            ]
            for one, used in listed
        ],
    )


def _limit(used: int | None, limit: int | None, text: Callable[[int], str]) -> str:
    return "no limit" if limit is None else f"{text(used or 0)} of {text(limit)}"
