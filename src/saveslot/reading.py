"""What a manager shows: everything that reads and changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from saveslot import analysis, difference, glance, refs, transfer
from saveslot.auditing import Audit, nothing, trail
from saveslot.codec.parcel import Parcel
from saveslot.erasing import of_session
from saveslot.errors import Corrupt, InvalidInput
from saveslot.lifecycle import SessionState
from saveslot.log import Counts, Entry, Event, Head, Query, Sample, micros
from saveslot.lookup import Lookup, Overtaken, with_a_fresh_head
from saveslot.model import (
    DATA_KINDS,
    SHOWN_KINDS,
    AgentSession,
    Checkpoint,
    Data,
    Kind,
    SessionCheckpoint,
    as_count,
    as_label,
    as_labels,
    as_name,
    as_state,
    as_text,
    as_time,
)
from saveslot.recent import MAX_AGE, Level, Recent
from saveslot.sealing import SealedStore
from saveslot.slot import ABOUT_KINDS
from saveslot.timeline import merged, note_of

C = TypeVar("C", bound=SessionCheckpoint)

# What `get_session` loads of a history, as stored: thousands of checkpoints.
HISTORY_BYTES = 8 * 1024 * 1024
# A page of `find`, when the caller does not say; and one of our own, when all are wanted.
PAGE, WIDE_PAGE = 100, 1000
# Sessions whose entries `analytics` looks at, the newest ones: as many as can be read while somebody waits.
SAMPLE = 5_000
# How long one question to a store's feed waits before it is asked again.
WATCH_WAIT = 5.0
# Entries whose frames a walk or an export holds at a time.
STRIDE = 200


class Page(list[AgentSession]):
    """Some sessions, newest first. `next` goes into `find(after=…)`; None on the last page."""

    next: str | None = None


class SessionReader:
    """Sessions and their checkpoints in one namespace of one store, to look at."""

    def __init__(self, store: SealedStore, namespace: str) -> None:
        self.namespace = as_name(namespace, "namespace")
        self._store = store
        self._lookup = Lookup(store, namespace)
        self._recent = Recent(store)

    @with_a_fresh_head
    async def get_session(
        self,
        id: str,
        *,
        history: int | Literal["all"] | None = None,
        level: Level = "strong",
        max_age: float = MAX_AGE,
    ) -> AgentSession | None:
        """The session as of now, or None, with its newest checkpoints (8 MB as stored), decoded when looked at.

        `level="cached"`: as it was at most `max_age` seconds ago.
        """
        if history is not None and history != "all":
            history = as_count(history, "history")
        [head] = await self._recent.at(level, max_age).heads([(self.namespace, as_name(id, "session_id"))])
        if head is None:
            return None
        session = self._lookup.session(head)
        session.checkpoints = await self._checkpoints(head, history)
        return session

    async def get_active_sessions(
        self,
        agent_type: str | None = None,
        user_id: str | None = None,
        *,
        level: Level = "strong",
        max_age: float = MAX_AGE,
    ) -> list[AgentSession]:
        """All active sessions, newest first, without their histories."""
        found: list[AgentSession] = []
        after: str | None = None
        while True:
            page = await self.find(
                agent_type=agent_type,
                user_id=user_id,
                state=SessionState.ACTIVE,
                limit=WIDE_PAGE,
                after=after,
                level=level,
                max_age=max_age,
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
        orphaned: bool = False,
        limit: int = PAGE,
        after: str | None = None,
        level: Level = "strong",
        max_age: float = MAX_AGE,
    ) -> Page:
        """A page of sessions, newest first, without their histories; `orphaned`: those whose owners died.

        `level="cached"`: as it was at most `max_age` seconds ago.
        """
        query = self._query(agent_type, user_id, state, labels, created_after, created_before, text, prefix, orphaned)
        limit = as_count(limit, "limit", 1)
        store = self._recent.at(level, max_age)
        rows = await store.find(query, refs.place(after), limit + 1)  # one more, to know whether this page is the last
        more, rows = len(rows) > limit, rows[:limit]
        heads = await store.heads([row.key for row in rows])
        found = [head for head in heads if head is not None and _still(head, query)]
        page = Page(self._lookup.session(head, locked=True) for head in found)
        page.next = refs.cursor((rows[-1].created_at, rows[-1].key)) if more else None
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
        orphaned: bool = False,
        level: Level = "strong",
        max_age: float = MAX_AGE,
    ) -> int:
        """How many sessions `find` would show."""
        query = self._query(agent_type, user_id, state, labels, created_after, created_before, text, prefix, orphaned)
        return sum((await self._recent.at(level, max_age).count(query)).states.values())

    async def stats(self, *, level: Level = "strong", max_age: float = MAX_AGE) -> Data:
        """Sessions of this namespace by state and agent type; entries and bytes of the whole store."""
        return _counted(await self._recent.at(level, max_age).count(Query(namespace=self.namespace)))

    async def analytics(
        self,
        *,
        agent_type: str | None = None,
        user_id: str | None = None,
        state: SessionState | str | None = None,
        labels: dict[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        text: str | None = None,
        between: tuple[str, str] | None = None,
        bucket: timedelta | None = None,
        sample: int = SAMPLE,
    ) -> Data:
        """How these sessions do. Those by state and agent type are all counted; entries are the newest sessions'.

        `looked_at` says how many sessions and entries that were, and since when: at most `sample` sessions with ten
        entries each on average. `between` two names: the time from each of the first to the next of the other, in
        seconds. `bucket`: the piece of time that `rate` counts in. `failures` of the newest 1,000 that failed.
        """
        sample = as_count(sample, "sample", 1)
        if between is not None and (isinstance(between, str) or len(between) != 2):  # noqa: PLR2004
            raise InvalidInput("between", f"must be two names, not {between!r}")
        query = self._query(agent_type, user_id, state, labels, created_after, created_before, text, None, False)  # noqa: FBT003
        counts = await self._store.count(query, sample)
        found = counts.sample or Sample(0)
        reasons = Counter(
            "(sealed)" if self._store.is_locked(key) else _reason(entry, key) for key, entry in found.failures
        )
        return {
            **_counted(counts),
            **analysis.analysed(found, between, bucket),
            "failures": {
                "read": len(found.failures),
                "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
            },
        }

    @with_a_fresh_head
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
        limit = None if limit is None else as_count(limit, "limit")
        name = None if name is None else as_text(name, "name")
        first = -1 if since is None else micros(as_time(since, "since"))
        last = 1 << 62 if until is None else micros(as_time(until, "until"))
        head = await self._lookup.existing(id)
        newest = limit if since is None and until is None else None
        if all:
            entries = await self._store.entries(head.row.key, name=name, newest=newest, frames=False)
        else:
            entries = await self._lookup.shown(head, SHOWN_KINDS, name=name, newest=newest)
        chosen = [entry for entry in entries if first < entry.at <= last]
        chosen = chosen if limit is None else chosen[max(0, len(chosen) - limit) :]
        thinned = await self._lookup.hidden(head) if all else frozenset[int]()
        timeline = await self._lookup.timeline(head, chosen, thinned=thinned)
        return [timeline.checkpoint(entry, Checkpoint) for entry in chosen]

    async def walk(self, id: str) -> AsyncIterator[Checkpoint]:
        """Its history one by one, oldest first, however long: only some frames stand in memory at a time."""
        head = await self._lookup.existing(id)
        entries = await self._lookup.shown(head, SHOWN_KINDS)
        for start in range(0, len(entries), STRIDE):
            part = entries[start : start + STRIDE]
            while True:
                try:
                    timeline = await self._lookup.timeline(head, part)
                    break
                except Overtaken:  # those that were thinned meanwhile are left out
                    head = await self._lookup.existing(id)
                    gone = await self._lookup.hidden(head)
                    part = [entry for entry in part if entry.seq not in gone]
            for entry in part:
                yield timeline.checkpoint(entry, Checkpoint)

    async def get_checkpoint(self, id: str, ref: str | int = "latest") -> Checkpoint:
        """The entry that a ref names: a name (the newest of it), a number, an id, `latest` or `~n`; else `NotFound`."""
        return await self._lookup.checkpoint(id, ref)

    async def get_data(self, id: str, ref: str | int = "latest") -> Data:
        """The agent's data as of a ref, whatever kind of entry that is; `{}` before the first checkpoint."""
        head = await self._lookup.existing(id)
        if ref == "latest" and not head.last.data_seq:
            return {}
        return (await self._lookup.state_at(id, ref)).value()

    @with_a_fresh_head
    async def log(self, id: str, *, limit: int | None = None, all: bool = False) -> list[glance.LogLine]:
        """Its history without the states: kind, size and in a few words what changed, oldest first.

        `limit` keeps the newest; `all` shows every entry of the log.
        """
        limit = None if limit is None else as_count(limit, "limit")
        head = await self._lookup.existing(id)
        if all:
            entries = await self._store.entries(head.row.key, newest=limit, frames=False)
        else:
            entries = await self._lookup.shown(head, SHOWN_KINDS, newest=limit)
        before: list[Entry] = []
        if entries and entries[0].seq > 1:
            before = await self._lookup.shown(head, DATA_KINDS, within=(1, entries[0].seq - 1), newest=1)
        thinned = await self._lookup.hidden(head) if all else frozenset[int]()
        timeline = await self._lookup.timeline(head, before + entries, thinned=thinned)
        return list(glance.lines(head.row.session_id, entries, timeline, before[0] if before else None, thinned))

    async def diff(self, id: str, a: str | int, b: str | int) -> list[Data]:
        """The RFC 6902 patch from the agent's data at `a` to that at `b`; either may be another session's by its id."""
        before, after = await self._lookup.state_at(id, a), await self._lookup.state_at(id, b)
        return difference.diff_texts(before.texts, after.texts, tagged=before.tagged or after.tagged)

    @with_a_fresh_head
    async def summary(self, id: str) -> Data:
        """How many checkpoints, under which names, the first and the last, and how long it took."""
        head = await self._lookup.existing(id)
        entries = await self._lookup.shown(head, SHOWN_KINDS)
        ends = entries[:1] + entries[-1:]
        timeline = await self._lookup.timeline(head, ends)
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

    async def export(self, id: str, *, plain: bool = False) -> str:
        """The session as JSON text: its first state, then what changed. `import_session` reads it.

        A sealed session's export is sealed too, unless it is asked for `plain`.
        """
        return "".join([part async for part in self.export_parts(id, plain=plain)])

    async def export_parts(self, id: str, *, plain: bool = False) -> AsyncIterator[str]:
        """The same text in pieces, for sessions that should not stand in memory whole."""
        head = await self._lookup.existing(id)
        parts = self._export(head)
        keyring = None if plain else self._store.keyring_of(head.row.key)
        if keyring is None:
            async for part in parts:
                yield part
            return
        sealed = Parcel(keyring, self.namespace)
        yield transfer.sealed_opening(self._lookup.session(head), sealed.head)
        async for part in parts:
            yield sealed.part(part)
        yield sealed.part("", last=True) + transfer.CLOSING

    async def _export(self, head: Head) -> AsyncIterator[str]:
        session = self._lookup.session(head)
        key, last = head.row.key, head.last.seq
        thinned = await self._lookup.hidden(head)
        yield transfer.opening(session)
        writer = transfer.Exporter(session.session_id)
        for first in range(1, last + 1, STRIDE):
            entries = await self._store.entries(key, [(first, min(last, first + STRIDE - 1))], frames=False)
            while True:
                try:
                    timeline = await self._lookup.timeline(head, (e for e in entries if e.seq not in thinned))
                    break
                except Overtaken:
                    head = await self._lookup.existing(session.session_id)
                    thinned = await self._lookup.hidden(head)
            abouts = await self._lookup.timeline(head, entries, ABOUT_KINDS)
            steps = merged((e.seq, e.seq) for e in entries if e.kind is Kind.STEP_FINISHED)
            results = {e.seq: e.frame for e in await self._store.entries(key, steps)} if steps else {}
            for entry in entries:
                entry.frame = results.get(entry.seq)
                gone = entry.seq in thinned
                yield writer.line(entry, None if gone else timeline if entry.kind in DATA_KINDS else abouts)
                await asyncio.sleep(0)  # a long export must not keep others from running
        yield transfer.CLOSING

    async def audit(self, id: str, *, link: str | None = None) -> Audit:
        """Who did what when, without content: of the newest session of that id, also when it was deleted or erased.

        It is verified: `misfit` names the first entry that was changed, removed, inserted or moved in the store.
        `link`: the `head` of an earlier audit, kept elsewhere, which must still be there.
        """
        head = await self._lookup.head(id)
        rows = [head.row] if head is not None else await of_session(self._store, self.namespace, id)
        if not rows:
            raise nothing(id, self.namespace)
        entries = await self._store.stored.stored.entries(rows[0].key, frames=False)
        return trail(rows[0], entries, link)

    async def watch(self, id: str | None = None, after: str | int | None = None) -> AsyncIterator[Event]:
        """What is appended from now on (or behind `after`), by anyone, in commit order: no gap, no repeat.

        `after` is an event's `cursor`; for one session it may be a seq (0: from its beginning).
        """
        key: bytes | None = None
        seq = 0
        cursor = after if isinstance(after, str) else None
        after = after if after is None or isinstance(after, str) else as_count(after, "after")
        if id is not None:
            head = await self._lookup.existing(id)
            key = head.row.key
            if isinstance(after, int):
                cursor, seq = "0", after
        elif isinstance(after, int):
            cursor = str(after)
        while True:
            events, cursor = await self._store.events(self.namespace, cursor, key, wait=WATCH_WAIT)
            for event in events:
                if event.seq > seq:
                    yield event

    async def _checkpoints(self, head: Head, history: int | Literal["all"] | None) -> list[SessionCheckpoint]:
        entries = await self._lookup.shown(head, SHOWN_KINDS)
        if history is None:
            chosen, room = len(entries), HISTORY_BYTES
            while chosen and room > 0:
                chosen -= 1
                room -= entries[chosen].size
        elif history == "all":
            chosen = 0
        else:
            chosen = max(0, len(entries) - history)
        since = entries[chosen].seq if chosen < len(entries) else head.last.seq + 1
        timeline = await self._lookup.timeline(head, entries[chosen:], since=since)
        return [timeline.checkpoint(entry, SessionCheckpoint) for entry in entries]

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
        orphaned: bool,  # noqa: FBT001  (in its order, from two callers)
    ) -> Query:
        return Query(
            namespace=self.namespace,
            agent_type=None if agent_type is None else as_label(agent_type, "agent_type"),
            user_id=None if user_id is None else as_label(user_id, "user_id"),
            state=None if state is None else as_state(state).value,
            labels=as_labels(labels),
            created_after=None if created_after is None else micros(as_time(created_after, "created_after")),
            created_before=None if created_before is None else micros(as_time(created_before, "created_before")),
            text=None if text is None else as_text(text, "text"),
            prefix=None if prefix is None else as_text(prefix, "prefix"),
            orphan_for=0 if orphaned else None,
        )


def _counted(counts: Counts) -> Data:
    return {
        "sessions": sum(counts.states.values()),
        "by_state": {state.value: counts.states.get(state.value, 0) for state in SessionState},
        "by_agent_type": dict(sorted(counts.agent_types.items())),
        "held": counts.held,
        "orphaned": counts.orphaned,
        "entries": counts.entries,
        "stored_bytes": counts.stored_bytes,
    }


def _reason(entry: Entry, key: bytes) -> str:
    """Why a session failed, in the words of who failed it."""
    try:
        told = note_of(entry, f"{key.hex()}:{entry.seq}")
    except Corrupt:
        return "(damaged)"
    return str(told.get("error", ""))


def _still(head: Head, query: Query) -> bool:
    """False for one that changed between being found and being read."""
    return query.state in {None, head.row.state} and query.labels.items() <= head.row.labels.items()
