"""Sessions that live on in the program they come from: a second import appends what is new.

Ids are derived, so a log shows how far the last import got, and whether another writer has appended to it. The first
entry's id follows from what never changes, that of a history item from its content and the items before it, and that of
any other entry (a changed context or state) from the entry before it:

    created   asked     answered   updated            ids: session   + asked   + answered   identity of its entry
    here, after a second import:   created  asked  answered  updated  asked-again  updated
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from saveslot import codec
from saveslot.moving.builder import Builder, canonical, identity
from saveslot.moving.parcel import MemoryParcel, Parcel
from saveslot.session.log import Log
from saveslot.stores import Store
from saveslot.values.kinds import VERBS
from saveslot.values.lifecycle import TRANSITIONS, SessionState
from saveslot.values.log import Entry, Head, Wanted

ID = 16
# Appends what is new; the number is how many history items are here already.
GoOn = Callable[[Builder, int], None]


def history_id(before: bytes, *content: Any) -> bytes:
    """The id of a history item, given the id before it; the first one follows from the session's name."""
    return sha256(before + canonical(list(content))).digest()[:ID]


class OngoingParcel(MemoryParcel):
    """A whole session, as it is written if nothing of it is here yet."""

    def __init__(self, parcel: MemoryParcel, ids: Sequence[bytes], go_on: GoOn) -> None:
        """`ids` are those of its first entries: the creation, then its history."""
        super().__init__(parcel.row, parcel.entries)
        self._ids = ids
        self._go_on = go_on
        _name(self.entries, ids, b"")

    async def met(self, store: Store, head: Head) -> Parcel | None:
        """Built again on what is here, since new frames build on the frames that are here."""
        row, last = self.row, self.entries[-1]
        here = (head.last.seq, head.last.append_id, head.row.body, head.row.state)
        if here == (last.seq, last.append_id, row.body, row.state):
            return self
        headers = await store.entries(row.key, Wanted([(1, head.last.seq)], frames=False))
        done = self._done(headers)
        if done is None:
            return None
        log = Log.of(store, head, codec.MAX_STATE)
        await log.load_data()
        await log.load_about()
        draft = log.draft()
        builder = Builder.after(row, draft, _state(headers))
        self._go_on(builder, done)
        _name(draft.group.entries, self._ids[1 + done :], head.last.append_id)
        return builder.more(head)

    def _done(self, headers: Sequence[Entry]) -> int | None:
        """How many history items are here; None if there is an entry that no import wrote."""
        before, count = b"", 0
        for entry in headers:
            if count < len(self._ids) and entry.append_id == self._ids[count]:
                count += 1
            elif not before or entry.append_id != identity(before, entry)[:ID]:
                return None
            before = entry.append_id
        return count - 1


def _state(headers: Sequence[Entry]) -> SessionState:
    """The state that a log leads to. A row does not tell: a partly loaded session is paused."""
    state = SessionState.ACTIVE
    for entry in headers:
        if entry.kind in VERBS:
            state = TRANSITIONS[VERBS[entry.kind]].get(state, state)
    return state


def _name(entries: Sequence[Entry], ids: Sequence[bytes], before: bytes) -> None:
    for n, entry in enumerate(entries):
        before = ids[n] if n < len(ids) else identity(before, entry)[:ID]
        entry.append_id = before
