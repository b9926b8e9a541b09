"""One thread as this process knows it: the state after its newest entry, and the version of that entry."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from langgraph.checkpoint.base import WRITES_IDX_MAP
from msgspec.structs import replace

from saveslot.adapters.follow import own_hold
from saveslot.adapters.langgraph.index import Index
from saveslot.adapters.langgraph.values import Codec
from saveslot.codec import State
from saveslot.errors import AlreadyExists, Conflict, InvalidInput, NotFound, SaveslotError, TooLarge, Unavailable
from saveslot.manager import SessionManager
from saveslot.manager.create import create_paused
from saveslot.moving.langgraph_state import (
    AGENT_TYPE,
    CHECKPOINT,
    SEEN,
    VERSIONS,
    WRITES,
    WRITES_NAME,
    key_of,
    name_of,
    namespace_of,
    note_of,
    own_key,
    session_id_of,
    within,
)
from saveslot.session.lookup import with_a_fresh_head
from saveslot.values.checks import Data
from saveslot.values.kinds import DATA_KINDS
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import Head
from saveslot.values.versions import Version, as_version, version

K = TypeVar("K")
R = TypeVar("R")

# Threads that are known, and bytes of what stays of them in memory. Those used longest ago are forgotten first.
MAX_THREADS, MAX_BYTES = 4096, 64 << 20
# Bytes of an entry in a thread's index.
INDEXED = 300
# Checkpoints of a thread that callers chose last, and namespaces that they found empty.
MAX_CHOSEN = 256
# Parts of a checkpoint that the state keeps under keys of their own.
_APART = frozenset({"id", "channel_values", "channel_versions", "versions_seen"})
_ENTRIES = ("checkpoint", "rollback")
Place = tuple[str, str, str]  # session, namespace, checkpoint


class Part(NamedTuple):
    """A checkpoint as stored: its namespace's keys of the state, and the rows written to it."""

    ns: str
    state: Data
    rows: list[list[Any]]

    @property
    def about(self) -> Data:
        return self.state[own_key(CHECKPOINT, self.ns)]

    @property
    def parent(self) -> str | None:
        return self.about["parent"]


class Change(NamedTuple):
    """What an entry changes in the state."""

    put: Data
    append: dict[str, list[Any]]
    drop: list[str]


class New(NamedTuple):
    """A checkpoint that is to be written."""

    ns: str
    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    new_versions: Mapping[str, Any]


class Written(NamedTuple):
    """What a task writes to a checkpoint."""

    id: str
    path: str
    writes: Sequence[tuple[str, Any]]


class Burst:
    """Writes of tasks that ended together, to one checkpoint: the first that gets the thread's turn stores all."""

    def __init__(self, where: Place, bursts: dict[Place, Burst]) -> None:
        self._where, self._bursts = where, bursts  # `bursts`: those that wait for a turn
        self.tasks: list[Written] = []
        self._waits = True
        self._error: Exception | None = Unavailable("the write was interrupted; retry")

    async def store(self, codec: Codec, thread: Thread, task: Written) -> None:
        """Store a task's writes, unless another task of this burst has done it."""
        _, ns, checkpoint_id = self._where
        if self._waits:
            self._waits = False
            self._bursts.pop(self._where, None)
            try:
                await thread.write(codec, ns, checkpoint_id, self.tasks)
                self._error = None
            except Exception as exc:  # noqa: BLE001  (serialisers raise anything; each task gets it below)
                self._error = exc
        if self._error is None:
            return
        about_content = isinstance(self._error, InvalidInput | TooLarge) or not isinstance(self._error, SaveslotError)
        if len(self.tasks) == 1 or not about_content:
            raise self._error
        await thread.write(codec, ns, checkpoint_id, [task])  # only the task at fault is to fail


class Thread:
    def __init__(self, sessions: SessionManager, thread_id: Any) -> None:
        self.sessions, self.thread_id, self.id = sessions, thread_id, session_id_of(thread_id)
        self.turn, self.users = asyncio.Lock(), 0
        self.state: Data = {}
        self._bytes = 0  # of the state, roughly
        self.counted = 0  # of all that stays in memory, as `Threads` last added it up
        self._version: str | None = None  # of the newest entry, whose state this is; None: there is no session
        self._seq = 0
        self._head: Head | None = None  # as last read, for the next read
        self._loaded = self._active = False
        self._index: Index | None = None
        # Namespaces that a run found empty, and checkpoints that a caller chose by id: a run may start from either.
        self._blank: OrderedDict[str, None] = OrderedDict()
        self._chosen: OrderedDict[tuple[str, str], None] = OrderedDict()

    # Reading

    @with_a_fresh_head
    async def refresh(self) -> None:
        """Take in what other processes wrote."""
        reader = self.sessions.reader
        head = await reader.head(self.id, state=not self._loaded)
        if head is None:
            self.forget()
        else:
            if head.row.locked is not None:
                raise head.row.locked
            newest = await reader.newest(head)
            seen = version(newest.seq, newest.append_id)
            if seen != self._version:
                state = await reader.state_of(head, "latest") if head.last.data_seq else State()
                self.state, self._bytes = state.value(), sum(map(len, state.texts.values()))
                self._version, self._seq, self._index = seen, newest.seq, None
                self._active = head.row.state == SessionState.ACTIVE and head.row.lease is None
            self._head = replace(head, data=None, frames=None)
        self._loaded = True

    async def index(self) -> Index:
        if self._index is None:
            if self._version is None:
                self._index = Index()
            else:
                entries = await self._read(lambda head: self.sessions.lookup.visible(head, DATA_KINDS))
                self._index = Index(entry for entry in entries if entry.seq <= self._seq)
        return self._index

    async def _past(self, seq: int) -> Data:
        """Return the state as of an entry."""
        return (await self._read(lambda head: self.sessions.reader.state_of(head, seq))).value()

    @with_a_fresh_head
    async def _read(self, read: Callable[[Head], Awaitable[R]]) -> R:
        """Read as of the head that this turn has read, or as of a new one if retention overtook that."""
        head, self._head = self._head or await self.sessions.reader.existing(self.id), None
        result = await read(head)
        self._head = head
        return result

    async def checkpoint(self, ns: str, checkpoint_id: str | None) -> Part | None:
        """Return a checkpoint, or the newest one of the namespace, for a run or a person to continue from."""
        if checkpoint_id is not None:
            _remember(self._chosen, (ns, checkpoint_id))
            return await self.stored(ns, checkpoint_id)
        part = self._live(ns)
        if part is None and (newest := (await self.index()).newest(ns)) is not None:
            part = await self.stored(ns, newest)
        if part is None:
            _remember(self._blank, ns)
        return part

    async def stored(self, ns: str, checkpoint_id: str) -> Part | None:
        """Return a checkpoint; None if there is none, or it was dropped."""
        live = self._live(ns)
        if live is not None and live.about["id"] == checkpoint_id:
            return live
        index = await self.index()
        seq = index.seq(ns, checkpoint_id)
        if seq is None:
            return None
        try:
            part: Part | None = None
            rows: list[list[Any]] = []
            for at, based_on in index.writes.get((ns, checkpoint_id), ()):
                state = await self._past(at)
                rows += _rows(state, ns, checkpoint_id)
                if based_on == seq:
                    part = _part(state, ns, rows)
            part = part or _part(await self._past(seq), ns, rows)
        except NotFound:  # another process dropped it
            self._index = None
            return None
        return part

    def _live(self, ns: str) -> Part | None:
        about = self.state.get(own_key(CHECKPOINT, ns))
        return None if about is None else _part(self.state, ns, _rows(self.state, ns, about["id"]))

    # Writing

    async def put(self, codec: Codec, new: New) -> None:
        if not self._loaded:
            await self.refresh()
        live = self.state.get(own_key(CHECKPOINT, new.ns))
        await self._check_parent(new, None if live is None else live["id"])
        base: Data | None = None
        if live is None or new.parent not in {None, live["id"]}:
            part = None if new.parent is None else await self.stored(new.ns, new.parent)
            base = {} if part is None else part.state
        note = note_of(new.ns, new.checkpoint["id"], new.metadata)
        await self._save(codec, name_of(new.metadata), lambda codec: self._change(codec, new, base), note)
        for ns in [ns for ns in self._blank if ns != new.ns and within(ns, new.ns)]:
            del self._blank[ns]

    async def _check_parent(self, new: New, live: str | None) -> None:
        """Raise `Conflict` if another run has moved the thread on since this one began."""
        if new.parent is None:
            moved = live is not None and new.ns in self._blank
        elif live == new.parent or (new.ns, new.parent) in self._chosen:
            moved = False
        else:
            live = live or (await self.index()).newest(new.ns)
            moved = live is not None and live != new.parent
        if moved:
            follows = "an empty thread" if new.parent is None else f"checkpoint {new.parent}"
            raise Conflict(
                f"thread {self.thread_id}: another run saved checkpoint {live}, and this run follows {follows}; "
                "nothing of this one was saved: start it again",
                head=self._seq,
            )

    def _change(self, codec: Codec, new: New, base: Data | None) -> Change:
        """What a checkpoint changes in the state; `base`: the one that it follows, if that is not the state's."""
        checkpoint, ns = new.checkpoint, new.ns
        versions = dict(checkpoint["channel_versions"])
        values = {name: value for name, value in checkpoint["channel_values"].items() if name in versions}
        rest = {key: value for key, value in checkpoint.items() if key not in _APART}
        put: Data = {
            own_key(CHECKPOINT, ns): {
                "id": checkpoint["id"],
                "parent": new.parent,
                "metadata": codec.save(dict(new.metadata)),
                "checkpoint": codec.save(rest),
            },
            own_key(VERSIONS, ns): versions,
            own_key(SEEN, ns): {node: dict(seen) for node, seen in checkpoint["versions_seen"].items()},
        }
        if rows := _rows(self.state, ns, checkpoint["id"]):
            put[own_key(WRITES, ns)] = rows  # they came before their checkpoint
        append: dict[str, list[Any]] = {}
        stay = set(put)
        for name in versions:
            key = key_of(name, ns)
            before: Any = self.state.get(key)
            if name not in new.new_versions and base is None:
                stay.add(key)
                continue
            if name not in new.new_versions and base is not None and key in base:
                put[key] = base[key]
            elif name in values:
                added = codec.save_rest(values[name], before) if base is None else None
                if added is None:
                    put[key] = codec.save(values[name])
                elif added:
                    append[key] = added
            else:
                continue
            stay.add(key)
        put = {key: value for key, value in put.items() if self.state.get(key, ...) != value}
        # With its writes, the state of subgraphs in this namespace goes: they have ended, and their entries keep it.
        drop = [key for key in self.state if key not in stay and within(namespace_of(key), ns)]
        return Change(put, append, drop)

    async def write(self, codec: Codec, ns: str, checkpoint_id: str, tasks: Sequence[Written]) -> None:
        if not self._loaded:
            await self.refresh()
        stored = {(row[1], row[3]) for row in _rows(self.state, ns, checkpoint_id)}
        new: list[tuple[Written, int, str, Any]] = []
        for task in tasks:
            for place, (channel, value) in enumerate(task.writes):
                at = WRITES_IDX_MAP.get(channel, place)
                if at < 0 or (task.id, at) not in stored:
                    stored.add((task.id, at))
                    new.append((task, at, channel, value))

        def change(codec: Codec) -> Change:
            rows = [[checkpoint_id, task.id, task.path, at, name, codec.save(value)] for task, at, name, value in new]
            return Change({}, {own_key(WRITES, ns): rows}, [])

        if new:
            await self._save(codec, WRITES_NAME, change, {**note_of(ns, checkpoint_id), "writes": len(new)})

    async def _save(self, codec: Codec, name: str, decide: Callable[[Codec], Change], note: Data) -> None:
        try:
            try:
                await self._append(name, decide(codec), note)
            except InvalidInput:  # keys that are not text
                await self._append(name, decide(codec.carefully()), note)
        except (SaveslotError, asyncio.CancelledError):
            self.forget()  # the next call reads what the store has
            raise

    async def _append(self, name: str, change: Change, note: Data) -> None:
        newest, seq = await (self._begin if self._version is None else self._follow)(name, change, note)
        for key in change.drop:
            del self.state[key]
        self.state.update(change.put)
        for key, items in change.append.items():
            self.state[key] = self.state.get(key, []) + items
        self._version, self._seq, self._head = newest, seq, None
        if self._index is not None:
            self._index.add(seq, note)
        log = self.sessions.engine.cache.get((self.sessions.namespace, self.id))
        self._bytes = self._bytes if log is None else log.counted

    async def _begin(self, name: str, change: Change, note: Data) -> tuple[str, int]:
        """Create the session with its first checkpoint, paused: it is nobody's while no run is on its way."""
        own = {} if self.id == self.thread_id else {"thread_id": str(self.thread_id)}
        data = {**change.put, **change.append}
        try:
            session = await create_paused(self.sessions, AGENT_TYPE, self.id, name, data, note, session_metadata=own)
        except AlreadyExists as exc:
            raise Conflict(
                f"thread {self.thread_id}: another run began it at the same time; nothing of this one was saved: "
                "start it again",
                head=exc.head,
            ) from None
        return session.version, cast("Version", as_version(session.version)).seq

    async def _follow(self, name: str, change: Change, note: Data) -> tuple[str, int]:
        """Save a checkpoint; under its lease if this process holds the session, else paused."""
        held = own_hold(self.sessions, self.id)
        if self._active and held is None:
            session = await self.sessions.pause(self.id, seen=self._version)
            self._version, self._active = session.version, False
        save = partial(
            partial(self.sessions.checkpoint, self.id) if held is None else held.checkpoint,
            name,
            put=change.put,
            append=change.append,
            drop=change.drop,
            metadata=note,
        )
        try:
            saved = await save(seen=self._version)
        except Conflict:
            if not await self._only_beside():
                raise
            saved = await save(seen=self._version)
        return saved.version, saved.seq

    async def _only_beside(self) -> bool:
        """True if what other writers wrote leaves the state as it is: a label, a pause."""
        head = await self.sessions.head(self.id)
        if head is None or await self.sessions.entries(self.id, after=self._seq, kinds=_ENTRIES):
            return False
        self._version = head.version
        return True

    # Forgetting

    def weigh(self) -> int:
        """Measure again what stays in memory; return how many bytes it grew since last time."""
        before = self.counted
        self.counted = self._bytes + (0 if self._index is None else self._index.entries * INDEXED)
        return self.counted - before

    async def keep(self, kept: set[tuple[str, str]]) -> None:
        """Drop all checkpoints but these, with the writes to them; pinned ones stay. Without any, delete the thread."""
        index = await self.index()
        stay = index.seqs_of(kept)
        gone = index.seqs - stay - set(await self.sessions.pins(self.id) if self._version else ())
        if not stay:
            await self.delete()
        elif gone:
            if max(gone) > max(stay):  # the newest checkpoint cannot be dropped: step back first
                await self.sessions.rollback(self.id, max(stay), seen=self._version)
            await self.sessions.drop(self.id, sorted(gone))
            self.forget()

    async def delete(self) -> None:
        await self.sessions.delete_session(self.id)
        self.forget()
        self._blank.clear()
        self._chosen.clear()

    def forget(self) -> None:
        self.state, self._bytes, self._version, self._seq = {}, 0, None, 0
        self._loaded = self._active = False
        self._index = self._head = None


class Threads:
    """The threads that this process used last, each for one caller at a time."""

    def __init__(self) -> None:
        self._sessions: SessionManager | None = None
        self._bursts: dict[Place, Burst] = {}
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        self._weight = 0

    @asynccontextmanager
    async def turn(self, sessions: SessionManager, thread_id: Any) -> AsyncGenerator[Thread]:
        """Lock a thread, in the order of the calls."""
        if sessions is not self._sessions:  # opened again, perhaps in another event loop
            self._sessions = sessions
            self.clear()
        key = session_id_of(thread_id)
        thread = self._threads.get(key)
        if thread is None:
            thread = self._threads[key] = Thread(sessions, thread_id)
        else:
            self._threads.move_to_end(key)
        thread.users += 1
        try:
            async with thread.turn:
                yield thread
        finally:
            thread.users -= 1
            self._weight += thread.weigh()
            if self._weight > MAX_BYTES or len(self._threads) > MAX_THREADS:
                self._make_room()

    def _make_room(self) -> None:
        """Forget idle threads down to three quarters of the limits, so that this is seldom needed."""
        for name, thread in [*self._threads.items()][:-1]:
            few = len(self._threads) <= MAX_THREADS * 3 // 4
            if few and self._weight <= MAX_BYTES * 3 // 4:
                return
            if not thread.users:
                thread.forget()
                self._weight += thread.weigh()
                if not few:
                    del self._threads[name]

    def burst(self, thread_id: Any, ns: str, checkpoint_id: str, task: Written) -> Burst:
        """Return the burst that stores these writes together with those of other tasks that wait for the thread."""
        where = session_id_of(thread_id), ns, checkpoint_id
        burst = self._bursts.get(where)
        if burst is None:
            burst = self._bursts[where] = Burst(where, self._bursts)
        burst.tasks.append(task)
        return burst

    def clear(self) -> None:
        self._threads.clear()
        self._bursts.clear()
        self._weight = 0


def _remember(last: OrderedDict[K, None], one: K) -> None:
    last[one] = None
    last.move_to_end(one)
    if len(last) > MAX_CHOSEN:
        last.popitem(last=False)


def _part(state: Data, ns: str, rows: list[list[Any]]) -> Part:
    return Part(ns, {key: value for key, value in state.items() if namespace_of(key) == ns}, rows)


def _rows(state: Data, ns: str, checkpoint_id: str) -> list[list[Any]]:
    """The writes to a checkpoint that this state holds."""
    return [row for row in state.get(own_key(WRITES, ns), ()) if row[0] == checkpoint_id]
