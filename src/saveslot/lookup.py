"""How sessions, their entries and their states are found: from an id or a ref to what the log holds there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from saveslot import codec, refs
from saveslot.errors import Corrupt, KeyMissing, LeaseHeld, NotFound
from saveslot.lifecycle import SessionState, follow
from saveslot.log import Entry, Head, Row, moment
from saveslot.model import (
    DATA_KINDS,
    HIDING_KINDS,
    KEEPING_KINDS,
    SHOWN_KINDS,
    TAKING_KINDS,
    AgentSession,
    Checkpoint,
    DamagedSession,
    Data,
    Kind,
    Owner,
    Seen,
    as_name,
    born,
    now,
)
from saveslot.slot import ABOUT, Draft, Slot
from saveslot.stores import Store
from saveslot.timeline import Range, Timeline, reach, shown

P = ParamSpec("P")
R = TypeVar("R")

# No log is as long.
BEYOND = 1 << 62
# So many entries behind the newest checkpoint are looked at with it, to know that none of them hides it.
NEAR = 100
# Entries about keeping that may come between two writes of someone who need not know of them.
MOST_KEPT = 16


class Overtaken(Exception):
    """What a reader was about to show was thinned meanwhile: read the head again."""


def with_a_fresh_head(read: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Read again when thinning came in between; each time takes another mark, so it ends."""

    @wraps(read)
    async def reading(*args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            with suppress(Overtaken):
                return await read(*args, **kwargs)

    return reading


class Lookup:
    """One namespace of one store, to look things up in."""

    def __init__(self, store: Store, namespace: str) -> None:
        self.store = store
        self.namespace = namespace

    async def head(self, session_id: str) -> Head | None:
        [head] = await self.store.heads([(self.namespace, as_name(session_id, "session_id"))])
        return head

    async def existing(self, session_id: str) -> Head:
        head = await self.head(session_id)
        if head is None:
            raise unknown(session_id, self.namespace)
        return head

    async def entry(self, head: Head, ref: str | int) -> Entry:
        """The entry that a ref names, without its frame."""
        session_id = head.row.session_id
        match refs.parse(ref, session_id):
            case refs.Number(seq):
                found = await self.shown(head, None, within=(seq, seq))
            case refs.Latest(0) if head.last.kind in DATA_KINDS:
                found = [head.last]
            case refs.Latest(back):
                found = await self._newest(head) if not back else []
                found = found or await self.shown(head, DATA_KINDS, newest=back + 1)
                found = found if len(found) == back + 1 else []
            case refs.Named(name):
                found = await self.shown(head, SHOWN_KINDS, name=name, newest=1)
        if not found:
            raise NotFound(
                f"session {session_id} has no checkpoint {ref!r}; history() and `saveslot log` list what it has"
            )
        return found[0]

    async def _newest(self, head: Head) -> list[Entry]:
        """The newest checkpoint, if it stands shortly before the head: steps, and who let a session go, come behind."""
        first, last = head.last.data_seq, head.last.seq
        if not first or last - first > NEAR:
            return []
        near = await self.store.entries(head.row.key, [(first, last)], kinds=DATA_KINDS | HIDING_KINDS, frames=False)
        return shown([entry for entry in near[:1] if entry.kind in DATA_KINDS], near, head.row.session_id)

    @with_a_fresh_head
    async def checkpoint(self, session_id: str, ref: str | int) -> Checkpoint:
        head = await self.existing(session_id)
        entry = await self.entry(head, ref)
        return (await self.timeline(head, [entry])).checkpoint(entry, Checkpoint)

    async def rollback(self, slot: Slot, head: Head, to: str | int) -> Draft:
        """The entry that goes back to what an older one held."""
        state = follow(slot.at.state, "rollback")
        target = await self.entry(head, to)
        data = await self.data_entry(head, target)
        draft = slot.draft()
        draft.request = ("rollback", to)  # a retry is the same once more: for `~1` the log looks another now
        told = {"to": f"{slot.session_id}:{target.seq}", "name": target.name}
        draft.rollback("session_rolled_back", data, told)
        draft.group.heartbeat = state is not slot.at.state
        draft.become(state)
        return draft

    async def data_entry(self, head: Head, entry: Entry) -> Entry | None:
        """The entry that holds the agent's data as of `entry`; None before the first checkpoint."""
        if entry.kind in DATA_KINDS:
            return entry
        if not entry.data_seq:
            return None
        found = await self.shown(head, None, within=(entry.data_seq, entry.data_seq))
        if not found:
            where = f"{head.row.session_id}:{entry.seq}"
            raise NotFound(f"the agent's data as of {where} was thinned or cleared; history() lists what is left")
        return found[0]

    async def shown(
        self,
        head: Head,
        kinds: frozenset[Kind] | None,
        *,
        within: Range | None = None,
        name: str | None = None,
        newest: int | None = None,
    ) -> list[Entry]:
        """Entries as of that head that nothing hides, without their frames; `newest` the last n of them."""
        key, session_id, last = head.row.key, head.row.session_id, head.last.seq
        reach = within or (1, last)
        if kinds is not None and within is name is newest is None:
            found = await self.store.entries(key, [reach], kinds=kinds | HIDING_KINDS, frames=False)
            return shown([e for e in found if e.kind in kinds], found, session_id)
        found = await self.store.entries(key, [reach], kinds=kinds, name=name, newest=newest, frames=False)
        if not found or found[0].seq >= last:
            return found
        # Only a later entry can hide one.
        hiding = await self.store.entries(key, [(found[0].seq + 1, last)], kinds=HIDING_KINDS, frames=False)
        left = shown(found, hiding, session_id)
        if newest is not None and len(left) < len(found):
            left = await self.shown(head, kinds, within=reach, name=name)
            left = left[max(0, len(left) - newest) :]
        return left

    @with_a_fresh_head
    async def state_at(self, session_id: str, ref: str | int) -> codec.State:
        """The agent's data as of a ref; one that reads as another session's checkpoint id is looked up there."""
        other = refs.elsewhere(ref)
        if other is not None and other[0] != session_id and (head := await self.head(other[0])) is not None:
            ref = other[1]
        else:
            head = await self.existing(session_id)
        data = await self.data_entry(head, await self.entry(head, ref))
        if data is None:
            return codec.State()
        return (await self.timeline(head, [data])).state(data)

    async def timeline(
        self,
        head: Head,
        entries: Iterable[Entry],
        kinds: frozenset[Kind] = DATA_KINDS,
        *,
        since: int = 0,
        thinned: frozenset[int] = frozenset(),
    ) -> Timeline:
        """What rebuilds these entries. `Overtaken` when a frame is missing that was thinned after that head."""
        recipes = {e.seq: codec.Recipe.unpack(e.recipe) for e in entries if e.kind in kinds and e.recipe}
        ranges = reach(recipes.values())
        frames = await self.store.entries(head.row.key, ranges, kinds=kinds) if ranges else []
        timeline = Timeline(head.row.session_id, frames, since, thinned)
        if not all(timeline.whole(recipe) for seq, recipe in recipes.items() if seq not in thinned):
            news = await self.store.entries(head.row.key, [(head.last.seq + 1, BEYOND)], kinds=HIDING_KINDS, newest=1)
            if news or await self.store.heads([head.row.key]) == [None]:
                raise Overtaken
        return timeline

    async def hidden(self, head: Head) -> frozenset[int]:
        """The seqs of the checkpoints that something hides as of that head."""
        kinds = DATA_KINDS | HIDING_KINDS
        found = await self.store.entries(head.row.key, [(1, head.last.seq)], kinds=kinds, frames=False)
        data = [entry for entry in found if entry.kind in DATA_KINDS]
        return frozenset(e.seq for e in data).difference(e.seq for e in shown(data, found, head.row.session_id))

    async def overtaken(self, head: Head, seen: int, append_id: bytes) -> bool:
        """True when all that came behind what someone has seen is about keeping: nobody's work builds on that."""
        came = await self.store.entries(head.row.key, [(seen, head.last.seq)], newest=MOST_KEPT, frames=False)
        at_seen = came[:1] and came[0].seq == seen and came[0].append_id == append_id
        return bool(at_seen) and all(entry.kind in KEEPING_KINDS for entry in came[1:])

    def session(self, head: Head, *, locked: bool = False) -> AgentSession:
        """`locked`: one that is sealed and cannot be opened may be shown, without its context and metadata."""
        row, last = head.row, head.last
        if isinstance(row.locked, KeyMissing) and not locked:
            raise row.locked
        known: Data = {
            "session_id": row.session_id,
            "agent_type": row.agent_type,
            "user_id": row.user_id,
            "state": SessionState(row.state),
            "created_at": moment(row.created_at),
            "last_heartbeat": moment(max(row.heartbeat, last.alive)),
        }
        try:
            told = _about(row)
        except Corrupt as exc:  # who lists, claims or ends many sessions must not stop at one
            session, texts = DamagedSession(exc, **known, labels=row.labels), dict[str, bytes]()
        else:
            session, texts = AgentSession(**known, **told), {part: codec.encode(told[part], part)[0] for part in ABOUT}
        session.seen = Seen(row.key, last.seq, last.append_id, texts, session.state, born(session))
        session.locked = isinstance(row.locked, KeyMissing)
        session.owner = None if row.lease is None else Owner(row.worker, row.left / 1_000_000)
        return session

    async def held(self, head: Head) -> LeaseHeld:
        """The error for whoever wants to save in a session that somebody else holds."""
        row = head.row
        [taken] = await self.store.entries(row.key, kinds=TAKING_KINDS, newest=1, frames=False)
        since, until = moment(taken.at), now() + timedelta(microseconds=row.left)
        hint = f"until {until:%H:%M:%S} at least" if row.left else "it is silent: soon others may take over"
        return LeaseHeld(
            f"session {row.session_id} is held by {row.worker or 'a worker unknown'} since {since.isoformat()}; {hint}",
            owner=row.worker,
            since=since.isoformat(),
            until=until.isoformat(),
        )


def anew(session_id: str) -> NotFound:
    return NotFound(f"session {session_id} was deleted and created anew; read the new one (get_session)")


def unknown(session_id: str, namespace: str) -> NotFound:
    return NotFound(f"no session {session_id} in namespace {namespace}; find() and `saveslot ls` list what is there")


def _about(row: Row) -> Data:
    """Context, metadata and labels; of a session whose key we have not only what its row shows."""
    if isinstance(row.locked, KeyMissing):
        return {"context": {}, "metadata": {}, "labels": row.labels}
    if row.locked is not None:
        raise row.locked
    return codec.read_note(row.body)
