"""Records: values of their own beside the state, each an entry of the log.

They belong to no checkpoint: retention, `latest` and `~n` do not count them, and no writer's entry conflicts with one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Self

import msgspec

from saveslot import codec
from saveslot.errors import Corrupt
from saveslot.session.draft import Draft
from saveslot.session.log import Log
from saveslot.session.requests import entry_of, request
from saveslot.session.timeline import note_of
from saveslot.stores import Store
from saveslot.values.checks import Data, as_name, copied
from saveslot.values.kinds import Kind
from saveslot.values.log import MAX_SEQ, Entry, Head, Wanted, moment

RECORDS = frozenset({Kind.RECORD})
# Entries among which the first records of a page are looked for; then twice as many each time.
SPAN = 64


class Record(msgspec.Struct, frozen=True):
    """A value beside the state of a session."""

    seq: int
    name: str
    value: Any
    key: str | None
    timestamp: datetime

    def to_dict(self) -> Data:
        timestamp, value = self.timestamp.isoformat(), copied(self.value)
        return {**msgspec.structs.asdict(self), "timestamp": timestamp, "value": value}

    @classmethod
    def of(cls, entry: Entry, where: str) -> Self:
        note = note_of(entry, where)
        if "value" not in note:
            raise Corrupt(where, "is a record without a value")
        return cls(entry.seq, entry.name, note["value"], note.get("key"), moment(entry.at))


class NewRecord(msgspec.Struct, frozen=True):
    """One that is to be written."""

    name: str
    key: str | None
    text: tuple[bytes, bool]  # its value, encoded
    request: bytes

    @classmethod
    def of(cls, name: str, value: Any, key: str | None, limit: int) -> Self:
        text = codec.encode(value, "value", limit, depth=1)
        call_id = request(key, "record", {"name": as_name(name, "name"), "value": value}, "key")
        return cls(name, key, text, call_id)

    def draft(self, log: Log) -> Draft:
        text, tagged = self.text
        note: Data = {"value": codec.decode(text, tagged=tagged)}
        draft = log.draft()
        draft.record(self.name, codec.note(note if self.key is None else {**note, "key": self.key}, "record"))
        draft.group.entries[-1].request = self.request
        return draft

    async def earlier(self, store: Store, key: bytes) -> int | None:
        """Return the number of the record that was written with the same key; None if there is none.

        `InvalidInput` if that is another record.
        """
        entry = await entry_of(store, key, self.request, "key")
        return None if entry is None else entry.seq


async def each(store: Store, head: Head, name: str | None = None, after: int = 0) -> AsyncIterator[Record]:
    """Yield the records after that number, oldest first, and read no more of them than are taken, but for a few."""
    span, last = SPAN, head.last.seq
    while after < last:
        reach = (after + 1, min(after + span, last))
        for entry in await store.entries(head.row.key, Wanted([reach], kinds=RECORDS, name=name, frames=False)):
            yield Record.of(entry, f"{head.row.session_id}:{entry.seq}")
        after, span = reach[1], 2 * span


async def stored(
    store: Store, key: bytes, session_id: str, name: str | None = None, after: int = 0
) -> Sequence[Record]:
    """Return the records after that number, oldest first."""
    wanted = Wanted([(after + 1, MAX_SEQ)], kinds=RECORDS, name=name, frames=False)
    return [Record.of(entry, f"{session_id}:{entry.seq}") for entry in await store.entries(key, wanted)]
