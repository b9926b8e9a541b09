"""What one manager remembers of its sessions: slots by id, within a bound of bytes."""

from __future__ import annotations

from collections import OrderedDict

from saveslot.settling import CALLER, Caller
from saveslot.slot import Draft, Slot

# The states that the next changes are compared with. One that was pushed out costs a resume when it is needed again.
CACHE_BYTES = 64 * 1024 * 1024
# Of an outage in which many create and delete sessions, and never ask again, so much is remembered.
MOST_DOUBTS = 1000


class Slots:
    def __init__(self) -> None:
        self._slots: OrderedDict[str, Slot] = OrderedDict()
        self.weight = 0  # of them all, as they were last weighed
        self.hits = self.misses = 0  # writes that found their session here, and that asked the store for it

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, session_id: str) -> Slot | None:
        slot = self._slots.get(session_id)
        return None if slot is not None and slot.refused else slot

    def add(self, slot: Slot) -> None:
        """The slot of its session from now on."""
        self.forget(self._slots.get(slot.session_id))
        self._slots[slot.session_id] = slot
        self.used(slot)

    def used(self, newest: Slot) -> None:
        """It was written to. Those that were longest without use make room for it, if nobody needs them."""
        slots, session_id = self._slots, newest.session_id
        if slots.get(session_id) is newest:  # one that was forgotten meanwhile stays so: there may be another by now
            slots.move_to_end(session_id)
            self.weight += newest.weigh()
            if self.weight > CACHE_BYTES:
                self._make_room(newest)

    def _make_room(self, newest: Slot) -> None:
        excess, spare = self.weight - CACHE_BYTES, list[Slot]()
        for slot in self._slots.values():
            if excess <= 0:
                break
            if slot is not newest and not slot.busy:
                spare.append(slot)
                excess -= slot.counted
        for slot in spare:
            self.forget(slot)

    def forget(self, slot: Slot | None) -> None:
        """Let the next caller load anew; so do those who wait for this one, once they have it."""
        if slot is not None and self._slots.get(slot.session_id) is slot:
            del self._slots[slot.session_id]
            self.weight -= slot.counted
            slot.counted = 0


class Doubts:
    """Creations or deletions by session id whose callers do not know whether they landed: who asks again, sends the
    same again.
    """

    def __init__(self) -> None:
        self._drafts: dict[str, tuple[Draft, Caller | None]] = {}

    def get(self, session_id: str) -> Draft | None:
        draft, asked = self._drafts.get(session_id, (None, None))
        caller = CALLER.get()
        return draft if caller is not None and asked is not None and caller.repeats(asked) else None

    def begin(self, session_id: str, draft: Draft) -> None:
        self._drafts.pop(session_id, None)
        self._drafts[session_id] = draft, CALLER.get()
        if len(self._drafts) > MOST_DOUBTS:
            del self._drafts[next(iter(self._drafts))]

    def landed(self, session_id: str, draft: Draft) -> None:
        """Remembered until its caller heard of that."""
        caller = CALLER.get()
        if caller is not None:
            caller.when_heard(lambda: self.end(session_id, draft))

    def end(self, session_id: str, draft: Draft | None = None) -> None:
        """Of this draft, or of any, nothing is in doubt any more."""
        if draft is None or self._drafts.get(session_id, (None, None))[0] is draft:
            self._drafts.pop(session_id, None)
