"""What a responder gets: the caller, the sessions of its namespace, and the request, read under a cap."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from saveslot import codec
from saveslot.codec import weight
from saveslot.errors import Corrupt, InvalidInput, TooLarge, Unauthorized, Unavailable
from saveslot.manager import SessionManager
from saveslot.server.keys import Keys
from saveslot.server.load import APART, RATIO, SENDING, WITHIN, Load, Room, apart, decompressed
from saveslot.server.problem import Problem
from saveslot.server.routes import Route
from saveslot.server.tokens import Caller, Tokens
from saveslot.stores import Store
from saveslot.stores.wire.loops import running

if TYPE_CHECKING:
    from saveslot.server.seen import Seen
    from saveslot.server.v1.jobs import Jobs

JSON = "application/json"
# Containers around a state in an answer: a state may be nested as deep as any JSON that the codec writes.
WRAPPING = 4


class Call:
    """One request, after the guard let it in."""

    def __init__(
        self,
        route: Route,
        request: Request,
        path: Mapping[str, str],
        manager: SessionManager,
        tokens: Tokens,
        keys: Keys,
        url: str,
        room: Room,
        seen: Seen,
        jobs: Jobs,
        request_id: str,
    ) -> None:
        self.route = route
        self.request = request
        sent: list[tuple[bytes, bytes]] = request.scope["headers"]
        # By name in lower case; the first value counts.
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(sent)}
        self.path = path
        self.request_id = request_id
        self.caller = Caller("", "open")
        self.namespace = "default"
        self.query: Any = None  # an instance of `route.query`
        self.content: Any = None  # an instance of `route.takes`
        self.manager = manager  # of the server's own namespace
        self.tokens = tokens
        self.keys = keys
        self.url = url  # of the store that this server serves
        self.room = room
        self.seen = seen
        self.jobs = jobs
        self.held = 0  # bytes of its body in memory
        self.load = Load(room, keeps=not (route.streams or route.long))
        self.entered = False  # counted in the room
        # Seconds that it may take, its body aside.
        self._limit = None if route.streams or route.long else WITHIN
        self.deadline = asyncio.timeout(self._limit)
        self._receiving = False  # its body

    @cached_property
    def sessions(self) -> SessionManager:
        """A manager of the namespace that the request names, which the guard has checked."""
        return self.manager.of(self.namespace)

    @property
    def store(self) -> Store:
        """The store as it is: sealed sessions stay sealed."""
        return self.manager.engine.metered

    @property
    def counts(self) -> bool:
        """Whether the caller's token still counts. A stream asks before each event, and ends if not."""
        return self.tokens.counts(self.caller)

    def require_counting(self) -> None:
        """Raise if the caller's token ended while the request was under way: nothing leaves the server after that."""
        if not self.counts:
            raise Unauthorized("the token was revoked, replaced or expired meanwhile; a write of it may have landed")

    def late(self) -> Problem | Unavailable:
        """Return why the request was ended at its deadline."""
        if self._receiving:
            error = Unavailable(f"the request's body did not arrive within {SENDING:g} s; retry")
            return Problem(408, error, {"connection": "close"})
        return Unavailable(f"the store did not answer within {WITHIN:g} s; retry")

    def enter(self) -> None:
        """Take up room, unless the route answers also when there is none."""
        self.load.token = self.caller.token
        if not self.route.always:
            self.room.enter(self.caller.token, stream=self.route.streams)
            self.entered = True

    def leave(self) -> None:
        if self.entered:
            self.entered = False
            self.room.leave(self.caller.token, stream=self.route.streams)

    def end(self) -> None:
        """Give back the room, and that of the body."""
        self.leave()
        self.load.end()

    async def body(self) -> bytes:
        """Read the body, decompressed; `TooLarge` before more than `route.largest` bytes are in memory.

        The time that the client takes to send it does not count for the deadline, and takes up no room.
        """
        self.leave()
        clock, deadline = running().time, self.deadline
        deadline.reschedule(clock() + SENDING)
        self._receiving = True
        try:
            body = await self._received()
        finally:
            if not deadline.expired():
                self._receiving = False
                deadline.reschedule(None if self._limit is None else clock() + self._limit)
        self.enter()
        encoding = self.headers.get("content-encoding", "")
        size = RATIO * len(body) if encoding else 0
        plain = await apart(size, decompressed, body, encoding, self.route.largest)
        if plain is not body:
            self._hold(len(plain))
        return plain

    def _hold(self, size: int) -> None:
        self.load.bring(size)
        self.held += size

    async def _received(self) -> bytes:
        largest = self.route.largest
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > largest:
            raise TooLarge("the request", limit=largest, size=int(declared))
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self.request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part: bytes = message["body"]
            more = message["more_body"]
            size += len(part)
            if size > largest:
                raise TooLarge("the request", limit=largest, size=size)
            self._hold(len(part))
            parts.append(part)
        self.seen.received += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def decode(self) -> None:
        """Decode query and body into the types that the route names."""
        if self.route.query is not None:
            self.query = _query(self.request, self.route.query)
        if self.route.takes is None:
            return
        kind = self.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind != JSON:
            raise Problem(415, InvalidInput("content-type", f"must be {JSON}, not {kind}"))
        text = await self.body()
        try:
            value = await apart(len(text), _decoded, text)
            if len(text) > APART:  # in a thread, which does not count
                self._hold(len(text))
        except Corrupt:
            reason = "is not JSON in UTF-8, or has a `$saveslot` that is no tagged form"
            raise Problem(400, InvalidInput("body", reason)) from None
        self.content = converted(value, self.route.takes, "body")

    def json(self, value: Any, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
        """An answer in JSON."""
        return Response(encoded(value), self.route.status if status is None else status, headers, JSON)


def _decoded(text: bytes) -> Any:
    return codec.decode(text or b"{}", tagged=True, what=weight.REQUEST)


def encoded(value: Any) -> bytes:
    """Return a value as JSON. Types that JSON lacks stand in the tagged form of FORMAT.md."""
    return codec.encode(value, "answer", codec.ANY_SIZE, depth=-WRAPPING)[0]


def converted(value: Any, kind: Any, path: str) -> Any:
    """Return the value as that type; `InvalidInput` with the path of what does not fit."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        reason, _, where = str(exc).partition(" - at `$")
        raise InvalidInput(where.rstrip("`").lstrip(".") or path, reason[:1].lower() + reason[1:]) from None


@cache
def _lists(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The parameters that may be repeated. Reading the fields of a type takes longer than most requests."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind) if "list" in str(field.type))


def _query(request: Request, kind: type[msgspec.Struct]) -> Any:
    lists = _lists(kind)
    texts = {
        name: request.query_params.getlist(name) if name in lists else value
        for name, value in request.query_params.items()
        if name != "ns"
    }
    try:
        return msgspec.convert(texts, kind, strict=False)
    except msgspec.ValidationError as exc:
        reason, _, where = str(exc).partition(" - at `$")
        raise InvalidInput(where.rstrip("`").lstrip(".") or "query", reason[:1].lower() + reason[1:]) from None
