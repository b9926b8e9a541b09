"""`saveslot namespace`: `ls` and `rm`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from cyclopts import Parameter

from saveslot.cli.candidates import namespaces
from saveslot.cli.common import HERE, Place
from saveslot.cli.exits import Misuse
from saveslot.cli.options import Apply, Flag
from saveslot.cli.screen import Column, Part, Screen, Table, line
from saveslot.cli.state import DIM
from saveslot.errors import NotFound
from saveslot.manager.erase import Removal
from saveslot.values.checks import RESERVED
from saveslot.values.log import Query
from saveslot.values.words import many, size

# Namespaces per page.
PAGE = 500

Action = Annotated[
    Literal["ls", "rm"],
    Parameter(name="ACTION", help="ls: list them; rm: erase the content of all sessions of one, deleted ones too."),
]


async def namespace(
    action: Action,
    name: Annotated[str | None, Parameter(name="NAME", completer=namespaces, help="The namespace.")] = None,
    /,
    *,
    rewrite: Annotated[bool, Flag("PostgreSQL: rewrite the tables without old row versions (locks them).")] = False,
    apply: Apply = False,
    place: Place = HERE,
) -> None:
    if action == "ls":
        if name is not None or apply or rewrite:
            raise Misuse("namespace ls: takes no name, --apply or --rewrite")
        await _ls(place)
        return
    if name is None:
        raise Misuse("namespace rm: name the namespace")
    if name == RESERVED:
        raise Misuse(f"namespace rm: {RESERVED} is the server's own; `saveslot token revoke` removes tokens")
    async with place.common.sessions() as sessions:
        removal = await sessions.of(name).erase_all(dry_run=not apply, rewrite=rewrite)
    if not removal.sessions + removal.deleted:
        raise NotFound(f"there is no namespace {name}; `saveslot namespace ls` lists them")
    place.common.screen.answer({**removal.to_dict(), "applied": apply}, _removed(removal, apply=apply))


async def _ls(place: Place) -> None:
    counts: dict[str, int] = {}
    async with place.common.sessions() as sessions:
        while names := await sessions.namespaces(after=next(reversed(counts), ""), limit=PAGE):
            for name in names:
                count = await sessions.engine.vault.count(Query(namespace=name), totals="none")
                counts[name] = sum(count.states.values())
    screen = place.common.screen
    screen.answer([{"name": name, "sessions": count} for name, count in counts.items()], _rows(counts, screen))


def _rows(counts: dict[str, int], screen: Screen) -> Iterator[Part]:
    if not counts and screen.terminal:
        yield line(("no namespace has sessions", DIM))
        return
    columns = [Column("NAMESPACE", id=True), Column("SESSIONS", right=True)]
    yield Table(columns, [[(name, "bold"), f"{count:,}"] for name, count in counts.items()])


def _removed(removal: Removal, *, apply: bool) -> Iterator[Part]:
    what = f"{many(removal.sessions, 'session')} and {many(removal.deleted, 'deleted session')}"
    yield line(("erased " if apply else "would erase ", DIM), (removal.namespace, "bold"))
    yield line((f"{what}, {many(removal.entries, 'entry')}, {size(removal.bytes)}", ""))
    if not apply:
        yield "nothing was erased; --apply erases it for good"
