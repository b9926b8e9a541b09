"""One session's log as this process knows it: the newest entry and its state.

It may be out of date, which is harmless: the store accepts entry n+1 only after the entry n that the writer names.
A log whose append was refused is dropped from the cache, and the next caller loads it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from saveslot import codec
from saveslot.errors import Corrupt, SaveslotError, Unavailable
from saveslot.session.draft import Draft, Point
from saveslot.session.hearing import HEARD
from saveslot.session.refusals import refusal
from saveslot.session.retries import Call
from saveslot.session.timeline import Timeline, frames_of
from saveslot.stores import Store
from saveslot.values import advice
from saveslot.values.kinds import ABOUT_KINDS, DATA_KINDS, Kind
from saveslot.values.log import Entry, Group, Head, Outcome, Verdict, Wanted
from saveslot.values.recipe import OF_A_BASE

if TYPE_CHECKING:
    from saveslot.session.change import Author

# Approximate bytes of a log besides its states and frames.
LOG_BYTES = 1400
APPENDED, ALREADY = Outcome.APPENDED, Outcome.ALREADY


class Turns:
    """A lock that is handed straight to the next waiter, so that it is free only if no caller wants it."""

    __slots__ = ("_waiting", "wanted")

    def __init__(self) -> None:
        self.wanted = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> None:
        """Acquire it without waiting; only if no caller wants it."""
        self.wanted += 1

    def give(self) -> None:
        self.wanted -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
            self.wanted -= 1  # a cancelled waiter, whose own cleanup has not run yet

    async def __aenter__(self) -> None:
        self.wanted += 1
        if self.wanted == 1:
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # this waiter had its turn already
                self.give()
            elif turn in self._waiting:
                self._waiting.remove(turn)
                self.wanted -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self.give()


class Known:
    """That entry of one session; `append_id` is empty before the first read or write."""

    __slots__ = ("append_id", "key", "seq")

    def __init__(self) -> None:
        self.key = self.append_id = b""
        self.seq = 0

    def move(self, key: bytes, seq: int, append_id: bytes | None) -> None:
        self.key, self.seq, self.append_id = key, seq, append_id or b""

    def wrote(self, group: Group, *, blind: bool = False) -> None:
        """A caller has written these entries; a `blind` one has not read what they follow."""
        last = group.entries[-1]
        late = self.key == group.key and self.seq > last.seq  # an answer that arrives after later ones
        if not late and (not blind or group.prev == self.append_id):
            self.key, self.seq, self.append_id = group.key, last.seq, last.append_id


class Log:
    reload = str(advice.RELOAD)  # hint in a Conflict: how the caller loads the entries it missed

    def __init__(
        self, store: Store, session_id: str, key: bytes, at: Point, limit: int, known: Known | None = None
    ) -> None:
        self.session_id = session_id
        self.key = key
        self.at = at
        self.known = Known() if known is None else known  # the newest entry that callers have read or written
        self.timeline = Timeline(session_id)  # the frames of the newest state
        self.turns = Turns()  # one append at a time; the next one builds on it
        self.refused = False
        self.fence: int | None = None  # of this process's hold, if it holds the session
        self.counted = 0  # bytes as last measured
        self.limit = limit
        self.stamp = store.traits.stamp
        self._store = store
        self._head: Head | None = None  # as read; may include the newest data's entry and frames
        self._pending: Draft | None = None  # sent, outcome unknown

    @classmethod
    def of(cls, store: Store, head: Head, limit: int, known: Known | None = None) -> Log:
        """Return a log of which only the head was read."""
        log = cls(store, head.row.session_id, head.row.key, Point.of(head), limit, known)
        log._head = head
        return log

    @property
    def home(self) -> int:
        """Identity of its store object."""
        return id(self._store)

    def weigh(self) -> int:
        """Measure the log again; return how many bytes it grew since last time."""
        before, data, about = self.counted, self.at.data, self.at.about
        states = (0 if data is None else data.memory) + (0 if about is None else about.memory)
        self.counted = LOG_BYTES + self.timeline.weight + states
        return self.counted - before

    @property
    def busy(self) -> bool:
        return self.turns.wanted > 0 or self._pending is not None

    @property
    def ready(self) -> codec.State | None:
        """The newest state, if a checkpoint can be sent without waiting for anything first."""
        return None if self.turns.wanted or self._pending is not None else self.at.data

    def meet(self, head: Head) -> None:
        """Move to the newest entry, and drop the states of an older one."""
        if self.refused or head.last.append_id != self.at.append_id:
            self.key, self.at, self.refused = head.row.key, Point.of(head), False
            self._head = None if head.data is None else head

    def draft(self) -> Draft:
        return Draft(self.key, self.at, self.limit, self.stamp)

    async def append(self, draft: Draft) -> Verdict:
        """Append the draft and move after it, or raise. After an unknown outcome, `settle` sends the entries again."""
        self._pending = draft
        try:
            [verdict] = await self._store.append([draft.group])
        except Unavailable:
            raise
        except SaveslotError:
            self._drop(draft)
            raise
        return self.answered(draft, verdict)

    async def send(self, draft: Draft, author_of: Callable[[], Author], key: Callable[[], Hashable]) -> bool:
        """Append at once a draft after a log that is `ready`; return False if the author has to decide again.

        Nothing is awaited between that and sending the write, so no other caller comes between, and a cancellation can
        only abandon the answer. That saves a task and a shield: 11 us per checkpoint. Author and content of the call
        are needed only if it does not get its answer.
        """

        def left() -> None:
            author = author_of()
            author.calls.keep(author.where, key(), Call(draft))

        self.turns.take()
        self.refused, self._pending = False, draft
        try:
            [verdict] = await self._store.append([draft.group])
            self.answered(draft, verdict)
        except (asyncio.CancelledError, Unavailable):
            left()
            raise
        except SaveslotError as exc:
            if not self.refused:
                self._drop(draft)
                raise
            await author_of().refused(self, draft, exc)
            return False
        finally:
            self.turns.give()
        if (unheard := HEARD.get()) is not None:
            unheard.append(left)
        return True

    def sent(self, draft: Draft) -> None:
        """Its outcome is unknown until `answered`."""
        self._pending = draft

    def awaits(self, draft: Draft) -> bool:
        return self._pending is draft

    def answered(self, draft: Draft, verdict: Verdict) -> Verdict:
        """Move after the draft if it landed, or raise."""
        self._pending, group = None, draft.group
        if verdict.outcome is APPENDED or verdict.outcome is ALREADY:
            self.at, draft.verdict = draft.at, verdict
            self.known.wrote(group, blind=draft.blind)
            draft.timelines = [*map(self._grown, group.entries, verdict.times)]
            if draft.landed is not None:
                draft.landed(self, draft, verdict)
            return verdict
        self.refused = True
        raise refusal(self.session_id, verdict, draft.group.entries[0].seq - 1, self.fence, self.reload)

    def _drop(self, draft: Draft) -> None:
        """The store would not take it, as when a quota is used up: it must not land later."""
        if self.awaits(draft):
            self.undo()

    def undo(self) -> None:
        """A draft was not stored. Drafting may have changed the newest states in place: read them again when needed."""
        self._pending, self.at = None, replace(self.at, data=None, about=None)

    async def settle(self) -> None:
        """Resend a draft whose outcome is unknown: nothing else may be written before it.

        Only the same call resends a deletion; to any other call, the next write's verdict shows whether it landed.
        """
        draft = self._pending
        if draft is not None and draft.joint is not None:
            await draft.joint.settle(self)
            return
        self._pending = None
        if draft is not None and not draft.group.delete:
            await self.append(draft)

    def ends_with(self, draft: Draft | None) -> bool:
        """True if the draft has landed and is still the newest, as far as this process knows."""
        return draft is not None and draft.verdict is not None and draft.at.append_id == self.at.append_id

    def _grown(self, entry: Entry, at: int) -> Timeline:
        """Add an entry that landed at that time; return the timeline that decodes it."""
        entry.at, frame = at, entry.frame
        if frame is not None and entry.kind in DATA_KINDS:
            if entry.recipe.startswith(OF_A_BASE):
                self.timeline = self.timeline.after(entry.base)  # a new base needs no short patch before it
            self.timeline.add(entry.seq, frame, entry.base)
        return self.timeline

    async def load_data(self) -> codec.State:
        """Return the newest data, which the next checkpoint is diffed against; read it if needed."""
        if self.at.data is None:
            state, frames = await self._cold(self.at.data_seq, DATA_KINDS)
            self.timeline = Timeline(self.session_id, frames)
            self.at = replace(self.at, data=state)
            return state
        return self.at.data

    async def load_about(self) -> None:
        if self.at.about is None:
            state, _ = await self._cold(self.at.about_seq, ABOUT_KINDS)
            self.at = replace(self.at, about=state)

    async def _cold(self, seq: int, kinds: frozenset[Kind]) -> tuple[codec.State, list[Entry]]:
        """Read an entry's state and frames; entry 0 is the empty state."""
        entry, frames = await self._entry(seq, kinds) if seq else (None, None)
        if entry is None or not entry.recipe:
            state = codec.State()
            state.tip = seq
            return state, []
        recipe = codec.Recipe.unpack(entry.recipe, seq)
        alone = recipe.base == seq and not entry.base and entry.frame is not None  # a keyframe, already read
        if frames is None:
            frames = [entry] if alone else await frames_of(self._store, self.key, [recipe], kinds)
        try:
            state = rebuilt(self.session_id, entry, frames)
        except Corrupt as exc:
            await self._look_again(exc)
            raise
        state.tip = seq
        return state, frames

    async def _entry(self, seq: int, kinds: frozenset[Kind]) -> tuple[Entry | None, list[Entry] | None]:
        """Return an entry, and its frames if they were read with the head."""
        head, self._head = self._head, None
        if head is None and kinds is DATA_KINDS:
            [head] = await self._store.heads([self.key], state=True)
        for entry in () if head is None else (head.data, head.last):
            if entry is not None and entry.seq == seq and entry.kind in kinds:
                return entry, head and head.frames
        entries = await self._store.entries(self.key, Wanted([(seq, seq)]))
        if not entries or entries[0].kind not in kinds:
            why = Corrupt(f"checkpoint {self.session_id}:{seq}", "is missing, though later entries build on it")
            await self._look_again(why)
            raise why
        return entries[0], None

    async def _look_again(self, why: Corrupt) -> None:
        """Raise a refusal if entries were appended since: then the missing frame was thinned, not damaged."""
        [head] = await self._store.heads([self.key])
        if head is None or head.last.append_id != self.at.append_id:
            self.refused = True
            outcome = Outcome.MISSING if head is None else Outcome.CONFLICT
            raise refusal(
                self.session_id, Verdict(outcome, head=head and head.last), self.at.seq, reload=self.reload
            ) from why


def rebuilt(session_id: str, entry: Entry, frames: list[Entry]) -> codec.State:
    """Rebuild an entry's state from its frames."""
    where = f"checkpoint {session_id}:{entry.seq}"
    try:
        recipe = codec.Recipe.unpack(entry.recipe, entry.seq)
        there = [e for e in frames if e.frame is not None]
        return codec.rebuild([e.frame or b"" for e in there], entry.digest, where, recipe, [e.seq for e in there])
    except Corrupt as exc:
        raise Corrupt(where, exc.reason) from exc
