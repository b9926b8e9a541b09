"""Sessions that go on where they come from, and are told as they are now: what is new goes behind what was imported.

The first entry has its id by what never changes, each of the history by what it says and by those before it, and
whatever else is written (another context, another state) by the entry that it stands behind:

    created   asked     answered   updated            ids: session   + asked   + answered   identity of its entry
    here, after a second import:   created  asked  answered  updated  asked-again  updated

So a log here tells how far it got, and whether anybody else has written to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from saveslot import codec
from saveslot.lifecycle import TRANSITIONS, SessionState
from saveslot.log import Entry, Head
from saveslot.model import VERBS
from saveslot.moving.drafting import Making, canonical, identity
from saveslot.moving.parcel import Kept, Parcel
from saveslot.slot import Point, Slot
from saveslot.stores import Store

ID = 16
# Writes what is new behind what is here: so many of the history are here already.
GoOn = Callable[[Making, int], None]


def told_id(before: bytes, *told: Any) -> bytes:
    """Of one of the history, behind another; of the first one by the session's name."""
    return sha256(before + canonical(list(told))).digest()[:ID]


class Growing(Kept):
    """One whole session, as it is if nothing of it is here yet."""

    def __init__(self, made: Kept, ids: Sequence[bytes], go_on: GoOn, *, key: bytes | None = None) -> None:
        """`ids` of its first entries: the beginning, and its history."""
        super().__init__(made.row, made.entries)
        self.row.key = key or self.row.key
        self._ids = ids
        self._go_on = go_on
        _name(self.entries, ids, b"")

    async def met(self, store: Store, head: Head) -> Parcel | None:
        """Made anew behind what is here: its frames stand on those that are here."""
        row, last = self.row, self.entries[-1]
        if (head.last.seq, head.last.append_id, head.row.body) == (last.seq, last.append_id, row.body):
            return self
        headers = await store.entries(row.key, [(1, head.last.seq)], frames=False)
        done = self._done(headers)
        if done is None:
            return None
        slot = Slot(store, row.session_id, row.key, Point.of(head), codec.MAX_STATE)
        await slot.load_data()
        await slot.load_about()
        draft = slot.draft()
        made = Making.behind(row, draft, _state(headers))
        self._go_on(made, done)
        _name(draft.group.entries, self._ids[1 + done :], head.last.append_id)
        return made.more(head)

    def _done(self, headers: Sequence[Entry]) -> int | None:
        """How many of the history are here; None where something is that no import wrote."""
        before, count = b"", 0
        for entry in headers:
            if count < len(self._ids) and entry.append_id == self._ids[count]:
                count += 1
            elif not before or entry.append_id != identity(before, entry)[:ID]:
                return None
            before = entry.append_id
        return count - 1


def _state(headers: Sequence[Entry]) -> SessionState:
    """What a log leads to; the row of one that landed in part says that it is paused."""
    state = SessionState.ACTIVE
    for entry in headers:
        if entry.kind in VERBS:
            state = TRANSITIONS[VERBS[entry.kind]].get(state, state)
    return state


def _name(entries: Sequence[Entry], ids: Sequence[bytes], before: bytes) -> None:
    for n, entry in enumerate(entries):
        before = ids[n] if n < len(ids) else identity(before, entry)[:ID]
        entry.append_id = before
