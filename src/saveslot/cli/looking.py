"""The commands that look: ls, show, log, diff, audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from saveslot import difference
from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.options import CheckpointArg, Duration, Limit, SessionArg
from saveslot.cli.screen import Cell, Column, Line, Screen, Span, note
from saveslot.cli.state import DIM, FULL, Fold, bare, tree
from saveslot.cli.words import age, ago, flat, local, many, size
from saveslot.errors import NotFound
from saveslot.glance import LogLine
from saveslot.manager import SessionManager
from saveslot.model import AgentSession, Checkpoint, DamagedSession, Data

# What a terminal shows unless told otherwise; a pipe gets everything.
SHOWN = 50
PAGE = 500

STATES = {"active": ("● ", "green"), "paused": ("‖ ", "yellow"), "completed": ("✓ ", "blue"), "failed": ("✗ ", "red")}
# A UUIDv7 begins with its milliseconds: 13 characters are unique but for sessions made in the same one.
SHORT_ID = 13
UUID_LENGTH = 36

ROLLED_BACK = "session_rolled_back"
# The kinds of entries that give a session an owner, and those that take it away.
TAKING, LETTING_GO = {"taken", "claimed"}, {"released", "completed", "failed"}

Full = Annotated[bool, Parameter(negative="", show_default=False, help="Fold nothing.")]


async def ls(
    *,
    state: Annotated[Literal["active", "paused", "completed", "failed"] | None, Parameter(help="Only these.")] = None,
    agent: Annotated[str | None, Parameter(help="Only of this agent type.")] = None,
    user: Annotated[str | None, Parameter(help="Only of this user.")] = None,
    label: Annotated[
        list[str] | None, Parameter(negative="", show_default=False, help="Only with this label, as name=value.")
    ] = None,
    text: Annotated[str | None, Parameter(help="Only with this in id, agent type, user or a label.")] = None,
    newer_than: Annotated[Duration, Parameter(help="Made in the last 12h, 30d, …")] = None,
    older_than: Annotated[Duration, Parameter(help="Made before that.")] = None,
    limit: Limit = None,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    wanted: dict[str, Any] = {
        "state": state,
        "agent_type": agent,
        "user_id": user,
        "labels": labelled(label or []),
        "text": text,
        "created_after": before_now(newer_than),
        "created_before": before_now(older_than),
    }
    if limit is None:
        limit = SHOWN if screen.terminal else 0
    async with common.sessions() as sessions:
        found, more = await _found(sessions, wanted, limit)
        count = await sessions.count(**wanted) if more and screen.terminal else len(found)
    if screen.json:
        screen.data([told(session) for session in found])
        return
    if not found and screen.terminal:
        screen.say(("no sessions here; `saveslot demo` shows what they are for", DIM))
        return
    columns, rows = listing(found, screen)
    screen.table(columns, rows)
    if count > len(found):
        screen.say((f"… {count - len(found):,} more; --limit 0 shows all", DIM))


async def _found(sessions: SessionManager, wanted: dict[str, Any], limit: int) -> tuple[list[AgentSession], bool]:
    found: list[AgentSession] = []
    after: str | None = None
    while True:
        page = await sessions.find(**wanted, limit=min(PAGE, limit - len(found)) if limit else PAGE, after=after)
        found += page
        after = page.next
        if after is None or len(found) == limit:
            return found, after is not None


def told(session: AgentSession) -> Data:
    """Its `to_dict`, and beside that who holds it; of a damaged one what can be read."""
    owner = session.owner
    known = session.readable() if isinstance(session, DamagedSession) else session.to_dict()
    return {**known, "owner": None if owner is None else {"worker": owner.worker, "left": owner.left}}


def listing(found: Sequence[AgentSession], screen: Screen) -> tuple[list[Column], list[list[Cell]]]:
    """Sessions one line each: times as ages on a terminal, exact in a pipe."""
    ids = short_ids([session.session_id for session in found]) if screen.terminal else {}
    users, held = (any(getattr(s, part) for s in found) for part in ("user_id", "owner"))
    contexts = [_context(session) for session in found]
    about = any(text for text, _ in contexts)
    columns = [Column("ID", name=True), Column("STATE"), Column("AGENT", name=True)]
    columns += [Column("USER", name=True)] * users
    columns += [Column("OWNER", name=True)] * held
    columns += [Column("ENTRIES", right=True)]
    columns += (
        [Column("AGE", right=True), Column("SEEN", right=True)]
        if screen.terminal
        else [Column("CREATED"), Column("SEEN")]
    )
    columns += [Column("CONTEXT", wide=True)] * about
    rows: list[list[Cell]] = []
    for session, context in zip(found, contexts, strict=True):
        name = ids.get(session.session_id, session.session_id)
        row: list[Cell] = [(name, "bold"), state_cell(session, screen), session.agent_type]
        row += [session.user_id] * users
        row += [owner_cell(session)] * held
        row += [str(entries(session)), *(when(at, screen) for at in (session.created_at, session.last_heartbeat))]
        row += [context] * about
        rows.append(row)
    return columns, rows


def _context(session: AgentSession) -> Span:
    if isinstance(session, DamagedSession):
        return f"damaged: {session.damage}", "bold red"
    return "(sealed)" if session.locked else brief(session.context), DIM


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """The beginnings of generated ids, long enough to tell these apart; ids that someone chose stay whole."""
    length = SHORT_ID
    generated = {name for name in ids if len(name) == UUID_LENGTH and name.count("-") == 4}  # noqa: PLR2004
    while length < UUID_LENGTH and len({name[:length] for name in generated}) < len(generated):
        length += 1
    length += length in {14, 19, 24}  # not at a dash
    return {name: name[:length] if name in generated else name for name in ids}


def short(id: str, screen: Screen) -> str:
    return short_ids([id])[id] if screen.terminal else id


def state_cell(session: AgentSession, screen: Screen) -> Cell:
    mark, style = STATES[session.state]
    return (f"{mark if screen.terminal else ''}{session.state}", style)


def owner_cell(session: AgentSession) -> Cell:
    if session.owner is None:
        return ""
    if not session.owner.left:
        return (f"orphan of {session.owner.worker}", "red")
    return (session.owner.worker, "cyan")


def when(at: datetime, screen: Screen) -> Cell:
    return (age(at), "") if screen.terminal else (at.isoformat(timespec="milliseconds"), "")


def entries(session: AgentSession) -> int:
    return 0 if session.seen is None else session.seen.seq


def brief(data: Data) -> str:
    return flat("  ".join(f"{key}={bare(value)}" for key, value in data.items()), 80)


def labelled(told: Sequence[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in told]
    for (_, equals, _), item in zip(pairs, told, strict=True):
        if not equals:
            raise Misuse(f"--label {item}: write it as name=value")
    return {name: value for name, _, value in pairs}


def before_now(span: timedelta | None) -> datetime | None:
    return None if span is None else datetime.now(UTC) - span


async def show(what: CheckpointArg, /, *, full: Full = False, common: Common = COMMON) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session, ref = await target.find(sessions, what)
        checkpoint = await _checkpoint(sessions, session, ref)
        says: Data = {} if checkpoint is None else checkpoint.data
        kept = {} if checkpoint is None else await sessions.get_data(session.session_id, checkpoint.seq)
        taken = None if session.owner is None else await _owned(sessions, session.session_id)
    if screen.json:
        if ref is not None and checkpoint is not None:
            screen.data(checkpoint.to_dict())
        else:
            latest = None if checkpoint is None else checkpoint.to_dict()
            screen.data({**told(session), "checkpoints": [] if latest is None else [latest]})
        return
    fold = Fold() if screen.terminal and not full else FULL
    if ref is None:
        screen.lines(_about(session, taken, fold, screen))
    if checkpoint is None:
        screen.lines([Line(), Line(body=(("no checkpoint yet", DIM),))])
        return
    screen.lines([Line()] * (ref is None) + [Line(body=_title(checkpoint, session, screen, kept))])
    if says != kept:  # a lifecycle entry: what it says, then what the agent knew
        screen.lines([*tree(says, fold), Line(), Line(body=(("what the agent knew then", DIM),))])
    if checkpoint.metadata and checkpoint.name != ROLLED_BACK:
        screen.lines([*tree({"metadata": checkpoint.metadata}, fold)])
    screen.lines([*tree(kept, fold)] or [Line(body=(("{}", DIM),))])


async def _checkpoint(sessions: SessionManager, session: AgentSession, ref: str | None) -> Checkpoint | None:
    if ref is not None:
        return await sessions.get_checkpoint(session.session_id, ref)
    try:
        return await sessions.get_checkpoint(session.session_id)
    except NotFound:
        return None


async def _owned(sessions: SessionManager, id: str, before: int = 1 << 62) -> Checkpoint | None:
    """The entry by which its owner took it, as of the one `before`; None where nobody held it."""
    found: list[Checkpoint] = []
    for kind in sorted(TAKING | LETTING_GO):
        found += await sessions.history(id, name=f"session_{kind}", all=True)
    last = max((c for c in found if c.seq < before), key=lambda c: c.seq, default=None)
    return last if last is not None and "worker" in last.data else None


def _about(session: AgentSession, taken: Checkpoint | None, fold: Fold, screen: Screen) -> Iterator[Line]:
    mark, style = STATES[session.state]
    who = [session.agent_type, session.user_id]
    yield Line(
        body=(
            (session.session_id, "bold"),
            ("  " + " · ".join(filter(None, who)) + "  ", ""),
            (f"{mark if screen.terminal else ''}{session.state}", style),
        )
    )
    yield Line(
        body=(
            (f"created {local(session.created_at)} ({ago(session.created_at)}), ", DIM),
            (f"last sign of life {ago(session.last_heartbeat)}, {many(entries(session), 'entry')}", DIM),
        )
    )
    if session.owner is not None:
        since = "" if taken is None else f" for {age(taken.timestamp)}"
        worker, style = owner_cell(session)
        held = f"held by {worker}{since}" if session.owner.left else f"{worker}, which held it{since} and is silent"
        yield Line(body=((held, style),))
    if isinstance(session, DamagedSession):
        yield Line(body=((f"context and metadata are damaged: {session.damage}", "bold red"),))
        dicts = {"labels": session.labels}
    else:
        dicts = {"context": session.context, "metadata": session.metadata, "labels": session.labels}
    yield from tree({name: value for name, value in dicts.items() if value}, fold)


def _title(checkpoint: Checkpoint, session: AgentSession, screen: Screen, data: Data) -> tuple[Span, ...]:
    bytes_ = len(difference.encode(data, "data")[0])
    told = checkpoint.metadata
    back = f"↩ to {str(told['to']).rpartition(':')[2]} {told['name']}" if checkpoint.name == ROLLED_BACK else ""
    return (
        (f"{short(session.session_id, screen)}@{checkpoint.seq}", "bold"),
        (f"  {back or checkpoint.name}", "bold green"),
        (f"  {local(checkpoint.timestamp)} ({ago(checkpoint.timestamp)}), {size(bytes_)} of state", DIM),
    )


async def log(
    what: SessionArg,
    /,
    *,
    limit: Limit = None,
    all: Annotated[
        bool, Parameter(negative="", show_default=False, help="Every entry, also owners, steps and changes.")
    ] = False,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    if limit is None:
        limit = SHOWN if screen.terminal else 0
    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what)
        lines = await sessions.log(session.session_id, limit=limit or None, all=all)
        before = await _owned(sessions, session.session_id, lines[0].seq) if all and lines else None
    workers = dict(owners(lines, "" if before is None else before.data["worker"])) if all else None
    if screen.json:
        screen.data([_line(line, workers) for line in lines])
        return
    screen.table(*history(lines, screen, workers))
    if screen.terminal and limit and len(lines) == limit and lines[0].seq > 1:
        screen.say((f"… {lines[0].seq - 1:,} earlier; --limit 0 shows all", DIM))


def owners(lines: Iterable[LogLine], before: str = "") -> Iterator[tuple[int, str]]:
    """The seq of each entry and the worker that holds the session as of it; `before` held it in front of them."""
    worker = before
    for line in lines:
        worker = line.metadata.get("worker", "") if line.kind in TAKING else worker
        yield line.seq, worker if line.kind != "released" else ""
        worker = "" if line.kind in LETTING_GO else worker


def _line(line: LogLine, workers: dict[int, str] | None) -> Data:
    return {
        "id": line.id,
        "seq": line.seq,
        "kind": line.kind,
        "name": line.name,
        "timestamp": line.timestamp.isoformat(),
        "bytes": line.bytes,
        "metadata": line.metadata,
        "changed": line.changed,
    } | ({} if workers is None else {"owner": workers[line.seq] or None})


KINDS = {
    "checkpoint": "",
    "rollback": "magenta",
    "created": "blue",
    "paused": "yellow",
    "resumed": "green",
    "completed": "blue",
    "failed": "red",
    "recovered": "green",
    "claimed": "bold green",
    "step_finished": "cyan",
    "step_failed": "red",
}


def history(
    lines: Sequence[LogLine], screen: Screen, workers: Mapping[int, str] | None = None
) -> tuple[list[Column], list[list[Cell]]]:
    """A log one line each; with `workers`, by seq, also who held the session."""
    held = any((workers or {}).values())
    columns = [
        Column("SEQ", right=True),
        Column("AGE", right=True) if screen.terminal else Column("TIME"),
        Column("KIND"),
        Column("NAME", name=True),
        *([Column("OWNER", name=True)] * held),
        Column("BYTES", right=True),
        Column("CHANGED", wide=True),
    ]
    rows: list[list[Cell]] = []
    for line in lines:
        style = KINDS.get(line.kind, DIM)
        name = str(line.metadata.get("name", line.name)) if line.kind == "rollback" else line.name
        stored = size(line.bytes) if screen.terminal else str(line.bytes)
        rows.append(
            [
                (str(line.seq), "bold"),
                when(line.timestamp, screen),
                (line.kind, style),
                (name, style),
                *([((workers or {}).get(line.seq, ""), DIM)] * held),
                (stored, DIM),
                (said(line), "" if line.kind != "rollback" else style),
            ]
        )
    return columns, rows


def said(line: LogLine) -> str:
    """What an entry changed, or what it says: why it failed, what came out, from whom it was taken."""
    match line.kind:
        case "checkpoint":
            return flat(", ".join(line.changed), 200)
        case "rollback":
            return flat(f"↩ to {line.metadata.get('to', '').rpartition(':')[2]} {', '.join(line.changed)}", 200)
        case "completed" | "failed" | "step_started" | "step_finished" | "step_failed":
            return brief({key: value for key, value in line.metadata.items() if value not in ("", {}, None)})
        case "claimed":
            return f"from {line.metadata.get('from', '')}"
        case _:
            return ""


async def diff(
    a: Annotated[str, Parameter(name="FROM", help="From here, ID@REF. An ID alone: its last two checkpoints.")],
    b: Annotated[
        str | None, Parameter(name="TO", help="To here, ID@REF; @REF is of the same session. Left out: the latest.")
    ] = None,
    /,
    *,
    full: Full = False,
    common: Common = COMMON,
) -> None:
    from saveslot.cli.changes import changes, summary

    screen = common.screen
    async with common.sessions() as sessions:
        first = await target.find(sessions, a)
        if b is None:
            start, end = (first.ref or "~1"), "latest"
            second = first
        elif b.startswith("@"):
            start, end, second = (first.ref or "latest"), b[1:], first
        else:
            second = await target.find(sessions, b)
            start, end = first.ref or "latest", second.ref or "latest"
        ends = [(first, start), (second, end)]
        marks = [await sessions.get_checkpoint(at.id, ref) for at, ref in ends]
        before, after = [await sessions.get_data(at.id, mark.seq) for (at, _), mark in zip(ends, marks, strict=True)]
    patch = difference.diff(before, after)
    if screen.json:
        screen.data(patch)
        return
    titles = [f"{short(at.id, screen)}@{mark.seq} {mark.name}" for (at, _), mark in zip(ends, marks, strict=True)]
    screen.lines(
        [
            Line(body=(("from  ", DIM), (titles[0], "bold"), (f"  {ago(marks[0].timestamp)}", DIM))),
            Line(body=(("to    ", DIM), (titles[1], "bold"), (f"  {ago(marks[1].timestamp)}", DIM))),
            Line(body=((summary(patch), DIM),)),
        ]
    )
    if patch:
        fold = Fold() if screen.terminal and not full else FULL
        colour = screen.terminal and screen.console.color_system is not None
        screen.lines([Line(), *changes(before, patch, fold, colour=colour)])


async def audit(
    what: Annotated[str, Parameter(name="ID", help="A session's id, its beginning, or the whole id of a deleted one.")],
    /,
    *,
    verify: Annotated[bool, Parameter(negative="", show_default=False, help="Fail if an entry does not fit.")] = False,
    link: Annotated[str | None, Parameter(help="The newest link of an earlier audit: it must still be there.")] = None,
    common: Common = COMMON,
) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        try:  # first as it was typed: a deleted session must not be taken for one that begins with its id
            trail = await sessions.audit(what, link=link)
        except NotFound as unheard:
            try:
                session = await target.find_session(sessions, what)
            except NotFound:
                raise unheard from None
            trail = await sessions.audit(session.session_id, link=link)
    if screen.json:
        screen.data({**msgspec.to_builtins(trail), "head": trail.head})
    else:
        columns = [
            Column("SEQ", right=True),
            Column("TIME"),
            Column("KIND"),
            Column("NAME", name=True),
            Column("HELD BY", name=True),
        ]
        rows: list[list[Cell]] = [
            [str(line.seq), f"{line.timestamp:%Y-%m-%d %H:%M:%S}", line.kind, line.name, line.held_by]
            for line in trail.lines
        ]
        screen.table(columns, rows)
        note(f"{trail.session_id} is {trail.state}; newest link {trail.head or '(none)'}")
    if trail.misfit is not None:
        note(f"saveslot: entry {trail.misfit} {trail.wrong}")
        if verify or link is not None:
            raise SystemExit(1)
    elif verify:
        others = f"; nothing vouches for {trail.unlinked:,} of them" if trail.unlinked else ""
        note(f"{len(trail.lines):,} entries fit{others}")
