"""`/store`: the ten primitives of a store, for `saveslot.open("http://…")`. States are not decoded here.

Every group is checked before it lands, and every session that a request names must be in a namespace of the token. A
key alone does not tell its namespace: the store's row does, and is remembered. Workers belong to no namespace; their
ids begin with bytes of the token that they come with, so no token renews or ends the worker of another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import msgspec
from starlette.responses import Response

from saveslot.errors import Corrupt, Forbidden, InvalidInput, QuotaExceeded, SaveslotError, TooLarge, Unavailable
from saveslot.server.call import Call
from saveslot.server.keys import require
from saveslot.server.load import apart, check_tokens
from saveslot.server.measured import check_short
from saveslot.server.namespaces import listed
from saveslot.server.problem import Problem
from saveslot.server.routes import Route, Scope
from saveslot.server.tokens import Caller
from saveslot.session.timeline import frames_of
from saveslot.stores.http import wire
from saveslot.stores.wire.loops import stopped
from saveslot.values.log import (
    ID,
    NO_WORKER,
    Counts,
    Entry,
    Group,
    Head,
    Outcome,
    Row,
    Verdict,
    checked,
    checked_labels,
    checked_together,
)
from saveslot.values.recipe import Recipe

R = TypeVar("R", bound=wire.Request)

# Characters: five times as many as the manager allows.
LONGEST_NAME = 1000
# The largest number that every database holds.
LARGEST = (1 << 63) - 1


async def append(call: Call, request: wire.Append) -> wire.Appended:
    """Append the groups that are well formed and the caller's; the others are refused each by itself."""
    refusals: dict[int, SaveslotError] = {}
    for place, group in enumerate(request.groups):
        try:
            _check(call.caller, group)
        except SaveslotError as exc:
            refusals[place] = exc
    fine = [place for place in range(len(request.groups)) if place not in refusals]
    changing = [place for place in fine if request.groups[place].create is None]
    missing: set[int] = set()
    try:
        mine = await call.keys.allowed(call.caller, [request.groups[place].key for place in changing])
    except Forbidden:  # find out which
        mine = set[bytes]()
        for place in changing:
            try:
                mine |= await call.keys.allowed(call.caller, [request.groups[place].key])
            except Forbidden as exc:
                refusals[place] = exc
    if call.caller.namespaces is not None:
        missing = {place for place in changing if request.groups[place].key not in mine and place not in refusals}
    if request.together and (refusals or missing):
        if refusals:
            raise next(iter(refusals.values()))
        skipped = [Verdict(Outcome.MISSING if place in missing else Outcome.SKIPPED) for place in range(len(fine))]
        return wire.Appended(list(skipped))
    landing = [place for place in fine if place not in refusals and place not in missing]
    groups = [request.groups[place] for place in landing]
    if request.together:
        checked_together(groups)
    landed = await _landed(call, groups, together=request.together)
    refusals |= {place: one for place, one in zip(landing, landed, strict=True) if isinstance(one, QuotaExceeded)}
    refusals |= await _taken(call, landing, groups, landed)
    if request.together and refusals:
        raise next(iter(refusals.values()))
    verdicts: list[Verdict | None] = [None] * len(request.groups)
    for place in missing:
        verdicts[place] = Verdict(Outcome.MISSING)
    for place, verdict in zip(landing, landed, strict=True):
        verdicts[place] = None if place in refusals or isinstance(verdict, QuotaExceeded) else verdict
    return wire.Appended(verdicts, {place: error.to_dict() for place, error in refusals.items()})


async def _landed(call: Call, groups: Sequence[Group], *, together: bool) -> list[Verdict | QuotaExceeded]:
    """Append these groups; of several, those that a quota has room for."""
    if not groups:
        return []
    try:
        return [*await call.store.append(groups, together=together)]
    except QuotaExceeded as exc:
        if together:
            raise
        if len(groups) == 1:
            return [exc]
    return [verdict for group in groups for verdict in await _landed(call, [group], together=False)]


async def _taken(
    call: Call, places: Sequence[int], groups: Sequence[Group], landed: Sequence[Verdict | QuotaExceeded]
) -> dict[int, SaveslotError]:
    """Remember the sessions that were created; return refusals of those whose key another namespace has, by place."""
    refusals: dict[int, SaveslotError] = {}
    for place, group, verdict in zip(places, groups, landed, strict=True):
        if group.create is None or isinstance(verdict, QuotaExceeded):
            continue
        if verdict.outcome is Outcome.APPENDED:
            call.keys.learn([group.create])
            continue
        try:  # what was not written here does not tell whose the key is
            await call.keys.allowed(call.caller, [group.key])
        except Forbidden as exc:
            refusals[place] = exc
    return refusals


def _check(caller: Caller, group: Group) -> None:
    checked(group)
    check_short(group)
    for entry in group.entries:
        _require_stamp(caller, entry)
        _require_numbers(entry.seq, entry.at, entry.fence, entry.data_seq, entry.about_seq, entry.base)
        _require_short(entry.name)
    _require_numbers(group.only_stale, group.only_orphan or 0)
    _require_crew(caller, group.owner)
    if (row := group.create) is not None:
        _require_crew(caller, row.owner)
        require(caller, row.namespace)
        _require_short(row.namespace, row.session_id, row.agent_type, row.user_id)
        _require_numbers(row.created_at, row.heartbeat, row.fence)


def _require_crew(caller: Caller, worker: bytes | None) -> None:
    """Raise unless a worker is one of this token's: another's heartbeats are neither ended nor imitated."""
    if worker is not None and worker != NO_WORKER and not worker.startswith(caller.crew):
        raise Forbidden(f"the worker is not one of token {caller.name}: its id must begin with what hello answered")


def _require_stamp(caller: Caller, entry: Entry) -> None:
    """Raise unless the entry says which token wrote it. What an admin brings, such as an import, keeps its ids."""
    if caller.scope != "admin" and not entry.append_id.endswith(caller.stamp):
        reason = "the ids of entries must end with the stamp that hello answered; imports need scope admin"
        raise Forbidden(f"token {caller.name} did not stamp entry {entry.seq}: {reason}")


def _require_short(*names: str) -> None:
    if max(map(len, names)) > LONGEST_NAME:
        raise InvalidInput("groups", f"has a name of more than {LONGEST_NAME:,} characters")


def _require_numbers(*numbers: int) -> None:
    if max(numbers) > LARGEST or min(numbers) < -LARGEST:
        raise InvalidInput("groups", "has a number that no database holds")


def _require_small(value: Any) -> None:
    """The same for every number of a request that reads."""
    if isinstance(value, int):
        _require_numbers(value)
    elif isinstance(value, msgspec.Struct):
        _require_small(msgspec.structs.astuple(value))
    elif isinstance(value, list | tuple | frozenset):
        if len(cast("list[Any]", value)) > wire.LIST:
            size = len(cast("list[Any]", value))
            raise TooLarge("a list", limit=wire.LIST, size=size, unit="items", hint="send it in parts")
        for part in cast("list[Any]", value):
            _require_small(part)


async def heads(call: Call, request: wire.Heads) -> list[Head | None]:
    keys = [ref for ref in request.refs if isinstance(ref, bytes)]
    for ref in request.refs:
        if not isinstance(ref, bytes):
            require(call.caller, ref[0])
    answer = await call.store.heads(request.refs, state=request.state)
    call.keys.learn(head.row for head in answer if head is not None)
    await call.keys.allowed(call.caller, [head.row.key for head in answer if head is not None])
    _require_keys(keys)
    if request.state and len(answer) == 1 and answer[0] is not None:
        await _add_frames(call, answer[0])
    return answer


async def _add_frames(call: Call, head: Head) -> None:
    """Save the client of one session a second request: it asks for a state to rebuild it."""
    if head.data is None or head.frames is not None or head.row.locked is not None:
        return
    with suppress(Corrupt, TooLarge):  # the client meets a damaged one as well, and reads a large one in parts
        recipe = Recipe.unpack(head.data.recipe, head.data.seq)
        head.frames = await frames_of(call.store, head.row.key, [recipe])


async def entries(call: Call, request: wire.Entries) -> list[Any]:
    if request.key not in await call.keys.allowed(call.caller, [request.key]) and call.caller.namespaces is not None:
        return []
    wanted, most = request.wanted, wire.PAGE
    many = sum(max(0, last - first + 1) for first, last in wanted.ranges) > most
    if many and (wanted.newest is None or wanted.newest > most):
        wanted = msgspec.structs.replace(wanted, newest=most + 1)
    capped = wanted.frames and (wanted.room is None or wanted.room > wire.ROOM)
    if capped:
        wanted = msgspec.structs.replace(wanted, room=wire.ROOM)
    entries = await call.store.entries(request.key, wanted)
    if many and len(entries) > most:
        raise TooLarge("the answer", limit=most, size=len(entries), unit="entries")
    if capped and any(map(wire.left_out, entries)):
        raise TooLarge("the answer", limit=wire.ROOM, size=sum(entry.size for entry in entries))
    return entries


async def find(call: Call, request: wire.Find) -> list[Row]:
    require(call.caller, request.query.namespace)
    if not 0 < request.limit <= wire.PAGE:
        raise InvalidInput("limit", f"must be 1 to {wire.PAGE:,}")
    rows = await call.store.find(request.query, request.after, request.limit)
    call.keys.learn(rows)
    return rows


async def count(call: Call, request: wire.Count) -> Counts:
    require(call.caller, request.query.namespace)
    totals = request.totals
    if totals == "store" and call.caller.namespaces is not None:  # they tell what other namespaces hold
        totals = "none"
    return await call.store.count(request.query, totals=totals)


async def beat(call: Call, request: wire.Beat) -> list[int]:
    keys = [key for key, _ in request.signs]
    mine = await call.keys.allowed(call.caller, keys)
    worker = request.worker
    if worker is not None:
        if len(worker.id) != ID or worker.id == NO_WORKER or worker.ttl < 0:
            raise InvalidInput("worker", f"its id must be {ID} bytes of its own, its ttl 0 or more")
        if len(worker.name) > LONGEST_NAME:  # no quota counts workers
            raise InvalidInput("worker", f"has a name of more than {LONGEST_NAME:,} characters")
        _require_crew(call.caller, worker.id)
        if call.caller.name:  # lists of workers name the token that they came with
            worker = msgspec.structs.replace(worker, name=f"{worker.name} ({call.caller.name})")
    if call.caller.namespaces is None or len(mine) == len(set(keys)):
        return await call.store.beat(request.signs, worker)
    known = [sign for sign in request.signs if sign[0] in mine]
    times = iter(await call.store.beat(known, worker))
    return [next(times) if key in mine else 0 for key in keys] + list(times)


async def events(call: Call, request: wire.Events) -> Any:
    require(call.caller, request.namespace)
    if request.key is not None:
        await call.keys.allowed(call.caller, [request.key])
    if not 0 < request.limit <= wire.PAGE or not 0 <= request.wait <= wire.WATCH:
        raise InvalidInput("wait", f"must be 0 to {wire.WATCH:g} seconds, and limit 1 to {wire.PAGE:,}")
    watching = asyncio.ensure_future(
        call.store.events(request.namespace, request.after, request.key, limit=request.limit, wait=request.wait)
    )
    draining = asyncio.ensure_future(call.room.draining.wait())
    ending = asyncio.ensure_future(call.tokens.ended(call.caller))
    try:
        await asyncio.wait((watching, draining, ending), return_when=asyncio.FIRST_COMPLETED)
        call.require_counting()
        if not watching.done():
            raise Unavailable("the server is ending; watch at another one")
        return watching.result()
    finally:
        await stopped(watching, draining, ending)


async def empty(call: Call, request: wire.Empty) -> int:
    if request.notes:  # only to erase, which ends with `scrub`: who may not do that is refused before it begins
        _require_eraser(call.caller)
    if not request.seqs:  # asks whether the store can: nothing is dropped
        return await call.store.empty(request.key, (), notes=request.notes)
    if request.key not in await call.keys.allowed(call.caller, [request.key]) and call.caller.namespaces is not None:
        return 0
    return await call.store.empty(request.key, request.seqs, notes=request.notes)


async def swap(call: Call, request: wire.Swap) -> bool:
    if request.key not in await call.keys.allowed(call.caller, [request.key]) and call.caller.namespaces is not None:
        return False
    return await call.store.swap(request.key, request.before, request.after, checked_labels(request.labels))


async def purge(call: Call, request: wire.Purge) -> list[int]:
    if request.seen is not None and len(request.seen) != len(request.keys):
        raise InvalidInput("seen", "must have one append_id for each key")
    mine = await call.keys.allowed(call.caller, request.keys)
    if call.caller.namespaces is None or len(mine) == len(set(request.keys)):
        return await call.store.purge(request.keys, request.seen)
    places = [place for place, key in enumerate(request.keys) if key in mine]
    seen = None if request.seen is None else [request.seen[place] for place in places]
    counts = [0] * len(request.keys)
    for place, purged in zip(places, await call.store.purge([request.keys[p] for p in places], seen), strict=True):
        counts[place] = purged
    return counts


def _require_eraser(caller: Caller) -> None:
    if not caller.may("admin") or caller.namespaces is not None:
        why = f"scope {caller.scope}" if not caller.may("admin") else "only some namespaces"
        raise Forbidden(
            f"token {caller.name} has {why}; to erase through /store takes scope admin for all namespaces, "
            "POST /v1/erase scope admin for that one"
        )


async def scrub(call: Call, request: wire.Scrub) -> None:
    await call.store.scrub(rewrite=request.rewrite)


async def namespaces(call: Call, request: wire.Namespaces) -> list[str]:
    """The namespaces with sessions. Of a token for some of them, those."""
    if not 0 < request.limit <= wire.PAGE:
        raise InvalidInput("limit", f"must be 1 to {wire.PAGE:,}")
    return await listed(call, request.after, request.limit)


async def tokens(call: Call, request: wire.Tokens) -> dict[bytes, str]:
    """The names of the tokens with these stamps, which a caller knows from entries only."""
    return await call.store.token_names(request.stamps)


async def tend(call: Call) -> Response:
    await call.store.tend()
    return _answer(None)


async def hello(call: Call) -> Response:
    return _answer(wire.Hello(call.store.traits.serial, call.caller.crew, call.caller.stamp))


def _require_keys(keys: Sequence[bytes]) -> None:
    for key in keys:
        if len(key) != ID:
            raise InvalidInput("refs", f"a key must be {ID} bytes")


def _answer(value: Any) -> Response:
    return Response(wire.encode(value), media_type=wire.MSGPACK)


def _route(
    kind: type[R],
    scope: Scope,
    respond: Callable[[Call, R], Awaitable[Any]],
    summary: str,
    *,
    streams: bool = False,
    long: bool = False,
) -> Route:
    """A route of one primitive: its request in msgpack, decoded as that type."""
    decoder = wire.decoder(kind)

    async def responding(call: Call) -> Response:
        sent = call.headers.get("content-type", "")
        if sent != wire.MSGPACK:
            raise Problem(415, InvalidInput("content-type", f"must be {wire.MSGPACK}, not {sent}"))
        body = await call.body()
        await apart(len(body), check_tokens, body)
        try:
            request = decoder.decode(body)
        except msgspec.ValidationError as exc:
            reason, _, where = str(exc).partition(" - at `$")
            raise InvalidInput(where.rstrip("`").lstrip(".") or "request", reason[:1].lower() + reason[1:]) from None
        except (msgspec.DecodeError, RecursionError):
            raise Problem(400, InvalidInput("request", "is not msgpack")) from None
        if not isinstance(request, wire.Append):
            _require_small(request)
        return _answer(await respond(call, request))

    name = kind.__name__.lower()
    return Route(
        "POST",
        f"/store/{wire.VERSION}/{name}",
        scope,
        responding,
        summary,
        namespaced=False,
        streams=streams,
        long=long,
        largest=wire.LARGEST,
    )


ROUTES = [
    Route(
        "POST",
        f"/store/{wire.VERSION}/hello",
        "read",
        hello,
        "What this store is like.",
        namespaced=False,
    ),
    _route(wire.Append, "write", append, "Append entries to logs."),
    _route(wire.Heads, "read", heads, "The newest entries of sessions."),
    _route(wire.Entries, "read", entries, "Entries of a log."),
    _route(wire.Find, "read", find, "A page of sessions."),
    _route(wire.Count, "read", count, "Count sessions."),
    _route(wire.Beat, "write", beat, "Say that sessions, and a worker, are alive."),
    _route(wire.Events, "read", events, "Wait for entries.", streams=True),
    _route(wire.Empty, "write", empty, "Drop frames of entries."),
    _route(wire.Swap, "write", swap, "Replace a session's body."),
    _route(wire.Purge, "write", purge, "Remove deleted sessions.", long=True),
    _route(wire.Namespaces, "read", namespaces, "The namespaces with sessions."),
    _route(wire.Tokens, "read", tokens, "Which tokens wrote these entries."),
    _route(wire.Scrub, "admin", scrub, "Overwrite what was dropped.", long=True),
    Route(
        "POST",
        f"/store/{wire.VERSION}/tend",
        "write",
        tend,
        "Do the upkeep that is due.",
        long=True,
        namespaced=False,
    ),
]
