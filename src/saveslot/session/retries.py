"""Abandoned calls: the write continues without its caller, and the same call made again gets its answer.

A caller leaves when it is cancelled, or when the store is unavailable (`Unavailable`). A repeated call is recognised by
its content, any number of times, while the entry that it wrote is still the newest one of its session: beyond that, a
retry cannot be told from a new call without an idempotency key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from saveslot import codec
from saveslot.errors import InvalidInput, TooLarge, Unavailable
from saveslot.session.draft import Draft
from saveslot.session.hearing import HEARD
from saveslot.session.model import AgentSession
from saveslot.values.ids import STAMP

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Caller")

# Abandoned calls to remember: in an outage, many callers leave and never retry.
MAX_CALLS = 1000

# The argument that says what a caller has seen. It is not part of a call's content: a repeated call may have read more.
SEEN = "seen"

Scope = tuple[str, str]  # namespace, and session id (agent type, for a creation that names no id)


class Call:
    """One request, however often it is repeated."""

    __slots__ = ("arguments", "draft", "task")

    def __init__(self, draft: Draft | None = None) -> None:
        self.draft = draft  # written, or being written
        self.task: asyncio.Future[Any] | None = None
        self.arguments: object = None  # kept alive: some are recognised by their identity


CALL: ContextVar[Call | None] = ContextVar("call", default=None)


class Calls:
    """Abandoned calls, by session and then by content."""

    def __init__(self) -> None:
        self.left: dict[Scope, dict[Hashable, Call]] = {}
        self._count = 0

    def take(self, scope: Scope, key: Hashable) -> Call | None:
        calls = self.left.get(scope, {})
        call = calls.pop(key, None)
        if call is not None:
            self._removed(scope)
        return call

    def keep(self, scope: Scope, key: Hashable, call: Call) -> None:
        self.take(scope, key)
        self.left.setdefault(scope, {})[key] = call
        self._count += 1
        if self._count > MAX_CALLS:
            oldest, calls = next(iter(self.left.items()))
            self.take(oldest, next(iter(calls)))

    def moved(self, scope: Scope, newest: Draft) -> None:
        """Forget calls whose own entry is no longer the newest: they cannot be recognised any more."""
        for key, call in list(self.left.get(scope, {}).items()):
            ours = call.draft is not None and call.draft.group.key == newest.group.key
            if ours and call.draft is not newest and (call.task is None or call.task.done()):
                self.take(scope, key)

    def _removed(self, scope: Scope) -> None:
        self._count -= 1
        if not self.left[scope]:
            del self.left[scope]


class Caller(Protocol):
    """An object with verbs that write: a namespace of an engine, or a held session."""

    @property
    def calls(self) -> Calls: ...

    @property
    def running(self) -> set[asyncio.Future[Any]]: ...


def content(*arguments: object) -> Hashable:
    """Return a call's content as a comparable key: values by their JSON, everything else as Python compares it."""
    return tuple(map(_content, arguments))


def _content(argument: object) -> Hashable:
    if isinstance(argument, str | int | None):
        return type(argument).__name__, argument
    if isinstance(argument, msgspec.Struct):
        return content(*msgspec.structs.astuple(argument))
    if isinstance(argument, AgentSession):
        staged = tuple(item.append_id[:-STAMP] for item in argument.staged)
        return argument.session_id, staged, content(argument.context, argument.metadata, argument.labels)
    with suppress(InvalidInput, TooLarge):
        return codec.encode(argument, "call", codec.ANY_SIZE)
    with suppress(TypeError):  # not hashable
        return "equals", hash(argument), argument
    return "is", id(argument)


def once_in(
    scope_of: Callable[[Any, object], Scope],
) -> Callable[
    [Callable[Concatenate[T, P], Coroutine[Any, Any, R]]], Callable[Concatenate[T, P], Coroutine[Any, Any, R]]
]:
    """Make a verb survive its caller: cancelling abandons the answer, never the write, and a repeated call gets it.

    `scope_of(owner, first argument)` returns the session that the call is about.
    """

    def once(
        verb: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[T, P], Coroutine[Any, Any, R]]:
        @wraps(verb)
        async def run(self: T, *args: P.args, **kwargs: P.kwargs) -> R:
            calls, scope = self.calls, scope_of(self, args[0] if args else None)

            def key() -> Hashable:
                named = {name: value for name, value in kwargs.items() if name != SEEN}
                return content(verb.__name__, *args, *named, *named.values())

            call = (calls.take(scope, key()) if scope in calls.left else None) or Call()
            before = CALL.set(call)
            work, first = verb(self, *args, **kwargs), call.task
            call.task = task = asyncio.ensure_future(work if first is None else _after(first, work))
            CALL.reset(before)
            self.running.add(task)
            task.add_done_callback(self.running.discard)
            try:
                answer = await asyncio.shield(task)
            except (asyncio.CancelledError, Unavailable):
                task.add_done_callback(_retrieve)
                call.arguments = args, kwargs
                calls.keep(scope, key(), call)
                raise
            finally:
                if task.done():  # else the task, its context and its error keep each other, and what the caller gave
                    call.task = None
                del task
            if (unheard := HEARD.get()) is not None:
                unheard.append(lambda: calls.keep(scope, key(), call))
            return answer

        return run

    return once


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Mark the error of an abandoned call as seen, or asyncio would log it: a repeated call gets it."""
    if not task.cancelled():
        task.exception()


async def _after(first: asyncio.Future[Any], work: Coroutine[Any, Any, R]) -> R:
    """A retry waits for the first attempt; if it overtook it, the first would land later as a second write."""
    await asyncio.wait([first])
    return await work
