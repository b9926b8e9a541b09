"""The ASGI application: finds the route, asks the guard, decodes, responds; every error becomes a problem."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from saveslot.codec import weight
from saveslot.errors import InvalidInput, InvalidTransition, NotFound, SaveslotError, TooLarge
from saveslot.manager import SessionManager
from saveslot.server.call import Call
from saveslot.server.guard import Rates, admit
from saveslot.server.keys import Keys
from saveslot.server.load import LOAD, PACE, PART, TAKING, Room
from saveslot.server.problem import Problem, problem, status_of
from saveslot.server.routes import Routes, table
from saveslot.server.seen import Seen
from saveslot.server.tokens import Tokens
from saveslot.server.v1 import conditions
from saveslot.server.v1.jobs import Jobs
from saveslot.values.ids import stamping

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("saveslot.server")
# Headers of every answer. Nothing is cached by default, and a browser loads only what this server sends.
SAFE = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_SAFE = [(name.encode(), value.encode()) for name, value in SAFE.items()]


class Server:
    """The application over an open manager, which the caller closes."""

    def __init__(self, manager: SessionManager, tokens: Tokens, rates: Rates, url: str = "memory:") -> None:
        self.manager = manager
        self.tokens = tokens
        self.rates = rates
        self.url = url
        self.keys = Keys(manager.engine.metered)
        self.room = Room()
        self.seen = Seen()
        self.jobs = Jobs(manager, tokens.registry)
        self.routes = Routes(table())

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        request_id = request.headers.get("x-request-id", "")
        if not (request_id.isascii() and request_id.isprintable() and 0 < len(request_id) <= 100):  # noqa: PLR2004
            request_id = os.urandom(16).hex()
        began, status = perf_counter(), 499  # as proxies count a client that went away
        call: Call | None = None
        try:
            try:
                call = self._call(request, request_id)
            except (Problem, NotFound) as exc:
                response = _refusal(exc, request, request_id)
            else:
                response = await self.answer(call)
            status = response.status_code
            headers = response.raw_headers
            own = {name for name, _ in headers}
            headers += [header for header in _SAFE if header[0] not in own]
            headers.append((b"x-request-id", request_id.encode()))
            await self.send(call, response, scope, receive, send)
            self.seen.sent += len(getattr(response, "body", b""))
        except ClientDisconnect:
            return
        finally:
            if call is not None:
                call.end()
            self.seen.add(call, request.method, status, perf_counter() - began, request_id)

    async def send(
        self,
        call: Call | None,  # noqa: ARG002  (which it is part of, for those who trace it)
        response: Response,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        """Send an answer; of a stream, as long as it goes on. No call: there is no such route."""
        body: bytes = getattr(response, "body", b"")
        if len(body) <= PART and not isinstance(response, StreamingResponse):
            await response(scope, receive, send)
        else:
            await _sent(response, body, scope, receive, send)

    async def answer(self, call: Call) -> Response:
        """Carry out a request; every error becomes a problem."""
        request, request_id = call.request, call.request_id
        try:
            admit(call, self.rates)
            stamping.set(call.caller.stamp)
            weight.LIMITS.set(call.load.limits)
            LOAD.set(call.load)
            call.enter()
            try:
                async with call.deadline:
                    response = await _responded(call)
                call.load.take(len(getattr(response, "body", b"")), "ask for less at a time")
                return response
            except TimeoutError:
                if not call.deadline.expired():
                    raise
                raise call.late() from None
        except (Problem, SaveslotError) as exc:
            return _refusal(exc, request, request_id)
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("request %s failed", request_id)
            return problem(SaveslotError("internal error; the server's log has the details"), request_id=request_id)

    def _call(self, request: Request, request_id: str) -> Call:
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        try:
            routes = self.routes.find(raw.partition(b"?")[0].decode("ascii"))
        except UnicodeDecodeError:
            raise Problem(400, InvalidInput("path", "is not percent-encoded UTF-8")) from None
        if not routes:
            raise NotFound(f"there is no {request.scope['path']} on this server; /v1/openapi.json lists what there is")
        method = "GET" if request.method == "HEAD" else request.method
        if method not in routes:
            allowed = ", ".join(sorted(routes))
            raise Problem(405, InvalidInput("method", f"must be {allowed} here"), {"allow": allowed})
        route, values = routes[method]
        return Call(
            route,
            request,
            values,
            self.manager,
            self.tokens,
            self.keys,
            self.url,
            self.room,
            self.seen,
            self.jobs,
            request_id,
        )


async def _sent(response: Response, body: bytes, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Send a long answer in parts. A client that takes them too slowly is cut: they stay in memory until it does."""

    async def part(message: Message) -> None:
        async with asyncio.timeout(TAKING):
            await send(message)

    try:
        if isinstance(response, StreamingResponse):
            await response(scope, receive, part)
            return
        async with asyncio.timeout(TAKING + len(body) / PACE):
            await part({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
            if scope["method"] == "HEAD":
                body = b""
            for start in range(0, len(body), PART):
                await part({"type": "http.response.body", "body": body[start : start + PART], "more_body": True})
            await part({"type": "http.response.body", "body": b""})
    except TimeoutError:  # the answer is not whole, so the connection is closed
        return


def _refusal(exc: Problem | SaveslotError, request: Request, request_id: str) -> Response:
    if isinstance(exc, Problem):
        return problem(exc.error, exc.status, exc.headers, request_id=request_id, more=exc.more)
    return problem(exc, status_of(exc, conditional="if-match" in request.headers), request_id=request_id)


async def _responded(call: Call) -> Response:
    try:
        await call.decode()
    except (Problem, SaveslotError):
        await conditions.check(call)
        raise
    try:
        response = await call.route.respond(call)
    except (InvalidInput, InvalidTransition, TooLarge) as exc:
        if not isinstance(exc, InvalidInput) or exc.path not in {"idempotency_key", "key"}:
            await conditions.check(call)
        raise
    if not call.route.streams and call.route.scope != "admin":  # a token that revokes or rotates itself is answered
        call.require_counting()
    return response
