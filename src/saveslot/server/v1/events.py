"""`/v1/events`: what is appended, as it is appended, as server-sent events.

    id: 42
    event: entry
    data: {"cursor": "42", "session_id": "lesson-1", "seq": 7, "kind": "checkpoint", "name": "answered", …}

Without Last-Event-ID a stream begins now. `event: skipped` counts what `max_rate` left out; `event: reset` says that
the events after the cursor are gone, and that the stream goes on from now. A comment every 15 seconds shows that the
connection is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from saveslot.errors import HistoryLost, SaveslotError
from saveslot.manager.headers import as_kinds
from saveslot.manager.recent import MOST, Recent, recent
from saveslot.server.call import Call, encoded
from saveslot.server.digests import Digest, as_interval
from saveslot.server.feeds import Feed, Filter, Listener, News, feed_of
from saveslot.server.routes import Header, Route
from saveslot.server.v1.answers import Time
from saveslot.server.v1.conditions import newest
from saveslot.stores.wire.loops import running

TAG = "Events"
SINCE = Header("Last-Event-ID", "The `id` of the last event that you have: the stream goes on after it.")

# Seconds between two signs of life; a client that takes nothing for as long as the second is cut.
HEARTBEAT, STUCK = 15.0, 30.0
# Names and agent types of one request: each is a query of its own.
NAMES = 20
# Milliseconds after which a browser reconnects.
RETRY = 1000


class Watching(Struct, forbid_unknown_fields=True, kw_only=True):
    kind: Annotated[list[str], Meta(description="Entries of these kinds; repeatable.")] = []
    name: Annotated[list[str], Meta(description="Entries of these names; repeatable.")] = []
    max_rate: Annotated[float, Meta(gt=0, description="At most so many events per second.")] | None = None
    after: Annotated[str | None, Meta(description="The same as Last-Event-ID, which counts first.")] = None


class WatchingAll(Watching, kw_only=True):
    agent_type: Annotated[list[str], Meta(description="Sessions of these agent types; repeatable.")] = []
    session_id: Annotated[list[str], Meta(description="These sessions; repeatable.")] = []
    owners: Annotated[
        bool, Meta(description="Also `event: late` and `event: orphaned` when owners fall silent, or (`on`) come back.")
    ] = False
    digest: Annotated[
        str | None, Meta(description="`1s`: instead of entries one `event: digest` that often, if something is new.")
    ] = None


class Newest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which of the newest entries; an empty list means all."""

    kind: Annotated[list[str], Meta(description="Of these kinds; repeatable.")] = []
    name: Annotated[list[str], Meta(max_length=NAMES, description="Of these names; repeatable.")] = []
    agent_type: Annotated[
        list[str], Meta(max_length=NAMES, description="Sessions of these agent types; repeatable.")
    ] = []
    session_id: Annotated[list[str], Meta(max_length=MOST, description="These sessions; repeatable.")] = []
    limit: Annotated[int, Meta(ge=1, le=MOST)] = 100


class Appended(Struct):
    """An entry that was appended, and what its session is like now. `owner`: the worker that holds it."""

    cursor: str
    session_id: str
    seq: int
    kind: str
    name: str
    timestamp: Time
    agent_type: str
    state: Annotated[str, Meta(description="A state of sessions, or `deleted`.")]
    owner: str | None
    bytes: Annotated[int | None, Meta(description="Null if it was not read.")]


class Skipped(Struct):
    """How many events `max_rate` left out."""

    n: int


class Reset(Struct):
    """The events after the cursor are gone, and the stream goes on from now: load what you show again."""

    message: str


class EventStream(Response):
    """Sends what its listener gets, until the client leaves, is too slow, or its token ends."""

    media_type = "text/event-stream"

    def __init__(
        self,
        feed: Feed,
        listener: Listener,
        first: AsyncIterator[bytes],
        rate: float | None,
        ended: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed, self._listener, self._first = feed, listener, first
        self._pace = Pace(rate)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(self._left(receive))
        ending = asyncio.ensure_future(self._close_ended())
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                with suppress(TimeoutError):
                    async for text in self._texts():
                        if not self._listener.counts():
                            break
                        async with asyncio.timeout(STUCK):
                            await send({"type": "http.response.body", "body": text, "more_body": True})
            async with asyncio.timeout(STUCK):
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            return
        finally:
            leaving.cancel()
            ending.cancel()
            self._feed.leave(self._listener)

    async def _left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._listener.close()

    async def _close_ended(self) -> None:
        await self._ended()
        self._listener.close()

    async def _texts(self) -> AsyncIterator[bytes]:
        listener, alive = self._listener, running().time()
        async for text in self._first:
            if text:
                yield text
        while not listener.closed:
            if listener.lost:
                listener.lost = False
                yield reset("the store lost events after the last one")
            news = [item for item in listener.take() if listener.wanted.wants(item)]
            digest = listener.digest
            if digest is None:
                parts = self._pace.texts(news)
            else:
                digest.add(news)
                parts = digest.text(self._feed.standing)
            now = running().time()
            if not parts and now - alive >= HEARTBEAT:
                parts = [b": alive\nid: %b\n\n" % self._feed.cursor.encode()]
            if parts:
                alive = now
                yield b"".join(parts)
            else:
                pause = self._pace.next() if digest is None else digest.next()
                await listener.wake(min(pause, max(0.0, alive + HEARTBEAT - now)))


class Pace:
    """At most `rate` events per second; what is over is counted, and told once a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._left = max(1.0, rate or 1.0)
        self._at = running().time()
        self._skipped = 0
        self._cursor = ""

    def texts(self, news: list[News]) -> list[bytes]:
        if self._rate is None:
            return [item.text for item in news]
        now = running().time()
        self._left = min(max(1.0, self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        texts: list[bytes] = []
        if self._skipped and self._left >= 1:
            texts.append(self._told())
        for item in news:
            if self._left >= 1 and not self._skipped:
                self._left -= 1
                texts.append(item.text)
            else:
                self._skipped += 1
                self._cursor = item.event.cursor or self._cursor
        return texts

    def _told(self) -> bytes:
        self._left -= 1
        text = b"id: %b\nevent: skipped\ndata: %b\n\n" % (self._cursor.encode(), encoded({"n": self._skipped}))
        self._skipped = 0
        return text

    def next(self) -> float:
        """Seconds until what was skipped is told."""
        if not self._skipped or self._rate is None:
            return HEARTBEAT
        return max(0.01, (1 - self._left) / self._rate)


def reset(why: str) -> bytes:
    return b"event: reset\ndata: %b\n\n" % encoded({"message": why})


async def watch(call: Call) -> Response:
    query: WatchingAll = call.query
    digest = None if query.digest is None else Digest(as_interval(query.digest))
    wanted = Filter(
        frozenset(query.kind), frozenset(query.agent_type), frozenset(query.session_id), frozenset(query.name)
    )
    return await _stream(call, query, wanted, owners=query.owners, digest=digest)


async def watch_session(call: Call) -> Response:
    head = await newest(call)
    query: Watching = call.query
    wanted = Filter(frozenset(query.kind), session_ids=frozenset([head.session_id]), names=frozenset(query.name))
    return await _stream(call, query, wanted)


async def newest_entries(call: Call) -> Response:
    query: Newest = call.query
    page = await recent(
        call.sessions,
        kinds=query.kind,
        names=query.name,
        agent_types=query.agent_type,
        session_ids=query.session_id,
        limit=query.limit,
    )
    return call.json(page.to_dict())


async def _stream(
    call: Call, query: Watching, wanted: Filter, *, owners: bool = False, digest: Digest | None = None
) -> Response:
    as_kinds(query.kind)
    feed = feed_of(call.sessions)
    listener = Listener(wanted, lambda: call.counts, owners=owners, digest=digest)
    ended = partial(call.tokens.ended, call.caller)
    now = await feed.join(listener)
    after = call.headers.get("last-event-id") or query.after
    try:
        first = feed.since(after, listener) if after else None
        begun: list[News] | None = None
        lost = ""
        try:
            begun = None if first is None else await anext(first, None)
        except HistoryLost as exc:
            first, lost = None, str(exc)
        return EventStream(feed, listener, _opening(now, first, begun, lost, listener), query.max_rate, ended)
    except BaseException:
        feed.leave(listener)
        raise


async def _opening(
    now: str, first: AsyncIterator[list[News]] | None, begun: list[News] | None, lost: str, listener: Listener
) -> AsyncIterator[bytes]:
    """What comes before the listener's own events."""
    text = b"retry: %d\n" % RETRY
    if first is None:
        text += b"id: %b\n" % now.encode()
    yield text + b"\n" + (reset(lost) if lost else b"")
    if first is None or begun is None:
        return
    yield _joined(begun, listener)
    try:
        async for news in first:
            yield _joined(news, listener)
    except SaveslotError:  # out of reach, or lost meanwhile: the client comes back with its last id
        listener.close()


def _joined(news: list[News], listener: Listener) -> bytes:
    wanted = [item for item in news if listener.wanted.wants(item)]
    if listener.digest is not None:
        listener.digest.add(wanted)
        return b""
    return b"".join(item.text for item in wanted)


# `owners=` and `digest=` send others beside these.
SENT = {"entry": Appended, "skipped": Skipped, "reset": Reset}

ROUTES = [
    Route(
        "GET",
        "/v1/events",
        "read",
        watch,
        "Watch what is appended, as server-sent events.",
        query=WatchingAll,
        headers=(SINCE,),
        streams=True,
        sends=SENT,
        tag=TAG,
        description="Without Last-Event-ID the stream begins now.",
    ),
    Route(
        "GET",
        "/v1/entries",
        "read",
        newest_entries,
        "The newest entries of all sessions, newest first: what a stream of events begins after.",
        gives=Recent,
        query=Newest,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/events",
        "read",
        watch_session,
        "Watch what is appended to a session.",
        query=Watching,
        headers=(SINCE,),
        streams=True,
        sends=SENT,
        tag=TAG,
        description="Without Last-Event-ID the stream begins now.",
    ),
]
