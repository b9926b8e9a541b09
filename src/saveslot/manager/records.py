"""Records, which stand beside the state, and dropping checkpoints that the caller chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any, cast

from saveslot.errors import Conflict, InvalidInput
from saveslot.manager import thin
from saveslot.session.change import change
from saveslot.session.draft import Draft
from saveslot.session.engine import Space, passerby, scope_of
from saveslot.session.log import Log
from saveslot.session.records import NewRecord, Record, each as each_stored, stored
from saveslot.session.requests import entry_of, request
from saveslot.session.retries import once_in
from saveslot.values import refs as references
from saveslot.values.checks import as_count, as_name, as_text
from saveslot.values.kinds import DATA_KINDS, Kind
from saveslot.values.log import Head
from saveslot.values.versions import Version, as_version


async def record(
    sessions: Space, id: str, name: str, value: Any, *, key: str | None = None, seen: str | None = None
) -> int:
    """Add a value of its own beside the state, any JSON value; return its number.

    Allowed while another worker holds the session, whose next write it does not refuse, and after it ended. It is not a
    checkpoint: retention, `latest` and `~n` do not count it. The same `key` again returns the first one's number;
    `InvalidInput` if name or value differ. With `seen`, a version: `Conflict` unless that is the session's.
    """
    session_id, version = as_name(id, "id"), as_version(seen)
    new = NewRecord.of(name, value, key, sessions.engine.limit)
    return await _record(sessions, session_id, new, seen=version)


@once_in(scope_of)
async def _record(sessions: Space, id: str, new: NewRecord, *, seen: Version | None) -> int:
    vault, number = sessions.engine.vault, None
    if new.key is not None or seen is not None or sessions.engine.worker is not None:
        head = await sessions.lookup.existing(id)
        if (number := await new.earlier(vault, head.row.key)) is not None:
            return number
        if (held := thin.in_hand(sessions, head)) is not None:
            try:
                return await held.write_record(new, seen=seen)
            except Conflict:
                if seen is not None:
                    raise

    async def decide(log: Log) -> Draft | None:
        nonlocal number
        number = await new.earlier(vault, log.key)
        return new.draft(log) if number is None else None

    draft = await change(passerby(sessions, id, version=seen, insists=True), decide)
    return cast("int", number) if draft is None else draft.at.seq


async def records(sessions: Space, id: str, *, name: str | None = None, after: int = 0) -> list[Record]:
    """Return its records after that number, oldest first; with `name`, those of that name."""
    name, after = None if name is None else as_text(name, "name"), as_count(after, "after")
    head = await sessions.reader.existing(id)
    return [*await stored(sessions.engine.vault, head.row.key, head.row.session_id, name, after)]


async def each(sessions: Space, id: str, *, name: str | None = None, after: int = 0) -> AsyncIterator[Record]:
    """Yield the same as they are read: for pages."""
    head = await sessions.reader.existing(id)
    async for record in each_stored(sessions.engine.vault, head, name, after):
        yield record


@once_in(scope_of)
async def drop(
    sessions: Space,
    id: str,
    refs: Collection[str | int] | str | int,
    *,
    seen: str | None = None,
    idempotency_key: str | None = None,
) -> int:
    """Drop these checkpoints, like retention: hidden at once, their bytes freed later by `thin` or the keeper.

    Return how many. `InvalidInput` names those that stay: the latest one, pinned ones, and entries without the agent's
    data. While another process holds the session: `LeaseHeld`. The same call with the same `idempotency_key` gets the
    first one's answer; one that drops nothing uses no key up.
    """
    session_id, version = as_name(id, "id"), as_version(seen)
    wanted = [refs] if isinstance(refs, str | int) else _listed(refs)
    call_id = request(idempotency_key, "drop", {"refs": sorted(map(str, wanted))})
    if (earlier := await thin.hidden_before(sessions, session_id, call_id)) is not None:
        return earlier

    async def mark(head: Head, draft: Draft) -> bool:
        if await entry_of(sessions.engine.vault, head.row.key, call_id) is not None:
            return False
        chosen = await _chosen(sessions, head, wanted)
        if chosen:
            draft.mark((seq, seq) for seq in chosen)
            draft.group.entries[-1].request = call_id
        draft.answer = len(chosen)
        return bool(chosen)

    try:
        draft = await thin.keep(sessions, session_id, mark, version)
    except Conflict:  # perhaps with the same call in another process
        if (earlier := await thin.hidden_before(sessions, session_id, call_id)) is None:
            raise
        return earlier
    if draft is None:
        return await thin.hidden_before(sessions, session_id, call_id) or 0
    return cast("int", draft.answer)


def _listed(refs: Any) -> list[str | int]:
    if not isinstance(refs, list | tuple | set | frozenset | range):
        raise InvalidInput("refs", f"must be a ref or a list of refs, not {type(refs).__name__}")
    return [*cast("Collection[str | int]", refs)]


async def _chosen(sessions: Space, head: Head, wanted: list[str | int]) -> set[int]:
    """Return the numbers of these checkpoints; refuse all if one of them has to stay."""
    if not wanted:
        return set()
    there = {entry.seq: entry for entry in await sessions.lookup.visible(head, DATA_KINDS)}
    pinned, latest = await thin.pinned_in(sessions, head), max(there, default=0)
    chosen: set[int] = set()
    stay: list[str] = []
    for ref in wanted:
        match references.parse(ref, head.row.session_id):
            case references.Number(seq) if seq in there:
                entry = there[seq]
            case _:
                entry = await sessions.lookup.entry(head, ref)
        chosen.add(entry.seq)
        if entry.kind not in DATA_KINDS:
            stay.append(f"{ref!r} is an entry of kind {Kind(entry.kind).label}")
        elif entry.seq == latest:
            stay.append(f"{ref!r} is the latest")
        elif entry.seq in pinned:
            stay.append(f"{ref!r} is pinned")
    if stay:
        raise InvalidInput("refs", f"must stay: {', '.join(stay)}; nothing was dropped")
    return chosen
