"""Steps: effects that happen once. A session's journal of its steps, and the errors that follow from it.

A step is identified by name and key for the session's whole life: a rollback does not undo effects outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from inspect import isasyncgen, isasyncgenfunction, iscoroutine, isgenerator, isgeneratorfunction, signature
from typing import Any, Literal
from uuid import UUID

from saveslot import codec
from saveslot.errors import InvalidInput, SaveslotError, StepFailed, StepUnknown, TooLarge
from saveslot.session.timeline import note_of
from saveslot.values import advice
from saveslot.values.checks import Data, as_name
from saveslot.values.kinds import STEP_KINDS, Kind
from saveslot.values.log import Entry, moment

Mode = Literal["idempotent", "at_most_once", "at_least_once"]
# `retrying`: its newest attempt failed, and another one follows.
State = Literal["new", "started", "retrying", "finished", "failed"]
Unknown = Literal["fail", "skip", "retry"]
MODES = ("idempotent", "at_most_once", "at_least_once")
ANSWERS = ("fail", "skip", "retry")
# Characters of an error's text that the journal keeps: enough to read, however much a library prints.
MAX_ERROR = 2000
# In the note of a failure: the next call runs the step again. An operator said so.
RETRY = "retry"
# In the note of a failed attempt: another one follows.
AGAIN = "again"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a session, as journaled. A new one has not run, or is to run again."""

    name: str
    key: str | None
    state: State
    idempotency_key: str  # the same for every run of this step
    at: datetime | None = None
    error: str = ""  # why it failed; if finished, why its result could not be stored
    seq: int = 0
    attempts: int = 0  # so far, including the one under way; `retry=True` starts over

    def to_dict(self) -> Data:
        return {**asdict(self), "at": None if self.at is None else self.at.isoformat()}


OnUnknown = Unknown | Callable[[Step], Any | Awaitable[Any]]
_STATES: dict[Kind, State] = {Kind.STEP_STARTED: "started", Kind.STEP_FINISHED: "finished", Kind.STEP_FAILED: "failed"}


class Journal:
    """The steps of one session and their outcomes."""

    def __init__(self, session_id: str, session_key: bytes) -> None:
        self._session_id = session_id
        self._session_key = session_key
        self._steps: dict[tuple[str, str | None], Step] = {}

    def read(self, entries: Iterable[Entry]) -> None:
        """Record the step entries among these."""
        for entry in entries:
            if entry.kind in STEP_KINDS:
                note = note_of(entry, f"{self._session_id}:{entry.seq}")
                key, error = note.get("key"), note.get("error", "")
                token = self.new(entry.name, key).idempotency_key
                state = _STATES[Kind(entry.kind)]
                if state == "failed":
                    state = "new" if note.get(RETRY) else "retrying" if note.get(AGAIN) else state
                count = note.get("attempt", 1)
                self._steps[entry.name, key] = Step(
                    entry.name, key, state, token, moment(entry.at), error, entry.seq, count
                )

    def find(self, name: str, key: str | None) -> Step:
        return self._steps.get((name, key)) or self.new(name, key)

    def new(self, name: str, key: str | None) -> Step:
        parts = [self._session_key, name.encode(), b"" if key is None else b"\x01" + key.encode()]
        digest = hashlib.sha256(b"\x00".join(parts)).digest()
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
        raise InvalidInput("on_unknown", f"{on_unknown!r} is neither one of {', '.join(ANSWERS)} nor a function")


def check_function(fn: Any) -> None:
    if not callable(fn):
        raise InvalidInput("fn", f"must be a function, not {type(fn).__name__}; pass its arguments after it")
    if isgeneratorfunction(fn) or isasyncgenfunction(fn):
        raise InvalidInput("fn", "is a generator function, so calling it runs nothing; return a list instead")


def check_result(result: Any) -> None:
    """Raise if the function returned something that has not run yet."""
    if iscoroutine(result):
        result.close()
        raise InvalidInput("fn", "is async and was not awaited; use the async API for it")
    if isgenerator(result) or isasyncgen(result):
        raise InvalidInput("fn", "returned a generator, which has not run; return a list instead")


def error_text(exc: Exception) -> str:
    """Return the text that the journal keeps of an exception, even if its `__str__` raises."""
    try:
        text = str(exc)
    except Exception as unread:  # noqa: BLE001  (it is the caller's class)
        text = f"(unreadable: {type(unread).__name__})"
    return f"{type(exc).__name__}: {text}"[:MAX_ERROR].encode(errors="backslashreplace").decode()


def unknown(step: Step) -> StepUnknown:
    return StepUnknown(
        f"step {label(step)} started at {step.at} and may or may not have finished; {advice.FIND_OUT}",
        name=step.name,
        key=step.key or "",
    )


def busy(step: Step) -> StepUnknown:
    return StepUnknown(
        f"step {label(step)} still runs in its thread, which cannot be stopped; call it again once that has ended",
        name=step.name,
        key=step.key or "",
    )


def failed(step: Step) -> StepFailed:
    return StepFailed(
        f"step {label(step)} failed at {step.at} ({step.error}); {advice.RETRY}",
        name=step.name,
        key=step.key or "",
        error=step.error,
    )


def stored(result: Any, limit: int) -> tuple[bytes | None, SaveslotError | None]:
    """Return a result as bytes, or the error if it cannot be stored: the step has happened all the same."""
    try:
        return codec.note(result, "result", limit), None
    except (InvalidInput, TooLarge) as exc:
        return None, exc


def unstorable(step: Step) -> InvalidInput:
    return InvalidInput("result", f"step {label(step)} happened, but its result could not be stored: {step.error}")


def fingerprint(args: tuple[Any, ...], kwargs: Data) -> bytes | None:
    """Return a hash of a step's arguments; None if they are not JSON values."""
    try:
        return hashlib.sha256(codec.encode([list(args), kwargs], "args", codec.ANY_SIZE)[0]).digest()
    except (InvalidInput, TooLarge):
        return None


def keyed(fn: Callable[..., Any], step: Step) -> Data:
    """Return the arguments that Saveslot adds: `idempotency_key`, if the function has a parameter of that name."""
    try:
        asks = "idempotency_key" in signature(fn).parameters
    except (TypeError, ValueError):  # some built-ins have no signature
        asks = False
    return {"idempotency_key": step.idempotency_key} if asks else {}


def label(step: Step) -> str:
    return repr(step.name) if step.key is None else f"{step.name!r} (key {step.key!r})"
