"""Repeats of requests about many sessions: each gets the first answer, by its Idempotency-Key.

A verb about one session leaves its key in that session's log. One about many has no such log, so its answer is a
session of the server's own namespace. The server that holds it carries the request out; a repeat at any other one waits
for the answer. If the server dies before it has answered, its hold ends 20 s later, and a repeat carries out what is
left to be done, and answers with that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
from starlette.responses import Response

from saveslot.errors import InvalidInput, LeaseHeld, Unavailable
from saveslot.manager import SessionManager
from saveslot.server.call import JSON, Call, encoded
from saveslot.server.tokens import ANSWER
from saveslot.server.v1.conditions import key
from saveslot.session.held import Held
from saveslot.session.requests import PATH, USED, request
from saveslot.values.checks import now
from saveslot.values.log import ID, Query, micros

AGENT = "saveslot.answer"
# Seconds that a repeat waits for the first request's answer.
WAIT = 8
# Answers are kept for so long; and so many older ones are removed before another is stored.
KEPT, BATCH = timedelta(hours=1), 100


class Attempt:
    """One attempt at a request: of one with a key, an earlier one may have begun and not ended."""

    def __init__(self, held: Held | None = None, call_id: str = "") -> None:
        self._held = held
        self._call_id = call_id
        self.again = held is not None and bool(held.data)

    async def begin(self) -> None:
        """Note that the request is not refused: from here on, a part of it may be done."""
        if self._held is not None and not self.again:
            await self._held.checkpoint("begun", {"request": self._call_id})


async def once(call: Call, verb: str, work: Callable[[Attempt], Awaitable[Any]]) -> Response:
    """Answer with what `work` returns; a call with a key that was answered before, with what was answered then.

    A dry run, and a call that is refused, use no key up.
    """
    given = key(call)
    if given is None or getattr(call.content, "dry_run", False):
        return call.json(await work(Attempt()))
    space, registry = call.namespace, call.tokens.registry
    call_id = request(given, verb, {"content": msgspec.to_builtins(call.content)}).hex()
    place = ANSWER + request(given, "answer", {}, scope=space.encode() + b"\0")[:ID].hex()
    await _forget(registry)
    try:
        held = await registry.take(place, create=AGENT, labels={"namespace": space}, wait=WAIT)
    except LeaseHeld as exc:
        raise Unavailable("the first request with this key is still being carried out; retry") from exc
    async with held:
        if held.data.get("request", call_id) != call_id:
            raise InvalidInput(PATH, USED)
        if "answer" not in held.data:
            answer = encoded(await work(Attempt(held, call_id))).decode()
            await held.checkpoint("answered", {"request": call_id, "answer": answer})
        return Response(held.data["answer"], call.route.status, media_type=JSON)


async def _forget(registry: SessionManager) -> None:
    vault = registry.engine.vault
    query = Query(namespace=registry.namespace, agent_type=AGENT, created_before=micros(now() - KEPT))
    rows = await vault.find(query, None, BATCH)
    heads = [head for head in await vault.heads([row.key for row in rows]) if head is not None] if rows else []
    over = [head for head in heads if not head.row.left]
    if over:
        await vault.purge([head.row.key for head in over], [head.last.append_id for head in over])
