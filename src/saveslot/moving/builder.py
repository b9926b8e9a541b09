"""Build a log from another program's session: the same keys and ids each time, so a second import recognises it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from saveslot import codec
from saveslot.errors import InvalidInput
from saveslot.moving.parcel import MemoryParcel
from saveslot.session.draft import Draft, beginning, creation
from saveslot.session.model import AgentSession
from saveslot.values.checks import Data, as_data, as_name, as_time
from saveslot.values.kinds import VERBS, Kind
from saveslot.values.lifecycle import ACTIVE, COMPLETED, FAILED, PAUSED, TRANSITIONS, SessionState
from saveslot.values.log import Entry, Head, Row, micros

# Lifecycle entries by name.
LIFECYCLE = {f"session_{kind.label}": kind for kind in VERBS if kind is not Kind.CHECKPOINT}
# The entry that is added if a session's history does not lead to its state.
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


class Builder:
    """Builds one session. A call that raises `InvalidInput` has changed nothing: the caller may continue.

    The log follows `lifecycle.TRANSITIONS`, whatever the other program allows. A lifecycle entry that is not allowed
    where it is becomes a checkpoint of that name; so does an end that is followed by more history.
    """

    def __init__(self, namespace: str, session: AgentSession, key: bytes | None = None) -> None:
        """`key`: the session's; None derives it from namespace, id and time of creation."""
        self._namespace = namespace
        self._session = session
        self._draft = draft_of(namespace, session, key)
        self._state = SessionState.ACTIVE
        self._end: _Verb | None = None  # not in the draft yet: the next entry decides whether it is one

    @classmethod
    def after(cls, row: Row, draft: Draft, state: SessionState) -> Builder:
        """A builder that continues a session that is here."""
        builder = cls(row.namespace, AgentSession(session_id=row.session_id))
        builder._draft, builder._state = draft, state
        return builder

    @property
    def data(self) -> Data:
        """The agent's newest state."""
        return {} if self._draft.at.data is None else self._draft.at.data.value()

    @property
    def seq(self) -> int:
        return self._draft.at.seq + (self._end is not None)

    def created(self, note: Data | None = None, at: Any = None) -> None:
        """The first entry, with context, metadata and labels."""
        session = self._session
        about = {"context": session.context, "metadata": session.metadata, "labels": session.labels}
        when = stamp(session.created_at if at is None else at)
        entry = self._draft.about(about, kind=Kind.CREATED, name="session_created", at=when)
        content = note or {"agent_type": session.agent_type, "user_id": session.user_id}
        entry.note = codec.note(as_data(content, "data"), "data")

    def checkpoint(self, name: Any, data: Any, metadata: Any, at: Any, *, seq: int = 0) -> None:
        """A checkpoint, or a lifecycle entry by its name; under its own number `seq`, if that is still ahead."""
        name, when, data = as_name(name, "name"), stamp(at), as_data(data, "data")
        metadata = as_data(metadata, "metadata")
        skipped = range(self.seq + 1, seq)
        kind = None if metadata else LIFECYCLE.get(name)
        if self._state in {COMPLETED, FAILED} and (kind is None or self._after(kind) is None):
            raise InvalidInput("session", f"is {self._state} here, but continued in its source; it was left unchanged")
        if kind is not None or skipped or self._end is not None:
            # Refuse before anything else is written.
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
        """Something follows the pending end. It was one only if it is a failure and the session was recovered."""
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

    def append(self, name: str, items: dict[str, Sequence[Any]], at: Any, put: Data | None = None) -> None:
        """A checkpoint that adds items to lists, and replaces the values in `put`."""
        when = stamp(at)
        self._go_on(None)
        edits = codec.Edits(put or {}, append={key: list(more) for key, more in items.items()})
        self._draft.changed(name, edits, None)
        entry = self._draft.group.entries[-1]
        entry.at, entry.sign = when, False

    def rest(self, at: Any) -> None:
        """Pause it, so that no worker takes it before a caller resumes it."""
        self._verb(_Verb(Kind.PAUSED, "session_paused", {"previous_state": ACTIVE.value}, stamp(at)))

    def settle(self, about: Data, state: SessionState | None, at: Any) -> None:
        """End of the history: update context, metadata, labels and state to those given, where they differ."""
        self._close(state)
        known = {} if self._draft.at.about is None else self._draft.at.about.value()
        changed = {**known, **about}
        when = 1 if at is None else stamp(at)
        if canonical(changed) != canonical(known):
            self._draft.about(changed, at=max(when, self._newest))
        if state is not None:
            self._reach(state, when)

    def _reach(self, state: SessionState, at: int) -> None:
        """Add one lifecycle entry if the history does not lead to this state."""
        if state is self._state:
            return
        kind, data = (Kind.RECOVERED, {}) if (self._state, state) == (FAILED, ACTIVE) else REACHED[state]
        if self._after(kind) is not state:
            raise InvalidInput("session", f"is {self._state} here, but {state} in its source; it was left unchanged")
        self._verb(_Verb(kind, f"session_{kind.label}", data, max(at, self._newest)))

    @property
    def _newest(self) -> int:
        """The time of the newest entry built here."""
        entries = self._draft.group.entries
        return entries[-1].at if entries else 1

    def _close(self, state: SessionState | None) -> None:
        """A pending end was one if it led to that state."""
        if self._end is not None and state in {None, self._after(self._end.kind)}:
            self._verb(self._end)
            self._end = None
        self._go_on(None)

    def parcel(self, state: SessionState | None = None, heartbeat: Any = None) -> MemoryParcel:
        """The finished session, in the state its entries lead to, or in `state` by one more entry."""
        if not self.seq:
            raise InvalidInput("session", "contains nothing to import")
        alive = None if heartbeat is None else stamp(heartbeat)
        self._close(state)
        if state is not None:
            self._reach(state, alive or 1)
        return parcel_of(self._draft, self._session, self._namespace, self._state, alive or self._newest)

    def more(self, head: Head) -> MemoryParcel:
        """The entries built after that head, and the session's row with them."""
        group = self._draft.group
        body, labels = group.body or head.row.body, head.row.labels if group.labels is None else group.labels
        row = replace(head.row, state=self._state.value, body=body, labels=labels)
        return MemoryParcel(row, group.entries, head.last.seq)


def draft_of(namespace: str, session: AgentSession, key: bytes | None = None) -> Draft:
    """The draft of a session that is built, with its key."""
    created = _created(session)
    return Draft(key or key_of(created, _seed(namespace, session, created)), beginning(), codec.MAX_STATE)


def parcel_of(draft: Draft, session: AgentSession, namespace: str, state: SessionState, heartbeat: int) -> MemoryParcel:
    """A draft as a parcel, with the ids of its entries derived from its content."""
    created = _created(session)
    seed = _seed(namespace, session, created)
    row = Row(
        draft.group.key,
        namespace,
        session.session_id,
        session.agent_type,
        session.user_id,
        state.value,
        created,
        max(1, heartbeat),
    )
    entries = creation(row, draft).entries
    for entry in entries:
        seed = identity(seed, entry)
        entry.append_id = seed[:16]
    row.fence = entries[-1].fence
    return MemoryParcel(row, entries)


def _created(session: AgentSession) -> int:
    return max(1, micros(session.created_at))


def _seed(namespace: str, session: AgentSession, created: int) -> bytes:
    return sha256("\0".join((namespace, session.session_id, str(created))).encode()).digest()


def key_of(created: int, seed: bytes) -> bytes:
    """A UUIDv7 of that time, so it sorts among the keys of its day."""
    tail = bytearray(seed[:10])
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    return (created // 1000).to_bytes(6, "big") + bytes(tail)


def identity(before: bytes, entry: Entry) -> bytes:
    header = f"{int(entry.kind)}\0{entry.name}\0{entry.at}\0".encode()
    result = b"" if entry.recipe else entry.frame or b""  # the result of a step; a state is covered by its digest
    return sha256(before + header + entry.digest + (entry.note or b"") + result).digest()


def canonical(value: Any) -> bytes:
    """The same bytes for equal values, whatever order a database returns keys in."""
    return codec.encode(_sorted(value), "data", codec.ANY_SIZE, depth=-1)[0]


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        data = cast("Data", value)
        return {key: _sorted(data[key]) for key in sorted(data)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in cast("list[Any]", value)]
    return value


def stamp(at: Any) -> int:
    """Microseconds since 1970 of a datetime, an ISO text, or seconds since 1970."""
    if isinstance(at, int | float) and not isinstance(at, bool):
        try:
            at = datetime.fromtimestamp(at, UTC)
        except (OverflowError, OSError, ValueError):
            raise InvalidInput("timestamp", f"{at!r} is not a time") from None
    return max(1, micros(as_time(at, "timestamp")))
