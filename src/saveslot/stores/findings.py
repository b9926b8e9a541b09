"""Findings of a store check: what `saveslot doctor` prints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from saveslot.errors import InvalidInput
from saveslot.stores import backend
from saveslot.values.log import Row

# Details listed by name; of the others only their number is given.
NAMED = 10

Progress = Callable[[str, int, int], None]  # what is checked, how much of it is done, of how much


class Finding(msgspec.Struct):
    what: str
    text: str
    state: str = "ok"  # ok, warning or problem
    advice: list[str] = []  # what to do, one line each
    details: list[str] = []

    def to_dict(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


class Logs(NamedTuple):
    """What is left to check once a backend is sound: its logs, which only the layers above can decode."""

    url: str  # opens the store for reading
    rows: list[Row]  # key, namespace, id and body; all of them, or a random sample
    entries: int  # in the whole store
    most: int | None = None  # once this many entries were checked, no further session is begun


class Checkup(Protocol):
    """A backend's module `checkup`."""

    def check(self, url: str, progress: Progress, *, every: bool = False) -> AsyncGenerator[Finding | Logs]:
        """Findings from the outside in. A broken layer ends the check; otherwise `Logs` comes last.

        With `every`, `Logs` has all sessions, not a sample.
        """
        ...

    TABLES: bool  # whether its format is that of tables, which can be migrated

    async def formats(self, url: str) -> tuple[int, int]:
        """The store's format, 0 if nothing is there yet, and the newest one that this Saveslot knows."""
        ...


class Repair(Protocol):
    """A backend's module `repair`."""

    async def repair(self, url: str) -> Finding | None:
        """Rebuild what is derived from the log, such as indexes. None if nothing was wrong."""
        ...


def checkup(url: str) -> Checkup | None:
    """The checkup of the backend that a URL names; None if it has nothing to check, as a store in memory."""
    return cast("Checkup | None", _module(url, "checkup"))


def repairing(url: str) -> Repair | None:
    """The same for what repairs it."""
    return cast("Repair | None", _module(url, "repair"))


def _module(url: str, name: str) -> Any:
    module = f"saveslot.stores.{backend(url)}.{name}"
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name == module:
            return None
        if exc.name != "asyncpg":
            raise
        raise InvalidInput("url", "PostgreSQL needs a driver: pip install 'saveslot[postgres]'") from None


def problem(what: str, text: str, *advice: str, details: Sequence[str] = ()) -> Finding:
    return Finding(what, text, "problem", list(advice), list(details))


def warning(what: str, text: str, *advice: str, details: Sequence[str] = ()) -> Finding:
    return Finding(what, text, "warning", list(advice), list(details))


def few(lines: list[str]) -> list[str]:
    return lines if len(lines) <= NAMED else [*lines[:NAMED], f"and {len(lines) - NAMED:,} more"]
