"""`saveslot pin`, `unpin` and `gc`. Without --apply, gc is a dry run: it cannot be undone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.options import NOTHING, Apply, CheckpointArg, Duration
from saveslot.cli.screen import Part, line, progress
from saveslot.cli.sessions import short
from saveslot.cli.state import DIM
from saveslot.manager.gc import TOMBSTONES, Garbage
from saveslot.values.lifecycle import COMPLETED, FAILED
from saveslot.values.words import many, size, span

# Ids listed; --json has all.
LISTED = 20
MONTH = timedelta(days=30)


async def pin(what: CheckpointArg, /, *, common: Common = COMMON) -> None:
    await _pinned(what, common, pin=True)


async def unpin(what: CheckpointArg, /, *, common: Common = COMMON) -> None:
    await _pinned(what, common, pin=False)


async def _pinned(what: str, common: Common, *, pin: bool) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session, ref = await target.find(sessions, what, changes=True)
        change = sessions.pin if pin else sessions.unpin
        checkpoint = await change(session.session_id, ref or "latest")
        numbers = await sessions.pins(session.session_id)
    now = "is pinned" if pin else "is subject to retention again"
    name = f"{short(session.session_id, screen)}@{checkpoint.seq}"
    screen.answer(
        {"id": checkpoint.id, "pinned": numbers}, [line((name, "bold"), (f"  {now} ({checkpoint.name})", ""))]
    )


async def gc(
    *,
    older_than: Annotated[
        Duration, Parameter(show_default=False, help="Ended at least this long ago (default: 30d).")
    ] = MONTH,
    state: Annotated[
        Literal["completed", "failed"] | None,
        Parameter(metavar="STATE", help="Only sessions that ended in this state."),
    ] = None,
    grace: Annotated[
        Duration, Parameter(show_default=False, help="Deleted at least this long ago (default: 7d).")
    ] = TOMBSTONES,
    apply: Apply = False,
    common: Common = COMMON,
) -> None:
    states = (COMPLETED, FAILED) if state is None else (state,)
    async with common.sessions() as sessions:
        with progress() as bars:
            task = bars.add_task("removing" if apply else "looking", total=None)
            garbage = await sessions.gc(
                older_than,
                states,
                grace=TOMBSTONES if grace is None else grace,
                dry_run=not apply,
                progress=lambda done, total: bars.update(task, completed=done, total=total),
            )
    ended = f"ended more than {span(MONTH.total_seconds() if older_than is None else older_than.total_seconds())} ago"
    deleted = f"deleted more than {span(TOMBSTONES.total_seconds() if grace is None else grace.total_seconds())} ago"
    common.screen.answer(garbage, _removed(garbage, ended, deleted, apply=apply))


def _removed(garbage: Garbage, ended: str, deleted: str, *, apply: bool) -> Iterator[Part]:
    for ids, why in ((garbage.sessions, ended), (garbage.tombstones, deleted)):
        for one in ids[:LISTED]:
            yield line((one, "bold"), (f"  {why}", DIM))
        if len(ids) > LISTED:
            yield line((f"and {len(ids) - LISTED:,} more that {why}", DIM))
    verb = "removed" if apply else "would be removed"
    yield line((f"{many(garbage.count, 'session')} {verb}, {size(garbage.bytes)}", ""))
    if garbage.count and not apply:
        yield NOTHING
