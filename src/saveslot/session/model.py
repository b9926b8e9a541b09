"""The values users handle: sessions and their checkpoints. Plain values, no I/O.

An `AgentSession` stages what its verbs do; `update_session` appends it. Arguments are copied, so a caller's dicts are
never shared or changed. The stored form is in `values/log.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from warnings import warn
from weakref import WeakValueDictionary

from saveslot.codec.text import ANY_SIZE, encode
from saveslot.errors import Corrupt, InvalidInput, InvalidTransition, NotFound
from saveslot.values import advice
from saveslot.values.checks import Data, as_data, as_label, as_labels, as_name, as_state, as_time, copied, fields, now
from saveslot.values.ids import fresh_append_id, fresh_id
from saveslot.values.kinds import VERBS, Kind
from saveslot.values.lifecycle import ACTIVE, COMPLETED, FAILED, SessionState, follow
from saveslot.values.log import Entry, moment
from saveslot.values.versions import version

if TYPE_CHECKING:
    from saveslot.session.headers import Head


class Decoder(Protocol):
    """Decodes the stored checkpoints of one session: its timeline."""

    @property
    def session_id(self) -> str: ...

    def data(self, entry: Entry) -> Data: ...

    def metadata(self, entry: Entry) -> Data: ...

    def text(self, entry: Entry) -> bytes:
        """Return the data as JSON, without decoding it."""
        ...

    def is_emptied(self, entry: Entry) -> bool: ...


class SessionCheckpoint:
    """A named entry of a session: the agent's data at that time, or a lifecycle change.

    If read from a store, `.data` is decoded on each access (so a session of 10,000 checkpoints stays small); keep the
    result in a variable. The other parts are decoded on the first access.
    """

    __slots__ = ("_at", "_data", "_entry", "_metadata", "id", "name")

    def __init__(
        self,
        name: str,
        timestamp: datetime | None = None,
        data: Data | None = None,
        metadata: Data | None = None,
        id: str = "",
    ) -> None:
        self.name: str = as_name(name, "name")
        self._at: datetime | int = now() if timestamp is None else as_time(timestamp, "timestamp")
        self._data: Data | Decoder = as_data(data, "data")
        self._metadata: Data | Decoder = as_data(metadata, "metadata")
        self.id: str = id
        self._entry: Entry | None = None  # if it was read from a store

    @classmethod
    def stored(cls, decoder: Decoder, entry: Entry) -> Self:
        """Return an entry as a checkpoint that is decoded when it is read."""
        checkpoint = cls.__new__(cls)
        checkpoint.id, checkpoint.name = f"{decoder.session_id}:{entry.seq}", entry.name
        checkpoint._at, checkpoint._entry = entry.at, entry  # noqa: SLF001  (its own)
        checkpoint._data = checkpoint._metadata = decoder  # noqa: SLF001
        return checkpoint

    @classmethod
    def all_stored(cls, decoder: Decoder, entries: Iterable[Entry]) -> list[Self]:
        return [cls.stored(decoder, entry) for entry in entries]

    def settle(self, stored: SessionCheckpoint) -> None:
        """Replace the staged value by the stored checkpoint."""
        self.id, self._at, self._data, self._entry = stored.id, stored._at, stored._data, stored._entry

    @property
    def version(self) -> str:
        """The session's version while this is its newest entry: pass it as `seen`. Empty before it is stored."""
        return "" if self._entry is None else version(self._entry.seq, self._entry.append_id)

    @property
    def data(self) -> Data:
        data = self._data
        return data if isinstance(data, dict) else data.data(cast("Entry", self._entry))

    @property
    def timestamp(self) -> datetime:
        if isinstance(self._at, int):
            self._at = moment(self._at)
        return self._at

    @timestamp.setter
    def timestamp(self, timestamp: datetime) -> None:
        self._at = timestamp

    @property
    def metadata(self) -> Data:
        if not isinstance(self._metadata, dict):
            self._metadata = self._metadata.metadata(cast("Entry", self._entry))
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Data) -> None:
        self._metadata = metadata

    def to_dict(self) -> Data:
        """Return name, timestamp and data (None once thinned), plus id and metadata if set."""
        record: Data = {"name": self.name, "timestamp": self.timestamp.isoformat(), "data": self._plain()}
        if self.id:
            record["id"] = self.id
        if self.metadata:
            record["metadata"] = copied(self.metadata)
        return record

    def _plain(self) -> Data | None:
        data = self._data
        gone = not isinstance(data, dict) and data.is_emptied(cast("Entry", self._entry))
        return None if gone else copied(self.data)

    @classmethod
    def from_dict(cls, data: Data) -> Self:
        checked = fields(data, "checkpoint", "name")
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


def text_of(checkpoint: SessionCheckpoint) -> bytes:
    """Return its data as JSON, in the tagged form; `null` once thinned. That of a stored checkpoint is not decoded."""
    data = checkpoint._data  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if isinstance(data, dict):
        return encode(data, "data", ANY_SIZE)[0]
    return data.text(cast("Entry", checkpoint._entry))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class Checkpoint(SessionCheckpoint):
    """A checkpoint as `history` and `CheckpointManager` return it, with its id, `<session_id>:<seq>`."""

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
    def from_dict(cls, data: Data) -> Self:
        return super().from_dict(fields(data, "checkpoint", "id"))

    def to_dict(self) -> Data:
        """Return its fields, and the version if it was read from a store."""
        return {
            "id": self.id,
            "name": self.name,
            "timestamp": self.timestamp.isoformat(),
            "data": self._plain(),
            "metadata": copied(self.metadata),
            **({"version": self.version} if self.version else {}),
        }


@dataclass(slots=True)
class Staged:
    """A verb's entry, not stored yet. Its id is fixed here, so that every retry writes the same entry."""

    kind: Kind
    checkpoint: SessionCheckpoint
    append_id: bytes = field(default_factory=fresh_append_id)


# Attributes fixed at creation.
BORN = ("agent_type", "user_id", "created_at")


# Session values that were read from a store and have staged entries, by identity: `close` warns of them.
STAGING: WeakValueDictionary[int, AgentSession] = WeakValueDictionary()


@dataclass(slots=True)
class Seen:
    """The newest entry that a session value has seen, and the session as stored then."""

    key: bytes
    seq: int
    append_id: bytes
    about: dict[str, bytes]  # the texts of its dicts
    state: SessionState
    born: tuple[object, ...]  # the values of BORN
    newest: tuple[int, bytes]  # number and append_id of that entry, records, pins and retention marks aside
    home: int = 0  # identity of the store object that it was read from


@dataclass(frozen=True, slots=True)
class Owner:
    """The worker that holds a session, and the seconds left until it expires; at 0 the session is an orphan.

    `worker` is empty if the owner left the session by an exception. `since` is None in lists of sessions.
    """

    worker: str
    left: float
    fence: int = 0  # fencing token of its hold
    since: datetime | None = None

    def to_dict(self) -> Data:
        since = None if self.since is None else self.since.isoformat()
        return {"worker": self.worker, "left": self.left, "fence": self.fence, "since": since}


# Attributes of a session that are not for users: `dir`, which a REPL completes from, omits them.
INTERNAL = frozenset({"by_holder", "loaded", "locked", "seen", "staged", "stored", "warned"})


@dataclass
class AgentSession:
    """One agent's session. Its verbs check the transition and stage an entry; `update_session` stores them."""

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
    # Sealed with a key that this manager lacks: `find` omits context and metadata, get_session raises.
    locked: bool = field(default=False, init=False, repr=False, compare=False)
    warned: bool = field(default=False, init=False, repr=False, compare=False)  # of entries that stay staged for good
    head: Head | None = field(default=None, init=False, repr=False, compare=False)  # only from `find(heads=True)`
    # False: its checkpoints were not read. `refresh` reads them.
    loaded: bool = field(default=True, init=False, repr=False, compare=False)
    by_holder: bool = field(default=False, init=False, repr=False, compare=False)  # `held.session`: verbs raise

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

    @classmethod
    def stored(cls, **parts: Any) -> Self:
        """Return a session as a store has it: its parts were checked when they were written, and become its own."""
        session = cls.__new__(cls)
        session.__dict__.update(parts, checkpoints=[], staged=[])
        return session

    def checkpoint(self, name: str, data: Data | None = None) -> SessionCheckpoint:
        """Stage a named checkpoint of the agent's data."""
        self._check_stages("checkpoint")
        follow(self.state, "checkpoint")
        return self._stage(Kind.CHECKPOINT, name, data)

    def heartbeat(self) -> None:
        """Stage a heartbeat; the next update stores it."""
        self._check_stages("heartbeat")
        self.last_heartbeat = now()

    def pause(self) -> None:
        """Pause an active session."""
        self._check_stages("pause")
        after = follow(self.state, "pause")
        self._stage(Kind.PAUSED, "session_paused", {"previous_state": self.state.value})
        self.state = after

    def resume(self) -> None:
        """Make a paused session active. Resuming an active session does nothing."""
        self._check_stages("resume")
        if follow(self.state, "resume") == self.state:
            return
        self.heartbeat()
        self._stage(Kind.RESUMED, "session_resumed", {})
        self.state = ACTIVE

    def complete(self, result: Any = None) -> None:
        """End the session for good: only a fork can continue from here."""
        self._check_stages("complete")
        after = follow(self.state, "complete")
        self._stage(Kind.COMPLETED, "session_completed", {"result": {} if result is None else result})
        self.state = after

    def fail(self, error: str, error_details: Data | None = None) -> None:
        """End the session as failed, until `recover` or a rollback reopens it."""
        self._check_stages("fail")
        after = follow(self.state, "fail")
        self._stage(Kind.FAILED, "session_failed", {"error": error, "details": error_details or {}})
        self.state = after

    def recover(self) -> None:
        """Reopen a failed session. Entries staged before it was found to have failed follow the recovery."""
        self._check_stages("recover")
        after = follow(self.state, "recover")
        first = self.seen is not None and folded(self.seen.state, self.staged) is None
        self.heartbeat()
        self._stage(Kind.RECOVERED, "session_recovered", {})
        if first:
            self.staged.insert(0, self.staged.pop())
            self.checkpoints.insert(len(self.checkpoints) - len(self.staged), self.checkpoints.pop())
            after = folded(FAILED, self.staged) or after
        self.state = after

    @property
    def version(self) -> str:
        """What this value has seen of the session, as short text: pass it as `seen`. Empty before it is stored.

        It names the newest entry; records, pins and retention marks do not change it.
        """
        return "" if self.seen is None else version(*self.seen.newest)

    def unstage(self) -> list[SessionCheckpoint]:
        """Discard the staged entries and return them, oldest first. Your changes to its dicts stay."""
        back, self.staged = [item.checkpoint for item in self.staged], []
        _hide(self, back)
        if self.seen is not None:
            self.state = self.seen.state
        return back

    def get_last_checkpoint(self, name: str | None = None) -> SessionCheckpoint | None:
        """Return its newest checkpoint, or the newest of that name; `NotFound` if its history was not loaded."""
        last = next((c for c in reversed(self.checkpoints) if name is None or c.name == name), None)
        if last is None and not self.loaded:
            raise NotFound(
                f"the history of session {self.session_id} was not loaded; use get_session({self.session_id!r}) "
                "without history=0, or get_checkpoint"
            )
        return last

    def get_duration(self) -> timedelta:
        """Return the time from creation to now, or, once ended, to the last checkpoint (else the last heartbeat)."""
        if self.state not in {COMPLETED, FAILED}:
            return now() - self.created_at
        return (self.checkpoints[-1].timestamp if self.checkpoints else self.last_heartbeat) - self.created_at

    def to_dict(self) -> Data:
        """Return its fields, the version if it was read from a store, and the head if `find` read it."""
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
            **({} if self.seen is None else {"version": self.version}),
            **({} if self.head is None else {"head": self.head.to_dict()}),
        }

    @classmethod
    def from_dict(cls, data: Data) -> Self:
        """Return a session value from `to_dict`'s form. It has seen no store yet: `refresh` it before an update."""
        checked = fields(data, "session", "session_id")
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

    def _check_stages(self, verb: str) -> None:
        if self.by_holder:
            hint = "load the session with get_session" if verb == "recover" else f"call held.{verb}"
            raise InvalidInput("session", f"held.session is for reading: its {verb} would never be stored; {hint}")

    def _stage(self, kind: Kind, name: str, data: Data | None) -> SessionCheckpoint:
        checkpoint = SessionCheckpoint(name, data=data)
        encode(checkpoint.data, "data", ANY_SIZE)  # raise here, not in the update, if it cannot be stored
        self.checkpoints.append(checkpoint)
        self.staged.append(Staged(kind, checkpoint))
        if self.seen is not None:
            STAGING[id(self)] = self
        return checkpoint

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL]

    def __del__(self) -> None:
        own = self.__dict__
        # Only a value that was read from a store has something to lose; one that raised in `__init__` has no fields.
        if own.get("staged") and own.get("seen") is not None and not self.warned:
            _warn_staged(self, "went away")


def _warn_staged(session: AgentSession, what: str) -> None:
    names = ", ".join(item.checkpoint.name for item in session.staged)
    text = (
        f"session {session.session_id} {what} with staged entries ({names}); store them with update_session, or unstage"
    )
    warn(text, ResourceWarning, stacklevel=3)


def warn_of_staged(home: int) -> None:
    """Warn of the session values from this store whose staged entries can no longer be stored."""
    for session in list(STAGING.values()):
        if session.staged and session.seen is not None and session.seen.home == home:
            _warn_staged(session, "lost its manager, which was closed,")
            session.warned = True


def born(session: AgentSession) -> tuple[object, ...]:
    return tuple(getattr(session, part) for part in BORN)


def stand(session: AgentSession, stored: SessionState) -> None:
    """Set its state to the stored one plus the staged entries, or to the stored one if they may not follow it."""
    if stored is not FAILED and session.staged and session.staged[0].kind is Kind.RECOVERED:
        _hide(session, [session.staged.pop(0).checkpoint])  # another caller recovered it
    session.state = folded(stored, session.staged) or stored


def _hide(session: AgentSession, gone: list[SessionCheckpoint]) -> None:
    session.checkpoints = [cp for cp in session.checkpoints if all(cp is not one for one in gone)]


def folded(state: SessionState, staged: Iterable[Staged]) -> SessionState | None:
    """Return the state that these entries lead to, or None if they may not follow it."""
    try:
        for item in staged:
            state = follow(state, VERBS[item.kind])
    except InvalidTransition:
        return None
    return state


class DamagedSession(AgentSession):
    """A session whose stored context and metadata cannot be read: accessing them raises `Corrupt`."""

    def __init__(self, damage: Corrupt, **known: Any) -> None:
        super().__init__(**known)
        self.damage = damage.reason
        del self.context, self.metadata

    def __getattr__(self, name: str) -> Any:
        if name in {"context", "metadata"}:
            raise Corrupt(f"session {self.session_id}", self.damage)
        raise AttributeError(name)

    def readable(self) -> Data:
        """Return `to_dict` with None for the unreadable parts, and `damage`, the reason."""
        whole = AgentSession(
            **{part: getattr(self, part) for part in ("session_id", "agent_type", "user_id", "state", "labels")},
            created_at=self.created_at,
            last_heartbeat=self.last_heartbeat,
        )
        return {**whole.to_dict(), "context": None, "metadata": None, "damage": self.damage}

    def __repr__(self) -> str:
        return f"DamagedSession({self.session_id!r}, {self.state}, {self.damage!r})"


def emptied(checkpoint_id: str) -> NotFound:
    return NotFound(f"the data of checkpoint {checkpoint_id} was thinned or cleared; {advice.WHAT_IS_LEFT}")


def unloaded(checkpoint_id: str) -> NotFound:
    session_id, _, seq = checkpoint_id.rpartition(":")
    return NotFound(
        f"checkpoint {checkpoint_id} was not loaded with its session; "
        f"use get_session({session_id!r}, history='all') or get_checkpoint({session_id!r}, {seq})"
    )
