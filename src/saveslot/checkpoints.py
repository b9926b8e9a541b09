"""CheckpointManager: the history of one session, for synchronous callers.

In memory it keeps what it shows and nothing else. With a durable url it is a face of that session's log, the same that
`saveslot.open(url)` shows: what it drops or clears is hidden by an entry, so a number is never used again. The bytes of
hidden checkpoints stay in the store until `thin` or a keeper gives them back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

from saveslot import codec, refs, transfer
from saveslot.errors import InvalidInput, NotFound
from saveslot.ids import fresh_key
from saveslot.lifecycle import follow
from saveslot.log import Entry, Head, Row, micros
from saveslot.model import (
    DATA_KINDS,
    HIDING_KINDS,
    KEEPING_KINDS,
    Checkpoint,
    Data,
    Kind,
    SessionCheckpoint,
    as_count,
    as_data,
    as_name,
    as_text,
    as_time,
    now,
)
from saveslot.opening import encryption_keys
from saveslot.portal import Resident
from saveslot.retention import Retention, pins
from saveslot.sealing import SealedStore
from saveslot.slot import Draft, Point, Slot, beginning, creation
from saveslot.stores import Store, open_store
from saveslot.stores.chained import ChainedStore
from saveslot.timeline import Timeline, needed, note_of, shown

R = TypeVar("R")

NAMESPACE = "default"
# An import keeps its numbers, and a log has no gaps: so many entries may stand for numbers that are not in it.
MAX_SKIPPED = 100_000


class CheckpointManager:
    """Named checkpoints of one session, thinned by a rule. It may be shared by threads.

    Writing follows what this manager has seen: `Conflict` when someone else wrote to the session meanwhile; whatever
    reads (`get_all()`) takes that in, and so does the next write.
    """

    def __init__(
        self,
        session_id: str,
        max_checkpoints: int = 100,
        compress_after: int = 50,
        url: str = "memory:",
        *,
        encryption_key: codec.Keys | None = None,
    ) -> None:
        self.session_id = as_name(session_id, "session_id")
        self.max_checkpoints = as_count(max_checkpoints, "max_checkpoints", 1)
        self.compress_after = as_count(compress_after, "compress_after")
        self._rule = Retention.parity(max_checkpoints, compress_after)
        self._limit = Retention(max_checkpoints=max_checkpoints)  # what only adds to a history does not compress it
        self._lock = threading.Lock()
        self._callback: Callable[[Checkpoint], object] | None = None
        self._log = (
            _Memory(session_id)
            if as_text(url, "url").partition(":")[0] == "memory"
            else _Stored(session_id, url, encryption_keys(encryption_key))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the store go. In memory there is none."""
        self._log.close()

    # Writing

    def create(self, name: str, data: Data | None = None, metadata: Data | None = None) -> Checkpoint:
        """Store a checkpoint (durable when this returns, if the url is), thin the history, then call the callback.

        What the callback raises reaches the caller; the checkpoint is stored all the same.
        """
        as_name(name, "name")
        value, about = as_data(data, "data"), as_data(metadata, "metadata")
        with self._lock:
            draft = self._log.draft("checkpoint")
            draft.checkpoint(name, value, about)
            before = self._log.settled
            if before is not None and _repeats(draft.group.entries[-1], before.group.entries[-1]):
                draft = before  # the caller's retry of one whose outcome it did not learn
            else:
                self._thin(draft, self._rule)
                self._log.land(draft)
            made = self._log.made(draft)
        if self._callback is not None:
            self._callback(made)
        return made

    def on_checkpoint(self, callback: Callable[[Checkpoint], object] | None) -> None:
        """Call it with each checkpoint that `create` makes, once that is stored. A second call replaces the first."""
        self._callback = callback

    def rollback_to(self, id: str) -> Data | None:
        """Go back by a new entry: that checkpoint's data, which is the newest again; None if there is no such one."""
        with self._lock:
            entry = self._find(id)
            if entry is None:
                return None
            [target] = self._log.checkpoints([entry])
            data = target.data
            draft = self._log.draft("rollback")
            next_one = Entry(draft.at.seq + 1, b"", Kind.ROLLBACK, "session_rolled_back")
            if dropped := self._dropped([next_one], self._limit):
                draft.clear(dropped, "history_thinned")
            draft.rollback("session_rolled_back", entry, {"to": target.id, "name": target.name})
            self._log.land(draft)
        return data

    def clear(self) -> None:
        """Show nothing of what is there. Its numbers are not used again."""
        with self._lock:
            self._log.look()
            if self._log.entries:
                draft = self._log.draft("checkpoint")
                draft.clear([(1, draft.at.seq)], "history_cleared")
                self._log.land(draft)

    def export(self) -> str:
        """All checkpoints as a JSON list. Values that JSON does not know are tagged as in the store."""
        return codec.encode([made.to_dict() for made in self.get_all()], "export", 1 << 40)[0].decode()

    def import_checkpoints(self, json: str) -> int:
        """Add what `export` wrote, or nothing if anything is wrong with it; how many there were.

        A number is kept where it is free (behind the newest of this history, by at most 100,000 more than there are
        checkpoints in it: each that is left out takes an entry), or becomes the next free one; so a checkpoint of
        another session keeps its number under this one's id.
        """
        items = _parsed(json)
        if not items:
            return 0
        with self._lock:
            draft = self._log.draft("checkpoint")
            for seq, item in _numbered(items, draft.at.seq):
                while draft.at.seq + 1 < seq:
                    draft.lifecycle(Kind.SKIPPED, "number_skipped", {})
                draft.checkpoint(item.name, item.data, item.metadata, at=micros(item.timestamp), sign=False)
            self._thin(draft, self._limit)
            self._log.land(draft)
        return len(items)

    # Reading

    def get(self, id: str) -> Checkpoint | None:
        with self._lock:
            entry = self._find(id)
            return None if entry is None else self._log.checkpoints([entry])[0]

    def get_by_name(self, name: str) -> list[Checkpoint]:
        """Newest first."""
        return self._chosen(lambda entry: entry.name == name)[::-1]

    def get_latest(self, name: str | None = None) -> Checkpoint | None:
        with self._lock:
            self._log.look()
            newest = next((e for e in reversed(self._log.entries) if name is None or e.name == name), None)
            return None if newest is None else self._log.checkpoints([newest])[0]

    def get_all(self) -> list[Checkpoint]:
        """Oldest first."""
        return self._chosen(lambda _: True)

    def get_since(self, timestamp: datetime) -> list[Checkpoint]:
        """Those strictly after that time, oldest first."""
        after = micros(as_time(timestamp, "timestamp"))
        return self._chosen(lambda entry: entry.at > after)

    def get_between(self, start: datetime, end: datetime) -> list[Checkpoint]:
        """Those from `start` to `end`, both included, oldest first."""
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
        found = refs.elsewhere(id)
        if found is None or found[0] != self.session_id or id != f"{self.session_id}:{found[1]}":
            return None
        return next((entry for entry in self._log.entries if entry.seq == found[1]), None)

    def _thin(self, draft: Draft, rule: Retention) -> None:
        """Let the draft hide what it makes too many, in the step that stores it."""
        added = [entry for entry in draft.group.entries if entry.kind in DATA_KINDS]
        if len(self._log.entries) + len(added) > rule.least and (dropped := self._dropped(added, rule)):
            draft.hide(dropped)

    def _dropped(self, added: Sequence[Entry], rule: Retention) -> list[tuple[int, int]]:
        seqs = rule.drops([*self._log.entries, *added], micros(now()), self._log.pinned)
        return [(seq, seq) for seq in seqs]


class _Log:
    """What a history shows, oldest first, as of the last look."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.entries: list[Entry] = []
        self.pinned: set[int] = set()
        self._keeping: list[Entry] = []
        self.settled: Draft | None = None  # a write of unknown outcome that `draft` found to have landed after all

    def take(self, news: Sequence[Entry]) -> None:
        self.entries += [entry for entry in news if entry.kind in DATA_KINDS]
        if keeping := [entry for entry in news if entry.kind in KEEPING_KINDS]:
            self._keeping += keeping
            self.pinned = pins(self._keeping)
        if any(entry.kind in HIDING_KINDS for entry in news):
            self.entries = shown(self.entries, news, self.session_id)


class _Whole(Draft):
    """Each checkpoint is kept whole, so that any other can go."""

    def _written(self, written: codec.Written, *told: Any, **more: Any) -> None:
        super()._written(written, *told, **more)
        self.at = replace(self.at, data=codec.State())

    def rollback(self, name: str, target: Entry | None, metadata: Data) -> None:
        data = {} if target is None else Timeline("", [target]).data(target)
        self.checkpoint(name, data, metadata)
        self.group.entries[-1].kind = Kind.ROLLBACK


class _Slot(Slot):
    look = "read the history again (get_all)"


class _Memory(_Log):
    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self._at = beginning()

    def look(self) -> None:
        """Nobody else can write here."""

    def draft(self, verb: str) -> Draft:
        follow(self._at.state, verb)
        return _Whole(b"", self._at, codec.MAX_STATE)

    def land(self, draft: Draft) -> None:
        time = micros(now())
        for entry in draft.group.entries:
            entry.at = entry.time(time)
        self._at = draft.at
        self.take(draft.group.entries)

    def made(self, draft: Draft) -> Checkpoint:
        return self.checkpoints(draft.group.entries[-1:])[0]

    def checkpoints(self, entries: list[Entry]) -> list[Checkpoint]:
        timeline = Timeline(self.session_id, entries)
        return [timeline.checkpoint(entry, Checkpoint) for entry in entries]

    def close(self) -> None:
        """Nothing is open."""


class _Stored(_Log):
    def __init__(self, session_id: str, url: str, keys: codec.Keys | None) -> None:
        super().__init__(session_id)
        keyring = None if keys is None else codec.Keyring.of(keys)
        self._seen = 0
        self._key: bytes | None = None
        self._head: Head | None = None  # as of the last look
        self._slot: Slot | None = None
        self._refused = False  # so look before the next write
        self._store: Resident[Store] = Resident(lambda: _opened(url, keyring), lambda store: store.close())
        self.look()

    def look(self) -> None:
        self._store.run(self._look)

    def draft(self, verb: str) -> Draft:
        return self._store.run(lambda store: self._draft(store, verb))

    def land(self, draft: Draft) -> None:
        self._store.run(lambda store: self._land(store, draft))

    def made(self, draft: Draft) -> Checkpoint:
        return draft.landed(draft.group.entries[-1], Checkpoint)

    def checkpoints(self, entries: list[Entry]) -> list[Checkpoint]:
        return self._store.run(lambda store: self._checkpoints(store, entries))

    def close(self) -> None:
        self._store.close()

    async def _look(self, store: Store) -> None:
        [head] = await store.heads([(NAMESPACE, self.session_id)])
        if head is None and self._key is None:
            return
        if head is None or head.row.key != (self._key or head.row.key):
            raise NotFound(f"session {self.session_id} was deleted; make a new CheckpointManager to start it anew")
        if self._slot is not None and self._slot.at.append_id != head.last.append_id:
            self._slot = None  # someone else wrote
        self._key, self._head, self._refused = head.row.key, head, False
        if head.last.seq > self._seen:
            reach, kinds = (self._seen + 1, head.last.seq), DATA_KINDS | HIDING_KINDS | KEEPING_KINDS
            self.take(await store.entries(self._key, [reach], kinds=kinds, frames=False))
            self._seen = head.last.seq

    async def _draft(self, store: Store, verb: str) -> Draft:
        self.settled = None
        if self._slot is not None:
            landed = await self._told(self._slot.settle())
            if landed is not None:
                self.settled = landed[0]
                self._landed(landed[0])
        elif self._refused:
            await self._look(store)
        if self._slot is None:
            if self._head is None:
                return Draft(fresh_key(), beginning(), codec.MAX_STATE)
            key, at = self._head.row.key, Point.of(self._head)
            self._slot = _Slot(store, self.session_id, key, at, codec.MAX_STATE)
        await self._slot.load_data()
        draft = self._slot.draft()
        state = follow(draft.at.state, verb)
        draft.group.heartbeat = state is not draft.at.state
        draft.become(state)
        return draft

    async def _land(self, store: Store, draft: Draft) -> None:
        if self._slot is None:
            row = Row(draft.group.key, NAMESPACE, self.session_id)
            draft.group = creation(row, draft)
            self._slot = _Slot(store, self.session_id, row.key, draft.at, codec.MAX_STATE)
        await self._told(self._slot.append(draft))
        self._landed(draft)

    async def _told(self, answer: Coroutine[Any, Any, R]) -> R:
        try:
            return await answer
        finally:
            if self._slot is not None and self._slot.refused:
                self._slot, self._refused = None, True

    def _landed(self, draft: Draft) -> None:
        news = [entry for entry in draft.group.entries if entry.seq > self._seen]
        self.take([msgspec.structs.replace(entry, frame=None) for entry in news])
        self._key, self._seen = draft.group.key, draft.group.entries[-1].seq

    async def _checkpoints(self, store: Store, entries: list[Entry]) -> list[Checkpoint]:
        ranges = needed(entries)
        frames = await store.entries(self._key or b"", ranges, kinds=DATA_KINDS) if ranges else []
        timeline = Timeline(self.session_id, frames)
        return [timeline.checkpoint(entry, Checkpoint) for entry in entries]


async def _opened(url: str, keyring: codec.Keyring | None) -> Store:
    return SealedStore(ChainedStore(await open_store(url)), keyring)


def _repeats(entry: Entry, before: Entry) -> bool:
    """True for the same checkpoint once more: the same name and metadata, and nothing changed."""
    same = entry.name == before.name and entry.frame is None and before.kind in DATA_KINDS
    return same and note_of(entry, entry.name) == note_of(before, before.name)


def _parsed(text: str) -> list[SessionCheckpoint]:
    transfer.read_json(text)  # checks what decoding takes without a word
    found = transfer.values(text)
    if not isinstance(found, list):
        raise InvalidInput("import", "is not a list of checkpoints")
    items: list[SessionCheckpoint] = []  # an id is not needed
    for n, told in enumerate(cast("list[Any]", found)):
        try:
            items.append(SessionCheckpoint.from_dict(told))
            transfer.since_1970(items[-1].timestamp, "timestamp")
        except InvalidInput as exc:
            raise InvalidInput(f"import[{n}].{exc.path}", exc.reason) from None
    return items


def _numbered(items: Sequence[SessionCheckpoint], head: int) -> list[tuple[int, SessionCheckpoint]]:
    """Each with its number in a log that ends at `head`, in the order of the numbers."""
    kept: dict[int, SessionCheckpoint] = {}
    others: list[SessionCheckpoint] = []
    for item in items:
        found = refs.elsewhere(item.id)
        seq = 0 if found is None else found[1]
        if head < seq <= head + len(items) + MAX_SKIPPED and seq not in kept:
            kept[seq] = item
        else:
            others.append(item)
    behind = max(kept, default=head) + 1
    return sorted(kept.items()) + list(enumerate(others, behind))
