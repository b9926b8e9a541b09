"""The values users handle: sessions and their checkpoints. Plain values, no I/O.

An `AgentSession` stages what its verbs do; `update_session` appends it. What a caller hands over is copied, so nobody's
dict is ever shared or changed. `log.py` holds what the stores keep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Self, cast

from saveslot.codec.text import encode
from saveslot.errors import Corrupt, InvalidInput, InvalidTransition, NotFound
from saveslot.ids import drawn, fresh_id
from saveslot.lifecycle import ACTIVE, COMPLETED, FAILED, SessionState, follow

Data = dict[str, Any]

# How large a state may be is the manager's to say.
ANY_SIZE = 1 << 40


def now() -> datetime:
    return datetime.now(UTC)


def copied(value: Any, path: str = "data") -> Any:
    """The same value in new containers (a tuple becomes a list, a bytearray bytes, as they will when read back)."""
    try:
        return _copied(value)
    except RecursionError:
        raise InvalidInput(path, "is nested too deep, or contains itself") from None


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in cast("list[Any]", value)]
    return bytes(value) if isinstance(value, bytearray) else value


def as_data(value: Any, path: str) -> Data:
    """A copy of the caller's dict (None is an empty one)."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(path, f"must be a dict, not {type(value).__name__}")
    return copied(value, path)


def as_time(value: Any, path: str) -> datetime:
    """An aware UTC time from a datetime or ISO text; one without a zone is taken as UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(path, f"is not an ISO time: {value!r}") from None
    if not isinstance(value, datetime):
        raise InvalidInput(path, f"must be a time, not {type(value).__name__}")
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(path, f"is beyond the years 1 to 9999 in UTC: {value}") from None


# Names, ids and namespaces are keys: they travel through logs, shells, URLs and other databases.
MAX_NAME = 200
_ODD = r"\x00-\x1f\x7f\ud800-\udfff"
_UNFIT = re.compile(f"[{_ODD}]")
_FIT = re.compile(f"[^{_ODD}]{{1,{MAX_NAME}}}").fullmatch
_UNASKABLE = re.compile(r"[\x00\ud800-\udfff]")
# No store holds as many of anything, and every database takes it, also ten times as much.
MOST = 1 << 48
# A hundred years in seconds: nobody waits longer, and every clock counts so far.
EVER = 100 * 365 * 24 * 3600


def as_name(value: Any, path: str) -> str:
    """Any text of 1 to 200 characters that every database, log line and terminal can hold."""
    if not isinstance(value, str):
        raise InvalidInput(path, f"must be text, not {type(value).__name__}")
    if _FIT(value):
        return value
    if not value:
        raise InvalidInput(path, "must not be empty")
    if len(value) > MAX_NAME:
        raise InvalidInput(path, f"has {len(value):,} characters; at most {MAX_NAME} are allowed")
    found = cast("re.Match[str]", _UNFIT.search(value))
    raise InvalidInput(path, f"must not contain the character {found[0]!a}")


def as_label(value: Any, path: str) -> str:
    """Like a name, but it may be empty: an agent type or a user id need not be set."""
    return "" if value == "" else as_name(value, path)


def as_text(value: Any, path: str) -> str:
    """Any text that every database can be asked for."""
    if not isinstance(value, str):
        raise InvalidInput(path, f"must be text, not {type(value).__name__}")
    if (found := _UNASKABLE.search(value)) is not None:
        raise InvalidInput(path, f"must not contain the character {found[0]!a}")
    return value


def as_count(value: Any, path: str, least: int = 0) -> int:
    """A whole number of `least` or more; beyond `MOST` that one, which means all."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(path, f"must be a whole number, not {type(value).__name__}")
    if value < least:
        raise InvalidInput(path, f"must be {least} or more")
    return min(value, MOST)


def as_span(value: Any, path: str) -> float:
    """A number of seconds (or hours) that is not negative; beyond `EVER` that one, infinity too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(path, f"must be a number, not {type(value).__name__}")
    if not value >= 0:  # as NaN is not
        raise InvalidInput(path, f"must be 0 or more, not {value}")
    return min(value, EVER)


class SessionCheckpoint:
    """A named moment of a session: what the agent knew then, or what became of the session.

    One that was read from a store is decoded anew each time `.data` is looked at (a session of 10,000 checkpoints stays
    small); keep the result in a variable.
    """

    __slots__ = ("_data", "id", "metadata", "name", "timestamp")

    def __init__(
        self,
        name: str,
        timestamp: datetime | None = None,
        data: Data | None = None,
        metadata: Data | None = None,
        id: str = "",
    ) -> None:
        self.name = as_name(name, "name")
        self.timestamp = now() if timestamp is None else as_time(timestamp, "timestamp")
        self._data: Data | Callable[[], Data] = as_data(data, "data")
        self.metadata = as_data(metadata, "metadata")
        self.id = id

    @classmethod
    def stored(cls, id: str, name: str, timestamp: datetime, load: Callable[[], Data], metadata: Data) -> Self:
        """One whose data is decoded by `load` when it is looked at."""
        made = cls.__new__(cls)
        made.id, made.name, made.timestamp, made.metadata = id, name, timestamp, metadata
        made._data = load  # noqa: SLF001  (its own class)
        return made

    def settle(self, stored: SessionCheckpoint) -> None:
        """From now on a stored one: the value it carried is let go, what was stored takes its place."""
        self.id, self.timestamp, self._data = stored.id, stored.timestamp, stored._data

    @property
    def data(self) -> Data:
        return self._data() if callable(self._data) else self._data

    def to_dict(self) -> Data:
        """Name, timestamp and data; also id and metadata where they are set."""
        told: Data = {"name": self.name, "timestamp": self.timestamp.isoformat(), "data": copied(self.data)}
        if self.id:
            told["id"] = self.id
        if self.metadata:
            told["metadata"] = copied(self.metadata)
        return told

    @classmethod
    def from_dict(cls, told: Data) -> Self:
        checked = _fields(told, "checkpoint", "name")
        return cls(
            name=checked["name"],
            timestamp=as_time(checked["timestamp"], "checkpoint.timestamp") if "timestamp" in checked else None,
            data=checked.get("data"),
            metadata=checked.get("metadata"),
            id=str(checked.get("id") or ""),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionCheckpoint):
            return NotImplemented
        mine = (self.id, self.name, self.timestamp, self.metadata)
        return mine == (other.id, other.name, other.timestamp, other.metadata) and self.data == other.data

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a mutable value, like a list

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id or 'staged'}, {self.name!r}, {self.timestamp.isoformat()})"


class Checkpoint(SessionCheckpoint):
    """A checkpoint as `history` and `CheckpointManager` show it: with its id, `<session_id>:<seq>`."""

    __slots__ = ()

    def __init__(
        self,
        id: str,
        name: str,
        timestamp: datetime | None = None,
        data: Data | None = None,
        metadata: Data | None = None,
    ) -> None:
        super().__init__(name, timestamp, data, metadata, id)

    @property
    def seq(self) -> int:
        number = self.id.rpartition(":")[2]
        if not (number.isascii() and number.isdigit()):
            raise InvalidInput("checkpoint.id", f"{self.id!r} has no number; an id is <session_id>:<seq>")
        return int(number)

    @classmethod
    def from_dict(cls, told: Data) -> Self:
        return super().from_dict(_fields(told, "checkpoint", "id"))

    def to_dict(self) -> Data:
        return {
            "id": self.id,
            "name": self.name,
            "timestamp": self.timestamp.isoformat(),
            "data": copied(self.data),
            "metadata": copied(self.metadata),
        }


class Kind(IntEnum):
    """What an entry of the log is. The numbers are stored: never change or reuse one."""

    CREATED = 0
    CHECKPOINT = 1
    ROLLBACK = 2
    PAUSED = 3
    RESUMED = 4
    COMPLETED = 5
    FAILED = 6
    RECOVERED = 7
    UPDATED = 8  # context, metadata or labels changed
    TOMBSTONE = 9
    CLEARED = 10  # hides older checkpoints: its note names them
    THINNED = 11  # a checkpoint that hides older ones, of which there were too many
    SKIPPED = 12  # nothing; an import kept a later number
    TAKEN = 13  # someone holds the session from here on: fence + 1, a new lease
    CLAIMED = 14  # the same, from a worker that died
    RELEASED = 15
    STEP_STARTED = 16
    STEP_FINISHED = 17
    STEP_FAILED = 18
    MARKED = 19  # hides checkpoints that retention drops: its note names them, its frame is there until theirs are gone
    PINNED = 20  # retention leaves the checkpoint alone that its note names …
    UNPINNED = 21  # … until here

    @property
    def label(self) -> str:
        """As people read it: a checkpoint is one, whether it hides others or not."""
        return "checkpoint" if self is Kind.THINNED else self.name.lower()


# What carries the agent's data, what hides some of that, and what a history shows unless it is asked for everything.
DATA_KINDS = frozenset({Kind.CHECKPOINT, Kind.ROLLBACK, Kind.THINNED})
HIDING_KINDS = frozenset({Kind.CLEARED, Kind.THINNED, Kind.MARKED})
TAKING_KINDS = frozenset({Kind.TAKEN, Kind.CLAIMED})
OWNER_KINDS = TAKING_KINDS | {Kind.RELEASED}
STEP_KINDS = frozenset({Kind.STEP_STARTED, Kind.STEP_FINISHED, Kind.STEP_FAILED})
# What is said about keeping: nobody's work builds on it.
KEEPING_KINDS = frozenset({Kind.MARKED, Kind.PINNED, Kind.UNPINNED})
UNSHOWN_KINDS = OWNER_KINDS | STEP_KINDS | KEEPING_KINDS
SHOWN_KINDS = frozenset(Kind) - {Kind.UPDATED, Kind.TOMBSTONE, Kind.CLEARED, Kind.SKIPPED} - UNSHOWN_KINDS
# What leaves the session's row as it is: one row written, not two.
PLAIN_KINDS = STEP_KINDS | KEEPING_KINDS | {Kind.CHECKPOINT}

VERBS = {
    Kind.CHECKPOINT: "checkpoint",
    Kind.PAUSED: "pause",
    Kind.RESUMED: "resume",
    Kind.COMPLETED: "complete",
    Kind.FAILED: "fail",
    Kind.RECOVERED: "recover",
}


@dataclass(slots=True)
class Staged:
    """What a verb of a session did and nobody stored yet. Its id is fixed here, so that any retry is the same entry."""

    kind: Kind
    checkpoint: SessionCheckpoint
    append_id: bytes = field(default_factory=drawn)


# What a session is created with, and keeps.
BORN = ("agent_type", "user_id", "created_at")


@dataclass(slots=True)
class Seen:
    """The last entry that the holder of a session value has seen, and what was stored then."""

    key: bytes
    seq: int
    append_id: bytes
    about: dict[str, bytes]  # the texts of its dicts
    state: SessionState
    born: tuple[object, ...]  # the values of BORN


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a session, and for how many seconds more; with 0 left it is dead, and the session an orphan."""

    worker: str
    left: float


@dataclass
class AgentSession:
    """One agent's session. Its verbs check the transition at once and stage; `update_session` stores what is staged."""

    session_id: str = field(default_factory=fresh_id)
    agent_type: str = ""
    user_id: str = ""
    state: SessionState = SessionState.ACTIVE
    created_at: datetime = field(default_factory=now)
    last_heartbeat: datetime = field(default_factory=now)
    context: Data = field(default_factory=dict[str, Any])
    metadata: Data = field(default_factory=dict[str, Any])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    checkpoints: list[SessionCheckpoint] = field(default_factory=list[SessionCheckpoint])
    seen: Seen | None = field(default=None, init=False, repr=False, compare=False)
    staged: list[Staged] = field(default_factory=list[Staged], init=False, repr=False, compare=False)
    owner: Owner | None = field(default=None, init=False, repr=False, compare=False)  # as of reading
    # In a list: sealed with a key that was not given, so context and metadata are left out; get_session raises then.
    locked: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        as_name(self.session_id, "session_id")
        as_label(self.agent_type, "agent_type")
        as_label(self.user_id, "user_id")
        self.state = as_state(self.state)
        self.created_at = as_time(self.created_at, "created_at")
        self.last_heartbeat = as_time(self.last_heartbeat, "last_heartbeat")
        self.context = as_data(self.context, "context")
        self.metadata = as_data(self.metadata, "metadata")
        self.labels = as_labels(self.labels)
        self.checkpoints = list(self.checkpoints)

    def checkpoint(self, name: str, data: Data | None = None) -> SessionCheckpoint:
        """Stage a named checkpoint of the agent's data."""
        follow(self.state, "checkpoint")
        return self._stage(Kind.CHECKPOINT, name, data)

    def heartbeat(self) -> None:
        """A sign of life; stored by the next update."""
        self.last_heartbeat = now()

    def pause(self) -> None:
        """From active to paused."""
        after = follow(self.state, "pause")
        self._stage(Kind.PAUSED, "session_paused", {"previous_state": self.state.value})
        self.state = after

    def resume(self) -> None:
        """From paused to active; nothing happens to an active one."""
        if follow(self.state, "resume") == self.state:
            return
        self.heartbeat()
        self._stage(Kind.RESUMED, "session_resumed", {})
        self.state = ACTIVE

    def complete(self, result: Any = None) -> None:
        """The end, for good: only a fork goes on from here."""
        after = follow(self.state, "complete")
        self._stage(Kind.COMPLETED, "session_completed", {"result": {} if result is None else result})
        self.state = after

    def fail(self, error: str, error_details: Data | None = None) -> None:
        """The end, until someone recovers it or rolls it back."""
        after = follow(self.state, "fail")
        self._stage(Kind.FAILED, "session_failed", {"error": error, "details": error_details or {}})
        self.state = after

    def recover(self) -> None:
        """Take a failed session up again, on purpose; what was staged before it was found failed comes behind that."""
        after = follow(self.state, "recover")
        first = self.seen is not None and folded(self.seen.state, self.staged) is None
        self.heartbeat()
        self._stage(Kind.RECOVERED, "session_recovered", {})
        if first:
            self.staged.insert(0, self.staged.pop())
            self.checkpoints.insert(len(self.checkpoints) - len(self.staged), self.checkpoints.pop())
            after = folded(FAILED, self.staged) or after
        self.state = after

    def unstage(self) -> list[SessionCheckpoint]:
        """Take back what is staged, oldest first, as if it had not been asked for. Its dicts stay as you left them."""
        back, self.staged = [item.checkpoint for item in self.staged], []
        _hide(self, back)
        if self.seen is not None:
            self.state = self.seen.state
        return back

    def get_last_checkpoint(self, name: str | None = None) -> SessionCheckpoint | None:
        return next((c for c in reversed(self.checkpoints) if name is None or c.name == name), None)

    def get_duration(self) -> timedelta:
        """From its creation to now, or to its last checkpoint once it ended (its last sign of life, in a list)."""
        if self.state not in {COMPLETED, FAILED}:
            return now() - self.created_at
        return (self.checkpoints[-1].timestamp if self.checkpoints else self.last_heartbeat) - self.created_at

    def to_dict(self) -> Data:
        return {
            "session_id": self.session_id,
            "agent_type": self.agent_type,
            "user_id": self.user_id,
            "state": self.state.value,
            "created_at": self.created_at.isoformat(),
            "last_heartbeat": self.last_heartbeat.isoformat(),
            "context": copied(self.context),
            "metadata": copied(self.metadata),
            "labels": dict(self.labels),
            "checkpoints": [checkpoint.to_dict() for checkpoint in self.checkpoints],
        }

    @classmethod
    def from_dict(cls, told: Data) -> Self:
        """A session value from `to_dict`'s form. It has seen no store yet: `refresh` it before an update."""
        checked = _fields(told, "session", "session_id")
        checkpoints: Any = checked.get("checkpoints") or []
        if not isinstance(checkpoints, list):
            raise InvalidInput("session.checkpoints", "must be a list")
        times = {k: as_time(checked[k], f"session.{k}") for k in ("created_at", "last_heartbeat") if k in checked}
        return cls(
            session_id=checked["session_id"],
            agent_type=checked.get("agent_type") or "",
            user_id=checked.get("user_id") or "",
            state=as_state(checked.get("state", SessionState.ACTIVE)),
            context=as_data(checked.get("context"), "session.context"),
            metadata=as_data(checked.get("metadata"), "session.metadata"),
            labels=as_labels(checked.get("labels")),
            checkpoints=[SessionCheckpoint.from_dict(item) for item in cast("list[Data]", checkpoints)],
            **times,
        )

    def _stage(self, kind: Kind, name: str, data: Data | None) -> SessionCheckpoint:
        made = SessionCheckpoint(name, data=data)
        encode(made.data, "data", ANY_SIZE)  # who stages what cannot be stored is told here, not by the update
        self.checkpoints.append(made)
        self.staged.append(Staged(kind, made))
        return made


def born(session: AgentSession) -> tuple[object, ...]:
    return tuple(getattr(session, part) for part in BORN)


def stand(session: AgentSession, stored: SessionState) -> None:
    """Let it stand on what is stored in that state, with what is staged on top; as stored if that may not follow."""
    if stored is not FAILED and session.staged and session.staged[0].kind is Kind.RECOVERED:
        _hide(session, [session.staged.pop(0).checkpoint])  # someone else did that
    session.state = folded(stored, session.staged) or stored


def _hide(session: AgentSession, gone: list[SessionCheckpoint]) -> None:
    session.checkpoints = [made for made in session.checkpoints if all(made is not one for one in gone)]


def folded(state: SessionState, staged: Iterable[Staged]) -> SessionState | None:
    """The state that these lead to, or None if they may not follow it."""
    try:
        for item in staged:
            state = follow(state, VERBS[item.kind])
    except InvalidTransition:
        return None
    return state


class DamagedSession(AgentSession):
    """One whose stored context and metadata cannot be read: looking at them raises `Corrupt`, all else is as ever."""

    def __init__(self, damage: Corrupt, **known: Any) -> None:
        super().__init__(**known)
        self.damage = damage.reason
        del self.context, self.metadata

    def __getattr__(self, name: str) -> Any:
        if name in {"context", "metadata"}:
            raise Corrupt(f"session {self.session_id}", self.damage)
        raise AttributeError(name)

    def readable(self) -> Data:
        """Its `to_dict` without what cannot be read, and what is wrong with that."""
        whole = AgentSession(
            **{part: getattr(self, part) for part in ("session_id", "agent_type", "user_id", "state", "labels")},
            created_at=self.created_at,
            last_heartbeat=self.last_heartbeat,
        )
        return {**whole.to_dict(), "context": None, "metadata": None, "damage": self.damage}

    def __repr__(self) -> str:
        return f"DamagedSession({self.session_id!r}, {self.state}, {self.damage!r})"


def as_state(value: Any) -> SessionState:
    try:
        return SessionState(value)
    except ValueError:
        states = ", ".join(SessionState)
        raise InvalidInput("state", f"{value!r} is not one of {states}") from None


def as_labels(value: Any) -> dict[str, str]:
    """Labels are what `find` filters by: short text to short text."""
    found = as_data(value, "labels")
    return {as_name(key, "labels"): as_label(item, f"labels.{key}") for key, item in found.items()}


def unloaded(checkpoint_id: str) -> NotFound:
    session_id, _, seq = checkpoint_id.rpartition(":")
    return NotFound(
        f"checkpoint {checkpoint_id} was not loaded with its session: "
        f"use get_session({session_id!r}, history='all') or get_checkpoint({session_id!r}, {seq})"
    )


def _fields(told: Any, what: str, *needed: str) -> Data:
    if not isinstance(told, dict):
        raise InvalidInput(what, f"must be a dict, not {type(told).__name__}")
    for name in needed:
        if name not in told:
            raise InvalidInput(f"{what}.{name}", "is missing")
    return cast("Data", told)
