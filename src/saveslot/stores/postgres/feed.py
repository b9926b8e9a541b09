"""Events: the store's, ordered by transactions, and one session's, ordered by seq."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from saveslot.errors import Unavailable
from saveslot.stores.postgres import statements as sql
from saveslot.stores.postgres.rows import Place, to_place
from saveslot.stores.stored import shown_kind, shown_text
from saveslot.values.log import MAX_SEQ, Event, lost_place, moment, seq_after


class Read(Protocol):
    async def __call__(self, statement: str, *values: Any) -> list[Any]: ...


class Foreign(Exception):
    """Raised where the feed's numbers are another server's: it must be anchored here first."""


class Own(NamedTuple):
    """A place in one session's log."""

    seq: int
    proof: bytes = b""  # the first bytes of the append_id of that entry; b"" if the caller named only a seq
    text: str = ""

    def cursor(self) -> str:
        return self.text or f"@{self.seq}"


async def end(read: Read) -> Place:
    """The place after all entries so far."""
    rows = await read(sql.EVENTS_END)
    for sound, feed, tx, key, seq, proof in rows:
        if not sound:
            raise Foreign
        return Place() if tx is None else Place(tx, key, seq, proof, feed)
    return Place()  # no tables yet


async def page(read: Read, namespace: str, at: Place, limit: int) -> tuple[list[Event], Place, bool]:
    """The events after a place, the next place, and whether more may follow at once."""
    rows = await read(sql.EVENTS, str(at.tx), at.key, at.seq, at.proof, limit)
    events: list[Event] = []
    start = at
    for sound, replica, feed, there, tx, *header, proof in rows:
        if not sound:
            if replica:
                hint = "its tables were copied from another server; let a writer open the primary first"
                raise Unavailable(f"this replica cannot order events: {hint}")
            raise Foreign
        if start.tx and not there and start.feed != feed:
            if replica:  # which may not have that entry yet
                return [], start, False
            raise lost_place(start.cursor())
        if tx is not None:
            key, seq, *_, space = header
            at = Place(tx, key, seq, proof, feed)
            if space in {namespace, namespace.encode()}:
                events.append(_event(at.cursor(), *header[1:6]))
    return events, at, len(rows) == limit and at is not start


async def own_place(read: Read, key: bytes, after: str | None) -> Own:
    """The place in a session's log at a cursor; None: at its end."""
    if after is None:
        rows = await read(sql.EVENTS_OF, key, MAX_SEQ, 1)
        newest = rows[0][2] if rows else None
        return Own(0) if newest is None else (await page_of(read, "", key, Own(newest - 1), 1))[1]
    if (seq := seq_after(after)) is not None:
        return Own(seq)
    place = to_place(after)
    if not place.tx:
        return Own(0)
    if place.key == key:
        return Own(place.seq, place.proof, after)
    await page(read, "", place, 1)  # raises if its entry is lost
    rows = await read(sql.SEQ_AT, str(place.tx), place.key, place.seq, key)
    return Own(rows[0][0] if rows else 0)


async def page_of(read: Read, namespace: str, key: bytes, at: Own, limit: int) -> tuple[list[Event], Own, bool]:
    """The same of one session."""
    rows = await read(sql.EVENTS_OF, key, at.seq, limit)
    events: list[Event] = []
    start = at
    for there, tx, newest, feed, number, *header, proof in rows:
        if newest is not None and start.proof and there != start.proof:
            raise lost_place(start.cursor())
        if there is not None and at is start:
            at = Own(start.seq, there, Place(tx, key, start.seq, there, feed).cursor())
        if number is not None:
            _, seq, *_, space = header
            at = Own(seq, proof, Place(number, key, seq, proof, feed).cursor())
            if space in {namespace, namespace.encode()}:
                events.append(_event(at.cursor(), *header[1:6]))
    return events, at, len(rows) == limit and at.seq > start.seq


def _event(cursor: str, seq: Any, kind: Any, name: Any, at: Any, session_id: Any) -> Event:
    return Event(cursor, shown_text(session_id), seq, shown_kind(kind), shown_text(name), moment(at))
