"""SessionManager: what a reader shows, and everything that writes. Load, decide, append."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import accumulate
from typing import Any, Self
from weakref import WeakSet, WeakValueDictionary

from msgspec.structs import replace

from saveslot import codec, erasing, rewrapping, transfer
from saveslot.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    InvalidInput,
    InvalidTransition,
    SaveslotError,
)
from saveslot.garbage import SessionCollector
from saveslot.ids import fresh_id, fresh_key
from saveslot.keeper import Chores, Keeper
from saveslot.lifecycle import FAILED, TRANSITIONS, SessionState, follow
from saveslot.log import Entry, Group, Head, Outcome, Place, Query, Row, Verdict, as_age, micros, moment
from saveslot.lookup import Overtaken, anew, unknown, with_a_fresh_head
from saveslot.model import (
    BORN,
    DATA_KINDS,
    SHOWN_KINDS,
    VERBS,
    AgentSession,
    Checkpoint,
    Data,
    Kind,
    Seen,
    SessionCheckpoint,
    Staged,
    as_data,
    as_labels,
    as_name,
    as_span,
    born,
    folded,
    now,
    stand,
)
from saveslot.recent import MAX_AGE, Level, Recent
from saveslot.retention import DEFAULT, OWN, Retention, Rules, as_rule
from saveslot.saving import Save, drafted
from saveslot.sealing import SealedStore
from saveslot.settling import settled
from saveslot.slot import ABOUT, Draft, Point, Slot, beginning, creation, refusal
from saveslot.slots import Doubts, Slots
from saveslot.stores import Store
from saveslot.stores.chained import ChainedStore
from saveslot.stores.memory import MemoryStore
from saveslot.stores.metered import metered
from saveslot.timeline import shown

# While someone holds a session these are the owner's alone.
OWNERS_ALONE = DATA_KINDS | {Kind.COMPLETED}
# How many sessions a sweep fails in one transaction.
SWEEP_BATCH = 200


class SessionManager(SessionCollector):
    """Sessions and their checkpoints in one namespace of one store. In memory, unless it is given a store.

    `db_pool` is an asyncpg pool of the caller's, `schema` the PostgreSQL schema with the tables; `redis_client`, an
    asyncio client of a Valkey, goes in front of it. Both are used and never closed.
    """

    def __init__(
        self,
        redis_client: Any = None,
        db_pool: Any = None,
        namespace: str = "default",
        session_ttl_hours: float = 24,
        *,
        schema: str = "saveslot",
        store: Store | None = None,
        encryption_key: codec.Keys | None = None,
        max_state_bytes: int = codec.MAX_STATE,
        worker_beat: float = 5.0,
        worker_ttl: float = 20.0,
        max_block: float = 300.0,
        retention: Rules = DEFAULT,
    ) -> None:
        ttl = as_span(session_ttl_hours, "session_ttl_hours") * 3600
        if db_pool is not None:
            from saveslot.stores.postgres import PostgresStore  # imported when it is used

            store = PostgresStore.on(db_pool, schema)
        if redis_client is not None and store is None:
            from saveslot.stores.valkey import ValkeyStore

            store = ValkeyStore.on(redis_client, ttl)
        elif redis_client is not None and store is not None:
            from saveslot.stores.tiered import TieredStore

            store = TieredStore(store, redis_client, ttl)
        keyring = None if encryption_key is None else codec.Keyring.of(encryption_key)
        self._telling = metered(store or MemoryStore())
        super().__init__(
            SealedStore(ChainedStore(self._telling), keyring),
            namespace,
            max_state_bytes,
            worker_beat=worker_beat,
            worker_ttl=worker_ttl,
            max_block=max_block,
            retention=retention,
        )
        self.session_ttl_hours = session_ttl_hours
        self._worker_beat = worker_beat
        self.keeper = self._keeper()
        self._births = Doubts()
        self._deaths = Doubts()
        self._deleting = WeakValueDictionary[str, asyncio.Lock]()
        _managers.add(self)

    def _keeper(self) -> Keeper:
        chores = Chores(self.cleanup_stale_sessions, self.thin_all, self._collect)
        return Keeper(self, chores, self._worker_beat, self._store)

    def _forked(self) -> None:
        """In the child: the tasks of its parent are not there, so nobody may wait for one, nor for what it has taken.
        What was held stays the parent's, unless the store was copied too.
        """
        self.keeper = self._keeper()
        self.running.clear()
        self._recent, self._slots = Recent(self._store), Slots()
        self._starting = asyncio.Lock()
        self._deleting.clear()
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None and not self._store.forks:
            lifeline.forked()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish the writes under way, then let the store go. What is still held is an orphan at once.

        In a forked child nothing happens to what its parent opened.
        """
        await self.keeper.stop(let_go=False)
        if self.running:
            await asyncio.wait(self.running)
        await self._leave()
        self._tell_holders()
        await self._store.close()

    async def stats(self, *, level: Level = "strong", max_age: float = MAX_AGE) -> Data:
        """Sessions of this namespace by state, agent type and owner; the whole store; this worker and its keeper."""
        return {**await super().stats(level=level, max_age=max_age), "worker": self.worker, "keeper": self.keeper.stats}

    async def metrics(self) -> Data:
        """What this manager and its tiers did since it was opened: counts, and how long calls took. Asks nobody."""
        slots, recent = self._slots, self._recent
        memory = {
            "sessions": len(slots),
            "bytes": slots.weight,
            "hits": slots.hits,
            "misses": slots.misses,
            "cached_hits": recent.hits,
            "cached_misses": recent.misses,
        }
        return {"memory": memory, **self._telling.metrics(), "worker": self.worker}

    # Sessions

    @settled
    async def create_session(
        self,
        agent_type: str,
        user_id: str = "",
        context: Data | None = None,
        metadata: Data | None = None,
        *,
        labels: dict[str, str] | None = None,
        session_id: str | None = None,
        retention: Retention | None = None,
    ) -> AgentSession:
        """A new session, active, with its first entry. `AlreadyExists` when the id is taken in this namespace.

        `retention` is its own rule, kept with it; None: that of its agent type or of the manager.
        """
        own: Data = {} if retention is None else {OWN: as_rule(retention).to_dict()}
        session = AgentSession(
            session_id=fresh_id() if session_id is None else session_id,
            agent_type=agent_type,
            user_id=user_id,
            context=as_data(context, "context"),
            metadata=as_data(metadata, "metadata") | own,
            labels=as_labels(labels),
        )
        return await self._create(session, self._born(session))

    def _born(self, session: AgentSession) -> Draft:
        """The first entry of a new session."""
        draft = Draft(fresh_key(), beginning(), self._limit)
        entry = draft.about(_about(session), kind=Kind.CREATED, name="session_created")
        entry.note = codec.note({"agent_type": session.agent_type, "user_id": session.user_id}, "session")
        entry.sign = True
        return draft

    async def _create(self, session: AgentSession, draft: Draft, row: Row | None = None) -> AgentSession:
        row = row or Row(draft.group.key, self.namespace, session.session_id, session.agent_type, session.user_id)
        draft.group = creation(row, draft)
        draft.request = _asked(draft.group)
        doubtful = self._births.get(session.session_id)
        if doubtful is not None and doubtful.request == draft.request:
            draft = doubtful  # the same once more: should it have landed, it is ours
        slot = Slot(self._store, session.session_id, draft.group.key, draft.at, self._limit)
        self._births.begin(session.session_id, draft)
        try:
            verdict = await slot.append(draft)
        except Conflict as exc:
            self._births.end(session.session_id, draft)
            hint = "use it (get_session), or choose another id"
            raise AlreadyExists(
                f"session {session.session_id} exists already in namespace {self.namespace}; {hint}", head=exc.head
            ) from None
        self._births.landed(session.session_id, draft)
        self._deaths.end(session.session_id)
        session.created_at = moment(row.created_at or verdict.times[0])
        session.last_heartbeat = moment(verdict.heartbeat)
        made = [entry for entry in draft.group.entries if entry.kind in SHOWN_KINDS]
        made = shown(made, draft.group.entries, session.session_id)
        session.checkpoints = [draft.landed(entry, SessionCheckpoint) for entry in made]
        session.seen = _seen(slot, session)
        known = self._slots.get(session.session_id)
        if known is None or known.key != slot.key:  # else somebody wrote behind it before its answer came
            self._slots.add(slot)
        return session

    @settled
    @with_a_fresh_head
    async def update_session(self, session: AgentSession) -> AgentSession:
        """Append what was staged and what changed in context, metadata and labels, in one durable step."""
        async with self._turn(_value(session).session_id) as slot:
            await self._settle(slot, session)
            seen = await self._check_seen(session, slot)
            _check_set(session, seen)
            staged = list(session.staged)
            if slot.at.lease is not None and any(item.kind in OWNERS_ALONE for item in staged):
                await self._check_free(slot)
            state = slot.at.state
            for item in staged:
                state = follow(state, VERBS[item.kind])
            about = _about(session)
            changed = {part: codec.encode(about[part], part, self._limit)[0] for part in about} != seen.about
            if changed:
                await slot.load_about()
            if any(item.kind is Kind.CHECKPOINT for item in staged):
                await slot.load_data()
            draft = slot.draft()
            draft.author = session
            # How long ago each was staged, as 0 or less: two clocks may differ, but not over a span.
            ages = [min(0, micros(item.checkpoint.timestamp) - micros(now())) for item in staged]
            ages = list(accumulate(ages, max))  # none is shown as older than the one before it
            if changed:
                draft.about(about, at=ages[0] if ages else 0)
            for item, at in zip(staged, ages, strict=True):
                cp = item.checkpoint
                if item.kind is Kind.CHECKPOINT:
                    draft.checkpoint(cp.name, cp.data, cp.metadata, at=at, append_id=item.append_id)
                else:
                    draft.lifecycle(item.kind, cp.name, cp.data, at=at, append_id=item.append_id)
            if draft.group.entries:
                draft.become(state)
                draft.group.heartbeat = slot.at.lease is None  # only its owner says that a session lives
                _took(session, slot, draft, await self._append(slot, draft))
            else:
                await self._beat(session, slot)
            return session

    async def _beat(self, session: AgentSession, slot: Slot) -> None:
        [head] = await self._store.heads([slot.key])
        if head is None or head.last.append_id != slot.at.append_id:
            raise self._overtaken(slot, head, slot.at.seq)
        [beaten] = await self._store.beat([(slot.key, None)])
        if beaten:
            session.last_heartbeat = moment(beaten)

    async def refresh(self, session: AgentSession) -> AgentSession:
        """Take in what others wrote, in place. What was staged stays staged, and so do your changes to its dicts."""
        head = await self._met(_value(session))
        fresh = self._lookup.session(head)
        stored = await self._checkpoints(head, None)
        seen, base = 0, dict[str, bytes]()
        if session.seen is not None:
            seen, base = session.seen.seq, session.seen.about
        if session.staged:  # what landed while nobody heard of it is staged no more
            news = await self._store.entries(head.row.key, [(seen + 1, head.last.seq)], frames=False)
            landed = {entry.append_id for entry in news}
            session.staged = [item for item in session.staged if item.append_id not in landed]
        for part in ABOUT:
            before: Data = codec.decode(base[part], tagged=True) if part in base else {}
            setattr(session, part, _merged(before, getattr(session, part), getattr(fresh, part)))
        session.agent_type, session.user_id = fresh.agent_type, fresh.user_id
        session.created_at, session.last_heartbeat = fresh.created_at, fresh.last_heartbeat
        session.seen = fresh.seen
        session.checkpoints = stored + [item.checkpoint for item in session.staged]
        stand(session, fresh.state)
        return session

    async def _met(self, session: AgentSession) -> Head:
        """The head of a session value's log, for its manager too."""
        slot = self._slots.get(session.session_id)
        if slot is None:
            head = await self._lookup.existing(session.session_id)
        else:
            async with slot.lock:
                with suppress(Conflict):  # a write in doubt lost; what was staged still is
                    await self._settle(slot, session)
                head = await self._lookup.existing(session.session_id)
                self._slots.forget(slot)
        if session.seen is not None and session.seen.key != head.row.key:
            raise anew(session.session_id)
        return head

    @settled
    async def delete_session(self, id: str) -> bool:
        """Soft: its log stays as the audit trail, behind a tombstone. True if it was there."""
        lock = self._deleting.setdefault(as_name(id, "session_id"), asyncio.Lock())
        async with lock:
            while (deleted := await self._delete(id)) is None:
                continue  # it changed meanwhile; that changes nothing for a delete
            return deleted

    async def _delete(self, session_id: str) -> bool | None:
        draft = self._deaths.get(session_id)  # its answer was lost: should it have landed, it was ours
        if draft is None:
            head = await self._lookup.head(session_id)
            if head is None:
                self._slots.forget(self._slots.get(session_id))
                return False
            draft = Draft(head.row.key, Point.of(head), self._limit)
            draft.lifecycle(Kind.TOMBSTONE, "session_deleted", {})
            draft.group.delete = True
        self._deaths.begin(session_id, draft)
        [verdict] = await self._store.append([draft.group])
        self._deaths.end(session_id)
        slot = self._slots.get(session_id)
        if slot is not None and slot.key == draft.group.key and verdict.outcome is not Outcome.CONFLICT:
            self._slots.forget(slot)  # only now: until it landed something of it may be in doubt
        match verdict.outcome:
            case Outcome.ALREADY if await self._lookup.head(session_id) is not None:
                return None  # it was created anew since
            case Outcome.APPENDED | Outcome.ALREADY:
                self._deaths.begin(session_id, draft)
                self._deaths.landed(session_id, draft)
                return True
            case Outcome.MISSING:
                return False  # someone else deleted it first
            case Outcome.CONFLICT:
                return None  # someone wrote
            case _:
                raise refusal(session_id, verdict, draft.group.entries[0].seq - 1)

    async def cleanup_stale_sessions(self, max_age: timedelta = timedelta(hours=48)) -> int:
        """Fail the active sessions that gave no sign of life for so long, by the store's clock; how many there were."""
        silence = max(1, as_age(max_age, "max_age"))
        query = Query(namespace=self.namespace, state=SessionState.ACTIVE.value, stale_for=silence)
        failed = 0
        drafts, after = await self._stale(query, None)
        while after is not None:
            # While these are written the next ones are read.
            landed, (drafts, after) = await asyncio.gather(self._sweep(drafts), self._stale(query, after))
            failed += landed
        return failed

    async def _stale(self, query: Query, after: Place | None) -> tuple[list[Draft], Place | None]:
        """How a page of stale sessions would end, and where it ended; None behind the last page."""
        rows = await self._store.find(query, after, SWEEP_BATCH)
        drafts: list[Draft] = []
        for head in await self._store.heads([row.key for row in rows]) if rows else ():
            if head is None or head.row.state != SessionState.ACTIVE or head.row.locked is not None:
                continue
            # No limit: a context without room for the reason must not stop the sweep.
            draft = Draft(head.row.key, replace(Point.of(head), about=codec.State()), 1 << 40)
            with suppress(Corrupt):  # a damaged context stays as it is; the session ends like any other
                about = codec.read_note(head.row.body)
                about["context"]["failure_reason"] = "heartbeat_timeout"
                draft.about(about)
            draft.lifecycle(Kind.FAILED, "session_failed", {"error": "heartbeat_timeout", "details": {}})
            draft.become(FAILED)
            draft.group.only_stale = query.stale_for or 0
            drafts.append(draft)
        return drafts, (rows[-1].heartbeat, rows[-1].key) if rows else None

    @settled
    async def _sweep(self, drafts: list[Draft]) -> int:
        verdicts = await self._store.append([draft.group for draft in drafts])
        return sum(verdict.outcome is Outcome.APPENDED for verdict in verdicts)

    async def erase(self, session_id: str | None = None, user_id: str | None = None, *, dry_run: bool = False) -> Data:
        """Remove all that a session held, or a user's sessions with all their forks, from every tier, for good.

        Also what was only deleted before. Entries stay, without content: `audit` shows them. Held sessions are erased
        too; their holders are told at their next verb. Interrupted, the next call goes on; a second one finds nothing.
        The ids, and how many entries held something; with `dry_run` those that would go.
        """
        if (session_id is None) == (user_id is None):
            raise InvalidInput("erase", "name a session or a user, one of them")
        await erasing.able(self._store)
        if session_id is not None:
            rows = await erasing.of_session(self._store, self.namespace, as_name(session_id, "session_id"))
            if not rows:
                raise unknown(session_id, self.namespace)
        else:
            rows = await erasing.of_user(self._store, self.namespace, as_name(user_id, "user_id"))
        told: Data = {"sessions": sorted({row.session_id for row in rows}), "entries": 0}
        for row in rows:
            if dry_run:
                told["entries"] += await erasing.holding(self._store, row)
                continue
            told["entries"] += await erasing.erase(self._store, row)
            self._slots.forget(self._slots.get(row.session_id))
        if not dry_run:
            await erasing.scrubbed(self._store)
        return told

    # Keys

    async def rotate_keys(self) -> Data:
        """Wrap the key of every sealed session of this namespace by the newest key given. No session is disturbed.

        Killed half-way, the next call goes on. Old keys may go once `key_ids` does not name them any more; before, all
        managers must have been given the new one.
        """
        return await rewrapping.rotate(self._store, self.namespace)

    async def key_ids(self) -> dict[str, int]:
        """How many sessions of this namespace each key is in use for, by its id; "" for those that are not sealed."""
        return await rewrapping.in_use(self._store, self.namespace)

    # Checkpoints

    async def checkpoint(
        self,
        session: AgentSession | str,
        name: str,
        data: Data | None = None,
        metadata: Data | None = None,
        *,
        append: Mapping[str, Sequence[Any]] | None = None,
        patch: Sequence[Mapping[str, Any]] | None = None,
    ) -> Checkpoint:
        """Save a named checkpoint; durable when this returns. Give the whole state, what to append, or a patch.

        Without any of them the state is `{}`. With a session value it follows what that value has seen, with an id what
        this manager wrote last, or else the newest entry: `Conflict` when someone else wrote meanwhile.
        """
        save = Save(name, data, metadata, append, patch).checked()
        value, session_id = _named(session)
        slot = self._slots.get(session_id)
        state = None if slot is None or slot.at.lease is not None else slot.ready
        if slot is not None and state is not None and (value is None or _current(value, slot)):
            # Nothing is awaited before the write is on its way, so a cancellation can only abandon the answer: the
            # slot remembers the write and asks what became of it. Saves a task and a shield, 11 us.
            self._slots.hits += 1
            slot.lock.take()
            try:
                draft = self._drafted(slot, state, value, save)
                await self._append(slot, draft)
                return _made(value, slot, draft)
            except (Overtaken, InvalidTransition):  # someone may have gone on: looked at once more, in the store
                pass
            finally:
                slot.lock.give()
        return await self._checkpoint(value, session_id, save.kept(self._limit))

    @settled
    @with_a_fresh_head
    async def _checkpoint(self, session: AgentSession | None, session_id: str, save: Save) -> Checkpoint:
        async with self._turn(session_id) as slot:
            before = await self._settle(slot, session) if slot.doubtful else None
            if session is not None:
                await self._check_seen(session, slot)
            if slot.at.lease is not None:
                await self._check_free(slot)
            elif slot.at.state not in TRANSITIONS["checkpoint"]:
                await self._check_ended(slot)
            draft = self._drafted(slot, await slot.load_data(), session, save, before)
            if draft is before:
                return draft.made(Checkpoint)
            await self._append(slot, draft)
            return _made(session, slot, draft)

    def _drafted(
        self, slot: Slot, state: codec.State, session: AgentSession | None, save: Save, before: Draft | None = None
    ) -> Draft:
        """The checkpoint behind that state, or `before`, which was it already. The slot's lock is the caller's."""
        follow(slot.at.state, "checkpoint")
        draft = drafted(slot, state, save, before)
        if session is not None and draft is not before:
            draft.author = session
        return draft

    @settled
    @with_a_fresh_head
    async def rollback(self, id: AgentSession | str, to: str | int) -> Checkpoint:
        """Go back to what an older entry held, by a new entry: nothing is lost, and the way forward stays open.

        A session value must have seen the newest entry, and goes on from the new one. A failed session becomes active.
        """
        session, session_id = _named(id)
        async with self._turn(session_id) as slot:
            draft = await self._settle(slot, session)
            if draft is None or draft.request != ("rollback", to) or not _follows(draft, session):
                head = await self._lookup.existing(session_id)
                slot.meet(head)
                if session is not None:
                    await self._check_seen(session, slot)
                if slot.at.lease is not None:
                    await self._check_free(slot)
                draft = await self._lookup.rollback(slot, head, to)
                await self._append(slot, draft)
            made = await self.get_checkpoint(session_id, draft.at.seq)
            if session is not None and not _current(session, slot):
                _show(session, slot, made)
                stand(session, draft.at.state)
            return made

    @settled
    async def fork(self, id: str, at: str | int = "latest", session_id: str | None = None) -> AgentSession:
        """A new session that goes on from a checkpoint of this one, whatever became of this one."""
        head = await self._lookup.existing(id)
        data: Entry | None = None
        if at != "latest" or head.last.data_seq:
            data = await self._lookup.data_entry(head, await self._lookup.entry(head, at))
        source = self._lookup.session(head)
        session = AgentSession(
            session_id=fresh_id() if session_id is None else session_id,
            agent_type=source.agent_type,
            user_id=source.user_id,
            context=source.context,
            metadata={**source.metadata, "forked_from": id if data is None else f"{id}:{data.seq}"},
            labels=source.labels,
        )
        draft = self._born(session)
        if data is not None:
            made = await self.get_checkpoint(id, data.seq)
            draft.checkpoint(made.name, made.data, {**made.metadata, "forked_from": made.id})
        return await self._create(session, draft)

    @settled
    async def import_session(self, json: str, *, session_id: str | None = None) -> AgentSession:
        """Store what `export` wrote, with its numbers and times: under its own id, or under another."""
        session, entries = transfer.parsed(json, self._store.keyring)
        session.session_id = session.session_id if session_id is None else as_name(session_id, "session_id")
        draft = Draft(fresh_key(), beginning(), self._limit)
        for _ in transfer.fill(draft, session, entries):
            await asyncio.sleep(0)
        row = Row(
            draft.group.key,
            self.namespace,
            session.session_id,
            session.agent_type,
            session.user_id,
            session.state.value,
            micros(session.created_at),
            micros(session.last_heartbeat),
        )
        return await self._create(session, draft, row)

    # The slots

    @asynccontextmanager
    async def _turn(self, session_id: str) -> AsyncGenerator[Slot]:
        """The slot of a session, for us alone. There is one at a time: with two their writers would collide."""
        while True:
            slot = await self._slot(session_id)
            async with slot.lock:
                if self._slots.get(session_id) is slot:  # else it was forgotten while we waited
                    yield slot
                    return

    async def _slot(self, session_id: str) -> Slot:
        slot = self._slots.get(session_id)
        if slot is not None:
            self._slots.hits += 1
            return slot
        self._slots.misses += 1
        head = await self._lookup.existing(session_id)
        slot = self._slots.get(session_id)  # another caller may have been quicker
        if slot is None:
            slot = self._slot_at(head)
            self._slots.add(slot)
        return slot

    async def _append(self, slot: Slot, draft: Draft) -> Verdict:
        try:
            return await slot.append(draft)
        except Conflict as exc:
            head = await self._lookup.head(slot.session_id)
            seen, prev = draft.group.entries[0].seq - 1, draft.group.prev
            if head is not None and prev is not None and await self._lookup.overtaken(head, seen, prev):
                raise Overtaken from exc
            owners = any(entry.kind in OWNERS_ALONE for entry in draft.group.entries)
            if owners and head is not None and head.row.lease is not None:
                raise await self._lookup.held(head) from exc
            raise
        finally:
            if slot.refused:
                self._slots.forget(slot)
            else:
                self._slots.used(slot)

    async def _settle(self, slot: Slot, session: AgentSession | None) -> Draft | None:
        """Find out what became of a write whose outcome is unknown, before anything else is written."""
        try:
            landed = await slot.settle()
        finally:
            if slot.refused:
                self._slots.forget(slot)
        if landed is None:
            return None
        draft, verdict = landed
        if session is not None and draft.author is session:
            _took(session, slot, draft, verdict)
        return draft

    async def _check_free(self, slot: Slot) -> None:
        """While a session is held only its holder saves; what this manager knows of that may be old."""
        head = await self._lookup.existing(slot.session_id)
        if head.row.lease is not None:
            self._slots.forget(slot)
            raise await self._lookup.held(head)
        if head.last.append_id != slot.at.append_id:
            raise self._overtaken(slot, head, slot.at.seq)

    async def _check_ended(self, slot: Slot) -> None:
        """Once a session ended nobody saves, unless another manager revived it: who does not know is told once."""
        head = await self._lookup.existing(slot.session_id)
        follow(SessionState(head.row.state), "checkpoint")
        raise self._overtaken(slot, head, slot.at.seq)

    async def _check_seen(self, session: AgentSession, slot: Slot) -> Seen:
        """What the session value has seen, or `Conflict` when it is not the newest."""
        seen = session.seen
        if seen is None:
            raise Conflict(f"session {session.session_id}: this value was not read from the store; refresh it first")
        if slot.at.append_id != seen.append_id:
            head = await self._lookup.head(session.session_id)
            if head is None or head.row.key != seen.key:
                self._slots.forget(slot)
                raise unknown(session.session_id, self.namespace) if head is None else anew(session.session_id)
            if head.last.append_id != seen.append_id:
                if not await self._lookup.overtaken(head, seen.seq, seen.append_id):
                    raise self._overtaken(slot, head, seen.seq)
                seen.seq, seen.append_id = head.last.seq, head.last.append_id
            slot.meet(head)
        return seen

    def _overtaken(self, slot: Slot, head: Head | None, seen: int) -> SaveslotError:
        """Somebody else went on. The slot is forgotten, so that whoever tries again starts from there."""
        self._slots.forget(slot)
        outcome = Outcome.MISSING if head is None else Outcome.CONFLICT
        return refusal(slot.session_id, Verdict(outcome, head=head and head.last), seen)


_managers: WeakSet[SessionManager] = WeakSet()


def _forked() -> None:
    for manager in list(_managers):
        manager._forked()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _named(session: AgentSession | str) -> tuple[AgentSession | None, str]:
    if isinstance(session, AgentSession):
        return session, session.session_id
    if isinstance(session, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return None, session  # whoever looks for it in the store looks at it first
    return None, as_name(session, "session_id")


def _value(session: Any) -> AgentSession:
    if not isinstance(session, AgentSession):
        raise InvalidInput("session", f"must be a session as get_session gives it, not {type(session).__name__}")
    return session


def _asked(group: Group) -> object:
    """What was asked for by creating a session: a retry asks for the same, though its ids are new."""
    row = group.create
    told = [(entry.kind, entry.name, entry.note, entry.frame, entry.recipe) for entry in group.entries]
    return row and (row.agent_type, row.user_id, row.state, row.created_at, row.body), told


def _about(session: AgentSession) -> Data:
    return {
        "context": as_data(session.context, "context"),
        "metadata": as_data(session.metadata, "metadata"),
        "labels": as_labels(session.labels),
    }


def _check_set(session: AgentSession, seen: Seen) -> None:
    """What was set on a session value and will not be stored is refused, not dropped."""
    for part, mine, stored in zip(BORN, born(session), seen.born, strict=True):
        if mine != stored:
            raise InvalidInput(part, f"was {stored!s} when the session was created, and stays so; create another one")
    if session.state != (folded(seen.state, session.staged) or seen.state):
        raise InvalidInput("state", f"was set to {session.state}; use pause, resume, complete, fail or recover")
    last = session.checkpoints[-1 - len(session.staged) :]
    if any(not made.id and all(made is not item.checkpoint for item in session.staged) for made in last):
        raise InvalidInput("checkpoints", "one was added to the list; use checkpoint(name, data)")


def _seen(slot: Slot, session: AgentSession) -> Seen:
    texts = dict.fromkeys(ABOUT, b"{}") if session.seen is None else session.seen.about
    if slot.at.about is not None:
        texts = texts | {part: bytes(text) for part, text in slot.at.about.texts.items()}
    kept = born(session) if session.seen is None else session.seen.born
    return Seen(slot.key, slot.at.seq, slot.at.append_id or b"", texts, slot.at.state, kept)


def _current(session: AgentSession, slot: Slot) -> bool:
    return session.seen is not None and session.seen.append_id == slot.at.append_id


def _follows(draft: Draft, session: AgentSession | None) -> bool:
    """True for a draft that stands right behind what the value has seen, or is that."""
    known = {draft.group.prev, draft.at.append_id}
    return session is None or (session.seen is not None and session.seen.append_id in known)


def _made(session: AgentSession | None, slot: Slot, draft: Draft) -> Checkpoint:
    made = draft.made(Checkpoint)
    if session is not None:
        _show(session, slot, made)
    return made


def _show(session: AgentSession, slot: Slot, made: Checkpoint) -> None:
    """The session value has seen what was just stored; what is staged stays behind it."""
    session.seen = _seen(slot, session)
    session.checkpoints.insert(len(session.checkpoints) - len(session.staged), made)


def _took(session: AgentSession, slot: Slot, draft: Draft, verdict: Verdict) -> None:
    """What landed is no longer staged, if it was this session's."""
    landed = {entry.append_id: entry for entry in draft.group.entries}
    if session.seen is None or draft.group.prev != session.seen.append_id:
        return
    left: list[Staged] = []
    for item in session.staged:
        entry = landed.pop(item.append_id, None)
        if entry is None:
            left.append(item)
        else:
            item.checkpoint.settle(draft.landed(entry, SessionCheckpoint))
    session.staged = left
    for entry in landed.values():
        if entry.kind is Kind.CHECKPOINT:
            _show(session, slot, draft.landed(entry, Checkpoint))
    session.seen = _seen(slot, session)
    stand(session, session.seen.state)
    if verdict.heartbeat:
        session.last_heartbeat = moment(verdict.heartbeat)


def _merged(before: Data, mine: Data, theirs: Data) -> Data:
    """Their dict, with the keys that I changed as I left them, also in the dicts inside."""
    merged = dict(theirs)
    for key in {**before, **mine}:
        if key not in mine:
            merged.pop(key, None)
        elif all(isinstance(side.get(key), dict) for side in (before, mine, theirs)):
            merged[key] = _merged(before[key], mine[key], theirs[key])
        elif key not in before or before[key] != mine[key]:
            merged[key] = mine[key]
    return merged
