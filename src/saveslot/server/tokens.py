"""Tokens: who may call a server. Each is a session of the reserved namespace, with the token's hash, never the token.

    saveslot_3f9a1c0b7d2e_k3Jx…     an id, by which it is found, and 32 random bytes

Tokens are stored unsealed whether or not the server has an encryption key, and carry nothing secret. A token's last use
is its session's last heartbeat, renewed once a minute.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, cast, get_args

import msgspec

from saveslot.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    SaveslotError,
    Unauthorized,
    Unavailable,
)
from saveslot.manager import SessionManager
from saveslot.server.limits import Limited
from saveslot.server.quotas import id_of as quota_id, quotas_of
from saveslot.session.model import AgentSession
from saveslot.stores.wire.loops import running, stopped
from saveslot.values.checks import RESERVED, TOKENS, Data, as_name, as_time, now
from saveslot.values.ids import stamp_of
from saveslot.values.log import micros

# What a caller must be allowed to do; each word includes the ones before it. `open` needs no token.
Scope = Literal["open", "read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

PAGE = 500
# Seconds that a watch of the tokens waits for news.
WAIT = 3.0
# Seconds after which tokens that could not be watched are not trusted any more: every instance learns of a revoked
# token within milliseconds, and of one that was revoked while it could not reach the store before it serves again.
STALE = 10.0
# Seconds between two records of the tokens' last uses.
RECORD = 60.0
# Bytes of a worker's id that tell its token; the other half is random.
CREW = 8
# Attempts at a revocation that others' changes of tokens overtook.
TRIES = 10


# What the ids of sessions that keep answers to requests begin with; no token is named so. They are no news of tokens.
ANSWER = "$answer-"


class Caller(msgspec.Struct, frozen=True):
    """Who calls: a token, or a person at this machine."""

    name: str  # the token's; "" without one
    scope: Scope
    namespaces: frozenset[str] | None = None  # None: all
    token: str = ""  # the token's id
    stamp: bytes = b""  # of the entries that it writes

    def to_dict(self) -> Data:
        namespaces = None if self.namespaces is None else sorted(self.namespaces)
        return {"name": self.name, "scope": self.scope, "namespaces": namespaces}

    @property
    def crew(self) -> bytes:
        """How the ids of its workers begin; nothing without a token."""
        return hashlib.sha256(b"crew" + self.token.encode()).digest()[:CREW] if self.token else b""

    def may(self, scope: Scope) -> bool:
        return SCOPES.index(scope) <= SCOPES.index(self.scope)


class Token(msgspec.Struct, frozen=True):
    """A token without its secret."""

    name: str
    scope: Scope
    namespaces: list[str] | None  # None: all
    created_at: datetime
    expires_at: datetime | None
    last_used: datetime | None  # to the minute
    id: str
    digest: str
    stamp: bytes

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= now()

    @property
    def manages(self) -> bool:
        """Whether it may create, rotate and revoke tokens."""
        return self.scope == "admin" and self.namespaces is None and not self.expired

    @property
    def caller(self) -> Caller:
        namespaces = None if self.namespaces is None else frozenset(self.namespaces)
        return Caller(self.name, self.scope, namespaces, self.id, self.stamp)

    def to_dict(self) -> Data:
        """Without id, digest and stamp; times in ISO format."""
        times = {name: getattr(self, name) for name in ("created_at", "expires_at", "last_used")}
        texts = {name: at and at.isoformat() for name, at in times.items()}
        return {"name": self.name, "scope": self.scope, "namespaces": self.namespaces, **texts, "expired": self.expired}


def registry(sessions: SessionManager) -> SessionManager:
    """Return a manager of the tokens in the store of these sessions. It needs no key; closing it closes the store."""
    return SessionManager(store=sessions.engine.metered, namespace=RESERVED)


async def create(
    tokens: SessionManager,
    name: str,
    scope: str,
    namespaces: Sequence[str] | None = None,
    expires_at: datetime | None = None,
) -> str:
    """Create a token and return its text, which is not stored. `AlreadyExists` if the name is taken."""
    if namespaces is not None and not namespaces:
        raise InvalidInput("namespaces", "must name one at least; leave it out for a token of all namespaces")
    if as_name(name, "name").startswith("$"):
        raise InvalidInput("name", f"{name!r} must not begin with $")
    context = {
        "scope": _as_scope(scope),
        "namespaces": None if namespaces is None else sorted({_as_namespace(one) for one in namespaces}),
        "expires_at": None if expires_at is None else as_time(expires_at, "expires_at").isoformat(),
    }
    text, secret = _drawn()
    try:
        await tokens.create_session(TOKENS, session_id=name, context={**context, **secret})
    except AlreadyExists as exc:
        raise AlreadyExists(f"there is a token {name} already; rotate or revoke it, or choose another name") from exc
    return text


async def tokens_of(tokens: SessionManager) -> list[Token]:
    """All tokens, newest first."""
    known: list[Token] = []
    after: str | None = None
    while True:
        page = await tokens.find(agent_type=TOKENS, limit=PAGE, after=after)
        known += [_token(session) for session in page]
        if (after := page.next) is None:
            return known


async def revoke(tokens: SessionManager, name: str) -> None:
    """Revoke a token. The last one that manages tokens stays: nobody could create another over HTTP."""
    for _ in range(TRIES):
        session = await _existing(tokens, name)
        token = _token(session)
        keeping = next((one for one in await tokens_of(tokens) if one.manages and one.name != name), None)
        if token.manages and keeping is None:
            raise Forbidden(f"{name} is the last token with scope admin for all namespaces; create another one first")
        with suppress(Conflict, NotFound):  # someone changed one of the two meanwhile: look again
            async with tokens.together() as t:
                t.delete_session(name, seen=session.version)
                if token.manages and keeping is not None:  # at the same time that one cannot be revoked
                    other = await _existing(tokens, keeping.name)
                    t.checkpoint(keeping.name, "stays", {}, seen=other.version)
            return
    raise Unavailable(f"token {name} was not revoked: others kept changing the tokens; retry")


async def rotate(tokens: SessionManager, name: str) -> str:
    """Replace a token's secret and return the new text. The old one is refused from then on."""
    session = await _existing(tokens, name)
    text, secret = _drawn()
    session.context.update(secret)
    await tokens.update_session(session)
    return text


class Tokens:
    """The tokens as one server knows them, and the quotas that it keeps to, kept up to date by a watch of the reserved
    namespace.
    """

    def __init__(self, sessions: SessionManager, limits: Limited, *, required: bool) -> None:
        self.registry = registry(sessions)
        self.limits = limits
        self.required = required  # also once there was a token: a server never becomes open again while it runs
        self._by_id: dict[str, Token] = {}
        self._used: set[str] = set()  # names
        self._confirmed = float("-inf")
        self._watching: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()  # set once when tokens were revoked or replaced, and then another one

    @property
    def any(self) -> bool:
        return bool(self._by_id)

    async def start(self) -> None:
        await self._load()
        self._watching = running().create_task(self._watch())

    async def stop(self) -> None:
        await stopped(self._watching)
        with suppress(SaveslotError):
            await self._record()
        await self.registry.engine.leave()

    def caller(self, text: str) -> Caller:
        """Return whom this text stands for; `Unauthorized` unless it is a token that counts now."""
        if running().time() - self._confirmed > STALE:
            raise Unavailable("tokens cannot be checked now: the store does not answer; retry")
        known, digest = self._by_id.get(text.split("_")[1] if text.count("_") > 1 else ""), _digest(text)
        # Compared in constant time, whether or not there is such an id.
        if not hmac.compare_digest(digest, _digest("") if known is None else known.digest) or known is None:
            raise Unauthorized("the token is unknown or was revoked; create one with `saveslot token create`")
        if known.expired:
            raise Unauthorized(f"token {known.name} has expired; create or rotate one with `saveslot token`")
        self._used.add(known.name)
        return known.caller

    def counts(self, caller: Caller) -> bool:
        """Whether the caller's token still counts, as streams ask from time to time."""
        token = self._by_id.get(caller.token)
        return not caller.token or (token is not None and not token.expired)

    async def ended(self, caller: Caller) -> None:
        """Return once the caller's token was revoked or replaced."""
        while self.counts(caller):
            await self._ending.wait()

    def valid_until(self, caller: Caller) -> datetime | None:
        token = self._by_id.get(caller.token)
        return None if token is None else token.expires_at

    async def reload(self) -> None:
        """Take in what was changed, by this server or another one."""
        self._take(await tokens_of(self.registry))
        self.limits.keep(await quotas_of(self.registry))

    async def _load(self) -> str:
        """Load all tokens; return the cursor to watch from."""
        since = running().time()
        _, cursor = await self.registry.engine.vault.events(RESERVED, None)
        await self.reload()
        self._confirmed = since
        return cursor

    def _take(self, tokens: list[Token]) -> None:
        before, self._by_id = self._by_id, {token.id: token for token in tokens}
        if before.keys() - self._by_id.keys():
            self._ending.set()
            self._ending = asyncio.Event()
        self.required = self.required or bool(tokens)

    async def _watch(self) -> None:
        cursor: str | None = None
        recorded = running().time()
        while True:
            try:
                if cursor is None:
                    cursor = await self._load()
                # News from before the call are in its answer: until then the tokens are confirmed.
                since = running().time()
                events, cursor = await self.registry.engine.vault.events(RESERVED, cursor, wait=WAIT)
                if any(not event.session_id.startswith(ANSWER) for event in events):
                    await self.reload()
                self._confirmed = running().time() if not events else since
                if running().time() - recorded > RECORD:
                    recorded = running().time()
                    await self._record()
            except SaveslotError:  # out of reach, or its history was lost: load anew
                cursor = None
                await asyncio.sleep(1)

    async def _record(self) -> None:
        """Store the last uses, as heartbeats of the tokens' sessions; those of quotas too, which Valkey would drop."""
        used, self._used = [*self._used, *map(quota_id, self.limits.limited)], set()
        if used:
            vault = self.registry.engine.vault
            heads = await vault.heads([(RESERVED, name) for name in used])
            await vault.beat([(head.row.key, None) for head in heads if head is not None])


def _as_scope(value: Any) -> Scope:
    if value not in SCOPES[1:]:
        raise InvalidInput("scope", f"{value!r} is not one of {', '.join(SCOPES[1:])}")
    return value


def _as_namespace(value: Any) -> str:
    name = as_name(value, "namespaces")
    if name == RESERVED:
        raise InvalidInput("namespaces", f"{RESERVED} is the server's own, which no token may name")
    return name


def _drawn() -> tuple[str, dict[str, str]]:
    """A new token, and what is stored of it."""
    number = secrets.token_hex(6)
    text = f"saveslot_{number}_{secrets.token_urlsafe(32)}"
    return text, {"id": number, "digest": _digest(text)}


def _digest(text: str) -> str:
    # A fast hash is enough: the secret has 256 random bits, so nothing can be guessed.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


async def _existing(tokens: SessionManager, name: str) -> AgentSession:
    session = await tokens.get_session(as_name(name, "name"), history=0)
    if session is None or session.agent_type != TOKENS:
        raise NotFound(f"there is no token {name}; `saveslot token ls` lists them")
    return session


def _token(session: AgentSession) -> Token:
    context = session.context
    expires_at = context.get("expires_at")
    used = session.last_heartbeat
    return Token(
        session.session_id,
        cast("Scope", context.get("scope", "open")),
        context.get("namespaces"),
        session.created_at,
        None if expires_at is None else datetime.fromisoformat(expires_at),
        None if used <= session.created_at else used,
        str(context.get("id", "")),
        str(context.get("digest", "")),
        stamp_of(session.session_id, micros(session.created_at)),
    )
