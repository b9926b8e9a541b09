"""The checkpointer: what LangGraph calls. A synchronous method runs its asynchronous twin in the saver's event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import TASKS

from saveslot import blocking
from saveslot.adapters.access import Access
from saveslot.adapters.follow import deliver
from saveslot.adapters.langgraph.opened import Opened
from saveslot.adapters.langgraph.thread import New, Part, Thread, Threads, Written
from saveslot.adapters.langgraph.values import Codec
from saveslot.errors import InvalidInput
from saveslot.manager import SessionManager
from saveslot.manager.reading import Page
from saveslot.moving.langgraph_state import AGENT_TYPE, SEEN, VERSIONS, key_of, own_key, session_id_of
from saveslot.stores.wire.loops import running
from saveslot.values.checks import Data

R = TypeVar("R")

# Checkpoints of this format and newer have their pending sends in a channel; older ones in the writes to their parent.
SENDS_IN_CHANNEL = 4
# Checkpoints read per turn of a thread when listing.
CHUNK = 16

Config = RunnableConfig


class SaveslotSaver(Opened, BaseCheckpointSaver[Any]):
    """A checkpointer on any store, async and sync: `SaveslotSaver("agents.db")`, or `sessions=` for an open manager.

    `url` and further options are those of `saveslot.open`, `serde` is LangGraph's serialiser. A thread is a session,
    which rests paused. `Conflict` when another run has moved the thread on. A store that cannot be read raises: it is
    never taken for an empty thread.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        serde: SerializerProtocol | None = None,
        **options: Any,
    ) -> None:
        super().__init__(serde=serde)
        self._access = Access(url, sessions=sessions, namespace=namespace, **options)
        self._threads = Threads()
        self._opened_by: SerializerProtocol | None = None

    def _forget(self) -> None:
        self._threads.clear()

    def get_next_version(self, current: int | str | None, channel: None) -> int | str:  # noqa: ARG002
        """Count up. A thread that another saver began with versions of text goes on with such."""
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.{0:016}"
        return 1 if current is None else int(current) + 1

    # Reading

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        return await self._access.call(partial(self._get, config))

    async def _get(self, config: Config, sessions: SessionManager) -> CheckpointTuple | None:
        thread_id, ns = _place(config)
        async with self._threads.turn(sessions, thread_id) as thread:
            await thread.refresh()
            part = await thread.checkpoint(ns, get_checkpoint_id(config))
            return None if part is None else await self._tuple(thread, part)

    async def _tuple(self, thread: Thread, part: Part) -> CheckpointTuple:
        codec, ns, about = self._codec, part.ns, part.about
        versions = dict(part.state[own_key(VERSIONS, ns)])
        values = {name: codec.load(part.state[key]) for name in versions if (key := key_of(name, ns)) in part.state}
        seen = {node: dict(versions) for node, versions in part.state[own_key(SEEN, ns)].items()}
        rest = codec.load(about["checkpoint"])
        if part.parent is not None and rest.get("v", SENDS_IN_CHANNEL) < SENDS_IN_CHANNEL:
            before = await thread.stored(ns, part.parent)
            sends = [value for _, channel, value in self._writes(before) if channel == TASKS]
            if sends:
                values[TASKS] = sends
                versions[TASKS] = max(versions.values()) if versions else self.get_next_version(None, None)
        parts = {"id": about["id"], "channel_values": values, "channel_versions": versions, "versions_seen": seen}
        return CheckpointTuple(
            _config(thread.thread_id, ns, about["id"]),
            cast("Checkpoint", {**rest, **parts}),
            cast("CheckpointMetadata", codec.load(about["metadata"])),
            None if part.parent is None else _config(thread.thread_id, ns, part.parent),
            self._writes(part),
        )

    def _writes(self, part: Part | None) -> list[PendingWrite]:
        """The writes to a checkpoint, in the order in which a run applies them."""
        rows: dict[tuple[str, int], list[Any]] = {}
        for row in [] if part is None else part.rows:
            place = (row[1], row[3])
            if place not in rows or row[3] < 0:  # of a special channel the last one counts, else the first
                rows[place] = row
        ordered = sorted(rows.values(), key=lambda row: writes_sort_key(row[2], row[1], row[3]))
        return [(row[1], row[4], self._codec.load(row[5])) for row in ordered]

    async def alist(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Newest first within a thread; without `config` thread by thread, newest thread first.

        `filter` compares metadata alike on every store: a checkpoint has the key, with an equal value.
        """
        left = limit
        replaying = (
            before is not None and limit == 1
        )  # a subgraph starts from what it lists when its parent is replayed
        async for thread_id in self._thread_ids(config):
            places = await self._access.call(partial(self._places, thread_id, config, before))
            for start in range(0, len(places), CHUNK):
                if left is not None and left <= 0:
                    return
                size = CHUNK if left is None or filter else left
                for item in await self._access.call(
                    partial(self._tuples, thread_id, places[start : start + size], chosen=replaying)
                ):
                    if (left is None or left > 0) and _matches(item.metadata, filter):
                        yield item
                        left = None if left is None else left - 1

    async def _thread_ids(self, config: Config | None) -> AsyncIterator[Any]:
        if config is not None:
            yield _place(config)[0]
            return
        after: str | None = None
        while True:
            page = await self._access.call(partial(_found, after))
            for session in page:
                thread_id = session.metadata.get("thread_id", session.session_id)
                yield thread_id if session_id_of(thread_id) == session.session_id else session.session_id
            after = page.next
            if after is None:
                return

    async def _places(
        self, thread_id: Any, config: Config | None, before: Config | None, sessions: SessionManager
    ) -> list[tuple[str, str]]:
        """The thread's checkpoints that are to be listed: id and namespace, newest first."""
        wanted = {} if config is None else config.get("configurable", {})
        ns, checkpoint_id = wanted.get("checkpoint_ns"), wanted.get("checkpoint_id")
        end = None if before is None else get_checkpoint_id(before)
        async with self._threads.turn(sessions, thread_id) as thread:
            await thread.refresh()
            puts = (await thread.index()).puts
        return sorted(
            (
                (there, where)
                for where, ids in puts.items()
                for there in ids
                if ns in {None, where} and checkpoint_id in {None, there} and (end is None or there < end)
            ),
            reverse=True,
        )

    async def _tuples(
        self, thread_id: Any, places: Sequence[tuple[str, str]], sessions: SessionManager, *, chosen: bool
    ) -> list[CheckpointTuple]:
        async with self._threads.turn(sessions, thread_id) as thread:
            await thread.refresh()
            read = thread.checkpoint if chosen else thread.stored
            parts = [await read(ns, checkpoint_id) for checkpoint_id, ns in places]
            return [await self._tuple(thread, part) for part in parts if part is not None]

    async def aget_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        if not channels:
            return {}
        return await self._access.call(partial(self._history, config, channels))

    async def _history(
        self, config: Config, channels: Sequence[str], sessions: SessionManager
    ) -> dict[str, DeltaChannelHistory]:
        """Walk from a checkpoint to its ancestors, until each channel has a stored value or the root is reached."""
        thread_id, ns = _place(config)
        histories: dict[str, DeltaChannelHistory] = {name: {"writes": []} for name in channels}
        async with self._threads.turn(sessions, thread_id) as thread:
            await thread.refresh()
            chosen = get_checkpoint_id(config)
            part = await (thread.checkpoint(ns, None) if chosen is None else thread.stored(ns, chosen))
            left = set(channels)
            while left and part is not None and part.parent is not None:
                part = await thread.stored(ns, part.parent)
                writes = self._writes(part)
                for name in [name for name in left if part is not None]:
                    histories[name]["writes"][:0] = [write for write in writes if write[1] == name]
                    if part is not None and (key := key_of(name, ns)) in part.state:
                        histories[name]["seed"] = self._codec.load(part.state[key])
                        left.discard(name)
        return histories

    # Writing

    async def aput(
        self, config: Config, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> Config:
        thread_id, ns = _place(config)
        about = get_checkpoint_metadata(config, metadata)
        new = New(ns, get_checkpoint_id(config), cast("Data", checkpoint), cast("Data", about), new_versions)
        await self._write(thread_id, lambda thread: thread.put(self._codec, new))
        return _config(thread_id, ns, checkpoint["id"])

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        thread_id, ns = _place(config)
        task = Written(task_id, task_path, writes)

        async def store(sessions: SessionManager) -> None:
            burst = self._threads.burst(thread_id, ns, str(get_checkpoint_id(config)), task)
            await self._started(thread_id, lambda thread: burst.store(self._codec, thread, task), sessions)

        await self._access.call(store)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the thread by a tombstone. `gc` and `erase` remove what it held."""
        await self._write(thread_id, Thread.delete)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Drop the checkpoints that these runs saved, in all threads, with the writes to them."""
        runs = {str(run_id) for run_id in run_ids}
        for run_id in sorted(runs):
            for session_id in await self._access.call(partial(_of_run, run_id)):
                await self._write(session_id, lambda thread: _drop_runs(thread, runs))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the thread with all its checkpoints. `AlreadyExists` if the target has any."""
        source, target = session_id_of(source_thread_id), session_id_of(target_thread_id)

        async def copy(thread: Thread) -> None:
            await thread.sessions.copy_session(source, target)
            await thread.refresh()

        await self._write(target_thread_id, copy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep each namespace's newest checkpoint (`keep_latest`), and what its delta channels are rebuilt from; or
        `delete` the threads. The manager's `thin` or a keeper frees the bytes.
        """
        if strategy not in {"keep_latest", "delete"}:
            raise InvalidInput("strategy", f"{strategy!r} is not one of keep_latest, delete")
        for thread_id in thread_ids:
            await self._write(thread_id, Thread.delete if strategy == "delete" else self._keep_latest)

    async def _keep_latest(self, thread: Thread) -> None:
        await thread.refresh()
        kept: set[tuple[str, str]] = set()
        for ns in [*(await thread.index()).puts]:
            part = await thread.checkpoint(ns, None)
            missing: set[str] | None = None
            while part is not None:
                kept.add((ns, part.about["id"]))
                if missing is None:
                    # LangGraph counts in the metadata what each delta channel went through since its last snapshot.
                    missing = set(self._codec.load(part.about["metadata"]).get("counters_since_delta_snapshot") or ())
                missing -= {name for name in missing if key_of(name, ns) in part.state}
                part = await thread.stored(ns, part.parent) if missing and part.parent is not None else None
        await thread.keep(kept)

    async def _write(self, thread_id: Any, work: Callable[[Thread], Coroutine[Any, Any, None]]) -> None:
        await self._access.call(partial(self._started, thread_id, work))

    async def _started(
        self, thread_id: Any, work: Callable[[Thread], Coroutine[Any, Any, None]], sessions: SessionManager
    ) -> None:
        """Write to a thread, to the end even if the caller is cancelled: its next call sees what was saved."""
        answer: asyncio.Future[None] = running().create_future()

        async def write() -> None:
            async with self._threads.turn(sessions, thread_id) as thread:
                await work(thread)

        sessions.engine.start(deliver(write(), answer))
        await answer

    @property
    def _codec(self) -> Codec:
        if self._opened_by is not self.serde:
            self._opened_by, self._values = self.serde, Codec(self.serde)
        return self._values

    # The same for callers without an event loop

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        return self._run(self.aget_tuple(config))

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        items = self.alist(config, filter=filter, before=before, limit=limit)
        while (item := self._run(anext(items, None))) is not None:
            yield item

    def put(
        self, config: Config, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> Config:
        return self._run(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        self._run(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._run(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._run(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._run(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._run(self.aprune(thread_ids, strategy=strategy))

    def get_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._run(self.aget_delta_channel_history(config=config, channels=channels))

    def _run(self, call: Awaitable[R]) -> R:
        return self._access.run(lambda _: call)


def _place(config: Config) -> tuple[Any, str]:
    where = config.get("configurable", {})
    if "thread_id" not in where:
        raise InvalidInput("config", 'names no thread; pass {"configurable": {"thread_id": …}}')
    return where["thread_id"], where.get("checkpoint_ns", "")


def _config(thread_id: Any, ns: str, checkpoint_id: str) -> Config:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _matches(metadata: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    return all(key in metadata and metadata[key] == value for key, value in (filter or {}).items())


async def _found(after: str | None, sessions: SessionManager) -> Page:
    return await sessions.find(agent_type=AGENT_TYPE, after=after)


async def _of_run(run_id: str, sessions: SessionManager) -> list[str]:
    """The sessions with a checkpoint that this run saved."""
    ids: list[str] = []
    after: str | None = None
    while True:
        page = await sessions.find(entry={"run": run_id}, after=after)
        ids += [session.session_id for session in page]
        after = page.next
        if after is None:
            return ids


async def _drop_runs(thread: Thread, runs: set[str]) -> None:
    await thread.refresh()
    index = await thread.index()
    places = {(ns, checkpoint_id) for ns, ids in index.puts.items() for checkpoint_id in ids}
    await thread.keep({place for place in places if index.runs.get(place) not in runs})
