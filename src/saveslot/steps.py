"""Steps: effects that happen once. What a session's journal says of each, and what follows from that.

A step is known by its name and key, once in a session's life: a rollback does not undo what happened outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from inspect import isasyncgen, isasyncgenfunction, iscoroutine, isgenerator, isgeneratorfunction, signature
from typing import Any, Literal
from uuid import UUID

from saveslot import codec
from saveslot.errors import InvalidInput, SaveslotError, StepFailed, StepUnknown, TooLarge
from saveslot.log import Entry, moment
from saveslot.model import STEP_KINDS, Data, Kind, as_name
from saveslot.timeline import note_of

Mode = Literal["idempotent", "at_most_once", "at_least_once"]
State = Literal["new", "started", "finished", "failed"]
Unknown = Literal["fail", "skip", "retry"]
MODES = ("idempotent", "at_most_once", "at_least_once")
ANSWERS = ("fail", "skip", "retry")
# Of an error's text the journal keeps so much: enough to read, whatever a library prints.
MAX_ERROR = 2000


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a session, as its journal has it."""

    name: str
    key: str | None
    state: State
    idempotency_key: str  # the same for every run of this step
    at: datetime | None = None
    error: str = ""  # of a failed one; of a finished one why its result could not be stored
    seq: int = 0


OnUnknown = Unknown | Callable[[Step], Any | Awaitable[Any]]
_STATES: dict[Kind, State] = {Kind.STEP_STARTED: "started", Kind.STEP_FINISHED: "finished", Kind.STEP_FAILED: "failed"}


class Journal:
    """What became of the steps of one session."""

    def __init__(self, session_id: str, session_key: bytes) -> None:
        self._session_id = session_id
        self._session_key = session_key
        self._steps: dict[tuple[str, str | None], Step] = {}

    def read(self, entries: Iterable[Entry]) -> None:
        """Take in what was appended."""
        for entry in entries:
            if entry.kind in STEP_KINDS:
                note = note_of(entry, f"{self._session_id}:{entry.seq}")
                key, error = note.get("key"), note.get("error", "")
                told = self.new(entry.name, key).idempotency_key
                self._steps[entry.name, key] = Step(
                    entry.name, key, _STATES[Kind(entry.kind)], told, moment(entry.at), error, entry.seq
                )

    def find(self, name: str, key: str | None) -> Step:
        return self._steps.get((name, key)) or self.new(name, key)

    def new(self, name: str, key: str | None) -> Step:
        told = [self._session_key, name.encode(), b"" if key is None else b"\x01" + key.encode()]
        digest = hashlib.sha256(b"\x00".join(told)).digest()
        return Step(name, key, "new", str(UUID(bytes=digest[:16], version=5)))

    def __iter__(self) -> Iterator[Step]:
        return iter(sorted(self._steps.values(), key=lambda step: step.seq))


def checked(name: str, key: str | None, mode: str, on_unknown: object) -> None:
    as_name(name, "name")
    if key is not None:
        as_name(key, "key")
    if mode not in MODES:
        raise InvalidInput("mode", f"{mode!r} is not one of {', '.join(MODES)}")
    if on_unknown not in ANSWERS and not callable(on_unknown):
        raise InvalidInput("on_unknown", f"{on_unknown!r} is not one of {', '.join(ANSWERS)}, and no function")


def check_function(fn: Any) -> None:
    if not callable(fn):
        raise InvalidInput("fn", f"must be a function, not {type(fn).__name__}; its arguments come behind it")
    if isgeneratorfunction(fn) or isasyncgenfunction(fn):
        raise InvalidInput("fn", "is a generator, of which calling runs nothing; let it return a list")


def check_made(made: Any) -> None:
    """What a function that has run returns: not something that would run it."""
    if iscoroutine(made):
        made.close()
        raise InvalidInput("fn", "is async, and was not awaited; use the async API for it")
    if isgenerator(made) or isasyncgen(made):
        raise InvalidInput("fn", "returned a generator, of which nothing has run; let it return a list")


def error_text(exc: Exception) -> str:
    """What the journal keeps of an exception, whatever that thinks of being read."""
    try:
        text = str(exc)
    except Exception as unread:  # noqa: BLE001  (it is the caller's class)
        text = f"(unreadable: {type(unread).__name__})"
    return f"{type(exc).__name__}: {text}"[:MAX_ERROR].encode(errors="backslashreplace").decode()


def unknown(step: Step) -> StepUnknown:
    return StepUnknown(
        f"step {_told(step)} started at {step.at} and nobody knows whether it ended; find out, then say what to do "
        "by on_unknown: skip, retry, or a function that gives its result",
        name=step.name,
        key=step.key or "",
    )


def failed(step: Step) -> StepFailed:
    return StepFailed(
        f"step {_told(step)} failed at {step.at} ({step.error}); retry=True runs it again",
        name=step.name,
        key=step.key or "",
        error=step.error,
    )


def stored(result: Any, limit: int) -> tuple[bytes | None, SaveslotError | None]:
    """A result as bytes, or why it cannot be any: the step has happened all the same."""
    try:
        return codec.note(result, "result", limit), None
    except (InvalidInput, TooLarge) as exc:
        return None, exc


def unstorable(step: Step) -> InvalidInput:
    return InvalidInput("result", f"step {_told(step)} happened, but its result could not be stored: {step.error}")


def fingerprint(args: tuple[Any, ...]) -> bytes | None:
    """Of a step's arguments, where they are values and not objects."""
    try:
        return hashlib.sha256(codec.encode(list(args), "args", 1 << 40)[0]).digest()
    except (InvalidInput, TooLarge):
        return None


def keyed(fn: Callable[..., Any], step: Step) -> Data:
    """The arguments that Saveslot adds: the idempotency key, for a function that takes one by that name."""
    try:
        asks = "idempotency_key" in signature(fn).parameters
    except (TypeError, ValueError):  # some built-ins have no signature
        asks = False
    return {"idempotency_key": step.idempotency_key} if asks else {}


def _told(step: Step) -> str:
    return repr(step.name) if step.key is None else f"{step.name!r} (key {step.key!r})"
