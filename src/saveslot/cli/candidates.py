"""What a shell completes from the store: ids, checkpoint names, steps, workers, agent types, namespaces.

A shell asks at each TAB, so every answer is bounded in size and time; whatever fails, the answer is empty. Nothing is
created, and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from saveslot.manager import SessionManager

# Candidates offered at once; checkpoints read for their names.
MOST, NEWEST = 50, 500
# Seconds: a shell that answers later than this feels stuck.
PATIENCE = 2.0

Found = dict[str, str]  # what to insert, and what it is


def ids(context: CompletionContext) -> Found:
    """Session ids, newest first."""
    return _asked(context, lambda sessions: _ids(sessions, context.incomplete))


def refs(context: CompletionContext) -> Found:
    """Session ids; after an @, the names of that session's checkpoints. `@name` alone is of the session before it."""
    session_id, at, _ = context.incomplete.rpartition("@")
    if not at:
        return ids(context)
    given = _before(context)
    named = session_id or given.rpartition("@")[0] or given
    return _asked(context, lambda sessions: _names(sessions, named, f"{session_id}@"))


def names(context: CompletionContext) -> Found:
    """The names of checkpoints of the session that the command names."""
    return _asked(context, lambda sessions: _names(sessions, _before(context), ""))


def steps(context: CompletionContext) -> Found:
    """The failed and unknown steps of the session that the command names."""
    return _asked(context, lambda sessions: _steps(sessions, _before(context)))


def workers(context: CompletionContext) -> Found:
    return _asked(context, _workers)


def agents(context: CompletionContext) -> Found:
    return _asked(context, _agents)


def namespaces(context: CompletionContext) -> Found:
    return _asked(context, _namespaces, within=False)


async def _ids(sessions: SessionManager, prefix: str) -> Found:
    page = await sessions.find(prefix=prefix, limit=MOST) if prefix else await sessions.find(limit=MOST)
    return {session.session_id: f"{session.agent_type}, {session.state}" for session in page}


async def _names(sessions: SessionManager, id: str, lead: str) -> Found:
    lines = await sessions.log(id, limit=NEWEST)
    return {f"{lead}{line.name}": line.kind for line in reversed(lines)}


async def _steps(sessions: SessionManager, id: str) -> Found:
    from saveslot.manager.steps import list_steps

    return {row.label: row.state for row in await list_steps(sessions, id) if row.state in {"failed", "unknown"}}


async def _workers(sessions: SessionManager) -> Found:
    from saveslot.manager.owners import holders

    return {one.worker: "alive" if one.alive else "dead" for one in (await holders(sessions))[:MOST]}


async def _namespaces(sessions: SessionManager) -> Found:
    return dict.fromkeys(await sessions.namespaces(limit=MOST), "")


async def _agents(sessions: SessionManager) -> Found:
    counts = (await sessions.stats())["by_agent_type"]
    return {name: str(count) for name, count in list(counts.items())[:MOST]}


def _before(context: CompletionContext) -> str:
    """The first argument of the command: the session."""
    for argument in context.arguments:
        if argument.tokens and not argument.name.startswith("-"):
            return str(argument.tokens[0].value)
    return ""


def _option(context: CompletionContext, name: str) -> str | None:
    given = context.get(name)
    return None if given is None else given.raw


def _asked(
    context: CompletionContext, ask: Callable[[SessionManager], Awaitable[Found]], *, within: bool = True
) -> Found:
    """Ask the store that the words before name, `within` the namespace that they name."""
    from saveslot.cli.common import Common
    from saveslot.opening import open as open_sessions

    async def asked() -> Found:
        common = Common(_option(context, "--store"), _option(context, "--namespace") if within else None)
        if not _there(common.url):
            return {}
        async with open_sessions(common.url, namespace=common.settings["namespace"].value) as sessions:
            return await ask(sessions)

    return _in_time(asked)


def _there(url: str) -> bool:
    from saveslot.stores import sqlite_path

    return not url.startswith("sqlite:") or Path(sqlite_path(url)).exists()


def _in_time(ask: Callable[[], Awaitable[Found]]) -> Found:
    import asyncio

    async def bounded() -> Found:
        async with asyncio.timeout(PATIENCE):
            return await ask()

    try:
        return asyncio.run(bounded())
    except Exception:  # noqa: BLE001  (whatever it is, a shell's prompt is not the place to say it)
        return {}
