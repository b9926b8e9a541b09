"""`saveslot audit`: what each writer did and when, and whether the log was changed since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.candidates import ids
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import Flag
from saveslot.cli.screen import Column, Part, Table, note
from saveslot.errors import NotFound
from saveslot.manager.audit import Audit


async def audit(
    what: Annotated[
        str,
        Parameter(
            name="ID",
            completer=ids,
            help="A session's id, or a unique beginning or end of it; a deleted one's full id.",
        ),
    ],
    /,
    *,
    verify: Annotated[bool, Flag("Exit 1 if the chain is broken.")] = False,
    link: Annotated[
        str | None, Parameter(metavar="LINK", help="The newest link of an earlier audit; exit 1 if it is gone.")
    ] = None,
    common: Common = COMMON,
) -> None:
    async with common.sessions() as sessions:
        try:  # first as it was typed: a deleted session must not be taken for one that begins with its id
            trail = await sessions.audit(what, link=link)
        except NotFound as unheard:
            try:
                session = await target.find_session(sessions, what)
            except NotFound:
                raise unheard from None
            trail = await sessions.audit(session.session_id, link=link)
    common.screen.answer(trail, _listed(trail))
    if trail.misfit is not None:
        note(f"saveslot: entry {trail.misfit} {trail.wrong}")
        if verify or link is not None:
            raise SystemExit(1)
    elif verify:
        others = f"; nothing vouches for {trail.unlinked:,} of them" if trail.unlinked else ""
        note(f"{len(trail.lines):,} entries match their links{others}")


def _listed(trail: Audit) -> Iterator[Part]:
    columns = [
        Column("SEQ", right=True),
        Column("TIME"),
        Column("KIND"),
        Column("NAME", name=True),
        Column("HELD BY", name=True),
    ]
    rows = [
        [str(line.seq), f"{line.timestamp:%Y-%m-%d %H:%M:%S}", line.kind, line.name, line.held_by]
        for line in trail.lines
    ]
    if any(line.token for line in trail.lines):
        columns.append(Column("TOKEN", name=True))
        rows = [[*row, line.token] for row, line in zip(rows, trail.lines, strict=True)]
    yield Table(columns, rows)
    yield f"{trail.session_id} is {trail.state}; newest link {trail.head or '(none)'}"
