"""What a person types for a session or a checkpoint: `ID`, a unique prefix of it, `ID@name`, `ID@17`, `ID@~2`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from saveslot import refs
from saveslot.cli.exits import Misuse
from saveslot.cli.words import age
from saveslot.errors import KeyMissing, NotFound
from saveslot.lookup import unknown
from saveslot.manager import SessionManager
from saveslot.model import AgentSession

# How many an ambiguous prefix lists.
LISTED = 10


class Target(NamedTuple):
    session: AgentSession
    ref: str | None  # None: nothing was said behind the id

    @property
    def id(self) -> str:
        return self.session.session_id


async def find(sessions: SessionManager, text: str) -> Target:
    """The session, and the checkpoint's ref if there is one. An id or a name may itself contain an @."""
    for prefix, ref in _readings(text):
        if (session := await _by_prefix(sessions, prefix)) is not None:
            return Target(session, ref)
    raise unknown(text.partition("@")[0] or text, sessions.namespace)


async def find_session(sessions: SessionManager, text: str) -> AgentSession:
    """The same where a checkpoint makes no sense."""
    target = await find(sessions, text)
    if target.ref is not None:
        raise Misuse(f"{text}: name the session alone here, {text.removesuffix('@' + target.ref)}")
    return target.session


async def missing(sessions: SessionManager, id: str) -> NotFound:
    """For what destroys and asks nobody: it takes whole ids alone, and says which one may have been meant.

    A script that deletes `lesson-1` twice must not delete `lesson-10` the second time.
    """
    page = await sessions.find(prefix=id, limit=2)
    if not page:
        return unknown(id, sessions.namespace)
    others = f"the only one that begins so is {page[0].session_id}" if len(page) == 1 else "several begin so"
    return NotFound(f"no session {id} in namespace {sessions.namespace}; {others}: give the whole id")


async def whole(sessions: SessionManager, id: str) -> str:
    """An id as it was typed, of a session that is there."""
    _said(id)
    try:
        found = await sessions.get_session(id, history=0) is not None
    except KeyMissing:  # there it is, sealed
        found = True
    if not found:
        raise await missing(sessions, id)
    return id


def _readings(text: str) -> Iterator[tuple[str, str | None]]:
    yield text, None
    at = text.rfind("@")
    while at > 0:
        yield text[:at], text[at + 1 :]
        at = text.rfind("@", 0, at)
    if (other := refs.elsewhere(text)) is not None:
        yield other[0], str(other[1])


async def _by_prefix(sessions: SessionManager, prefix: str) -> AgentSession | None:
    _said(prefix)
    page = await sessions.find(prefix=prefix, limit=LISTED + 1)
    for session in page:
        if session.session_id == prefix:
            return session
    if len(page) <= 1:
        return page[0] if page else None
    # An exact id may lie behind the page.
    if (session := await sessions.get_session(prefix, history=0)) is not None:
        return session
    count = len(page) if len(page) <= LISTED else await sessions.count(prefix=prefix)
    listed = "".join(f"\n  {s.session_id}  {s.agent_type}  {s.state}  {age(s.created_at)}" for s in page[:LISTED])
    more = f"\n  and {count - LISTED:,} more" if count > LISTED else ""
    raise Misuse(f"{prefix!r} is the beginning of {count:,} sessions; type more of it:{listed}{more}")


def _said(id: str) -> None:
    if not id:
        raise Misuse("name a session: its id, or the beginning of it (saveslot ls)")
