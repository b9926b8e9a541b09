"""`saveslot record` and `saveslot records`: values beside a session's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from cyclopts import Parameter

from saveslot import codec
from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Seen, SessionArg, json_value
from saveslot.cli.screen import Cell, Column, Part, Table, line
from saveslot.cli.sessions import short
from saveslot.cli.words import local
from saveslot.session.records import Record


async def record(
    what: SessionArg,
    name: Annotated[str, Parameter(name="NAME", help="Its name.")],
    value: Annotated[str, Parameter(name="JSON", help="The value, any JSON.")],
    /,
    *,
    key: Annotated[
        str | None, Parameter(metavar="KEY", help="Add it once: the same again with this key adds nothing.")
    ] = None,
    seen: Seen = None,
    common: Common = COMMON,
) -> None:
    new, screen = json_value(value, name), common.screen
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what, changes=True)
        seq = await sessions.record(session.session_id, name, new, key=key, seen=seen)
    screen.answer(
        {"session_id": session.session_id, "seq": seq},
        [line((f"{short(session.session_id, screen)}@{seq}", "bold"), (f"  records {name}", ""))],
    )


async def records(
    what: SessionArg,
    /,
    *,
    name: Annotated[str | None, Parameter(metavar="NAME", help="Only those of this name.")] = None,
    after: Annotated[int, Parameter(metavar="SEQ", show_default=False, help="Only those after this number.")] = 0,
    common: Common = COMMON,
) -> None:
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what)
        page = await sessions.records(session.session_id, name=name, after=after)
    common.screen.answer(page, _listed(page))


def _listed(page: Sequence[Record]) -> Iterator[Part]:
    columns = [Column("SEQ", right=True), Column("TIME"), Column("NAME", name=True), Column("VALUE", wide=True)]
    rows: list[list[Cell]] = [
        [
            str(one.seq),
            local(one.timestamp),
            one.name,
            codec.encode(one.value, "value", codec.ANY_SIZE, depth=-1)[0].decode(),
        ]
        for one in page
    ]
    yield Table(columns, rows)
