"""A slot: what one manager knows of one session's log. Load, decide, append.

The head that it knows may be old; nobody minds, because the store accepts entry n+1 only behind the entry n that is
named. A slot whose append was refused is forgotten, and the next caller loads a new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from saveslot import codec
from saveslot.codec.frame import PATCH
from saveslot.errors import Conflict, Corrupt, HistoryLost, LeaseLost, NotFound, SaveslotError
from saveslot.ids import drawn
from saveslot.lifecycle import SessionState
from saveslot.log import Entry, Group, Head, Outcome, Row, Verdict, Worker
from saveslot.model import DATA_KINDS, Data, Kind, as_data
from saveslot.settling import CALLER, Caller
from saveslot.stores import Store
from saveslot.timeline import C, Range, Timeline, merged, needed, note_of

# What a session is about: the dicts of its own, beside the agent's data.
ABOUT: tuple[str, ...] = ("context", "metadata", "labels")
ABOUT_KINDS = frozenset({Kind.CREATED, Kind.UPDATED})
# What ends a session, or its agent's work: nobody holds it any more.
ENDING_KINDS = frozenset({Kind.COMPLETED, Kind.FAILED, Kind.TOMBSTONE})
# The frame of a mark until the frames that it hides are gone.
UNFINISHED = b"\x01"
# Bytes that a slot takes beside states and frames, about.
EACH = 1400
# What to do first, for those who were overtaken.
LOOK = "read the session again (refresh or get_session)"
APPENDED, ALREADY, CHECKPOINT = Outcome.APPENDED, Outcome.ALREADY, Kind.CHECKPOINT


class Point(msgspec.Struct, frozen=True):
    """Where a log stands: what the next entry follows and builds on. A state that is None is not loaded."""

    seq: int
    append_id: bytes | None
    state: SessionState
    fence: int
    lease: bytes | None
    data_seq: int
    about_seq: int
    data: codec.State | None
    about: codec.State | None

    @classmethod
    def of(cls, head: Head) -> Point:
        last, row = head.last, head.row
        state = SessionState(row.state)
        return cls(last.seq, last.append_id, state, row.fence, row.lease, last.data_seq, last.about_seq, None, None)


def beginning() -> Point:
    return Point(0, None, SessionState.ACTIVE, 0, None, 0, 0, codec.State(), codec.State())


class Draft:
    """A group in the making: entries behind a point, and the point that they lead to."""

    author: object = None  # the session value that wants this written, if it was one
    request: object = None  # what was asked for, where the entry alone does not tell a retry
    timelines: Sequence[Timeline] = ()  # once landed: what decodes each entry

    def __init__(self, key: bytes, at: Point, limit: int) -> None:
        self.group = Group(key, at.append_id, [])
        self.at = at
        self._limit = limit

    def checkpoint(
        self,
        name: str,
        data: Data,
        metadata: Data | None = None,
        *,
        at: int = 0,
        append_id: bytes | None = None,
        sign: bool = True,
    ) -> None:
        note = self._note(metadata) if metadata else None
        written = codec.write(self.at.data, data, self.at.seq + 1, "data", self._limit)
        self._written(written, name, note, at, append_id or drawn(), sign=sign)

    def appended(self, name: str, items: dict[str, Any], metadata: Data | None) -> None:
        note = self._note(metadata) if metadata else None
        # The state before is used up by this: whatever can be refused must have been looked at by now.
        self._written(codec.append(self.at.data, items, self.at.seq + 1, self._limit), name, note, 0, drawn())

    def _note(self, metadata: Data) -> bytes:
        return codec.note(as_data(metadata, "metadata"), "metadata", self._limit)

    def _written(
        self, written: codec.Written, name: str, note: bytes | None, time: int, append_id: bytes, *, sign: bool = True
    ) -> None:
        frame, data = written
        at = self.at
        seq, recipe = at.seq + 1, data.recipe.pack()
        self.group.entries.append(
            Entry(seq, append_id, CHECKPOINT, name, time, sign, 0, at.fence, at.lease, seq, at.about_seq, recipe,
                  data.digest, note, frame)
        )  # fmt: skip
        self.at = Point(seq, append_id, at.state, at.fence, at.lease, seq, at.about_seq, data, at.about)

    def rollback(self, name: str, target: Entry | None, metadata: Data) -> None:
        """Back to the state of an older entry (None: before the first): its recipe once more, and no frame."""
        entry = self._entry(Kind.ROLLBACK, name)
        entry.note = codec.note(metadata, "metadata")
        if target is not None:
            entry.recipe, entry.digest = target.recipe, target.digest
        entry.data_seq = entry.seq
        self._add(entry, data=None, data_seq=entry.seq)

    def about(self, about: Data, *, kind: Kind = Kind.UPDATED, name: str = "session_updated", at: int = 0) -> Entry:
        """Context, metadata and labels as they are now: what changed in the log, the whole in the session's row."""
        written = codec.write(self.at.about, about, self.at.seq + 1, "session", self._limit)
        entry = self._entry(kind, name, at)
        entry.frame = written.frame
        entry.recipe, entry.digest, entry.about_seq = written.state.recipe.pack(), written.state.digest, entry.seq
        self._add(entry, about=written.state, about_seq=entry.seq)
        self.group.body = codec.note(about, "session", self._limit)
        self.group.labels = about["labels"]
        return entry

    def lifecycle(self, kind: Kind, name: str, data: Data, *, at: int = 0, append_id: bytes | None = None) -> None:
        entry = self._entry(kind, name, at, append_id)
        entry.note = codec.note(data, "data", self._limit)
        self._add(entry)
        if kind in ENDING_KINDS:
            self._let_go(entry)

    def take(self, kind: Kind, lease: bytes, worker: Worker, before: str) -> None:
        """From here on the worker holds the session, under a new lease: whatever the former holder sends collides."""
        entry = self._entry(kind, f"session_{kind.label}")
        entry.note = codec.note({"worker": worker.name} | ({"from": before} if before else {}), "data")
        entry.sign = kind is Kind.TAKEN  # who takes over a dead one's session says nothing about the session's agent
        entry.lease, self.group.owner = lease, worker.id
        self._add(entry, lease=lease)
        self.raise_fence()

    def raise_fence(self) -> None:
        """With the newest entry the session has another owner."""
        entry = self.group.entries[-1]
        entry.fence += 1
        self.at = replace(self.at, fence=entry.fence)

    def release(self) -> None:
        entry = self._entry(Kind.RELEASED, "session_released")
        entry.sign = True
        self._add(entry)
        self._let_go(entry)

    def step(
        self, kind: Kind, name: str, note: Data, result: bytes | None = None, *, at: int = 0, sign: bool = True
    ) -> None:
        """A journaled step: the note tells which, the frame holds its result."""
        entry = self._entry(kind, name, at)
        entry.note, entry.frame, entry.sign = codec.note(note, "step", self._limit), result, sign
        self._add(entry)

    def _let_go(self, entry: Entry) -> None:
        entry.lease = None
        self.at = replace(self.at, lease=None)

    def hide(self, ranges: Iterable[Range]) -> None:
        """Let the newest entry, a checkpoint, hide older ones: they are gone in the same step that stores it."""
        entry = self.group.entries[-1]
        entry.note = self._hiding(note_of(entry, entry.name), ranges)
        entry.kind = Kind.THINNED

    def clear(self, ranges: Iterable[Range], name: str, *, at: int = 0) -> None:
        """An entry that hides older ones and holds no data: what comes next starts anew."""
        entry = self._entry(Kind.CLEARED, name, at)
        entry.note, entry.data_seq = self._hiding({}, ranges), 0
        self._add(entry, data=codec.State(), data_seq=0)

    def mark(self, ranges: Iterable[Range]) -> None:
        """An entry that hides older checkpoints, which retention drops. It is no sign of life."""
        entry = self._entry(Kind.MARKED, "history_thinned")
        entry.note, entry.frame = self._hiding({}, ranges), UNFINISHED
        self._add(entry)

    def gone(self, kind: Kind, name: str, metadata: Data, *, at: int) -> None:
        """A checkpoint whose data was thinned before it came here: a later entry hides it."""
        entry = self._entry(kind, name, at)
        entry.note = codec.note(metadata, "metadata", self._limit) if metadata else None
        self._add(entry)

    def _hiding(self, note: Data, ranges: Iterable[Range]) -> bytes:
        return codec.note([note, merged(ranges)], "metadata", self._limit)

    def become(self, state: SessionState) -> None:
        if state != self.at.state:
            self.group.state = state.value
            self.at = replace(self.at, state=state)

    def made(self, made_as: type[C]) -> C:
        """The last entry as a checkpoint, once the draft was appended."""
        return self.timelines[-1].checkpoint(self.group.entries[-1], made_as)

    def landed(self, entry: Entry, made_as: type[C]) -> C:
        """An entry of this draft as a checkpoint, once it was appended."""
        return self.timelines[entry.seq - self.group.entries[0].seq].checkpoint(entry, made_as)

    def _entry(self, kind: Kind, name: str, at: int = 0, append_id: bytes | None = None) -> Entry:
        here = self.at
        entry = Entry(here.seq + 1, append_id or drawn(), kind, name, at, fence=here.fence, lease=here.lease)
        entry.data_seq, entry.about_seq = here.data_seq, here.about_seq
        return entry

    def _add(self, entry: Entry, **reached: Any) -> None:
        self.group.entries.append(entry)
        self.at = replace(self.at, seq=entry.seq, append_id=entry.append_id, **reached)


class Turns:
    """A lock whose holder hands it to the next in line, so that it is free only when nobody wants it."""

    __slots__ = ("_waiting", "wanted")

    def __init__(self) -> None:
        self.wanted = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> None:
        """Without waiting; only where nobody wants it."""
        self.wanted += 1

    def give(self) -> None:
        self.wanted -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
            self.wanted -= 1  # who was cancelled does not want it any more, though it has not heard of that yet

    async def __aenter__(self) -> None:
        self.wanted += 1
        if self.wanted == 1:
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was ours already
                self.give()
            elif turn in self._waiting:
                self._waiting.remove(turn)
                self.wanted -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self.give()


class Slot:
    look = LOOK

    def __init__(self, store: Store, session_id: str, key: bytes, at: Point, limit: int) -> None:
        self.session_id = session_id
        self.key = key
        self.at = at
        self.timeline = Timeline(session_id)  # the frames of the newest state
        self.lock = Turns()  # one append of a session at a time; the next one builds on it
        self.refused = False
        self.mine: int | None = None  # the fence under which its user holds the session, if so
        self.counted = 0  # its weight when it was last weighed
        self.newest: Entry | None = None  # the header of an entry that was read anyway: it may be the one we start from
        self.limit = limit
        self._store = store
        self._pending: Draft | None = None
        self._last: tuple[Draft, Verdict, Caller] | None = None  # what landed, and for whom

    def weigh(self) -> int:
        """How much heavier it has become since it was last weighed."""
        before, data, about = self.counted, self.at.data, self.at.about
        states = (0 if data is None else data.weight) + (0 if about is None else about.weight)
        self.counted = EACH + self.timeline.weight + states
        return self.counted - before

    @property
    def doubtful(self) -> bool:
        """True when nobody knows what became of the last write, or its caller did not hear of it."""
        if self._pending is not None or self._last is None:
            return self._pending is not None
        caller = CALLER.get()
        return bool(self._last[2].gone or (caller is not None and caller.gone))

    @property
    def busy(self) -> bool:
        return self.lock.wanted > 0 or self._pending is not None

    @property
    def ready(self) -> codec.State | None:
        """What the next checkpoint is compared with, when nothing is to be waited for before that is on its way."""
        if self.lock.wanted or self._pending is not None or (self._last is not None and self.doubtful):
            return None
        return self.at.data

    def meet(self, head: Head) -> None:
        """Follow the newest entry of the log; what was known of an older one goes."""
        if self.refused or head.last.append_id != self.at.append_id:
            self.key, self.at, self.refused = head.row.key, Point.of(head), False

    def draft(self) -> Draft:
        return Draft(self.key, self.at, self.limit)

    async def append(self, draft: Draft) -> Verdict:
        """Land the draft and move on, or raise. After an unknown outcome `settle` sends the same entries again."""
        self._pending, group = draft, draft.group
        [verdict] = await self._store.append([group])
        self._pending = None
        if verdict.outcome is APPENDED or verdict.outcome is ALREADY:
            self.at = draft.at
            draft.timelines = [*map(self._grown, group.entries, verdict.times)]
            caller = CALLER.get()
            self._last = None if caller is None else (draft, verdict, caller)
            return verdict
        self.refused = True
        raise refusal(self.session_id, verdict, draft.group.entries[0].seq - 1, self.mine, self.look)

    async def settle(self) -> tuple[Draft, Verdict] | None:
        """Send again what nobody knows the fate of; what it was, if there was any. One that landed unheard is told."""
        if self._pending is None:
            last, self._last, caller = self._last, None, CALLER.get()
            return last[:2] if last is not None and caller is not None and caller.same(last[2]) else None
        draft = self._pending
        return draft, await self.append(draft)

    def _grown(self, entry: Entry, at: int) -> Timeline:
        """What decodes an entry that landed at that time."""
        entry.at, frame = at, entry.frame
        if frame is not None and entry.kind in DATA_KINDS:
            if not frame[1] & PATCH:
                self.timeline = Timeline(self.session_id)  # the frames before it are not needed any more
            self.timeline.add(entry.seq, frame)
        return self.timeline

    async def load_data(self) -> codec.State:
        """What the next checkpoint is compared with."""
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
        """The state that an entry holds, and its frames; entry 0 is the empty state."""
        entry, self.newest = self.newest, None
        if entry is None or entry.seq != seq or entry.kind not in kinds:
            [entry] = await self._store.entries(self.key, [(seq, seq)]) if seq else [None]
        if entry is None or not entry.recipe:
            state = codec.State()
            state.tip = seq
            return state, []
        ranges = needed([entry])
        alone = ranges == [(seq, seq)] and entry.frame is not None  # a keyframe: it is here already
        frames = [entry] if alone else await self._store.entries(self.key, ranges, kinds=kinds)
        try:
            state = rebuilt(self.session_id, entry, frames)
        except Corrupt as exc:
            await self._look_again(exc)
            raise
        state.tip = seq
        return state, frames

    async def _look_again(self, why: Corrupt) -> None:
        """A frame is missing: the session went on, and what was its newest state was thinned since."""
        [head] = await self._store.heads([self.key])
        if head is None or head.last.append_id != self.at.append_id:
            self.refused = True
            outcome = Outcome.MISSING if head is None else Outcome.CONFLICT
            raise refusal(
                self.session_id, Verdict(outcome, head=head and head.last), self.at.seq, look=self.look
            ) from why


def rebuilt(session_id: str, entry: Entry, frames: list[Entry]) -> codec.State:
    """The state that an entry's frames add up to."""
    where = f"checkpoint {session_id}:{entry.seq}"
    try:
        recipe = codec.Recipe.unpack(entry.recipe)
        return codec.rebuild([e.frame for e in frames if e.frame is not None], entry.digest, where, recipe)
    except Corrupt as exc:
        raise Corrupt(where, exc.reason) from exc


def refusal(session_id: str, verdict: Verdict, seen: int, mine: int | None = None, look: str = LOOK) -> SaveslotError:
    """The error that a verdict stands for, to someone who holds the session under the fence `mine`, or to another.

    `look` is how that someone sees what came meanwhile.
    """
    match verdict.outcome:
        case Outcome.MISSING:
            return NotFound(f"session {session_id} was deleted; create it again, or read the new one (get_session)")
        case Outcome.FENCED if mine is not None and not _only_ended(verdict.head, mine):
            return LeaseLost(f"session {session_id} was taken over by another worker; stop working on it")
        case Outcome.LOST:
            return HistoryLost(
                f"session {session_id}: entry {seen}, which was acknowledged, is not in the database any more; "
                "it was restored from an older copy: compare it with your records before you go on"
            )
        case _:
            head = verdict.head
            came = "" if head is None else f": the newest is entry {head.seq} ({head.name})"
            return Conflict(
                f"session {session_id}: someone wrote after entry {seen}, on which this would build{came}; "
                f"nothing was stored; {look}, then decide anew",
                seen=seen,
                head=0 if head is None else head.seq,
            )


def _only_ended(head: Entry | None, fence: int) -> bool:
    """True when nobody took the session over: someone ended it, and with it the lease."""
    return head is not None and head.fence == fence and head.lease is None


def creation(row: Row, draft: Draft) -> Group:
    """The draft as the beginning of a session."""
    group = draft.group
    group.prev, group.create = None, row
    # A log that begins with a checkpoint says nothing about its session yet.
    row.body, row.labels = group.body or codec.note({part: {} for part in ABOUT}, "session"), group.labels or {}
    group.body = group.labels = None
    return group
