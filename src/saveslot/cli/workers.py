"""`saveslot workers`: workers and the sessions they hold."""

from __future__ import annotations

from collections.abc import Iterator

from saveslot.cli.common import COMMON, Common
from saveslot.cli.screen import Cell, Column, Part, Screen, Table, line
from saveslot.cli.sessions import short_ids
from saveslot.cli.state import DIM
from saveslot.manager.owners import Holder, holders
from saveslot.values.words import span


async def workers(*, common: Common = COMMON) -> None:
    async with common.sessions() as sessions:
        rows = await holders(sessions)
    common.screen.answer(rows, _listed(rows, common.screen))


def _listed(holders: list[Holder], screen: Screen) -> Iterator[Part]:
    if not holders and screen.terminal:
        yield line(("no worker holds a session", DIM))
        return
    names = [session.session_id for holder in holders for session in holder.sessions]
    ids = short_ids(names) if screen.terminal else dict(zip(names, names, strict=True))
    columns = [Column("WORKER", id=True), Column("STATE"), Column("HOLDS", right=True)]
    columns += [Column("LEFT", right=True, spare=1), Column("SESSIONS", wide=True)]
    rows: list[list[Cell]] = []
    for holder in holders:
        state = ("● alive", "green") if holder.alive else ("✗ dead", "red")
        state = state if screen.terminal else (state[0][2:], "")
        held = ", ".join(ids[session.session_id] for session in holder.sessions)
        rows.append([(holder.worker, "bold"), state, str(len(holder.sessions)), span(holder.left), (held, DIM)])
    yield Table(columns, rows)
