"""`saveslot token`: `create`, `ls`, `rotate` and `revoke`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Literal

from cyclopts import Parameter

from saveslot.cli.common import HERE, Place
from saveslot.cli.exits import Misuse
from saveslot.cli.options import Duration
from saveslot.cli.screen import Column, Part, Screen, Table, line, note
from saveslot.cli.state import DIM
from saveslot.cli.words import ago
from saveslot.errors import InvalidInput
from saveslot.manager import SessionManager
from saveslot.server import tokens
from saveslot.server.tokens import Token

Action = Annotated[
    Literal["create", "ls", "rotate", "revoke"],
    Parameter(
        name="ACTION",
        help="create: print a new token; ls: list them; rotate: replace one's secret; revoke: refuse it from now on.",
    ),
]


@asynccontextmanager
async def registry_at(place: Place, *, create: bool = False) -> AsyncGenerator[SessionManager]:
    """Open the store's tokens and quotas."""
    if place.common.url.startswith("http"):
        hint = "name the store that the server serves, or use the server's page, /v1/tokens or /v1/quotas"
        reason = f"tokens and quotas are set in the store itself, not through {place.common.place}; {hint}"
        raise InvalidInput("--store", reason)
    async with place.common.sessions(create=create) as sessions:
        yield tokens.registry(sessions)


async def token(
    action: Action,
    name: Annotated[str | None, Parameter(name="NAME", help="The token's name.")] = None,
    /,
    *,
    scope: Annotated[
        Literal["read", "write", "admin"] | None,
        Parameter(metavar="SCOPE", help="What it may do: read, write (and read), or admin (everything)."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        Parameter(negative="", metavar="NAME", help="Only this namespace; repeatable (default: all)."),
    ] = None,
    expires: Annotated[
        Duration, Parameter(metavar="AGE", help="It expires after 30d, 12h, … (default: never).")
    ] = None,
    place: Place = HERE,
) -> None:
    if action != "create" and (scope, namespace, expires) != (None, None, None):
        raise Misuse(f"token {action}: --scope, --namespace and --expires belong to `token create`")
    if action == "ls":
        if name is not None:
            raise Misuse("token ls: takes no name")
        async with registry_at(place) as registry:
            listed = await tokens.tokens_of(registry)
        screen = place.common.screen
        screen.answer([token.to_dict() for token in listed], _rows(listed, screen))
        return
    if name is None:
        raise Misuse(f"token {action}: name the token")
    if action == "create":
        if scope is None:
            raise Misuse("token create: choose --scope read, write or admin")
        until = None if expires is None else datetime.now(UTC) + expires
        async with registry_at(place, create=True) as registry:
            text = await tokens.create(registry, name, scope, namespace, until)
            only = len(await tokens.tokens_of(registry)) == 1
        _answer(place, name, text)
        if only:
            note("this is the store's first token: from now on its servers refuse callers without one")
        return
    async with registry_at(place) as registry:
        if action == "rotate":
            _answer(place, name, await tokens.rotate(registry, name))
        else:
            await tokens.revoke(registry, name)


def _answer(place: Place, name: str, text: str) -> None:
    """Print the token alone: scripts read it, and it is not stored."""
    place.common.screen.answer({"name": name, "token": text}, [line((text, ""))])


def _rows(listed: list[Token], screen: Screen) -> Iterator[Part]:
    if not listed and screen.terminal:
        yield line(("no tokens; the server answers callers on its own machine only", DIM))
        return
    columns = [Column("TOKEN", id=True), Column("SCOPE"), Column("NAMESPACES", wide=True)]
    columns += [Column("CREATED"), Column("EXPIRES"), Column("LAST USED")]
    rows = [
        [
            (token.name, "bold"),
            token.scope,
            "all" if token.namespaces is None else ", ".join(token.namespaces),
            ago(token.created_at),
            "never" if token.expires_at is None else "expired" if token.expired else f"{token.expires_at:%Y-%m-%d}",
            "never" if token.last_used is None else ago(token.last_used),
        ]
        for token in listed
    ]
    yield Table(columns, rows)
