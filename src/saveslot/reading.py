"""What a manager shows: everything that reads and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal, TypeVar

from saveslot import codec, difference, glance, refs, transfer
from saveslot.errors import InvalidInput, NotFound
from saveslot.lifecycle import SessionState
from saveslot.log import Entry, Event, Head, Query, micros, moment
from saveslot.model import (
    DATA_KINDS,
    HIDING_KINDS,
    SHOWN_KINDS,
    AgentSession,
    Checkpoint,
    Data,
    Kind,
    Seen,
    SessionCheckpoint,
    as_name,
    as_state,
    as_time,
)
from saveslot.slot import ABOUT, ABOUT_KINDS
from saveslot.stores import Store
from saveslot.timeline import Range, Timeline, needed, shown

C = TypeVar("C", bound=SessionCheckpoint)

# What `get_session` loads of a history, as stored: thousands of checkpoints.
HISTORY_BYTES = 8 * 1024 * 1024
# A page of `find`, when the caller does not say; and one of our own, when all are wanted.
PAGE, WIDE_PAGE = 100, 1000
# How long one question to a store's feed waits before it is asked again.
WATCH_WAIT = 5.0
# Entries whose frames a walk or an export holds at a time.
STRIDE = 200


class Page(list[AgentSession]):
    """Some sessions, newest first. `next` goes into `find(after=…)`; None on the last page."""

    next: str | None = None


class SessionReader:
    """Sessions and their checkpoints in one namespace of one store, to look at."""

    def __init__(self, store: Store, namespace: str) -> None:
        self.namespace = as_name(namespace, "namespace")
        self._store = store

    async def get_session(self, id: str, *, history: int | Literal["all"] | None = None) -> AgentSession | None:
        """The session as of now, or None, with its newest checkpoints (8 MB as stored), decoded when looked at."""
        head = await self._head(id)
        if head is None:
            return None
        session = self._session(head)
        session.checkpoints = await self._checkpoints(head, history)
        return session

    async def get_active_sessions(
        self, agent_type: str | None = None, user_id: str | None = None
    ) -> list[AgentSession]:
        """All active sessions, newest first, without their histories."""
        found: list[AgentSession] = []
        after: str | None = None
        while True:
            page = await self.find(
                agent_type=agent_type, user_id=user_id, state=SessionState.ACTIVE, limit=WIDE_PAGE, after=after
            )
            found += page
            after = page.next
            if after is None:
                return found

    async def find(
        self,
        *,
        agent_type: str | None = None,
        user_id: str | None = None,
        state: SessionState | str | None = None,
        labels: dict[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        text: str | None = None,
        prefix: str | None = None,
        limit: int = PAGE,
        after: str | None = None,
    ) -> Page:
        """A page of sessions, newest first, without their histories."""
        query = self._query(agent_type, user_id, state, labels, created_after, created_before, text, prefix)
        if limit < 1:
            raise InvalidInput("limit", "must be 1 or more")
        rows = await self._store.find(query, refs.place(after), limit)
        heads = await self._store.heads([row.key for row in rows])
        page = Page(self._session(head) for head in heads if head is not None and _still(head, query))
        page.next = refs.cursor((rows[-1].created_at, rows[-1].key)) if len(rows) == limit else None
        return page

    async def count(
        self,
        *,
        agent_type: str | None = None,
        user_id: str | None = None,
        state: SessionState | str | None = None,
        labels: dict[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        text: str | None = None,
        prefix: str | None = None,
    ) -> int:
        """How many sessions `find` would show."""
        query = self._query(agent_type, user_id, state, labels, created_after, created_before, text, prefix)
        return sum((await self._store.count(query)).states.values())

    async def stats(self) -> Data:
        """Sessions of this namespace by state and agent type; entries and bytes of the whole store."""
        counts = await self._store.count(Query(namespace=self.namespace))
        return {
            "sessions": sum(counts.states.values()),
            "by_state": {state.value: counts.states.get(state.value, 0) for state in SessionState},
            "by_agent_type": dict(sorted(counts.agent_types.items())),
            "entries": counts.entries,
            "stored_bytes": counts.stored_bytes,
        }

    async def history(
        self,
        id: str,
        *,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        all: bool = False,
    ) -> list[Checkpoint]:
        """Its checkpoints, rollbacks and lifecycle entries, oldest first, decoded when looked at.

        `since` is exclusive, `until` inclusive, `limit` keeps the newest; `all` shows every entry of the log.
        """
        if limit is not None and limit < 0:
            raise InvalidInput("limit", "must not be negative")
        first = -1 if since is None else micros(as_time(since, "since"))
        last = 1 << 62 if until is None else micros(as_time(until, "until"))
        head = await self._existing(id)
        newest = limit if since is None and until is None else None
        if all:
            entries = await self._store.entries(head.row.key, name=name, newest=newest, frames=False)
        else:
            entries = await self._shown(head, SHOWN_KINDS, name=name, newest=newest)
        chosen = [entry for entry in entries if first < entry.at <= last]
        chosen = chosen if limit is None else chosen[max(0, len(chosen) - limit) :]
        timeline = await self._timeline(head, needed(chosen))
        return [timeline.checkpoint(entry, Checkpoint) for entry in chosen]

    async def walk(self, id: str) -> AsyncIterator[Checkpoint]:
        """Its history one by one, oldest first, however long: only some frames stand in memory at a time."""
        head = await self._existing(id)
        entries = await self._shown(head, SHOWN_KINDS)
        for start in range(0, len(entries), STRIDE):
            part = entries[start : start + STRIDE]
            timeline = await self._timeline(head, needed(part))
            for entry in part:
                yield timeline.checkpoint(entry, Checkpoint)

    async def get_checkpoint(self, id: str, ref: str | int = "latest") -> Checkpoint:
        """The entry that a ref names: a name (the newest of it), a number, an id, `latest` or `~n`; else `NotFound`."""
        head = await self._existing(id)
        entry = await self._entry(head, ref)
        timeline = await self._timeline(head, needed([entry]))
        return timeline.checkpoint(entry, Checkpoint)

    async def get_data(self, id: str, ref: str | int = "latest") -> Data:
        """The agent's data as of a ref, whatever kind of entry that is; `{}` before the first checkpoint."""
        head = await self._existing(id)
        if ref == "latest" and not head.last.data_seq:
            return {}
        return (await self._state_at(id, ref)).value()

    async def log(self, id: str, *, limit: int | None = None, all: bool = False) -> list[glance.LogLine]:
        """Its history without the states: kind, size and in a few words what changed, oldest first.

        `limit` keeps the newest; `all` shows every entry of the log.
        """
        if limit is not None and limit < 0:
            raise InvalidInput("limit", "must not be negative")
        head = await self._existing(id)
        if all:
            entries = await self._store.entries(head.row.key, newest=limit, frames=False)
        else:
            entries = await self._shown(head, SHOWN_KINDS, newest=limit)
        before: list[Entry] = []
        if entries and entries[0].seq > 1:
            before = await self._shown(head, DATA_KINDS, within=(1, entries[0].seq - 1), newest=1)
        timeline = await self._timeline(head, needed(e for e in before + entries if e.kind in DATA_KINDS))
        return list(glance.lines(head.row.session_id, entries, timeline, before[0] if before else None))

    async def diff(self, id: str, a: str | int, b: str | int) -> list[Data]:
        """The RFC 6902 patch from the agent's data at `a` to that at `b`; either may be another session's by its id."""
        before, after = await self._state_at(id, a), await self._state_at(id, b)
        return difference.diff_texts(before.texts, after.texts, tagged=before.tagged or after.tagged)

    async def summary(self, id: str) -> Data:
        """How many checkpoints, under which names, the first and the last, and how long it took."""
        head = await self._existing(id)
        entries = await self._shown(head, SHOWN_KINDS)
        ends = entries[:1] + entries[-1:]
        timeline = await self._timeline(head, needed(ends))
        told = [timeline.checkpoint(entry, Checkpoint).to_dict() for entry in ends] or [None, None]
        names: dict[str, int] = {}
        for entry in entries:
            names[entry.name] = names.get(entry.name, 0) + 1
        return {
            "session_id": head.row.session_id,
            "state": head.row.state,
            "total_count": len(entries),
            "unique_names": len(names),
            "names": names,
            "first_checkpoint": told[0],
            "last_checkpoint": told[1],
            "duration_seconds": (ends[1].at - ends[0].at) / 1_000_000 if ends else 0.0,
            "stored_bytes": sum(entry.size for entry in entries),
        }

    async def export(self, id: str) -> str:
        """The session as JSON text: its first state, then what changed. `import_session` reads it."""
        return "".join([part async for part in self.export_parts(id)])

    async def export_parts(self, id: str) -> AsyncIterator[str]:
        """The same text in pieces, for sessions that should not stand in memory whole."""
        head = await self._existing(id)
        session = self._session(head)
        key, last = head.row.key, head.last.seq
        yield transfer.opening(session)
        writer = transfer.Exporter(session.session_id)
        for first in range(1, last + 1, STRIDE):
            entries = await self._store.entries(key, [(first, min(last, first + STRIDE - 1))], frames=False)
            timeline = await self._timeline(head, needed(e for e in entries if e.kind in DATA_KINDS))
            abouts = await self._timeline(head, needed(e for e in entries if e.kind not in DATA_KINDS), data=False)
            for entry in entries:
                yield writer.line(entry, timeline if entry.kind in DATA_KINDS else abouts)
                await asyncio.sleep(0)  # a long export must not keep others from running
        yield transfer.CLOSING

    async def watch(self, id: str | None = None, after: str | int | None = None) -> AsyncIterator[Event]:
        """What is appended from now on (or behind `after`), by anyone, in commit order: no gap, no repeat.

        `after` is an event's `cursor`; for one session it may be a seq (0: from its beginning).
        """
        key: bytes | None = None
        seq = 0
        cursor = after if isinstance(after, str) else None
        if id is not None:
            head = await self._existing(id)
            key = head.row.key
            if isinstance(after, int):
                cursor, seq = "0", after
        elif isinstance(after, int):
            cursor = str(after)
        if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
            raise InvalidInput("after", f"{after!r} is not a cursor; take `cursor` of an event")
        while True:
            events, cursor = await self._store.events(self.namespace, cursor, key, wait=WATCH_WAIT)
            for event in events:
                if event.seq > seq:
                    yield event

    # How it is found

    async def _head(self, session_id: str) -> Head | None:
        [head] = await self._store.heads([(self.namespace, as_name(session_id, "session_id"))])
        return head

    async def _existing(self, session_id: str) -> Head:
        head = await self._head(session_id)
        if head is None:
            raise unknown(session_id, self.namespace)
        return head

    async def _entry(self, head: Head, ref: str | int) -> Entry:
        """The entry that a ref names, without its frame."""
        session_id = head.row.session_id
        match refs.parse(ref, session_id):
            case refs.Number(seq):
                found = await self._shown(head, None, within=(seq, seq))
            case refs.Latest(0) if head.last.kind in DATA_KINDS:
                found = [head.last]
            case refs.Latest(back):
                found = await self._shown(head, DATA_KINDS, newest=back + 1)
                found = found if len(found) == back + 1 else []
            case refs.Named(name):
                found = await self._shown(head, SHOWN_KINDS, name=name, newest=1)
        if not found:
            raise NotFound(
                f"session {session_id} has no checkpoint {ref!r}; history() and `saveslot log` list what it has"
            )
        return found[0]

    async def _data_entry(self, head: Head, entry: Entry) -> Entry | None:
        """The entry that holds the agent's data as of `entry`; None before the first checkpoint."""
        if entry.kind in DATA_KINDS:
            return entry
        if not entry.data_seq:
            return None
        found = await self._shown(head, None, within=(entry.data_seq, entry.data_seq))
        if not found:
            where = f"{head.row.session_id}:{entry.seq}"
            raise NotFound(f"the agent's data as of {where} was thinned or cleared; history() lists what is left")
        return found[0]

    async def _shown(
        self,
        head: Head,
        kinds: frozenset[Kind] | None,
        *,
        within: Range | None = None,
        name: str | None = None,
        newest: int | None = None,
    ) -> list[Entry]:
        """Entries as of that head that nothing hides, without their frames; `newest` the last n of them."""
        key, session_id, last = head.row.key, head.row.session_id, head.last.seq
        reach = within or (1, last)
        if kinds is not None and within is name is newest is None:
            found = await self._store.entries(key, [reach], kinds=kinds | HIDING_KINDS, frames=False)
            return shown([e for e in found if e.kind in kinds], found, session_id)
        found = await self._store.entries(key, [reach], kinds=kinds, name=name, newest=newest, frames=False)
        if not found or found[0].seq >= last:
            return found
        # Only a later entry can hide one.
        hiding = await self._store.entries(key, [(found[0].seq + 1, last)], kinds=HIDING_KINDS, frames=False)
        left = shown(found, hiding, session_id)
        if newest is not None and len(left) < len(found):
            left = await self._shown(head, kinds, within=reach, name=name)
            left = left[max(0, len(left) - newest) :]
        return left

    async def _state_at(self, session_id: str, ref: str | int) -> codec.State:
        """The agent's data as of a ref; one that reads as another session's checkpoint id is looked up there."""
        other = refs.elsewhere(ref)
        if other is not None and other[0] != session_id and (head := await self._head(other[0])) is not None:
            ref = other[1]
        else:
            head = await self._existing(session_id)
        data = await self._data_entry(head, await self._entry(head, ref))
        if data is None:
            return codec.State()
        return (await self._timeline(head, needed([data]))).state(data)

    async def _timeline(self, head: Head, ranges: list[Range], *, data: bool = True, since: int = 0) -> Timeline:
        kinds = DATA_KINDS if data else ABOUT_KINDS
        frames = await self._store.entries(head.row.key, ranges, kinds=kinds) if ranges else []
        return Timeline(head.row.session_id, frames, since)

    async def _checkpoints(self, head: Head, history: int | Literal["all"] | None) -> list[SessionCheckpoint]:
        entries = await self._shown(head, SHOWN_KINDS)
        if history is None:
            chosen, room = len(entries), HISTORY_BYTES
            while chosen and room > 0:
                chosen -= 1
                room -= entries[chosen].size
        elif history == "all":
            chosen = 0
        else:
            chosen = max(0, len(entries) - history)
        wanted = (entry for entry in entries[chosen:] if entry.kind in DATA_KINDS)
        since = entries[chosen].seq if chosen < len(entries) else head.last.seq + 1
        timeline = await self._timeline(head, needed(wanted), since=since)
        return [timeline.checkpoint(entry, SessionCheckpoint) for entry in entries]

    def _session(self, head: Head) -> AgentSession:
        row, last = head.row, head.last
        told = codec.read_note(row.body)
        texts = {part: codec.encode(told[part], part)[0] for part in ABOUT}
        session = AgentSession(
            row.session_id,
            row.agent_type,
            row.user_id,
            SessionState(row.state),
            moment(row.created_at),
            moment(max(row.heartbeat, last.alive)),
            told["context"],
            told["metadata"],
            told["labels"],
        )
        session.seen = Seen(row.key, last.seq, last.append_id, texts)
        return session

    def _query(
        self,
        agent_type: str | None,
        user_id: str | None,
        state: SessionState | str | None,
        labels: dict[str, str] | None,
        created_after: datetime | None,
        created_before: datetime | None,
        text: str | None,
        prefix: str | None,
    ) -> Query:
        return Query(
            namespace=self.namespace,
            agent_type=agent_type,
            user_id=user_id,
            state=None if state is None else as_state(state).value,
            labels=labels or {},
            created_after=None if created_after is None else micros(as_time(created_after, "created_after")),
            created_before=None if created_before is None else micros(as_time(created_before, "created_before")),
            text=text,
            prefix=prefix,
        )


def _still(head: Head, query: Query) -> bool:
    """False for one that changed between being found and being read."""
    return query.state in {None, head.row.state} and query.labels.items() <= head.row.labels.items()


def unknown(session_id: str, namespace: str) -> NotFound:
    return NotFound(f"no session {session_id} in namespace {namespace}; find() and `saveslot ls` list what is there")
