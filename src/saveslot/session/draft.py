"""A group of entries under construction, the point of the log after it, and the arguments of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
from msgspec.structs import replace

from saveslot import codec
from saveslot.codec import difference
from saveslot.codec.text import checked_key
from saveslot.errors import InvalidInput, TooLarge
from saveslot.session.requests import request
from saveslot.session.timeline import C, Range, Timeline, merged, note_of
from saveslot.values.checks import Data, as_data, as_labels, as_name
from saveslot.values.ids import fresh_append_id, stamped, stamping
from saveslot.values.kinds import DATA_KINDS, ENDING_KINDS, Kind
from saveslot.values.lifecycle import SessionState, follow
from saveslot.values.log import ID, NO_WORKER, Entry, Group, Head, Row, Verdict, Worker, moment
from saveslot.values.refs import elsewhere

if TYPE_CHECKING:
    from saveslot.session.log import Log

CHECKPOINT = Kind.CHECKPOINT

# The session's own dicts, besides the agent's data.
ABOUT: tuple[str, ...] = ("context", "metadata", "labels")
# Bytes that a body may be longer than the state in it: for the entry that wrote it, and its session.
PLACE_ROOM = 64

# No metadata, encoded.
NONE = (b"{}", False)

# A mark's frame until the frames that it hides are emptied.
UNFINISHED = b"\x01"


# Metadata key of a checkpoint's labels, by which `find` finds its session.
LABELS = "labels"
# Label of a fork's first entry, by which `find` finds the forks of a session.
FORKED = "saveslot.forked_from"


def entry_labels(metadata: Data) -> dict[str, str]:
    """Return the labels in a checkpoint's metadata; none if these are something else, as in an old export."""
    try:
        return as_labels(metadata.get(LABELS), f"metadata.{LABELS}")
    except InvalidInput:
        return {}


def labels_of(entry: Entry, session_id: str, metadata: Data) -> dict[str, str]:
    """Return the labels that an entry was written with. `metadata`: its session's."""
    if entry.kind in DATA_KINDS:
        return entry_labels(note_of(entry, f"{session_id}:{entry.seq}"))
    origin = metadata.get("forked_from")
    if entry.kind is not Kind.CREATED or not isinstance(origin, str):
        return {}
    place = elsewhere(origin)  # of a checkpoint; a session without one is named itself
    return {FORKED: origin if place is None else place[0]}


class Point(msgspec.Struct, frozen=True):
    """A log's position: the entry that the next one follows, and the states it builds on (None: not loaded)."""

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
    """A group under construction: entries after a point, and the point that they lead to."""

    verdict: Verdict | None = None  # set on landing
    timelines: Sequence[Timeline] = ()  # set on landing: the timeline that decodes each entry
    landed: Callable[[Any, Draft, Verdict], None] | None = None  # called when it lands, also if a later call sent it
    blind: bool = False  # written after whatever is newest, which its author need not have read
    joint: Any = None  # the `Joint` that it lands with, if it is one of several
    answer: Any = None  # of the call that wrote it, where the entries do not tell: a repeated call gets it

    def __init__(self, key: bytes, at: Point, limit: int, stamp: bytes = b"") -> None:
        """`stamp`: of the token that this process writes with, as its store says; a server's requests set theirs."""
        self.group = Group(key, at.append_id, [])
        self.at = at
        self._limit = limit
        self._stamp = stamp or stamping.get()

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
        note = self._encoded(metadata) if metadata else NONE
        written = codec.write(self.at.data, data, self.at.seq + 1, "data", self._limit)
        self._written(written, name, note, at, self._id(append_id), sign=sign)
        if metadata and LABELS in metadata:
            self.group.entries[-1].labels = entry_labels(metadata)

    def changed(self, name: str, edits: codec.Edits, metadata: Data | None) -> None:
        note = self._encoded(metadata) if metadata else NONE
        # `codec.change` consumes the previous state, so every check must come before it.
        self._written(codec.change(self.at.data, edits, self.at.seq + 1, self._limit), name, note, 0, self._id())
        if metadata and LABELS in metadata:
            self.group.entries[-1].labels = entry_labels(metadata)

    def _encoded(self, metadata: Data) -> tuple[bytes, bool]:
        return codec.encode(as_data(metadata, "metadata"), "metadata", self._limit)

    def _written(
        self,
        written: codec.Written,
        name: str,
        metadata: tuple[bytes, bool],
        time: int,
        append_id: bytes,
        *,
        sign: bool = True,
    ) -> None:
        at, data = self.at, written.state
        seq = at.seq + 1
        recipe = data.recipe.pack(seq)
        note = codec.noted(*metadata, written.changes) if written.changes or metadata is not NONE else None
        self.group.entries.append(
            Entry(seq, append_id, CHECKPOINT, name, time, sign, 0, at.fence, at.lease, seq, at.about_seq, recipe,
                  data.digest, note, written.frame, base=written.base)
        )  # fmt: skip
        self.at = Point(seq, append_id, at.state, at.fence, at.lease, seq, at.about_seq, data, at.about)

    def rollback(self, name: str, target: Entry | None, metadata: Data) -> None:
        """Return to the state of an older entry (None: before the first) by repeating its recipe, without a frame."""
        entry = self._entry(Kind.ROLLBACK, name)
        entry.note = codec.note(metadata, "metadata")
        if target is not None:
            recipe = codec.Recipe.unpack(target.recipe, target.seq)
            entry.recipe, entry.digest = recipe.pack(entry.seq), target.digest
        entry.data_seq = entry.seq
        self._add(entry, data=None, data_seq=entry.seq)

    def about(self, about: Data, *, kind: Kind = Kind.UPDATED, name: str = "session_updated", at: int = 0) -> Entry:
        """Write context, metadata and labels: their change to the log, all of them to the session's row."""
        written = codec.write(self.at.about, about, self.at.seq + 1, "session", self._limit)
        entry = self._entry(kind, name, at)
        entry.frame, entry.base, entry.about_seq = written.frame, written.base, entry.seq
        entry.recipe, entry.digest = written.state.recipe.pack(entry.seq), written.state.digest
        self._add(entry, about=written.state, about_seq=entry.seq)
        self.group.body = body_of(self.group.key, about, entry.seq, self._limit + PLACE_ROOM)
        self.group.labels = about["labels"]
        return entry

    def lifecycle(self, kind: Kind, name: str, data: Data, *, at: int = 0, append_id: bytes | None = None) -> None:
        entry = self._entry(kind, name, at, append_id)
        entry.note = codec.note(data, "data", self._limit)
        self._add(entry)
        if kind in ENDING_KINDS:
            self._let_go(entry)

    def pause(self) -> None:
        """Let an active session rest."""
        self.lifecycle(Kind.PAUSED, "session_paused", {"previous_state": SessionState.ACTIVE.value})
        self.become(SessionState.PAUSED)

    def take(
        self, kind: Kind, lease: bytes, worker: Worker, before: str, attempts: int = 0, silent_since: int = 0
    ) -> None:
        """Make the worker the owner, under a new lease: the former owner's writes are refused from here on."""
        entry = self._entry(kind, f"session_{kind.label}")
        note: Data = {"worker": worker.name}
        if before:
            note["from"] = before
        if silent_since:  # the last heartbeat of that worker, which died some time after it
            note["silent_since"] = moment(silent_since).isoformat()
        if attempts:  # failed ones since the last progress
            note["attempts"] = attempts
        entry.note = codec.note(note, "data")
        entry.sign = kind is Kind.TAKEN  # taking over an orphan is not a sign of life of its agent
        entry.lease, self.group.owner = lease, worker.id
        self._add(entry, lease=lease)
        self.raise_fence()

    def raise_fence(self) -> None:
        """Count the draft's last entry as a new owner."""
        entry = self.group.entries[-1]
        entry.fence += 1
        self.at = replace(self.at, fence=entry.fence)

    def release(self, note: Data | None = None) -> None:
        """Give up ownership: without a note there is no owner; with one (an error) it is `NO_WORKER`, an orphan's."""
        entry = self._entry(Kind.RELEASED, "session_released")
        entry.sign = True
        self._add(entry)
        if note is None:
            self._let_go(entry)
        else:  # under the same lease: no other entry has it, and the owner's own are over
            entry.note, self.group.owner = codec.note(note, "data"), NO_WORKER

    def dismiss(self, reason: str) -> None:
        """Take ownership away. The fence rises: the former owner must learn that it is over, whatever comes later."""
        entry = self._entry(Kind.RELEASED, "session_released")
        entry.note = codec.note({"reason": reason}, "data") if reason else None
        self._add(entry)
        self._let_go(entry)
        self.raise_fence()

    def cancel(self, reason: str) -> None:
        """Tell the owner to stop."""
        entry = self._entry(Kind.CANCELLED, "session_cancelled")
        entry.note = codec.note({"reason": reason}, "data") if reason else None
        self._add(entry)

    def record(self, name: str, note: bytes) -> None:
        """Add a value of its own. It is not a sign of life: any caller may add one."""
        entry = self._entry(Kind.RECORD, name)
        entry.note = note
        self._add(entry)

    def step(
        self, kind: Kind, name: str, note: Data, result: bytes | None = None, *, at: int = 0, sign: bool = True
    ) -> None:
        """Journal a step: its key is in the note, its result in the frame."""
        entry = self._entry(kind, name, at)
        entry.note, entry.frame, entry.sign = codec.note(note, "step", self._limit), result, sign
        self._add(entry)

    def _let_go(self, entry: Entry) -> None:
        entry.lease = None
        self.at = replace(self.at, lease=None)

    def hide(self, ranges: Iterable[Range]) -> None:
        """Let the newest entry, a checkpoint, hide older ones, atomically with storing it."""
        entry = self.group.entries[-1]
        changed = codec.read_changes(entry.note)
        entry.note = self._hiding(
            note_of(entry, entry.name), ranges, codec.UNCHANGED if changed is None else changed.keys
        )
        entry.kind = Kind.THINNED

    def clear(self, ranges: Iterable[Range], name: str, *, at: int = 0) -> None:
        """Hide older entries and reset the data: the next checkpoint starts from an empty state."""
        entry = self._entry(Kind.CLEARED, name, at)
        entry.note, entry.data_seq = self._hiding({}, ranges), 0
        self._add(entry, data=codec.State(), data_seq=0)

    def mark(self, ranges: Iterable[Range]) -> None:
        """Hide older checkpoints that retention drops. A mark is not a sign of life."""
        entry = self._entry(Kind.MARKED, "history_thinned")
        entry.note, entry.frame = self._hiding({}, ranges), UNFINISHED
        self._add(entry)

    def gone(self, kind: Kind, name: str, metadata: Data, *, at: int) -> None:
        """Add an imported checkpoint whose data was thinned before the export; a later entry hides it."""
        entry = self._entry(kind, name, at)
        entry.note = codec.note(metadata, "metadata", self._limit) if metadata else None
        self._add(entry)

    def _hiding(self, note: Data, ranges: Iterable[Range], changes: codec.Changes = codec.UNCHANGED) -> bytes:
        return codec.note([note, merged(ranges)], "metadata", self._limit, changes)

    def become(self, state: SessionState) -> None:
        if state != self.at.state:
            self.group.state = state.value
            self.at = replace(self.at, state=state)

    def stored(self, checkpoint: type[C], entry: Entry | None = None) -> C:
        """Return an entry of this landed draft (default: the last one) as a checkpoint."""
        entry = entry or self.group.entries[-1]
        return checkpoint.stored(self.timelines[entry.seq - self.group.entries[0].seq], entry)

    def _entry(self, kind: Kind, name: str, at: int = 0, append_id: bytes | None = None) -> Entry:
        here = self.at
        entry = Entry(here.seq + 1, self._id(append_id), kind, name, at, fence=here.fence, lease=here.lease)
        entry.data_seq, entry.about_seq = here.data_seq, here.about_seq
        return entry

    def _id(self, append_id: bytes | None = None) -> bytes:
        own = append_id or fresh_append_id()
        return stamped(own, self._stamp) if self._stamp else own

    def _add(self, entry: Entry, **reached: Any) -> None:
        self.group.entries.append(entry)
        self.at = replace(self.at, seq=entry.seq, append_id=entry.append_id, **reached)


def mark_of(key: bytes) -> str:
    """Return the part of a session's key that its body repeats: the random one."""
    return key[ID // 2 :].hex()


def body_of(key: bytes, about: Data, seq: int, limit: int) -> bytes:
    """Return a row's body, which names the session and the entry that it is of."""
    return codec.note({**about, "seq": seq, "key": mark_of(key)}, "session", limit)


def creation(row: Row, draft: Draft) -> Group:
    """Turn the draft into the first group of a session."""
    group = draft.group
    group.prev, group.create = None, row
    # A log that begins with a checkpoint has no context, metadata or labels yet.
    row.body, row.labels = group.body or codec.note({part: {} for part in ABOUT}, "session"), group.labels or {}
    group.body = group.labels = None
    return group


# The arguments that change some keys; they combine.
EDITS = ("put", "drop", "append", "cut")


class Save(msgspec.Struct):
    name: str
    data: Data | None
    metadata: Data | None = None
    put: Mapping[str, Any] | None = None
    drop: Collection[str] | None = None
    append: Mapping[str, Sequence[Any]] | None = None
    cut: Mapping[str, int] | None = None
    patch: Sequence[Mapping[str, Any]] | None = None
    request: bytes = b""  # of a call with an idempotency key

    @property
    def edits(self) -> codec.Edits:
        """The changes of single keys."""
        return codec.Edits(self.put or {}, self.drop or (), self.append or {}, self.cut or {})

    @property
    def edited(self) -> bool:
        """True if single keys are named."""
        return not (self.put is self.drop is self.append is self.cut is None)

    @property
    def whole(self) -> bool:
        """True if no part of the state is named: all of it is saved, or kept."""
        return self.patch is self.put is self.drop is self.append is self.cut is None

    def checked(self) -> Self:
        as_name(self.name, "name")
        if isinstance(self.metadata, dict) and LABELS in self.metadata:
            as_labels(self.metadata[LABELS], f"metadata.{LABELS}")
        if not self.whole:
            self._check_edits()
        return self

    def _check_edits(self) -> None:
        for part, what in (("put", "values"), ("append", "lists"), ("cut", "numbers")):
            value = getattr(self, part)
            if value is not None and not isinstance(value, Mapping):
                raise InvalidInput(part, f"must be a dict of {what}, not {type(value).__name__}")
        if self.drop is not None:
            keys: Any = self.drop
            if not isinstance(keys, list | tuple | set | frozenset):
                raise InvalidInput("drop", f"must be a list of keys, not {type(keys).__name__}")
            self.drop = [*dict.fromkeys(checked_key(key, "drop") for key in cast("list[Any]", keys))]
        if (self.data is not None) + (self.patch is not None) + self.edited > 1:
            raise InvalidInput(
                "checkpoint", "pass only one of data, patch, and changes of keys (put, drop, append, cut)"
            )

    def copied(self, limit: int) -> Self:
        """Copy the arguments in place: the caller may change its own while the write waits its turn."""
        for part in ("data", "metadata", *EDITS, "patch"):
            if (given := getattr(self, part)) is not None:
                text, tagged = codec.encode(given, part, limit)
                setattr(self, part, codec.decode(text, tagged=tagged))
        return self

    def draft(self, log: Log, state: codec.State) -> Draft:
        """Draft the checkpoint after the log's newest state."""
        if log.at.state is not SessionState.ACTIVE:
            follow(log.at.state, "checkpoint")
        draft = Draft(log.key, log.at, log.limit, log.stamp)
        if self.patch is not None:
            self._patch(draft, state, self.patch)
        elif self.data is not None:
            draft.checkpoint(self.name, self.data, self.metadata)
        else:
            draft.changed(self.name, self.edits, self.metadata)
        if self.request:
            draft.group.entries[-1].request = self.request
        return draft

    def _patch(self, draft: Draft, state: codec.State, patch: Sequence[Mapping[str, Any]]) -> None:
        edits = _as_edits(state, patch)
        if edits is None:
            draft.checkpoint(self.name, difference.patched(state.value(), patch), self.metadata)
            return
        try:
            draft.changed(self.name, edits, self.metadata)
        except InvalidInput as exc:
            raise InvalidInput(exc.path.replace("put", "data", 1), exc.reason) from None
        except TooLarge as exc:
            raise TooLarge("data", limit=exc.limit, size=exc.size) from None

    def requested(self, key: str | None) -> Self:
        """Note the call's request: its content is what was given."""
        if key is not None:
            given = {part: getattr(self, part) for part in ("name", "data", "metadata", *EDITS, "patch")}
            self.request = request(key, "checkpoint", given)
        return self


# Stands for a value that a patch does not touch.
_UNTOUCHED = object()


def _as_edits(state: codec.State, patch: Sequence[Mapping[str, Any]]) -> codec.Edits | None:
    """Return a patch as changes of the keys that it touches; None if it touches the state as a whole."""
    items = difference.appended_items(patch)
    if items is not None and all(state.texts.get(key, b"")[:1] == b"[" for key in items):
        return codec.Edits(append=items)
    touched = difference.touched_keys(patch)
    if touched is None:
        return None
    before = {
        key: codec.decode(text, tagged=state.tagged) if key in touched else _UNTOUCHED
        for key, text in state.texts.items()
    }
    after: dict[str, Any] = difference.patched(before, patch)
    put = {key: value for key, value in after.items() if key not in before or value is not before[key]}
    return codec.Edits(put, [key for key in before if key not in after])
