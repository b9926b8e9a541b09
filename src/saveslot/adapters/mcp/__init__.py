"""`saveslot mcp`: tools by which a coding agent keeps its task across context compaction, over stdio or HTTP."""

# ruff: noqa: E402  (the version of mcp is checked before it is imported)

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, cast
from urllib.parse import unquote

from saveslot.adapters.access import require
from saveslot.errors import Conflict, Forbidden, InvalidInput, SaveslotError, Unauthorized, Unavailable

require("mcp", "mcp", "2.3", "3")

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp_types import ToolAnnotations
from pydantic import Field, ValidationError

from saveslot import __version__, codec
from saveslot.adapters.mcp.tasks import Change, Ended, Noted, Page, Patch, Resumed, Saved, StoredTasks, Tasks
from saveslot.opening import open as open_sessions
from saveslot.values.advice import reworded
from saveslot.values.checks import Data

P = ParamSpec("P")
R = TypeVar("R")

INSTRUCTIONS = """Keeps your task outside of your context, so that it survives compaction and restarts.
Call resume at the start, and again whenever you are unsure what you were doing: it tells where the task stands.
Call save when you begin a task (what is asked, the plan) and update after each step (append to progress, put what \
changed); note what is easily forgotten; complete when it is done.
Without a session_id all tools use this project's task."""

# What a model can do about an error, by its code, where the message does not say it.
HINTS = {
    "not_found": "",
    "conflict": "Call resume to read it, then repeat this call with its version as expect.",
    "invalid_transition": "",
    "lease_held": "Another agent is working on it: wait, or use another session_id.",
    "invalid_input": "Correct that argument and call again.",
    "too_large": "Save less: keep results in files, and their paths here.",
    "unavailable": "Call again in a moment, with the same key.",
    "unauthorized": "Tell the user that the token for this store is missing or wrong (SAVESLOT_TOKEN).",
    "forbidden": "Tell the user that the token for this store does not allow it.",
}

# Arguments of the library that have another name here.
NAMES = {"id": "session_id", "seen": "expect", "idempotency_key": "key"}

# Characters of a project's name in a session's id; a number may follow.
MAX_PROJECT = 150

SessionId = Annotated[str | None, Field(description="The session; leave out for this project's task.")]
Expect = Annotated[
    str | None, Field(description="The version that you have read: refused if another agent has written since.")
]
Key = Annotated[
    str | None, Field(description="Any text of your choice: the same call with the same key is carried out once.")
]
Name = Annotated[str, Field(description="A short name for this point, such as tests-pass.")]
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


def answering(tool: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Tell the model what is wrong and what to do; otherwise it would read only that the tool failed."""

    @wraps(tool)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await tool(*args, **kwargs)
        except SaveslotError as exc:
            raise ToolError(_sentence(exc)) from exc

    return answer


def reading(resource: Callable[P, Awaitable[Data]]) -> Callable[P, Awaitable[str]]:
    """The same for resources, whose values are JSON in the form of exports."""

    @wraps(resource)
    async def read(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return codec.encode(await resource(*args, **kwargs), "data", codec.ANY_SIZE)[0].decode()
        except SaveslotError as exc:
            raise ResourceError(_sentence(exc)) from exc

    return read


def _sentence(error: SaveslotError) -> str:
    text = str(error)
    if isinstance(error, InvalidInput):
        text = f"{NAMES.get(error.path, error.path)}: {error.reason}"
    hint = HINTS.get(error.code, HINTS["conflict"] if isinstance(error, Conflict) else "Tell the user.")
    return f"{reworded(text, 'tool')}. {hint}".rstrip()


class Server(MCPServer[Any]):
    """Refuses calls that fit no tool by a sentence that says what would."""

    async def call_tool(self, name: str, arguments: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        tools = {tool.name: tool for tool in await self.list_tools()}
        if name not in tools:
            raise ToolError(f"there is no tool {name}; there are {', '.join(tools)}")
        known: dict[str, Any] = tools[name].input_schema["properties"]
        if unknown := [argument for argument in arguments if argument not in known]:
            raise ToolError(f"{name} has no argument {unknown[0]}; it has {', '.join(known)}. Nothing was done.")
        try:
            return await super().call_tool(name, arguments, *args, **kwargs)
        except ToolError as exc:
            why = exc.__cause__
            if isinstance(why, ToolError):  # without the words that the server puts before it
                raise why from None
            if isinstance(why, ValidationError):
                raise ToolError(_misfits(why, known)) from None
            raise


def _misfits(error: ValidationError, known: Mapping[str, Any]) -> str:
    """Say of each argument that does not fit what it must be."""
    wrong: dict[str, str] = {}
    for one in error.errors(include_url=False, include_input=False):
        name, *inside = map(str, one["loc"])
        about = known.get(name, {}).get("description", "")
        if one["type"] == "missing":
            wrong[name] = f"{name} is missing: {about}".removesuffix(": ")
        else:
            what = one["msg"].removeprefix("Input should be ")
            wrong.setdefault(name, f"{'.'.join([name, *inside[:1]])} must be {what}")
    return f"{'. '.join(wrong.values()).rstrip('.')}. {HINTS['invalid_input']}"


def server(tasks: Tasks) -> MCPServer[Any]:
    """Return the server with its tools and resources."""
    mcp = Server("saveslot", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")

    @mcp.tool(annotations=WRITES)
    @answering
    async def save(
        data: Annotated[
            dict[str, Any],
            Field(
                description="The whole state of the task: task, plan, progress (a list of steps done), decisions, "
                "unresolved, blocked, next, state; any JSON."
            ),
        ],
        name: Name = "saved",
        session_id: SessionId = None,
        parent_session_id: Annotated[
            str | None, Field(description="For a new session: the one that it continues or is a part of.")
        ] = None,
        expect: Expect = None,
        key: Key = None,
    ) -> Saved:
        """Save the whole state of the task; begins the session if it is not there. Durable when this returns."""
        return await tasks.save(session_id, parent_session_id, Change(name, expect, key, data=data))

    @mcp.tool(annotations=WRITES)
    @answering
    async def update(
        append: Annotated[
            dict[str, list[Any]] | None, Field(description='Items to add to lists: {"progress": ["parser done"]}.')
        ] = None,
        put: Annotated[dict[str, Any] | None, Field(description='Values to set: {"next": "write tests"}.')] = None,
        drop: Annotated[list[str] | None, Field(description="Keys to remove.")] = None,
        patch: Annotated[
            list[dict[str, Any]] | None, Field(description="RFC 6902 operations, instead of the others.")
        ] = None,
        name: Name = "updated",
        session_id: SessionId = None,
        expect: Expect = None,
        key: Key = None,
    ) -> Saved:
        """Save what a step changed; everything else stays. Durable when this returns."""
        return await tasks.update(session_id, Change(name, expect, key, append=append, put=put, drop=drop, patch=patch))

    @mcp.tool(annotations=READS)
    @answering
    async def resume(
        session_id: SessionId = None,
        ref: Annotated[
            str, Field(description="latest, a checkpoint's name or number, or ~1 for the one before.")
        ] = "latest",
    ) -> Resumed:
        """Read where the task stands, in at most 4,000 characters, the newest parts whole. Of a completed session,
        that of the nearest unfinished one that it continues.
        """
        return await tasks.resume(session_id, ref)

    @mcp.tool(name="list", annotations=READS)
    @answering
    async def list_sessions(
        agent_type: Annotated[str | None, Field(description="Only sessions of this kind of agent.")] = None,
        text: Annotated[str | None, Field(description="Only sessions whose id or labels contain this.")] = None,
        limit: Annotated[int, Field(ge=1, le=100, description="Sessions on a page.")] = 20,
        after: Annotated[str | None, Field(description="The `next` of the page before.")] = None,
    ) -> Page:
        """List sessions, the last changed first."""
        return await tasks.list(agent_type, text, limit, after)

    @mcp.tool(annotations=READS)
    @answering
    async def diff(
        a: Annotated[str, Field(description="The older checkpoint: a name, a number, ~1 or latest.")] = "~1",
        b: Annotated[str, Field(description="The newer one.")] = "latest",
        session_id: SessionId = None,
    ) -> Patch:
        """Return what changed between two checkpoints, as an RFC 6902 patch."""
        return await tasks.diff(session_id, a, b)

    @mcp.tool(annotations=WRITES)
    @answering
    async def rollback(
        to: Annotated[str, Field(description="A checkpoint's name or number, or ~1.")],
        session_id: SessionId = None,
        expect: Expect = None,
        key: Key = None,
    ) -> Saved:
        """Restore the state of an older checkpoint as a new one. Nothing is lost."""
        return await tasks.rollback(session_id, to, expect, key)

    @mcp.tool(annotations=WRITES)
    @answering
    async def complete(
        result: Annotated[Any, Field(description="What came out of it; any JSON.")] = None,
        session_id: SessionId = None,
        expect: Expect = None,
        key: Key = None,
    ) -> Ended:
        """End the task. The next save without a session_id begins the project's next one."""
        return await tasks.complete(session_id, result, expect, key)

    @mcp.tool(annotations=WRITES)
    @answering
    async def note(
        text: Annotated[str, Field(description="The remark.")], session_id: SessionId = None, key: Key = None
    ) -> Noted:
        """Keep a remark beside the state; resume shows the newest ones. No other agent's write is refused by it."""
        return await tasks.note(session_id, text, key)

    @mcp.resource("saveslot://session/{session_id}", mime_type="application/json")
    @reading
    async def session(session_id: str) -> dict[str, Any]:
        """A session: its data, notes, and the newest 100 entries of its history."""
        return await tasks.read(unquote(session_id), None)

    @mcp.resource("saveslot://session/{session_id}/{ref}", mime_type="application/json")
    @reading
    async def checkpoint(session_id: str, ref: str) -> dict[str, Any]:
        """The data of a checkpoint."""
        return await tasks.read(unquote(session_id), unquote(ref))

    return mcp


@asynccontextmanager
async def opened(place: str | Path, namespace: str, project: str | None = None) -> AsyncGenerator[MCPServer[Any]]:
    """The server on a store's URL or an existing folder; `project` names the session that tools use by default."""
    project = (project or Path.cwd().name or "task")[:MAX_PROJECT]
    if isinstance(place, Path):
        from saveslot.adapters.mcp.folder import FolderTasks

        yield server(FolderTasks(place, project))
        return
    async with AsyncExitStack() as stack:

        async def stored() -> Tasks:
            return StoredTasks(await stack.enter_async_context(open_sessions(place, namespace=namespace)), project)

        try:
            tasks = await stored()
        except (Unauthorized, Forbidden, Unavailable):
            # A client would say of a server that ends only that its connection is closed.
            tasks = cast("Tasks", Unopened(stored))
        yield server(tasks)


class Unopened:
    """Tasks of a store that could not be opened yet: each call tries again, and the model reads why it fails."""

    def __init__(self, stored: Callable[[], Awaitable[Tasks]]) -> None:
        self._stored = stored
        self._tasks: Tasks | None = None
        self._turn = asyncio.Lock()

    def __getattr__(self, tool: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            async with self._turn:
                self._tasks = self._tasks or await self._stored()
            return await getattr(self._tasks, tool)(*arguments)

        return call


async def serve_stdio(place: str | Path, namespace: str, project: str | None = None) -> None:
    """Serve the client that started this process, until it closes stdin."""
    async with opened(place, namespace, project) as mcp:
        await mcp.run_stdio_async()


async def serve_http(
    place: str | Path, namespace: str, port: int, ready: Callable[[str], None], project: str | None = None
) -> None:
    """Serve clients on this machine at /mcp. No request depends on one before it; port 0 is any free one."""
    async with opened(place, namespace, project) as mcp:
        app = mcp.streamable_http_app(stateless_http=True, json_response=True)
        with socket.create_server(("127.0.0.1", port)) as listening:
            ready(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")
            await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening])
