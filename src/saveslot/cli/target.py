"""Sessions and checkpoints as users type them: `ID`, a unique beginning or end of it, `ID@name`, `ID@17`, `ID@~2`.

In a script or a pipe, commands that change or export need the full id: a script that deletes `lesson-1` twice must not
delete `lesson-10` the second time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saveslot.cli.exits import Misuse
from saveslot.cli.words import age
from saveslot.errors import KeyMissing, NotFound
from saveslot.manager import SessionManager
from saveslot.session.lookup import unknown
from saveslot.session.model import AgentSession
from saveslot.values import refs

# Sessions listed for an ambiguous prefix.
LISTED = 10
# The fewest characters that count as the end of an id, and the most sessions that are looked at for one.
LEAST_END, MOST, PAGE = 3, 20_000, 1000
WHOLE = "In a script or a pipe this command needs the full id"


class Target(NamedTuple):
    session: AgentSession
    ref: str | None  # None: only a session was named

    @property
    def id(self) -> str:
        return self.session.session_id


async def find(sessions: SessionManager, text: str, *, changes: bool = False) -> Target:
    """The session, and the checkpoint's ref if there is one. An id or a name may itself contain an @.

    `changes`: for a command that changes or exports it.
    """
    exact = changes and not (sys.stdin.isatty() and sys.stdout.isatty())
    for part, ref in _readings(text):
        if (session := await _by_prefix(sessions, part, exact=exact)) is not None:
            return Target(session, ref)
    for part, ref in () if exact else _readings(text):
        if (session := await _by_end(sessions, part)) is not None:
            return Target(session, ref)
    name = text.partition("@")[0] or text
    raise await missing(sessions, name, WHOLE if exact else "")


async def find_session(sessions: SessionManager, text: str, *, changes: bool = False) -> AgentSession:
    """The session; a checkpoint is not accepted here."""
    target = await find(sessions, text, changes=changes)
    if target.ref is not None:
        raise Misuse(f"{text}: name only the session here, {text.removesuffix('@' + target.ref)}")
    return target.session


async def missing(sessions: SessionManager, id: str, why: str = "This command needs the full id") -> NotFound:
    """The error of a command that accepts full ids only. It suggests the likely id."""
    likely = [one.session_id for one in await sessions.find(prefix=id, limit=2) or await _ending(sessions, id)]
    likely = likely or await _like(sessions, id)
    if not likely:
        return unknown(id, sessions.namespace)
    hint = f"did you mean {likely[0]}?" if len(likely) == 1 else "several ids start or end with that."
    return NotFound(f"no session {id} in namespace {sessions.namespace}; {hint} {why}".rstrip())


async def whole(sessions: SessionManager, id: str) -> str:
    """The id, if a session has exactly this id; otherwise raise `NotFound`."""
    _require(id)
    try:
        exists = await sessions.get_session(id, history=0) is not None
    except KeyMissing:  # it exists, sealed
        exists = True
    if not exists:
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


async def _by_prefix(sessions: SessionManager, prefix: str, *, exact: bool) -> AgentSession | None:
    _require(prefix)
    page = await sessions.find(prefix=prefix, limit=LISTED + 1)
    for session in page:
        if session.session_id == prefix:
            return session
    if len(page) <= 1:
        return page[0] if page and not exact else None
    # A session with exactly this id may be on a later page.
    if (session := await sessions.get_session(prefix, history=0)) is not None or exact:
        return session
    raise _ambiguous(prefix, page, len(page) if len(page) <= LISTED else await sessions.count(prefix=prefix))


async def _by_end(sessions: SessionManager, end: str) -> AgentSession | None:
    """The only session whose id ends so. Ids generated one after another begin alike."""
    matches = await _ending(sessions, end)
    if len(matches) > 1:
        raise _ambiguous(end, matches, len(matches))
    return matches[0] if matches else None


async def _ending(sessions: SessionManager, end: str) -> list[AgentSession]:
    if len(end) < LEAST_END:
        return []
    matches: list[AgentSession] = []
    after: str | None = None
    for _ in range(0, MOST, PAGE):
        page = await sessions.find(text=end, limit=PAGE, after=after)
        matches += [session for session in page if session.session_id.endswith(end)]
        after = page.next
        if after is None:
            break
    return matches


async def _like(sessions: SessionManager, id: str) -> list[str]:
    """The id most like a mistyped one, of the newest sessions."""
    from difflib import get_close_matches

    return get_close_matches(id, [session.session_id for session in await sessions.find(limit=PAGE)], 1)


def _ambiguous(part: str, matches: Sequence[AgentSession], count: int) -> Misuse:
    listed = "".join(f"\n  {s.session_id}  {s.agent_type}  {s.state}  {age(s.created_at)}" for s in matches[:LISTED])
    more = f"\n  and {count - LISTED:,} more" if count > LISTED else ""
    return Misuse(f"{part!r} matches {count:,} sessions; type more of the id, or its end:{listed}{more}")


def _require(id: str) -> None:
    if not id:
        raise Misuse("name a session by its id, or a unique beginning or end of it (`saveslot ls` lists them)")
