"""Sessions as people see them: rows of a table, short ids, states and owners."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from saveslot.cli.screen import Cell, Column, Screen, Span, Table
from saveslot.cli.state import DIM, bare
from saveslot.cli.words import age, flat
from saveslot.session.model import AgentSession, DamagedSession
from saveslot.values.checks import Data

STATES = {"active": ("● ", "green"), "paused": ("‖ ", "yellow"), "completed": ("✓ ", "blue"), "failed": ("✗ ", "red")}
# A UUIDv7 starts with its milliseconds: 13 characters are unique except for sessions created in the same one.
SHORT_ID = 13
UUID_LENGTH = 36
# Columns of a terminal that has room for a generated id and a state beside it: a list shows it whole, to be copied.
ROOMY = UUID_LENGTH + len("  ✓ completed  ")


def as_data(session: AgentSession) -> Data:
    """Its `to_dict` and its owner; what can be read of a damaged session."""
    owner = session.owner
    known = session.readable() if isinstance(session, DamagedSession) else session.to_dict()
    return {**known, "owner": None if owner is None else owner.to_dict()}


def as_row(session: AgentSession) -> Data:
    """A listed session: without checkpoints, which a list does not load, but with the number of its entries."""
    known = as_data(session)
    known.pop("checkpoints", None)
    return {**known, "entries": entries(session)}


def listing(sessions: Sequence[AgentSession], screen: Screen) -> Table:
    """A table of sessions: times are ages on a terminal, exact in a pipe."""
    cramped = screen.terminal and screen.console.width < ROOMY
    ids = short_ids([session.session_id for session in sessions]) if cramped else {}
    users, held = (any(getattr(s, part) for s in sessions) for part in ("user_id", "owner"))
    contexts = [_context(session) for session in sessions]
    about = any(text for text, _ in contexts)
    columns = [Column("ID", id=True), Column("STATE"), Column("AGENT", name=True, spare=1)]
    columns += [Column("USER", name=True, spare=5)] * users
    columns += [Column("OWNER", name=True, spare=2)] * held
    columns += [Column("ENTRIES", right=True, spare=4)]
    columns += (
        [Column("AGE", right=True, spare=3), Column("HEARTBEAT", right=True, spare=6)]
        if screen.terminal
        else [Column("CREATED"), Column("HEARTBEAT")]
    )
    columns += [Column("CONTEXT", wide=True)] * about
    rows: list[list[Cell]] = []
    for session, context in zip(sessions, contexts, strict=True):
        name = ids.get(session.session_id, session.session_id)
        row: list[Cell] = [(name, "bold"), state_cell(session, screen), session.agent_type]
        row += [session.user_id] * users
        row += [owner_cell(session)] * held
        row += [str(entries(session)), *(when(at, screen) for at in (session.created_at, session.last_heartbeat))]
        row += [context] * about
        rows.append(row)
    return Table(columns, rows)


def _context(session: AgentSession) -> Span:
    if isinstance(session, DamagedSession):
        return f"damaged: {session.damage}", "bold red"
    return "(sealed)" if session.locked else brief(session.context), DIM


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Generated ids cut to a prefix that is unique among these; ids chosen by users stay whole."""
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
    if not session.owner.worker:
        return ("left by an error", "red")
    if not session.owner.left:
        return (f"orphan of {session.owner.worker}", "red")
    return (session.owner.worker, "cyan")


def when(at: datetime, screen: Screen) -> Cell:
    return (age(at), "") if screen.terminal else (at.isoformat(timespec="milliseconds"), "")


def entries(session: AgentSession) -> int:
    return 0 if session.seen is None else session.seen.seq


def brief(data: Data) -> str:
    return flat("  ".join(f"{key}={bare(value)}" for key, value in data.items()), 80)
