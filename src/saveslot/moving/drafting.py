"""A foreign session becomes a log: the same one each time, down to its keys and ids, so that it is recognised."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from saveslot import codec
from saveslot.errors import InvalidInput
from saveslot.lifecycle import ACTIVE, COMPLETED, FAILED, PAUSED, TRANSITIONS, SessionState
from saveslot.log import Entry, Head, Row, micros
from saveslot.model import VERBS, AgentSession, Data, Kind, as_data, as_name, as_time
from saveslot.moving.parcel import Kept
from saveslot.slot import Draft, beginning, creation

# Verbs of a session in its history, by the names that they go by everywhere.
LIFECYCLE = {f"session_{kind.label}": kind for kind in VERBS if kind is not Kind.CHECKPOINT}
# How a session came to a state that its history elsewhere does not lead to, as far as anybody knows.
REACHED: dict[SessionState, tuple[Kind, Data]] = {
    ACTIVE: (Kind.RESUMED, {}),
    PAUSED: (Kind.PAUSED, {"previous_state": ACTIVE.value}),
    COMPLETED: (Kind.COMPLETED, {"result": {}}),
    FAILED: (Kind.FAILED, {"error": "unknown", "details": {}}),
}


class _Verb(NamedTuple):
    kind: Kind
    name: str
    data: Data
    at: int


class Making:
    """A session in the making. Whatever raises `InvalidInput` has changed nothing: the next entry may go on.

    Its log follows `lifecycle.TRANSITIONS`, whatever others allow. A verb that cannot stand where it does is kept as a
    checkpoint of that name; so is an end behind which the history goes on.
    """

    def __init__(self, namespace: str, session: AgentSession) -> None:
        self._namespace = namespace
        self._session = session
        self._draft = Draft(b"", beginning(), codec.MAX_STATE)
        self._state = SessionState.ACTIVE
        self._end: _Verb | None = None  # not in the draft yet: what comes next says whether it was one

    @classmethod
    def behind(cls, row: Row, draft: Draft, state: SessionState) -> Making:
        """One that goes on behind what is here."""
        made = cls(row.namespace, AgentSession(session_id=row.session_id))
        made._draft, made._state = draft, state
        return made

    @property
    def data(self) -> Data:
        """The newest state of the agent."""
        return {} if self._draft.at.data is None else self._draft.at.data.value()

    @property
    def seq(self) -> int:
        return self._draft.at.seq + (self._end is not None)

    def created(self, told: Data | None = None, at: Any = None) -> None:
        """The first entry, with what the session is about."""
        session = self._session
        about = {"context": session.context, "metadata": session.metadata, "labels": session.labels}
        when = stamp(session.created_at if at is None else at)
        entry = self._draft.about(about, kind=Kind.CREATED, name="session_created", at=when)
        note = told or {"agent_type": session.agent_type, "user_id": session.user_id}
        entry.note = codec.note(as_data(note, "data"), "data")

    def checkpoint(self, name: Any, data: Any, metadata: Any, at: Any, *, seq: int = 0) -> None:
        """One of the agent's, or a verb by its name; under a number of its own if there is room before it."""
        name, when, data = as_name(name, "name"), stamp(at), as_data(data, "data")
        metadata = as_data(metadata, "metadata")
        skipped = range(self.seq + 1, seq)
        kind = None if metadata else LIFECYCLE.get(name)
        if self._state in {COMPLETED, FAILED} and (kind is None or self._after(kind) is None):
            raise InvalidInput("session", f"is {self._state} here, and went on over there; it was left as it is")
        if kind is not None or skipped or self._end is not None:
            # What is refused must be refused before anything else is written.
            codec.encode(data, "data")
            codec.encode(metadata, "metadata")
        self._go_on(kind)
        self._skip(skipped)
        after = None if kind is None else self._after(kind)
        if kind is None or after is None:
            self._draft.checkpoint(name, data, metadata or None, at=when, sign=False)
        elif after in {COMPLETED, FAILED}:
            self._end = _Verb(kind, name, data, when)
        else:
            self._verb(_Verb(kind, name, data, when))

    def _after(self, kind: Kind) -> SessionState | None:
        return TRANSITIONS[VERBS[kind]].get(self._state)

    def _verb(self, verb: _Verb) -> None:
        self._state = self._after(verb.kind) or self._state
        self._draft.lifecycle(verb.kind, verb.name, verb.data, at=verb.at)

    def _go_on(self, kind: Kind | None) -> None:
        """Something comes behind the end that waits. Only a failure can have been one, if the session was recovered."""
        end, self._end = self._end, None
        if end is None:
            return
        if end.kind is Kind.FAILED and kind is Kind.RECOVERED:
            self._verb(end)
        else:
            self._draft.checkpoint(end.name, end.data, at=end.at, sign=False)

    def _skip(self, seqs: range) -> None:
        for _ in seqs:
            self._draft.lifecycle(Kind.SKIPPED, "number_skipped", {}, at=1)

    def append(self, name: str, items: dict[str, Sequence[Any]], at: Any) -> None:
        when = stamp(at)
        self._go_on(None)
        self._draft.appended(name, {key: list(more) for key, more in items.items()}, None)
        entry = self._draft.group.entries[-1]
        entry.at, entry.sign = when, False

    def rest(self, at: Any) -> None:
        """Nobody works on it until somebody resumes it."""
        self._verb(_Verb(Kind.PAUSED, "session_paused", {"previous_state": ACTIVE.value}, stamp(at)))

    def settle(self, about: Data, state: SessionState | None, at: Any) -> None:
        """Nothing comes any more: what the session is about, as far as it is told, and its state, where others now."""
        self._close(state)
        known = {} if self._draft.at.about is None else self._draft.at.about.value()
        changed = {**known, **about}
        when = 1 if at is None else stamp(at)
        if canonical(changed) != canonical(known):
            self._draft.about(changed, at=max(when, self._newest))
        if state is not None:
            self._reach(state, when)

    def _reach(self, state: SessionState, at: int) -> None:
        """By one verb more, if the history does not lead there."""
        if state is self._state:
            return
        kind, data = (Kind.RECOVERED, {}) if (self._state, state) == (FAILED, ACTIVE) else REACHED[state]
        if self._after(kind) is not state:
            raise InvalidInput("session", f"is {self._state} here, and {state} over there; it was left as it is")
        self._verb(_Verb(kind, f"session_{kind.label}", data, max(at, self._newest)))

    @property
    def _newest(self) -> int:
        """The time of the newest entry that was made here."""
        entries = self._draft.group.entries
        return entries[-1].at if entries else 1

    def _close(self, state: SessionState | None) -> None:
        """An end that waits was one, if it led to that state."""
        if self._end is not None and state in {None, self._after(self._end.kind)}:
            self._verb(self._end)
            self._end = None
        self._go_on(None)

    def parcel(self, state: SessionState | None = None, heartbeat: Any = None) -> Kept:
        """The session as it goes into a store; its state is what its verbs lead to, or as told, by one verb more."""
        if not self.seq:
            raise InvalidInput("session", "holds nothing that can be taken")
        told = None if heartbeat is None else stamp(heartbeat)
        self._close(state)
        if state is not None:
            self._reach(state, told or 1)
        return sealed(self._draft, self._session, self._namespace, self._state, told or self._newest)

    def more(self, head: Head) -> Kept:
        """What was made behind that head, and the session's row with it."""
        group = self._draft.group
        body, labels = group.body or head.row.body, head.row.labels if group.labels is None else group.labels
        row = replace(head.row, state=self._state.value, body=body, labels=labels)
        return Kept(row, group.entries, head.last.seq)


def sealed(draft: Draft, session: AgentSession, namespace: str, state: SessionState, heartbeat: int) -> Kept:
    """A draft as a parcel: its key and the ids of its entries follow from what it holds."""
    created = max(1, micros(session.created_at))
    seed = sha256("\0".join((namespace, session.session_id, str(created))).encode()).digest()
    row = Row(
        key_of(created, seed),
        namespace,
        session.session_id,
        session.agent_type,
        session.user_id,
        state.value,
        created,
        max(1, heartbeat),
    )
    draft.group.key = row.key
    entries = creation(row, draft).entries
    for entry in entries:
        seed = identity(seed, entry)
        entry.append_id = seed[:16]
    row.fence = entries[-1].fence
    return Kept(row, entries)


def key_of(created: int, seed: bytes) -> bytes:
    """A UUIDv7 of that time: it sorts among the keys of its day."""
    tail = bytearray(seed[:10])
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    return (created // 1000).to_bytes(6, "big") + bytes(tail)


def identity(before: bytes, entry: Entry) -> bytes:
    told = f"{int(entry.kind)}\0{entry.name}\0{entry.at}\0".encode()
    result = b"" if entry.recipe else entry.frame or b""  # a step's; a state is covered by its digest
    return sha256(before + told + entry.digest + (entry.note or b"") + result).digest()


def canonical(value: Any) -> bytes:
    """The same for equal values: in what order keys come is up to each database."""
    return codec.encode(_sorted(value), "data", 1 << 40, depth=-1)[0]


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        told = cast("Data", value)
        return {key: _sorted(told[key]) for key in sorted(told)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in cast("list[Any]", value)]
    return value


def stamp(at: Any) -> int:
    """Microseconds of a time as other tools write it: a datetime, ISO text, or seconds since 1970."""
    if isinstance(at, int | float) and not isinstance(at, bool):
        try:
            at = datetime.fromtimestamp(at, UTC)
        except (OverflowError, OSError, ValueError):
            raise InvalidInput("timestamp", f"{at!r} is no time") from None
    return max(1, micros(as_time(at, "timestamp")))
