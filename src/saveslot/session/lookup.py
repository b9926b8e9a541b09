"""Lookup of sessions, entries and states by id or ref."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from saveslot import codec
from saveslot.codec.excerpt import Excerpt, Header, Scattered, Wanting, excerpt
from saveslot.errors import Corrupt, KeyMissing, LeaseHeld, NotFound
from saveslot.session.draft import mark_of
from saveslot.session.known import KnownEntries
from saveslot.session.model import AgentSession, Checkpoint, DamagedSession, Owner, Seen, born
from saveslot.session.refusals import unknown
from saveslot.session.timeline import Range, Timeline, frames_of, visible
from saveslot.session.vault import Vault
from saveslot.session.worker import worker_name
from saveslot.values import advice, refs
from saveslot.values.checks import Data, as_name, now
from saveslot.values.kinds import (
    DATA_KINDS,
    HIDING_KINDS,
    MAIN_KINDS,
    SHOWN_KINDS,
    SIDE_KINDS,
    TAKING_KINDS,
    Kind,
)
from saveslot.values.lifecycle import SessionState
from saveslot.values.log import MAX_SEQ, Entry, Head, Row, Wanted, micros, moment
from saveslot.values.versions import Version

P = ParamSpec("P")
R = TypeVar("R")

# At most this many entries after the newest checkpoint are read with it, to see whether one of them hides it.
NEAR = 100
# Reads of one call that retention may overtake: each takes another mark, so more than a few mean damage.
MAX_TRIES = 100


class Overtaken(Exception):
    """Entries were thinned or purged while they were being read: read the head again."""


def with_a_fresh_head(read: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Retry a read that thinning or a purge overtook. Each retry requires another one, unless the log is damaged."""

    @wraps(read)
    async def reading(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(MAX_TRIES):
            with suppress(Overtaken):
                return await read(*args, **kwargs)
        raise Corrupt("the session's log", f"changed during each of {MAX_TRIES} reads, or its entries are gone")

    return reading


class Lookup:
    """Reads from one namespace of one store."""

    def __init__(self, store: Vault, namespace: str, known: KnownEntries | None = None) -> None:
        self.store = store
        self.namespace = namespace
        self._known = known  # None: these reads are not a caller's

    async def head(self, session_id: str, *, state: bool = False) -> Head | None:
        [head] = await self.heads([session_id], state=state)
        return head

    async def heads(self, ids: Sequence[str], *, state: bool = False) -> list[Head | None]:
        """Return the heads of several sessions, in one read."""
        scopes = [(self.namespace, as_name(session_id, "id")) for session_id in ids]
        before = [] if self._known is None else [self._known.stamp(scope) for scope in scopes]
        heads = await self.store.heads(scopes, state=state)
        for n, head in enumerate(heads):
            if head is not None and isinstance(head.row.locked, Corrupt):
                raise head.row.locked
            if head is not None and self._known is not None:
                self._known.read(head, before[n])
        return heads

    async def existing(self, session_id: str, *, state: bool = False) -> Head:
        head = await self.head(session_id, state=state)
        if head is None:
            raise unknown(session_id, self.namespace)
        return head

    async def again(self, head: Head) -> Head:
        """Return the session's head as of now; `NotFound` if it was deleted since, even if its id is in use again."""
        fresh = await self.existing(head.row.session_id)
        if fresh.row.key != head.row.key:
            raise unknown(head.row.session_id, self.namespace)
        return fresh

    async def entry(self, head: Head, ref: str | int) -> Entry:
        """Return the entry that a ref names, without its frame."""
        session_id = head.row.session_id
        match refs.parse(ref, session_id):
            case refs.Number(seq):
                entries = await self.visible(head, None, within=(seq, seq))
            case refs.Latest(0) if head.last.kind in DATA_KINDS:
                entries = [head.last]
            case refs.Latest(back):
                entries = await self._newest(head) if not back else []
                entries = entries or await self.visible(head, DATA_KINDS, newest=back + 1)
                entries = entries if len(entries) == back + 1 else []
            case refs.Named(name):
                entries = await self.visible(head, SHOWN_KINDS, name=name, newest=1)
        if not entries:
            raise NotFound(f"session {session_id} has no checkpoint {ref!r}; {advice.CHECKPOINTS}")
        return entries[0]

    async def _newest(self, head: Head) -> list[Entry]:
        """Return the newest checkpoint if it is near the head: steps and a release may follow it."""
        first, last = head.last.data_seq, head.last.seq
        if not first or last - first > NEAR:
            return []
        near = await self.store.entries(
            head.row.key, Wanted([(first, last)], kinds=DATA_KINDS | HIDING_KINDS, frames=False)
        )
        return visible([entry for entry in near[:1] if entry.kind in DATA_KINDS], near, head.row.session_id)

    @with_a_fresh_head
    async def checkpoint(self, session_id: str, ref: str | int) -> Checkpoint:
        head = await self.existing(session_id, state=ref == "latest")
        entry = await self.entry(head, ref)
        return Checkpoint.stored(await self.timeline(head, [entry]), entry)

    async def data_entry(self, head: Head, entry: Entry) -> Entry | None:
        """Return the entry with the agent's data as of `entry`; None before the first checkpoint."""
        if entry.kind in DATA_KINDS:
            return entry
        if not entry.data_seq:
            return None
        entries = await self.visible(head, None, within=(entry.data_seq, entry.data_seq))
        if not entries:
            where = f"{head.row.session_id}:{entry.seq}"
            raise NotFound(f"the agent's data as of {where} was thinned or cleared; {advice.WHAT_IS_LEFT}")
        return entries[0]

    async def visible(
        self,
        head: Head,
        kinds: frozenset[Kind] | None,
        *,
        within: Range | None = None,
        name: str | None = None,
        newest: int | None = None,
    ) -> list[Entry]:
        """Return the entries as of that head that are not hidden, without frames; with `newest` only the last n."""
        key, session_id, last = head.row.key, head.row.session_id, head.last.seq
        reach = within or (1, last)
        if kinds is not None and within is name is newest is None:
            log = await self.store.entries(key, Wanted([reach], kinds=kinds | HIDING_KINDS, frames=False))
            if not log and Kind.CREATED in kinds:
                raise Overtaken  # purged: a log has its first entry
            return visible([e for e in log if e.kind in kinds], log, session_id)
        entries = await self.store.entries(key, Wanted([reach], kinds=kinds, name=name, newest=newest, frames=False))
        if not entries or entries[0].seq >= last:
            return entries
        # Only a later entry can hide one.
        hiding = await self.store.entries(key, Wanted([(entries[0].seq + 1, last)], kinds=HIDING_KINDS, frames=False))
        left = visible(entries, hiding, session_id)
        if newest is not None and len(left) < len(entries):
            left = await self.visible(head, kinds, within=reach, name=name)
            left = left[max(0, len(left) - newest) :]
        return left

    @with_a_fresh_head
    async def state_at(self, session_id: str, ref: str | int) -> codec.State:
        """Return the agent's data as of a ref, which may be another session's checkpoint id."""
        other = refs.elsewhere(ref)
        if other is not None and other[0] != session_id and (head := await self.head(other[0])) is not None:
            ref = other[1]
        else:
            head = await self.existing(session_id, state=ref == "latest")
        return await self.state_of(head, ref)

    async def state_of(self, head: Head, ref: str | int) -> codec.State:
        """Return the agent's data as of a ref of the session. `Overtaken` if it was thinned after that head."""
        data = await self.data_entry(head, await self.entry(head, ref))
        if data is None:
            return codec.State()
        return (await self.timeline(head, [data])).state(data)

    async def part(
        self, head: Head, entry: Entry, keys: Collection[str] | None = None, last: Mapping[str, int] | None = None
    ) -> Data:
        """Return some keys of the data of an entry (None: all), of the lists in `last` only so many items from the end.

        Reads the frames that hold them, and opens no others. `Overtaken` if one was thinned after that head.
        """
        counts = last or {}
        recipe = codec.Recipe.unpack(entry.recipe, entry.seq)
        if recipe.base:  # else it is of format 1, or empty
            with suppress(Scattered):
                return await self._part(head, entry, recipe, keys, counts)
        return excerpt((await self.timeline(head, [entry])).state(entry), keys, counts)

    async def _part(
        self, head: Head, entry: Entry, recipe: codec.Recipe, keys: Collection[str] | None, counts: Mapping[str, int]
    ) -> Data:
        key, where = head.row.key, f"checkpoint {head.row.session_id}:{entry.seq}"
        near = await self.store.cut_entries(key, Wanted([(recipe.base, recipe.base), *recipe.ranges], kinds=DATA_KINDS))
        shorts = [frame for short, frame in near if short.seq != recipe.base and isinstance(frame, bytes)]
        newest = [base for base, _ in near if base.seq == recipe.base]
        before = [(base.base, base.base) for base in newest if base.base]
        older = await self.store.entries(key, Wanted(before, kinds=DATA_KINDS, frames=False)) if before else []
        try:
            part = Excerpt(recipe, entry.digest, where, _headers([*older, *newest]), shorts)
            fresh = [(base.seq, frame) for base, frame in near if base.seq == recipe.base]
            while True:
                for seq, frame in fresh:
                    part.add(seq, frame)
                try:
                    return part.value(keys, counts)
                except Wanting as wanting:
                    wanted = Wanted([(seq, seq) for seq in sorted(wanting.seqs)], kinds=DATA_KINDS)
                    fresh = []
                if wanted.ranges:
                    fresh = [(base.seq, frame) for base, frame in await self.store.cut_entries(key, wanted)]
                else:
                    chain = Wanted([], kinds=DATA_KINDS, frames=False, chain=recipe.base)
                    part.add_chain(_headers(await self.store.entries(key, chain)))
        except Corrupt as exc:
            await self._look_again(head, exc)
            raise

    async def _look_again(self, head: Head, why: Corrupt | None = None) -> None:
        """Raise `Overtaken` if entries were thinned since that head: then nothing is damaged."""
        news = Wanted([(head.last.seq + 1, MAX_SEQ)], kinds=HIDING_KINDS, newest=1)
        if await self.store.entries(head.row.key, news) or await self.store.heads([head.row.key]) == [None]:
            raise Overtaken from why

    async def timeline(
        self,
        head: Head,
        entries: Iterable[Entry],
        kinds: frozenset[Kind] = DATA_KINDS,
        *,
        since: int = 0,
        thinned: frozenset[int] = frozenset(),
    ) -> Timeline:
        """Return a timeline with the frames of these entries. `Overtaken` if one was thinned after that head."""
        recipes = {e.seq: codec.Recipe.unpack(e.recipe, e.seq) for e in entries if e.kind in kinds and e.recipe}
        if head.frames is not None and head.data is not None and [*recipes] == [head.data.seq]:
            frames = head.frames
        else:
            frames = await frames_of(self.store, head.row.key, recipes.values(), kinds)
        timeline = Timeline(head.row.session_id, frames, since, thinned)
        if not all(timeline.whole(recipe) for seq, recipe in recipes.items() if seq not in thinned):
            await self._look_again(head)
        return timeline

    async def hidden(self, head: Head) -> frozenset[int]:
        """Return the seqs of the checkpoints hidden as of that head."""
        kinds = DATA_KINDS | HIDING_KINDS
        log = await self.store.entries(head.row.key, Wanted([(1, head.last.seq)], kinds=kinds, frames=False))
        data = [entry for entry in log if entry.kind in DATA_KINDS]
        return frozenset(e.seq for e in data).difference(e.seq for e in visible(data, log, head.row.session_id))

    async def current(self, head: Head, seen: Version) -> bool:
        """True if the entry that the caller has seen is the newest one, records, pins and retention marks aside."""
        last = head.last
        if seen.names(last.seq, last.append_id):
            return True
        if last.kind not in SIDE_KINDS or last.seq < seen.seq:
            return False
        [there, later] = await asyncio.gather(
            self.store.entries(head.row.key, Wanted([(seen.seq, seen.seq)], frames=False)),
            self.store.entries(
                head.row.key, Wanted([(seen.seq + 1, last.seq)], kinds=MAIN_KINDS, newest=1, frames=False)
            ),
        )
        return not later and any(seen.names(entry.seq, entry.append_id) for entry in there)

    async def newest(self, head: Head) -> Entry:
        """Return the newest entry, records, pins and retention marks aside, without its frame.

        Of a sealed session without its key, the newest one: its log cannot be read, and nothing can follow a version.
        """
        if head.last.kind not in SIDE_KINDS or head.row.locked is not None:
            return head.last
        reach = Wanted([(1, head.last.seq)], kinds=MAIN_KINDS, newest=1, frames=False)
        return next(iter(await self.store.entries(head.row.key, reach)), head.last)

    def session(self, head: Head, newest: Entry | None = None, *, locked: bool = False) -> AgentSession:
        """Return the session value. With `locked`, also of a sealed session without its key: no context or metadata.

        `newest` is what `newest(head)` returns, where the value's version matters.
        """
        row, last = head.row, head.last
        newest = newest or last
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
            about, texts = about_of(row, last)
        except Corrupt as exc:  # one damaged session must not stop a caller that lists, claims or ends many
            session, texts = DamagedSession(exc, **known, labels=row.labels), {}
        else:
            session = AgentSession.stored(**known, **about)
        session.seen = Seen(
            row.key,
            last.seq,
            last.append_id,
            texts,
            session.state,
            born(session),
            (newest.seq, newest.append_id),
            id(self.store),
        )
        session.locked = isinstance(row.locked, KeyMissing)
        session.owner, session.loaded = owner_of(row), False
        return session

    async def owner(self, head: Head) -> Owner | None:
        """Return the worker that holds the session, with the time since when."""
        row = head.row
        if row.lease is None:
            return None
        takings = await self.store.entries(row.key, Wanted(kinds=TAKING_KINDS, newest=1, frames=False))
        return owner_of(row, moment(takings[0].at) if takings else None)

    async def held(self, head: Head) -> LeaseHeld:
        """Return the error for a write to a session that another worker holds."""
        row = head.row
        takings = await self.store.entries(row.key, Wanted(kinds=TAKING_KINDS, newest=1, frames=False))
        if not takings:
            raise Corrupt(f"session {row.session_id}", "its row names an owner, but no entry of its log does")
        [taken] = takings
        since, until = moment(taken.at), moment(micros(now()) + row.left)  # damage can put any number there
        holder, hint = row.worker or "an unknown worker", f"until {until:%H:%M:%S} at least"
        if not row.left:
            hint = "its heartbeat stopped: others may take over soon"
        elif row.worker == worker_name():
            holder = f"this process ({row.worker})"
            hint = str(advice.OWN_HOLD)
        return LeaseHeld(
            f"session {row.session_id} is held by {holder} since {since.isoformat()}; {hint}",
            owner=row.worker,
            since=since.isoformat(),
            until=until.isoformat(),
        )


def owner_of(row: Row, since: datetime | None = None) -> Owner | None:
    return None if row.lease is None else Owner(row.worker, row.left / 1_000_000, row.fence, since)


def about_of(row: Row, last: Entry) -> tuple[Data, dict[str, bytes]]:
    """Return context, metadata and labels, and the text of each; without the session's key, only the labels.

    The body names its session and the entry that wrote it, so another one in its place is noticed. (Early ones do not.)
    """
    if isinstance(row.locked, KeyMissing):
        about: Data = {"context": {}, "metadata": {}, "labels": row.labels}
        return about, {part: codec.encode(value, part)[0] for part, value in about.items()}
    if row.locked is not None:
        raise row.locked
    about, texts = codec.read_parts(row.body)
    if about.get("labels") != row.labels:
        raise Corrupt(f"session {row.session_id}", "its labels are not those of its context")
    for part in ("seq", "key"):
        texts.pop(part, None)
    if about.pop("key", mark := mark_of(row.key)) != mark:
        raise Corrupt(f"session {row.session_id}", "its context is another session's")
    if (seq := about.pop("seq", last.about_seq)) != last.about_seq:
        why = f"its context is of entry {seq}, but entry {last.about_seq} was the last to change it"
        raise Corrupt(f"session {row.session_id}", why)
    return about, texts


def _headers(bases: Iterable[Entry]) -> dict[int, Header]:
    return {base.seq: Header(base.base, base.digest) for base in bases}
