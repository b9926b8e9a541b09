"""Runs of Pydantic AI that go on where they were: each model request and each tool call is a step of a session.

The framework's interface for durable execution calls each of them through `_Steps.execute`. A run that is started again
is replayed: what finished returns its stored result, and what was interrupted runs again with its idempotency key.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, cast

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    conversation_id_from_run_id,
)
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.toolsets import ToolsetTool

from saveslot import blocking
from saveslot.adapters.access import Access
from saveslot.errors import InvalidInput
from saveslot.manager import SessionManager
from saveslot.session import step_calls
from saveslot.session.held import Held
from saveslot.values.checks import Data, Span
from saveslot.values.ids import fit

# The agent type of a run's session.
RUN = "pydantic-ai-run"
# The key of a tool's metadata that has its step's options, and what those may be.
KEY = "saveslot"
NAMES = step_calls.NAMES - {"key"}
SHOWN = ", ".join(sorted(NAMES))
# Options of `held.step`. A failed request or call runs again when its run is started again.
OPTIONS: Data = {"retry": True}


class Replay:
    """A run in progress: what it has asked for so far, since it asks for the same in the same order again."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self._asked: Counter[str] = Counter()

    def number(self, what: str) -> int:
        self._asked[what] += 1
        return self._asked[what]


_replay: ContextVar[Replay | None] = ContextVar("saveslot_pydantic_ai_replay", default=None)
_idempotency_key: ContextVar[str | None] = ContextVar("saveslot_pydantic_ai_key", default=None)


def idempotency_key() -> str | None:
    """Return the key of the tool call that runs, for a service that ignores one it has seen; None outside of a step."""
    return _idempotency_key.get()


class SaveslotStepStore(BaseDurabilityCapability[AgentDepsT]):
    """Durable runs: `agent = Agent(…, name="tutor", capabilities=[steps])`, where `steps = SaveslotStepStore(url)`.

    Inside `async with steps.hold("run-1"):`, model requests and tool calls of the agent are steps of the session
    `run-1`, which this process owns. If it dies, another one repeats the block: it gets the results of what finished,
    and goes on. Outside of a hold the agent runs as without this.

    A tool's metadata may have options of `held.step`: `@agent.tool_plain(metadata={"saveslot": {"mode":
    "at_most_once"}})`, or `{"saveslot": False}` for a tool that is no step. `sessions` is an open manager; otherwise
    `url` and `options` are those of `saveslot.open`.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Saveslot",
        durable_unit_noun="step",
        durable_container_noun="hold",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=KEY,
    )

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        sessions: SessionManager | blocking.SessionManager | None = None,
        namespace: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._access = Access(url, sessions=sessions, namespace=namespace, **options)

    def __repr__(self) -> str:
        return f"<SaveslotStepStore on {self._access!r}>"

    @asynccontextmanager
    async def hold(self, run_id: str, *, wait: Span = 0) -> AsyncGenerator[Held]:
        """Own a run, create it if it is not there; `LeaseHeld` if another process does. What agents do inside is
        stored. The same block, in the same process or another one, repeats nothing of it.
        """
        manager = await self._access.call(_itself)
        if not self._access.is_here:
            raise InvalidInput("hold", "needs its manager in this event loop; make another SaveslotStepStore for it")
        async with manager.hold(run_id, create=RUN, wait=wait) as held:
            held.rests = True  # between its holds no sweep fails a run
            token = _replay.set(Replay(held))
            try:
                yield held
            finally:
                _replay.reset(token)

    async def close(self) -> None:
        """Close what this object opened."""
        await self._access.close()

    # What the framework asks

    @property
    def in_durable_context(self) -> bool:
        return _replay.get() is not None

    def get_default_run_id(self) -> str | None:
        replay = _replay.get()
        return None if replay is None else f"{replay.held.session.session_id}:{replay.number('run')}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """When the run was started first, so that its timeout counts from there."""
        replay = _replay.get()
        if replay is None:
            return None
        started = await replay.held.step("run started", _now, key=fit(run_id))
        return datetime.fromisoformat(started)

    def get_durable_operation_backend(self) -> DurableOperationBackend[Data]:
        def of_tool(_: DurableOperationId, tool: object | None, tool_name: str) -> Data | Literal[False]:
            metadata = cast("ToolsetTool[Any]", tool).tool_def.metadata if tool is not None else None
            own: Any = (metadata or {}).get(KEY, {})
            if own is False:
                return False
            wrong = "must be a dict of options, or False"
            if isinstance(own, dict):
                unknown = sorted(cast("Data", own).keys() - NAMES)
                wrong = f"has no option {unknown[0]}" if unknown else ""
            if wrong:
                raise InvalidInput(f"metadata.{KEY}", f"of the tool {tool_name} {wrong}; a step's are {SHOWN}")
            return OPTIONS | cast("Data", own)

        config = RoleBasedOperationConfig(
            model=OPTIONS, event=OPTIONS, capability=OPTIONS, tool=OPTIONS, resolve_tool=of_tool
        )
        return _Steps(agent_name=self.name, default_model_id=self.default_model_id, config=config)


class _Steps(JournalCallableOperationBackend[Data]):
    async def execute(
        self,
        *,
        operation_id: DurableOperationId,  # noqa: ARG002  (the framework's)
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: Data,
    ) -> object:
        replay = cast("Replay", _replay.get())
        # The ids of tool calls are the recorded model's, so calls side by side find their own results.
        [*contexts] = (cast("RunContext[Any]", part) for part in cache_key if isinstance(part, RunContext))
        where = "/".join(f"{context.run_id}/{context.tool_call_id or ''}" for context in contexts)

        async def work(*, idempotency_key: str | None = None) -> object:
            token = _idempotency_key.set(idempotency_key)
            try:
                return await body()
            finally:
                _idempotency_key.reset(token)

        key = fit(f"{where}#{replay.number(f'{name} {where}')}")
        return await replay.held.step(fit(name), work, key=key, **config)


async def _itself(sessions: SessionManager) -> SessionManager:
    return sessions


def _now() -> str:
    return datetime.now(UTC).isoformat()
