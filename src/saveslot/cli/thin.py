"""`saveslot thin`: drop old checkpoints. Without --apply it is a dry run: it cannot be undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.candidates import ids
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.options import (
    NOTHING,
    Agent,
    Apply,
    Duration,
    Flag,
    Labels,
    NewerThan,
    OlderThan,
    Rules,
    States,
    User,
    before_now,
    labelled,
)
from saveslot.cli.screen import Part, line, progress
from saveslot.cli.state import DIM
from saveslot.errors import SaveslotError
from saveslot.manager import SessionManager
from saveslot.manager.drops import Drop, apply as apply_drops, checkpoints, drops_of
from saveslot.manager.thin import Thinned
from saveslot.session.model import AgentSession
from saveslot.session.retention import DEFAULT, Retention
from saveslot.values.words import many, size

# Sessions listed; --json has all.
LISTED = 20
# Sessions looked at, and thinned, before the next ones are read.
PAGE = 500
LATER = "run thin again in ten minutes, or run a keeper, to free their bytes"


async def thin(
    what: Annotated[str | None, Parameter(name="ID", completer=ids, help="A session's full id.")] = None,
    /,
    *,
    all: Annotated[bool, Flag("All sessions, or those that the filters name, instead of one.")] = False,
    state: States = None,
    agent: Agent = None,
    user: User = None,
    label: Labels = None,
    newer_than: NewerThan = None,
    older_than: OlderThan = None,
    keep_last: Annotated[
        int | None, Parameter(metavar="N", help="Keep the first, the last N, and the newest of each name in between.")
    ] = None,
    max_checkpoints: Annotated[int | None, Parameter(name="--max", metavar="N", help="Keep at most N.")] = None,
    max_age: Annotated[Duration, Parameter(help="Keep only checkpoints younger than this, such as 90d.")] = None,
    retention: Rules = None,
    apply: Apply = False,
    common: Common = COMMON,
) -> None:
    wanted: dict[str, Any] = {
        "agent_type": agent,
        "user_id": user,
        "labels": labelled(label or []),
        "created_after": before_now(newer_than),
        "created_before": before_now(older_than),
    }
    filtered = state is not None or any(value is not None and value != {} for value in wanted.values())
    if (what is None) != all:
        raise Misuse("thin: name a session, or pass --all for all of them (with filters: those that match)")
    if filtered and not all:
        raise Misuse("thin: filters go with --all, not with the id of a session")
    given = Retention(keep_last=keep_last, max_checkpoints=max_checkpoints, max_age=max_age)
    rule = None if given.keeps_all else given
    if rule is not None and retention is not None:
        raise Misuse("thin: --retention excludes --keep-last, --max and --max-age")
    async with common.sessions(retention=DEFAULT if retention is None else retention) as sessions:
        if what is None:
            summary = await _thin_all(sessions, wanted, [*dict.fromkeys(state or [None])], rule, apply=apply)
            common.screen.answer(summary.to_dict(), summary.lines())
            return
        await target.whole(sessions, what)
        done = await sessions.thin(what, rule, dry_run=not apply)
    common.screen.answer(
        {"session_id": what, "dry_run": not apply, **done.to_dict()}, _thinned(what, done, apply=apply)
    )


def _thinned(what: str, done: Thinned, *, apply: bool) -> Iterator[Part]:
    yield line((what, "bold"), (f"  {many(done.marked, 'checkpoint')} {_verb(apply=apply)}", ""))
    if done.emptied:
        yield line((f"  {many(done.emptied, 'frame')} emptied, {size(done.freed_bytes)} freed", ""))
    if done.marked:
        yield LATER if apply else NOTHING


def _verb(*, apply: bool) -> str:
    return "dropped" if apply else "would be dropped"


class Summary:
    """What was dropped, or would be, of many sessions."""

    def __init__(self, *, apply: bool) -> None:
        self.applied = apply
        self.drops: list[Drop] = []
        self.refused: list[tuple[str, SaveslotError]] = []
        self.freed = Thinned()
        self.looked_at = self.sealed = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "dry_run": not self.applied,
            "sessions": [drop.id for drop in self.drops],
            "checkpoints": checkpoints(self.drops),
            "bytes": sum(drop.bytes for drop in self.drops),
            "emptied": self.freed.emptied,
            "freed_bytes": self.freed.freed_bytes,
            "refused": [{"id": one, "code": why.code, "message": str(why)} for one, why in self.refused],
            "sealed": self.sealed,
            "looked_at": self.looked_at,
        }

    def lines(self) -> Iterator[Part]:
        verb = _verb(apply=self.applied)
        for drop in self.drops[:LISTED]:
            yield line((drop.id, "bold"), (f"  {many(len(drop.drop), 'checkpoint')} {verb}", ""))
        if len(self.drops) > LISTED:
            yield line((f"and those of {many(len(self.drops) - LISTED, 'other session')}", DIM))
        for one, why in self.refused[:LISTED]:
            yield line((one, "bold"), (f"  left as it is: {why}", DIM))
        if len(self.refused) > LISTED:
            yield line((f"and {len(self.refused) - LISTED:,} more were left as they are", DIM))
        if self.sealed:
            yield line((f"{many(self.sealed, 'sealed session')} left out: thinning needs their keys", DIM))
        total, weight = checkpoints(self.drops), size(sum(drop.bytes for drop in self.drops))
        of = many(len(self.drops), "session")
        yield line((f"{many(total, 'checkpoint')} of {of} {verb}, {weight}", ""))
        if self.freed.emptied:
            yield line((f"{many(self.freed.emptied, 'frame')} emptied, {size(self.freed.freed_bytes)} freed", ""))
        if total:
            yield LATER if self.applied else NOTHING


async def _thin_all(
    sessions: SessionManager,
    wanted: dict[str, Any],
    states: Sequence[str | None],
    rule: Retention | None,
    *,
    apply: bool,
) -> Summary:
    """Thin the sessions that match, page by page: those that lose nothing are not kept in memory."""
    summary = Summary(apply=apply)
    total = sum([await sessions.count(**wanted, state=state) for state in states])
    with progress() as bars:
        bar = bars.add_task("thinning" if apply else "looking", total=total)
        async for page in _pages(sessions, wanted, states):
            found = await drops_of(sessions, [(sessions.namespace, one.session_id) for one in page], rule)
            summary.looked_at += len(page)
            summary.sealed += found.sealed
            if apply:
                done = await apply_drops(sessions, found, rule)
                summary.drops += done.drops
                summary.freed += done.thinned
                summary.refused += done.refused
            else:
                summary.drops += found.drops
            bars.update(bar, completed=summary.looked_at)
    return summary


async def _pages(
    sessions: SessionManager, wanted: dict[str, Any], states: Sequence[str | None]
) -> AsyncIterator[list[AgentSession]]:
    for state in states:
        after: str | None = None
        while True:
            page = await sessions.find(**wanted, state=state, limit=PAGE, after=after)
            yield page
            if (after := page.next) is None:
                break
