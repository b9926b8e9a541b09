"""`saveslot show`: a session and its state, now or as of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.log import owned
from saveslot.cli.options import CheckpointArg, Full
from saveslot.cli.screen import Line, Screen, Span, line
from saveslot.cli.sessions import STATES, as_data, entries, owner_cell, short
from saveslot.cli.state import DIM, FULL, Fold, tree
from saveslot.cli.words import age, ago, local
from saveslot.codec import difference
from saveslot.errors import NotFound
from saveslot.manager import SessionManager
from saveslot.session.model import AgentSession, Checkpoint, DamagedSession
from saveslot.values.checks import Data
from saveslot.values.words import many, size

ROLLED_BACK = "session_rolled_back"


async def show(what: CheckpointArg, /, *, full: Full = False, common: Common = COMMON) -> None:
    screen = common.screen
    async with common.sessions() as sessions:
        session, ref = await target.find(sessions, what)
        checkpoint = await _checkpoint(sessions, session, ref)
        kept = {} if checkpoint is None else await sessions.get_data(session.session_id, checkpoint.seq)
        taken = None if session.owner is None else await owned(sessions, session.session_id)
    latest = [] if checkpoint is None else [checkpoint.to_dict()]
    value = {**as_data(session), "checkpoints": latest} if ref is None or checkpoint is None else checkpoint
    fold = Fold() if screen.terminal and not full else FULL
    about = _about(session, taken, fold, screen) if ref is None else iter(())
    screen.answer(value, chain(about, _state(checkpoint, session, kept, fold, screen, apart=ref is None)))


def _state(
    checkpoint: Checkpoint | None, session: AgentSession, kept: Data, fold: Fold, screen: Screen, *, apart: bool
) -> Iterator[Line]:
    if apart:
        yield Line()
    if checkpoint is None:
        yield line(("no checkpoint yet", DIM))
        return
    yield Line(body=_title(checkpoint, session, screen, kept))
    if checkpoint.data != kept:  # a lifecycle entry: what it says, then what the agent knew
        yield from (*tree(checkpoint.data, fold), Line(), line(("the agent's state then", DIM)))
    if checkpoint.metadata and checkpoint.name != ROLLED_BACK:
        yield from tree({"metadata": checkpoint.metadata}, fold)
    yield from [*tree(kept, fold)] or [line(("{}", DIM))]


async def _checkpoint(sessions: SessionManager, session: AgentSession, ref: str | None) -> Checkpoint | None:
    if ref is not None:
        return await sessions.get_checkpoint(session.session_id, ref)
    try:
        return await sessions.get_checkpoint(session.session_id)
    except NotFound:
        return None


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
            (f"last heartbeat {ago(session.last_heartbeat)}, {many(entries(session), 'entry')}", DIM),
        )
    )
    if session.owner is not None:
        until = None if session.owner.left else session.last_heartbeat
        since = "" if taken is None else f" for {age(taken.timestamp, until)}"
        worker, style = owner_cell(session)
        held = f"held by {worker}{since}"
        if until is not None:
            held = f"{worker}, which held it{since}, until its last heartbeat {ago(until)}"
        if not session.owner.worker:
            held = f"{worker}; saveslot log {short(session.session_id, screen)} --all says which"
        yield Line(body=((held, style),))
    if isinstance(session, DamagedSession):
        yield Line(body=((f"context and metadata are damaged: {session.damage}", "bold red"),))
        dicts = {"labels": session.labels}
    else:
        dicts = {"context": session.context, "metadata": session.metadata, "labels": session.labels}
    yield from tree({name: value for name, value in dicts.items() if value}, fold)


def _title(checkpoint: Checkpoint, session: AgentSession, screen: Screen, data: Data) -> tuple[Span, ...]:
    bytes_ = len(difference.encode(data, "data")[0])
    metadata = checkpoint.metadata
    back = f"↩ to {str(metadata['to']).rpartition(':')[2]} {metadata['name']}" if checkpoint.name == ROLLED_BACK else ""
    return (
        (f"{short(session.session_id, screen)}@{checkpoint.seq}", "bold"),
        (f"  {back or checkpoint.name}", "bold green"),
        (f"  {local(checkpoint.timestamp)} ({ago(checkpoint.timestamp)}), {size(bytes_)} of state", DIM),
    )
