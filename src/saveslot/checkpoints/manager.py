"""CheckpointManager: the history of one session, for synchronous callers.

In memory it keeps only the visible checkpoints. With a durable url it is a view of that session's log, the one that
`saveslot.open(url)` reads: dropped or cleared checkpoints are hidden by an entry, so a number is never reused. Their
bytes stay in the store until `thin` or a keeper frees them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

from saveslot import codec
from saveslot.blocking.portal import Resident
from saveslot.errors import Conflict, InvalidInput, NotFound, Unavailable
from saveslot.manager import export
from saveslot.opening import encryption_keys
from saveslot.session.draft import Draft, Point, beginning, creation
from saveslot.session.log import Log
from saveslot.session.model import Checkpoint, SessionCheckpoint
from saveslot.session.retention import Retention, pins
from saveslot.session.retries import Call, Calls, content
from saveslot.session.timeline import Timeline, frames_of, visible
from saveslot.session.vault import Vault
from saveslot.stores import Store, open_store, shown, store_url
from saveslot.values import refs
from saveslot.values.checks import Data, as_count, as_data, as_name, as_time, now
from saveslot.values.ids import fresh_key
from saveslot.values.kinds import DATA_KINDS, HIDING_KINDS, KEEPING_KINDS, Kind
from saveslot.values.lifecycle import follow
from saveslot.values.log import Entry, Head, Row, Verdict, Wanted, micros
from saveslot.values.words import many

R = TypeVar("R")

NAMESPACE = "default"
# Maximum filler entries per import: it keeps its numbers, and a log has no gaps.
MAX_SKIPPED = 100_000


class CheckpointManager:
    """Named checkpoints of one session, thinned by a rule. Thread-safe.

    A write follows the newest entry that this manager has seen: `Conflict` if another writer appended meanwhile. Any
    read (`get_all()`) loads those entries, and so does the next write.
    """

    def __init__(
        self,
        session_id: str,
        max_checkpoints: int = 100,
        compress_after: int = 50,
        url: str | os.PathLike[str] = "memory:",
        *,
        encryption_key: codec.Keys | None = None,
    ) -> None:
        self.session_id: str = as_name(session_id, "session_id")
        self.max_checkpoints: int = as_count(max_checkpoints, "max_checkpoints", 1)
        self.compress_after: int = as_count(compress_after, "compress_after")
        self._rule = Retention.parity(max_checkpoints, compress_after)
        self._limit = Retention(max_checkpoints=max_checkpoints)  # for imports and rollbacks, which do not compress
        self._lock = threading.Lock()
        self._callback: Callable[[Checkpoint], object] | None = None
        self._calls = Calls()
        self._log = (
            _Memory(session_id)
            if (place := store_url(url)).partition(":")[0] == "memory"
            else _Stored(session_id, place, encryption_keys(encryption_key))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CheckpointManager {self.session_id} on {self._log.place}, {many(len(self), 'checkpoint')}>"

    def __bool__(self) -> bool:
        return True  # also without checkpoints, although it has a length

    def close(self) -> None:
        """Close the store. In memory, do nothing."""
        self._log.close()

    # Writing

    def create(self, name: str, data: Data | None = None, metadata: Data | None = None) -> Checkpoint:
        """Store a checkpoint (durable on return, if the url is), thin the history, then call the callback.

        An exception of the callback reaches the caller; the checkpoint is stored all the same.
        """
        as_name(name, "name")
        value, about = as_data(data, "data"), as_data(metadata, "metadata")

        def build(draft: Draft) -> None:
            draft.checkpoint(name, value, about)
            self._thin(draft, self._rule)

        def answer(draft: Draft) -> Checkpoint:
            checkpoint = self._log.stored(draft)
            if self._callback is not None:
                self._callback(checkpoint)
            return checkpoint

        return self._write("checkpoint", content("create", name, value, about), build, answer)

    def on_checkpoint(self, callback: Callable[[Checkpoint], object] | None) -> None:
        """Call `callback` with each checkpoint that `create` stores. A second call replaces the first callback."""
        self._callback = callback

    def rollback_to(self, id: str) -> Data | None:
        """Append an entry that restores a checkpoint, and return its data; None if there is no such checkpoint."""
        with self._lock:
            entry = self._find(id)
            if entry is None:
                return None
            [target] = self._log.checkpoints([entry])
        data = target.data

        def build(draft: Draft) -> None:
            if entry not in self._log.entries:
                return  # another thread cleared it
            following = Entry(draft.at.seq + 1, b"", Kind.ROLLBACK, "session_rolled_back")
            if dropped := self._dropped([following], self._limit):
                draft.clear(dropped, "history_thinned")
            draft.rollback("session_rolled_back", entry, {"to": target.id, "name": target.name})

        def answer(draft: Draft) -> Data | None:
            return data if draft.group.entries else None

        return self._write("rollback", content("rollback_to", id), build, answer)

    def clear(self) -> int:
        """Hide all checkpoints and return how many. Their numbers are not reused."""
        with self._lock:
            self._log.look()
            if not self._log.entries and not self._calls.left:
                return 0

        def build(draft: Draft) -> None:
            draft.answer = len(self._log.entries)
            if draft.answer:
                draft.clear([(1, draft.at.seq)], "history_cleared")

        return self._write("checkpoint", content("clear"), build, lambda draft: cast("int", draft.answer))

    def export(self) -> str:
        """Return all checkpoints as a JSON list. Non-JSON values are tagged as in the store."""
        return codec.encode([cp.to_dict() for cp in self.get_all()], "export", codec.ANY_SIZE)[0].decode()

    def import_checkpoints(self, json: str) -> int:
        """Add all checkpoints of an `export`, or none if any is invalid; return how many there were.

        A checkpoint keeps its number if that is free: after this history's newest, by at most 100,000 more than the
        checkpoints imported, since each skipped number takes an entry. Otherwise it gets the next free number. So a
        checkpoint of another session keeps its number under this one's id.
        """
        items = _parsed(json)
        if not items:
            return 0

        def build(draft: Draft) -> None:
            for seq, item in _numbered(items, draft.at.seq):
                while draft.at.seq + 1 < seq:
                    draft.lifecycle(Kind.SKIPPED, "number_skipped", {})
                draft.checkpoint(item.name, item.data, item.metadata, at=micros(item.timestamp), sign=False)
            self._thin(draft, self._limit)

        return self._write("checkpoint", content("import_checkpoints", json), build, lambda _: len(items))

    def _write(self, verb: str, key: Hashable, build: Callable[[Draft], None], answer: Callable[[Draft], R]) -> R:
        """Store what `build` adds to a draft, and return `answer(draft)`.

        A call repeated after an interrupt or outage is stored once. Until this returns, an interrupt means that the
        caller has no answer, so nothing may follow it in a verb.
        """
        scope, call = (NAMESPACE, self.session_id), Call()
        try:
            with self._lock:
                call = self._calls.left.get(scope, {}).get(key, call)
                draft = self._written(verb, build, call)
            result = answer(draft)
            with self._lock:
                self._calls.take(scope, key)
            return result
        except BaseException as exc:
            with self._lock:
                if not isinstance(exc, Unavailable) and isinstance(exc, Exception):
                    self._calls.take(scope, key)
                elif call.draft is not None:  # else an earlier attempt may have written: it stays known
                    self._calls.keep(scope, key, call)
            raise

    def _written(self, verb: str, build: Callable[[Draft], None], call: Call) -> Draft:
        draft = self._log.draft(verb)
        if call.draft is not None and self._log.ends_with(call.draft):
            return call.draft
        build(draft)
        if draft.group.entries:
            call.draft = draft
            self._log.land(draft)
        return draft

    # Reading

    def get(self, id: str) -> Checkpoint | None:
        with self._lock:
            entry = self._find(id)
            return None if entry is None else self._log.checkpoints([entry])[0]

    def get_by_name(self, name: str) -> list[Checkpoint]:
        """Return the checkpoints of that name, newest first."""
        return self._chosen(lambda entry: entry.name == name)[::-1]

    def get_latest(self, name: str | None = None) -> Checkpoint | None:
        with self._lock:
            self._log.look()
            newest = next((e for e in reversed(self._log.entries) if name is None or e.name == name), None)
            return None if newest is None else self._log.checkpoints([newest])[0]

    def get_all(self) -> list[Checkpoint]:
        """Return all checkpoints, oldest first."""
        return self._chosen(lambda _: True)

    def get_since(self, timestamp: datetime) -> list[Checkpoint]:
        """Return the checkpoints strictly after that time, oldest first."""
        after = micros(as_time(timestamp, "timestamp"))
        return self._chosen(lambda entry: entry.at > after)

    def get_between(self, start: datetime, end: datetime) -> list[Checkpoint]:
        """Return the checkpoints from `start` to `end`, inclusive, oldest first."""
        first, last = micros(as_time(start, "start")), micros(as_time(end, "end"))
        return self._chosen(lambda entry: first <= entry.at <= last)

    def get_summary(self) -> Data:
        with self._lock:
            self._log.look()
            entries = list(self._log.entries)
            names: dict[str, int] = {}
            for entry in entries:
                names[entry.name] = names.get(entry.name, 0) + 1
            ends = self._log.checkpoints(entries[:1] + entries[-1:])
        return {
            "total_count": len(entries),
            "unique_names": len(names),
            "names": names,
            "first_checkpoint": ends[0].to_dict() if ends else None,
            "last_checkpoint": ends[1].to_dict() if ends else None,
            "duration_seconds": (ends[1].timestamp - ends[0].timestamp).total_seconds() if ends else 0.0,
        }

    def __len__(self) -> int:
        with self._lock:
            self._log.look()
            return len(self._log.entries)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self.get_all())

    def _chosen(self, wanted: Callable[[Entry], bool]) -> list[Checkpoint]:
        with self._lock:
            self._log.look()
            return self._log.checkpoints(list(filter(wanted, self._log.entries)))

    def _find(self, id: str) -> Entry | None:
        self._log.look()
        ref = refs.elsewhere(id)
        if ref is None or ref[0] != self.session_id or id != f"{self.session_id}:{ref[1]}":
            return None
        return next((entry for entry in self._log.entries if entry.seq == ref[1]), None)

    def _thin(self, draft: Draft, rule: Retention) -> None:
        """Let the draft hide the checkpoints that the rule drops, in the same write."""
        added = [entry for entry in draft.group.entries if entry.kind in DATA_KINDS]
        if len(self._log.entries) + len(added) > rule.least and (dropped := self._dropped(added, rule)):
            draft.hide(dropped)

    def _dropped(self, added: Sequence[Entry], rule: Retention) -> list[tuple[int, int]]:
        seqs = rule.drops([*self._log.entries, *added], micros(now()), self._log.pinned)
        return [(seq, seq) for seq in seqs]


class _Log:
    """The visible checkpoints of a history, oldest first, as last read."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.entries: list[Entry] = []
        self.pinned: set[int] = set()
        self._keeping: list[Entry] = []

    def take(self, news: Sequence[Entry]) -> None:
        self.entries += [entry for entry in news if entry.kind in DATA_KINDS]
        if keeping := [entry for entry in news if entry.kind in KEEPING_KINDS]:
            self._keeping += keeping
            self.pinned = pins(self._keeping)
        if any(entry.kind in HIDING_KINDS for entry in news):
            self.entries = visible(self.entries, news, self.session_id)


class _Whole(Draft):
    """Draft that stores each checkpoint whole, so that any other can be dropped."""

    def _written(self, written: codec.Written, *args: Any, **options: Any) -> None:
        super()._written(written, *args, **options)
        self.at = replace(self.at, data=codec.State())

    def rollback(self, name: str, target: Entry | None, metadata: Data) -> None:
        data = {} if target is None else Timeline("", [target]).data(target)
        self.checkpoint(name, data, metadata)
        self.group.entries[-1].kind = Kind.ROLLBACK


class _HistoryLog(Log):
    reload = "read the history again (get_all)"


class _Memory(_Log):
    place = "memory"

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self._at = beginning()

    def look(self) -> None:
        """Do nothing: there are no other writers."""

    def draft(self, verb: str) -> Draft:
        follow(self._at.state, verb)
        return _Whole(b"", self._at, codec.MAX_STATE)

    def land(self, draft: Draft) -> None:
        time = micros(now())
        for entry in draft.group.entries:
            entry.at = entry.time(time)
        self._at = draft.at
        self.take(draft.group.entries)

    def ends_with(self, draft: Draft) -> bool:
        return self._at is draft.at

    def stored(self, draft: Draft) -> Checkpoint:
        return self.checkpoints(draft.group.entries[-1:])[0]

    def checkpoints(self, entries: list[Entry]) -> list[Checkpoint]:
        return Timeline(self.session_id, entries).checkpoints(entries, Checkpoint)

    def close(self) -> None:
        """Do nothing: no store is open."""


class _Stored(_Log):
    def __init__(self, session_id: str, url: str, keys: codec.Keys | None) -> None:
        super().__init__(session_id)
        keyring = None if keys is None else codec.Keyring.of(keys)
        self.place = shown(url)
        self._seen = 0
        self._key: bytes | None = None
        self._head: Head | None = None  # as last read
        self._open: Log | None = None
        self._refused = False  # read the head before the next write
        self._store: Resident[Store] = Resident(lambda: _opened(url, keyring), lambda store: store.close())
        self.look()

    def look(self) -> None:
        self._store.run(self._look)

    def draft(self, verb: str) -> Draft:
        return self._store.run(lambda store: self._draft(store, verb))

    def land(self, draft: Draft) -> None:
        self._store.run(lambda store: self._land(store, draft))

    def ends_with(self, draft: Draft) -> bool:
        return self._open is not None and self._open.ends_with(draft)

    def stored(self, draft: Draft) -> Checkpoint:
        return draft.stored(Checkpoint)

    def checkpoints(self, entries: list[Entry]) -> list[Checkpoint]:
        return self._store.run(lambda store: self._checkpoints(store, entries))

    def close(self) -> None:
        self._store.close()

    async def _look(self, store: Store) -> None:
        if self._open is not None:
            with suppress(Conflict):  # a write in doubt was refused: what came instead is read below
                await self._refusable(self._open.settle())
        [head] = await store.heads([(NAMESPACE, self.session_id)])
        if head is None and self._key is None:
            return
        if head is None or head.row.key != (self._key or head.row.key):
            raise NotFound(f"session {self.session_id} was deleted; create a new CheckpointManager to start over")
        if self._open is not None and self._open.at.append_id != head.last.append_id:
            self._open = None  # another writer appended
        self._key, self._head, self._refused = head.row.key, head, False
        if head.last.seq > self._seen:
            reach, kinds = (self._seen + 1, head.last.seq), DATA_KINDS | HIDING_KINDS | KEEPING_KINDS
            self.take(await store.entries(self._key, Wanted([reach], kinds=kinds, frames=False)))
            self._seen = head.last.seq

    async def _draft(self, store: Store, verb: str) -> Draft:
        if self._open is not None:
            await self._refusable(self._open.settle())
        elif self._refused:
            await self._look(store)
        if self._open is None:
            if self._head is None:
                return Draft(fresh_key(), beginning(), codec.MAX_STATE, store.traits.stamp)
            key, at = self._head.row.key, Point.of(self._head)
            self._open = _HistoryLog(store, self.session_id, key, at, codec.MAX_STATE)
        await self._open.load_data()
        draft = self._open.draft()
        state = follow(draft.at.state, verb)
        draft.group.heartbeat = state is not draft.at.state
        draft.become(state)
        return draft

    async def _land(self, store: Store, draft: Draft) -> None:
        if self._open is None:
            row = Row(draft.group.key, NAMESPACE, self.session_id)
            draft.group = creation(row, draft)
            self._open = _HistoryLog(store, self.session_id, row.key, draft.at, codec.MAX_STATE)
        draft.landed = self._landed
        await self._refusable(self._open.append(draft))

    async def _refusable(self, answer: Coroutine[Any, Any, R]) -> R:
        try:
            return await answer
        finally:
            if self._open is not None and self._open.refused:
                self._open, self._refused = None, True

    def _landed(self, _log: Log, draft: Draft, _verdict: Verdict) -> None:
        news = [entry for entry in draft.group.entries if entry.seq > self._seen]
        self.take([msgspec.structs.replace(entry, frame=None) for entry in news])
        self._key, self._seen = draft.group.key, draft.group.entries[-1].seq

    async def _checkpoints(self, store: Store, entries: list[Entry]) -> list[Checkpoint]:
        recipes = (codec.Recipe.unpack(entry.recipe, entry.seq) for entry in entries)
        frames = await frames_of(store, self._key or b"", recipes)
        return Timeline(self.session_id, frames).checkpoints(entries, Checkpoint)


async def _opened(url: str, keyring: codec.Keyring | None) -> Store:
    return Vault(await open_store(url), keyring)


def _parsed(text: str) -> list[SessionCheckpoint]:
    export.read_json(text)  # raises for JSON that `values` accepts silently, such as a repeated key
    records = export.values(text)
    if not isinstance(records, list):
        raise InvalidInput("import", "is not a list of checkpoints")
    items: list[SessionCheckpoint] = []  # an id is not needed
    for n, record in enumerate(cast("list[Any]", records)):
        try:
            items.append(SessionCheckpoint.from_dict(record))
            export.since_1970(items[-1].timestamp, "timestamp")
        except InvalidInput as exc:
            raise InvalidInput(f"import[{n}].{exc.path}", exc.reason) from None
    return items


def _numbered(items: Sequence[SessionCheckpoint], head: int) -> list[tuple[int, SessionCheckpoint]]:
    """Return each with its number in a log that ends at `head`, sorted by number."""
    kept: dict[int, SessionCheckpoint] = {}
    others: list[SessionCheckpoint] = []
    for item in items:
        ref = refs.elsewhere(item.id)
        seq = 0 if ref is None else ref[1]
        if head < seq <= head + len(items) + MAX_SKIPPED and seq not in kept:
            kept[seq] = item
        else:
            others.append(item)
    following = max(kept, default=head) + 1
    return sorted(kept.items()) + list(enumerate(others, following))
