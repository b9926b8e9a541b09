"""Microsoft Agent Framework: checkpoints of workflows, and histories of conversations. Extra: `agent-framework`.

The checkpoints of a workflow that follow each other are those of one session, named by the first one's id. A
conversation is a session with the state `{"messages": […]}`. A write that follows a read is refused if another writer
changed the state in between.
"""

# ruff: noqa: E402  (the version of the framework is checked before it is imported)

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from saveslot import blocking
from saveslot.adapters.access import Access, require
from saveslot.adapters.follow import NOTHING, New, Sight, glance, look, overtaken, settled, write
from saveslot.errors import Conflict, InvalidInput
from saveslot.manager import SessionManager
from saveslot.session.draft import LABELS
from saveslot.session.headers import EntryHeader
from saveslot.session.model import AgentSession, SessionCheckpoint
from saveslot.values.checks import Data, as_name

require("agent-framework", "agent-framework-core", "1.23", "1.24")

from agent_framework import (
    AgentSession as Conversation,
    HistoryProvider,
    Message,
    SessionContext,
    SupportsAgentRun,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
)
from agent_framework._sessions import filter_new_messages  # what its own providers and storages call
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value

# Agent types of the sessions.
CONVERSATION, WORKFLOW = "agent-framework", "agent-framework-workflow"
# The label by which a workflow's sessions are found, and that of an entry by which a checkpoint is.
NAME, CHECKPOINT = "agent-framework.workflow", "agent-framework.checkpoint"
# Checkpoints of which a storage remembers what it saw: the newest few of each run under way matter.
MOST_SEEN = 10_000
# Sessions per page of a list.
PAGE = 1000


class SaveslotCheckpointStorage:
    """A `CheckpointStorage`: `WorkflowBuilder(…, checkpoint_storage=SaveslotCheckpointStorage(url))`.

    A save follows what this storage saw when it loaded or saved the checkpoint before: if another run continued the
    same checkpoints meanwhile, it is a `Conflict`, and nothing is stored.

    Values that are not JSON are stored as the framework's own storages store them, as pickles. Loading restores only
    types of the framework, common types of Python and `allowed_checkpoint_types`, each as "module:qualname"; a
    checkpoint with others is refused when it is saved. `sessions` is an open manager; otherwise `url` and `options` are
    those of `saveslot.open`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        allowed_checkpoint_types: Iterable[str] = (),
        **options: Any,
    ) -> None:
        self._access = Access(url, sessions=sessions, namespace=namespace, **options)
        self._allowed = frozenset(allowed_checkpoint_types)
        self._seen: OrderedDict[str, tuple[str, Sight]] = OrderedDict()  # by checkpoint: its session

    def __repr__(self) -> str:
        return f"<SaveslotCheckpointStorage on {self._access!r}>"

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint after the previous one, and return its id."""
        data = self._encoded(checkpoint)
        name = f"superstep-{checkpoint.iteration_count}"
        metadata: Data = {LABELS: {CHECKPOINT: as_name(checkpoint.checkpoint_id, "checkpoint_id")}}

        async def save(sessions: SessionManager) -> None:
            session_id, seen = await self._before(sessions, checkpoint)
            new = New(WORKFLOW, session_id, labels={NAME: checkpoint.workflow_name})
            saved = await write(sessions, new, name, seen, {"data": data}, metadata)
            self._see(checkpoint.checkpoint_id, session_id, saved)

        await settled(self._access.call(save))
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint, or raise `WorkflowCheckpointException`."""

        async def load(sessions: SessionManager) -> Data | None:
            place = await _place(sessions, checkpoint_id)
            if place is None:
                return None
            session_id, seq = place
            _, sight = await look(sessions, session_id, {})
            self._see(checkpoint_id, session_id, sight)
            return await sessions.get_data(session_id, seq)

        data = await self._access.call(load)
        if data is None:
            raise _missing(checkpoint_id)
        return self._decoded(data)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return all checkpoints of a workflow, oldest first."""

        async def listed(sessions: SessionManager) -> list[WorkflowCheckpoint]:
            return [self._decoded(saved.data) for saved in await _listed(sessions, workflow_name, "all")]

        return await self._access.call(listed)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return their ids, oldest first, without reading their states."""

        async def ids(sessions: SessionManager) -> list[str]:
            return [cast("str", _id(saved.metadata)) for saved in await _listed(sessions, workflow_name, 1)]

        return await self._access.call(ids)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow that was saved last, by the clock of the store; None if there is none."""

        async def latest(sessions: SessionManager) -> Data | None:
            best: tuple[datetime, str, int] | None = None
            async for session in _found(sessions, workflow_name):
                if best is not None and session.head is not None and session.head.timestamp < best[0]:
                    break  # the rest changed even earlier
                for entry in (await _entries(sessions, session.session_id))[-1:]:
                    place = entry.timestamp, session.session_id, entry.seq
                    best = place if best is None else max(best, place)
            return None if best is None else await sessions.get_data(best[1], best[2])

        data = await self._access.call(latest)
        return None if data is None else self._decoded(data)

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; False if there is none. The only one of a session is deleted with its session."""

        async def delete(sessions: SessionManager) -> bool:
            place = await _place(sessions, checkpoint_id)
            if place is None:
                return False
            session_id, seq = place
            _, sight = await look(sessions, session_id, {})
            saved = await _entries(sessions, session_id)
            others = [entry.seq for entry in saved if _id(entry.metadata) != checkpoint_id]
            if not others:
                await sessions.delete_session(session_id, seen=sight.version)
            else:
                if seq == sight.data_seq:  # the newest state cannot be dropped: the one before becomes the newest
                    await sessions.rollback(session_id, max(others), seen=sight.version)
                await sessions.drop(session_id, [entry.seq for entry in saved if entry.seq not in others])
            for known in [known for known, (session, _) in self._seen.items() if session == session_id]:
                del self._seen[known]
            return True

        return await settled(self._access.call(delete))

    async def session_id(self, checkpoint_id: str) -> str:
        """Return the session of a checkpoint, to hold while its workflow goes on, or to look at."""
        place = await self._access.call(lambda sessions: _place(sessions, checkpoint_id))
        if place is None:
            raise _missing(checkpoint_id)
        return place[0]

    async def close(self) -> None:
        """Close what this object opened."""
        await self._access.close()

    def _encoded(self, checkpoint: WorkflowCheckpoint) -> Data:
        data = encode_checkpoint_value(checkpoint.to_dict())
        self._decoded(data)  # what could not be loaded is not saved
        return data

    def _decoded(self, data: Data) -> WorkflowCheckpoint:
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(data, allowed_types=self._allowed))

    async def _before(self, sessions: SessionManager, checkpoint: WorkflowCheckpoint) -> tuple[str, Sight]:
        """Return the session of the previous checkpoint, and what this storage has seen of it."""
        previous = checkpoint.previous_checkpoint_id
        for known in (checkpoint.checkpoint_id, previous):
            if known is not None and known in self._seen:
                return self._seen[known]
        place = None if previous is None else await _place(sessions, previous)
        if place is None:
            return checkpoint.checkpoint_id, NOTHING
        session_id, seq = place
        _, newest = await look(sessions, session_id, {})
        if seq != newest.data_seq:
            raise overtaken(session_id, Sight(newest.key, data_seq=seq), newest)
        return session_id, newest

    def _see(self, checkpoint_id: str, session_id: str, sight: Sight) -> None:
        self._seen[checkpoint_id] = session_id, sight
        self._seen.move_to_end(checkpoint_id)
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)


# The run whose messages are read or stored: `get_messages` and `save_messages` are not given it.
_run: ContextVar[SessionContext | None] = ContextVar("saveslot_agent_framework_run", default=None)


class SaveslotHistoryProvider(HistoryProvider):
    """A `HistoryProvider`: `Agent(client, context_providers=[SaveslotHistoryProvider(url)])`.

    What a run adds follows what it has read: if another run changed the conversation meanwhile, it gets `Conflict`,
    and nothing of it is stored. Inside a `sessions.hold` of the same id by this process, writes carry its lease, and
    other processes get `LeaseHeld`.

    `sessions` is an open manager; otherwise `url` and `options` are those of `saveslot.open`.
    """

    DEFAULT_SOURCE_ID = "saveslot"

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        source_id: str = DEFAULT_SOURCE_ID,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self._access = Access(url, sessions=sessions, namespace=namespace, **options)
        self._seen: WeakKeyDictionary[SessionContext, Sight] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<SaveslotHistoryProvider on {self._access!r}>"

    async def before_run(
        self, *, agent: SupportsAgentRun, session: Conversation, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Load the history into the run."""
        token = _run.set(context)
        try:
            await super().before_run(agent=agent, session=session, context=context, state=state)
        finally:
            _run.reset(token)

    async def after_run(
        self, *, agent: SupportsAgentRun, session: Conversation, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Store what the run added, all or nothing."""
        token = _run.set(context)
        try:
            await super().after_run(agent=agent, session=session, context=context, state=state)
        finally:
            _run.reset(token)

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  (the framework's)
        **_: Any,
    ) -> list[Message]:
        """Return the messages of a conversation."""
        run, name = _run.get(), _named(session_id)

        async def read(sessions: SessionManager) -> Data:
            data, sight = await look(sessions, name, None)
            if run is not None:
                self._seen[run] = sight
            return data

        return _messages(await self._access.call(read))

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  (the framework's)
        **_: Any,
    ) -> None:
        """Append the messages that are not there yet. Outside of a run, they follow whatever is there."""
        if not messages:
            return
        run, new = _run.get(), New(CONVERSATION, _named(session_id))

        async def save(sessions: SessionManager) -> None:
            seen, see = None if run is None else self._seen.get(run), glance
            while True:
                # The framework sends messages again whose order overlaps the end of the history, never more than these.
                data, sight = await see(sessions, new.session_id, {"messages": len(messages) + 1})
                if seen is not None and not sight.shows_state_of(seen):
                    raise overtaken(new.session_id, seen, sight)
                fresh = [message.to_dict() for message in filter_new_messages(_messages(data), messages)]
                if not fresh:
                    return
                try:
                    saved = await write(sessions, new, "turn", sight, {"append": {"messages": fresh}})
                except Conflict:
                    if seen is not None:
                        raise
                    see = look
                    continue
                if run is not None and seen is not None:
                    self._seen[run] = saved
                return

        await settled(self._access.call(save))

    async def close(self) -> None:
        """Close what this object opened."""
        await self._access.close()


def _named(session_id: str | None) -> str:
    if session_id is None:
        raise InvalidInput("session_id", "is None; run the agent with session=agent.create_session()")
    return as_name(session_id, "session_id")


def _messages(data: Data) -> list[Message]:
    return [Message.from_dict(message) for message in data.get("messages", [])]


def _missing(checkpoint_id: str) -> WorkflowCheckpointException:
    return WorkflowCheckpointException(
        f"there is no checkpoint {checkpoint_id}; list_checkpoint_ids(workflow_name=…) names those that are there"
    )


def _id(metadata: Data) -> str | None:
    """Return the framework's id of a checkpoint; None for entries that it did not save."""
    return metadata.get(LABELS, {}).get(CHECKPOINT)


async def _place(sessions: SessionManager, checkpoint_id: str) -> tuple[str, int] | None:
    """Return the session of a checkpoint, and the number of its entry."""
    label = {CHECKPOINT: as_name(checkpoint_id, "checkpoint_id")}
    for session in await sessions.find(agent_type=WORKFLOW, entry=label, limit=1):
        for entry in reversed(await _entries(sessions, session.session_id)):
            if _id(entry.metadata) == checkpoint_id:
                return session.session_id, entry.seq
    return None


async def _found(sessions: SessionManager, workflow_name: str) -> AsyncGenerator[AgentSession]:
    """Yield the sessions of a workflow, the one that changed last first."""
    after: str | None = None
    while True:
        labels = {NAME: workflow_name}
        page = await sessions.find(
            agent_type=WORKFLOW, labels=labels, order="changed", heads=True, limit=PAGE, after=after
        )
        for session in page:
            yield session
        if (after := page.next) is None:
            return


async def _listed(
    sessions: SessionManager, workflow_name: str, history: int | Literal["all"]
) -> list[SessionCheckpoint]:
    listed: list[SessionCheckpoint] = []
    async for found in _found(sessions, workflow_name):
        session = await sessions.get_session(found.session_id, history=history)
        saved = {_id(saved.metadata): saved for saved in ([] if session is None else session.checkpoints)}
        listed += [newest for known, newest in saved.items() if known is not None]  # one saved again replaces itself
    return sorted(listed, key=lambda saved: saved.timestamp)


async def _entries(sessions: SessionManager, session_id: str) -> list[EntryHeader]:
    """Return the headers of the framework's checkpoints in a session."""
    entries = await sessions.entries(session_id, kinds=["checkpoint"])
    return [entry for entry in entries if _id(entry.metadata) is not None]
