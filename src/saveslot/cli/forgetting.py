"""The commands that keep and forget: pin, unpin, thin, gc. What cannot be undone is only told, unless with --apply."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.looking import short
from saveslot.cli.options import CheckpointArg, Duration, WholeArg
from saveslot.cli.screen import note, progress
from saveslot.cli.state import DIM
from saveslot.cli.words import many, size, span
from saveslot.garbage import TOMBSTONES
from saveslot.lifecycle import COMPLETED, FAILED
from saveslot.retention import Retention

# Ids that are listed for a person; --json names all.
LISTED = 20
MONTH = timedelta(days=30)

Apply = Annotated[bool, Parameter(negative="", show_default=False, help="Do it; else only say what would be done.")]


async def pin(what: CheckpointArg, /, *, common: Common = COMMON) -> None:
    await _pinned(what, common, pin=True)


async def unpin(what: CheckpointArg, /, *, common: Common = COMMON) -> None:
    await _pinned(what, common, pin=False)


async def _pinned(what: str, common: Common, *, pin: bool) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session, ref = await target.find(sessions, what)
        change = sessions.pin if pin else sessions.unpin
        made = await change(session.session_id, ref or "latest")
        numbers = await sessions.pins(session.session_id)
    if screen.json:
        screen.data({"id": made.id, "pinned": numbers})
        return
    told = "is pinned" if pin else "is left to retention again"
    screen.say((f"{short(session.session_id, screen)}@{made.seq}", "bold"), (f"  {told} ({made.name})", ""))


async def thin(
    what: WholeArg,
    /,
    *,
    keep_last: Annotated[int | None, Parameter(help="Keep the first, the last n, the newest of each name.")] = None,
    max_checkpoints: Annotated[int | None, Parameter(name="--max", help="Keep at most so many.")] = None,
    max_age: Annotated[Duration, Parameter(help="Keep what is no older, such as 90d.")] = None,
    apply: Apply = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    rule = Retention(keep_last=keep_last, max_checkpoints=max_checkpoints, max_age=max_age)
    async with common.sessions() as sessions:
        await target.whole(sessions, what)
        done = await sessions.thin(what, None if rule.keeps_all else rule, dry_run=not apply)
    if screen.json:
        screen.data({"session_id": what, "dry_run": not apply, **done._asdict()})
        return
    verb = "dropped" if apply else "would be dropped"
    screen.say((what, "bold"), (f"  {many(done.marked, 'checkpoint')} {verb}", ""))
    if done.emptied:
        screen.say((f"  {many(done.emptied, 'frame')} emptied, {size(done.freed_bytes)} given back", ""))
    if done.marked:
        note("their bytes are given back by the next thin in ten minutes, or by a keeper" if apply else _NOTHING)


async def gc(
    *,
    older_than: Annotated[
        Duration, Parameter(show_default=False, help="Sessions that ended so long ago; 30d if left out.")
    ] = MONTH,
    state: Annotated[Literal["completed", "failed"] | None, Parameter(help="Only those that ended so.")] = None,
    grace: Annotated[
        Duration, Parameter(show_default=False, help="And those that were deleted so long ago; 7d if left out.")
    ] = TOMBSTONES,
    apply: Apply = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    states = (COMPLETED, FAILED) if state is None else (state,)
    async with common.sessions() as sessions:
        with progress() as bars:
            task = bars.add_task("removing" if apply else "looking", total=None)
            found = await sessions.gc(
                older_than,
                states,
                grace=TOMBSTONES if grace is None else grace,
                dry_run=not apply,
                progress=lambda done, total: bars.update(task, completed=done, total=total),
            )
    if screen.json:
        screen.data(found.to_dict())
        return
    for ids, why in (
        (found.sessions, f"ended more than {span((older_than or MONTH).total_seconds())} ago"),
        (found.tombstones, f"deleted more than {span((grace or TOMBSTONES).total_seconds())} ago"),
    ):
        for one in ids[:LISTED]:
            screen.say((one, "bold"), (f"  {why}", DIM))
        if len(ids) > LISTED:
            screen.say((f"and {len(ids) - LISTED:,} more that {why}", DIM))
    verb = "removed" if apply else "would be removed"
    screen.say((f"{many(found.count, 'session')} {verb}, {size(found.bytes)}", ""))
    if found.count and not apply:
        note(_NOTHING)


_NOTHING = "nothing was changed; --apply does it"
