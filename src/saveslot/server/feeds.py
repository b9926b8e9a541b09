"""Feeds: one reader per namespace reads the store's events and fans them out to all listeners of this process.

A listener that comes with a cursor reads by itself from there, until the feed has begun and ended a read of the store
since: from then on what the feed has for it and what it has read itself overlap without a gap, and what it has sent
already is left out. A listener that does not take its events in time is cut: it comes back with the cursor of the last
one that it got.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

import msgspec

from saveslot.errors import HistoryLost, SaveslotError
from saveslot.manager import SessionManager
from saveslot.server.call import encoded
from saveslot.server.digests import Digest, Owners, Standing, standing
from saveslot.session.engine import Engine
from saveslot.stores.wire.loops import running
from saveslot.values.checks import Data, now
from saveslot.values.log import Event

# Seconds that one read of the store waits for events; a listener with a cursor may take as long to join the feed.
WAIT = 2.0
# Events that wait for one listener before it is cut.
ROOM = 2000
# Listeners with a cursor that read by themselves at the same time.
READERS = 8
# Sessions whose agent type is remembered, for the events of deleted ones.
REMEMBERED = 10_000
# Seconds between two looks whether the listeners' tokens have expired; and before a read that failed is repeated.
LOOK, PAUSE = 1.0, 1.0


class Filter(msgspec.Struct, frozen=True):
    """Which events a listener wants; an empty set means all."""

    kinds: frozenset[str] = frozenset()
    agent_types: frozenset[str] = frozenset()
    session_ids: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def wants(self, news: News) -> bool:
        event = news.event
        entry = bool(event.cursor)  # else it is about an owner, and has neither kind nor name
        return (
            (not entry or not self.kinds or event.kind in self.kinds)
            and (not self.session_ids or event.session_id in self.session_ids)
            and (not entry or not self.names or event.name in self.names)
            and (not self.agent_types or news.agent_type in self.agent_types)
        )


class News(msgspec.Struct, frozen=True):
    """An event, and what is known of its session now. `text` is written once for all listeners."""

    event: Event  # has no cursor if it reports that an owner is silent: that is not in the log
    agent_type: str
    text: bytes
    state: str = ""
    owner: str | None = None
    size: int | None = None  # bytes of the entry; None if it was not read

    def touched(self) -> Data:
        """What a digest says of the session."""
        event = self.event
        known = {"id": event.session_id, "seq": event.seq, "kind": event.kind, "name": event.name}
        now = {"state": self.state, "owner": self.owner, "agent_type": self.agent_type}
        return {**known, "timestamp": event.timestamp.isoformat(), "bytes": self.size, **now}


class Listener:
    """What waits for one stream."""

    def __init__(
        self, wanted: Filter, counts: Callable[[], bool], *, owners: bool = False, digest: Digest | None = None
    ) -> None:
        self.wanted = wanted
        self.counts = counts
        self.owners = owners  # also events about the silence of owners
        self.digest = digest  # collects the events instead
        self.waiting: deque[News] = deque()
        self.closed = False
        self.lost = False  # the feed lost its place: some events were not seen
        self.woken = asyncio.Event()
        self.sent: OrderedDict[str, None] = OrderedDict()  # cursors that it read by itself and the feed may repeat

    def tell(self, news: list[News]) -> None:
        """Give it events, all of them: which it wants is decided when they are sent."""
        if self.closed:
            return
        if len(self.waiting) + len(news) > ROOM:
            self.close()
            return
        self.waiting += news
        self.woken.set()

    def take(self) -> list[News]:
        """Return what waits, without what it has sent already."""
        news = list(self.waiting)
        self.waiting.clear()
        if self.sent:
            last = max((n for n, item in enumerate(news) if item.event.cursor in self.sent), default=-1)
            news = news[last + 1 :]
            if any(item.event.cursor for item in news):  # whatever follows is newer
                self.sent.clear()
        return news

    def close(self) -> None:
        self.closed = True
        self.waiting.clear()
        self.woken.set()

    async def wake(self, seconds: float) -> None:
        """Wait until there is something to send, the listener was closed, or this time has passed."""
        try:
            async with asyncio.timeout(seconds):
                await self.woken.wait()
        except TimeoutError:
            return
        self.woken.clear()


class Feed:
    """The events of one namespace, as long as there are listeners."""

    def __init__(self, sessions: SessionManager) -> None:
        self.sessions = sessions
        self.cursor = ""  # after everything that the listeners were given
        self.listeners: set[Listener] = set()
        self._began = 0.0  # when the last read that has ended began
        self._agents: OrderedDict[str, str] = OrderedDict()
        self.standing: Standing | None = None  # for listeners with a digest
        self._owners = Owners()
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._readers = asyncio.Semaphore(READERS)

    async def join(self, listener: Listener) -> str:
        """Give the listener all events from now on; return the cursor of now."""
        async with self._starting:
            if self._task is None:
                _, self.cursor = await self._read(None, 0)
                self._task = running().create_task(self._run())
            self.listeners.add(listener)
            return self.cursor

    def leave(self, listener: Listener) -> None:
        self.listeners.discard(listener)
        if not self.listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    async def since(self, cursor: str, listener: Listener) -> AsyncIterator[list[News]]:
        """Yield the events after the cursor until the listener's own ones follow without a gap or a repeat."""
        began, sent = running().time(), listener.sent
        sent[cursor] = None
        while True:
            joined = self._began > began
            async with self._readers:
                events, cursor = await self._read(cursor, 0 if joined else WAIT / 4)
                news = await self.news(events)
            if news:
                for event in events:
                    sent[event.cursor] = None
                while len(sent) > ROOM:
                    sent.popitem(last=False)
                yield news
            elif joined:
                break

    async def news(self, events: list[Event]) -> list[News]:
        """Add to events what is known of their sessions, read for all of them at once."""
        if not events:
            return []
        namespace = self.sessions.namespace
        ids = list(dict.fromkeys(event.session_id for event in events))
        heads = await self.sessions.engine.vault.heads([(namespace, one) for one in ids])
        known: dict[str, Data] = {}
        sizes: dict[tuple[str, int], int] = {}
        for session_id, head in zip(ids, heads, strict=True):
            if head is None:
                known[session_id] = {"agent_type": self._agents.get(session_id, ""), "state": "deleted", "owner": None}
                continue
            row = head.row
            self._agents[session_id] = row.agent_type
            owner = None if row.lease is None else row.worker
            known[session_id] = {"agent_type": row.agent_type, "state": row.state, "owner": owner}
            sizes[session_id, head.last.seq] = head.last.size
        while len(self._agents) > REMEMBERED:
            self._agents.popitem(last=False)
        return [_news(event, known[event.session_id], sizes.get((event.session_id, event.seq))) for event in events]

    async def _read(self, cursor: str | None, wait: float) -> tuple[list[Event], str]:
        return await self.sessions.engine.vault.events(self.sessions.namespace, cursor, wait=wait)

    async def _run(self) -> None:
        looking = running().create_task(self._look())
        try:
            while True:
                began = running().time()
                try:
                    events, cursor = await self._read(self.cursor or None, WAIT)
                    news = await self.news(events)
                except HistoryLost:
                    self.cursor = ""
                    for listener in self.listeners:
                        listener.lost = True
                        listener.woken.set()
                    continue
                except SaveslotError:  # out of reach: the same read again
                    await asyncio.sleep(PAUSE)
                    continue
                self.cursor, self._began = cursor, began
                if news:
                    for listener in list(self.listeners):
                        listener.tell(news)
        finally:
            looking.cancel()

    async def _look(self) -> None:
        """Close the streams of tokens that have expired: nothing else says so."""
        while True:
            await asyncio.sleep(LOOK)
            for listener in list(self.listeners):
                if not listener.counts():
                    listener.close()
            watching = [listener for listener in self.listeners if listener.owners or listener.digest is not None]
            with suppress(SaveslotError):  # out of reach: again in a second
                if watching:
                    await self._watch_owners(watching)

    async def _watch_owners(self, watching: Sequence[Listener]) -> None:
        """Tell of owners that fell silent or came back, and where all sessions stand."""
        changes, late = await self._owners.look(self.sessions)
        news = [_silence(kind, data) for kind, data in changes]
        if any(listener.digest is not None for listener in watching):
            before, self.standing = self.standing, await standing(self.sessions, late)
            if self.standing != before:
                for listener in watching:
                    listener.woken.set()
        for listener in watching if news else ():
            listener.tell(news)


def _silence(kind: str, data: Data) -> News:
    event = Event("", data["session_id"], 0, kind, "", now())
    text = b"event: %b\ndata: %b\n\n" % (kind.encode(), encoded(data))
    return News(event, data["agent_type"], text, data["state"], data["owner"])


def _news(event: Event, known: Data, size: int | None) -> News:
    data = encoded({**event.to_dict(), **known, "bytes": size})
    text = b"id: %b\nevent: entry\ndata: %b\n\n" % (event.cursor.encode(), data)
    return News(event, known["agent_type"], text, known["state"], known["owner"], size)


_feeds: WeakKeyDictionary[Engine, dict[str, Feed]] = WeakKeyDictionary()


def feed_of(sessions: SessionManager) -> Feed:
    """Return this process's feed of that namespace."""
    feeds = _feeds.setdefault(sessions.engine, {})
    for name in [name for name, feed in feeds.items() if not feed.listeners and name != sessions.namespace]:
        del feeds[name]
    if sessions.namespace not in feeds:
        feeds[sessions.namespace] = Feed(sessions)
    return feeds[sessions.namespace]


def listeners(sessions: SessionManager) -> int:
    """Count the streams of this server, in all namespaces."""
    return sum(len(feed.listeners) for feed in _feeds.get(sessions.engine, {}).values())


def end_streams(sessions: SessionManager) -> None:
    """End all streams of this server; their clients reconnect, here or at another one."""
    for feed in _feeds.get(sessions.engine, {}).values():
        for listener in list(feed.listeners):
            listener.close()
